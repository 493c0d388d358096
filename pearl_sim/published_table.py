"""What `pearl-sim validate published` prints: how far predictions lie from the published measurements."""

from typing import Any

import numpy as np
import polars as pl
from rich.table import Table

from pearl_sim import published

WORST_SHOWN = 8


def compute() -> dict[str, Any]:
    """Return the errors and predictions as plain data.

    Errors are |predicted / measured - 1|: the median, the 90th percentile and the worst, of all rows and of each
    draft's pair, by what the fit left out.
    """
    rows = published.read()
    by_split = {name: published.predict(rows, column) for name, column in published.SPLITS.items()}
    fitted = by_split["nothing"]
    # Without a cost model: a round lasts as long as a step of AR does, prefill included.
    steps_s = rows["ar_run_s"] / (rows["ar_forwards"] + 1)
    guess = rows["batch_size"] * fitted["predicted_tokens_per_round"] / steps_s / fitted["tokens_per_s"] - 1
    return {
        "rows": len(rows),
        "gamma": dict(fitted.select("draft", "gamma").unique(maintain_order=True).iter_rows()),
        "cost": {
            name: {key: [found[key].min(), found[key].max()] for key in published.Cost._fields}
            for name, found in by_split.items()
        },
        "target_ms": dict(rows.select("target", 1000 * pl.col("t_target_s")).unique(maintain_order=True).iter_rows()),
        "tokens_per_round": {name: _errors(found, "tokens_error") for name, found in by_split.items()},
        "run_time": {name: _errors(found, "time_error") for name, found in by_split.items()},
        "throughput": {name: _errors(found, "throughput_error") for name, found in by_split.items()},
        "throughput_without_cost_model": _spread(guess),
        "predictions": {name: found.to_dicts() for name, found in by_split.items()},
    }


def render(answer: dict[str, Any]) -> list[Table | str]:
    """Return the answer for a terminal of 100 columns."""
    splits = list(answer["throughput"])
    by_pair = [split for split in splits if split in ("nothing", "dataset", "batch size")]
    return [
        f"{answer['rows']} rows of nano-PEARL on H200; errors are |predicted / measured - 1| in %",
        "",
        _pairs(answer, "tokens_per_round", by_pair, "Tokens per round from MAT, by what the fit of gamma left out"),
        "",
        _pairs(answer, "throughput", by_pair, "Throughput, by what the fit of cost and gamma left out"),
        "",
        _splits(answer, splits),
        "",
        _worst(answer),
    ]


def _errors(found: pl.DataFrame, column: str) -> dict[str, dict[str, float]]:
    pairs = found.partition_by("draft", as_dict=True, maintain_order=True)
    return {"all": _spread(found[column])} | {str(draft): _spread(pair[column]) for (draft,), pair in pairs.items()}


def _spread(errors: pl.Series) -> dict[str, float]:
    off = np.abs(errors.to_numpy())
    return {"median": float(np.median(off)), "p90": float(np.quantile(off, 0.9)), "worst": float(off.max())}


def _pairs(answer: dict[str, Any], measure: str, splits: list[str], title: str) -> Table:
    table = _table(title, "draft", "gamma")
    for split in splits:
        for statistic in ("median", "p90", "worst"):
            table.add_column(f"{split if statistic == 'median' else ''}\n{statistic}", justify="right", no_wrap=True)
    for draft in [*answer["gamma"], "all"]:
        cells = [_percent(of) for split in splits for of in answer[measure][split][draft].values()]
        table.add_row(_short(draft), str(answer["gamma"].get(draft, "")), *cells)
    return table


def _splits(answer: dict[str, Any], splits: list[str]) -> Table:
    headings = ("left out", "run time\nmedian", "\np90", "\nworst", "throughput\nmedian", "\np90", "\nworst")
    table = _table("All rows, and the two numbers fitted for them", *headings, "efficiency\n%", "overhead\n%")
    for split in splits:
        cells = [_percent(of) for key in ("run_time", "throughput") for of in answer[key][split]["all"].values()]
        cost = [_between(low, high) for low, high in answer["cost"][split].values()]
        table.add_row(f"a {split}" if split != "nothing" else split, *cells, *cost)
    guess = [_percent(of) for of in answer["throughput_without_cost_model"].values()]
    table.add_row("(no cost model)", "", "", "", *guess, "", "")
    return table


def _worst(answer: dict[str, Any]) -> Table:
    headings = ("draft", "gamma", "batch", "dataset", "MAT", "throughput\n%", "tokens\n%", "time\n%")
    table = _table("The worst throughputs, a dataset left out: signed errors", *headings)
    rows = sorted(answer["predictions"]["dataset"], key=lambda row: -abs(row["throughput_error"]))
    for row in rows[:WORST_SHOWN]:
        errors = [f"{100 * row[key]:+.1f}" for key in ("throughput_error", "tokens_error", "time_error")]
        table.add_row(
            _short(row["draft"]),
            str(row["gamma"]),
            str(row["batch_size"]),
            row["dataset"],
            f"{row['pearl_mat']:.1f}",
            *errors,
        )
    return table


def _table(title: str, *headings: str) -> Table:
    table = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0))
    for heading in headings:
        left = heading in ("draft", "dataset", "left out")
        table.add_column(heading, justify="left" if left else "right", no_wrap=True)
    return table


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


def _between(low: float, high: float) -> str:
    ends = [_percent(low), _percent(high)]
    return ends[0] if ends[0] == ends[1] else " to ".join(ends)


def _short(draft: str) -> str:
    return draft.removesuffix("-Instruct")
