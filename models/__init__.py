"""Floor 2: what is planned and how a plan plays out. Problem, plan, schedule, event model, workloads, traces.

The names that notebooks need stand here; the rest is imported from its own module.
"""

from slackswap.models.event_model import POLICIES, Score, Timeline, peak_bytes, simulate, simulate_many
from slackswap.models.legality import check
from slackswap.models.link_budget import LinkBudget, link_budget
from slackswap.models.lowering import lower
from slackswap.models.plan import KEEP, RECOMPUTE, SWAP, Plan
from slackswap.models.problem import Operator, Problem, Rebuild, Tensor
from slackswap.models.problem_file import read_problem, write_problem
from slackswap.models.schedule import Schedule

__all__ = [
    "KEEP",
    "POLICIES",
    "RECOMPUTE",
    "SWAP",
    "LinkBudget",
    "Operator",
    "Plan",
    "Problem",
    "Rebuild",
    "Schedule",
    "Score",
    "Tensor",
    "Timeline",
    "check",
    "link_budget",
    "lower",
    "peak_bytes",
    "read_problem",
    "simulate",
    "simulate_many",
    "write_problem",
]
