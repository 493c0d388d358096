"""Benchmarks report time per unit of work, and its ratio to a bare SimPy timeout taken in the same run."""

import pytest


def pytest_terminal_summary(terminalreporter, config):
    """Print a line a benchmark: nanoseconds per unit (the best round) and the ratio."""
    per_unit = {
        bench.name: bench.stats.min / bench.extra_info["units"] * 1e9
        for bench in config._benchmarksession.benchmarks
        if "units" in bench.extra_info
    }
    bare = per_unit.get("bench_bare_timeout")
    for name, ns in per_unit.items():
        ratio = f"{ns / bare:8.2f} bare timeouts" if bare else ""
        terminalreporter.write_line(f"{name:32} {ns:10.1f} ns a unit {ratio}")


@pytest.fixture
def per_unit(benchmark):
    """Return a function that benchmarks `work`, which does `units` units."""

    def run(work, units):
        benchmark.extra_info["units"] = units
        benchmark.pedantic(work, rounds=5, warmup_rounds=1)

    return run
