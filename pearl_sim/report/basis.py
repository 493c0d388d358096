"""What the report rests on: every run with its scenario, trace, version and date, so that it can be made again."""

import json
from collections.abc import Sequence

from pearl_sim import trace
from pearl_sim.report.section import Section, Table, Text
from pearl_sim.run import Run


def section(runs: Sequence[Run]) -> Section:
    """Return a table of the runs, and what is known of each trace."""
    rows = [
        (
            run.name,
            run.record.created[:10],
            run.record.pearl_sim,
            run.record.driver,
            f"{len(run.rows):,}",
            _scenario(run),
        )
        for run in runs
    ]
    body: list[Table | Text] = [Table(("run", "simulated", "version", "driver", "rows", "scenario"), rows)]
    for path in dict.fromkeys(run.trace for run in runs if run.trace):
        body.append(Text(f"Trace {path.name}", level=3))
        known = trace.load(path).provenance.model_dump(mode="json", exclude={"schema_version", "notes"})
        body.append(Table(("", ""), [(key, _words(value)) for key, value in known.items() if value not in (None, {})]))
        body += [Text(note) for note in trace.load(path).provenance.notes]
    return Section(
        "basis",
        "What this rests on",
        "Each line is a run: simulate its scenario again with the version named and the numbers come out the same.",
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
    return value if isinstance(value, str) else json.dumps(value)
