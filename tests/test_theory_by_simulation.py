"""The theory against the simulator: every law, every policy, inside a 99.9 % confidence interval.

Seeds are fixed, so a test either always passes or always fails.  Times are those of decoding, without prefill.
"""

import math
from statistics import NormalDist, fmean, stdev

import pytest
from cases import constant, request, simulated

from pearl_sim import theory
from pearl_sim.acceptance import Beta, Decaying, Iid, Markov, PerDepth
from pearl_sim.policies import POLICIES
from pearl_sim.theory import request_time, round_time, steady_speed

LAWS = {
    "iid": Iid(alpha=0.75),
    "iid high": Iid(alpha=0.95),
    "per_depth": PerDepth(rates=(0.9, 0.5, 0.8)),
    "decaying": Decaying(alpha=0.95, rate=0.9),
    "beta": Beta(a=4.0, b=1.5),
    "markov": Markov(stay_accepted=0.9, stay_rejected=0.6),
}
COST = constant(100, 700, sync=30)
DURATION = round_time(100, 700, 30)
Z = NormalDist().inv_cdf(1 - 0.001 / 2)
SEED = 1


def assert_mean(values, expected):
    """Assert that `expected` lies in the 99.9 % confidence interval of the mean; or is it where nothing varies."""
    half = Z * stdev(values) / math.sqrt(len(values))
    assert abs(fmean(values) - expected) <= max(half, 1e-9 * expected)


@pytest.mark.parametrize("gamma", [1, 3, 7])
@pytest.mark.parametrize("name", sorted(POLICIES))
@pytest.mark.parametrize("law", sorted(LAWS))
def test_request_time_is_the_simulated_mean(law, name, gamma):
    limit = 40
    drawn = [request(LAWS[law].runs(SEED, number, limit)) for number in range(400)]
    times = [timeline[-1].stop - timeline[0].stop for timeline in simulated(name, gamma, drawn, COST)]
    assert_mean(times, request_time(POLICIES[name](gamma), LAWS[law].chains(), DURATION, limit - 1))


@pytest.mark.parametrize("gamma", [2, 7])
@pytest.mark.parametrize("name", sorted(POLICIES))
@pytest.mark.parametrize("law", sorted(set(LAWS) - {"beta"}))
def test_steady_speed_and_tokens_per_round_are_those_of_long_simulated_texts(law, name, gamma):
    """Between the first rounds past two far positions, a text takes (b - a) / speed on average."""
    begin, end, policy = 100, 400, POLICIES[name](gamma)
    drawn = [request(LAWS[law].runs(SEED, number, end + 1)) for number in range(60)]
    times, forwards = [], []
    for timeline in simulated(name, gamma, drawn, COST):
        past = [step for step in timeline if step.frontier.verified >= begin]
        times.append(timeline[-1].stop - past[0].start)
        forwards.append(sum(step.round.score > 0 for step in past))
    assert_mean(times, (end + 1 - begin) / steady_speed(policy, LAWS[law].chains(), DURATION))
    if law != "markov":
        assert_mean(forwards, (end + 1 - begin) / theory.tokens_per_round(policy, LAWS[law].survival))


@pytest.mark.parametrize("name", sorted(POLICIES))
@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_without_luck_request_time_is_the_simulated_time_itself(name, alpha):
    law = Iid(alpha=alpha)
    for gamma in (1, 2, 5, 20):
        for limit in (1, 2, 3, 30, 101):
            [timeline] = simulated(name, gamma, [request(law.runs(SEED, 0, limit))], COST)
            told = request_time(POLICIES[name](gamma), law.chains(), DURATION, limit - 1)
            assert math.isclose(told, timeline[-1].stop - timeline[0].stop, rel_tol=1e-9)


def test_the_design_s_speed_of_pearl_is_simulated():
    """Gamma 4, t_target 10 t_draft, alpha 0.8: 0.2123 tokens per t_draft."""
    length = 20_000
    [timeline] = simulated("pearl", 4, [request(Iid(alpha=0.8).runs(SEED, 0, length))], constant(1, 10))
    assert length / timeline[-1].stop == pytest.approx(0.2123, rel=0.02)
