"""Block checkpointing on blocks that can be counted by hand (paper, section 4.1)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from instances import MB, MS, PLAIN_LINK, two_layers

from slackswap.models.event_model import simulate
from slackswap.models.plan import Plan
from slackswap.models.problem import Operator, Problem, Rebuild, Tensor
from slackswap.planners import Outcome, Status, registry, run_planner

CHECKPOINT = registry()["checkpoint"]


def blocks(
    body_mb: Sequence[int], rebuild_ms: Sequence[float] | None = None, numbers: Sequence[int | None] | None = None
) -> Problem:
    """Blocks of an input of 1 MB, which nothing rebuilds, and a body, rebuilt from the input in 3 ms.

    Forward operators 2i and 2i + 1 write the input and the body of block i, in 1 ms each; its backward operator reads both
    and takes 2 ms. Tensors 2i and 2i + 1 are input and body.
    """
    n = len(body_mb)
    numbers = numbers or range(n)
    rebuild_ms = rebuild_ms or [3] * n
    operators = [Operator(f"f{i}", "forward", 1 * MS) for i in range(2 * n)]
    operators += [Operator(f"b{i}", "backward", 2 * MS) for i in reversed(range(n))]
    tensors = []
    for i, (mb, ms, block) in enumerate(zip(body_mb, rebuild_ms, numbers, strict=True)):
        backward = 3 * n - 1 - i
        tensors.append(Tensor(f"input{i}", 1 * MB, 2 * i, (2 * i + 1, backward), block))
        tensors.append(
            Tensor(f"body{i}", mb * MB, 2 * i + 1, (backward,), block, Rebuild(ms * MS, inputs=(len(tensors) - 1,)))
        )
    return Problem.from_records("blocks", operators, tensors, PLAIN_LINK)


def checkpointed(problem: Problem, budget_mb: float) -> Outcome:
    return run_planner(CHECKPOINT, problem, int(budget_mb * MB))


def letters_of(outcome: Outcome) -> str:
    assert isinstance(outcome.plan, Plan)
    return outcome.plan.letters


@pytest.mark.parametrize(
    ("budget_mb", "letters", "step_ms"),
    [
        # Three blocks of 1 + 4 MB; P = 15 MB, ideal step 6 + 6 = 12 ms.
        (15, "KKKKKK", 12),
        # Without body0 the forward pass ends with 1 + 5 + 5 = 11 MB; the rebuild takes 3 ms.
        (14.9, "KRKKKK", 15),
        (11, "KRKKKK", 15),
        # Without body1 as well, 1 + 1 + 5 = 7 MB.
        (10.9, "KRKRKK", 18),
        (7, "KRKRKK", 18),
    ],
)
def test_fewest_blocks_that_fit_earliest_first(budget_mb: float, letters: str, step_ms: float) -> None:
    outcome = checkpointed(blocks([4, 4, 4]), budget_mb)
    assert letters_of(outcome) == letters
    assert outcome.claimed_step_s == pytest.approx(step_ms * MS)


def test_floor_of_checkpointing() -> None:
    # The last body stands beside all inputs when it is produced, whatever is recomputed: 3 + 4 = 7 MB.
    outcome = checkpointed(blocks([4, 4, 4]), 6.9)
    assert outcome.status is Status.INFEASIBLE
    why = outcome.infeasibility
    assert why is not None
    assert why.smallest_feasible_bytes == 7 * MB
    assert why.missing_bytes == 7 * MB - int(6.9 * MB)
    assert why.operator in ("f5", "rebuild body2")
    assert why.reason == ""


def test_the_largest_block_alone_may_do() -> None:
    """Bodies of 1, 8 and 2 MB; P = 3 + 11 = 14 MB. With 11 MB:

    earliest first takes blocks 0 and 1 (without block 0 alone, 13 MB are in use at the end of the forward pass);
    block 1 alone leaves 3 + 1 + 2 = 6 MB there, and 1 + 1 + 1 + 8 = 11 MB while its body is produced and rebuilt.
    """
    assert letters_of(checkpointed(blocks([1, 8, 2]), 11)) == "KKKRKK"


def test_of_as_few_blocks_the_faster() -> None:
    # Bodies of 3, 4 and 1 MB; P = 3 + 8 = 11 MB. With 9 MB either of the first two does: without body0 8 MB are left at the
    # end; without body1 7 MB, and 9 MB while it is produced. Earliest first takes block 0, largest first block 1.
    assert letters_of(checkpointed(blocks([3, 4, 1], rebuild_ms=[1, 9, 9]), 9)) == "KRKKKK"
    assert letters_of(checkpointed(blocks([3, 4, 1], rebuild_ms=[9, 1, 9]), 9)) == "KKKRKK"


def test_earliest_is_what_is_produced_first_not_the_lowest_number() -> None:
    # Recomputing the last block frees nothing: its body is read at once. The numbers are only names.
    assert letters_of(checkpointed(blocks([4, 4, 4], numbers=[2, 1, 0]), 11)) == "KRKKKK"


def test_what_belongs_to_no_block_is_kept() -> None:
    outcome = checkpointed(blocks([4, 4, 4], numbers=[None, 1, 2]), 11)
    assert letters_of(outcome) == "KKKRKK"


def test_without_blocks_nothing_is_freed() -> None:
    problem = blocks([4, 4, 4], numbers=[None, None, None])
    outcome = checkpointed(problem, 14)
    assert outcome.infeasibility is not None
    assert outcome.infeasibility.reason == "the problem names no blocks to recompute"
    assert outcome.infeasibility.smallest_feasible_bytes == 15 * MB
    assert checkpointed(problem, 15).status is Status.FEASIBLE


def test_many_blocks() -> None:
    # 200 blocks of 1 + 4 MB; P = 1000 MB, and each recomputed block frees 4 MB. 700 MB: 300 / 4 = 75 blocks, the first.
    problem = blocks([4] * 200)
    assert letters_of(checkpointed(problem, 700)) == "KR" * 75 + "KK" * 125
    # 1 MB less takes one more.
    assert letters_of(checkpointed(problem, 699)) == "KR" * 76 + "KK" * 124


def test_a_block_may_hold_a_chain() -> None:
    # Both layers are one block, and all of it is rebuilt: a1 from a0. P = 30 MB, and no plan needs less: f1 reads 10 MB and
    # writes 20.
    outcome = checkpointed(two_layers(), 29.9)
    assert outcome.infeasibility is not None
    assert outcome.infeasibility.smallest_feasible_bytes == 30 * MB
    # The whole block costs 10 + 20 ms.
    assert simulate(two_layers(), Plan.from_letters("RR"), 30 * MB).recompute_s == pytest.approx(30 * MS)
