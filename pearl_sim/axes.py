"""The axes of a sweep: which keys vary, over which values.

An axis is a list, or a range {start, stop, num, scale}.  Keys are dotted, and values are numbers or durations.
"""

import math
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field

from pearl_sim.duration import to_ps
from pearl_sim.errors import InputError
from pearl_sim.settings import Settings

Value: TypeAlias = int | float | str
"""What one key takes at one point: a number, or a duration as text."""


class Range(Settings):
    """`num` values from `start` to `stop`, both included, in equal steps or (log) by equal factors."""

    start: Value
    stop: Value
    num: Annotated[int, Field(ge=2, le=1_000_000)]
    scale: Literal["linear", "log"] = "linear"

    def values(self) -> list[Value]:
        """Return the values: whole numbers where all are whole, durations where `start` is one."""
        durations = isinstance(self.start, str)
        if durations != isinstance(self.stop, str):
            raise ValueError("start and stop must both be numbers or both be durations")
        if not all(isinstance(end, str) or math.isfinite(end) for end in (self.start, self.stop)):
            raise ValueError("start and stop must be finite")
        first, last = (to_ps(end) / 1000 if isinstance(end, str) else float(end) for end in (self.start, self.stop))
        if first == last:
            raise ValueError("start and stop are equal")
        steps = [i / (self.num - 1) for i in range(self.num)]
        if self.scale == "log":
            if min(first, last) <= 0:
                raise ValueError("a log range needs start and stop above 0")
            spaced = [first * (last / first) ** step for step in steps]
        else:
            spaced = [first + (last - first) * step for step in steps]
        tidy = [float(f"{value:.12g}") for value in spaced]
        if durations:
            return [f"{ns} ns" for ns in tidy]
        return [int(value) for value in tidy] if all(value.is_integer() for value in tidy) else list(tidy)


def read_axes(file: Path, sweep: dict[str, Any]) -> dict[str, list[Value]]:
    """Return each swept key's values; InputError names the axis that is empty, repeats itself or is no axis."""
    return {key: _values(file, f"sweep.{key}", values) for key, values in sweep.items()}


def flatten(file: Path, table: object, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, axis as written) from a [sweep] table; a table with `start` is a range."""
    if not isinstance(table, dict):
        raise InputError(file, f"sweep = {table!r}: must be a table of axes")
    for name, inner in table.items():
        key = f"{prefix}{name}"
        if isinstance(inner, dict) and not {"start", "stop", "num"} & set(inner):
            yield from flatten(file, inner, f"{key}.")
        else:
            yield key, inner


def column(key: str, value: Value) -> str:
    """Return the column of a swept key: its dotted name, with the unit if it is a duration."""
    return f"{key}_ms" if isinstance(value, str) else key


def number(value: Value) -> int | float:
    """Return a swept value as tables and pictures show it; durations in milliseconds."""
    return to_ps(value) / 1e9 if isinstance(value, str) else value


def _values(file: Path, where: str, axis: object) -> list[Value]:
    if isinstance(axis, dict):
        try:
            axis = Range.read(f"{file}: {where}", axis).values()
        except ValueError as error:
            raise InputError(file, f"{where}: {error}") from None
    if not isinstance(axis, list):
        raise InputError(file, f"{where} = {axis!r}: must be a list, or a table with start, stop and num")
    if not axis:
        raise InputError(file, f"{where} = []: the sweep is empty; give at least one value")
    for value in axis:
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise InputError(file, f"{where}: {value!r} is neither a number nor a duration")
    try:
        numbers = sorted(number(value) for value in axis)
    except ValueError as error:
        raise InputError(file, f"{where}: {error}") from None
    if any(left == right for left, right in pairwise(numbers)):
        raise InputError(file, f"{where} has a value twice")
    if len({isinstance(value, str) for value in axis}) > 1:
        raise InputError(file, f"{where} mixes numbers and durations")
    return axis
