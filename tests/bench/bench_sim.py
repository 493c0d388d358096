"""The SimPy driver, one request under PEARL at gamma 4 and alpha 0.8: the unit is one output token."""

import simpy

from pearl_sim.acceptance import Iid
from pearl_sim.cost import ConstantCost
from pearl_sim.drivers.sim import simulate
from pearl_sim.judge import Request
from pearl_sim.policies import autoregressive, pearl, speculative

TOKENS = 50_000
COST = ConstantCost(draft="1 ms", target="10 ms")
REQUEST = Request(0, TOKENS, Iid(alpha=0.8).runs(0, 0, TOKENS + 8))


def bench_bare_timeout(per_unit):
    def timeouts(env):
        for _ in range(TOKENS):
            yield env.timeout(1)

    def work():
        env = simpy.Environment()
        env.process(timeouts(env))
        env.run()

    per_unit(work, TOKENS)


def bench_simpy_pearl(per_unit):
    per_unit(lambda: simulate(pearl(4), [REQUEST], COST.timing(pearl(4)), 0), TOKENS)


def bench_simpy_speculative(per_unit):
    per_unit(lambda: simulate(speculative(4), [REQUEST], COST.timing(speculative(4)), 0), TOKENS)


def bench_simpy_autoregressive(per_unit):
    per_unit(lambda: simulate(autoregressive(), [REQUEST], COST.timing(autoregressive()), 0), TOKENS)
