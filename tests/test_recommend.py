"""The recommendation: the right winner, intervals that hold what they promise, and words that follow the numbers."""

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from cases import constant, request
from small_trace import small_trace

from pearl_sim.acceptance import Iid
from pearl_sim.cli_advice import recommend
from pearl_sim.errors import InputError
from pearl_sim.judge import Request
from pearl_sim.metrics import ratio
from pearl_sim.policies import POLICIES
from pearl_sim.recommend import Candidate, Replayed, decide, replay, tail
from pearl_sim.recommend_table import as_data, notes, sentences
from pearl_sim.scenario import read_cost
from pearl_sim.theory import best_gamma, iid
from pearl_sim.trace import STEPS, save

ROOT = Path(__file__).parents[1]
BUNDLED = str(ROOT / "traces" / "bundled_cpu")
COMMAND = [sys.executable, "-c", "from pearl_sim.cli import main; main()"]


def pearl_sim(*arguments, cwd):
    return subprocess.run([*COMMAND, *arguments], cwd=cwd, capture_output=True, text=True, check=False)


def drawn(alpha, count=30, tokens=200):
    law = Iid(alpha=alpha)
    return [Request(10, tokens, law.runs(3, number, 2 * tokens)) for number in range(count)]


def advice(requests, cost, run_limit=None, max_gamma=None):
    censored = None if run_limit is None else [one.runs >= run_limit for one in requests]
    replayed = replay(requests, cost, run_limit, max_gamma, censored=censored)
    return decide(replayed, 1000), replayed


def world(seed, count, noise, ar, sd, pearl, gammas):
    """Return replayed requests whose true mean times are known: every candidate with luck of its own."""
    luck = np.random.default_rng(seed)
    candidates = [Candidate("ar", 0)] + [Candidate(p, g) for g in range(1, gammas + 1) for p in ("sd", "pearl")]
    truth = np.array([{"ar": ar, "sd": sd, "pearl": pearl}[candidate.policy] for candidate in candidates])
    spread = np.exp(noise * luck.standard_normal((len(candidates), count)) - noise**2 / 2)
    time_s = truth[:, None] * luck.gamma(4, 1 / 4, count) * spread
    return Replayed(candidates, np.ones(count), time_s, [None] * len(candidates), None), truth


@pytest.mark.parametrize("ratio", [3, 8, 20])
def test_the_gamma_found_is_the_one_that_theory_knows(ratio):
    answer, _ = advice(drawn(0.9, 60, 400), constant(1000, 1000 * ratio))
    for rated in answer.by_policy:
        if rated.candidate.gamma:
            known = best_gamma(POLICIES[rated.candidate.policy], iid(0.9), 1.0, float(ratio), 0.0, max_gamma=200)
            assert abs(rated.candidate.gamma - known) <= 0.25 * known


def test_the_best_is_the_fastest_of_all_and_its_rivals_are_the_fastest_of_theirs():
    answer, replayed = advice(drawn(0.8), constant(1000, 6000))
    speeds = {c: replayed.tokens.sum() / t.sum() for c, t in zip(replayed.candidates, replayed.time_s, strict=True)}
    best = max(speeds, key=speeds.get)
    assert answer.best.candidate == best
    kinds = {
        answer.runner_up: lambda c: c.policy != best.policy,
        answer.next_gamma: lambda c: c.policy == best.policy and c != best,
        answer.one_device: lambda c: c.policy in ("ar", "sd"),
    }
    for rival, of_kind in kinds.items():
        assert rival.rated.candidate == max(filter(of_kind, speeds), key=speeds.get)
        assert rival.margin.mean == pytest.approx(speeds[best] / speeds[rival.rated.candidate] - 1)
    assert {candidate.policy for candidate in speeds} == set(POLICIES)
    assert sum(rated.fastest_share for rated in answer.rated) == pytest.approx(1)


def test_the_interval_of_one_candidate_is_that_of_the_delta_method():
    """Two ways to the same interval: resampling, and the formula that `simulate` prints."""
    answer, replayed = advice(drawn(0.8, 60), constant(1000, 6000))
    for rated, time_s in zip(answer.rated, replayed.time_s, strict=True):
        known = ratio(replayed.tokens.tolist(), time_s.tolist())
        assert rated.tokens_per_s.mean == pytest.approx(known.mean)
        width = known.high - known.low
        assert rated.tokens_per_s.high - rated.tokens_per_s.low == pytest.approx(width, rel=0.15, abs=1e-9)


