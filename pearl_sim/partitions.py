"""A sweep in partitions: runs of consecutive points, each computed on its own, and kept on disk until all are there.

A partition is on disk as a whole or not at all, so a sweep that was interrupted, or killed, goes on where it stopped.
It is found again by its key, a hash of everything that its rows depend on: the scenario with its overrides, the traces
it reads, the driver if one was forced, and the sources of this package.
"""

import glob
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import polars as pl

import pearl_sim
from pearl_sim.errors import InputError
from pearl_sim.evaluate import Evaluated, evaluate
from pearl_sim.scenario import Scenario
from pearl_sim.trace import sha256

MOST = 200
"""Partitions of a sweep, however many points it has."""

LEAST = 1000
"""Points of a partition, where so many take little longer than one."""

ROWS, DEPTHS = "{:03}.parquet", "{:03}.depths.parquet"

_known_keys: set[str] = set()


@dataclass(frozen=True)
class Task:
    """A sweep, as a worker needs to know it; called with a partition's number, it computes that."""

    scenario: Scenario
    driver: str | None
    key: str

    def __call__(self, number: int) -> Evaluated:
        """Return the partition; InputError if the code or the traces here are not those that the sweep began with."""
        if self.key not in _known_keys and key_of(self.scenario, self.driver) != self.key:
            raise InputError(
                self.scenario.name, "a worker has another pearl_sim, numpy or trace; they must be the same"
            )
        try:
            return evaluate(self.scenario, ranges(self.scenario)[number], self.driver)
        except OverflowError as error:
            if self.driver != "kernel":
                raise
            raise InputError(f"{self.scenario.name}, driver kernel", f"{error}; use sim") from None


def task(scenario: Scenario, driver: str | None) -> Task:
    """Return the sweep over `scenario` as a task."""
    return Task(scenario, driver, key_of(scenario, driver))


def ranges(scenario: Scenario) -> list[range]:
    """Return the points of each partition, which depend on the axes and on what the cost is like."""
    points = len(scenario)
    size = max(-(-points // MOST), min(scenario.at_once, LEAST))
    return [range(start, min(start + size, points)) for start in range(0, points, size)]


def key_of(scenario: Scenario, driver: str | None) -> str:
    """Return the hash of everything that the rows depend on."""
    said = [
        scenario.title,
        scenario.settings,
        list(scenario.axes.items()),
        driver,
        _code(),
        [sha256(trace) for trace in scenario.traces],
    ]
    key = hashlib.sha256(json.dumps(said, default=str).encode()).hexdigest()
    _known_keys.add(key)
    return key


def place(out: Path, task: Task) -> Path:
    """Return the directory in which the partitions of a sweep are kept."""
    return out / f".{task.scenario.name}.partitions-{task.key[:16]}"


def keep(directory: Path, number: int, partition: Evaluated) -> None:
    """Write a partition."""
    directory.mkdir(parents=True, exist_ok=True)
    # The rows come last: where they are, all is there.
    for name, table in ((DEPTHS, partition.depths), (ROWS, partition.rows)):
        file = directory / name.format(number)
        part = file.with_suffix(f".{os.getpid()}")
        table.write_parquet(part, compression="lz4")
        part.replace(file)


def kept(directory: Path, numbers: range) -> Iterator[tuple[int, Evaluated]]:
    """Yield the partitions that are there; one that cannot be read is as good as none."""
    for number in numbers:
        try:
            yield number, Evaluated(*(pl.read_parquet(directory / name.format(number)) for name in (ROWS, DEPTHS)))
        except (OSError, pl.exceptions.PolarsError):
            continue


def forget(out: Path, name: str) -> None:
    """Remove all partitions of a scenario, whose results are there now."""
    for directory in out.glob(f".{glob.escape(name)}.partitions-*"):
        shutil.rmtree(directory, ignore_errors=True)


@cache
def _code() -> list[str]:
    """Return what identifies this code, and numpy's random streams."""
    package = Path(pearl_sim.__file__).parent
    sources = sorted([*package.glob("*.py"), *(package / "drivers").glob("*.py")])
    return [pearl_sim.__version__, np.__version__, *(_hash(file) for file in sources)]


def _hash(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()
