"""What the report computes: held to theory, to the timelines it is taken from, and to itself."""

import dataclasses
import itertools
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from cases import constant, request, runs_from_bits, simulated
from hypothesis import given
from hypothesis import strategies as st
from small_trace import small_trace

from pearl_sim import output, run, scenario, sweep, theory
from pearl_sim.acceptance import Iid
from pearl_sim.cost import EmpiricalCost, RooflineCost
from pearl_sim.metrics import totals
from pearl_sim.policies import POLICIES
from pearl_sim.report import (
    acceptance,
    against_runs,
    devices,
    exact,
    gantt,
    headline,
    page,
    sensitivity,
    study,
    time_use,
    win_map,
)
from pearl_sim.survival import chains_of, checks_of, estimate
from pearl_sim.trace import save

SCENARIOS = Path(__file__).parents[1] / "scenarios"


def made(name, out, **overrides):
    """Return the run of a shipped scenario, without its figure."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(output.figure, "save", lambda results, directory: None)
        return run.read(output.write(sweep.run(scenario.read(SCENARIOS / f"{name}.toml", overrides)), out))


@pytest.fixture(scope="module")
def gamma_run(tmp_path_factory):
    settings = {"workload.requests": "8", "workload.tokens": "200"}
    return made("gamma_sweep", tmp_path_factory.mktemp("runs"), **settings, **{"sweep.policy.gamma": "[2, 8]"})


@pytest.fixture(scope="module")
def trace_study(tmp_path_factory):
    settings = {"workload.requests": "6", "sweep.policy.gamma": "[2, 4, 8]"}
    return study.studied([made("bundled_pair", tmp_path_factory.mktemp("runs"), **settings)])[0]


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.9])
@pytest.mark.parametrize("name", POLICIES)
def test_many_settings_at_once_cost_what_each_does(name, alpha):
    t_draft, t_target, sync = np.array([1.0, 2.0, 1.0]), np.array([8.0, 3.0, 1.0]), np.array([0.0, 0.5, 2.0])
    found = exact.speeds(alpha, name, [1, 2, 7], t_draft, t_target, sync)
    for row, gamma in zip(found, (1, 2, 7), strict=True):
        for i, speed in enumerate(row):
            duration = theory.round_time(t_draft[i], t_target[i], sync[i])
            assert speed == pytest.approx(theory.speed(POLICIES[name](gamma), theory.iid(alpha), duration), rel=1e-12)


def test_the_map_names_the_policy_that_theory_finds_fastest():
    cells = win_map.cells()
    assert len(cells) == len(win_map.ALPHAS) * len(win_map.RATIOS)
    for row in cells.sample(6, seed=1).iter_rows(named=True):
        duration, survival = theory.round_time(1.0, row["ratio"]), theory.iid(row["alpha"])
        best = {
            name: max(theory.speed(make(gamma), survival, duration) for gamma in win_map.GAMMAS)
            for name, make in POLICIES.items()
        }
        top = max(best.values())
        assert best[row["policy"]] == pytest.approx(top, rel=1e-9)
        assert row["speedup"] == pytest.approx(top * row["ratio"], rel=1e-9)
        at = theory.speed(POLICIES[row["policy"]](row["gamma"]), survival, duration)
        assert at == pytest.approx(top, rel=1e-9)
        for name in win_map.ALWAYS:
            assert row[f"regret_{name}"] == pytest.approx(100 * (1 - best[name] / top), abs=1e-6)
    assert cells["regret_pearl"].min() >= 0
    # Where a policy is named the fastest, choosing it costs nothing.
    assert cells.filter(pl.col("policy") == "pearl")["regret_pearl"].max() < 1e-6


def test_break_even_lines_run_where_two_policies_are_equally_fast():
    line = win_map.break_even("sd", "ar")
    # SD at gamma 1 gains exactly where alpha t_target > t_draft, and no larger gamma begins to gain earlier.
    assert len(line) > 20
    assert np.allclose(line["alpha"] * line["ratio"], 1, rtol=0.08)


def test_time_use_adds_up_to_the_time_of_the_rounds():
    own = [request(runs_from_bits([1, 1, 0, 1, 1, 1, 0, 1, 1, 1, 1, 1] + [0] * 8), 10)]
    for name in POLICIES:
        timelines = simulated(name, 3, own, constant(3, 10, 2))
        used, sums = time_use.time_use(timelines), totals(timelines[0], own[0])
        assert sum(used) == sums.time_ns
        assert used.draft_exposed + used.draft_hidden == sums.draft_ns - timelines[0][0].draft_ns
        assert used.score_exposed + used.draft_hidden == sums.score_ns - timelines[0][0].score_ns
        kept, wasted = time_use.drafts(timelines, own)
        assert (kept, kept + wasted) == (sums.kept, sums.drafted)
    assert time_use.time_use(simulated("sd", 3, own, constant(3, 10, 2))).draft_hidden == 0


def test_a_study_repeats_the_runs_own_numbers(gamma_run):
    (found,) = study.studied([gamma_run])
    assert found.place == {"acceptance.alpha": 0.8}
    for name in ("sd", "pearl"):
        rows = gamma_run.at(found.place).filter(policy=name).sort("speedup")
        assert found.played[name].policy.gamma == rows["gamma"][-1]
        gain = found.speedup(name, "ar")
        assert gain.mean == pytest.approx(rows["speedup"][-1], rel=1e-12)
        assert gain.low == pytest.approx(rows["speedup_low"][-1], rel=1e-12)
    at = study.closed_form(found)
    assert at == study.ClosedForm(0.8, 2e6, 16e6, 0.0, exact=True)


def test_a_recorded_run_is_studied_before_a_drawn_one(gamma_run, trace_study):
    assert [one.run.name for one in study.studied([gamma_run, trace_study.run])] == ["bundled_pair"]


def test_the_headline_says_how_sure_it_is(trace_study, gamma_run):
    words = headline.answer(trace_study)
    best = trace_study.speedup("pearl", "ar")
    assert words.startswith("pearl at gamma 8: ")
    assert f"{best.mean:.2f} times [{best.low:.2f} to {best.high:.2f}]" in words
    one = trace_study._replace(
        played={name: own._replace(totals=own.totals[:1]) for name, own in trace_study.played.items()}
    )
    assert "gives no interval" in headline.answer(one)
    only_ar = trace_study._replace(played={"ar": trace_study.played["ar"]})
    assert headline.answer(only_ar).startswith("Do not speculate")
    # SD as fast as PEARL but for luck: faster on every other request, and slower on the rest.
    luck = [
        sums._replace(time_ns=sums.time_ns * (112 if i % 2 else 90) // 100)
        for i, sums in enumerate(trace_study.played["pearl"].totals)
    ]
    close = trace_study.played | {"sd": trace_study.played["sd"]._replace(totals=luck)}
    assert "too close to call" in headline.answer(trace_study._replace(played=close))
    unsure = trace_study.run.rows.with_columns(unknown_rounds=pl.lit(0.125))
    assert "Up to 12.5 % of target forwards" in headline.rests_on(dataclasses.replace(trace_study.run, rows=unsure))
    assert "Up to" not in headline.rests_on(trace_study.run)
    slow = gamma_run.rows.with_columns(pl.col("speedup") * 0.01)
    line = headline.line(dataclasses.replace(gamma_run, rows=slow))
    assert line[1:3] == ("3", "ar at 3")


def test_runs_of_chains_are_compared_with_the_geometric_law_of_equal_mean():
    law = Iid(alpha=0.7)
    requests = [request(law.runs(3, number, 4100), 4000) for number in range(10)]
    table = acceptance.run_lengths(requests)
    assert table["observed"].sum() == pytest.approx(1)
    assert table["geometric"].sum() == pytest.approx(1)
    # A chain of k has probability 0.3 * 0.7^k; 12,000 chains tell shares to half a percent.
    assert np.allclose(table["observed"], table["geometric"], atol=0.015)
    assert acceptance.run_lengths([request([3], 1)]).is_empty()


def test_chains_that_outlive_the_record_are_no_refusals():
    """Cut at 4, the chains of alpha 0.9 look like 0.75 if each is taken to end with a refusal."""
    law = Iid(alpha=0.9)
    requests = [request(np.minimum(law.runs(3, number, 4100), 4), 4000) for number in range(5)]
    censored = [one.runs >= 4 for one in requests]
    chains = [chain for own in acceptance.chains(requests, censored) for chain in own]
    accepted, refused = sum(length for length, _ in chains), sum(ended for _, ended in chains)
    assert accepted / (accepted + refused) == pytest.approx(0.9, abs=0.01)
    assert all(ended == (length < 4) for length, ended in chains)


def test_acceptance_by_category_covers_every_request(trace_study):
    kinds = acceptance.by_category(trace_study)
    assert kinds["requests"].sum() == len(trace_study.requests)
    chains = acceptance.chains(trace_study.requests)
    accepted, ends = (sum(chain[part] for own in chains for chain in own) for part in (0, 1))
    low, high = kinds["acceptance"].min(), kinds["acceptance"].max()
    assert low <= accepted / (accepted + ends) <= high


@pytest.mark.parametrize("which", ["trace_study", "gamma_run"])
def test_acceptance_by_depth_is_the_runs_own_and_lies_in_its_interval(which, request):
    """Whether recorded or drawn, and whatever gamma the requests were drawn for."""
    found = request.getfixturevalue(which)
    found = found if which == "trace_study" else study.studied([found])[0]
    table = acceptance.by_depth(found)
    assert set(table["policy"]) == {"sd", "pearl"}
    assert (table["checked"] >= acceptance.LEAST_CHECKED).all()
    assert (table["low"] <= table["acceptance"]).all()
    assert (table["acceptance"] <= table["high"]).all()
    own = pl.read_parquet(found.run.directory / "acceptance_by_depth.parquet")
    own = own.filter(*(pl.col(column) == value for column, value in found.place.items()))
    for (name,), rows in table.group_by("policy"):
        gamma = found.played[name].policy.gamma
        told = own.filter(
            pl.col("policy") == name, pl.col("gamma") == gamma, pl.col("checked") >= acceptance.LEAST_CHECKED
        )
        assert rows.select("depth", "checked", "acceptance").equals(told.select("depth", "checked", "acceptance"))


def test_acceptance_by_depth_is_as_sure_as_the_acceptance_command(trace_study):
    """Intervals are over requests in both: a request's chains are alike."""
    chains = [chains_of(own.runs[: own.limit], np.zeros(own.limit, bool)) for own in trace_study.requests]
    long = estimate(checks_of(chains))
    ours = estimate(acceptance.checks(POLICIES["pearl"](60), trace_study.requests, None))
    assert [depth.checked for depth in ours[:4]] == pytest.approx([depth.checked for depth in long[:4]], abs=30)
    assert ours[0].conditional.high - ours[0].conditional.low == pytest.approx(
        long[0].conditional.high - long[0].conditional.low, rel=0.2
    )


