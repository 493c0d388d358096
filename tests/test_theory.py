"""The theory against exact enumeration, its own limits, and the numbers that the design measured."""

import csv
import math
import statistics
from pathlib import Path

import numpy as np
import pytest
from cases import plain
from exact import chain_runs, depth_tables, iid_tables, markov_tables

from pearl_sim import theory
from pearl_sim.acceptance import Beta, Decaying, Iid, Markov, PerDepth, beta_nodes
from pearl_sim.policies import POLICIES, autoregressive, pearl, speculative
from pearl_sim.theory import best_gamma, iid, note_pearl_speed, pearl_tokens_per_round, request_time, round_time, speed

NANO_PEARL = Path(__file__).parents[2] / "shared" / "data" / "nano_pearl_h200.csv"
GAMMAS = {
    ("Qwen2.5-1.5B", "Qwen2.5-72B"): 9,
    ("Qwen2.5-3B", "Qwen2.5-72B"): 6,
    ("Qwen3-0.6B", "Qwen3-32B"): 6,
    ("Qwen3-1.7B", "Qwen3-32B"): 5,
    ("Llama-1B", "Llama-70B"): 11,
    ("Llama-3B", "Llama-70B"): 7,
}
LAWS = [
    Iid(alpha=0.7),
    PerDepth(rates=(0.9, 0.5, 0.7)),
    Decaying(alpha=0.95, rate=0.85),
    Beta(a=4.0, b=1.5),
    Markov(stay_accepted=0.9, stay_rejected=0.6),
]
ENUMERATED = {
    "iid": (Iid(alpha=0.7), lambda limit: iid_tables(0.7, limit), 11),
    "iid 0": (Iid(alpha=0.0), lambda limit: iid_tables(0.0, limit), 8),
    "iid 1": (Iid(alpha=1.0), lambda limit: iid_tables(1.0, limit), 8),
    "per_depth": (PerDepth(rates=(0.9, 0.4)), lambda limit: depth_tables([0.9] + [0.4] * limit, limit), 8),
    "per_depth rising": (
        PerDepth(rates=(0.5, 0.7, 0.9)),
        lambda limit: depth_tables([0.5, 0.7] + [0.9] * limit, limit),
        7,
    ),
    "decaying": (
        Decaying(alpha=0.9, rate=0.8),
        lambda limit: depth_tables([0.9 * 0.8**depth for depth in range(limit)], limit),
        7,
    ),
    "markov": (Markov(stay_accepted=0.9, stay_rejected=0.6), lambda limit: markov_tables(0.9, 0.6, limit), 11),
    "markov alternating": (
        Markov(stay_accepted=0.2, stay_rejected=0.1),
        lambda limit: markov_tables(0.2, 0.1, limit),
        9,
    ),
}


@pytest.mark.parametrize("law", sorted(ENUMERATED))
def test_request_time_is_the_exact_mean_over_every_text_the_law_can_draw(law):
    settings, tables, longest = ENUMERATED[law]
    for limit in (1, 2, 4, longest):
        drawn = list(tables(limit))
        assert math.isclose(math.fsum(probability for probability, _ in drawn), 1, rel_tol=1e-12)
        for name, policy_of in POLICIES.items():
            for gamma in range(1, 5):
                exact = math.fsum(
                    probability * sum(lasts for *_, lasts in plain(name, gamma, runs, limit, 3, 10, 1))
                    for probability, runs in drawn
                    if probability
                )
                told = request_time(policy_of(gamma), settings.chains(), round_time(3, 10, 1), limit - 1)
                assert math.isclose(told, exact, rel_tol=1e-11), (name, gamma, limit)


def test_request_time_of_beta_is_the_mean_over_its_alphas():
    """A mean time is a polynomial in alpha, so exact moments of Beta give it exactly: E[a^i (1-a)^j]."""
    a, b, limit = 4.0, 1.5, 9
    for name, policy_of in POLICIES.items():
        for gamma in range(1, 5):
            exact = 0.0
            for bits in range(1 << (limit - 1)):
                right = bits.bit_count()
                moments = [(a + i) / (a + b + i) for i in range(right)]
                moments += [(b + j) / (a + b + right + j) for j in range(limit - 1 - right)]
                runs = chain_runs([0, *(bits >> position & 1 for position in range(limit - 1))])
                exact += math.prod(moments) * sum(lasts for *_, lasts in plain(name, gamma, runs, limit, 3, 10, 1))
            told = request_time(policy_of(gamma), Beta(a=a, b=b).chains(), round_time(3, 10, 1), limit - 1)
            assert math.isclose(told, exact, rel_tol=1e-11), (name, gamma)


