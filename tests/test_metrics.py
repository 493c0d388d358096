"""Every published number means what its name says, checked on timelines small enough to count by hand."""

import math

import numpy as np
import pytest

from pearl_sim.cost import AffineCost, AffineForward, ConstantCost
from pearl_sim.drivers.sim import simulate
from pearl_sim.judge import Request
from pearl_sim.metrics import acceptance_by_depth, ratio, standard_errors, t95, totals, unknown_rounds
from pearl_sim.policies import autoregressive, pearl, speculative

COST = ConstantCost(draft="1 ms", target="10 ms")


def decode(policy, runs, limit):
    request = Request(0, limit, np.array(runs, np.int64))
    timeline = simulate(policy, [request], COST.timing(policy), 0)[0]
    return timeline, totals(timeline, request)


def test_speculative_decoding_counted_by_hand():
    # Position 1 accepts both drafts and a bonus follows; position 4 rejects at once, 5 accepts one of two.
    timeline, sums = decode(speculative(2), [0, 2, 1, 0, 0, 1, 0], limit=7)
    assert [step.frontier.verified for step in timeline] == [0, 1, 1, 4, 4, 5, 5]
    assert sums.forwards == 3
    assert sums.drafted == 6
    assert sums.kept == 3
    assert sums.corrections == 2
    assert sums.time_ns == 10_000_000 + 3 * 12_000_000
    assert sums.draft_ns == 1_000_000 + 3 * 2_000_000
    assert acceptance_by_depth([timeline]) == [(1, 3, 2), (2, 2, 1)]


def test_depth_goes_on_across_post_verify_rounds():
    timeline, sums = decode(pearl(2), [0, 4, 3, 2, 1, 0, 0], limit=6)
    # Rounds from 1: pre-verify accepts depth 1, post-verify depths 2 and 3, then depth 4 is right and 5 wrong.
    assert acceptance_by_depth([timeline]) == [(1, 1, 1), (2, 1, 1), (3, 1, 1), (4, 1, 1), (5, 1, 0)]
    assert sums.corrections == 1


def test_what_lies_past_the_limit_is_wasted():
    _, sums = decode(pearl(4), [0, 9, 9, 9, 9], limit=3)
    assert sums.tokens == 3
    assert sums.kept == 2


def test_autoregressive_decoding_drafts_nothing():
    timeline, sums = decode(autoregressive(), [0] * 5, limit=5)
    assert (sums.forwards, sums.drafted, sums.kept, sums.corrections, sums.draft_ns) == (4, 0, 0, 0, 0)
    assert acceptance_by_depth([timeline]) == []


def test_interval_of_a_ratio_is_the_delta_method():
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(400):
        time = rng.uniform(1, 2, 60)
        tokens = 3 * time + rng.normal(0, 0.5, 60)
        interval = ratio(tokens, time)
        covered += interval.low <= 3 <= interval.high
    assert 0.90 < covered / 400 < 0.99


def test_the_interval_of_two_requests_by_hand():
    # 12 tokens in 6 s; residuals 4 - 2 * 2 = 0 and 8 - 2 * 4 = 0 make no interval, 5 and 7 make one of 1 each.
    assert ratio([4, 8], [2, 4]) == (2, 2, 2)
    found = ratio([5, 7], [2, 4])
    error = math.sqrt((1 + 1) * 2 / 1) / 6
    assert found.high - found.mean == pytest.approx(12.7062 * error)
    assert found.mean - found.low == pytest.approx(12.7062 * error)


@pytest.mark.parametrize(
    ("freedom", "quantile"), [(1, 12.7062), (7, 2.36462), (8, 2.306), (19, 2.09302), (1000, 1.96234)]
)
def test_students_quantile_is_the_tabulated_one(freedom, quantile):
    assert t95(freedom) == pytest.approx(quantile, rel=2e-4)


def test_rounds_that_a_truncated_record_cannot_tell_are_counted():
    """Runs cut at 2: the chain from 1 is replayed as wrong at its third token, which nobody knows."""
    request = Request(0, 8, np.array([0, 2, 2, 2, 2, 2, 1, 0], np.int64))
    policy = pearl(2)
    timelines = simulate(policy, [request], COST.timing(policy), 0)
    rounds = [step for step in timelines[0] if step.round.score]
    assert unknown_rounds(timelines, [request.runs >= 2]) == 2 / len(rounds)
    assert unknown_rounds(timelines, [request.runs >= 3]) == 0


def test_context_of_each_model_counts_what_stands_before_its_work():
    """Affine costs, PEARL at gamma 2: the draft reads prompt, verified and pending tokens, the target no pending."""
    forward = {"base": "100 ns", "per_context_token": "1 ns"}
    cost = AffineCost(draft=AffineForward(**forward), target=AffineForward(**forward))
    request = Request(10, 5, np.array([0, 9, 9, 9, 9], np.int64))
    (timeline,) = simulate(pearl(2), [request], cost.timing(pearl(2)), 0)
    assert [step.frontier for step in timeline[1:]] == [(1, 0), (2, 1), (4, 1)]
    # A chain of two forwards after c tokens: 2 * 100 + c + (c + 1); a score: 100 + prompt + verified.
    assert [step.draft_ns for step in timeline[1:]] == [200 + 11 + 12, 200 + 13 + 14, 200 + 15 + 16]
    assert [step.score_ns for step in timeline[1:]] == [100 + 11, 100 + 12, 100 + 14]


def test_one_request_has_no_interval():
    assert ratio([4], [2]).mean == 2
    assert math.isnan(ratio([4], [2]).low)
    assert math.isnan(standard_errors([4], 4))


def test_a_sample_without_spread_is_right_or_cannot_tell():
    assert standard_errors([5, 5], 5) == 0
    assert math.isnan(standard_errors([5, 5], 4))
    assert standard_errors([5, 7], 4) == pytest.approx(2)


def test_a_draft_past_the_end_of_a_record_is_neither_checked_nor_refused():
    runs = np.array([0, 2, 1, 0, 2, 1, 0], np.int64)
    policy = speculative(3)
    [timeline] = simulate(policy, [Request(1, 7, runs)], ConstantCost(draft="1 ns", target="5 ns").timing(policy), 0)
    assert acceptance_by_depth([timeline]) == [(1, 2, 2), (2, 2, 2), (3, 2, 0)]
    cut = np.array([False, True, False, False, False, False, False])
    assert acceptance_by_depth([timeline], [cut]) == [(1, 2, 2), (2, 2, 2), (3, 1, 0)]
