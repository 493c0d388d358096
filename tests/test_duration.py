"""Durations as people write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from pearl_sim.duration import Nanoseconds, Picoseconds, PositiveNanoseconds, to_ns, to_ps


@pytest.mark.parametrize(
    ("text", "picoseconds"),
    [
        *[("0 ms", 0), ("0.0 s", 0), ("1 ps", 1), ("1 ns", 10**3), ("1 us", 10**6), ("1 µs", 10**6)],
        *[("1 ms", 10**9), ("1 s", 10**12), ("1e3 us", 10**9), ("1E3us", 10**9), ("2.5e-1 ms", 25 * 10**7)],
        *[(" 1.5  ms ", 15 * 10**8), (".5 us", 500_000), ("3. us", 3_000_000), ("0.123456789 s", 123456789000)],
    ],
)
def test_a_number_with_a_unit_is_read_exactly(text, picoseconds):
    assert to_ps(text) == picoseconds
    if picoseconds % 1000 == 0:
        assert to_ns(text) == picoseconds // 1000


@pytest.mark.parametrize(
    "text",
    [
        *["5", "", "ms", "-1 ms", "- 1 ms", "+1 ms", "nan s", "inf s", "1 m", "1 MS", "1 ms 2 us", "1,5 ms", "1_0 s"],
        *["0x10 s", "1 e3 s", "1e3.5 s", "400 d", "1e9 s", 5, 0, 1.5, True, None, b"1 ms", ["1 ms"]],
    ],
)
def test_anything_else_is_refused(text):
    for read in (to_ps, to_ns):
        with pytest.raises(ValueError, match=r"not a duration|longer than 100 days"):
            read(text)


@pytest.mark.parametrize("text", ["1e400 s", "1e9999999 s", "1e99999999999999999999 s"])
def test_a_number_past_all_bounds_is_refused_like_any_other(text):
    with pytest.raises(ValueError, match="longer than 100 days"):
        to_ns(text)


@pytest.mark.parametrize("text", ["0.4 ns", "499 ps", "0.4 ps", "1e-30 s"])
def test_a_time_too_short_for_the_clock_is_refused_instead_of_rounded_to_0(text):
    with pytest.raises(ValueError, match="shorter than"):
        to_ns(text)


def test_a_rate_too_small_for_picoseconds_is_refused_instead_of_rounded_to_0():
    with pytest.raises(ValueError, match="shorter than"):
        to_ps("0.4 ps")


@given(st.integers(0, 10**15))
def test_whole_nanoseconds_survive_writing_and_reading(nanoseconds):
    field = TypeAdapter(Nanoseconds)
    assert field.validate_python(field.dump_python(field.validate_python(f"{nanoseconds} ns"))) == nanoseconds
    field = TypeAdapter(Picoseconds)
    assert field.validate_python(field.dump_python(field.validate_python(f"{nanoseconds} ps"))) == nanoseconds


def test_a_positive_duration_is_not_0():
    with pytest.raises(ValidationError):
        TypeAdapter(PositiveNanoseconds).validate_python("0 ns")
