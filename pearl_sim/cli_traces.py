"""The commands about recorded runs: import and acceptance."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pearl_sim.errors import InputError

if TYPE_CHECKING:
    from pearl_sim.counts import Counts
    from pearl_sim.trace import Trace

KINDS = {
    "specdecode-bench": ("proposer", "run_limit"),
    "spec-bench": ("gamma", "lengths"),
    "vllm": (),
    "llama-cpp": (),
    "csv": ("gamma",),
}
"""Every format that can be imported, with the options that mean something to it."""


def import_(
    kind: Annotated[str, typer.Argument(help=f"The format: {', '.join(KINDS)}.")],
    files: Annotated[list[Path], typer.Argument(help="The recorded file; vllm: metrics before and after.")],
    out: Annotated[Path, typer.Option(help="The trace to make: traces/NAME.")],
    proposer: Annotated[str | None, typer.Option(help="specdecode-bench: whose drafts, eagle or ngram.")] = None,
    run_limit: Annotated[int | None, typer.Option(help="specdecode-bench: tokens drafted at most, if known.")] = None,
    gamma: Annotated[int | None, typer.Option(help="spec-bench, csv: tokens drafted in every round.")] = None,
    lengths: Annotated[
        str | None, typer.Option(help="spec-bench: do lengths count the target's token (emitted) or not (accepted)?")
    ] = None,
) -> None:
    """Make a trace from what another tool recorded; counts, if no positions were."""
    given: dict[str, Any] = {"proposer": proposer, "run_limit": run_limit, "gamma": gamma, "lengths": lengths}
    options = {name: value for name, value in given.items() if value is not None}
    if kind not in KINDS:
        raise InputError(f"kind = {kind!r}", f"must be one of {', '.join(KINDS)}")
    for name in options:
        if name not in KINDS[kind]:
            raise InputError(f"--{name.replace('_', '-')}", f"changes nothing for {kind}; remove it")
    for name, least in (("gamma", 1), ("run_limit", 1)):
        if options.get(name, least) < least:
            raise InputError(f"--{name.replace('_', '-')} {options[name]}", f"must be {least} or more")
    from rich.console import Console
    from rich.markup import escape

    if out.exists():
        raise InputError(out, "exists already; choose another name or remove it")
    read = _reader(kind, files, options)
    with Console(stderr=True).status(f"reading {escape(str(files[0]))}"):
        found = read(out)
        _save(found)
    print(f"wrote {out}: {_size(found)}")
    for note in found.provenance.notes:
        print(f"  {note}")


def acceptance(
    trace: Annotated[Path, typer.Argument(help="A directory that import or capture made.")],
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Tell how drafts are accepted: by depth, with intervals, and which law fits."""
    from pearl_sim import acceptance_table

    answer = acceptance_table.compute(trace)
    if json:
        import json as json_format

        print(json_format.dumps(answer, indent=1))
    else:
        from rich.console import Console

        console = Console()
        if not console.is_terminal:
            console = Console(width=120)
        console.print(*acceptance_table.render(answer), sep="\n", highlight=False)


def _reader(kind: str, files: list[Path], options: dict[str, Any]) -> "Callable[[Path], Trace | Counts]":
    """Return what reads the files, given where the result will lie."""
    if kind == "vllm":
        from pearl_sim.importers import vllm

        return lambda out: vllm.read(files, out)
    if len(files) > 1:
        raise InputError(files[1], f"is one too many; {kind} takes one file")
    (file,) = files
    if kind == "specdecode-bench":
        from pearl_sim.importers import specdecode_bench

        if "proposer" not in options:
            raise InputError("--proposer", "is missing; the file may hold several: eagle, ngram")
        return lambda out: specdecode_bench.read(file, options["proposer"], out, options.get("run_limit"))
    if kind == "spec-bench":
        from pearl_sim.importers import spec_bench

        if options.get("lengths", "emitted") not in ("emitted", "accepted"):
            raise InputError(f"--lengths {options['lengths']}", "must be emitted or accepted")
        return lambda out: spec_bench.read(file, out, **options)
    if kind == "llama-cpp":
        from pearl_sim.importers import llama_cpp

        return lambda out: llama_cpp.read(file, out)
    from pearl_sim.importers import csv

    return lambda out: csv.read(file, out, **options)


def _save(found: "Trace | Counts") -> None:
    from pearl_sim import counts, trace

    if isinstance(found, trace.Trace):
        trace.save(found)
    else:
        counts.save(found)


def _size(found: "Trace | Counts") -> str:
    from pearl_sim.trace import Trace

    if isinstance(found, Trace):
        return f"{len(found.requests)} requests, {len(found.tokens)} output tokens"
    rounds = found.rounds["rounds"].sum()
    return f"counts of {rounds} rounds, not to be replayed; see `pearl-sim acceptance {found.path}`"