@pytest.mark.parametrize(("count", "noise", "gammas"), [(40, 0.1, 8), (20, 0.3, 8), (40, 0.1, 1)])
def test_the_expected_speedup_holds_the_truth_though_the_winner_was_chosen_by_luck(count, noise, gammas):
    """All candidates are equal, so which wins is luck alone; uncorrected, some 60 % of the intervals would hold."""
    held = 0
    for seed in range(150):
        answer, _ = decide_world(seed, count, noise, 2.0, 1.0, 1.0, gammas)
        held += answer.speedup.low <= 2.0 <= answer.speedup.high
    assert held >= 0.88 * 150


def test_what_the_choice_adds_is_taken_off_and_a_rival_may_choose_anew():
    replayed, _ = world(1, 20, 0.3, 2.0, 1.0, 1.0, 8)
    answer = decide(replayed, 1000)
    share = answer.optimism / answer.drafting.speedup.mean
    assert share > 0.05
    assert 1 - answer.tokens_per_s.mean / answer.drafting.tokens_per_s.mean == pytest.approx(share, rel=0.4)
    # Against its runner-up alone, the same resamples leave the recommendation more of its lead.
    kept = [
        i
        for i, candidate in enumerate(replayed.candidates)
        if candidate in (Candidate("ar", 0), answer.best.candidate, answer.runner_up.rated.candidate)
    ]
    alone = decide(
        Replayed([replayed.candidates[i] for i in kept], replayed.tokens, replayed.time_s[kept], [None] * 3, None), 1000
    )
    assert alone.runner_up.rated.candidate == answer.runner_up.rated.candidate
    assert alone.runner_up.margin.mean == answer.runner_up.margin.mean
    assert alone.runner_up.margin.low > answer.runner_up.margin.low
    assert alone.runner_up.margin.high > answer.runner_up.margin.high


@pytest.mark.parametrize("gammas", [1, 8])
def test_equal_policies_are_seldom_told_apart_and_different_ones_are(gammas):
    equal = [decide_world(seed, 40, 0.1, 2.0, 1.0, 1.0, gammas)[0].verdict for seed in range(150)]
    assert equal.count("too close to call") >= 0.88 * 150
    apart = [decide_world(seed, 40, 0.1, 2.0, 1.2, 1.0, 8)[0] for seed in range(20)]
    assert {(answer.verdict, answer.best.candidate.policy) for answer in apart} == {("speculate", "pearl")}


def decide_world(*how):
    replayed, truth = world(*how)
    return decide(replayed, 300), truth


def test_where_autoregressive_decoding_wins_it_says_do_not_speculate():
    answer, _ = advice(drawn(0.1), constant(1000, 1000), max_gamma=4)
    assert answer.verdict == "too close to call", "PEARL with gamma 1 ties"
    answer, _ = advice(drawn(0.1), constant(1000, 1000, 500), max_gamma=4)
    assert answer.verdict == "do not speculate"
    assert answer.best.candidate == Candidate("ar", 0)
    assert answer.next_gamma is None
    assert answer.one_device is None
    assert answer.speedup.high < 1
    assert sentences(answer).startswith("Do not speculate: autoregressive decoding writes")


def test_one_request_has_no_interval_and_that_is_said():
    answer, replayed = advice(drawn(0.9, 1), constant(1000, 9000), max_gamma=12)
    assert answer.verdict == "speculate"
    assert math.isnan(answer.runner_up.margin.low)
    assert answer.speedup.mean == answer.best.speedup.mean
    assert "95 %" not in sentences(answer)
    assert "one request: there is no interval" in " ".join(notes(answer, replayed))
    data = json.dumps(as_data(answer, replayed), allow_nan=False)
    assert json.loads(data)["expected"]["speedup_low"] is None


def test_few_requests_widen_the_interval_as_students_t_does():
    assert tail(10_000) == pytest.approx(0.025, abs=1e-4)
    assert 0.01 < tail(20) < tail(40) < 0.025
    assert tail(2) < 1e-20
    answer, replayed = advice(drawn(0.9, 3), constant(1000, 9000), max_gamma=4)
    assert "only 3 requests" in " ".join(notes(answer, replayed))


def test_the_best_at_the_edge_of_the_search_is_told():
    answer, replayed = advice(drawn(0.95), constant(1000, 30_000), max_gamma=5)
    assert "pearl-no-post did best at gamma 5, the largest searched" in notes(answer, replayed)[0]


