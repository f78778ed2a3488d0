"""The best numbers of tensors to keep, swap and recompute at the turn: a knapsack with a link, by branch and bound."""

from __future__ import annotations

from typing import NamedTuple

from slackswap.models.compilation import compiled_entry, compiled_part
from slackswap.models.problem import FloatArray, IntArray

MOST_STEPS, MOST_PACKING_STEPS, MOST_LAST_STEPS = 500_000, 1_000, 100_000
SAME_S = 1e-12  # rebuild times closer than this are equal
ROUNDING = 1e-9  # share
GOLDEN, NARROWINGS = 0.6180339887498949, 40  # each narrowing keeps this share of an interval


class Numbers(NamedTuple):
    """Groups of equal tensors, dearest per byte first, and working memory.

    Here *kept* means not recomputed, swapped or not.

    Attributes
    ----------
    n_bytes, gain_s, copy_s : (g,) bytes, rebuild time and time on the link of one tensor of each group
    least_kept, most_kept, least_swapped, most_swapped : (g,) tensors
    largest : (g,) groups, most bytes first
    reduced_s : (g,) what keeping one more gains, less what it costs at the prices of memory and link
    promise_s : (g + 1,) most that the groups from here on add to the bound
    kept, swapped, best_kept, best_swapped : (g,) numbers at hand, and the best found
    room_bytes, gained_s, bound_s : (g + 1,) what is left, gained, and promised before each group
    """

    n_bytes: IntArray
    gain_s: FloatArray
    copy_s: FloatArray
    least_kept: IntArray
    most_kept: IntArray
    least_swapped: IntArray
    most_swapped: IntArray
    largest: IntArray
    reduced_s: FloatArray
    promise_s: FloatArray
    kept: IntArray
    swapped: IntArray
    best_kept: IntArray
    best_swapped: IntArray
    room_bytes: IntArray
    gained_s: FloatArray
    bound_s: FloatArray


@compiled_entry
def best_numbers(
    numbers: Numbers, room_bytes: int, link_s: float, bytes_per_s: float, most_wait_s: float, beat_s: float
) -> float:
    """Find the numbers that save most; return how much, or -1 if none that fit save more than `beat_s`.

    What they save is the rebuild time of the tensors kept, less the wait for copies. The tensors kept and not swapped take
    `room_bytes` at most; the copies of those swapped take `link_s`, or longer, and then compute waits. Depth first through the
    numbers kept, most first. A branch ends where it promises no more than the best found: at the prices of memory and link that
    make the relaxed problem's bound lowest, and by the bytes that are left on both together.

    Parameters
    ----------
    most_wait_s : longest wait to look at
    """
    n_groups = numbers.n_bytes.size
    bound_s = _set_prices(numbers, room_bytes, link_s)
    best_s = beat_s
    g, steps = 0, 0
    _enter(numbers, 0, room_bytes + int(bytes_per_s * (link_s + most_wait_s)), 0.0, bound_s, best_s)
    while g >= 0 and steps < MOST_STEPS:
        steps += 1
        numbers.kept[g] -= 1
        k = numbers.kept[g]
        if k < numbers.least_kept[g]:
            g -= 1
            continue
        left = numbers.room_bytes[g] - k * numbers.n_bytes[g]
        gained_s = numbers.gained_s[g] + k * numbers.gain_s[g]
        rest_s = _promise_of_bytes(numbers, g + 1, left)
        if rest_s >= 0.0 and gained_s + rest_s <= best_s + SAME_S:
            g -= 1  # fewer of this group promise less still
            continue
        bound_s = numbers.bound_s[g] + k * numbers.reduced_s[g]
        if rest_s < 0.0 or bound_s + numbers.promise_s[g + 1] <= best_s + SAME_S:
            continue
        if g + 1 < n_groups:
            g += 1
            _enter(numbers, g, left, gained_s, bound_s, best_s)
            continue
        while gained_s > best_s + SAME_S and steps < MOST_STEPS:
            allowed_s = min(most_wait_s, gained_s - best_s - SAME_S)
            left_s, packing_steps = _pack(numbers, room_bytes, link_s + allowed_s, MOST_PACKING_STEPS)
            steps += packing_steps
            if left_s < 0.0:
                break
            best_s = gained_s - max(0.0, allowed_s - left_s)
            for i in range(n_groups):
                numbers.best_kept[i] = numbers.kept[i]
                numbers.best_swapped[i] = numbers.swapped[i]
    return _shorten_wait(numbers, room_bytes, link_s, best_s) if best_s > beat_s else -1.0


