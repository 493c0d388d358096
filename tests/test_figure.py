"""The figure shows the numbers of the results, and says what it leaves out."""

from pathlib import Path

import polars as pl
import pytest

from pearl_sim.figure import draw
from pearl_sim.scenario import read
from pearl_sim.sweep import run

SCENARIOS = Path(__file__).parents[1] / "scenarios"
SMALL = {"workload.requests": "3", "workload.tokens": "30"}


def drawn(name, **overrides):
    """Return (results, what is plotted, subtitle)."""
    results = run(read(SCENARIOS / f"{name}.toml", SMALL | overrides))
    chart = draw(results.rows, results.scenario.title).to_dict()
    (shown,) = (rows for rows in chart["datasets"].values() if "simulated" in rows[0])
    return results.rows.to_dicts(), shown, chart["title"]["subtitle"]


def test_points_lines_and_intervals_are_those_of_the_results():
    rows, shown, _ = drawn("gamma_sweep")
    assert len(rows) == len(shown)
    for row, point in zip(rows, shown, strict=True):
        assert (point["policy"], point["gamma"]) == (row["policy"], row["gamma"])
        assert (point["simulated"], point["low"], point["high"]) == (
            row["speedup"],
            row["speedup_low"],
            row["speedup_high"],
        )
        assert point["theory"] / point["simulated"] == pytest.approx(row["theory_tokens_per_s"] / row["tokens_per_s"])


def test_beside_the_note_everything_is_in_tokens_per_t_draft():
    rows, shown, subtitle = drawn("reading_note")
    for row, point in zip(rows, shown, strict=True):
        assert point["simulated"] == row["tokens_per_t_draft"]
        assert point["low"] == pytest.approx(row["tokens_per_s_low"] / 1000)
        assert point["theory"] == pytest.approx(row["theory_tokens_per_s"] / 1000)
        assert point["estimate"] == row["note_tokens_per_t_draft"]
    assert "estimate" in subtitle


def test_panels_that_are_left_out_are_told():
    _, _, subtitle = drawn("gamma_sweep", **{"sweep.acceptance.alpha": "{ start = 0.1, stop = 0.9, num = 11 }"})
    assert "9 of 11 panels shown" in subtitle


def test_a_long_axis_is_thinned_evenly_with_both_its_ends_and_that_is_told():
    axes = {"sweep.cost.target": "{ start = '2 ms', stop = '40 ms', num = 400 }", "acceptance.alpha": "0.8"}
    rows, shown, subtitle = drawn("ratio_sweep", **axes)
    assert "50 of 400 values shown" in subtitle
    ends = {row["cost.target_ms"] for row in (*rows[:1], *rows[-1:])}
    assert len(shown) == 2 * 50
    assert {min(point["cost.target_ms"] for point in shown), max(point["cost.target_ms"] for point in shown)} == ends


def test_a_scenario_without_a_sweep_is_drawn_as_bars():
    _, shown, _ = drawn("reading_note", **{"acceptance.alpha": "0.9"})
    assert len(shown) == 2


def test_a_long_axis_is_thinned_to_what_can_be_seen_and_keeps_each_policys_best():
    results = run(read(SCENARIOS / "reading_note.toml", SMALL | {"acceptance.alpha": "0.9"}))
    alphas = [i / 5000 for i in range(5000)]
    rows = results.rows.join(pl.DataFrame({"acceptance.alpha": alphas}), how="cross")
    rows = rows.with_columns(tokens_per_t_draft=1 - (pl.col("acceptance.alpha") - 0.3334).abs())
    chart = draw(rows, "long").to_dict()
    (shown,) = (rows for rows in chart["datasets"].values() if "simulated" in rows[0])
    values = {row["acceptance.alpha"] for row in shown}
    assert {0.0, 0.3334, alphas[-1]} <= values
    assert f"{len(values)} of 5000 values shown" in chart["title"]["subtitle"]
    assert len(values) <= 202


def test_the_ring_is_at_each_policys_best_gamma():
    rows, shown, subtitle = drawn("gamma_sweep", **{"acceptance.alpha": "0.8"})
    assert "ring" in subtitle
    for name in ("sd", "pearl"):
        (best,) = (point["gamma"] for point in shown if point["best"] and point["policy"] == name)
        assert best == max((row for row in rows if row["policy"] == name), key=lambda row: row["speedup"])["gamma"]


def test_panels_stand_in_the_order_of_their_numbers():
    """As text, 13 comes before 2."""
    axes = {"sweep.cost.sync": '["2 ms", "13 ms", "100 us"]', "sweep.acceptance.alpha": "[0.5, 0.9]"}
    results = run(read(SCENARIOS / "gamma_sweep.toml", SMALL | axes | {"sweep.policy.gamma": "[1, 2, 3, 4]"}))
    order = draw(results.rows, "").to_dict()["facet"]["sort"]
    syncs = [float(panel.split(" = ")[1].split(",")[0]) for panel in order]
    assert len(order) == 2 * 3
    assert syncs == sorted(syncs) == [0.1, 0.1, 2.0, 2.0, 13.0, 13.0]
