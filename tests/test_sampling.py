"""Sampling: lossless in distribution (rejection), the same draw on both sides (coupled), transformers' own filters."""

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the extra: models")
pytest.importorskip("transformers", reason="needs the extra: models")

from pearl_sim.errors import InputError
from pearl_sim.models import sampling as s

FALSE_ALARM = 1e-4


def chi_square_p(counts, expected):
    """Return the p-value of Pearson's test (Wilson & Hilferty's approximation of the chi-square tail)."""
    kept = expected > 0
    assert (counts[~kept] == 0).all(), "an impossible outcome occurred"
    statistic = ((counts[kept] - expected[kept]) ** 2 / expected[kept]).sum()
    freedom = int(kept.sum()) - 1
    z = ((statistic / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / math.sqrt(2 / (9 * freedom))
    return 0.5 * math.erfc(z / math.sqrt(2))


def random_log_p(rows, vocabulary, seed):
    logits = torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 1.5
    return torch.log_softmax(logits, -1)


def test_gumbel_draws_follow_the_distribution():
    log_p = random_log_p(1, 7, 0)
    draws = [s.perturbed_argmax(log_p, 1, request, 3, s.TARGET)[0] for request in range(20_000)]
    assert chi_square_p(np.bincount(draws, minlength=7), 20_000 * log_p[0].exp().numpy()) > FALSE_ALARM


@pytest.mark.parametrize("gamma", [1, 2, 3])
def test_rejection_sampling_keeps_the_targets_distribution(gamma):
    """The first token that a round emits, drafted or corrected, and the bonus after accepted ones, follow p exactly."""
    sampling = s.Sampling(mode="rejection", seed=9)
    p, q = random_log_p(gamma + 1, 5, 1), random_log_p(gamma, 5, 2)
    firsts, bonuses, trials = [], [], 20_000
    for request in range(trials):
        drafted = s.perturbed_argmax(q, 9, request, 4, s.DRAFT)
        count, own = s.accepted(p, q, drafted, sampling, request, 4)
        firsts.append(drafted[0] if count else own)
        if count == gamma:
            bonuses.append(own)
    assert chi_square_p(np.bincount(firsts, minlength=5), trials * p[0].exp().numpy()) > FALSE_ALARM
    assert chi_square_p(np.bincount(bonuses, minlength=5), len(bonuses) * p[gamma].exp().numpy()) > FALSE_ALARM


def test_rejection_accepts_with_the_overlap_of_both_distributions():
    sampling = s.Sampling(mode="rejection", seed=2)
    p, q = random_log_p(2, 6, 3), random_log_p(1, 6, 4)
    trials = 20_000
    accepted = sum(
        s.accepted(p, q, s.perturbed_argmax(q, 2, request, 0, s.DRAFT), sampling, request, 0)[0]
        for request in range(trials)
    )
    overlap = float(torch.minimum(p[0].exp(), q[0].exp()).sum())
    assert abs(accepted / trials - overlap) < 4 * math.sqrt(overlap * (1 - overlap) / trials)


def test_identical_distributions_are_always_accepted_and_disjoint_ones_never():
    sampling = s.Sampling(mode="rejection")
    p = random_log_p(4, 6, 5)
    assert all(
        s.accepted(p, p[:3], s.perturbed_argmax(p[:3], 0, r, 0, s.DRAFT), sampling, r, 0)[0] == 3 for r in range(50)
    )
    left, right = torch.tensor([[0.5, 0.5, 0, 0]]).log().double(), torch.tensor([[0, 0, 0.5, 0.5]]).log().double()
    for request in range(50):
        drafted = s.perturbed_argmax(right, 0, request, 0, s.DRAFT)
        count, own = s.accepted(left, right, drafted, sampling, request, 0)
        assert count == 0
        assert own in (0, 1)


def test_without_a_bonus_row_there_is_no_bonus():
    sampling = s.Sampling(mode="rejection")
    p = random_log_p(2, 6, 5)
    assert s.accepted(p, p, s.perturbed_argmax(p, 0, 0, 0, s.DRAFT), sampling, 0, 0) == (2, -1)


def test_coupled_models_agree_as_often_as_theory_says():
    """P(both draw x), summed: sum_x 1 / sum_y max(p_y / p_x, q_y / q_x) (Daliri et al. 2024)."""
    p, q = random_log_p(1, 6, 7), random_log_p(1, 6, 8)
    trials = 20_000
    agree = sum(
        s.perturbed_argmax(p, 1, r, 0, s.GUMBEL) == s.perturbed_argmax(q, 1, r, 0, s.GUMBEL) for r in range(trials)
    )
    a, b = p[0].exp(), q[0].exp()
    expected = sum(float(1 / torch.maximum(a / a[x], b / b[x]).sum()) for x in range(6))
    assert abs(agree / trials - expected) < 4 * math.sqrt(expected * (1 - expected) / trials)


def test_draws_of_different_positions_requests_seeds_and_streams_are_unrelated():
    keys = {s.key(*k) for k in np.ndindex(6, 6, 40, 4)}
    assert len(keys) == 6 * 6 * 40 * 4
    uniforms = np.array([s.uniform(s.key(0, 0, position, s.ACCEPT)) for position in range(20_000)])
    assert abs(np.corrcoef(uniforms[:-1], uniforms[1:])[0, 1]) < 0.03
    assert chi_square_p(np.histogram(uniforms, 20, (0, 1))[0], np.full(20, 1000.0)) > FALSE_ALARM


def test_a_larger_vocabulary_draws_the_same_noise_for_the_same_tokens():
    """Families pad their vocabularies differently; the shared noise must not depend on it."""
    key = s.key(1, 2, 3, s.GUMBEL)
    assert torch.equal(s._gumbel(key, 100, torch.device("cpu")), s._gumbel(key, 130, torch.device("cpu"))[:100])


def test_filters_are_those_of_transformers():
    from transformers import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    logits = torch.randn(3, 40, generator=torch.Generator().manual_seed(0))
    for options, warpers in (
        ({"temperature": 0.5}, [TemperatureLogitsWarper(0.5)]),
        ({"top_k": 5}, [TopKLogitsWarper(5)]),
        ({"top_p": 0.6, "temperature": 2.0}, [TemperatureLogitsWarper(2.0), TopPLogitsWarper(0.6)]),
        ({"min_p": 0.2}, [MinPLogitsWarper(0.2)]),
    ):
        expected = logits
        for warper in warpers:
            expected = warper(None, expected)
        found = s.scores(logits, s.Sampling(mode="coupled", **options))
        assert torch.allclose(found.exp(), torch.softmax(expected.double(), -1), atol=1e-12)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"mode": "guess"}, "mode = 'guess': must be 'greedy', 'coupled' or 'rejection'"),
        ({"mode": "coupled", "temperature": 0.0}, "temperature = 0.0: must be greater than 0"),
        ({"mode": "coupled", "top_p": 1.5}, "top_p = 1.5: must be less than or equal to 1"),
        ({"mode": "coupled", "top_k": 0}, "top_k = 0: must be greater than or equal to 1"),
        ({"mode": "greedy", "temperature": 0.5}, "temperature changes nothing in greedy mode"),
    ],
)
def test_bad_sampling_is_refused(given, complaint):
    with pytest.raises(InputError, match=complaint):
        s.Sampling.read("sampling", given)
