"""The one event model that scores every plan.

It follows sections 3.4 and 4.1 of the SlackSwap paper. One training iteration runs on a compute stream, one D2H and one
H2D copy engine, under a budget in bytes for saved tensors, rebuilt tensors, prefetch buffers, gradient buffers and
temporaries. The rules, as the code cites them:

1.  A step starts when every tensor it reads is on the device and ``used + allocation <= budget``. The allocation is all
    tensors that it writes plus its workspace; the workspace goes when the step ends.
2.  Kept tensors go after their last use; recomputed ones after their last forward reader, and again after their last use;
    swapped ones after their last use too, or when an offload that is still under way then ends.
3.  The peak P is the largest `used` of the keep-everything plan.
4.  Each engine moves one tensor at a time: latency, then bytes at the link's bandwidth, times `duplex_factor` while both
    engines move bytes.
5.  D2H: swapped tensors in order of production. The device copy goes when the copy and the last forward reader have ended.
6.  H2D: after the last forward operator, by (deadline, tensor index). The head is admitted when it and the allocations of
    the next three steps fit; when compute waits for just this tensor, as soon as the tensor itself fits.
7.  A tensor whose offload has not started when a backward step that reads it starts is not offloaded; one whose offload is
    under way is read where it is, and stays. A step counts as reading from the moment compute stands at it.
8.  Waiting before the end of the forward pass is forward stall, after it backward stall.
9.  If compute is stuck with no copy in flight and none admissible, the prefetched tensor that is read furthest in the
    future is released and queued again. If there is none, or in the forward pass, the plan does not fit.
10. At one instant (ends less than 1 ns apart): the step's end, the copies' ends, a D2H start, the next step, an H2D start.
11. The iteration ends with its last step. A copy's bytes count when it starts.

Policy ``barriers`` (vDNN): a layer is a run of neighbouring operators of one pass with one layer number; a rebuild is a
layer of its own. A layer begins only when every copy under way at the end of the layer before it has ended. In the backward
pass its own missing inputs are fetched first, until nothing is under way and the next of them cannot be admitted; while it
runs, only its own inputs and, if it reads swapped tensors itself, those of the closest later layer that misses some when it
begins are fetched, all under the admission of rule 6.

Policy ``on-demand`` (SuperNeurons): nothing is offloaded ahead. From the end of its last forward reader until a backward step
reads it, a swapped tensor may leave, and stays until it has to. Compute that stands at a step which lacks nothing but memory,
or which waits for a tensor that cannot be fetched for lack of it (no H2D copy under way), makes room if D2H is idle: of the
tensors that may leave, are on the device and are next read after this step, the least recently used goes, that is the one
whose last forward reader (else its producer) comes first in the schedule; the same reader: lower index. If the host has a copy
it is released at once, and then the step is tried, the H2D head, and room is made again; else it is copied out, and released
when that copy ends, for which compute stands. What has been fetched may leave again. While compute waits, only tensors with
the step at hand as deadline are fetched; while a step runs, only those whose deadline is the next heavy operator (gemm,
attention or convolution; a rebuild is none) after it; both under the admission of rule 6. Room is made after the H2D start in
the order of rule 10, instead of rule 9: if there is none to make and nothing is under way, the plan does not fit.
"""

from slackswap.models.event_model.score import Score, ScoreTable, Timeline
from slackswap.models.event_model.simulate import POLICIES, peak_bytes, simulate, simulate_many

__all__ = ["POLICIES", "Score", "ScoreTable", "Timeline", "peak_bytes", "simulate", "simulate_many"]
