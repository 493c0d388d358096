"""The simulator's clock: what runs when, for how long, and within which bounds."""

from itertools import pairwise

import pytest
from cases import constant, request, rounds_of, runs_from_bits, simulated
from hypothesis import given
from hypothesis import strategies as st

from pearl_sim.acceptance import Iid
from pearl_sim.cost import AffineCost, AffineForward
from pearl_sim.drivers import kernel
from pearl_sim.drivers.sim import simulate
from pearl_sim.policies import POLICIES
from pearl_sim.rules import Frontier, Policy, Round, candidates
from pearl_sim.timing import HandOver, Latencies, Latency, Timing, everywhere

names = st.sampled_from(sorted(POLICIES))
gammas = st.integers(0, 12)
times = st.integers(1, 5000)
texts = st.lists(st.booleans(), min_size=1, max_size=40).map(runs_from_bits)
workloads = st.lists(texts.map(request), max_size=4)
costs = st.builds(constant, times, times, st.integers(0, 500), contention=st.sampled_from([1.0, 1.25, 2.0, 3.5]))


@given(names, gammas, workloads, costs)
def test_no_device_does_two_things_at_once(name, gamma, requests, cost):
    steps = [step for timeline in simulated(name, gamma, requests, cost) for step in timeline]
    for busy in (
        [(step.start, step.start + step.draft_ns) for step in steps if step.draft_ns],
        [(step.start, step.start + step.score_ns) for step in steps if step.score_ns],
    ):
        assert all(before <= after for (_, before), (after, _) in pairwise(sorted(busy)))


@given(names, gammas, workloads, costs)
def test_a_device_is_busy_exactly_where_the_round_gives_it_work(name, gamma, requests, cost):
    for timeline in simulated(name, gamma, requests, cost):
        for step in timeline[1:]:
            assert (step.draft_ns > 0) == (step.round.draft > 0)
            assert (step.score_ns > 0) == (step.round.score > 0)


@given(names, gammas, workloads, costs)
def test_a_round_lasts_its_longer_part_plus_the_hand_over_where_drafts_are_checked(name, gamma, requests, cost):
    for timeline in simulated(name, gamma, requests, cost):
        for step in timeline[1:]:
            handed_over = cost.sync if candidates(step.frontier, step.round) else 0
            assert step.stop - step.start == max(step.draft_ns, step.score_ns) + handed_over


@given(gammas.filter(bool), texts, times, times, st.integers(0, 500))
def test_a_speculative_step_lasts_the_sum_of_its_parts(gamma, runs, draft, target, sync):
    [[_, *steps]] = simulated("sd", gamma, [request(runs)], constant(draft, target, sync))
    assert len(steps) % 2 == 0
    for drafting, scoring in zip(steps[::2], steps[1::2], strict=True):
        assert scoring.stop - drafting.start == gamma * draft + target + sync


@given(gammas.filter(bool), texts, times, times)
def test_parallel_rounds_of_one_shared_device_last_as_long_as_serial_ones(gamma, runs, draft, target):
    [[prefill, *steps]] = simulated("pearl", gamma, [request(runs)], constant(draft, target, contention=2.0))
    delay = min(draft, target)
    assert (prefill.draft_ns, prefill.score_ns, prefill.stop) == (draft + delay, target + delay, draft + target)
    assert all(step.stop - step.start == gamma * draft + target for step in steps)


@given(gammas.filter(bool), texts, times, times)
def test_contention_slows_parallel_rounds_only(gamma, runs, draft, target):
    alone, shared = (
        simulated("sd", gamma, [request(runs)], constant(draft, target, contention=factor)) for factor in (1.0, 3.0)
    )
    assert rounds_of(alone[0]) == rounds_of(shared[0])


@given(names, gammas, workloads, costs)
def test_requests_follow_one_another_without_a_gap(name, gamma, requests, cost):
    steps = [step for timeline in simulated(name, gamma, requests, cost) for step in timeline]
    assert not steps or steps[0].start == 0
    assert all(before.stop == after.start for before, after in pairwise(steps))


def test_a_request_starts_with_both_models_reading_the_prompt_in_parallel():
    [[prefill, first]] = simulated("pearl", 2, [request([0, 0])], constant(3, 10))
    assert (prefill.start, prefill.stop, prefill.draft_ns, prefill.score_ns) == (0, 10, 3, 10)
    assert (prefill.frontier, prefill.round, prefill.accepted) == (Frontier(0, 0), Round(0, 1), 0)
    assert first.frontier == Frontier(1, 0)


@given(names, gammas, texts, st.integers(0, 100))
def test_the_draft_reads_all_that_is_written_and_the_target_all_that_is_verified(name, gamma, runs, prompt_tokens):
    model = AffineForward(base="1 ns", per_context_token="1 ns")
    cost = AffineCost(draft=model, target=model)
    [[_, *steps]] = simulated(name, gamma, [request(runs, prompt_tokens=prompt_tokens)], cost)
    for step in steps:
        verified = prompt_tokens + step.frontier.verified
        written = verified + step.frontier.pending
        assert step.draft_ns == sum(1 + written + drafted for drafted in range(step.round.draft))
        assert step.score_ns == (1 + verified if step.round.score else 0)


def test_prefill_takes_the_time_that_is_given_for_it():
    [[prefill, _]] = simulated("pearl", 2, [request([0, 0])], constant(3, 10, prefill="1 us"))
    assert (prefill.draft_ns, prefill.score_ns, prefill.stop) == (0, 1000, 1000)
    [[nothing, first]] = simulated("pearl", 2, [request([0, 0])], constant(3, 10, prefill="0 ns"))
    assert (nothing.start, nothing.stop, first.start) == (0, 0, 0)