@pytest.mark.parametrize("law", [law for law in LAWS if law.law != "beta"], ids=lambda law: law.law)
@pytest.mark.parametrize("name", sorted(POLICIES))
def test_steady_speed_is_what_a_longer_request_costs_more(name, law):
    for gamma in (1, 3, 8):
        policy, duration = POLICIES[name](gamma), round_time(1, 5, 0.5)
        short, long = (request_time(policy, law.chains(), duration, tokens) for tokens in (1500, 2000))
        assert math.isclose(500 / (long - short), theory.steady_speed(policy, law.chains(), duration), rel_tol=1e-9)


def test_steady_speed_of_a_mixture_is_the_harmonic_mean_over_its_requests():
    mixture, duration = Beta(a=4.0, b=1.5).chains(), round_time(1, 5, 0.5)
    for policy_of in POLICIES.values():
        alone = [theory.steady_speed(policy_of(3), [kind._replace(weight=1.0)], duration) for kind in mixture]
        mean_time = sum(kind.weight / speed for kind, speed in zip(mixture, alone, strict=True))
        assert math.isclose(theory.steady_speed(policy_of(3), mixture, duration), 1 / mean_time, rel_tol=1e-12)


@pytest.mark.parametrize("gamma", [1, 2, 4, 7, 20])
@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.8, 0.95])
def test_closed_forms_are_the_sums_they_stand_for(alpha, gamma):
    survival = iid(alpha)
    assert math.isclose(pearl_tokens_per_round(alpha, gamma), theory.tokens_per_round(pearl(gamma), survival))
    told = theory.speculative_tokens_per_round(alpha, gamma)
    assert math.isclose(told, theory.tokens_per_round(speculative(gamma), survival))
    assert math.isclose(told, sum(alpha**k for k in range(gamma + 1)))


@pytest.mark.parametrize("gamma", [2, 3, 5])
def test_cycles_of_the_ablations_are_those_of_the_design(gamma):
    alpha, survival = 0.8, iid(0.8)
    without_pre, without_post = POLICIES["pearl-no-pre"](gamma), POLICIES["pearl-no-post"](gamma)
    assert math.isclose(theory.tokens_per_cycle(without_pre, survival), 1 / (1 - alpha))
    rounds = 1 + theory.rounds_per_cycle(without_pre, survival)  # one more, in which the target waits
    assert math.isclose(rounds, 1 + 1 / (1 - alpha**gamma))
    assert math.isclose(theory.tokens_per_cycle(without_post, survival), sum(alpha**k for k in range(gamma + 1)))
    assert math.isclose(theory.rounds_per_cycle(without_post, survival), 1 + alpha)


def test_at_alpha_0_and_1_the_speeds_are_those_of_common_sense():
    for gamma in (1, 2, 5):
        assert pearl_tokens_per_round(0.0, gamma) == 1
        assert pearl_tokens_per_round(1.0, gamma) == gamma
        assert math.isclose(theory.tokens_per_round(pearl(gamma), iid(1.0)), gamma, rel_tol=gamma / 2**16)
        assert theory.speculative_tokens_per_round(0.0, gamma) == 1
        assert theory.speculative_tokens_per_round(1.0, gamma) == gamma + 1
    assert speed(autoregressive(), iid(0.5), round_time(1, 10)) == 0.1


def test_at_gamma_1_pearl_writes_one_token_a_round_whatever_is_accepted():
    for alpha in (0.0, 0.5, 1.0):
        assert pearl_tokens_per_round(alpha, 1) == theory.tokens_per_round(pearl(1), iid(alpha)) == 1
        assert request_time(pearl(1), Iid(alpha=alpha).chains(), round_time(1, 10), 57) == pytest.approx(570, rel=1e-12)


def test_the_numbers_of_the_design_come_out():
    times = round_time(1, 10)
    assert round(speed(pearl(4), iid(0.8), times), 4) == 0.2123
    assert round(speed(pearl(4), iid(0.9), times), 4) == 0.2765
    assert round(speed(speculative(4), iid(0.9), times), 4) == 0.2925
    assert round(note_pearl_speed(0.9, 4, 1, 10), 3) == 0.952
    assert round(speed(pearl(10), iid(0.9), times), 3) == 0.420
    assert best_gamma(speculative, iid(0.9), 1, 10) == 10
    assert round(speed(speculative(10), iid(0.9), times), 3) == 0.343


def test_pearl_at_gamma_4_loses_to_speculative_decoding_between_alpha_0_404_and_0_943_only():
    """It also wins where nearly nothing is accepted: its round lasts 10, the other's 14."""
    sd_wins = [
        alpha
        for alpha in np.linspace(0, 0.999, 1000)
        if speed(pearl(4), iid(alpha), round_time(1, 10)) < speed(speculative(4), iid(alpha), round_time(1, 10))
    ]
    assert (round(sd_wins[0], 3), round(sd_wins[-1], 3), len(sd_wins)) == (0.405, 0.943, 539)


