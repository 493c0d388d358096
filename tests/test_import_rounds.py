"""Records of rounds (Spec-Bench, CSV) become censored traces that replay round for round, or one line of complaint."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pearl_sim.cost import ConstantCost
from pearl_sim.drivers import kernel, sim
from pearl_sim.errors import InputError
from pearl_sim.importers import csv, spec_bench
from pearl_sim.importers.recording import Rounds
from pearl_sim.judge import Request
from pearl_sim.metrics import unknown_rounds
from pearl_sim.point import censored_of
from pearl_sim.policies import POLICIES, speculative
from pearl_sim.scenario import read as read_scenario
from pearl_sim.trace import load, save

COST = ConstantCost(draft="1 ms", target="5 ms")
texts = st.lists(st.booleans(), min_size=2, max_size=80)


def recorded(bits, gamma):
    """Return the rounds that speculative decoding at gamma makes of a text, whose drafts are right where bits say."""
    rounds, at = [], 1
    while at < len(bits):
        right = 0
        while right < gamma and at + right < len(bits) and bits[at + right]:
            right += 1
        rounds.append(right)
        at += right + 1
    return rounds


def runs_in(bits):
    """Return the true run at every position."""
    runs, after = [], 0
    for bit in reversed(bits):
        after = after + 1 if bit else 0
        runs.append(after)
    return runs[::-1]


@given(texts, st.integers(1, 6))
def test_plain_speculative_decoding_replays_the_recorded_rounds(bits, gamma):
    rounds = recorded(bits, gamma)
    runs, _ = Rounds([gamma] * len(rounds), rounds).runs()
    request = Request(0, len(runs), runs)
    policy = speculative(gamma)
    (timeline,) = sim.simulate(policy, [request], COST.timing(policy), 0)
    assert [step.accepted for step in timeline if step.round.score == gamma + 1] == rounds


@given(texts, st.integers(1, 6))
def test_runs_that_are_not_censored_are_the_true_ones_and_the_others_are_at_most_these(bits, gamma):
    rounds = recorded(bits, gamma)
    runs, censored = Rounds([gamma] * len(rounds), rounds).runs()
    true = runs_in(bits)
    for position in range(1, min(len(runs), len(true))):
        reaches_the_end = position + true[position] >= len(true)
        if censored[position]:
            assert runs[position] <= true[position]
        elif not reaches_the_end:
            assert runs[position] == true[position]


def flagged(timeline, censored):
    """Return how many rounds are flagged."""
    return round(unknown_rounds([timeline], [censored]) * sum(step.round.score > 0 for step in timeline))


@given(texts, st.integers(1, 6), st.integers(1, 6), st.sampled_from(sorted(POLICIES)))
def test_every_round_that_the_record_gets_wrong_under_any_policy_is_flagged(bits, gamma, other, name):
    """Replay on the censored record and on the truth: the first round in which they differ is flagged."""
    rounds = recorded(bits, gamma)
    runs, censored = Rounds([gamma] * len(rounds), rounds).runs()
    true = np.array([*runs_in(bits), *[0] * 99][: len(runs)], np.int64)
    policy = POLICIES[name](other)
    timelines = [sim.simulate(policy, [Request(0, len(runs), of)], COST.timing(policy), 0)[0] for of in (runs, true)]
    differs = next((i for i, (a, b) in enumerate(zip(*timelines, strict=False)) if a != b), None)
    end = len(bits)
    if differs is not None and timelines[0][differs].frontier.verified + other < end:
        assert flagged(timelines[0][: differs + 1], censored) == flagged(timelines[0][:differs], censored) + 1


@given(texts, st.integers(1, 4), st.integers(1, 6), st.sampled_from(sorted(POLICIES)))
def test_the_kernel_flags_the_same_rounds(bits, gamma, other, name):
    rounds = recorded(bits, gamma)
    runs, censored = Rounds([gamma] * len(rounds), rounds).runs()
    policy, request = POLICIES[name](other), Request(0, len(runs), runs)
    told = [driver.tally(policy, [request], COST.timing(policy), 0, [censored]) for driver in (sim, kernel)]
    assert told[0] == told[1]


def test_a_chain_cut_short_is_flagged_at_a_smaller_gamma_too(tmp_path):
    """All four drafts right at gamma 4, replayed at 2: the chain from 4 is known for one token only."""
    file = tmp_path / "rounds.csv"
    file.write_text("accepted\n4\n4\n4\n0\n")
    save(csv.read(file, tmp_path / "trace", 4))
    trace = load(tmp_path / "trace")
    assert trace.provenance.run_limit == 4
    policy = speculative(2)
    tally = kernel.tally(policy, trace.workload(None, None), COST.timing(policy), 0, trace.censored(None))
    assert tally.unknown_rounds > 0.2


def answer(lengths, new_tokens, **more):
    choice = {"index": 0, "turns": ["x"] * len(new_tokens), "new_tokens": new_tokens, "accept_lengths": lengths}
    return {"question_id": more.pop("question_id", 1), "category": "math", "choices": [choice]} | more


def bench(tmp_path, *records, **options):
    file = tmp_path / "answers.jsonl"
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    return spec_bench.read(file, tmp_path / "trace", **options)


def notes(trace):
    return "\n".join(trace.provenance.notes)


def test_whether_lengths_count_the_targets_own_token_is_told_by_their_sums(tmp_path):
    emitted = bench(tmp_path, answer([3, 1, 5, 2] * 5, [55]), gamma=4)
    accepted = bench(tmp_path, answer([2, 0, 4, 1] * 5, [55]), gamma=4)
    assert emitted.tokens["run"].to_list() == accepted.tokens["run"].to_list()
    assert "taken as emitted, as their sums say" in notes(emitted)
    assert "taken as accepted, as their sums say" in notes(accepted)
    # No length is 0, but the sums leave no doubt.
    assert "taken as accepted" in notes(bench(tmp_path, answer([2, 1] * 20, [100]), gamma=2))
    assert "taken as emitted" in notes(bench(tmp_path, answer([2, 1] * 20, [60]), gamma=2))


def test_where_the_sums_do_not_tell_it_must_be_stated(tmp_path):
    doubtful = answer([3, 2], [6])
    with pytest.raises(InputError, match="--lengths emitted or --lengths accepted"):
        bench(tmp_path, doubtful, gamma=4)
    assert "as stated" in notes(bench(tmp_path, doubtful, gamma=4, lengths="emitted"))
    with pytest.raises(InputError, match="line 1: accept_lengths has a 0"):
        bench(tmp_path, answer([0, 2], [6]), gamma=4, lengths="emitted")


def test_gamma_is_inferred_where_lengths_pile_up_and_asked_for_elsewhere(tmp_path):
    piled = bench(tmp_path, answer([5] * 12 + [4, 1, 1], [66]))
    assert piled.provenance.run_limit == 4
    assert "pile up" in notes(piled)
    with pytest.raises(InputError, match="state it with --gamma N"):
        bench(tmp_path, answer([5, 4, 4, 1] * 6, [84]))
    with pytest.raises(InputError, match=r"line 1: 4 drafts accepted, over --gamma 3"):
        bench(tmp_path, answer([5] * 12, [60]), gamma=3)


def test_turns_are_requests_of_their_own_where_they_can_be_told(tmp_path):
    trace = bench(tmp_path, answer([3, 1, 5, 2, 2], [9, 4]), gamma=4, lengths="emitted")
    assert trace.requests["request"].to_list() == ["1, turn 1", "1, turn 2"]
    assert trace.requests["output_tokens"].to_list() == [10, 5]
    whole = bench(tmp_path, answer([3, 1, 5, 2, 2], [8, 4]), gamma=4, lengths="emitted")
    assert whole.requests["output_tokens"].to_list() == [14]
    assert "could not be told for 1 answers" in notes(whole)


def test_the_last_round_may_have_been_cut_so_it_is_censored(tmp_path):
    trace = bench(tmp_path, answer([3, 1], [4]), gamma=4, lengths="emitted")
    assert trace.tokens["censored"].to_list() == [False, False, False, False, True]


@pytest.mark.parametrize(
    ("record", "complaint"),
    [
        (answer([3, -1], [3], question_id=2), "line 2: accept_lengths: -1 must be 0 or more"),
        (answer([3, 1.5], [3], question_id=2), "line 2: accept_lengths: 1.5 must be a whole number"),
        (answer([3, True], [3], question_id=2), "line 2: accept_lengths: True must be a whole number"),
        (answer([], [3], question_id=2), "line 2: the answer has no rounds"),
        ({"question_id": 2}, "line 2: choices: must be a list"),
        ({"question_id": 2, "choices": [{"idxs": [3], "new_tokens": [9]}]}, "line 2: accept_lengths: is missing"),
        (answer([3, 1], [4]), "line 2: request '1' is there twice"),
    ],
)
def test_a_bad_answer_is_named(tmp_path, record, complaint):
    with pytest.raises(InputError, match=complaint):
        bench(tmp_path, answer([3, 1], [4]), record, gamma=4, lengths="emitted")


def test_tokens_between_corrections_replay_exactly_under_every_policy(tmp_path):
    file = tmp_path / "stretches.csv"
    file.write_text("request,between_corrections\na,3\na,1\na,12\nb,2\n")
    save(csv.read(file, tmp_path / "trace"))
    trace = load(tmp_path / "trace")
    assert trace.tokens["run"].to_list()[:6] == [0, 2, 1, 0, 0, 11]
    assert trace.provenance.run_limit is None
    assert trace.censored(None) is None
    policy = POLICIES["pearl"](4)
    tally = kernel.tally(policy, trace.workload(None, None), COST.timing(policy), 0, None)
    assert sum(own.corrections for own in tally.totals) == 4


@pytest.mark.parametrize(
    ("text", "gamma", "complaint"),
    [
        ("accepted\n2\n", None, "line 1: nothing says how many tokens a round drafted"),
        ("accepted,drafted\n2,4\n", 4, "--gamma: changes nothing"),
        ("between_corrections\n2\n", 4, "--gamma: changes nothing"),
        ("acepted\n2\n", 4, "line 1: the columns are acepted; must be"),
        ("accepted,accepted\n2,2\n", 4, "line 1: the columns are"),
        ("accepted,between_corrections\n2,2\n", 4, "line 1: the columns are"),
        ("drafted,between_corrections\n2,2\n", None, "line 1: drafted says nothing"),
        ("accepted\n", 4, "has no rows below its header"),
        ("accepted\n2\n\n-1\n", 4, "line 4: accepted: -1 must be 0 or more"),
        ("accepted\n2\n5\n", 4, "line 3: accepted = 5 is more than was drafted, 4"),
        ("accepted,drafted\n2,4\n3,2\n", None, "line 3: accepted = 3 is more than was drafted, 2"),
        ("accepted\n2.5\n", 4, "line 2: accepted: '2.5' must be a whole number"),
        ('accepted\n"2\n', 4, "line 2: is not CSV"),
        ("accepted,drafted\n2\n", None, "line 2: has 1 cells; the header has 2"),
        ("between_corrections\n0\n", None, "line 2: between_corrections: 0 must be 1 or more"),
        ("accepted,request\n1,a\n1,b\n1,a\n", 4, "line 4: request 'a' is there twice"),
        (f"accepted\n{2**63}\n", 4, "line 2: accepted: .* must be a whole number"),
    ],
)
def test_a_bad_table_is_named(tmp_path, text, gamma, complaint):
    file = tmp_path / "rounds.csv"
    file.write_text(text)
    with pytest.raises(InputError, match=complaint):
        csv.read(file, tmp_path / "trace", gamma)


def test_a_gamma_beyond_the_recorded_one_is_refused_and_one_within_is_flagged(tmp_path):
    file = tmp_path / "rounds.csv"
    file.write_text("accepted\n" + "4\n2\n4\n" * 40)
    save(csv.read(file, tmp_path / "trace", 4))
    scenario = tmp_path / "s.toml"
    scenario.write_text(
        '[acceptance]\nlaw = "recorded"\ntrace = "trace"\n[cost]\nmodel = "constant"\ndraft = "1 ms"\ntarget = "5 ms"\n'
        '[policy]\nnames = ["sd", "pearl"]\ngamma = 4\n'
    )
    ((_, point),) = read_scenario(scenario).points
    assert censored_of(point.source)[0].sum() == 40 * 10
    with pytest.raises(InputError, match="at most 4 drafts in a row"):
        read_scenario(scenario, {"policy.gamma": "5"})
