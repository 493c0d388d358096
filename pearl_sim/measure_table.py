"""What profile, replay and compare print."""

from collections.abc import Sequence

import polars as pl
from rich.table import Table

from pearl_sim.compare import PARTS, verdict
from pearl_sim.efficiency import efficiency
from pearl_sim.profile_summary import doubts, summary
from pearl_sim.trace import Profile, Trace

KINDS = {
    "alone": (False, False),
    "alone, rested": (False, True),
    "beside": (True, False),
    "beside, rested": (True, True),
}
"""Whether the other model ran too, and whether this one waited in the round before."""


def of_profile(made: Profile) -> list[object]:
    """Return a table of the kinds of steps, alone and beside the other model, then what the fit and the doubts say."""
    found = summary(made.steps)
    table = _table(
        "median step times in ms, and how well the mean is known",
        ("model", "batch", "size", *KINDS),
    )
    for (role, batch, size), rows in found.group_by("role", "batch", "tokens", maintain_order=True):
        own = [rows.filter(overlapped=beside, rested=rested) for beside, rested in KINDS.values()]
        cells = (_spread(kind.row(0, named=True)) if len(kind) else "" for kind in own)
        table.add_row(str(role), str(batch), str(size), *cells)
    fitted = [line.removeprefix("# ") for line in made.cost.splitlines() if line.startswith(("# draft", "# target"))]
    return [table, "affine fit:", *fitted, *(f"Warning: {doubt}" for doubt in doubts(made.steps))]


def of_runs(made: Trace) -> list[object]:
    """Return a table of the timed runs of a trace: speed, and what their rounds took beyond their models."""
    table = _table(
        "runs; wall: time over that of the slower model of every round; hand-over: us a round beyond it",
        ("run", "tokens/s", "rounds", "wall", "hand-over"),
    )
    spans = made.steps.group_by("source", "request").agg(ns=pl.col("stop_ns").max() - pl.col("start_ns").min())
    took = dict(spans.group_by("source").agg(pl.col("ns").sum()).iter_rows())
    for row in efficiency(made.steps).iter_rows(named=True):
        speed = made.requests["output_tokens"].sum() / took[row["source"]] * 1e9
        table.add_row(
            row["source"],
            f"{speed:.1f}",
            str(row["rounds"]),
            f"{row['wall_over_critical']:.3f}",
            f"{row['hand_over_us']:.0f}",
        )
    return [table]


def of_comparison(found: pl.DataFrame) -> list[object]:
    """Return the tables of a comparison, and what it comes to in a sentence."""
    (cost,) = found["cost"].unique()
    whole = _table(
        f"simulated against real; cost: {cost}",
        ("policy", "gamma", "equal", "real/s", "sim/s", "off by %", "95 %", "a round off by %, 5/50/95", "p99 %"),
    )
    where = _table("simulated less real time of each part, in % of all real time", ("policy", "gamma", *PARTS))
    for row in found.iter_rows(named=True):
        name = (row["policy"], str(row["gamma"]))
        equal = f"{row['equal_requests']}/{row['requests']}"
        if row["error"] is None:
            whole.add_row(*name, equal, *["-"] * 6)
            continue
        interval = "-" if row["error_low"] is None else f"{_percent(row['error_low'])} to {_percent(row['error_high'])}"
        by_round = "/".join(_percent(row[f"round_error_{at}"]) for at in ("p5", "p50", "p95"))
        speeds = (f"{row[side]:.1f}" for side in ("real_tokens_per_s", "simulated_tokens_per_s"))
        whole.add_row(*name, equal, *speeds, _percent(row["error"]), interval, by_round, _percent(row["tail_error"]))
        where.add_row(*name, *(_percent(row[part]) for part in PARTS))
    outcome = verdict(found)
    said = f"off by {outcome.median_error:.1%} in the median, {outcome.worst_error:.1%} at worst; " + (
        "every round of every run is the simulator's"
        if outcome.rounds_equal
        else "where requests are not equal, the run left the simulator's rounds, and is left out from there"
    )
    return [whole, where, said]


def _spread(row: dict[str, float | None]) -> str:
    error = row["error"]
    return f"{(row['median_ns'] or 0.0) / 1e6:.2f}" + ("" if error is None else f" +/- {error:.1%}")


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:+.1f}"


def _table(title: str, columns: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left", box=None, padding=(0, 1, 0, 0))
    for column in columns:
        table.add_column(column, justify="left" if column in ("policy", "model", "run") else "right", no_wrap=True)
    return table
