"""The commands that read a trace for one answer: recommend says what to use, timeline shows what happens."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pearl_sim.errors import InputError

if TYPE_CHECKING:
    from pearl_sim.cost import Cost
    from pearl_sim.trace import Trace

CostFile = Annotated[
    Path | None, typer.Option("--cost", help="A TOML file with a [cost] table; left out: the trace's own steps.")
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
            recorded.replay(None, None),
            priced,
            recorded.provenance.run_limit,
            max_gamma,
            lambda gamma: status.update(f"replaying, gamma {gamma}"),
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
            trace.path, "has no recorded steps to tell what a forward takes; give --cost FILE with a [cost] table"
        )
    return EmpiricalCost(trace=trace.path)
