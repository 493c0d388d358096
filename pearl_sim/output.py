"""Results where people see them: a table on the terminal, JSON, and a directory of files a scenario."""

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import polars as pl
from rich.table import Table
from rich.text import Text

from pearl_sim import figure, partitions, run
from pearl_sim.errors import InputError
from pearl_sim.evaluate import MEASURES
from pearl_sim.scenario import Scenario
from pearl_sim.sweep import Results

FILES = {"run.json", "results.parquet", "acceptance_by_depth.parquet", "figure.png", "figure.html"}
KEY, DRIVER = "pearl_sim.key", "pearl_sim.driver"
MOST_ROWS = 50
ONLY_BESIDE_NOTE = {"tokens\n/t_draft", "long-run\nexact", "note's\nestimate"}
NOT_BESIDE_NOTE = {"tokens\n/s", "per\nforward", "wasted\n%"}


def write(results: Results, out: Path) -> Path:
    """Write out/SCENARIO with run.json, results.parquet, acceptance_by_depth.parquet, figure.png and figure.html.

    Returns the directory.  An earlier result is replaced as a whole; anything else there is an InputError.
    """
    directory = out / results.scenario.name
    refuse_foreign(directory)
    out.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=out))
    try:
        run.describe(results, directory).write(part)
        results.rows.write_parquet(part / "results.parquet", metadata={KEY: results.key, DRIVER: results.driver})
        results.depths.write_parquet(part / "acceptance_by_depth.parquet")
        figure.save(results, part)
        part.chmod(0o755)
        if directory.exists():
            shutil.rmtree(directory)
        part.replace(directory)
        partitions.forget(out, results.scenario.name)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    return directory


def unchanged(scenario: Scenario, driver: str | None, out: Path) -> Results | None:
    """Return the results in out/SCENARIO if they are those of this very scenario, its traces and this code."""
    directory = out / scenario.name
    if not all((directory / name).is_file() for name in FILES):
        return None
    try:
        said = pl.read_parquet_metadata(directory / "results.parquet")
        if said.get(KEY) != partitions.key_of(scenario, driver):
            return None
        rows, depths = (pl.read_parquet(directory / f"{name}.parquet") for name in ("results", "acceptance_by_depth"))
    except (OSError, pl.exceptions.PolarsError):
        return None
    return Results(scenario, rows, depths, said[DRIVER], said[KEY])


def refuse_foreign(directory: Path) -> None:
    """Raise InputError if `directory` cannot be made, or exists and is no result that may be replaced."""
    for parent in directory.parents:
        if parent.exists() and not parent.is_dir():
            raise InputError(parent, "is a file, not a directory; choose another --out")
    if directory.exists() and not (directory / "results.parquet").is_file():
        raise InputError(directory, "exists and holds no earlier results; choose another --out")


def table(results: Results) -> Table:
    """Return the results for a terminal of 80 columns; of a long sweep, each policy's fastest point."""
    rows = results.rows
    swept = [name for name in rows.columns if name not in MEASURES and name not in ("policy", "gamma", "policy.gamma")]
    notes = []
    if len(rows) > MOST_ROWS:
        rows = rows.sort("speedup", descending=True).unique(["policy", *swept], keep="first", maintain_order=True)
        kind = "best gamma of each policy"
        if len(rows) > MOST_ROWS:
            rows, kind = rows.unique("policy", keep="first", maintain_order=True), "each policy's fastest point"
        notes.append(f"{kind}; all {len(results.rows)} rows are in the files")
        rows = rows.sort(*swept, maintain_order=True)
    worst = rows["unknown_rounds"].max()
    if isinstance(worst, float) and worst > 0:
        notes.append(
            f"up to {worst:.1%} of target forwards went past what the trace recorded: those speeds are too low"
        )
    cells = rows.select(
        pl.col("policy"),
        pl.col("gamma"),
        *(pl.col(key).alias(key.replace(".", "\n.")) for key in swept),
        pl.col("tokens_per_s").alias("tokens\n/s"),
        pl.col("tokens_per_t_draft").alias("tokens\n/t_draft"),
        pl.col("steady_tokens_per_t_draft").alias("long-run\nexact"),
        pl.col("note_tokens_per_t_draft").alias("note's\nestimate"),
        pl.col("speedup").alias("speed\n-up"),
        ((pl.col("speedup_high") - pl.col("speedup_low")) / 2).round_sig_figs(2).alias("95 %\n+/-"),
        pl.col("tokens_per_target_forward").alias("per\nforward"),
        (100 * pl.col("wasted_drafts")).alias("wasted\n%"),
        pl.col("theory_deviation").round(2).alias("off by\nstd. err."),
    )
    with_note = rows["note_tokens_per_t_draft"].count() > 0
    left_out = NOT_BESIDE_NOTE if with_note else ONLY_BESIDE_NOTE
    shown = Table(
        title=Text(results.scenario.title),
        title_justify="left",
        caption="; ".join(notes) or None,
        caption_justify="left",
        box=None,
        padding=(0, 1, 0, 0),
    )
    kept = [name for name in cells.columns if name not in left_out and cells[name].count()]
    for name in kept:
        shown.add_column(name, justify="left" if name == "policy" else "right", no_wrap=True)
    for row in cells.select(kept).iter_rows():
        shown.add_row(*(_number(cell) for cell in row))
    return shown


def as_json(results: list[Results]) -> str:
    """Return all results as a JSON list, an object a scenario; what is not known is null."""
    return json.dumps([_object(found) for found in results], indent=1, allow_nan=False)


def _object(found: Results) -> dict[str, Any]:
    return {
        "scenario": found.scenario.name,
        "title": found.scenario.title,
        "driver": found.driver,
        "results": found.rows.to_dicts(),
        "acceptance_by_depth": found.depths.to_dicts(),
    }


def _number(value: float | str | None) -> str:
    if value is None:
        return "-"
    if isinstance(value, str | int):
        return str(value)
    return f"{value:.4g}"
