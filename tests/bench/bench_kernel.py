"""The kernel over a recorded trace of a million tokens at gamma 4, constant cost: the unit is one output token.

Beside it, in the same run: numpy summing the run lengths of the same trace, and the SimPy driver on a part of it.
"""

import numpy as np
import pytest

from pearl_sim.acceptance import Iid
from pearl_sim.cost import AffineCost, AffineForward, ConstantCost
from pearl_sim.drivers import kernel, sim
from pearl_sim.drivers.walk import walk
from pearl_sim.judge import Request
from pearl_sim.policies import POLICIES, pearl

REQUESTS, TOKENS = 300, 3334
COST = ConstantCost(draft="1 ms", target="10 ms")
FORWARD = AffineForward(base="1 ms", per_token="7 us", per_context_token="2 ns")
GROWING = AffineCost(draft=FORWARD, target=FORWARD, contention=1.5)
RUNS = np.concatenate([Iid(alpha=0.8).runs(0, number, TOKENS) for number in range(REQUESTS)])
TRACE = [Request(100, TOKENS, RUNS[first : first + TOKENS]) for first in range(0, len(RUNS), TOKENS)]


def bench_numpy_sum(per_unit):
    per_unit(RUNS.sum, len(RUNS))


@pytest.mark.parametrize("name", POLICIES)
def bench_kernel(per_unit, name):
    policy = POLICIES[name](4)
    per_unit(lambda: kernel.tally(policy, TRACE, COST.timing(policy), 0, None), len(RUNS))


@pytest.mark.parametrize("name", POLICIES)
def bench_kernel_growing_context(per_unit, name):
    policy = POLICIES[name](4)
    per_unit(lambda: kernel.tally(policy, TRACE, GROWING.timing(policy), 0, None), len(RUNS))


def bench_kernel_walk(per_unit):
    per_unit(lambda: walk(pearl(4), TRACE, rounds=False), len(RUNS))


def bench_kernel_price_of_a_walk(per_unit):
    walked, timing = walk(pearl(4), TRACE, rounds=False), COST.timing(pearl(4))
    per_unit(lambda: kernel.price(walked, timing, 0), len(RUNS))


def bench_kernel_price_of_a_walk_with_growing_context(per_unit):
    walked, timing = walk(pearl(4), TRACE), GROWING.timing(pearl(4))
    per_unit(lambda: kernel.price(walked, timing, 0), len(RUNS))


def bench_kernel_timelines(per_unit):
    per_unit(lambda: kernel.simulate(pearl(4), TRACE[:15], COST.timing(pearl(4)), 0), 15 * TOKENS)


def bench_simpy_tally(per_unit):
    per_unit(lambda: sim.tally(pearl(4), TRACE[:15], COST.timing(pearl(4)), 0, None), 15 * TOKENS)
