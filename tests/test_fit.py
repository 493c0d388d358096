"""Laws are recovered from what they drew, wrong ones are rejected, and right ones seldom are."""

import math

import numpy as np
import pytest
from test_survival import chains, served, whole

from pearl_sim.acceptance import Beta, Decaying, Iid, Markov, PerDepth
from pearl_sim.fit import climb, fit_laws, log_beta
from pearl_sim.survival import checks_of

LAWS = [
    Iid(alpha=0.8),
    PerDepth(rates=(0.9, 0.5, 0.8)),
    Decaying(alpha=0.95, rate=0.9),
    Beta(a=4.0, b=1.5),
    Markov(stay_accepted=0.9, stay_rejected=0.6),
]


def parameters(law):
    values = [value for key, value in law if key != "law"]
    return list(values[0]) if isinstance(values[0], tuple) else values


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.law)
def test_the_law_that_drew_the_data_is_found_with_its_parameters(law):
    found = fit_laws(checks_of(whole(law, 150, 300, seed=2)))
    best = found[0]
    assert best.law.law == law.law
    assert not best.rejected
    assert best.survival_off < 0.02
    assert parameters(best.law) == pytest.approx(parameters(law), rel=0.25 if law.law == "beta" else 0.03)
    # Rates for every depth say what any other law but beta says, and i.i.d. data are data of every law.
    alike = {"per_depth"} | ({one.law for one in LAWS} if law.law == "iid" else set())
    for other in found[1:]:
        if other.law.law not in alike or law.law == "beta":
            assert other.rejected, other


@pytest.mark.parametrize(
    "law", [Iid(alpha=0.8), PerDepth(rates=(0.9, 0.5)), Decaying(alpha=0.95, rate=0.8)], ids=lambda law: law.law
)
def test_a_censored_record_finds_the_law_as_well(law):
    found = fit_laws(checks_of(served(law, 150, 300, gamma=5)), whole=False)
    assert found[0].law.law == law.law
    assert parameters(found[0].law) == pytest.approx(parameters(law), rel=0.03)
    assert not found[0].rejected
    assert "markov" not in {one.law.law for one in found}


def test_the_right_law_is_seldom_rejected():
    """At 1 % a test and two tests a fit, 40 records are rejected about once; more than four would be a broken test."""
    rejected = 0
    for law in LAWS:
        for seed in range(8):
            told = {one.law.law: one for one in fit_laws(checks_of(whole(law, 30, 80, seed)))}
            rejected += told[law.law].rejected
    assert rejected <= 4


def test_fits_are_ordered_by_aic_and_the_simplest_of_equals_comes_first():
    found = fit_laws(checks_of(whole(Iid(alpha=0.7), 50, 100)))
    assert found[0].law.law == "iid"
    least = min(one.aic for one in found)
    rest = [one.aic for one in found if one.aic > least + 2]
    assert rest == sorted(rest)
    for one in found:
        assert one.aic == 2 * one.parameters - 2 * one.log_likelihood


def test_the_likelihoods_are_those_of_the_checks():
    """Two requests: chains 1, 0 and 2: right, wrong, wrong; right, right, wrong."""
    checks = checks_of([chains([(1, False), (0, False)]), chains([(2, False)])])
    told = {one.law.law: one for one in fit_laws(checks)}
    assert told["iid"].law.alpha == pytest.approx(0.5)
    assert told["iid"].log_likelihood == pytest.approx(6 * math.log(0.5))
    # At depth 1, 2 of 3 were right; deeper, 1 of 3.
    markov = 2 * math.log(2 / 3) + math.log(1 / 3) + math.log(1 / 3) + 2 * math.log(2 / 3)
    assert told["markov"].log_likelihood == pytest.approx(markov)
    a, b = told["beta"].law.a, told["beta"].law.b

    def beta(x, y):
        return math.lgamma(x) + math.lgamma(y) - math.lgamma(x + y)

    assert told["beta"].log_likelihood == pytest.approx(beta(a + 1, b + 2) + beta(a + 2, b + 1) - 2 * beta(a, b))


def test_log_beta_is_the_libraries():
    for a in (1e-3, 0.5, 1.0, 7.3, 1e4):
        for b in (1e-3, 2.5, 1e5):
            right = math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
            assert log_beta(np.array(a), np.array(b)) == pytest.approx(right, rel=1e-10, abs=1e-8)


def test_climbing_finds_the_top_inside_and_at_the_edge():
    assert climb(lambda x, y: -((x - 0.317) ** 2) - (y - 0.9) ** 2 + x * y / 9) == pytest.approx(
        (0.36813, 0.92045), abs=2e-5
    )
    assert climb(lambda x, y: x + y) == (1.0, 1.0)


@pytest.mark.parametrize("pairs", [[(0, False)] * 9, [(4, True)] * 9, [(0, False)], [(1, True)]])
@pytest.mark.parametrize("requests", [1, 3])
def test_extremes_have_fits_too(pairs, requests):
    found = fit_laws(checks_of([chains(pairs)] * requests))
    assert {one.law.law for one in found} >= {"iid", "markov", "decaying"}
    for one in found:
        assert math.isfinite(one.aic)
        assert one.survival_off < 0.01
