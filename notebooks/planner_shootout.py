# %% [markdown]
# # The planner shootout, and a planner of your own
#
# A *problem* is one training iteration: operators in order, and the tensors that the forward pass saves for the backward
# pass. A *planner* decides for each saved tensor: keep it, swap it to host memory, or drop and recompute it. One *event
# model* scores every plan, so that planners can be compared. This notebook runs the shootout and adds a planner.

# %%
import numpy as np

from slackswap.evaluate.results import table
from slackswap.evaluate.shootout import shootout
from slackswap.evaluate.sources import load_source
from slackswap.models import RECOMPUTE, SWAP, Plan, Problem, link_budget, peak_bytes, simulate
from slackswap.planners import registry

# %% [markdown]
# ## A problem
# GPT-2 XL on an A100, as in the paper. `small-gpt` would be the recorded trace, a path any problem file or trace.

# %%
problem = load_source("gpt2-xl")
budget = link_budget(problem)
peak = peak_bytes(problem)
print(
    f"{problem.n_operators} operators, {problem.saved.sum()} saved tensors, ideal step {problem.ideal_s * 1e3:.1f} ms"
)
print(
    f"A = {problem.saved_bytes / 1e9:.1f} GB, P = {peak / 1e9:.1f} GB, the link hides {budget.hideable_fraction:.0%} of A"
)

# %% [markdown]
# ## The shootout
# Every registered planner, at half and at 30% of the peak.

# %%
results = [result for cell in shootout([problem], ["50%", "30%"], list(registry().values())) for result in cell]
table([result.row for result in results])

# %% [markdown]
# ## Where the time goes
# The timeline of SlackSwap's plan at 30%: what computes, what is copied, and where compute waits.

# %%
chosen = next(r for r in results if r.row.planner == "slackswap" and r.row.budget_fraction < 0.4)
assert chosen.outcome.plan is not None
score = simulate(problem, chosen.outcome.plan, chosen.row.budget_bytes, timeline=True)
assert score.timeline is not None
waits = score.timeline.input_wait_s + score.timeline.memory_wait_s
print(
    f"{score.throughput:.1%} of the ideal; {score.recompute_s * 1e3:.1f} ms rebuilt, {waits.sum() * 1e3:.1f} ms waited"
)
print(f"{score.timeline.copy_is_d2h.sum()} copies out, {(~score.timeline.copy_is_d2h).sum()} copies in")

# %% [markdown]
# ## A planner of your own
# A function of problem and budget that returns a plan. This one swaps what no operator rebuilds, as far as the link can
# copy it out in the forward pass, and recomputes the biggest tensors until the plan fits.


# %%
def biggest_first(problem: Problem, budget_bytes: int) -> Plan | None:
    """Swap block inputs within the link budget, recompute the biggest tensors."""
    decisions = np.zeros(problem.n_tensors, np.int8)
    swappable = np.flatnonzero(problem.saved & ~problem.rebuildable)
    within = np.cumsum(problem.tensor_bytes[swappable]) <= link_budget(problem).hideable_bytes
    decisions[swappable[within]] = SWAP
    candidates = np.flatnonzero(problem.saved & problem.rebuildable)
    for t in candidates[np.argsort(-problem.tensor_bytes[candidates], kind="stable")]:
        plan = Plan(decisions)
        if simulate(problem, plan, budget_bytes).fits:
            return plan
        decisions[t] = RECOMPUTE
    return Plan(decisions)


# %%
rivals = [registry()[name] for name in ("slackswap", "checkpoint")]
own = [result for cell in shootout([problem], ["50%"], [biggest_first, *rivals]) for result in cell]
table([result.row for result in own])

# %% [markdown]
# To keep a planner, give it a name, a description and the facts of `Supports`, and register it: CONTRIBUTING.md says how.
