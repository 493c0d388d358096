"""A scenario file: TOML in, a grid of validated design points out.  docs/scenarios.md lists every key.

Each point is checked before any is simulated, so a sweep that starts is a sweep that can finish.
"""

import itertools
import math
import os
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from pearl_sim.axes import Value, column, flatten, number, read_axes
from pearl_sim.cost import AffineCost, ConstantCost, Cost, EmpiricalCost
from pearl_sim.errors import InputError
from pearl_sim.point import AnyCost, Point, Recorded
from pearl_sim.prices import KEYS, Costs, can_share, cheap, values_of
from pearl_sim.settings import Settings
from pearl_sim.trace import load, refuse_beyond_record

BYTES_PER_POINT = 6_000
BYTES_PER_ROW = 600
BYTES_PER_TOKEN = 700
"""Rough upper estimates of what a sweep keeps in memory; `read` refuses one that cannot fit."""


@dataclass(frozen=True)
class Scenario:
    """A validated scenario: what is set, and over which values the swept keys go.

    settings: the file's tables with its overrides, its title aside; traces as seen from the working directory.
    sweep:    what is swept, as it was written.
    axes:     swept key -> values; the points are their product, the last axis fastest.
    prices:   those axes along which points are priced together, with their values as prices.Costs holds them.
    """

    name: str
    title: str
    file: Path
    settings: dict[str, Any]
    sweep: dict[str, Any]
    axes: dict[str, list[Value]]
    prices: dict[str, NDArray[np.int64]] = field(compare=False)

    def __len__(self) -> int:
        """Return the number of points."""
        return math.prod(map(len, self.axes.values()))

    def places(self, numbers: NDArray[np.int64]) -> dict[str, NDArray[np.int64]]:
        """Return where the points of these numbers lie on each axis."""
        places = {}
        for key, values in reversed(self.axes.items()):
            numbers, places[key] = np.divmod(numbers, len(values))
        return {key: places[key] for key in self.axes}

    def point(self, number: int) -> Point:
        """Return a design point."""
        places = self.places(np.array([number]))
        return point_at(self.file, self.settings, {key: self.axes[key][int(at[0])] for key, at in places.items()})

    @property
    def traces(self) -> list[Path]:
        """Return the traces that the points read."""
        point = self.point(0)
        return sorted({table.trace for table in (point.acceptance, point.cost) if hasattr(table, "trace")})

    @cached_property
    def _numbers(self) -> dict[str, NDArray[Any]]:
        return {key: np.array([number(value) for value in values]) for key, values in self.axes.items()}

    def swept(self, places: Mapping[str, NDArray[np.int64]]) -> dict[str, NDArray[Any]]:
        """Return the columns of swept keys at these places; one is whole if all its values are."""
        return {column(key, self.axes[key][0]): self._numbers[key][at] for key, at in places.items()}

    def costs(self, cost: ConstantCost | AffineCost, places: Mapping[str, NDArray[np.int64]], count: int) -> Costs:
        """Return `count` costs: `cost`, but at these places on the axes of `prices`."""
        swept = {key.removeprefix("cost."): values[places[key]] for key, values in self.prices.items()}
        return Costs.of(cost, swept, count)

    @cached_property
    def at_once(self) -> int:
        """Return how many points are there along the axes on which a further one takes next to no time."""
        cost = self.point(0).cost
        if not can_share(cost):
            return 1
        keys = cheap(cost, {key.removeprefix("cost."): values for key, values in self.prices.items()})
        return math.prod(len(self.axes[f"cost.{key}"]) for key in keys)

    @property
    def points(self) -> list[tuple[dict[str, Value], Point]]:
        """Return all points in order, each with the swept values that make it; mind how many they are."""
        combinations = itertools.product(*self.axes.values())
        swept = [dict(zip(self.axes, values, strict=True)) for values in combinations]
        return [(values, point_at(self.file, self.settings, values)) for values in swept]


def read(file: Path, overrides: Mapping[str, str] | None = None) -> Scenario:
    """Return the scenario in `file`, with dotted keys overridden by values written as in TOML.

    Overriding a swept key ends the sweep over it.  A trace is named relative to the file that names it, in an
    override to the working directory.  InputError names file, key, value and what would be right.
    """
    if not file.stem.strip("."):
        raise InputError(file, "has no name that results could be filed under; rename it")
    raw = _toml(file)
    sweep = dict(flatten(file, raw.pop("sweep", {})))
    for key, text in (overrides or {}).items():
        value = _toml_value(text)
        if key.startswith("sweep."):
            sweep[key.removeprefix("sweep.")] = value
            continue
        sweep.pop(key, None)
        _put(file, raw, key, Path(value) if key.endswith(".trace") and isinstance(value, str) else value)
    title = raw.pop("title", file.stem)
    if not isinstance(title, str):
        raise InputError(file, f"title = {title!r}: must be a string")
    if overrides:
        # What the title says may no longer hold.
        title += f" [{', '.join(f'{key}={text}' for key, text in overrides.items())}]"
    axes = read_axes(file, sweep)
    for key in axes:
        if _get(raw, key) is not None:
            raise InputError(file, f"{key} is both set and swept; keep one")
    for _, table in trace_tables(raw):
        _find_trace(file, table)
    priced = _priced(file, raw, axes)
    _check_memory(file, raw, axes, priced)
    apart = [values[:1] if key in priced else values for key, values in axes.items()]
    for combination in itertools.product(*apart):
        point_at(file, raw, dict(zip(axes, combination, strict=True)))
    return Scenario(file.stem, title, file, raw, sweep, axes, priced)


