"""Every run table that a law can draw for a short text, with its probability: expectations without sampling."""

from itertools import pairwise, product


def iid_tables(alpha, limit):
    for bits in product((0, 1), repeat=limit - 1):
        yield alpha ** sum(bits) * (1 - alpha) ** (limit - 1 - sum(bits)), chain_runs((0, *bits))


def markov_tables(stay_accepted, stay_rejected, limit):
    for bits in product((0, 1), repeat=limit - 1):
        probability, before = 1.0, 0
        for bit in bits:
            stay = stay_accepted if before else stay_rejected
            probability *= stay if bit == before else 1 - stay
            before = bit
        yield probability, chain_runs((0, *bits))


def depth_tables(rates, limit):
    """Yield the tables of a law whose token at depth d of a chain is accepted if its position's luck is below rates[d].

    Luck matters only by which rates it is below, so each position's luck is one of a few intervals.
    """
    at = []
    for position in range(1, limit):  # a chain starts at 1 at the earliest
        edges = sorted({0.0, 1.0, *rates[:position]})
        at.append([((low + high) / 2, high - low) for low, high in pairwise(edges)])
    for choice in product(*at):
        probability = 1.0
        for _, share in choice:
            probability *= share
        luck = [None, *(middle for middle, _ in choice)]
        runs = [0] * limit
        for start in range(1, limit):
            while start + runs[start] < limit and luck[start + runs[start]] < rates[runs[start]]:
                runs[start] += 1
        yield probability, runs


def chain_runs(bits):
    """Return how many positions in a row are right from each one on."""
    runs = []
    for start in range(len(bits)):
        end = start
        while end < len(bits) and bits[end]:
            end += 1
        runs.append(end - start)
    return runs