@given(names, gammas, st.lists(texts.map(lambda runs: request(runs, 1)), max_size=3), costs)
def test_a_request_of_one_token_is_prefill_only(name, gamma, requests, cost):
    assert all(len(timeline) == 1 for timeline in simulated(name, gamma, requests, cost))


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_no_requests_give_no_timelines(name):
    assert simulated(name, 3, [], constant(1, 10)) == []


@given(workloads, costs)
def test_autoregressive_decoding_leaves_the_draft_device_idle(requests, cost):
    for timeline in simulated("ar", 5, requests, cost):
        assert all(step.draft_ns == 0 for step in timeline)
        assert [step.stop - step.start for step in timeline] == [cost.target] * len(timeline)


@given(names, gammas, workloads, costs, st.integers(0, 9))
def test_the_same_input_gives_the_same_timelines_whatever_the_seed_where_no_latency_is_drawn(
    name, gamma, requests, cost, seed
):
    assert simulated(name, gamma, requests, cost, seed) == simulated(name, gamma, requests, cost, seed + 1)


def test_a_timeline_does_not_depend_on_the_requests_after_it_and_latency_draws_follow_the_seed():
    draws = Latency(tuple(tuple(size * 10 + draw for draw in range(7)) for size in range(6)), (0,) * 6, (0,) * 6)
    timing = Timing(everywhere(draws), everywhere(draws), HandOver(0, 0, 0), 0, lambda prompt_tokens: (1, 1))
    requests = [request(Iid(alpha=0.6).runs(0, number, 50)) for number in range(3)]
    policy = Policy(4, True, True)
    three = simulate(policy, requests, timing, 7)
    assert simulate(policy, requests, timing, 7) == three
    assert simulate(policy, requests[:2], timing, 7) == three[:2]
    assert simulate(policy, requests, timing, 8) != three
    lasting = [[step.stop - step.start for step in timeline[1:]] for timeline in three]
    assert lasting[0] != lasting[1]


@pytest.mark.parametrize(
    ("name", "rounds"),
    [
        ("ar", [(0, 5), (0, 5)]),
        ("sd", [(6, 0), (0, 6), (6, 0), (0, 6)]),
        ("pearl", [(8, 7), (7, 7)]),
        ("pearl-no-post", [(8, 7), (0, 5), (8, 7), (0, 5), (8, 7)]),
        ("pearl-no-pre", [(6, 0), (7, 8), (7, 7)]),
    ],
)
def test_a_model_that_waited_in_the_round_before_takes_its_rested_times(name, rounds):
    """5 ns alone, 7 beside the other model; after a rest 6 and 8.  Every draft is right."""
    times = Latencies(*(Latency(((0,), *((ns,),) * 3), (0,) * 4, (0,) * 4) for ns in (5, 7, 6, 8)))
    timing = Timing(times, times, HandOver(0, 0, 0), 0, lambda _: (1, 1))
    for driver in (simulate, kernel.simulate):
        (steps,) = driver(POLICIES[name](2), [request([30 - i for i in range(30)], limit=20)], timing, 0)
        assert [(step.draft_ns, step.score_ns) for step in steps[1 : 1 + len(rounds)]] == rounds


@given(gammas.filter(bool), texts, times, times, st.integers(0, 500))
def test_pearl_commits_at_most_gamma_tokens_a_round_and_the_draft_s_speed(gamma, runs, draft, target, sync):
    [[_, *steps]] = simulated("pearl", gamma, [request(runs)], constant(draft, target, sync))
    for step, after in pairwise(steps):
        assert after.frontier.verified - step.frontier.verified <= gamma
        assert (after.frontier.verified - step.frontier.verified) * draft <= step.stop - step.start


@given(names, gammas, texts, times, times)
def test_the_speed_up_over_autoregressive_decoding_never_passes_the_ratio_of_the_models(
    name, gamma, runs, draft, target
):
    [alone], [policy] = (simulated(n, gamma, [request(runs)], constant(draft, target)) for n in ("ar", name))
    alone_ns, policy_ns = (timeline[-1].stop - timeline[0].stop for timeline in (alone, policy))
    # Where the target is the faster one, no policy gains anything.  In integers: alone <= policy * max(1, c).
    assert alone_ns * draft <= policy_ns * max(draft, target)


@given(gammas.filter(bool), texts, times, times)
def test_pearl_is_never_slower_than_autoregressive_decoding_where_gamma_drafts_fit_into_a_forward(
    gamma, runs, draft, target
):
    target = max(target, gamma * draft)
    [alone], [policy] = (simulated(name, gamma, [request(runs)], constant(draft, target)) for name in ("ar", "pearl"))
    assert policy[-1].stop - policy[0].stop <= alone[-1].stop - alone[0].stop


@given(names, gammas, texts, st.integers(1, 2))
def test_target_forwards_are_never_more_than_tokens_nor_fewer_than_full_acceptance_allows(name, gamma, runs, extra):
    [[_, *steps]] = simulated(name, gamma, [request(runs)], constant(1, 10))
    forwards, tokens = sum(step.round.score > 0 for step in steps), len(runs) - 1
    most = gamma + 1 if name in ("sd", "pearl-no-post") else max(gamma, 1)
    serial_pairs = 2 if name == "pearl-no-post" else 1
    assert tokens <= forwards * most
    assert forwards <= tokens * serial_pairs
