"""Synthetic acceptance laws: how likely the target is to accept a draft token, and the luck that decides it.

A law draws the run lengths of a request and states its survival function S(k), the probability that a chain
of drafts is accepted for k or more tokens in a row, so that theory can be computed for it.  Luck is
counter-based (Philox, keyed by seed, request and position): a policy cannot change it, so all policies are
compared on the same text, and asking for a longer text never changes its beginning.
"""

from collections.abc import Callable
from typing import Annotated, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from pearl_sim.judge import Runs
from pearl_sim.settings import Settings

Floats: TypeAlias = NDArray[np.float64]
Survival: TypeAlias = Callable[[NDArray[np.int64]], Floats]
"""S(k), for an array of k."""

Probability = Annotated[float, Field(ge=0, le=1)]

POSITION_STREAM, REQUEST_STREAM, LATENCY_STREAM = range(3)
QUADRATURE_NODES = 64


class Chains(NamedTuple):
    """A share of the requests, and how long its chains of drafts survive, by what came before the chain."""

    weight: float
    after_correction: Survival
    after_bonus: Survival


def generator(seed: int, request: int, stream: int) -> np.random.Generator:
    """Return the random stream of one request: its n-th draw depends on nothing but these and n."""
    return np.random.Generator(np.random.Philox(key=np.array([seed, request], np.uint64), counter=[0, 0, 0, stream]))


def uniforms(seed: int, request: int, length: int) -> Floats:
    """Return the luck of a request's first `length` positions, uniform in [0, 1)."""
    return generator(seed, request, POSITION_STREAM).random(length)


def runs_of(accepted: NDArray[np.bool_]) -> Runs:
    """Return the run length from each position on, for a draft whose token at a position is right or wrong."""
    positions = np.arange(len(accepted))
    next_wrong = np.where(accepted, len(accepted), positions)
    return np.minimum.accumulate(next_wrong[::-1])[::-1] - positions


class Iid(Settings):
    """Every draft token is accepted with the same probability, independently (the PEARL paper's model)."""

    law: Literal["iid"] = "iid"
    alpha: Probability

    def runs(self, seed: int, request: int, length: int) -> Runs:
        """Return the run lengths of a request's first `length` positions."""
        return runs_of(uniforms(seed, request, length) < self.alpha)

    def survival(self, k: NDArray[np.int64]) -> Floats:
        """Return alpha^k."""
        return np.power(self.alpha, k, dtype=np.float64)

    def chains(self) -> list[Chains]:
        """Return the one kind of chain there is."""
        return [Chains(1.0, self.survival, self.survival)]


class PerDepth(Settings):
    """The k-th token of a chain is accepted with rates[k-1]; the last rate holds for every deeper token."""

    law: Literal["per_depth"] = "per_depth"
    rates: Annotated[tuple[Probability, ...], Field(min_length=1, strict=False)]

    def runs(self, seed: int, request: int, length: int) -> Runs:
        """Return the run lengths of a request's first `length` positions."""
        return depth_runs(uniforms(seed, request, length), self._rate)

    def survival(self, k: NDArray[np.int64]) -> Floats:
        """Return rates[0] * ... * rates[k-1]."""
        products = np.cumprod([1.0, *self.rates])
        known = np.minimum(k, len(self.rates))
        return np.asarray(products[known] * np.power(self.rates[-1], k - known))

    def chains(self) -> list[Chains]:
        """Return the one kind of chain there is: depth starts anew after every token the target writes."""
        return [Chains(1.0, self.survival, self.survival)]

    def _rate(self, depth: int) -> float:
        return self.rates[min(depth, len(self.rates) - 1)]


class Decaying(Settings):
    """The k-th token of a chain is accepted with alpha * rate^(k-1): each draft is less sure than the last."""

    law: Literal["decaying"] = "decaying"
    alpha: Probability
    rate: Probability

    def runs(self, seed: int, request: int, length: int) -> Runs:
        """Return the run lengths of a request's first `length` positions."""
        return depth_runs(uniforms(seed, request, length), lambda depth: self.alpha * self.rate**depth)

    def survival(self, k: NDArray[np.int64]) -> Floats:
        """Return alpha^k * rate^(k (k-1) / 2)."""
        return np.asarray(np.power(self.alpha, k, dtype=np.float64) * np.power(self.rate, k * (k - 1) / 2))

    def chains(self) -> list[Chains]:
        """Return the one kind of chain there is: depth starts anew after every token the target writes."""
        return [Chains(1.0, self.survival, self.survival)]


