# %% [markdown]
# # Your own trace
#
# From what a profiler wrote to a plan, and what to do with it. The recording here is the one that ships with SlackSwap: a
# training step of a small GPT; put the paths of your own files in its place.

# %%
from pathlib import Path
from tempfile import mkdtemp

from slackswap.evaluate.budget import parse_budget
from slackswap.evaluate.problem_report import derivation_table, describe_problem
from slackswap.evaluate.timeline_figure import timeline_figure
from slackswap.hardware import Link, load_hardware
from slackswap.models import peak_bytes, read_problem, simulate, write_problem
from slackswap.models.plan_file import PlannerRecord, read_plan, write_plan
from slackswap.models.traces import import_traces
from slackswap.models.traces.recorded import recorded_trace_paths
from slackswap.planners import registry, run_planner

folder = Path(mkdtemp())

# %% [markdown]
# ## Record
# One step, after a few to warm up, with the observer that knows the tensors beside the profiler that knows the times:
#
# ```python
# observer = torch.profiler.ExecutionTraceObserver().register_callback("step.et.json")
# with torch.profiler.profile(record_shapes=True, profile_memory=True, execution_trace_observer=observer) as profile:
#     train_step()
# profile.export_chrome_trace("step.kineto.json.gz")
# observer.unregister_callback()
# ```
#
# Or let `slackswap capture train.py:step` do it; with `--device fake` it needs neither the memory nor the GPU.
#
# ## Import
# Files are recognized by their content. The link is not in any trace: choose the machine to plan for. This step ran on a
# CPU, so slowly that a real link would hide everything; a slow one makes it a problem.

# %%
slow_link = Link(d2h_bytes_per_s=0.125e9, h2d_bytes_per_s=0.125e9)
problem = import_traces(recorded_trace_paths(), link=slow_link)
describe_problem(problem)[0]

# %% [markdown]
# How each of these facts came about: recorded, by a rule, or not at all.

# %%
derivation_table(problem.metadata["derivation"])

# %% [markdown]
# The Kineto trace alone would do, too, where no execution trace was recorded: sizes, producers and readers then follow from
# the shapes of the calls and a rule per backward node.

# %%
alone = import_traces([recorded_trace_paths()[1]], link=slow_link)
print(f"with the execution trace A = {problem.saved_bytes / 1e6:.1f} MB, without it {alone.saved_bytes / 1e6:.1f} MB")
derivation_table(alone.metadata["derivation"])

# %% [markdown]
# ## Plan
# At half of the memory that keeping everything takes.

# %%
budget_bytes = parse_budget("50%").bytes_of(peak_bytes(problem))
outcome = run_planner(registry()["slackswap"], problem, budget_bytes)
score = simulate(problem, outcome.plan, budget_bytes, timeline=True)
print(
    f"{score.throughput:.1%} of the ideal step in {budget_bytes / 1e6:.0f} MB instead of {peak_bytes(problem) / 1e6:.0f}"
)
timeline_figure(score)

# %% [markdown]
# ## What to do with the plan
# Problem and plan are JSON files; a plan names the problem that it was made for, and is refused for any other.

# %%
write_problem(problem, folder / "problem.json.gz")
write_plan(folder / "plan.json", problem, outcome.plan, budget_bytes, PlannerRecord("slackswap"))
again = read_plan(folder / "plan.json", read_problem(folder / "problem.json.gz"))
print(again.plan.letters)

# %% [markdown]
# Each tensor is named after the operator that makes it, so a training script knows what to do with it: offload it after
# its last forward reader (S), or drop it there and run its operator again before the reader in the backward pass (R).

# %%
for t in problem.saved.nonzero()[0][:12]:
    reader = problem.operator_names[int(problem.first_backward_reader[t])]
    print(
        f"{again.plan.letters[t]}  {problem.tensor_names[t]:40} {problem.tensor_bytes[t] / 1e6:6.2f} MB, first read by {reader}"
    )

# %% [markdown]
# When must a reload start so that nobody waits for it? The event model knows the slack of each:

# %%
for reload in score.explain().reloads[:8]:
    print(f"start reload of {reload.tensor} before {reload.before} (margin {reload.margin_s * 1e3:.2f} ms)")

# %% [markdown]
# And on another machine? The same step with the link of a catalogued one: here everything that is swapped is free.

# %%
fast = problem.with_link(load_hardware("a100-pcie4").link)
there = run_planner(registry()["slackswap"], fast, budget_bytes)
print(f"{simulate(fast, there.plan, budget_bytes).throughput:.2%} of the ideal step")
