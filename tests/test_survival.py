"""S(k) and its intervals, estimated from records whose truth is known."""

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pearl_sim.acceptance import Beta, Decaying, Iid, Markov, PerDepth
from pearl_sim.cost import ConstantCost
from pearl_sim.dependence import chi2_quantile, chi2_tail, dependence
from pearl_sim.drivers import kernel
from pearl_sim.importers.recording import Rounds
from pearl_sim.judge import Request, accept
from pearl_sim.policies import pearl
from pearl_sim.survival import (
    Chains,
    Checks,
    chains_of,
    checks_of,
    estimate,
    wilson,
)


def chains(pairs):
    return Chains(np.array([length for length, _ in pairs], np.int64), np.array([cut for _, cut in pairs], np.bool_))


def whole(law, requests, length, seed=1):
    """Return the chains of requests whose runs are all known."""
    drawn = [law.runs(seed, number, length + 64)[:length] for number in range(requests)]
    return [chains_of(runs, np.zeros(length, np.bool_)) for runs in drawn]


def served(law, requests, length, gamma, seed=1):
    """Return the chains of the same requests as speculative decoding at gamma records them."""
    found = []
    for number in range(requests):
        runs, at, rounds = law.runs(seed, number, length + gamma + 2), 1, []
        while at < length:
            rounds.append(accept(int(runs[at]), at, at, gamma))
            at += rounds[-1] + 1
        found.append(chains_of(*Rounds([gamma] * len(rounds), rounds).runs()))
    return found


def test_chains_go_from_one_correction_to_the_next():
    runs = np.array([9, 2, 1, 0, 0, 3, 2, 1, 0, 4], np.int64)
    told = chains_of(runs, np.zeros(10, np.bool_))
    assert told.lengths.tolist() == [2, 0, 3, 1]
    assert told.censored.tolist() == [False, False, False, True], "the last one is cut by the end of the request"
    cut = np.array([0, 0, 0, 0, 1, 0, 0, 0, 0, 0], np.bool_)
    assert chains_of(runs, cut).censored.tolist() == [False, True, False, True]
    assert chains_of(np.array([0], np.int64), np.array([False])).lengths.tolist() == []


@pytest.mark.parametrize("size", [1, 2, 3])
def test_survival_is_kaplan_and_meiers_product_for_every_small_record(size):
    """All sets of chains up to length 3, censored or not, against the textbook: at risk and dying at each time."""
    for pairs in product(product(range(4), (False, True)), repeat=size):
        if not any(not cut or length for length, cut in pairs):
            continue
        depths = estimate(checks_of([chains(pairs)]))
        survival = 1.0
        for depth in depths:
            died = sum(length == depth.depth - 1 and not cut for length, cut in pairs)
            # A chain that is cut after length drafts was watched through them, and no further.
            risk = died + sum(length >= depth.depth for length, _ in pairs)
            survival *= 1 - died / risk
            assert depth.survival.mean == pytest.approx(survival)
            assert (depth.checked, depth.accepted) == (risk, risk - died)


def test_one_request_has_greenwoods_variance():
    """Chains 0, 1, 1, 2, 2+, 3: Var S(2) = S(2)^2 * sum of d / (n (n - d)), here with one death of 6 and two of 5."""
    pairs = [(0, False), (1, False), (1, False), (2, False), (2, True), (3, False)]
    second = estimate(checks_of([chains(pairs)]))[1]
    variance = 0.5**2 * (1 / (6 * 5) + 2 / (5 * 3))
    assert second.survival == pytest.approx(wilson(0.5, variance, 5, 1.959964))
    # The mean 1 + S(1) + S(2) errs by (S(1) + S(2)) with h_1 and by S(2) with h_2.
    error = math.sqrt((5 / 6 + 0.5) ** 2 * (1 / (6 * 5)) + 0.5**2 * (2 / (5 * 3)))
    assert second.tokens_per_forward.high - second.tokens_per_forward.mean == pytest.approx(1.959964 * error)