@compiled_part
def _shorten_wait(numbers: Numbers, room_bytes: int, link_s: float, best_s: float) -> float:
    """Look longer for copies that let compute wait less with the numbers found; return what is saved then."""
    gained_s = 0.0
    for g in range(numbers.n_bytes.size):
        numbers.kept[g] = numbers.best_kept[g]
        gained_s += numbers.kept[g] * numbers.gain_s[g]
    while gained_s > best_s + SAME_S:
        allowed_s = gained_s - best_s - SAME_S
        left_s = _pack(numbers, room_bytes, link_s + allowed_s, MOST_LAST_STEPS)[0]
        if left_s < 0.0:
            break
        best_s = gained_s - max(0.0, allowed_s - left_s)
        for g in range(numbers.n_bytes.size):
            numbers.best_swapped[g] = numbers.swapped[g]
    return best_s


@compiled_part
def _enter(numbers: Numbers, g: int, room_bytes: int, gained_s: float, bound_s: float, best_s: float) -> None:
    """Begin with the most tensors of a group that fit and that its price allows."""
    numbers.room_bytes[g], numbers.gained_s[g], numbers.bound_s[g] = room_bytes, gained_s, bound_s
    most = min(numbers.most_kept[g], room_bytes // numbers.n_bytes[g])
    loss_s = -numbers.reduced_s[g]
    spare_s = bound_s + numbers.promise_s[g + 1] - best_s
    if loss_s > 0.0 and spare_s < most * loss_s:
        most = int(max(spare_s, 0.0) / loss_s) + 1
    numbers.kept[g] = most + 1


@compiled_part
def _set_prices(numbers: Numbers, room_bytes: int, link_s: float) -> float:
    """Choose prices that make the relaxed bound lowest; fill `reduced_s` and `promise_s`; return the bound's constant part.

    With a price for a byte of memory and one for a second of the link, a tensor is kept if that gains more than the cheaper of
    the two costs. The sum of these profits and of the prices of all memory and link time bounds the gain from above. It is
    convex in the two prices: a search by the golden section within another.
    """
    low, high = 0.0, 0.0
    for g in range(numbers.n_bytes.size):
        high = max(high, numbers.gain_s[g] / numbers.n_bytes[g])
    for _ in range(NARROWINGS):
        left, right = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
        if _lowest_bound(numbers, room_bytes, link_s, left)[0] <= _lowest_bound(numbers, room_bytes, link_s, right)[0]:
            high = right
        else:
            low = left
    per_byte = 0.5 * (low + high)
    per_s = _lowest_bound(numbers, room_bytes, link_s, per_byte)[1]
    n_groups = numbers.n_bytes.size
    numbers.promise_s[n_groups] = 0.0
    for g in range(n_groups - 1, -1, -1):
        cost_s = min(per_byte * numbers.n_bytes[g], per_s * numbers.copy_s[g])
        numbers.reduced_s[g] = numbers.gain_s[g] - cost_s
        most = numbers.most_kept[g] if numbers.reduced_s[g] > 0.0 else numbers.least_kept[g]
        numbers.promise_s[g] = numbers.promise_s[g + 1] + most * numbers.reduced_s[g]
    return per_byte * room_bytes + per_s * link_s


@compiled_part
def _lowest_bound(numbers: Numbers, room_bytes: int, link_s: float, per_byte: float) -> tuple[float, float]:
    """Lowest bound at a price of memory, and the price of the link there: at most 1, since waiting costs no more."""
    low, high = 0.0, 0.0
    for g in range(numbers.n_bytes.size):
        high = max(high, per_byte * numbers.n_bytes[g] / numbers.copy_s[g])
    high = min(high, 1.0)
    for _ in range(NARROWINGS):
        left, right = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
        if _bound(numbers, room_bytes, link_s, per_byte, left) <= _bound(numbers, room_bytes, link_s, per_byte, right):
            high = right
        else:
            low = left
    per_s = 0.5 * (low + high)
    return _bound(numbers, room_bytes, link_s, per_byte, per_s), per_s


@compiled_part
def _bound(numbers: Numbers, room_bytes: int, link_s: float, per_byte: float, per_s: float) -> float:
    bound_s = per_byte * room_bytes + per_s * link_s
    for g in range(numbers.n_bytes.size):
        profit_s = numbers.gain_s[g] - min(per_byte * numbers.n_bytes[g], per_s * numbers.copy_s[g])
        bound_s += profit_s * (numbers.most_kept[g] if profit_s > 0.0 else numbers.least_kept[g])
    return float(bound_s)


@compiled_part
def _promise_of_bytes(numbers: Numbers, first: int, left_bytes: int) -> float:
    """Most that the groups from `first` on can gain, with a fraction of a tensor; -1 if those that must be kept do not fit."""
    gain_s, left = 0.0, left_bytes
    for g in range(first, numbers.n_bytes.size):
        must = numbers.least_kept[g]
        gain_s += must * numbers.gain_s[g]
        left -= must * numbers.n_bytes[g]
    if left < 0:
        return -1.0
    for g in range(first, numbers.n_bytes.size):
        more = numbers.most_kept[g] - numbers.least_kept[g]
        if more * numbers.n_bytes[g] > left:
            return float(gain_s + numbers.gain_s[g] * left / numbers.n_bytes[g])
        gain_s += more * numbers.gain_s[g]
        left -= more * numbers.n_bytes[g]
    return float(gain_s)


@compiled_part
def _pack(numbers: Numbers, room_bytes: int, link_s: float, most_steps: int) -> tuple[float, int]:
    """Choose kept tensors to swap, so that the others fit into `room_bytes` and the copies into `link_s`.

    Depth first, most copies of the largest first: they lose least to latency. Return the link time that is left, -1 if
    there is no choice, and the steps taken.
    """
    lacking, left_s = -room_bytes, link_s
    for g in range(numbers.n_bytes.size):
        numbers.swapped[g] = numbers.least_swapped[g]
        lacking += (numbers.kept[g] - numbers.swapped[g]) * numbers.n_bytes[g]
        left_s -= numbers.swapped[g] * numbers.copy_s[g]
    if left_s < 0.0:
        return -1.0, 0
    i = 0
    for step in range(most_steps):
        while lacking > 0 and i < numbers.largest.size:
            g = numbers.largest[i]
            if left_s * numbers.n_bytes[g] < lacking * numbers.copy_s[g] * (1.0 - ROUNDING):
                break  # nothing that follows moves more bytes per second
            more = min(numbers.kept[g], numbers.most_swapped[g]) - numbers.swapped[g]
            if more * numbers.copy_s[g] > left_s:
                more = int(left_s / numbers.copy_s[g])
            more = max(more, 0)
            numbers.swapped[g] += more
            lacking -= more * numbers.n_bytes[g]
            left_s -= more * numbers.copy_s[g]
            i += 1
        if lacking <= 0:
            return left_s, step
        i -= 1
        while i >= 0 and numbers.swapped[numbers.largest[i]] == numbers.least_swapped[numbers.largest[i]]:
            i -= 1
        if i < 0:
            return -1.0, step
        g = numbers.largest[i]  # one copy less of the last group that has more than it must, then on from there
        numbers.swapped[g] -= 1
        lacking += numbers.n_bytes[g]
        left_s += numbers.copy_s[g]
        i += 1
    return -1.0, most_steps
