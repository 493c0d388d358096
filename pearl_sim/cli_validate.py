"""The command that checks the model against measurements that others published: validate."""

from pathlib import Path
from typing import Annotated

import typer

from pearl_sim.errors import InputError


def validate(
    what: Annotated[str, typer.Argument(help="published: the throughput of nano-PEARL on H200.")],
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables: every prediction too.")] = False,
    figure: Annotated[Path | None, typer.Option(help="Also draw the errors of throughput: a .png file.")] = None,
) -> None:
    """Predict published measurements and print how far off the predictions are."""
    if what != "published":
        raise InputError(f"what = {what!r}", "must be published")
    if figure is not None and figure.suffix != ".png":
        raise InputError(f"--figure {figure}", "must be a .png file")
    from pearl_sim import published_table

    answer = published_table.compute()
    if figure is not None:
        from pearl_sim import published_figure

        published_figure.save(answer, figure)
    if json:
        import json as json_format

        print(json_format.dumps(answer, indent=1, allow_nan=False))
    else:
        from rich.console import Console

        console = Console()
        if not console.is_terminal:
            console = Console(width=120)
        console.print(*published_table.render(answer), sep="\n")