def test_the_notes_estimate_promises_more_than_the_ceiling_and_the_theory_never_does():
    assert note_pearl_speed(0.9, 4, 1, 10) > 2 * theory.pearl_ceiling(4, 1, 10)
    assert note_pearl_speed(1.0, 4, 1, 10) == math.inf
    for gamma, alpha, target in [(g, a / 20, t) for g in (1, 2, 4, 10, 15) for a in range(20) for t in (2, 10)]:
        pearl_speed = speed(pearl(gamma), iid(alpha), round_time(1, target))
        assert pearl_speed <= theory.pearl_ceiling(gamma, 1, target) * (1 + 1e-9)
        assert pearl_speed <= 1 + 1e-9  # the draft model's own speed: the speed-up is at most t_target / t_draft


@pytest.mark.parametrize("ratio", [2, 3, 5, 8, 10, 16])
def test_best_gamma_of_pearl_is_the_ratio_of_the_two_models_where_it_is_whole(ratio):
    for alpha in (0.2, 0.5, 0.8, 0.9, 0.97):
        assert best_gamma(pearl, iid(alpha), 1, ratio) == ratio
        assert best_gamma(pearl, iid(alpha), 7.0, 7.0 * ratio) == ratio


def test_best_gamma_at_a_fractional_ratio_depends_on_alpha():
    found = {best_gamma(pearl, iid(alpha), 1, 4.5) for alpha in (0.3, 0.5, 0.7, 0.9, 0.99)}
    assert found == {4, 5}


@pytest.mark.parametrize(("a", "b"), [(1.0, 1.0), (0.5, 0.5), (4.0, 1.5), (0.05, 3.0), (80.0, 20.0), (1e6, 1e6)])
def test_beta_nodes_integrate_polynomials_exactly(a, b):
    nodes, weights = map(np.array, beta_nodes(a, b))
    assert weights.min() >= 0 and nodes.min() >= 0 and nodes.max() <= 1
    moment = 1.0
    for degree in range(2 * len(nodes)):
        assert math.isclose(weights @ nodes**degree, moment, rel_tol=1e-9), degree
        moment *= (a + degree) / (a + b + degree)


def test_survival_starts_at_1_and_never_rises():
    depth = np.arange(300)
    for law in LAWS:
        for kind in law.chains():
            for survival in (law.survival, kind.after_correction, kind.after_bonus):
                values = survival(depth)
                assert values[0] == pytest.approx(1, rel=1e-12)
                assert (np.diff(values) <= 1e-15).all()


def test_tokens_per_round_agrees_with_the_published_h200_measurements():
    """One gamma a pair; alpha = 1 - 1 / MAT; prefill's token belongs to no round."""
    if not NANO_PEARL.exists():
        pytest.skip(f"{NANO_PEARL} is not here; it lies beside the repository, not in it")
    with NANO_PEARL.open() as file:
        rows = list(csv.DictReader(file))
    errors = []
    for row in rows:
        decoded = int(row["pearl_tokens"]) / int(row["sequences"]) - 1
        measured = decoded / int(row["pearl_steps_per_sequence"])
        gamma = GAMMAS[short(row["draft"]), short(row["target"])]
        errors.append(pearl_tokens_per_round(1 - 1 / float(row["pearl_mat"]), gamma) / measured - 1)
    assert len(errors) == 96
    assert statistics.median(map(abs, errors)) <= 0.025
    assert max(map(abs, errors)) <= 0.10
    assert abs(statistics.mean(errors)) <= 0.005


def short(model):
    """Return family and size: "Meta-Llama-3.1-70B-Instruct" -> "Llama-70B"."""
    family, *_, size = model.removeprefix("Meta-").removesuffix("-Instruct").split("-")
    return f"{family}-{size}"


@pytest.mark.parametrize("policy", ["sd", "pearl", "pearl-no-pre", "pearl-no-post"])
def test_a_long_request_is_extrapolated_exactly(policy, monkeypatch):
    """Once every further token costs the same, the renewal equation is not followed to the end."""
    law, duration = PerDepth(rates=[0.6, 0.8, 0.7]), theory.round_time(1.0, 7.3, 0.2)
    times = []
    for settled in (theory.SETTLED, -1.0):
        monkeypatch.setattr(theory, "SETTLED", settled)
        times.append(theory.request_time(POLICIES[policy](5), law.chains(), duration, 2500))
    assert times[0] == pytest.approx(times[1], rel=1e-10)
