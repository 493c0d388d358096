"""The command line.  A command imports what it needs when it runs, so that --help answers at once."""

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pearl_sim import __version__, cli_advice, cli_measure, cli_models, cli_report, cli_traces, cli_validate
from pearl_sim.errors import InputError

if TYPE_CHECKING:
    from pearl_sim.sweep import Results

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Simulate, replay and measure parallel speculative decoding (PEARL) before committing hardware to it.",
)

app.command()(cli_models.generate)
app.command()(cli_models.capture)
for measuring in (cli_measure.profile, cli_measure.replay, cli_measure.compare, cli_measure.fidelity):
    app.command()(measuring)
app.command()(cli_advice.recommend)
app.command()(cli_advice.timeline)
app.command()(cli_validate.validate)
app.command("import")(cli_traces.import_)
app.command()(cli_traces.acceptance)
app.command()(cli_report.report)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def main() -> None:
    """Run the command line; bad input, or a file that cannot be written, is one line on stderr and exit code 2."""
    try:
        app()
    except (InputError, OSError) as error:
        print(f"pearl-sim: {error}", file=sys.stderr)
        sys.exit(2)


def _version(asked: bool) -> None:
    if asked:
        print(f"pearl-sim {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


@app.command()
def simulate(
    scenarios: Annotated[list[Path], typer.Argument(help="Scenario files (TOML).")],
    out: Annotated[Path, typer.Option(help="Where to write a directory a scenario.")] = Path("results"),
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key, or fix a swept one.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Override workload.seed.")] = None,
    driver: Annotated[str | None, typer.Option(help="sim or kernel; left out, the faster one that is exact.")] = None,
    workers: Annotated[int | None, typer.Option(help="Processes; left out, one a core.")] = None,
    ray: Annotated[str | None, typer.Option(metavar="ADDRESS", help="Compute on this Ray cluster instead.")] = None,
    json: AsJson = False,
) -> None:
    """Simulate every design point of the scenarios; write tables and figures.

    Interrupted, it goes on where it stopped when it is run again; what has not changed is not computed again.
    """
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from pearl_sim import output, scenario, sweep
    from pearl_sim.workers import cores

    if workers is not None and workers < 1:
        raise InputError(f"--workers {workers}", "must be 1 or more")
    if driver is not None and driver not in sweep.DRIVERS:
        raise InputError(f"--driver {driver}", f"must be {' or '.join(sweep.DRIVERS)}")
    overrides = _overrides(settings or [], seed)
    names = [file.stem for file in scenarios]
    for name in names:
        if names.count(name) > 1:
            raise InputError(name, "is the name of two of the scenarios; their results would overwrite each other")
        output.refuse_foreign(out / name)
    planned = [scenario.read(file, overrides) for file in scenarios]
    out.mkdir(parents=True, exist_ok=True)
    finished: list[Results] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    try:
        with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
            for plan in planned:
                bar = progress.add_task(escape(plan.name), total=len(plan))
                found = output.unchanged(plan, driver, out)
                told = f"{plan.name}: nothing has changed since {out / plan.name} was written"
                if not found:
                    found = sweep.run(
                        plan, partial(progress.advance, bar), driver, out=out, processes=workers or cores(), ray=ray
                    )
                    told = f"{plan.name}: simulated by {found.driver}, wrote {output.write(found, out)}"
                finished.append(found)
                if not json:
                    progress.console.print(told, highlight=False, markup=False)
    except KeyboardInterrupt:
        print(
            f"pearl-sim: interrupted; {len(finished)} of {len(planned)} scenarios are in {out}, "
            "the same command goes on from there",
            file=sys.stderr,
        )
        raise typer.Exit(130) from None
    if json:
        print(output.as_json(finished))
    else:
        console = Console()
        if not console.is_terminal:
            console = Console(width=120)
        for found in finished:
            console.print(output.table(found), "")


@app.command()
def theory(
    alpha: Annotated[float, typer.Option(help="Acceptance of each draft token, 0 to 1.")],
    gamma: Annotated[int, typer.Option(help="Tokens drafted a round.")],
    t_draft: Annotated[str, typer.Option(help='Time of a draft forward, like "1 ms".')],
    t_target: Annotated[str, typer.Option(help='Time of a target forward, like "10 ms".')],
    sync: Annotated[str, typer.Option(help="Added to every round in which drafts are checked.")] = "0 ms",
    json: AsJson = False,
) -> None:
    """Print the exact speed of every policy under i.i.d. acceptance, and its best gamma."""
    from pearl_sim import theory_table

    answer = theory_table.compute(alpha, gamma, t_draft, t_target, sync)
    if json:
        import json as json_format

        print(json_format.dumps(answer, indent=1))
    else:
        from rich.console import Console

        Console().print(*theory_table.render(answer), sep="\n")


@app.command()
def policies() -> None:
    """List the decoding policies and what makes each."""
    from rich.console import Console
    from rich.table import Table

    from pearl_sim.policies import POLICIES

    table = Table("name", "gamma", "pre-verify", "post-verify", "what it is")
    for name, make in POLICIES.items():
        policy = make(4)
        doc = (make.__doc__ or "").split("\n")[0].removeprefix("Return ").rstrip(".")
        table.add_row(name, "g" if policy.gamma else "0", *("yes" if on else "no" for on in policy[1:]), doc)
    Console().print(table)


def _overrides(settings: Sequence[str], seed: int | None) -> dict[str, str]:
    overrides = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not (key.strip() and equals):
            raise InputError(f"--set {setting}", "must be KEY=VALUE, like policy.gamma=8")
        overrides[key.strip()] = value.strip()
    if seed is not None:
        overrides["workload.seed"] = str(seed)
    return overrides
