"""The command that shows results: `report`."""

import sys
from pathlib import Path
from typing import Annotated

import typer


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Directories that `simulate` wrote.")],
    out: Annotated[Path, typer.Option(help="The page to write; its charts go beside it.")] = Path("report.html"),
) -> None:
    """Write the design-space report on one or more runs: one HTML file that opens offline."""
    from rich.console import Console

    from pearl_sim import run
    from pearl_sim.report import page

    read = [run.read(directory) for directory in runs]
    with Console(stderr=True).status("drawing the report"):
        charts = page.write(read, out)
    size = out.stat().st_size / 1e6
    print(f"wrote {out} ({size:.1f} MB); each chart as PNG and SVG in {charts}", file=sys.stderr)
