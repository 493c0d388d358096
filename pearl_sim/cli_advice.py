"""The commands that read a trace for one answer: recommend says what to use, timeline shows what happens."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pearl_sim.errors import InputError

if TYPE_CHECKING:
    from pearl_sim.cost import Cost
    from pearl_sim.timeline import Timeline
    from pearl_sim.trace import Trace

CostFile = Annotated[
    Path | None,
    typer.Option(
        "--cost", help="A scenario's cost in a TOML file, or a profile or trace; left out: the trace's own steps."
    ),
]


def recommend(
    trace: Annotated[Path, typer.Option(help="The recorded trace to replay.")],
    cost: CostFile = None,
    max_gamma: Annotated[int | None, typer.Option(help="Search gamma so far; left out, while it gains.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of sentences.")] = False,
) -> None:
    """Say which policy and gamma to use for what a trace recorded, and how sure that is."""
    from rich.console import Console

    from pearl_sim import recommend as decision
    from pearl_sim import recommend_table
    from pearl_sim.trace import load

    if max_gamma is not None and not 1 <= max_gamma <= 1024:
        raise InputError(f"--max-gamma {max_gamma}", "must be 1 to 1024")
    recorded = load(trace)
    priced = _cost(recorded, cost)
    with Console(stderr=True).status("replaying") as status:
        replayed = decision.replay(
            recorded.workload(None, None),
            priced,
            recorded.provenance.run_limit,
            max_gamma,
            lambda gamma: status.update(f"replaying, gamma {gamma}"),
            recorded.censored(None),
        )
    answer = decision.decide(replayed)
    if json:
        import json as json_format

        given = {"trace": str(trace), "cost": str(cost) if cost else "the trace's own steps"}
        print(json_format.dumps(given | recommend_table.as_data(answer, replayed), indent=1, allow_nan=False))
    else:
        Console().print(*recommend_table.render(answer, replayed), sep="\n")


def _cost(trace: "Trace", file: Path | None) -> "Cost":
    """Return the cost in `file`, or that of the trace's own steps; InputError if there is neither."""
    from pearl_sim.cost import EmpiricalCost
    from pearl_sim.scenario import read_cost

    if file:
        return read_cost(file)
    if trace.steps.is_empty():
        raise InputError(
            trace.path,
            "has no recorded steps to tell what a forward takes; give --cost FILE, with a [cost] table, or a profile",
        )
    return EmpiricalCost(trace=trace.path)


def timeline(
    trace: Annotated[Path, typer.Argument(help="The recorded trace.")],
    request: Annotated[str, typer.Option(help="The request, by its name in the trace.")],
    policy: Annotated[str, typer.Option(help="ar, sd, pearl, pearl-no-pre or pearl-no-post.")] = "pearl",
    gamma: Annotated[int, typer.Option(help="Tokens drafted a round.")] = 4,
    cost: CostFile = None,
    out: Annotated[Path | None, typer.Option(help="Write the rounds as JSON for ui.perfetto.dev.")] = None,
    ascii: Annotated[bool, typer.Option("--ascii", help="Draw the rounds on the terminal.")] = False,
) -> None:
    """Show the rounds of one request: replayed, and beside it as recorded, if the trace holds such a run."""
    from pearl_sim.cli_models import policies_of
    from pearl_sim.drivers.sim import simulate
    from pearl_sim.metrics import unknown_rounds
    from pearl_sim.recorded import recorded
    from pearl_sim.trace import load, refuse_beyond_record

    if out is None and not ascii:
        raise InputError("timeline", "give --out FILE.json for Perfetto, --ascii for the terminal, or both")
    ((source, chosen),) = policies_of([policy], [gamma]).items()
    found = load(trace)
    refuse_beyond_record(found.provenance, chosen.gamma, f"--gamma {chosen.gamma}")
    number = _number(found, request)
    # Requests before this one are replayed too, so that it meets the luck that it meets in `simulate`.
    steps = simulate(chosen, found.workload(number + 1, None), _cost(found, cost).timing(chosen), 0)[number]
    began = steps[0].start
    runs = {f"{source} replayed": [step._replace(start=step.start - began, stop=step.stop - began) for step in steps]}
    measured = recorded(found, source, request, steps)
    if measured:
        runs[f"{source} recorded"] = measured
    if out:
        about = {"trace": str(trace), "request": request, "cost": str(cost) if cost else "the trace's own steps"}
        _write_events(runs, about, out)
    if ascii:
        _draw(runs, request)
    censored = found.censored(number + 1)
    unknown = unknown_rounds([steps], [censored[number]]) if censored else 0
    if unknown:
        told = "went past what the trace recorded; there a draft is shown as rejected, and nobody knows whether it was"
        print(f"{unknown:.1%} of target forwards {told}", file=sys.stderr)
    if len(measured) < len(steps) and source in found.steps["source"]:
        told = f"{len(measured)} of {len(steps)} rounds, in which it did what replay does; the rest is left out"
        print(f"of the recorded run: {told}", file=sys.stderr)


def _number(trace: "Trace", request: str) -> int:
    """Return the request's place in the trace."""
    names = trace.requests["request"].to_list()
    if request not in names:
        some = ", ".join(names[:3]) + (f", ... {names[-1]}" if len(names) > 3 else "")
        raise InputError(f"--request {request}", f"is not in the trace; its {len(names)} requests are {some}")
    return names.index(request)


def _write_events(runs: Mapping[str, "Timeline"], about: dict[str, str], out: Path) -> None:
    import json

    from pearl_sim.perfetto import trace_events

    if out.is_dir() or not out.parent.is_dir():
        raise InputError(out, "is a directory; name a file" if out.is_dir() else "is in no directory that exists")
    text = json.dumps(trace_events(runs, about), separators=(",", ":"))
    part = out.with_name(f".{out.name}.part")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(out)
    finally:
        part.unlink(missing_ok=True)
    print(f"wrote {out}; open it at https://ui.perfetto.dev", file=sys.stderr)


def _draw(runs: Mapping[str, "Timeline"], request: str) -> None:
    import shutil

    from pearl_sim.ascii_timeline import LEGEND, draw, scale_of

    width = shutil.get_terminal_size().columns
    scale_ns = scale_of(next(iter(runs.values())), width)
    for name, steps in runs.items():
        print(f"{name}, request {request}\n{draw(steps, width, scale_ns)}\n")
    print(LEGEND)
