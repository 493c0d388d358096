"""What several test modules need: run tables by a loop, constant costs, and the two simulators side by side."""

import numpy as np
from plain import LOOPS, autoregressive

from pearl_sim.cost import ConstantCost
from pearl_sim.drivers.sim import simulate
from pearl_sim.judge import Request
from pearl_sim.policies import POLICIES

PLAIN = {
    "ar": LOOPS["autoregressive"],
    "sd": LOOPS["vanilla"],
    "pearl": LOOPS["pearl"],
    "pearl-no-pre": LOOPS["without_pre_verify"],
    "pearl-no-post": LOOPS["without_post_verify"],
}
"""The plain loop of every named policy."""


def runs_from_bits(bits):
    """Return the run table of a text whose draft is right (1) or wrong (0) at each position."""
    runs = [0] * len(bits)
    for position in reversed(range(len(bits))):
        if bits[position]:
            runs[position] = 1 + (runs[position + 1] if position + 1 < len(bits) else 0)
    return runs


def request(runs, limit=None, prompt_tokens=10):
    return Request(prompt_tokens, len(runs) if limit is None else limit, np.array(runs, np.int64))


def constant(draft, target, sync=0, **more):
    """Return a constant cost in whole nanoseconds."""
    return ConstantCost(draft=f"{draft} ns", target=f"{target} ns", sync=f"{sync} ns", **more)


def timing(name, gamma, cost):
    return cost.timing(POLICIES[name](gamma))


def simulated(name, gamma, requests, cost, seed=0):
    """Return the timelines of `requests` under a named policy."""
    policy = POLICIES[name](gamma)
    return simulate(policy, requests, cost.timing(policy), seed)


def rounds_of(timeline):
    """Return a timeline's rounds, without prefill, as the plain loops tell them."""
    return [(*step.frontier, *step.round, step.accepted, step.stop - step.start) for step in timeline[1:]]


def plain(name, gamma, runs, limit, *times):
    """Return the rounds of the plain loop; without drafts, every policy is autoregressive decoding."""
    loop = PLAIN[name] if gamma else autoregressive
    return list(loop(runs, limit, gamma, *times))
