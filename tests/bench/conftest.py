"""Benchmarks report time per unit of work, and its ratios to yardsticks taken in the same run.

The yardsticks: a bare SimPy timeout, numpy summing the run lengths of a trace (a token), Python starting.
"""

import pytest

YARDSTICKS = {"bare timeouts": "bench_bare_timeout", "numpy sums": "bench_numpy_sum", "bare starts": "bench_bare_start"}


def measured(per_unit):
    """Return {name: {"ns": the best round's time a unit, yardstick: how many of them}}."""
    bases = {what: per_unit[name] for what, name in YARDSTICKS.items() if name in per_unit}
    return {name: {"ns": ns} | {what: ns / base for what, base in bases.items()} for name, ns in per_unit.items()}


@pytest.hookimpl(optionalhook=True)  # the tests run without pytest-benchmark
def pytest_benchmark_update_json(config, benchmarks, output_json):
    """Write time and ratios into the JSON too, so that two commits can be compared."""
    told = output_json["benchmarks"]
    found = measured({each["name"]: each["stats"]["min"] / each["extra_info"]["units"] * 1e9 for each in told})
    for each in told:
        each["extra_info"]["per_unit"] = found[each["name"]]


def pytest_terminal_summary(terminalreporter, config):
    """Print a line a benchmark."""
    session = getattr(config, "_benchmarksession", None)  # none without pytest-benchmark
    benchmarks = session.benchmarks if session else []
    found = measured({each.name: each.stats.min / each.extra_info["units"] * 1e9 for each in benchmarks})
    for name, numbers in found.items():
        ratios = "".join(f"{ratio:14.4g} {what}" for what, ratio in numbers.items() if what != "ns")
        terminalreporter.write_line(f"{name:42} {numbers['ns']:12.4g} ns a unit {ratios}")


@pytest.fixture
def per_unit(benchmark):
    """Return a function that benchmarks `work`, which does `units` units."""

    def run(work, units, rounds=5):
        benchmark.extra_info["units"] = units
        benchmark.pedantic(work, rounds=rounds, warmup_rounds=1)

    return run
