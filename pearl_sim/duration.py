"""Durations as people write them ("1.5 ms", "200 us") and as the simulator keeps them (whole ns or ps)."""

import re
from decimal import Decimal
from typing import Annotated

from pydantic import BeforeValidator, Field, PlainSerializer

# Microseconds have two spellings of mu: the micro sign and the Greek letter.
PICOSECONDS = {"ps": 1, "ns": 10**3, "us": 10**6, "\u00b5s": 10**6, "\u03bcs": 10**6, "ms": 10**9, "s": 10**12}
LONGEST_PS = 10**12 * 86_400 * 100  # so that picoseconds, too, fit 64 bits
_PATTERN = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)([eE][-+]?\d+)?\s*([a-z\u00b5\u03bc]+)\s*")


def to_ps(text: object) -> int:
    """Return the whole picoseconds in `text`; ValueError if it has no unit, or is over 100 days or under 1 ps."""
    match = _PATTERN.fullmatch(text) if isinstance(text, str) else None
    if not match or match[3] not in PICOSECONDS:
        raise ValueError('not a duration; write a number and a unit, like "1.5 ms" or "200 us"')
    # Beyond these exponents any number that can be written is out of range anyway, and Decimal would give up.
    exponent = max(-60, min(60, int((match[2] or "e0")[1:])))
    picoseconds = Decimal(match[1]).scaleb(exponent) * PICOSECONDS[match[3]]
    if picoseconds > LONGEST_PS:
        raise ValueError("longer than 100 days")
    if 0 < picoseconds < 1:
        raise ValueError("shorter than 1 ps")
    return round(picoseconds)


def to_ns(text: object) -> int:
    """Return the whole nanoseconds in `text`; ValueError if it is no duration, or rounds to 0 but is not 0."""
    picoseconds = to_ps(text)
    nanoseconds = round(Decimal(picoseconds) / 1000)
    if picoseconds and not nanoseconds:
        raise ValueError("shorter than the simulator's clock, 1 ns")
    return nanoseconds


Nanoseconds = Annotated[int, BeforeValidator(to_ns), PlainSerializer(lambda ns: f"{ns} ns")]
"""A pydantic field written as a duration and kept in whole nanoseconds."""

PositiveNanoseconds = Annotated[Nanoseconds, Field(gt=0)]
"""A duration that must not be zero."""

Picoseconds = Annotated[int, BeforeValidator(to_ps), PlainSerializer(lambda ps: f"{ps} ps")]
"""A duration kept in whole picoseconds: what one token of context costs can be a fraction of a nanosecond."""