@given(st.lists(st.booleans(), min_size=1, max_size=60), st.floats(0.05, 0.95), st.integers(0, 5))
def test_moved_acceptance_spoils_or_heals_and_never_both(bits, alpha, number):
    runs = np.array(runs_from_bits(bits), np.int64)
    assert (sensitivity.moved(runs, number, alpha, alpha) == runs).all()
    before = sensitivity.moved(runs, number, alpha, 0.0)
    assert (before == 0).all()
    for to in np.linspace(0, 0.99, 12):
        after = sensitivity.moved(runs, number, alpha, float(to))
        assert (after >= before).all(), "more acceptance never shortens a run"
        # It is still the record of an ordinary draft: each run goes on from the next position's.
        assert all(run == 0 or i + 1 == len(after) or run == 1 + after[i + 1] for i, run in enumerate(after.tolist()))
        before = after


def test_moved_acceptance_is_as_often_accepted_as_asked():
    runs = Iid(alpha=0.6).runs(1, 0, 40_000)
    for to in (0.2, 0.5, 0.8, 0.95):
        # Four standard errors of a share of 40,000.
        assert (sensitivity.moved(runs, 0, 0.6, to) > 0).mean() == pytest.approx(to, abs=0.01)


def test_bands_cover_every_input_and_agree_with_the_replay_itself(trace_study):
    at = study.closed_form(trace_study)
    found = sensitivity.bands(trace_study, at)
    for name in ("alpha", "t_draft", "t_target", "sync", "gamma"):
        own = [band for band in found if band.input == name]
        assert all(one.high == other.low for one, other in itertools.pairwise(own))
        assert all(one.policy != other.policy for one, other in itertools.pairwise(own))
    gamma = trace_study.played[trace_study.best].policy.gamma
    margins = sensitivity.margins(at, gamma, found)
    assert {name for name, *_ in margins} == {"alpha", "t_draft", "t_target", "sync", "gamma"}
    assert {winner for _, _, _, winner, _ in margins} == {trace_study.best}
    # With nothing accepted, drafting only costs.
    assert next(band for band in found if band.input == "alpha").policy == "ar"


