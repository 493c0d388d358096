"""Every cost model against the arithmetic it stands for."""

import numpy as np
import polars as pl
import pytest
from cases import constant, request, simulated
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError
from small_trace import small_trace, steps_table

from pearl_sim.acceptance import generator
from pearl_sim.cost import AffineCost, AffineForward, ConstantCost, Cost, EmpiricalCost, RooflineCost
from pearl_sim.drivers.sim import simulate
from pearl_sim.errors import InputError
from pearl_sim.judge import Request
from pearl_sim.latencies import DRAWS
from pearl_sim.policies import POLICIES, autoregressive, pearl, speculative
from pearl_sim.rules import widest
from pearl_sim.timing import (
    HandOver,
    Latency,
    Timing,
    delay_ns,
    draw_numbers,
    everywhere,
    latency_ns,
    mean_round_ns,
)
from pearl_sim.trace import STEPS, save


def price(latency, size, context=0):
    return latency_ns(latency, size, context, 0)


@pytest.mark.parametrize("name", sorted(POLICIES))
@pytest.mark.parametrize("gamma", [0, 1, 5])
def test_tables_cover_every_size_that_the_policy_uses(name, gamma):
    policy = POLICIES[name](gamma)
    timing = constant(3, 10).timing(policy)
    assert [price(timing.draft.alone, n) for n in range(policy.gamma + 1)] == [3 * n for n in range(policy.gamma + 1)]
    assert [price(timing.target.alone, k) for k in range(widest(policy) + 1)] == [10] * (widest(policy) + 1)
    assert len(timing.target.alone.base_ns) == widest(policy) + 1


@given(st.integers(0, 12), st.integers(0, 5000), st.integers(1, 64), st.integers(1, 12))
def test_affine_chain_costs_the_sum_of_its_forwards(n, context, batch, gamma):
    n = min(n, gamma)
    each = {"per_sequence": "5 ns", "per_token": "2 ns", "per_context_token": "3 ns"}
    draft = AffineForward(base="100 ns", per_token_and_context_token="4 ns", **each)
    timing = AffineCost(draft=draft, target=draft, batch=batch, draft_start="9 ns").timing(speculative(gamma))
    expected = sum(100 + 7 * batch + 7 * batch * (context + written) for written in range(n)) + (9 if n else 0)
    assert price(timing.draft.alone, n, context) == expected


@given(st.integers(0, 999), st.integers(0, 999), st.integers(0, 5000), st.integers(1, 12))
def test_affine_times_keep_fractions_of_a_nanosecond_up_to_one_rounding_a_term(token_ps, context_ps, context, gamma):
    model = AffineForward(base="100 ns", per_token=f"{token_ps} ps", per_context_token=f"{context_ps} ps")
    timing = AffineCost(draft=model, target=model).timing(speculative(gamma))
    for n in range(gamma + 1):
        exact = sum(100 + token_ps / 1000 + context_ps / 1000 * (context + written) for written in range(n))
        assert exact - n - 2 <= price(timing.draft.alone, n, context) <= exact + 1e-6
        exact = 100 + token_ps / 1000 * n + context_ps / 1000 * context
        assert exact - 2 <= price(timing.target.alone, n, context) <= exact + 1e-6


def test_affine_target_reads_batch_times_positions_and_context():
    each = {"per_sequence": "3 ns", "per_token": "5 ns", "per_context_token": "1 ns"}
    model = AffineForward(base="1 us", per_token_and_context_token="2 ns", **each)
    timing = AffineCost(draft=model, target=model, batch=8).timing(speculative(3))
    assert [price(timing.target.alone, k, 100) for k in (1, 4)] == [
        1000 + 8 * (3 + 5 * k + 100 + 200 * k) for k in (1, 4)
    ]
    assert timing.prefill_ns(50) == (1000 + 8 * (3 + 250), 1000 + 8 * (3 + 250))


def test_affine_spread_makes_equally_likely_times_and_each_model_draws_its_own():
    forwards = {
        role: AffineForward(base="100 ns", per_context_token="1 ns", spread=spread)
        for role, spread in (("draft", [-0.5, 0.5]), ("target", [-0.1, 0.1]))
    }
    timing = AffineCost(**forwards, draft_start="20 ns").timing(pearl(2))
    assert timing.draft.alone.base_ns == ((0, 0), (60, 180), (110, 332))
    assert timing.target.alone.base_ns[1:] == ((90, 110), (90, 110))
    with pytest.raises(ValueError, match="equally many deviations"):
        AffineCost(draft=forwards["draft"], target=AffineForward(base="100 ns"))


def roofline(batch=1, **more):
    """Return a cost with 1 ms to read the target's weights and 2 us of arithmetic a token; the draft 100 times less."""
    device = {"bandwidth_bytes_per_s": 2e12, "flop_per_s": 1e15, **more}
    return TypeAdapter(RooflineCost).validate_python(
        {
            "draft": {"parameters": 1e7, **device},
            "target": {"parameters": 1e9, **device},
            "batch": batch,
        }
    )