def test_left_to_itself_the_search_goes_on_while_a_policy_gains():
    answer, replayed = advice(drawn(0.97, 20, 600), constant(1000, 40_000))
    assert replayed.max_gamma > 40
    assert replayed.limited is None
    assert all(rated.candidate.gamma <= replayed.max_gamma - 8 for rated in answer.by_policy)
    assert not [note for note in notes(answer, replayed) if "searched" in note]


def test_gamma_goes_no_further_than_the_record_and_the_speeds_beyond_it_are_called_too_low():
    requests = [request([min(5, 40 - i) for i in range(40)]) for _ in range(3)]
    answer, replayed = advice(requests, constant(1000, 9000), run_limit=5)
    assert replayed.max_gamma == 5
    said = " ".join(notes(answer, replayed))
    assert "searched to 5 only: the trace was recorded with at most 5 drafts in a row" in said
    assert "those speeds are too low" in said
    assert answer.verdict == "too close to call", "a rival that looks slower may be faster"
    with pytest.raises(InputError, match=r"--max-gamma 6: .* use 5 or less"):
        replay(requests, constant(1000, 9000), 5, 6)


def test_times_past_the_clock_are_told_in_one_line():
    with pytest.raises(InputError, match="use shorter durations"):
        replay(drawn(0.5, 400), read_constant("31536000 s"), None, 2)


def read_constant(duration):
    return constant(1, 1).model_copy(update={"target": 10**9 * int(duration.split()[0])})


def test_a_cost_is_read_from_a_scenario_or_a_file_of_its_own(tmp_path):
    own = tmp_path / "cost.toml"
    own.write_text('[cost]\nmodel = "constant"\ndraft = "1 ms"\ntarget = "9 ms"\n')
    assert read_cost(own) == constant(1_000_000, 9_000_000).model_copy(update={"sync": None})
    assert read_cost(ROOT / "scenarios" / "bundled_pair.toml").trace == ROOT / "traces" / "bundled_cpu"
    with pytest.raises(InputError, match=r"sweeps cost\.target"):
        read_cost(ROOT / "scenarios" / "ratio_sweep.toml")
    own.write_text("draft = 1")
    with pytest.raises(InputError, match=r"cost\.toml: cost: is missing"):
        read_cost(own)


def test_the_command_answers_in_a_sentence_first_and_in_json(tmp_path, capsys):
    cost = tmp_path / "cost.toml"
    cost.write_text('[cost]\nmodel = "constant"\ndraft = "1 ms"\ntarget = "8 ms"\n')
    recommend(Path(BUNDLED), cost)
    told = capsys.readouterr().out
    assert told.startswith("Use pearl with gamma 8")
    assert "occupies two devices" in told
    done = pearl_sim("recommend", "--trace", BUNDLED, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert list(answer) == [
        "trace", "cost", "verdict", "sentence", "notes", "requests", "tokens", "max_gamma", "best", "expected",
        "runner_up", "next_gamma", "one_device", "candidates",
    ]  # fmt: skip
    assert list(answer["runner_up"]) == [
        "policy", "gamma", "devices", "tokens_per_s", "tokens_per_s_low", "tokens_per_s_high", "speedup", "speedup_low",
        "speedup_high", "fastest_share", "unknown_rounds", "margin", "margin_low", "margin_high",
    ]  # fmt: skip
    assert answer["verdict"] == "speculate"
    assert answer["best"]["policy"] == "pearl"
    assert answer["requests"] == 40
    assert {candidate["gamma"] for candidate in answer["candidates"]} == set(range(9))
    assert list(tmp_path.iterdir()) == [cost], "it writes nothing"


def test_what_cannot_be_answered_is_refused_in_one_line(tmp_path):
    bare = tmp_path / "bare"
    save(small_trace(bare, steps=pl.DataFrame(schema=STEPS)))
    bundled = Path(BUNDLED)
    for trace, cost, max_gamma, complaint in (
        (Path("gone"), None, None, "gone: no such trace"),
        (bare, None, None, "has no recorded steps to tell what a forward takes; give --cost FILE"),
        (bundled, None, 0, "--max-gamma 0: must be 1 to 1024"),
        (bundled, None, 9, "gamma 9 needs 10"),
        (bundled, Path("gone.toml"), None, "gone.toml: no such scenario file"),
    ):
        with pytest.raises(InputError, match=complaint):
            recommend(trace, cost, max_gamma)
