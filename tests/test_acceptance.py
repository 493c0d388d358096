"""Synthetic laws: what they draw is what they say, and their luck is nobody else's."""

import math
from itertools import pairwise, product
from statistics import NormalDist

import numpy as np
import pytest
from exact import chain_runs
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from pearl_sim.acceptance import (
    POSITION_STREAM,
    REQUEST_STREAM,
    Beta,
    Decaying,
    Iid,
    Law,
    Markov,
    PerDepth,
    depth_runs,
    generator,
    runs_of,
    uniforms,
)

LAWS = [
    Iid(alpha=0.7),
    PerDepth(rates=(0.9, 0.5, 0.8)),
    Decaying(alpha=0.95, rate=0.9),
    Beta(a=4.0, b=1.5),
    Markov(stay_accepted=0.9, stay_rejected=0.6),
]
every_law = pytest.mark.parametrize("law", LAWS, ids=lambda law: law.law)
Z = NormalDist().inv_cdf(1 - 0.001 / 2)


@every_law
def test_survival_is_the_share_of_first_chains_that_get_that_far(law):
    runs = np.array([law.runs(3, request, 30)[1] for request in range(4000)])
    survival = law.survival(np.arange(12))
    for k in range(12):
        share = float(np.mean(runs >= k))
        assert abs(share - survival[k]) <= Z * math.sqrt(survival[k] * (1 - survival[k]) / len(runs)) + 1e-12, k


@every_law
def test_asking_for_a_longer_text_does_not_change_its_beginning(law):
    short, long = law.runs(5, 2, 100), law.runs(5, 2, 300)
    ended = np.arange(100) + short < 100  # a run that reaches the end of the short text is cut there
    assert ended.sum() > 50
    assert (short == np.minimum(long[:100], 100 - np.arange(100))).all()


@every_law
def test_the_same_seed_and_request_draw_the_same_runs_and_others_do_not(law):
    runs = {key: law.runs(*key, 200).tolist() for key in product(range(3), range(3))}
    assert all(law.runs(*key, 200).tolist() == drawn for key, drawn in runs.items())
    assert len({tuple(drawn) for drawn in runs.values()}) == 9


@every_law
def test_runs_are_counts_within_the_text(law):
    for length in (0, 1, 2, 57):
        runs = law.runs(1, 1, length)
        assert runs.dtype == np.int64 and runs.shape == (length,)
        assert (runs >= 0).all() and (runs <= length - np.arange(length)).all()


def test_no_uniform_is_used_twice_between_seeds_requests_streams_and_positions():
    """Trap 8 of the design.  53-bit uniforms: a chance collision among these has odds below one in a million."""
    keys = product((0, 1, 2, 3), (0, 1, 2, 3), (POSITION_STREAM, REQUEST_STREAM, 2))
    drawn = np.concatenate([generator(*key).random(1000) for key in keys])
    assert len(np.unique(drawn)) == len(drawn)


def test_neighbouring_positions_requests_and_seeds_are_uncorrelated():
    luck = np.array([[uniforms(seed, request, 500) for request in range(40)] for seed in range(10)])
    for one, other in (
        (luck[..., :-1], luck[..., 1:]),
        (luck[:, :-1], luck[:, 1:]),
        (luck[:-1], luck[1:]),
    ):
        pairs = one.size
        assert abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]) < Z / math.sqrt(pairs)


def test_laws_share_their_luck_so_that_more_acceptance_means_longer_runs_everywhere():
    runs = [Iid(alpha=alpha).runs(1, 0, 500) for alpha in (0.0, 0.3, 0.6, 0.9, 1.0)]
    assert all((less <= more).all() for less, more in pairwise(runs))
    assert (runs[0] == 0).all()
    assert (runs[-1] == 500 - np.arange(500)).all()


@given(st.lists(st.booleans(), max_size=60))
def test_runs_of_counts_as_a_loop_does(accepted):
    assert runs_of(np.array(accepted, np.bool_)).tolist() == chain_runs(accepted)


@given(st.lists(st.floats(0, 1, exclude_max=True), max_size=40), st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_depth_runs_counts_as_a_loop_does(luck, rates):
    expected = []
    for start in range(len(luck)):
        depth = 0
        while start + depth < len(luck) and luck[start + depth] < rates[min(depth, len(rates) - 1)]:
            depth += 1
        expected.append(depth)
    assert depth_runs(np.array(luck), lambda depth: rates[min(depth, len(rates) - 1)]).tolist() == expected


def test_laws_that_say_the_same_draw_the_same():
    iid = Iid(alpha=0.7).runs(1, 4, 300).tolist()
    assert PerDepth(rates=(0.7,)).runs(1, 4, 300).tolist() == iid
    assert Decaying(alpha=0.7, rate=1.0).runs(1, 4, 300).tolist() == iid
    markov = Markov(stay_accepted=0.7, stay_rejected=0.3).runs(1, 4, 300)[1:].tolist()
    assert markov == iid[1:]


def test_markov_acceptance_sticks_as_long_as_it_says():
    law = Markov(stay_accepted=0.9, stay_rejected=0.6)
    accepted = law.runs(1, 0, 200_000)[1:] > 0
    before, after = accepted[:-1], accepted[1:]
    for share, expected, count in (
        (after[before].mean(), 0.9, before.sum()),
        ((~after)[~before].mean(), 0.6, (~before).sum()),
    ):
        assert abs(share - expected) < Z * math.sqrt(expected * (1 - expected) / count)
    assert abs(accepted.mean() - 0.8) < 0.01


def test_beta_acceptance_rises_with_depth_and_is_constant_within_a_request():
    law = Beta(a=2.0, b=1.0)
    survival = law.survival(np.arange(20))
    assert (np.diff(survival[1:] / survival[:-1]) > 0).all()
    assert survival[1] == pytest.approx(2 / 3)
    shares = [(law.runs(0, request, 4000)[1:] > 0).mean() for request in range(200)]
    assert np.std(shares) == pytest.approx(math.sqrt(2 / (9 * 4)), rel=0.2)


@pytest.mark.parametrize(
    "table",
    [
        {"law": "iid", "alpha": 1.5},
        {"law": "iid", "alpha": -0.1},
        {"law": "iid", "alpha": float("nan")},
        {"law": "iid", "alpha": 0.5, "beta": 1},
        {"law": "iid", "alpha": "0.5"},
        {"law": "per_depth", "rates": []},
        {"law": "per_depth", "rates": [0.5, 1.01]},
        {"law": "decaying", "alpha": 0.5},
        {"law": "beta", "a": 0.0, "b": 1.0},
        {"law": "markov", "stay_accepted": 0.5},
        {"law": "unknown"},
    ],
)
def test_a_law_refuses_what_means_nothing(table):
    with pytest.raises(ValidationError):
        TypeAdapter(Law).validate_python(table)


def test_a_law_is_immutable():
    with pytest.raises(ValidationError):
        LAWS[0].alpha = 0.5