@pytest.mark.parametrize(
    ("law", "truth"),
    [
        (Iid(alpha=0.8), Iid(alpha=0.8)),
        (PerDepth(rates=(0.9, 0.5, 0.8)), PerDepth(rates=(0.9, 0.5, 0.8))),
        (Decaying(alpha=0.95, rate=0.9), Decaying(alpha=0.95, rate=0.9)),
        (Beta(a=4.0, b=1.5), Beta(a=4.0, b=2.5)),  # hard requests have more chains
        (Markov(stay_accepted=0.9, stay_rejected=0.6), Markov(stay_accepted=0.9, stay_rejected=0.6)),
    ],
    ids=lambda law: law.law,
)
def test_survival_of_drawn_data_is_the_laws(law, truth):
    depths = estimate(checks_of(whole(law, 150, 300)))
    told = truth.survival(np.arange(1, 7))
    for depth, right in zip(depths, told, strict=False):
        reach = (depth.survival.high - depth.survival.low) * 1.1
        assert abs(depth.survival.mean - right) < reach, depth


@pytest.mark.parametrize(
    "law", [Iid(alpha=0.8), PerDepth(rates=(0.9, 0.5, 0.8)), Beta(a=20.0, b=5.0)], ids=lambda law: law.law
)
def test_a_censored_record_tells_the_same_survival_as_a_whole_one_down_to_its_gamma(law):
    gamma = 3
    cut, full = (estimate(checks_of(found)) for found in (served(law, 150, 300, gamma), whole(law, 150, 300)))
    assert len(cut) == gamma
    for one, other in zip(cut, full, strict=False):
        reach = (one.survival.high - one.survival.low) / 2 + (other.survival.high - other.survival.low) / 2
        assert abs(one.survival.mean - other.survival.mean) < 1.5 * reach


@pytest.mark.parametrize("gamma", [1, 3])
def test_tokens_of_a_forward_are_those_that_the_record_shows(gamma):
    """At the recorded gamma, 1 + S(1) + ... + S(gamma) is just the tokens of all rounds over the rounds."""
    rounds = [accept(int(run), 0, 0, gamma) for run in Iid(alpha=0.7).runs(3, 0, 400)]
    found = estimate(checks_of([chains_of(*Rounds([gamma] * len(rounds), rounds).runs())]))
    # The last chain is censored by the end of the text as well, which costs at most one draft of 400.
    assert found[-1].tokens_per_forward.mean == pytest.approx(1 + np.mean(rounds), abs=0.01)


def test_tokens_between_corrections_are_what_pearl_replays():
    requests = [Request(0, 200, Iid(alpha=0.7).runs(5, number, 220)) for number in range(20)]
    policy = pearl(4)
    totals = kernel.tally(policy, requests, ConstantCost(draft="1 ms", target="4 ms").timing(policy), 0, None).totals
    replayed = sum(own.tokens - 1 for own in totals) / sum(own.corrections for own in totals)
    told = estimate(checks_of([chains_of(own.runs[:200], np.zeros(200, np.bool_)) for own in requests]))
    assert told[-1].tokens_per_forward.mean == pytest.approx(replayed, rel=0.01)


@pytest.mark.parametrize(("law", "truth"), [(Iid(alpha=0.7), Iid(alpha=0.7)), (Beta(a=6.0, b=2.0), Beta(a=6.0, b=3.0))])
def test_intervals_cover_the_truth_as_often_as_they_say(law, truth):
    """200 records of 25 requests; alike chains within requests (beta) are what plain Greenwood would get wrong."""
    right = truth.survival(np.arange(3))
    mean = right.sum()
    covered = np.zeros(3)
    for seed in range(200):
        second = estimate(checks_of(whole(law, 25, 60, seed)))[1]
        covered += [
            second.survival.low <= right[2] <= second.survival.high,
            second.conditional.low <= right[2] / right[1] <= second.conditional.high,
            second.tokens_per_forward.low <= mean <= second.tokens_per_forward.high,
        ]
    assert (covered / 200 > 0.90).all(), covered
    assert (covered / 200 < 0.99).all(), covered


