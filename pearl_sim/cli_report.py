"""The command that shows results: `report`."""

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

    console = Console(stderr=True)
    read = [run.read(directory) for directory in runs]
    with console.status("drawing the report"):
        written, charts = page.write(read, out)
    size = written.stat().st_size / 1e6
    console.print(f"wrote {written} ({size:.1f} MB), charts in {charts}", highlight=False, markup=False)
