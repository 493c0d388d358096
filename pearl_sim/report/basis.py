"""What the report rests on: every run with its scenario, trace, version and date, so that it can be made again."""

import json
from collections.abc import Sequence

from pearl_sim import trace
from pearl_sim.report.section import Section, Table, Text
from pearl_sim.run import Run


def section(runs: Sequence[Run]) -> Section:
    """Return a table of the runs, and what is known of each trace."""
    body: list[Table | Text] = []
    for run in runs:
        record, rows = run.record, f"{len(run.rows):,} rows"
        made = f"Simulated {record.created[:10]} by {record.driver}, pearl_sim {record.pearl_sim}, {rows}."
        body += [Text(run.name, level=3), Text(f"{made} {_scenario(run)}.")]
    for path in dict.fromkeys(run.trace for run in runs if run.trace):
        body.append(Text(f"Trace {path.name}", level=3))
        known = trace.load(path).provenance.model_dump(mode="json", exclude={"schema_version", "notes"})
        body.append(Table(("", ""), [(key, _words(value)) for key, value in known.items() if value not in (None, {})]))
        body += [Text(note) for note in trace.load(path).provenance.notes]
    return Section(
        "basis",
        "What this rests on",
        "The runs, their whole scenarios, and the traces: simulate a scenario again with the version named, and the "
        "numbers come out the same.",
        body,
    )


def _scenario(run: Run) -> str:
    """Return the scenario's settings on a line, a trace by its name."""
    return _words({**run.record.settings, **({"sweep": run.record.sweep} if run.record.sweep else {})})


def _words(value: object) -> str:
    if isinstance(value, dict):
        return "; ".join(f"{key}: {_inner(key, inner)}" for key, inner in value.items() if inner is not None)
    return str(value)


def _inner(key: str, value: object) -> str:
    if isinstance(value, dict):
        return "(" + ", ".join(f"{name} {_inner(name, inner)}" for name, inner in value.items()) + ")"
    if key == "trace":
        return str(value).rstrip("/").rpartition("/")[2]
    if isinstance(value, float):
        return f"{value:.6g}"
    return value if isinstance(value, str) else json.dumps(value)
