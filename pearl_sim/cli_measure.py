"""The commands that hold simulation and hardware together: profile, replay, compare and fidelity."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from pearl_sim.cli_models import (
    Device,
    Draft,
    Dtype,
    Graph,
    MinP,
    Mode,
    Seed,
    Target,
    Temperature,
    TopK,
    TopP,
    TrustCode,
    at_least,
    command_line,
    models_of,
    need_models,
    numbers_of,
    policies_of,
    sampling_of,
    worker_errors,
)
from pearl_sim.errors import InputError

Resume = Annotated[bool, typer.Option("--resume", help="Go on with an interrupted recording.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def profile(
    out: Annotated[Path, typer.Option(help="The profile to make.")] = Path("traces/profile"),
    gammas: Annotated[str, typer.Option(help="Time every size that these need, with commas.")] = "1,2,3,4,5,6,7,8",
    contexts: Annotated[str, typer.Option(help="Context lengths, with commas.")] = "64,192",
    batches: Annotated[str, typer.Option(help="Batch sizes, with commas.")] = "1",
    passes: Annotated[int, typer.Option(help="How often to time everything, in turns.")] = 10,
    target: Target = "bundled/target",
    draft: Draft = "bundled/draft",
    mode: Mode = "greedy",
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    min_p: MinP = None,
    seed: Seed = None,
    device: Device = "cpu",
    dtype: Dtype = "float32",
    graph: Graph = False,
    trust_remote_code: TrustCode = False,
    resume: Resume = False,
) -> None:
    """Measure how long this machine's steps take, alone and beside the other model; fit a cost to them."""
    need_models()
    at_least(passes, 1, "--passes")
    sizes = [numbers_of(text, option) for text, option in ((contexts, "--contexts"), (batches, "--batches"))]
    wanted = numbers_of(gammas, "--gammas")
    sampling = sampling_of(mode, temperature, top_k, top_p, min_p, seed)
    models = models_of(target, draft, device, dtype, graph, trust_remote_code)
    from pearl_sim import measure_table
    from pearl_sim import profile as profiling
    from pearl_sim.models.pair import open_pair

    with (
        worker_errors(),
        open_pair(models.target, models.draft, sampling, one_tokenizer=False) as pair,
        showing("profile", passes) as show,
    ):
        grid = profiling.Grid(wanted, *sizes)
        made = profiling.profile(pair, grid, passes, out, command_line(), resume, show)
    tell(measure_table.of_profile(made))
    print(f"wrote {out}: {len(made.steps)} steps, and cost.toml, an affine cost fitted to them")


def replay(
    trace: Annotated[Path, typer.Option(help="Whose acceptance to replay.")],
    out: Annotated[Path, typer.Option(help="The trace to make.")] = Path("traces/replayed"),
    policy: Annotated[str, typer.Option("--policy", "--policies", help="Policies to run, with commas.")] = "pearl",
    gamma: Annotated[str, typer.Option("--gamma", "--gammas", help="Gammas to run them at, with commas.")] = "4",
    requests: Annotated[int | None, typer.Option(help="Replay only the first so many requests.")] = None,
    target: Target = "bundled/target",
    draft: Draft = "bundled/draft",
    mode: Mode = "greedy",
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    min_p: MinP = None,
    seed: Seed = None,
    device: Device = "cpu",
    dtype: Dtype = "float32",
    graph: Graph = False,
    trust_remote_code: TrustCode = False,
    resume: Resume = False,
) -> None:
    """Hardware in the loop: run real forwards of any models, with acceptance and tokens from a trace."""
    need_models()
    chosen = policies_of(policy.split(","), numbers_of(gamma, "--gamma"))
    at_least(1 if requests is None else requests, 1, "--requests")
    sampling = sampling_of(mode, temperature, top_k, top_p, min_p, seed)
    models = models_of(target, draft, device, dtype, graph, trust_remote_code)
    from pearl_sim import measure_table
    from pearl_sim import replay as hardware
    from pearl_sim.models.pair import open_pair
    from pearl_sim.trace import load

    recorded = load(trace)
    with (
        worker_errors(),
        open_pair(models.target, models.draft, sampling, one_tokenizer=False) as pair,
        showing("replay", min(len(recorded.requests), requests or len(recorded.requests))) as show,
    ):
        made = hardware.replay(pair, recorded, requests, chosen, out, command_line(), resume, show)
    tell(measure_table.of_runs(made))
    print(f"wrote {out}: {len(made.requests)} requests, {len(made.steps)} steps")


