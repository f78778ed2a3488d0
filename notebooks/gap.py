# %% [markdown]
# # How much is left
#
# How far is a plan from the best one? For problems of this size nobody can try all plans, but a *lower bound* can be
# certified: a time that no plan beats. Between the bound and the best plan known lies all that is left. This notebook
# lets genetic search, a MILP and our refined planner run on one problem, and looks where the rest sits.

# %%
from slackswap.evaluate.budget import parse_budget
from slackswap.evaluate.gap import gap_curves, gap_rows, gap_table, measure_gaps
from slackswap.evaluate.gap_figure import anytime_figure
from slackswap.evaluate.sources import load_source
from slackswap.models import RECOMPUTE, SWAP, peak_bytes, simulate
from slackswap.planners import find_planners
from slackswap.planners.lower_bound import lower_bound

SECONDS = 2.0  # for each planner that searches; the paper gives genetic search 45

# %% [markdown]
# ## One problem, five planners
# Llama-7B at 20% of its peak. `ga-random` starts from random plans, `ga-seeded` from the plans of the quick planners.

# %%
problem = load_source("llama-7b")
budget = parse_budget("20%")
planners = find_planners("slackswap,slackswap-refined,milp,ga-seeded,ga-random")
results = [result for cell in measure_gaps(problem, budget, planners, 0, SECONDS, lambda *_: None) for result in cell]
rows = gap_rows(results)
gap_table(rows)

# %% [markdown]
# ## Over time
# Each line is one search: what it had found after so many seconds. A marker without a line is a planner that only answers.

# %%
bound_s = rows[0].lower_bound_s
anytime_figure(gap_curves(rows), "Llama-7B, 20% of the peak", "the lower bound" if bound_s else "the best plan known")

# %% [markdown]
# ## How the bound came about
# It is the better of a linear relaxation (memory at chosen operators, bytes on the link until then) and the same with
# whole tensors. docs/gaps.md says what it leaves out.

# %%
budget_bytes = budget.bytes_of(peak_bytes(problem))
for whole in (False, True):
    bound = lower_bound(problem, budget_bytes, whole=whole, time_limit_s=SECONDS)
    print(f"{'whole tensors' if whole else 'fractions of tensors'}: {problem.ideal_s / bound.step_s:.3%} of the ideal")

# %% [markdown]
# ## Where the rest sits
# The plans of the paper's planner and of the refined one: equal where one would look first, different in a few dozen
# tensors.

# %%
plans = {result.row.planner: result.outcome.plan for result in results if result.outcome.plan is not None}
paper, refined = plans["slackswap"], plans["slackswap-refined"]
differ = [t for t in range(problem.n_tensors) if paper.decisions[t] != refined.decisions[t]]
print(f"{len(differ)} of {int(problem.saved.sum())} saved tensors are decided differently")
for name, plan in (("slackswap", paper), ("slackswap-refined", refined)):
    score = simulate(problem, plan, budget_bytes, timeline=True)
    swapped, rebuilt = (plan.decisions == SWAP), (plan.decisions == RECOMPUTE)
    print(
        f"{name}: {problem.tensor_bytes[swapped].sum() / 1e9:.2f} GB swapped, {rebuilt.sum()} tensors recomputed in"
        f" {score.recompute_s * 1e3:.1f} ms, {score.forward_stall_s * 1e3:.2f} + {score.backward_stall_s * 1e3:.2f} ms waited"
    )

# %% [markdown]
# What is left between the refined plan and the bound, in microseconds:

# %%
best = min(row.step_s for row in rows if row.step_s is not None)
print(
    f"best plan {best * 1e3:.3f} ms, bound {(bound_s or 0) * 1e3:.3f} ms: at most {(best - (bound_s or 0)) * 1e6:.0f} us"
)
