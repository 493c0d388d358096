"""Every shipped scenario runs, gives the same numbers as ever, and agrees with theory.

After a change that is meant to alter results: python tests/test_shipped_scenarios.py writes the golden files anew.
"""

import json
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from pearl_sim.scenario import read
from pearl_sim.sweep import run

ROOT = Path(__file__).parents[1]
GOLDEN = ROOT / "tests" / "golden"
SHIPPED = sorted((ROOT / "scenarios").glob("*.toml"))
SMALL = {"workload.requests": "5", "workload.tokens": "80"}


def small(file):
    """Return the scenario's results on a workload small enough to run at every commit."""
    return run(read(file, SMALL)).rows


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.stem)
def test_results_are_the_golden_ones(file):
    rows = small(file)
    golden = pl.DataFrame(json.loads((GOLDEN / f"{file.stem}.json").read_text()), rows.schema)
    assert_frame_equal(rows, golden, rel_tol=1e-9, abs_tol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.stem)
def test_full_run_agrees_with_theory(file):
    """The rows of a scenario share their luck, so they stray together: 4.5 standard errors, not 3.3."""
    deviations = run(read(file)).rows["theory_deviation"].drop_nulls()
    assert deviations.abs().max() is None or deviations.abs().max() < 4.5


def test_the_reading_note_example_is_as_the_design_states_it():
    """At alpha 0.9, gamma 4, t_target = 10 t_draft: PEARL 0.2765, SD 0.2925, the note's promise 0.952."""
    rows = run(read(ROOT / "scenarios" / "reading_note.toml", {"acceptance.alpha": "0.9"})).rows
    by_policy = {row["policy"]: row for row in rows.iter_rows(named=True)}
    for policy, exact, note in (("pearl", 0.2765, 0.952), ("sd", 0.2925, 0.257)):
        row = by_policy[policy]
        assert row["steady_tokens_per_t_draft"] == pytest.approx(exact, abs=5e-5)
        assert row["tokens_per_t_draft"] == pytest.approx(exact, rel=0.01)
        assert row["note_tokens_per_t_draft"] == pytest.approx(note, abs=5e-4)


if __name__ == "__main__":
    for shipped in SHIPPED:
        lines = [json.dumps(row, allow_nan=False) for row in small(shipped).to_dicts()]
        (GOLDEN / f"{shipped.stem}.json").write_text("[\n" + ",\n".join(lines) + "\n]\n")
