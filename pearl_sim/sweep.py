"""A scenario simulated: every design point under every policy, one row each, with what theory says beside it."""

from collections.abc import Callable
from typing import NamedTuple

import polars as pl

from pearl_sim.errors import InputError
from pearl_sim.evaluate import evaluate
from pearl_sim.scenario import Scenario

DRIVERS = ("sim", "kernel")
"""The simulators, by name.  Both are exact; the kernel is faster."""


class Results(NamedTuple):
    """What a scenario's simulation found.

    rows:   a row a point and policy: policy, gamma, the swept keys, MEASURES.
    depths: policy, gamma, the swept keys but those of constant costs, depth, checked, accepted, acceptance.
    driver: which simulator it was, "sim" or "kernel"; "kernel, sim" where some points needed the other.
    """

    scenario: Scenario
    rows: pl.DataFrame
    depths: pl.DataFrame
    driver: str


def run(scenario: Scenario, on_point: Callable[[], object] = lambda: None, driver: str | None = None) -> Results:
    """Return the results of every point, in order.

    The results do not depend on `driver`.  None takes the fastest that is exact: the kernel, unless a point's times
    could pass the end of its clock.  InputError if the kernel is asked for such a point.
    """
    try:
        rows, depths = evaluate(scenario, range(len(scenario)), driver)
    except OverflowError as error:
        raise InputError(f"{scenario.name}, driver {driver}", f"{error}; use sim") from None
    used = rows["driver"].unique().sort()
    return Results(scenario, rows.drop("driver"), depths, ", ".join(used))
