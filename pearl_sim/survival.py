"""How long chains of drafts survive, estimated from a record: S(k) and its kin, with intervals.

A chain starts after each correction, goes on until a draft is wrong, and the next one starts behind that correction:
the chains that PEARL runs through, whatever gamma.  Where a record stopped looking, the chain is censored and the next
one starts behind the token that nobody knows about.  The chain that a request's end cuts is censored too.

Conditional acceptance at depth k is accepted over checked, S(k) the product of these down to k (Kaplan & Meier 1958).
Its variance is Greenwood's, with requests in place of chains: a request's chains are alike, so what varies is the
request.  In d log S(k) = sum over depths d <= k of (accepted_d - h_d checked_d) / (h_d checked_d) the contribution of
each request is summed first, then squared (the jackknife's linear form).  Where the record tells no requests apart,
chains are taken as independent, which is Greenwood's own formula.  Intervals are Wilson's at the number of independent
checks that would vary as much, so they stay within 0 and 1, and Student's t at the requests' degrees of freedom.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pearl_sim.acceptance import Floats
from pearl_sim.judge import Censored, Runs
from pearl_sim.metrics import Interval, t95

Counted = NDArray[np.int64]

DEEPEST = 1024
"""Chains are followed no further; a longer one counts as censored there."""


class Chains(NamedTuple):
    """The chains of one request, in order: their lengths, and which may really be longer."""

    lengths: Runs
    censored: Censored


class Checks(NamedTuple):
    """Drafts checked and accepted, [request, depth - 1]."""

    checked: Counted
    accepted: Counted


class Depth(NamedTuple):
    """What is known about depth k; `conditional`: acceptance of the k-th draft of a chain of which k - 1 were right.

    tokens_per_forward: of a target forward of plain speculative decoding at gamma = k, the target's own included.
    """

    depth: int
    checked: int
    accepted: int
    conditional: Interval
    survival: Interval
    tokens_per_forward: Interval


def chains_of(runs: Runs, censored: Censored) -> Chains:
    """Return the chains of a request, given its run at every position; decoding starts behind position 0."""
    end, start = len(runs), 1
    run, cut = runs.tolist(), censored.tolist()
    lengths, unknown = [], []
    while start < end:
        length, ends = min(run[start], end - start), run[start] >= end - start
        lengths.append(length)
        unknown.append(cut[start] or ends)
        start += length + 1
    return Chains(np.array(lengths, np.int64), np.array(unknown, np.bool_))


def checks_of(chains: Sequence[Chains]) -> Checks:
    """Return what was checked and accepted at each depth, a row a request."""
    deepest = min(max((int(own.lengths.max(initial=0)) for own in chains), default=0) + 1, DEEPEST)
    accepted, checked = np.zeros((2, len(chains), deepest), np.int64)
    for row, (lengths, censored) in enumerate(chains):
        stopped = np.bincount(np.minimum(lengths, deepest), minlength=deepest + 1)
        rejected = np.bincount(lengths[~censored & (lengths < deepest)], minlength=deepest)
        # Draft d was accepted in every chain of length d or more, and checked where it was accepted or rejected.
        accepted[row] = stopped[::-1].cumsum()[::-1][1:]
        checked[row] = accepted[row] + rejected
    return Checks(checked, accepted)


def estimate(checks: Checks) -> list[Depth]:
    """Return the estimate at every depth at which a draft was checked."""
    checked, accepted = checks.checked.sum(axis=0), checks.accepted.sum(axis=0)
    depths = int(np.count_nonzero(checked))
    checked, accepted = checked[:depths], accepted[:depths]
    h = accepted / checked
    survival = np.cumprod(h)
    influence = _influence(checks, h)
    spread = _variance(influence, checked, h)
    log_s = np.cumsum(influence, axis=1)
    s_spread = survival**2 * _variance(log_s, checked, h, running=True)
    mean = 1 + np.cumsum(survival)
    m_spread = _mean_variance(log_s, survival, checked, h)
    t = t95(len(checks.checked) - 1) if len(checks.checked) > 1 else 1.959964
    return [
        Depth(
            k + 1,
            int(checked[k]),
            int(accepted[k]),
            wilson(float(h[k]), float(h[k] ** 2 * spread[k]), float(checked[k]), t),
            wilson(float(survival[k]), float(s_spread[k]), float(checked[k]), t),
            # No forward gives fewer tokens than one, or more than its drafts and one.
            Interval(
                float(mean[k]),
                max(1.0, float(mean[k] - t * m_spread[k] ** 0.5)),
                min(k + 2.0, float(mean[k] + t * m_spread[k] ** 0.5)),
            ),
        )
        for k in range(depths)
    ]


def wilson(share: float, variance: float, number: float, t: float) -> Interval:
    """Return Wilson's interval of a share whose estimate has this variance.

    Where it shows none (a share of 0 or 1), or less than independent checks would, `number` checks are assumed.
    """
    independent = share * (1 - share)
    number = min(number, independent / variance) if variance > 0 else number
    center = (share + t * t / (2 * number)) / (1 + t * t / number)
    reach = t / (1 + t * t / number) * math.sqrt(independent / number + t * t / (4 * number**2))
    return Interval(share, max(0.0, center - reach), min(1.0, center + reach))


def _influence(checks: Checks, h: Floats) -> Floats:
    """Return what each request adds to the error of log h, [request, depth]."""
    depths = len(h)
    checked, accepted = checks.checked[:, :depths], checks.accepted[:, :depths]
    scale = np.where(h > 0, h, 1.0) * checked.sum(axis=0)
    return np.asarray((accepted - h * checked) / scale * (h > 0))


def _variance(influence: Floats, checked: Counted, h: Floats, running: bool = False) -> Floats:
    """Return the variance of each column: between requests, or between chains if there is one request only."""
    requests = len(influence)
    if requests > 1:
        return np.asarray(np.sum(influence**2, axis=0) * requests / (requests - 1))
    own = (1 - h) / (np.where(h > 0, h, 1.0) * checked)
    return np.cumsum(own) if running else own


def _mean_variance(log_s: Floats, survival: Floats, checked: Counted, h: Floats) -> Floats:
    """Return the variance of 1 + S(1) + ... + S(k), for each k."""
    requests = len(log_s)
    if requests > 1:
        return np.asarray(np.sum(np.cumsum(log_s * survival, axis=1) ** 2, axis=0) * requests / (requests - 1))
    # Greenwood: the error of log h_d is in every S(j), j >= d.
    own = (1 - h) / (np.where(h > 0, h, 1.0) * checked)
    partial = np.cumsum(survival)
    before = np.append(0.0, partial[:-1])
    return np.array([np.sum((partial[k] - before[: k + 1]) ** 2 * own[: k + 1]) for k in range(len(h))])
