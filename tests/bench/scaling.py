"""How cost grows: time against trace length, points and workers, each measured here and now; writes a figure and JSON.

    python tests/bench/scaling.py [--out results]

The best of five tries is taken, since other work disturbs them.  Memory is summed over all processes of the command.
docs/scaling.png is this figure.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from functools import partial
from itertools import chain
from pathlib import Path

import altair as alt
import numpy as np
import polars as pl
import psutil
from made import GROWING, PRICES, make_trace, read_scenario

from pearl_sim.acceptance import Iid
from pearl_sim.cost import ConstantCost
from pearl_sim.drivers import kernel, sim
from pearl_sim.judge import Request
from pearl_sim.policies import pearl
from pearl_sim.sweep import run
from pearl_sim.workers import cores

SHAPES = {1_000: (2, 20, 25), 10_000: (4, 50, 50), 100_000: (10, 100, 100), 1_000_000: (10, 250, 400)}
"""Points -> how many of each of (gamma, t_draft, t_target)."""

TRIES = 5

EVENTS = """
cost = { model = "constant", draft = "1 ms", target = "9 ms" }
policy.names = ["pearl"]
sweep.policy.gamma = { start = 1, stop = 12, num = 12 }
"""


def best(work):
    """Return the shortest of some tries, in seconds."""
    times = []
    for _ in range(TRIES):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def against_length():
    """Return the time of PEARL at gamma 4 over traces of 10^3 to 10^7 tokens, 1000 to a request."""
    timing = ConstantCost(draft="1 ms", target="10 ms").timing(pearl(4))
    rows = []
    runs = np.concatenate([Iid(alpha=0.8).runs(0, number, 1000) for number in range(10_000)])
    for tokens in (10**3, 10**4, 10**5, 10**6, 10**7):
        trace = [Request(100, 1000, runs[first : first + 1000]) for first in range(0, tokens, 1000)]
        told = {"kernel": lambda trace=trace: kernel.tally(pearl(4), trace, timing, 0, None)}
        if tokens <= 10**5:
            told["SimPy"] = lambda trace=trace: sim.tally(pearl(4), trace, timing, 0, None)
        told["numpy's sum"] = lambda tokens=tokens: runs[:tokens].sum()
        rows += [{"series": series, "x": tokens, "s": best(work)} for series, work in told.items()]
    return rows


def commanded(scenario, out, *options):
    """Return the seconds and the most bytes that `pearl-sim simulate` took, over all of its processes."""
    command = "import sys; from pearl_sim.cli import main; sys.argv[0] = 'pearl-sim'; main()"
    arguments = ["simulate", str(scenario.file), "--out", str(out), *options]
    start, peak = time.perf_counter(), 0
    run = subprocess.Popen([sys.executable, "-c", command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process = psutil.Process(run.pid)
    while run.poll() is None:
        held = 0
        with suppress(psutil.NoSuchProcess):
            for each in (process, *process.children(recursive=True)):
                held += each.memory_info().rss
        peak = max(peak, held)
        time.sleep(0.02)
    if run.returncode:
        sys.exit(run.stderr.read().decode())
    return time.perf_counter() - start, peak


def against_points(directory):
    """Return the time of a sweep in one process, and of the whole command by a worker a core."""
    rows = []
    for points, (gammas, drafts, targets) in SHAPES.items():
        outs = (directory / f"{points}-{number}" for number in range(99))
        for series, text in (("the sweep, 1 worker", PRICES), ("... where times grow with context", GROWING)):
            scenario = read_scenario(directory, text.format(gammas=gammas, drafts=drafts, targets=targets))
            sweep = partial(lambda scenario, outs: run(scenario, out=next(outs)), scenario, outs)
            rows.append({"series": series, "x": points, "s": best(sweep)})
        scenario = read_scenario(directory, PRICES.format(gammas=gammas, drafts=drafts, targets=targets))
        seconds, peak = min(commanded(scenario, next(outs)) for _ in range(TRIES))
        rows.append({"series": f"all of the command, {cores()} workers", "x": points, "s": seconds, "bytes": peak})
    return rows


def against_workers(directory):
    """Return the time of the whole command by 1, 2, ... workers, in turn: a million points, twice; 12 by SimPy."""
    rows = []
    for series, text, options in (
        ("1,000,000 points", PRICES.format(gammas=10, drafts=250, targets=400), ()),
        ("... where times grow with context", GROWING.format(gammas=10, drafts=250, targets=400), ()),
        ("12 points by SimPy", EVENTS, ("--driver", "sim")),
    ):
        scenario = read_scenario(directory, text)
        found = {workers: [] for workers in range(1, cores() + 1)}
        for number in range(TRIES):
            for workers, tries in found.items():
                out = directory / f"{series}-{workers}-{number}"
                tries.append(commanded(scenario, out, "--workers", str(workers), *options))
        for workers, tries in found.items():
            seconds, peak = min(tries)
            rows.append({"series": series, "x": workers, "s": seconds, "bytes": peak})
    return rows


def panel(rows, title, x, scale="log"):
    """Return a chart of time against x, on logarithmic or linear scales."""
    values = sorted({row["x"] for row in rows})
    base = alt.Chart(pl.DataFrame(rows)).encode(
        x=alt.X("x:Q", title=x, scale=alt.Scale(type=scale), axis=alt.Axis(format="~s", values=values)),
        y=alt.Y("s:Q", title="time, s", scale=alt.Scale(type=scale), axis=alt.Axis(format="~r", tickCount=7)),
        color=alt.Color("series:N", title=None, sort=None, scale=alt.Scale(range=["#0072B2", "#E69F00", "#555555"])),
    )
    return (base.mark_line() + base.mark_point(filled=True, size=45)).properties(title=title, width=300, height=300)


def main():
    """Measure, print, and write scaling.json and scaling.png."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results"))
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    found = {"length": against_length()}
    with tempfile.TemporaryDirectory() as directory:
        make_trace(Path(directory) / "trace")
        found |= {"points": against_points(Path(directory)), "workers": against_workers(Path(directory))}
    for row in chain.from_iterable(found.values()):
        print(row)
    (out / "scaling.json").write_text(json.dumps(found, indent=1) + "\n")
    chart = alt.hconcat(
        panel(found["length"], "One policy over a trace (PEARL, gamma 4)", "output tokens"),
        panel(found["points"], "A sweep over 100,200 recorded tokens", "design points"),
        panel(found["workers"], "All of the command, by workers", "workers", "linear"),
    ).resolve_scale(color="independent", x="independent", y="independent")
    chart = (
        chart.configure_view(stroke=None)
        .configure_axis(gridColor="#e6e6e6")
        .configure_legend(orient="bottom", columns=1)
    )
    chart.save(str(out / "scaling.png"), ppi=144)


if __name__ == "__main__":
    main()