def test_one_request_of_independent_chains_is_covered_too():
    covered = 0
    for seed in range(300):
        second = estimate(checks_of(whole(Iid(alpha=0.7), 1, 400, seed)))[1]
        covered += second.survival.low <= 0.49 <= second.survival.high
    assert 0.90 < covered / 300 < 0.99


@given(st.lists(st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=6), min_size=1, max_size=5))
def test_estimates_of_any_record_stay_within_bounds(requests):
    checks = checks_of([chains(pairs) for pairs in requests])
    if not checks.checked.any():
        return
    assert (checks.accepted <= checks.checked).all()
    assert (np.diff(checks.checked, axis=1) <= 0).all()
    before = 1.0
    for depth in estimate(checks):
        for share in (depth.conditional, depth.survival):
            assert 0 <= share.low <= share.mean + 1e-12
            assert share.mean - 1e-12 <= share.high <= 1
        assert depth.survival.mean <= before + 1e-12
        before = depth.survival.mean
        assert math.isfinite(depth.tokens_per_forward.low)


def test_certainty_is_never_claimed():
    told = estimate(checks_of([chains([(3, True)] * 5)] * 4))
    assert told[0].conditional.mean == 1
    assert 0.5 < told[0].conditional.low < 0.95
    never = estimate(checks_of([chains([(0, False)] * 5)] * 4))
    assert never[0].conditional.mean == 0
    assert 0.05 < never[0].conditional.high < 0.5


@pytest.mark.parametrize(
    ("law", "dispersed", "correlation"),
    [
        (Iid(alpha=0.8), False, 0.0),
        (Beta(a=8.0, b=2.0), True, 0.0),
        (Markov(stay_accepted=0.9, stay_rejected=0.6), True, 0.5),
    ],
    ids=lambda law: getattr(law, "law", None),
)
def test_dispersion_and_autocorrelation_against_iid(law, dispersed, correlation):
    found = whole(law, 150, 300)
    told = dependence(checks_of(found), found)
    assert (told.dispersion.mean > told.dispersion.high) == dispersed
    assert abs(told.autocorrelation.mean - correlation) < 0.02
    assert told.autocorrelation.low - 0.01 < correlation < told.autocorrelation.high + 0.01


def test_iid_data_are_within_the_range_of_iid_as_often_as_said():
    inside = short = 0
    for seed in range(100):
        found = whole(Iid(alpha=0.7), 20, 60, seed)
        told = dependence(checks_of(found), found)
        inside += told.dispersion.low <= told.dispersion.mean <= told.dispersion.high
        short += told.autocorrelation.low <= 0 <= told.autocorrelation.high
    assert 0.88 < inside / 100 <= 1
    assert 0.88 < short / 100 <= 1


def test_what_cannot_be_told_is_nan():
    one = [chains([(3, False), (0, False)])]
    assert math.isnan(dependence(checks_of(one), one).dispersion.mean)
    assert math.isnan(dependence(checks_of(one), None).autocorrelation.mean)
    certain = [chains([(3, True)])] * 2
    told = dependence(checks_of(certain), certain)
    assert math.isnan(told.dispersion.mean)
    assert math.isnan(told.autocorrelation.mean)


@pytest.mark.parametrize(
    ("freedom", "share", "value"),  # tables of chi-squared
    [(1, 0.05, 3.841), (1, 0.01, 6.635), (2, 0.01, 9.210), (5, 0.5, 4.351), (10, 0.05, 18.307), (100, 0.01, 135.807)],
)
def test_chi_squared_is_the_tabulated_one(freedom, share, value):
    assert chi2_tail(value, freedom) == pytest.approx(share, rel=0.06)


def test_quantiles_of_chi_squared_are_the_tabulated_ones():
    assert chi2_quantile(0.975, 10) == pytest.approx(20.483, rel=0.01)
    assert chi2_quantile(0.025, 10) == pytest.approx(3.247, rel=0.01)
    assert chi2_tail(chi2_quantile(0.975, 50), 50) == pytest.approx(0.025, rel=1e-3)


def test_checks_of_no_chains_are_none():
    assert isinstance(checks_of([chains([])]), Checks)
    assert not checks_of([chains([])]).checked.any()