def test_roofline_turns_from_memory_bound_to_compute_bound_where_both_take_equally_long():
    target = roofline().timing(speculative(600)).target.alone
    assert [price(target, k) for k in (1, 499, 500, 501, 600)] == [10**6, 10**6, 10**6, 1_002_000, 1_200_000]
    batched = roofline(batch=100).timing(speculative(10)).target.alone
    assert [price(batched, k) for k in (1, 5, 6, 10)] == [10**6, 10**6, 1_200_000, 2_000_000]


def test_roofline_context_is_read_by_every_request_of_the_batch_and_every_forward_of_the_chain():
    # 4000 bytes at 2e12 bytes a second: 2 ns a token of context.
    timing = roofline(batch=3, kv_bytes_per_token=4000.0).timing(speculative(4))
    assert price(timing.target.alone, 2, 1000) == 10**6 + 3 * 2 * 1000
    assert price(timing.draft.alone, 4, 1000) == sum(10**4 + 3 * 2 * (1000 + written) for written in range(4))


def test_roofline_efficiency_and_tensor_parallelism_scale_everything():
    half, twice = roofline(efficiency=0.5), roofline(tensor_parallel=2)
    for cost, factor in ((half, 2), (twice, 0.5)):
        target = cost.timing(speculative(600)).target.alone
        assert [price(target, k) for k in (1, 600)] == [10**6 * factor, 1_200_000 * factor]
        assert cost.timing(pearl(2)).prefill_ns(1000) == (20_000 * factor, 2_000_000 * factor)


@given(st.integers(0, 10**9), st.integers(0, 10**9), st.integers(0, 5_000_000))
def test_delay_of_overlap_falls_on_both_by_the_shorter_one(draft, target, ppm):
    assert delay_ns(draft, target, ppm) == delay_ns(target, draft, ppm) == min(draft, target) * ppm // 10**6
    assert max(draft, target) + delay_ns(draft, target, 10**6) == draft + target


def test_latency_never_falls_below_its_floor():
    latency = Latency(((5, 7),), (2000,), (20,))
    assert [latency_ns(latency, 0, context, 1) for context in (0, 6, 7, 10)] == [20, 20, 21, 27]


@pytest.mark.parametrize(
    "change",
    [
        {"draft": "0 ns"},
        {"draft": 5},
        {"draft": "5"},
        {"sync": "-1 ns"},
        {"contention": 0.5},
        {"contention": float("nan")},
        {"prefil": "1 ns"},
        {"model": "linear"},
    ],
)
def test_a_cost_refuses_what_means_nothing(change):
    right = {"model": "constant", "draft": "1 ns", "target": "10 ns"}
    assert TypeAdapter(Cost).validate_python(right) == ConstantCost(draft="1 ns", target="10 ns")
    with pytest.raises(ValidationError):
        TypeAdapter(Cost).validate_python(right | change)


def empirical(path, rows, **more):
    save(small_trace(path, steps=steps_table(rows)))
    return EmpiricalCost(trace=path, **more)


FLAT = [
    *[("draft", 2, 10, 200), ("draft", 4, 10, 400), ("target", 1, 10, 1000), ("target", 5, 10, 1400)],
    *[("draft", 7, 0, 60), ("target", 7, 0, 3000)],
]


def test_empirical_sizes_between_recorded_ones_are_interpolated_and_longer_chains_extrapolated(tmp_path):
    timing = empirical(tmp_path / "trace", FLAT).timing(pearl(5))
    assert [price(timing.draft.alone, n) for n in range(6)] == [0, 100, 200, 300, 400, 500]
    assert [price(timing.target.alone, k) for k in range(6)] == [0, 1000, 1100, 1200, 1300, 1400]
    assert timing.prefill_ns(99) == (60, 3000)


def test_empirical_refuses_a_forward_wider_than_any_recorded(tmp_path):
    cost = empirical(tmp_path / "trace", FLAT)
    assert cost.timing(speculative(4))
    for policy in (speculative(5), pearl(6)):
        with pytest.raises(InputError, match=r"steps\.parquet.*5 positions.*needs 6"):
            cost.timing(policy)


def test_empirical_keeps_the_quantiles_of_what_was_recorded(tmp_path):
    spread = [("target", 1, 10, 1000 * ns) for ns in range(1, 101)]
    timing = empirical(tmp_path / "trace", [*FLAT[:2], *spread]).timing(autoregressive())
    drawn = timing.target.alone.base_ns[1]
    assert timing.target.draws == len(drawn) == DRAWS
    assert list(drawn) == sorted(drawn)
    assert 1000 <= drawn[0] < drawn[-1] <= 100_000
    assert np.mean(drawn) == pytest.approx(50_500, rel=1e-3)
    assert drawn[63] < 25_750 < drawn[64]


def test_empirical_rounds_are_drawn_from_what_was_recorded_by_seed_and_request(tmp_path):
    spread = [("target", 1, 10, ns) for ns in (1000, 5000)]
    cost = empirical(tmp_path / "trace", [*FLAT[:2], *spread], prefill="0 ns")
    requests = [request([0] * 300)] * 2
    one, other = simulated("ar", 0, requests, cost, seed=1)
    lasting = [[step.score_ns for step in timeline[1:]] for timeline in (one, other)]
    assert lasting[0] != lasting[1]
    assert all(1000 <= ns <= 5000 for ns in lasting[0])
    assert np.mean(lasting[0]) == pytest.approx(3000, rel=0.15)
    assert simulated("ar", 0, requests, cost, seed=1) == [one, other]
    assert simulated("ar", 0, requests, cost, seed=2)[0] != one


