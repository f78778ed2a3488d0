"""Budgets as people write them."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackswap.evaluate.budget import MAX_FRACTION, parse_budget, parse_budgets
from slackswap.hardware.input_error import InputError


@pytest.mark.parametrize(
    ("text", "share"),
    [
        ("0.5", Fraction(1, 2)),
        (".5", Fraction(1, 2)),
        ("50%", Fraction(1, 2)),
        ("12.5 %", Fraction(1, 8)),
        ("1", Fraction(1)),
        ("1.", Fraction(1)),
        ("100%", Fraction(1)),
        ("0", Fraction(0)),
        ("0%", Fraction(0)),
        (" 0.3 ", Fraction(3, 10)),
        ("007%", Fraction(7, 100)),
        (str(MAX_FRACTION), Fraction(MAX_FRACTION)),
    ],
)
def test_fractions_of_the_peak(text: str, share: Fraction) -> None:
    budget = parse_budget(text)
    assert budget.is_fraction
    assert budget.amount == share
    assert budget.text == text.strip()


@pytest.mark.parametrize(
    ("text", "n_bytes"),
    [
        ("8GB", 8 * 10**9),  # GB is 10^9
        ("8GiB", 8 * 2**30),
        ("8gb", 8 * 10**9),
        ("8gib", 8 * 2**30),
        ("8GIB", 8 * 2**30),
        ("8 GB", 8 * 10**9),
        ("512MB", 512 * 10**6),
        ("512MiB", 512 * 2**20),
        ("3kB", 3000),
        ("3KiB", 3072),
        ("2TB", 2 * 10**12),
        ("2TiB", 2 * 2**40),
        ("123B", 123),
        ("0B", 0),
        ("1.5GB", 1_500_000_000),
        ("0.1KiB", 102),  # 102.4, rounded down
        ("0.9B", 0),
    ],
)
def test_bytes_do_not_depend_on_the_peak(text: str, n_bytes: int) -> None:
    budget = parse_budget(text)
    assert not budget.is_fraction
    assert budget.bytes_of(1) == budget.bytes_of(10**12) == n_bytes


@pytest.mark.parametrize(
    ("text", "peak_bytes", "n_bytes"),
    [
        # 0.3 x 10 = 3, exactly; the float 0.3 lies below three tenths, and 0.1 x 3 above it.
        ("0.3", 10, 3),
        ("30%", 10, 3),
        ("0.7", 10, 7),
        # A whole byte down (rule 3): 0.3 x 1001 = 300.3, 0.7 x 1001 = 700.7.
        ("0.3", 1001, 300),
        ("0.7", 1001, 700),
        # Beyond the 2^53 of a float: 0.3 x (10^18 + 1) = 3 x 10^17 + 0.3.
        ("0.3", 10**18 + 1, 3 * 10**17),
        ("0.3", 10**18 + 9, 3 * 10**17 + 2),
        ("33.3333333333333333%", 3 * 10**18, 999_999_999_999_999_999),
        ("1", 2**60 - 1, 2**60 - 1),
        ("0.5", 0, 0),
    ],
)
def test_fractions_are_rounded_down_to_a_whole_byte(text: str, peak_bytes: int, n_bytes: int) -> None:
    budget_bytes = parse_budget(text).bytes_of(peak_bytes)
    assert type(budget_bytes) is int
    assert budget_bytes == n_bytes


@given(st.integers(0, 10_000), st.integers(0, 1 << 60))
def test_rounding_is_exact(hundredths_of_percent: int, peak_bytes: int) -> None:
    text = f"{hundredths_of_percent // 100}.{hundredths_of_percent % 100:02}%"
    exact = Fraction(hundredths_of_percent, 10_000) * peak_bytes
    assert parse_budget(text).bytes_of(peak_bytes) == exact.numerator // exact.denominator


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", ".", "%", "GB", "-5", "+5", "-0.5", "1e9", "1E-3", "0x10", "nan", "inf", "half", "1_000B"),
        *(
            "50%%",
            "50% %",
            "5 0%",
            "0.5.5",
            "1/2",
            "0,5",
            "5\nGB\n5",
            "8GBs",
            "8Gb/s",
            "8G",
            "8i",
            "8 G B",
            "8XB",
            "8%B",
        ),
        # Digits of other scripts, and full-width letters, are no ASCII.
        *("\u0663", "\u00bd", "\uff15GB", "5\uff27\uff22"),
    ],
)
def test_what_is_no_budget(text: str) -> None:
    with pytest.raises(InputError) as refused:
        parse_budget(text)
    assert str(refused.value).startswith("--budget: '")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("text", ["101", "8000000000", "100.0001", "10001%"])
def test_a_number_without_a_unit_that_looks_like_bytes(text: str) -> None:
    with pytest.raises(InputError, match=r"is more than 100 peaks: for bytes add a unit, as in .*B"):
        parse_budget(text)


ENDLESS = {"peaks": "9" * 5000, "bytes": "9" * 5000 + "B", "decimals": "0." + "3" * 5000, "gigabytes": "9" * 400 + "GB"}


@pytest.mark.parametrize("text", ENDLESS.values(), ids=ENDLESS)
def test_endless_digits(text: str) -> None:
    # Python converts at most 4300 digits, and a float holds 309: either a budget that can be worked with, or a refusal.
    try:
        n_bytes = parse_budget(text).bytes_of(10**9)
    except InputError as error:
        assert "\n" not in str(error)
    else:
        assert 0 <= n_bytes < 10**300


def test_lists() -> None:
    assert [budget.text for budget in parse_budgets("0.7, 50% ,8GiB,")] == ["0.7", "50%", "8GiB"]


@pytest.mark.parametrize("text", ["", ",", " , "])
def test_no_budget_named(text: str) -> None:
    with pytest.raises(InputError, match="--budget: names no budget"):
        parse_budgets(text)


def test_one_wrong_budget_of_several() -> None:
    with pytest.raises(InputError, match="'x' is not a budget"):
        parse_budgets("0.5,x,0.3")
