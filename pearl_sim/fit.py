"""Which synthetic law of acceptance a record looks like, by likelihood, and how badly it fits.

The likelihood of a record is that of its checks: each draft that was looked at was accepted or not.

iid        alpha                          h = alpha at every depth
per_depth  D rates, D chosen by BIC       h_d = rates[d], the last for all deeper
decaying   alpha, rate                    h_d = alpha rate^(d-1)
markov     stay_accepted, stay_rejected   h_1 = 1 - stay_rejected, h_d = stay_accepted: a chain follows a correction
beta       a, b                           each request its own alpha: B(a + accepted, b + rejected) / B(a, b)

A law is rejected, at 1 %, if either of two chi-squared sums is too large: over depths, does each depth accept as the
law says, given what was checked there?  Over requests, do they differ as the law says?  Checks given what came before
are a martingale, so under the law both sums are chi-squared (for beta, a request's alpha is its posterior mean).
With enough data every law is rejected, so it is also told how far its S(k) is off.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from pearl_sim.acceptance import Beta, Decaying, Floats, Iid, Law, Markov, PerDepth, beta_nodes
from pearl_sim.dependence import chi2_tail
from pearl_sim.survival import Checks, Counted

REJECTED_BELOW = 0.01
ENOUGH = 5.0
"""Least variance of a cell of a chi-squared sum; smaller ones are pooled with the deeper ones."""
TINY = 1e-12


class FittedLaw(NamedTuple):
    """A law fitted to a record.

    parameters:     how many numbers were fitted.
    log_likelihood: of the record's checks, in nats.
    aic:            2 parameters - 2 log_likelihood; the smallest is best.
    depth_p, request_p: how likely so bad a fit would be if the law were true; nan where there is nothing to compare.
    survival_off:   the largest difference of its S(k) from the record's.
    rejected:       whether either is below 1 %.
    """

    law: Law
    parameters: int
    log_likelihood: float
    aic: float
    depth_p: float
    request_p: float
    survival_off: float
    rejected: bool


def fit_laws(checks: Checks, whole: bool = True) -> list[FittedLaw]:
    """Return every law fitted to the checks; the best first: of those within 2 of the least AIC, the simplest.

    `whole`: every chain follows a correction.  If not, some follow a token that nobody knows about, and markov, which
    needs to know, is left out.
    """
    checked, accepted = checks.checked.sum(axis=0), checks.accepted.sum(axis=0)
    own_checked, own_accepted = checks.checked.sum(axis=1), checks.accepted.sum(axis=1)
    alpha = accepted.sum() / checked.sum()
    found = [_judged(checks, Iid(alpha=float(alpha)), 1)]
    if whole:
        first, deeper = accepted[0] / checked[0], _share(accepted[1:].sum(), checked[1:].sum())
        found.append(_judged(checks, Markov(stay_accepted=deeper, stay_rejected=float(1 - first)), 2))
    rates = _rates(checked, accepted)
    if len(rates) > 1:
        found.append(_judged(checks, PerDepth(rates=rates), len(rates)))
    depth = np.arange(len(checked))

    def decaying(x: Floats, y: Floats) -> Floats:
        h = x[:, None] * y[:, None] ** depth
        return np.asarray(_log(h) @ accepted + _log(1 - h) @ (checked - accepted))

    start, rate = climb(decaying)
    found.append(_judged(checks, Decaying(alpha=start, rate=rate), 2))
    if np.count_nonzero(own_checked) > 1:
        rejected = own_checked - own_accepted

        def beta(x: Floats, y: Floats) -> Floats:
            a, b = _ab(x, y)
            whole = log_beta(a[:, None] + own_accepted, b[:, None] + rejected)
            return np.asarray(whole.sum(axis=1) - len(rejected) * log_beta(a, b))

        a, b = _ab(*map(np.array, climb(beta)))
        found.append(_judged(checks, Beta(a=float(a), b=float(b)), 2))
    least = min(one.aic for one in found)
    return sorted(found, key=lambda one: (one.aic > least + 2, one.parameters if one.aic <= least + 2 else one.aic))


def climb(height: Callable[[Floats, Floats], Floats]) -> tuple[float, float]:
    """Return where in the unit square `height` is largest: a grid, drawn ever closer around the best point."""
    low, high = np.zeros(2), np.ones(2)
    best = np.full(2, 0.5)
    for _ in range(24):
        x, y = (axis.ravel() for axis in np.meshgrid(*(np.linspace(low[i], high[i], 13) for i in range(2))))
        at = int(np.argmax(height(x, y)))
        best = np.array([x[at], y[at]])
        reach = (high - low) / 3.5
        low, high = np.maximum(best - reach, 0), np.minimum(best + reach, 1)
    return float(best[0]), float(best[1])


def log_beta(a: Floats, b: Floats) -> Floats:
    """Return log B(a, b)."""
    return _log_gamma(a) + _log_gamma(b) - _log_gamma(a + b)


def _log_gamma(x: Floats) -> Floats:
    """Return log Gamma(x) by Stirling's series ten steps up, where it has 13 digits (Abramowitz & Stegun 6.1.40)."""
    x = np.asarray(x, np.float64)
    steps = np.log(math.prod(x + step for step in range(10)))  # x is far below 1e30: no overflow
    z = x + 10
    series = 1 / (12 * z) - 1 / (360 * z**3) + 1 / (1260 * z**5) - 1 / (1680 * z**7)
    return np.asarray((z - 0.5) * np.log(z) - z + 0.5 * math.log(2 * math.pi) + series - steps)


