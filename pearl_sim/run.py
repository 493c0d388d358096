"""A finished run on disk: the directory that `simulate` writes and `report` reads.

run.json says what was simulated, on what, by which version and when.  It is enough to simulate any point of the run
again, whatever has become of the scenario file since.
"""

import json
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TypeAlias

import polars as pl

from pearl_sim import __version__, scenario
from pearl_sim.axes import Value
from pearl_sim.errors import InputError
from pearl_sim.evaluate import MEASURES
from pearl_sim.point import Point
from pearl_sim.settings import Settings
from pearl_sim.sweep import Results
from pearl_sim.trace import read_json, read_table, sha256

SCHEMA_VERSION = 1
GAMMA = "policy.gamma"

Place: TypeAlias = dict[str, Any]
"""A place of a run: the values of its swept keys, gamma aside, by their columns."""


class Record(Settings):
    """What run.json holds.

    settings, sweep: the scenario after overrides; a trace's path is relative to the run's directory.
    traces:          path -> sha256 of the trace's files at the time.
    """

    schema_version: Literal[1] = 1
    scenario: str
    title: str
    driver: str
    pearl_sim: str
    created: str
    settings: dict[str, Any]
    sweep: dict[str, Any]
    traces: dict[str, str]

    def write(self, directory: Path) -> None:
        """Write run.json into `directory`."""
        text = json.dumps(self.model_dump(mode="json"), indent=1, allow_nan=False)
        (directory / "run.json").write_text(text + "\n", encoding="utf-8")


@dataclass(frozen=True)
class Run:
    """A run as it was read.

    rows:   results.parquet; docs/results.md explains its columns.
    """

    directory: Path
    record: Record
    rows: pl.DataFrame

    @property
    def name(self) -> str:
        """Return the scenario's name."""
        return self.record.scenario

    @property
    def place_columns(self) -> list[str]:
        """Return the columns of the swept keys other than gamma: what tells one place of the run from another."""
        return [self._column(key) for key in self.record.sweep if key != GAMMA]

    @property
    def trace(self) -> Path | None:
        """Return the trace whose acceptance was replayed, or None where acceptance follows a law."""
        named = dict(scenario.trace_tables(self.record.settings)).get("acceptance")
        return self._resolved(named["trace"]) if named else None

    def places(self, most: int | None = None) -> list[Place]:
        """Return the places of the run in order, as {column: value}; of more than `most`, so many evenly spread."""
        if not self.place_columns:
            return [{}]
        found = self.rows.select(self.place_columns).unique(maintain_order=True)
        if most is not None and len(found) > most:
            found = found[[int((i + 0.5) * len(found) / most) for i in range(most)]]
        return found.to_dicts()

    def at(self, place: Place) -> pl.DataFrame:
        """Return the rows of one place: every policy and gamma there."""
        return self.rows.filter(*(pl.col(column) == value for column, value in place.items()))

    def point(self, place: Place, gamma: int) -> Point:
        """Return the design point at `place` and `gamma`; InputError if a trace it needs is gone or has changed."""
        file = self.directory / "run.json"
        settings = {**self.record.settings}
        for name, table in scenario.trace_tables(settings):
            trace = self._resolved(table["trace"])
            if not trace.is_dir():
                raise InputError(file, f"its trace {trace} is no longer there; simulate again")
            if sha256(trace) != self.record.traces[table["trace"]]:
                raise InputError(file, f"its trace {trace} has changed since; simulate again")
            settings[name] = {**table, "trace": trace}
        swept: dict[str, Value] = {}
        for key in self.record.sweep:
            column = self._column(key)
            swept[key] = gamma if key == GAMMA else place[column] if column == key else f"{place[column]} ms"
        return scenario.point_at(file, settings, swept)

    def _column(self, key: str) -> str:
        """Return the column of a swept key: durations have their unit in the name."""
        return key if key in self.rows.columns else f"{key}_ms"

    def _resolved(self, trace: str) -> Path:
        return Path(os.path.normpath(self.directory / trace))


def describe(results: Results, directory: Path) -> Record:
    """Return the record of what was just simulated, to lie in `directory`."""
    plan = results.scenario
    settings, traces = {**plan.settings}, {}
    for name, table in scenario.trace_tables(settings):
        path = os.path.relpath(table["trace"], directory)
        settings[name] = {**table, "trace": path}
        traces[path] = sha256(Path(table["trace"]))
    return Record(
        scenario=plan.name,
        title=plan.title,
        driver=results.driver,
        pearl_sim=__version__,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        settings=settings,
        sweep=plan.sweep,
        traces=traces,
    )


def read(directory: Path) -> Run:
    """Return the run in `directory`; InputError names the file that is missing or wrong."""
    file = directory / "run.json"
    if not (directory / "results.parquet").exists():
        raise InputError(directory, "holds no results; make some with `pearl-sim simulate`")
    gone = "is missing: these results are of an older pearl_sim; simulate again"
    record = Record.read(file, read_json(file, SCHEMA_VERSION, gone))
    rows = read_table(directory / "results.parquet")
    missing = [name for name in ("policy", "gamma", *MEASURES) if name not in rows.columns]
    if missing:
        raise InputError(directory / "results.parquet", f"has no column {missing[0]}; simulate again")
    if rows.is_empty():
        raise InputError(directory / "results.parquet", "has no rows; simulate again")
    return Run(directory, record, rows)
