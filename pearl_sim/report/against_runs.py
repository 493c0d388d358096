"""How well the simulation told the time: where a trace holds timed runs, they are held to it, run by run."""

from collections.abc import Sequence

from pearl_sim import compare_figure
from pearl_sim.compare import compare, verdict
from pearl_sim.cost import Cost, EmpiricalCost
from pearl_sim.errors import InputError
from pearl_sim.figure import COLOURS
from pearl_sim.policies import POLICIES, of_label
from pearl_sim.report.section import Figure, Section, Table, Text, percent
from pearl_sim.report.study import Study
from pearl_sim.trace import Trace, load


def section(studies: Sequence[Study]) -> Section | None:
    """Return a figure for every study of a trace with timed runs whose cost was measured; None if there is none."""
    body: list[Figure | Table | Text] = []
    for number, study in enumerate(studies, start=1):
        trace = timed(study)
        if not trace:
            continue
        same = isinstance(study.cost, EmpiricalCost) and study.cost.trace == trace.path
        priced = [source for source in runs_of(trace) if is_priced(study.cost, source)]
        if not priced:
            continue
        found = compare(trace, study.cost, "these runs' own steps" if same else "other steps", priced)
        outcome = verdict(found)
        rounds = "every round of every run was" if outcome.rounds_equal else "not every round of every run was"
        names = [name for name in COLOURS if name in set(found["policy"])]
        body += [
            *study.heading(len(studies)),
            Text(
                f"Over {len(found)} policies and gammas that {trace.path.name} timed, the simulated speed is off by "
                f"{percent(outcome.median_error)} in the median and {percent(outcome.worst_error)} at worst; {rounds} "
                "the simulator's. "
                + (
                    "The simulator's times come from these very runs, so this shows that it adds them up rightly, not "
                    "that it predicts others: docs/fidelity.md measures that."
                    if same
                    else "The simulator's times were recorded apart from these runs."
                )
            ),
            Figure(
                f"against_runs_{number}",
                compare_figure.draw(found, "Simulated against real speed"),
                "0 is a perfect answer; bars are 95 % intervals over requests.",
                [(name, COLOURS[name]) for name in names],
                study.title,
            ),
        ]
    if not body:
        return None
    return Section(
        "fidelity",
        "How well it tells the time",
        "Each point is one policy and gamma that was really run: how far the simulated speed lies above the real one, "
        "in percent.",
        body,
    )


def timed(study: Study) -> Trace | None:
    """Return the trace that a study replays, if it holds timed runs and the study's times were measured."""
    if study.run.trace is None or not isinstance(study.cost, EmpiricalCost):
        return None
    trace = load(study.run.trace)
    return trace if runs_of(trace) else None


def runs_of(trace: Trace) -> list[str]:
    """Return the labels of a trace's timed runs."""
    return [source for source in trace.steps["source"].unique(maintain_order=True) if of_label(source)]


def is_priced(cost: Cost, source: str) -> bool:
    """Return whether a cost knows steps as wide as such a run needs."""
    named = of_label(source)
    try:
        return bool(named and cost.timing(POLICIES[named[0]](named[1])))
    except InputError:
        return False
