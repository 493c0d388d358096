"""A scenario simulated: every design point under every policy, one row each, with what theory says beside it."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import polars as pl

from pearl_sim import partitions, workers
from pearl_sim.evaluate import Evaluated
from pearl_sim.scenario import Scenario

DRIVERS = ("sim", "kernel")
"""The simulators, by name.  Both are exact; the kernel is faster."""


class Results(NamedTuple):
    """What a scenario's simulation found.

    rows:   a row a point and policy: policy, gamma, the swept keys, MEASURES.
    depths: policy, gamma, the swept keys but those of the cost, depth, checked, accepted, acceptance.
    driver: which simulator it was, "sim" or "kernel"; "kernel, sim" where some points needed the other.
    key:    a hash of everything that the rows depend on.
    """

    scenario: Scenario
    rows: pl.DataFrame
    depths: pl.DataFrame
    driver: str
    key: str


def run(
    scenario: Scenario,
    on_points: Callable[[int], object] = lambda points: None,
    driver: str | None = None,
    *,
    out: Path | None = None,
    processes: int = 1,
    ray: str | None = None,
) -> Results:
    """Return the results of every point, in order; `on_points` is told how many more are done.

    The results depend neither on who computes them (so many processes, or the Ray cluster at an address) nor on
    `driver`: None takes the fastest that is exact, the kernel, unless a point's times could pass the end of its clock.
    InputError if the kernel is asked for such a point.

    With `out`, finished partitions are kept below it, and those that an earlier run left there are not computed again;
    `partitions.forget` removes them.
    """
    task = partitions.task(scenario, driver)
    ranges = partitions.ranges(scenario)
    directory = partitions.place(out, task) if out else None
    done: dict[int, Evaluated] = dict(partitions.kept(directory, range(len(ranges))) if directory else ())
    on_points(sum(len(ranges[number]) for number in done))
    left = [number for number in range(len(ranges)) if number not in done]
    computed = workers.on_ray(task, left, ray) if ray else workers.here(task, left, processes)
    for number, partition in computed:
        if directory:
            partitions.keep(directory, number, partition)
        done[number] = partition
        on_points(len(ranges[number]))
    rows, depths = (pl.concat(tables) for tables in zip(*(done[number] for number in range(len(ranges))), strict=True))
    used = rows["driver"].unique().sort()
    return Results(scenario, rows.drop("driver"), depths, ", ".join(used), task.key)