def _priced(file: Path, raw: dict[str, Any], axes: Mapping[str, list[Value]]) -> dict[str, NDArray[np.int64]]:
    """Return `Scenario.prices`."""
    first = {key: values[0] for key, values in axes.items()}
    cost = point_at(file, raw, first).cost
    if not can_share(cost):
        return {}
    found = {}
    for key in [f"cost.{key}" for key in KEYS[type(cost)] if f"cost.{key}" in axes]:
        try:
            # None of these keys depends on another, so each of their values is looked at once, not in every point.
            found[key] = values_of(cost, key.removeprefix("cost."), axes[key])
        except ValidationError as error:
            point_at(file, raw, first | {key: axes[key][int(error.errors()[0]["loc"][0])]})
            raise
    return found


class _OnlyCost(Settings):
    cost: AnyCost


def read_cost(file: Path) -> Cost:
    """Return the cost that `file`, a scenario or just its [cost] table, describes; InputError if it is swept.

    A directory is a trace or a profile, whose steps are resampled.
    """
    if file.is_dir():
        return EmpiricalCost.read("cost", {"trace": file})
    raw = _toml(file)
    for key, _ in flatten(file, raw.get("sweep", {})):
        if key.startswith("cost."):
            raise InputError(file, f"sweeps {key}; one cost is needed here, so set it in [cost]")
    _find_trace(file, raw.get("cost"))
    return _OnlyCost.read(file, {"cost": raw["cost"]} if "cost" in raw else {}).cost


def trace_tables(settings: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return the tables of a scenario that name a trace, acceptance before cost, each with its name."""
    tables = [(name, settings.get(name)) for name in ("acceptance", "cost")]
    return [(name, table) for name, table in tables if isinstance(table, dict) and "trace" in table]


def point_at(file: Path, settings: dict[str, Any], swept: Mapping[str, Value]) -> Point:
    """Return the design point of these settings at the swept values; InputError names `file` and what is wrong."""
    own = _copied(settings)
    for key, value in swept.items():
        _put(file, own, key, value)
    for table in ("acceptance", "cost"):
        _find_trace(file, own.get(table))
    point = Point.read(file, own)
    for policy in point.policy.chosen().values():
        # Prices every size and a prompt, so that what a trace lacks is said before anything runs.
        point.cost.timing(policy).prefill_ns(point.workload.prompt_tokens or 1)
    if isinstance(point.acceptance, Recorded):
        gamma = point.policy.gamma or 0
        refuse_beyond_record(load(point.acceptance.trace).provenance, gamma, f"{file}: policy.gamma = {gamma}")
    return point


def _find_trace(file: Path, table: object) -> None:
    """Turn the trace that a table names into a path from here: in a file, it is relative to the file."""
    if isinstance(table, dict) and isinstance(table.get("trace"), str):
        table["trace"] = Path(os.path.normpath(file.parent / table["trace"]))


def _toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(file, "no such scenario file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(file, f"cannot be read: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise InputError(file, f"is not TOML: {error}") from None


def _toml_value(text: str) -> Any:
    """Return `text` as TOML would read it; bare words are strings, so that 10 ms needs no quotes."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _check_memory(file: Path, raw: dict[str, Any], axes: Mapping[str, list[Value]], priced: Collection[str]) -> None:
    """Refuse a sweep that would not fit in memory, before starting it."""

    def most(key: str, otherwise: int) -> int:
        values = axes.get(key, [_get(raw, key)])
        return max((value for value in values if isinstance(value, int)), default=otherwise)

    names = _get(raw, "policy.names")
    policies = len(names) if isinstance(names, list) else 1
    points = math.prod(len(values) for values in axes.values())
    apart = math.prod(len(values) for key, values in axes.items() if key not in priced)
    simulated = most("workload.requests", 1) * most("workload.tokens", 1)
    needed = (apart * BYTES_PER_POINT + points * BYTES_PER_ROW) * policies + simulated * BYTES_PER_TOKEN
    unused = "SC_AVPHYS_PAGES" if "SC_AVPHYS_PAGES" in os.sysconf_names else "SC_PHYS_PAGES"
    free = os.sysconf("SC_PAGE_SIZE") * os.sysconf(unused)
    if needed > free:
        raise InputError(
            file,
            f"{points:.6g} points of {policies} policies, {simulated:.6g} tokens each, need about "
            f"{needed / 2**30:,.1f} GiB of memory and {free / 2**30:,.1f} GiB is free; "
            "sweep fewer values or simulate fewer tokens",
        )


def _copied(table: dict[str, Any]) -> dict[str, Any]:
    return {key: _copied(value) if isinstance(value, dict) else value for key, value in table.items()}


def _get(table: object, key: str) -> Any:
    for part in key.split("."):
        table = table.get(part) if isinstance(table, dict) else None
    return table


def _put(file: Path, table: dict[str, Any], key: str, value: Any) -> None:
    *above, last = key.split(".")
    for part in above:
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise InputError(file, f"{key}: {part} is not a table")
    table[last] = value
