"""A run on disk can be simulated again as it was, and says so where it cannot."""

import json
import shutil
from pathlib import Path

import pytest
from small_trace import small_trace

from pearl_sim import output, run, scenario, sweep, trace
from pearl_sim.errors import InputError
from pearl_sim.point import requests_of
from pearl_sim.run import GAMMA

ROOT = Path(__file__).parents[1]
SHIPPED = sorted((ROOT / "scenarios").glob("*.toml"))
SMALL = {"workload.requests": "2", "workload.tokens": "20"}


def written(file, out, **overrides):
    return run.read(output.write(sweep.run(scenario.read(file, overrides)), out))


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.stem)
def test_every_point_of_a_run_is_the_scenarios_own(file, tmp_path, monkeypatch):
    monkeypatch.setattr(output.figure, "save", lambda results, directory: None)
    few = SMALL | ({"sweep.policy.gamma": "[2, 4]"} if file.stem == "bundled_pair" else {})
    plan = scenario.read(file, few)
    read = written(file, tmp_path, **few)
    assert read.name == plan.name
    assert read.record.title == plan.title
    places = {repr(place) for place in read.places()}
    for row, (swept, point) in zip(_first_of_each(read, plan), plan.points, strict=True):
        place = {column: row[column] for column in read.place_columns}
        assert repr(place) in places
        again = read.point(place, swept.get(GAMMA, point.policy.gamma))
        assert again == point


def _first_of_each(read, plan):
    """Return the first row of every point: a point has a row for each of its policies."""
    rows = read.rows.to_dicts()
    each = len(rows) // len(plan.points)
    return rows[::each]


def test_places_are_spread_evenly_and_rows_found_by_place(tmp_path, monkeypatch):
    monkeypatch.setattr(output.figure, "save", lambda results, directory: None)
    read = written(ROOT / "scenarios" / "gamma_sweep.toml", tmp_path, **SMALL, **{GAMMA: "3"})
    assert [place["acceptance.alpha"] for place in read.places()] == [0.6, 0.8, 0.9]
    assert read.places(1) == [{"acceptance.alpha": 0.8}]
    assert read.at({"acceptance.alpha": 0.8})["policy"].to_list() == ["sd", "pearl"]


def test_a_run_on_a_trace_knows_it_wherever_it_is_read_from(tmp_path, monkeypatch):
    monkeypatch.setattr(output.figure, "save", lambda results, directory: None)
    trace.save(small_trace(tmp_path / "traces" / "small"))
    file = tmp_path / "replayed.toml"
    file.write_text(
        '[acceptance]\nlaw = "recorded"\ntrace = "traces/small"\n'
        '[cost]\nmodel = "constant"\ndraft = "1 ms"\ntarget = "4 ms"\n'
        '[policy]\nnames = ["sd", "pearl"]\ngamma = 2\n'
    )
    read = written(file, tmp_path / "results")
    assert read.point({}, 2) == scenario.read(file).points[0][1]
    # Moved together, run and trace still find each other.
    shutil.move(tmp_path / "results", tmp_path / "elsewhere" / "results")
    shutil.move(tmp_path / "traces", tmp_path / "elsewhere" / "traces")
    moved = run.read(tmp_path / "elsewhere" / "results" / "replayed")
    assert moved.trace == tmp_path / "elsewhere" / "traces" / "small"
    assert len(requests_of(moved.point({}, 2).source)) == 2
    requests = moved.trace / "requests.parquet"
    requests.write_bytes(requests.read_bytes() + b"0")
    with pytest.raises(InputError, match="has changed since"):
        moved.point({}, 2)
    shutil.rmtree(moved.trace)
    with pytest.raises(InputError, match="no longer there"):
        moved.point({}, 2)


def test_what_is_no_run_is_refused_in_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(output.figure, "save", lambda results, directory: None)
    directory = written(ROOT / "scenarios" / "reading_note.toml", tmp_path, **SMALL).directory
    record = json.loads((directory / "run.json").read_text())

    def refused(complaint):
        with pytest.raises(InputError, match=complaint) as error:
            run.read(directory)
        assert "\n" not in str(error.value)

    for changed, complaint in (
        ({"schema_version": 2}, "schema_version = 2"),
        ({"driver": 7}, "driver = 7"),
        ({"surprise": 7}, "unknown key 'surprise'"),
    ):
        (directory / "run.json").write_text(json.dumps(record | changed))
        refused(complaint)
    (directory / "run.json").write_text("{")
    refused("cannot be read as JSON")
    (directory / "run.json").unlink()
    refused("simulate again")
    (directory / "run.json").write_text(json.dumps(record))
    (directory / "results.parquet").write_bytes(b"no parquet")
    refused("is damaged")
    (directory / "results.parquet").unlink()
    refused("holds no results")