def test_a_policy_with_both_models_running_pays_for_both():
    plain = constant(1, 8)
    assert [devices.devices(make(4), plain) for make in POLICIES.values()] == [1, 1, 2, 2, 2]
    assert devices.devices(POLICIES["pearl"](0), plain) == 1
    assert devices.devices(POLICIES["pearl"](4), constant(1, 8, contention=1.5)) == 1
    model = {"parameters": 7e9, "bandwidth_bytes_per_s": 3e12, "flop_per_s": 9e14}
    sharded = RooflineCost(draft=model, target=model | {"tensor_parallel": 4})
    assert [devices.devices(make(4), sharded) for make in POLICIES.values()] == [4, 4, 5, 5, 5]


def test_device_time_and_speedup_per_device_say_the_same(trace_study):
    table = devices.price(trace_study)
    baseline = table.filter(policy="ar")["device_ms_per_token"][0]
    assert np.allclose(table["speedup_per_device"], baseline / table["device_ms_per_token"])


def test_the_gantt_spans_the_same_time_for_every_policy(trace_study):
    table = gantt.shown(trace_study)
    assert set(table["policy"]) == set(trace_study.played)
    ends = table.group_by("policy").agg(pl.col("stop").max(), pl.col("start").min())
    assert (ends["start"] == 0).all()
    span = table["stop"].max()
    assert (ends["stop"] > 0.7 * span).all()


