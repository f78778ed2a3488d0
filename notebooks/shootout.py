# %% [markdown]
# # The planner shootout
#
# A *problem* is one training iteration: operators in order, and the tensors that the forward pass saves for the backward
# pass. A *planner* decides for each saved tensor: keep it, swap it to host memory, or drop and recompute it. One *event
# model* scores every plan, so that planners can be compared. This notebook runs the shootout on a workload of the paper
# and on a recorded trace, and reads the result: first the table, then the timeline.

# %%
from slackswap.evaluate.explain import stall_table, time_table
from slackswap.evaluate.results import table
from slackswap.evaluate.shootout import shootout
from slackswap.evaluate.sources import load_source
from slackswap.evaluate.timeline_figure import timeline_figure
from slackswap.models import link_budget, peak_bytes, simulate
from slackswap.planners import find_planners, registry

# %% [markdown]
# ## Two problems
# GPT-2 XL on an A100, as in the paper, operator times from the roofline; and a training step of a small GPT that was
# recorded on a CPU. A path of a trace or problem file would do as well: `load_source("step.et.json+step.kineto.json.gz")`.

# %%
gpt2, recorded = load_source("gpt2-xl"), load_source("small-gpt")
for problem in (gpt2, recorded):
    hidden = link_budget(problem).hideable_fraction
    print(
        f"{problem.name}: {problem.n_operators} operators, {problem.saved.sum()} saved tensors, ideal step"
        f" {problem.ideal_s * 1e3:.0f} ms, A = {problem.saved_bytes / 1e9:.2f} GB, P = {peak_bytes(problem) / 1e9:.2f} GB,"
        f" the link hides {hidden:.0%} of A"
    )

# %% [markdown]
# `f`, the last number, decides what is possible (paper, Eq. 1): the link can move that share of the saved bytes while the
# forward pass computes. What the budget lacks beyond it has to be recomputed or waited for.
#
# ## The table
# Every planner that decides in milliseconds, at half and at 30% of the peak. Planners that search get half a second each;
# they are left out here to keep the notebook quick (`list(registry().values())` runs all).

# %%
quick = [planner for planner in registry().values() if not planner.supports.anytime and not planner.supports.tiny_only]
cells = list(shootout([gpt2], ["50%", "30%"], quick))
table([result.row for cell in cells for result in cell])

# %% [markdown]
# *% of ideal* is the ideal step over the planned one. What is missing to 100% stands beside it as a multiple of the ideal
# step: time to recompute, and time that compute waits, in the forward and in the backward pass. The lower bound is
# certified: no plan is faster, whoever finds it. A status `infeasible` is an answer too; the lines that
# `slackswap shootout` prints below its table say which operator lacks how many bytes.
#
# ## The timeline
# SlackSwap's plan at 30%: the three lanes and the memory below the budget. It recomputes (what takes no link) and swaps
# (what takes no compute) at once, and waits for nothing in the forward pass.

# %%
chosen = {result.row.planner: result for result in cells[1]}


def replay(planner: str):
    """Score the plan of a planner again, with its timeline."""
    result = chosen[planner]
    return simulate(
        gpt2, result.outcome.plan, result.row.budget_bytes, policy=registry()[planner].policy, timeline=True
    )


timeline_figure(replay("slackswap"))

# %% [markdown]
# vDNN swaps far more than the link can hide and synchronizes at every layer. The same lanes, the same memory:

# %%
timeline_figure(replay("vdnn"))

# %% [markdown]
# Where its time goes, and which copies it waits for:

# %%
why = replay("vdnn").explain()
time_table(why)

# %%
stall_table(why.stalls)

# %% [markdown]
# ## The recorded trace
# The same planners on what a profiler saw. `slackswap problem small-gpt` shows how each fact was derived.

# %%
own = [
    result
    for cell in shootout([recorded], ["60%"], find_planners("slackswap,checkpoint,swapadvisor"))
    for result in cell
]
table([result.row for result in own])