def _ab(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """Return a and b of a point of the unit square: x is the mean, y the logarithm of a + b, from 0.1 to 1e5."""
    mean, size = np.clip(x, 1e-3, 1 - 1e-3), 10.0 ** (6 * y - 1)
    return np.clip(mean * size, 1e-3, 1e6), np.clip((1 - mean) * size, 1e-3, 1e6)


def _rates(checked: Counted, accepted: Counted) -> tuple[float, ...]:
    """Return rates by depth: as many as BIC finds worth their while."""
    own = accepted / np.maximum(checked, 1)
    deeper_checked, deeper = (np.append(values[::-1].cumsum()[::-1], 0) for values in (checked, accepted))

    def bic(number: int) -> float:
        head = slice(0, number - 1)
        tail = _share(deeper[number - 1], deeper_checked[number - 1])
        right = np.append(accepted[head], deeper[number - 1])
        wrong = np.append((checked - accepted)[head], deeper_checked[number - 1] - deeper[number - 1])
        h = np.append(own[head], tail)
        return number * math.log(checked.sum()) - 2 * float(np.sum(_xlog(right, h) + _xlog(wrong, 1 - h)))

    number = min(range(1, len(checked) + 1), key=bic)
    return (*own[: number - 1].tolist(), _share(deeper[number - 1], deeper_checked[number - 1]))


def _judged(checks: Checks, law: Law, parameters: int) -> FittedLaw:
    """Return the law with its likelihood and its two tests."""
    checked, accepted = checks
    depths = np.arange(1, checked.shape[1] + 1)
    if isinstance(law, Beta):
        own_checked, own_accepted = checked.sum(axis=1), accepted.sum(axis=1)
        prior = log_beta(np.array(law.a), np.array(law.b))
        likelihood = float(np.sum(log_beta(law.a + own_accepted, law.b + own_checked - own_accepted) - prior))
        alpha = ((law.a + own_accepted) / (law.a + law.b + own_checked))[:, None]
        h = np.broadcast_to(alpha, checked.shape)
        mean = law.a / (law.a + law.b)
        alike = 1 / (law.a + law.b + 1)
        requests = (
            own_accepted - mean * own_checked,
            mean * (1 - mean) * own_checked * (1 + (own_checked - 1) * alike),
        )
        survival = _over_chains(law, depths)
    else:
        survival = law.survival(depths)
        before = np.append(1.0, survival[:-1])
        h = np.broadcast_to(np.where(before > 0, survival / np.where(before > 0, before, 1), 0.0), checked.shape)
        likelihood = float(np.sum(_xlog(accepted, h) + _xlog(checked - accepted, 1 - h)))
        requests = ((accepted - checked * h).sum(axis=1), (checked * h * (1 - h)).sum(axis=1))
    by_depth = ((accepted - checked * h).sum(axis=0), (checked * h * (1 - h)).sum(axis=0))
    # Each request's own alpha takes one constraint from the depths, that all of its checks together are as expected.
    depth_p, request_p = _p(*by_depth, 1 if isinstance(law, Beta) else parameters), _p(*requests, parameters)
    known = checked.sum(axis=0) > 0
    seen = np.cumprod(accepted.sum(axis=0)[known] / checked.sum(axis=0)[known])
    off = float(np.max(np.abs(survival[known] - seen)))
    rejected = any(p < REJECTED_BELOW for p in (depth_p, request_p))  # no nan is
    aic = 2 * parameters - 2 * likelihood
    return FittedLaw(law, parameters, likelihood, aic, depth_p, request_p, off, rejected)


def _over_chains(law: Beta, depths: Counted) -> Floats:
    """Return S(k) over all chains of texts of one length, followed to the deepest of `depths`.

    A hard request has more chains than an easy one: as many as one chain's tokens, 1 + alpha + alpha^2 + ..., are few.
    """
    alpha, weight = (np.array(values) for values in beta_nodes(law.a, law.b))
    powers = alpha[:, None] ** depths
    chains = weight / (1 + powers.sum(axis=1))
    return np.asarray(chains @ powers / chains.sum())


def _p(off: Floats, variance: Floats, parameters: int) -> float:
    """Return the tail probability of the chi-squared sum over cells, thin ones pooled; nan if none is left to judge."""
    cells: list[tuple[float, float]] = []
    for one, spread in zip(off.tolist(), variance.tolist(), strict=True):
        if cells and cells[-1][1] < ENOUGH:
            cells[-1] = (cells[-1][0] + one, cells[-1][1] + spread)
        else:
            cells.append((one, spread))
    if len(cells) > 1 and cells[-1][1] < ENOUGH:
        (last_off, last_spread), (own_off, own_spread) = cells.pop(), cells.pop()
        cells.append((own_off + last_off, own_spread + last_spread))
    freedom = len(cells) - parameters
    if freedom < 1 or any(spread <= 0 for _, spread in cells):
        return math.nan
    return chi2_tail(sum(one * one / spread for one, spread in cells), freedom)


def _share(part: float, whole: float) -> float:
    return float(part / whole) if whole else 0.0


def _log(values: Floats) -> Floats:
    return np.log(np.maximum(values, TINY))


def _xlog(times: Counted, values: Floats) -> Floats:
    """Return times * log(values), 0 where times is 0."""
    return np.asarray(np.where(times > 0, times * _log(values), 0.0))