def compare(
    run: Annotated[Path, typer.Argument(help="A trace with timed runs: of capture, or of replay.")],
    cost: Annotated[
        Path | None,
        typer.Option(
            help="What to simulate with: a profile, a trace, or a TOML file with a cost; left out: the run's own steps."
        ),
    ] = None,
    policy: Annotated[str | None, typer.Option("--policy", "--policies", help="Only these, with commas.")] = None,
    gamma: Annotated[str | None, typer.Option("--gamma", "--gammas", help="Only these, with commas.")] = None,
    tolerance: Annotated[
        float | None, typer.Option(help="Exit with 1 if a speed is off by more than this share, as 0.05.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write the picture, as PNG.")] = None,
    json: AsJson = False,
) -> None:
    """Hold simulated runs to real ones: every round, then the time, and where it differs."""
    from pearl_sim import compare as comparing
    from pearl_sim import measure_table
    from pearl_sim.policies import label, of_label
    from pearl_sim.scenario import read_cost
    from pearl_sim.trace import load

    if out and (out.suffix != ".png" or not out.absolute().parent.is_dir()):
        raise InputError(f"--out {out}", "must be a .png file in a directory that exists")
    if tolerance is not None and not 0 <= tolerance < 1:
        raise InputError(f"--tolerance {tolerance}", "must be a share, like 0.05")
    recorded = load(run)
    names = policy.split(",") if policy else None
    gammas = numbers_of(gamma, "--gamma") if gamma else None
    labels = None
    if names or gammas:
        known = [of_label(source) for source in recorded.steps["source"].unique(maintain_order=True)]
        timed = [named for named in known if named]
        for option, asked, there in (
            ("--policy", names or [], {name for name, _ in timed}),
            ("--gamma", gammas or [], {found for _, found in timed}),
        ):
            missing = [str(one) for one in asked if one not in there]
            if missing:
                raise InputError(f"{option} {missing[0]}", f"was not timed in {run}; there are {_listed(there)}")
        labels = [
            label(name, found)
            for name, found in timed
            if (not names or name in names) and (not gammas or found in gammas or name == "ar")
        ]
        if not labels:
            raise InputError(run, "has no timed run of such a policy and gamma")
    found = comparing.compare(recorded, read_cost(cost or run), str(cost) if cost else "its own steps", labels)
    outcome = comparing.verdict(found)
    if json:
        import json as json_format

        said = {"run": str(run), "cost": str(cost or run), **outcome._asdict(), "cells": found.to_dicts()}
        print(json_format.dumps(finite(said), indent=1, allow_nan=False))
    else:
        tell(measure_table.of_comparison(found))
    if out:
        from pearl_sim import compare_figure

        compare_figure.save(found, f"{run.name}: simulated against real", out)
    if not outcome.rounds_equal or (tolerance is not None and not outcome.worst_error <= tolerance):
        raise typer.Exit(1)


def fidelity(
    out: Annotated[Path, typer.Option(help="Where to keep runs and profiles.")] = Path("results/fidelity"),
    page: Annotated[Path | None, typer.Option(help="Write this page of Markdown, and its picture beside it.")] = None,
    requests: Annotated[int, typer.Option(help="How many prompts of the bundled set to use.")] = 20,
    tokens: Annotated[int, typer.Option(help="Output tokens of each request.")] = 128,
    target: Target = "bundled/target",
    draft: Draft = "bundled/draft",
    device: Device = "cpu",
    dtype: Dtype = "float32",
    graph: Graph = False,
    trust_remote_code: TrustCode = False,
    resume: Resume = False,
) -> None:
    """Measure how well simulation tells the time here: profile, run, compare, and write it down."""
    need_models()
    at_least(tokens, 2, "--tokens")
    at_least(requests, 2, "--requests")
    models = models_of(target, draft, device, dtype, graph, trust_remote_code)
    from pearl_sim import fidelity as measuring
    from pearl_sim import fidelity_page, measure_table, prompts
    from pearl_sim.models.pair import open_pair
    from pearl_sim.models.sampling import Sampling

    measuring.refuse_foreign(out)
    texts = prompts.read(prompts.BUNDLED)
    texts = texts[:: max(1, len(texts) // requests)][:requests]
    with (
        worker_errors(),
        # Sampled text, since greedy text repeats itself and is accepted all too well.
        open_pair(models.target, models.draft, Sampling(mode="coupled")) as pair,
        showing("fidelity", len(texts)) as show,
    ):
        measured = measuring.measure(pair, texts, tokens, out, command_line(), resume, show)
    for cost in measured.found["cost"].unique(maintain_order=True):
        tell(measure_table.of_comparison(measured.found.filter(measured.found["cost"] == cost)))
    if page:
        fidelity_page.write(measured, page)
    print(f"wrote {out}" + (f" and {page}" if page else ""))


def _listed(values: "set[str] | set[int]") -> str:
    return ", ".join(str(value) for value in sorted(values) if value != 0)


@contextmanager
def showing(what: str, total: int) -> Iterator[Callable[[int, int], None]]:
    """Show progress and time left on stderr; Control-C ends with a hint that recordings resume."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    try:
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(what, total=total)
            yield lambda number, tokens: bar.update(task, advance=1)
    except KeyboardInterrupt:
        import sys

        print("pearl-sim: interrupted; what is finished is kept, go on with --resume", file=sys.stderr)
        raise typer.Exit(130) from None


def tell(tables: "list[object]") -> None:
    """Print tables, 120 columns wide where there is no terminal."""
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console = Console(width=120)
    console.print(*tables, sep="\n")


def finite(value: object) -> object:
    """Return plain data in which what is not a number is null."""
    import math

    if isinstance(value, dict):
        return {key: finite(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