def test_empirical_names_what_was_not_recorded(tmp_path):
    with pytest.raises(InputError, match="no target steps"):
        empirical(tmp_path / "no target", FLAT[:2])
    with pytest.raises(InputError, match="no draft steps"):
        empirical(tmp_path / "no draft", [*FLAT[2:4], FLAT[4]])
    without_prompts = empirical(tmp_path / "no prompts", FLAT[:4])
    with pytest.raises(InputError, match="prefill"):
        simulated("pearl", 3, [request([0, 0])], without_prompts)
    with pytest.raises(InputError, match="no such trace"):
        EmpiricalCost(trace=tmp_path / "nowhere")


def test_latency_draws_of_a_round_do_not_depend_on_how_many_rounds_there_are():
    few, many = (draw_numbers(3, 5, DRAWS, rounds) for rounds in (10, 1000))
    assert many[:10].tolist() == few.tolist()
    assert (draw_numbers(3, 6, DRAWS, 1000) == many).mean() < 0.1
    other_streams = [generator(3, 5, stream).integers(DRAWS, size=(10, 2)).tolist() for stream in (0, 1)]
    assert few.tolist() not in other_streams
    assert 0 <= many.min() < many.max() < DRAWS
    assert abs(np.corrcoef(many[:, 0], many[:, 1])[0, 1]) < 0.1
    assert len(draw_numbers(3, 5, 1, 1000)) == 0, "one base time: nothing is drawn"


@given(st.lists(st.tuples(st.integers(0, 900), st.integers(0, 900)), min_size=1, max_size=6), st.integers(0, 3 * 10**6))
def test_mean_round_time_is_the_mean_over_every_pair_of_draws(draws, ppm):
    drafts, targets = zip(*draws, strict=True)
    idle, flat = (0,) * len(draws), (0, 0)
    draft, target = Latency((idle, drafts), flat, (0, 50)), Latency((idle, targets), flat, flat)
    timing = Timing(everywhere(draft), everywhere(target), HandOver(5, 6, 7), ppm, lambda _: (0, 0))
    lasts = [
        max(draft, target) + delay_ns(draft, target, ppm) + 7
        for draft in (max(50, draft) for draft in drafts)
        for target in targets
    ]
    assert mean_round_ns(timing, 1, 1) == pytest.approx(np.mean(lasts), rel=1e-12)
    assert mean_round_ns(timing, 0, 1) == pytest.approx(np.mean(targets) + 6, rel=1e-12)
    assert mean_round_ns(timing, 1, 0) == pytest.approx(np.mean([max(50, draft) for draft in drafts]) + 5, rel=1e-12)


def test_mean_round_time_is_unknown_where_context_counts():
    model = AffineForward(base="100 ns", per_context_token="1 ps")
    timing = AffineCost(draft=AffineForward(base="5 ns"), target=model).timing(pearl(2))
    assert mean_round_ns(timing, 2, 1) is None
    assert mean_round_ns(timing, 2, 0) == 10


def test_empirical_costs_are_those_timed_beside_the_other_model_in_parallel_rounds_only(tmp_path):
    """Draft of 2: 20 ns alone, 25 beside; target of 1: 100 and 130; of 3 (only alone): 110."""
    rows = [("draft", 2, 9, 20, False), ("draft", 2, 9, 25, True), ("target", 3, 9, 110, False)]
    rows += [("target", 1, 9, 100, False), ("target", 1, 9, 130, True), ("target", 2, 9, 140, True)]
    rows += [("draft", 9, 0, 5, True), ("target", 9, 0, 60, True), ("target", 9, 0, 50, False)]
    steps = pl.DataFrame(
        [("run", "first", 0, role, 0, ns, tokens, context, 1, both) for role, tokens, context, ns, both in rows],
        STEPS,
        orient="row",
    )
    save(small_trace(tmp_path / "trace", steps=steps))
    cost = EmpiricalCost(trace=tmp_path / "trace")
    timing = cost.timing(speculative(2))
    assert (timing.draft.alone_rested.base_ns[2][0], timing.draft.beside.base_ns[2][0]) == (20, 25)
    assert (timing.target.alone.base_ns[1][0], timing.target.beside.base_ns[1][0]) == (100, 130)
    assert timing.target.alone.base_ns[3][0] == 110
    assert timing.prefill_ns(9) == (5, 60)
    assert cost.timing(autoregressive()).prefill_ns(9)[1] == 50
    request = Request(1, 4, np.array([0, 0, 0, 0], np.int64))
    for policy, lasts in ((autoregressive(), {100}), (speculative(2), {20, 110}), (pearl(2), {130})):
        (timeline,) = simulate(policy, [request], cost.timing(policy), 0)
        assert {step.stop - step.start for step in timeline[1:]} == lasts
