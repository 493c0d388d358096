"""How far a record's acceptance is from independent drafts of one alpha: between requests, and from draft to draft."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pearl_sim.metrics import Interval, ratio
from pearl_sim.survival import Chains, Checks


class Dependence(NamedTuple):
    """How far acceptance is from i.i.d.

    dispersion:      variance between requests over what independent drafts of one alpha would show: 1 if i.i.d.;
                     nan for one request.
    autocorrelation: of a draft's being right with the next one's, within requests: 0 if i.i.d.; nan if no order is
                     known.
    """

    dispersion: Interval
    autocorrelation: Interval


def dependence(checks: Checks, chains: Sequence[Chains] | None) -> Dependence:
    """Return over-dispersion and autocorrelation; the interval of dispersion is what i.i.d. drafts would show."""
    checked, accepted = checks.checked.sum(axis=1), checks.accepted.sum(axis=1)
    known = checked > 0
    checked, accepted = checked[known], accepted[known]
    alpha = accepted.sum() / max(checked.sum(), 1)
    nothing = Interval(math.nan, math.nan, math.nan)
    if len(checked) < 2 or not 0 < alpha < 1:
        dispersion = nothing
    else:
        freedom = len(checked) - 1
        value = float(np.sum((accepted - alpha * checked) ** 2 / checked) / (alpha * (1 - alpha)) / freedom)
        dispersion = Interval(value, chi2_quantile(0.025, freedom) / freedom, chi2_quantile(0.975, freedom) / freedom)
    return Dependence(dispersion, nothing if chains is None else _autocorrelation(chains))


def _autocorrelation(chains: Sequence[Chains]) -> Interval:
    """Return the lag-1 autocorrelation of right and wrong drafts around each request's own mean."""
    top, bottom = [], []
    for lengths, censored in chains:
        drafts, wrong = int(lengths.sum() + (~censored).sum()), int((~censored).sum())
        if drafts < 3 or not 0 < wrong < drafts:
            continue
        mean = 1 - wrong / drafts
        # Pairs of neighbours: inside a chain right-right, then right-wrong; behind a correction comes the next chain.
        follows = ~censored[:-1]
        right = lengths > 0
        pairs = {
            (1, 1): int(np.maximum(lengths - 1, 0).sum()),
            (1, 0): int((right & ~censored).sum()),
            (0, 1): int((follows & right[1:]).sum()),
            (0, 0): int((follows & ~right[1:] & ~censored[1:]).sum()),
        }
        number = sum(pairs.values())
        product = sum(count * (a - mean) * (b - mean) for (a, b), count in pairs.items())
        # Around a mean taken from the same drafts, independent ones would show -1 / drafts.
        top.append(product + number * mean * (1 - mean) / drafts)
        bottom.append(number * mean * (1 - mean))
    if len(top) < 2:
        error = 1.959964 / math.sqrt(max(sum(len(own.lengths) + own.lengths.sum() for own in chains), 1))
        value = top[0] / bottom[0] if top else math.nan
        return Interval(value, value - error, value + error)
    return ratio(top, bottom)


def chi2_tail(value: float, freedom: int) -> float:
    """Return the probability that chi-squared exceeds `value` (Wilson & Hilferty 1931; within 0.01 of the truth)."""
    z = ((value / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / math.sqrt(2 / (9 * freedom))
    return 0.5 * math.erfc(z / math.sqrt(2))


def chi2_quantile(share: float, freedom: int) -> float:
    """Return the value that chi-squared stays below with probability `share`, 0.025 or 0.975, by the same formula."""
    z = {0.025: -1.959964, 0.975: 1.959964}[share]
    return freedom * max(0.0, 1 - 2 / (9 * freedom) + z * math.sqrt(2 / (9 * freedom))) ** 3