EDGES = {
    "autoregressive only": {"policy.names": '["ar"]'},
    "gamma 1 and nothing accepted": {"sweep.policy.gamma": "[1]", "sweep.acceptance.alpha": "[0.0]"},
    "everything accepted": {"sweep.policy.gamma": "[1, 3]", "sweep.acceptance.alpha": "[1.0]"},
    "one request of two tokens": {"workload.requests": "1", "workload.tokens": "2", "sweep.policy.gamma": "[2]"},
    "hand-over and one device": {"cost.sync": "1 ms", "cost.contention": "1.5", "sweep.policy.gamma": "[2, 3]"},
    "costs that are swept": {"sweep.cost.sync": '["0 ms", "1 ms"]', "sweep.cost.contention": "[1.0, 1.5]"},
    "a gamma that is not swept": {"policy.gamma": "3"},
}


@pytest.mark.parametrize("edge", EDGES)
def test_every_section_can_be_made_of_odd_runs(edge, tmp_path):
    """The figures are turned into specifications too: altair refuses what it cannot draw."""
    file = tmp_path / "odd.toml"
    text = (SCENARIOS / "gamma_sweep.toml").read_text()
    if "only" in edge:
        text = "\n".join(line for line in text.splitlines() if not line.startswith("policy.gamma"))
    file.write_text(text)
    settings = {"workload.requests": "2", "workload.tokens": "30", **EDGES[edge]}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(output.figure, "save", lambda results, directory: None)
        read = run.read(output.write(sweep.run(scenario.read(file, settings)), tmp_path / "results"))
    parts = page.sections([read])
    assert [part.id for part in parts][:2] == ["answer", "win-map"]
    assert page.specs(parts)


def test_the_present_winner_stands_until_it_is_clearly_beaten():
    times = {("ar", 0): np.array([1.0, 1.0, 1.0]), ("sd", 2): np.array([1.0005, 1.1, 0.9]), ("sd", 4): np.ones(3) * 2}
    assert sensitivity.fastest(times, "sd") == ["sd", "ar", "sd"]
    assert sensitivity.fastest(times, "ar") == ["ar", "ar", "sd"]
    bands = sensitivity.merged("alpha", np.array([0.0, 0.5, 1.0]), ["ar", "sd", "sd"])
    assert bands == [sensitivity.Band("alpha", 0.0, 0.25, "ar"), sensitivity.Band("alpha", 0.25, 1.0, "sd")]


def test_runs_wider_than_the_cost_knows_are_left_out_of_the_comparison(tmp_path):
    """The small trace has target steps of up to 4 positions: speculative decoding needs gamma + 1."""
    save(small_trace(tmp_path / "steps"))
    cost = EmpiricalCost(trace=tmp_path / "steps")
    assert [against_runs.is_priced(cost, source) for source in ("ar", "sd-3", "sd-4", "pearl-4", "pearl-5", "x")] == [
        True,
        True,
        False,
        True,
        False,
        False,
    ]