class Beta(Settings):
    """Each request has its own alpha, drawn from Beta(a, b); within the request tokens are independent.

    Seen from outside, acceptance then rises with depth, as in most recorded data: easy requests survive.
    """

    law: Literal["beta"] = "beta"
    a: Annotated[float, Field(ge=1e-3, le=1e6)]
    b: Annotated[float, Field(ge=1e-3, le=1e6)]

    def runs(self, seed: int, request: int, length: int) -> Runs:
        """Return the run lengths of a request's first `length` positions."""
        alpha = generator(seed, request, REQUEST_STREAM).beta(self.a, self.b)
        return runs_of(uniforms(seed, request, length) < alpha)

    def survival(self, k: NDArray[np.int64]) -> Floats:
        """Return E[alpha^k], for the first chain of a random request."""
        depth = np.arange(max(int(np.max(k, initial=0)), 1))
        return np.asarray(np.cumprod(np.append(1.0, (self.a + depth) / (self.a + self.b + depth)))[k])

    def chains(self) -> list[Chains]:
        """Return the mixture as Gauss-Jacobi nodes: each alpha's requests are a share with i.i.d. acceptance.

        A mean over requests is the weighted mean over these; S(k) alone would not do, since a hard request
        has more chains than an easy one of the same length.
        """
        laws = [(weight, Iid(alpha=alpha)) for alpha, weight in zip(*beta_nodes(self.a, self.b), strict=True)]
        return [Chains(weight, law.survival, law.survival) for weight, law in laws]


class Markov(Settings):
    """Acceptance has a memory of one position: it stays accepted, or rejected, with the given probabilities.

    The token that prefill yields counts as rejected.
    """

    law: Literal["markov"] = "markov"
    stay_accepted: Probability
    stay_rejected: Probability

    def runs(self, seed: int, request: int, length: int) -> Runs:
        """Return the run lengths of a request's first `length` positions."""
        accepted = np.zeros(length, np.bool_)
        threshold = (1 - self.stay_rejected, self.stay_accepted)
        state = False
        for position, luck in enumerate(uniforms(seed, request, length)[1:].tolist(), start=1):
            state = luck < threshold[state]
            accepted[position] = state
        return runs_of(accepted)

    def survival(self, k: NDArray[np.int64]) -> Floats:
        """Return (1 - stay_rejected) * stay_accepted^(k-1): a chain right after a rejected position."""
        first = np.where(k > 0, 1 - self.stay_rejected, 1.0)
        return np.asarray(first * np.power(self.stay_accepted, np.maximum(k - 1, 0)))

    def chains(self) -> list[Chains]:
        """Return the one kind of request there is.

        After gamma accepted drafts the bonus position is itself accepted with `stay_accepted`, and the next
        chain goes on from there.
        """

        def after_bonus(k: NDArray[np.int64]) -> Floats:
            still = np.power(self.stay_accepted, k, dtype=np.float64)
            return np.asarray(self.stay_accepted * still + (1 - self.stay_accepted) * self.survival(k))

        return [Chains(1.0, self.survival, after_bonus)]


Law: TypeAlias = Iid | PerDepth | Decaying | Beta | Markov
"""Any synthetic law.  To add one: its settings, runs, survival and chains, and its name here."""


def depth_runs(luck: Floats, rate: Callable[[int], float]) -> Runs:
    """Return run lengths where the token at depth d of a chain (from 0) is accepted if its luck < rate(d)."""
    runs = np.zeros(len(luck), np.int64)
    alive = np.arange(len(luck))
    for depth in range(len(luck)):
        alive = alive[alive + depth < len(luck)]
        alive = alive[luck[alive + depth] < rate(depth)]
        if not len(alive):
            break
        runs[alive] += 1
    return runs


def beta_nodes(a: float, b: float) -> tuple[list[float], list[float]]:
    """Return nodes in (0, 1) and weights that integrate against Beta(a, b).

    Golub & Welsch 1969: eigenvalues of the Jacobi polynomials' recurrence, shifted to [0, 1].
    """
    p, q = b - 1, a - 1
    n = np.arange(QUADRATURE_NODES, dtype=np.float64)
    total = 2 * n + p + q
    with np.errstate(invalid="ignore", divide="ignore"):
        diagonal = (q * q - p * p) / (total * (total + 2))
        m, t = n[1:], total[1:]
        off = np.sqrt(4 * m * (m + p) * (m + q) * (m + p + q) / (t * t * (t * t - 1)))
    # The first terms are 0 / 0 for some a and b; their limits are known.
    diagonal[0] = (q - p) / (p + q + 2)
    off[0] = np.sqrt(4 * (1 + p) * (1 + q) / ((p + q + 2) ** 2 * (p + q + 3)))
    values, vectors = np.linalg.eigh(np.diag(diagonal) + np.diag(off, 1) + np.diag(off, -1))
    nodes = np.clip((values + 1) / 2, 0.0, 1.0)
    return nodes.tolist(), (vectors[0] ** 2).tolist()
