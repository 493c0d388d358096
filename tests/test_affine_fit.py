"""The affine fit finds what was put in, says how far off it is, and can be used as it is written."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pearl_sim.affine_fit import as_toml, fit_cost, non_negative
from pearl_sim.scenario import read_cost
from pearl_sim.trace import STEPS


@settings(max_examples=60)
@given(st.integers(1, 5), st.integers(0, 2**32 - 1))
def test_non_negative_least_squares_meets_its_optimality_conditions(width, seed):
    """Karush, Kuhn, Tucker: no gradient where x > 0, none downhill where x = 0."""
    rng = np.random.default_rng(seed)
    terms, values = rng.normal(size=(30, width)), rng.normal(size=30)
    x = non_negative(terms, values)
    gradient = terms.T @ (terms @ x - values)
    assert (x >= 0).all()
    assert np.abs(gradient[x > 0]).max(initial=0) < 1e-8
    assert gradient[x == 0].min(initial=0) > -1e-8


def forward_ns(base, sequence, token, context, both):
    return lambda batch, tokens, before: base + batch * (sequence + token * tokens + before * (context + both * tokens))


def steps(draft, start, target, noise=0.0, seed=0):
    """Return the steps of a grid: chains of 1 to 8, 1 to 9 positions, three contexts, three batch sizes."""
    rng, rows = np.random.default_rng(seed), []
    for number, (batch, before, size, beside) in enumerate(
        (b, c, n, o) for b in (1, 2, 8) for c in (10, 300, 2000) for n in range(1, 10) for o in (False, True)
    ):
        chain = start + sum(draft(batch, 1, before + written) for written in range(size))
        for role, ns in (("draft", chain), ("target", target(batch, size, before))):
            took = round(ns * (1 + noise * rng.normal()))
            rows.append(("profile", "0", 3 * number, role, 0, took, size, before, batch, beside))
    rows += [("profile", "0", 0, role, 0, 777, 50, 0, 1, True) for role in ("draft", "target")]
    return pl.DataFrame(rows, STEPS, orient="row")


DRAFT = forward_ns(90_000, 12_000, 0, 31, 0)
TARGET = forward_ns(700_000, 8_000, 20_000, 55, 7)


def test_every_coefficient_is_found_where_there_is_no_noise():
    found = fit_cost(steps(DRAFT, 40_000, TARGET))
    cost = found.cost
    assert (cost.draft.base, cost.draft.per_sequence, cost.draft.per_context_token) == pytest.approx(
        (90_000, 12_000_000, 31_000), rel=1e-3
    )
    assert cost.draft_start == pytest.approx(40_000, rel=1e-2)
    told = cost.target
    assert (told.base, told.per_sequence, told.per_token) == pytest.approx((700_000, 8_000_000, 20_000_000), rel=1e-2)
    assert (told.per_context_token, told.per_token_and_context_token) == pytest.approx((55_000, 7_000), rel=1e-2)
    assert max(misfit.p95 for misfit in found.misfits) < 1e-3
    assert cost.prefill == 777


def test_noise_shows_in_the_misfit_and_in_the_spread_and_biases_nothing():
    found = fit_cost(steps(DRAFT, 40_000, TARGET, noise=0.05))
    for misfit in found.misfits:
        assert misfit.median == pytest.approx(0.6745 * 0.05, rel=0.3)
        assert abs(misfit.alone) < 0.01
        assert abs(misfit.beside) < 0.01
    assert np.std(found.cost.target.spread) == pytest.approx(0.05, rel=0.3)


def test_the_written_fit_is_read_back_as_the_same_cost_and_says_what_it_leaves_unexplained(tmp_path):
    found = fit_cost(steps(DRAFT, 40_000, TARGET, noise=0.02))
    text = as_toml(found, "somewhere")
    (tmp_path / "cost.toml").write_text(text)
    assert read_cost(tmp_path / "cost.toml") == found.cost
    assert f"within {found.misfits[1].p95:.1%}" in text
