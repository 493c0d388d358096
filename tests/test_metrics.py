"""Every published number means what its name says, checked on timelines small enough to count by hand."""

import math

import numpy as np
import pytest

from pearl_sim.cost import ConstantCost
from pearl_sim.drivers.sim import simulate
from pearl_sim.judge import Request
from pearl_sim.metrics import acceptance_by_depth, ratio, standard_errors, totals
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


def test_one_request_has_no_interval():
    assert ratio([4], [2]).mean == 2
    assert math.isnan(ratio([4], [2]).low)
    assert math.isnan(standard_errors([4], 4))


def test_a_sample_without_spread_is_right_or_infinitely_wrong():
    assert standard_errors([5, 5], 5) == 0
    assert standard_errors([5, 5], 4) == math.inf
    assert standard_errors([5, 7], 4) == pytest.approx(2)
