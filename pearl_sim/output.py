"""Results where people see them: a table on the terminal, JSON, and a directory of files a scenario."""

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from rich.table import Table

from pearl_sim import figure
from pearl_sim.errors import InputError
from pearl_sim.sweep import MEASURES, Results

MOST_ROWS = 50


def write(results: Results, out: Path) -> Path:
    """Write out/SCENARIO with results.parquet, acceptance_by_depth.parquet, figure.png and figure.html.

    Returns the directory.  An earlier result is replaced as a whole; anything else there is an InputError.
    """
    directory = out / results.scenario.name
    refuse_foreign(directory)
    out.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=out))
    try:
        results.rows.write_parquet(part / "results.parquet")
        results.depths.write_parquet(part / "acceptance_by_depth.parquet")
        figure.save(results, part)
        part.chmod(0o755)
        if directory.exists():
            shutil.rmtree(directory)
        part.replace(directory)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    return directory


def refuse_foreign(directory: Path) -> None:
    """Raise InputError if `directory` exists and is not a result that may be replaced."""
    if directory.exists() and not (directory / "results.parquet").is_file():
        raise InputError(directory, "exists and holds no earlier results; choose another --out")


def table(results: Results) -> Table:
    """Return the results for a terminal; of a long sweep, each policy's fastest point."""
    rows = results.rows
    swept = [name for name in rows.columns if name not in MEASURES and name not in ("policy", "gamma", "policy.gamma")]
    caption = None
    if len(rows) > MOST_ROWS:
        caption = (
            f"each policy's fastest of {len(results.scenario.points)} points; all {len(rows)} rows are in the files"
        )
        rows = rows.sort("speedup", descending=True).unique("policy", keep="first", maintain_order=True)
    shown = Table(title=results.scenario.title, title_justify="left", caption=caption, caption_justify="left")
    note = rows["note_tokens_per_t_draft"].count() > 0
    for heading in ("policy", "gamma", *swept):
        shown.add_column(heading, justify="left" if heading == "policy" else "right", no_wrap=True)
    headings = [
        "tokens/s",
        "speed-up",
        "95 % interval",
        "tokens per\ntarget forward",
        "wasted\ndrafts",
        "theory\ntokens/s",
    ]
    headings.append("deviation\n(std. errors)")
    if note:
        headings = ["tokens per\nt_draft", "exact", "note's\nestimate", *headings[1:3], headings[-1]]
    for heading in headings:
        shown.add_column(heading, justify="right")
    for row in rows.iter_rows(named=True):
        interval = f"{_number(row['speedup_low'])} - {_number(row['speedup_high'])}" if row["speedup_low"] else "-"
        cells = [row["tokens_per_s"], row["speedup"], interval, row["tokens_per_target_forward"], row["wasted_drafts"]]
        cells += [row["theory_tokens_per_s"], row["theory_deviation"]]
        if note:
            speeds = [row["tokens_per_t_draft"], row["steady_tokens_per_t_draft"], row["note_tokens_per_t_draft"]]
            cells = [*speeds, *cells[1:3], cells[-1]]
        shown.add_row(row["policy"], *(_number(cell) for cell in (row["gamma"], *(row[key] for key in swept), *cells)))
    return shown


def as_json(results: list[Results]) -> str:
    """Return all results as a JSON list, an object a scenario; what is not known is null."""
    return json.dumps([_object(found) for found in results], indent=1)


def _object(found: Results) -> dict[str, Any]:
    return {
        "scenario": found.scenario.name,
        "title": found.scenario.title,
        "results": found.rows.to_dicts(),
        "acceptance_by_depth": found.depths.to_dicts(),
    }


def _number(value: float | str | None) -> str:
    if value is None:
        return "-"
    if isinstance(value, str | int):
        return str(value)
    return f"{value:.4g}"
