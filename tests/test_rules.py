"""The rules, against five loops written independently (plain.py), and what holds for any policy at all."""

from itertools import pairwise, product

import pytest
from cases import constant, plain, request, rounds_of, runs_from_bits, simulated
from hypothesis import given
from hypothesis import strategies as st

from pearl_sim.drivers.sim import simulate
from pearl_sim.judge import accept
from pearl_sim.policies import POLICIES
from pearl_sim.rules import Frontier, Policy, Round, candidates, plan, settle, widest

ALL_BITS = [[0, *bits] for bits in product((0, 1), repeat=10)]
"""Every way in which a draft can be right or wrong at 10 positions, after the token that prefill yields."""

names = st.sampled_from(sorted(POLICIES))
policies = st.builds(Policy, st.integers(0, 20), st.booleans(), st.booleans())
run_tables = st.lists(st.one_of(st.integers(0, 3), st.integers(0, 60)), min_size=1, max_size=80)


@st.composite
def frontiers(draw):
    """Return a policy and a frontier that it reaches, with the round planned there."""
    policy = draw(policies)
    frontier = Frontier(draw(st.integers(1, 1000)), 0)
    for _ in range(draw(st.integers(0, 4))):
        round = plan(policy, frontier)
        frontier = settle(frontier, round, draw(st.integers(0, candidates(frontier, round))))
    return policy, frontier, plan(policy, frontier)


@given(policies, st.integers(0, 40))
def test_a_plan_depends_on_what_is_pending_only(policy, pending):
    """The kernel counts rounds by what is pending, and then prices them without looking again."""
    assert len({plan(policy, Frontier(verified, pending)) for verified in (1, 2, 7, 1000)}) == 1


@pytest.mark.parametrize("gamma", range(1, 7))
@pytest.mark.parametrize("name", sorted(POLICIES))
def test_simulator_and_plain_loop_agree_on_every_acceptance_string(name, gamma):
    policy = POLICIES[name](gamma)
    timing = constant(3, 10, sync=1).timing(policy)
    for bits in ALL_BITS:
        runs = runs_from_bits(bits)
        [[prefill, *steps]] = simulate(policy, [request(runs)], timing, 0)
        assert (prefill.start, prefill.stop) == (0, 10 if name == "ar" else max(3, 10))
        now, expected = prefill.stop, []
        for *round, lasts in plain(name, gamma, runs, len(runs), 3, 10, 1):
            expected.append((*round, now, now + lasts))
            now += lasts
        told = [(*step.frontier, *step.round, step.accepted, step.start, step.stop) for step in steps]
        assert told == expected, f"accepted positions: {bits}"


@given(names, st.integers(0, 20), run_tables, st.data())
def test_simulator_and_plain_loop_agree_on_any_run_table_and_cost(name, gamma, runs, data):
    # Multiples of 100 ns and whole percents: the delay under contention is then a whole number as well.
    draft, target = (100 * data.draw(st.integers(1, 50)) for _ in range(2))
    sync, slower = data.draw(st.integers(0, 900)), data.draw(st.integers(0, 300))
    limit = data.draw(st.integers(1, len(runs)))
    cost = constant(draft, target, sync, contention=1 + slower / 100)
    [timeline] = simulated(name, gamma, [request(runs, limit)], cost)
    assert rounds_of(timeline) == plain(name, gamma, runs, limit, draft, target, sync, slower)
    assert all(before.stop == after.start for before, after in pairwise(timeline))


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_gamma_0_is_autoregressive_decoding_under_every_policy(name):
    runs = [request([0, 3, 2, 1, 0, 5, 4])]
    assert simulated(name, 0, runs, constant(3, 10, 1)) == simulated("ar", 9, runs, constant(3, 10, 1))


@given(policies, run_tables)
def test_every_output_position_is_committed_once_by_a_round_that_scores_it(policy, runs):
    limit = len(runs)
    timing = constant(1, 10).timing(policy)
    [[_, *steps]] = simulate(policy, [request(runs)], timing, 0)
    committed = 1
    for step in steps:
        verified, pending = step.frontier
        assert verified == committed
        assert 0 <= step.accepted <= pending + step.round.draft
        corrected = step.accepted < step.round.score
        committed += step.accepted + corrected
        assert committed - verified <= step.round.score
    assert not limit > committed
    assert not steps or steps[-1].frontier.verified < limit


@given(frontiers())
def test_every_round_verifies_a_token_or_leaves_more_pending(reached):
    _, frontier, round = reached
    for accepted in range(candidates(frontier, round) + 1):
        after = settle(frontier, round, accepted)
        assert (after.verified > frontier.verified) if round.score else (after.pending > frontier.pending)


@given(frontiers())
def test_a_round_never_checks_more_drafts_than_were_written(reached):
    policy, frontier, round = reached
    checked = candidates(frontier, round)
    assert 0 <= checked <= round.score <= widest(policy)
    assert checked <= frontier.pending + round.draft
    assert frontier.pending <= policy.gamma
    assert round.draft in (0, policy.gamma)


@given(frontiers())
def test_a_rejection_leaves_nothing_pending_and_full_acceptance_loses_no_draft(reached):
    _, frontier, round = reached
    checked = candidates(frontier, round)
    for accepted in range(checked):
        assert settle(frontier, round, accepted) == Frontier(frontier.verified + accepted + 1, 0)
    bonus = round.score - checked
    assert bonus in (0, 1)
    assert sum(settle(frontier, round, checked)) == sum(frontier) + round.draft + bonus * (1 - round.draft)


@given(st.integers(1, 20))
def test_plan_is_the_table_of_the_design(gamma):
    fresh, pending = Frontier(5, 0), Frontier(5, 3)
    assert plan(Policy(gamma, True, True), fresh) == Round(gamma, 1)
    assert plan(Policy(gamma, True, True), pending) == Round(gamma, 4)
    assert plan(Policy(gamma, False, True), fresh) == Round(gamma, 0)
    assert plan(Policy(gamma, False, True), pending) == Round(gamma, 3)
    assert plan(Policy(gamma, True, False), pending) == Round(0, 4)
    assert plan(Policy(gamma, False, False), fresh) == Round(gamma, 0)
    assert plan(Policy(gamma, False, False), pending) == Round(0, 4)


def test_candidates_are_the_pending_drafts_and_the_first_fresh_one_whatever_is_scored():
    assert [candidates(Frontier(5, 2), Round(4, score)) for score in range(6)] == [0, 1, 2, 3, 3, 3]
    assert [candidates(Frontier(5, 2), Round(0, score)) for score in range(5)] == [0, 1, 2, 2, 2]


@pytest.mark.parametrize(("name", "gamma"), list(product(sorted(POLICIES), (0, 1, 2, 5, 20))))
def test_widest_is_reached_and_never_passed(name, gamma):
    [timeline] = simulated(name, gamma, [request([200] * 120)], constant(1, 10))
    assert max(step.round.score for step in timeline[1:]) == widest(POLICIES[name](gamma))


@given(st.integers(1, 20), st.integers(1, 60))
def test_at_alpha_0_pearl_needs_exactly_the_rounds_of_autoregressive_decoding(gamma, limit):
    never = [request([0] * limit)]
    pearl, alone = (simulated(name, gamma, never, constant(1, 10))[0] for name in ("pearl", "ar"))
    assert len(pearl) == len(alone) == limit


@given(st.integers(2, 20), st.integers(1, 120))
def test_at_alpha_1_pearl_commits_1_token_and_then_gamma_a_round(gamma, limit):
    [[_, *steps]] = simulated("pearl", gamma, [request([limit + 20] * limit)], constant(1, 10))
    assert [step.accepted for step in steps] == ([1] + [gamma] * limit)[: len(steps)]
    assert len(steps) == (limit > 1) + max(0, -(-(limit - 2) // gamma))


@pytest.mark.parametrize("times", [(1, 10), (1, 3), (3, 1)])
@pytest.mark.parametrize("gamma", range(1, 7))
@pytest.mark.parametrize("name", sorted(POLICIES))
def test_one_more_accepted_position_never_costs_a_round_nor_time(name, gamma, times):
    for limit in range(2, 11):
        needed = {}
        for bits in product((0, 1), repeat=limit - 1):
            rounds = plain(name, gamma, runs_from_bits((0, *bits)), limit, *times, 0)
            needed[bits] = len(rounds), sum(lasts for *_, lasts in rounds)
        for bits, (rounds, time) in needed.items():
            for position in range(limit - 1):
                better = (*bits[:position], 1, *bits[position + 1 :])
                assert needed[better][0] <= rounds and needed[better][1] <= time, (bits, better)


@given(st.integers(0, 50), st.integers(1, 50), st.integers(0, 20), st.integers(0, 20))
def test_accept_goes_on_from_where_the_chain_began(run, chain, used, checked):
    used = min(used, run)
    assert accept(run, chain, chain + used, checked) == min(run - used, checked)


def test_numba_compiles_the_rules_unmodified_and_agrees_with_python():
    numba = pytest.importorskip("numba")
    compiled_plan, compiled_candidates, compiled_settle = map(numba.njit, (plan, candidates, settle))
    for gamma, pre, post, verified, pending in product(range(5), (False, True), (False, True), (1, 7), range(5)):
        policy, frontier = Policy(gamma, pre, post), Frontier(verified, pending)
        round = plan(policy, frontier)
        assert compiled_plan(policy, frontier) == round
        assert compiled_candidates(frontier, round) == candidates(frontier, round)
        for accepted in range(candidates(frontier, round) + 1):
            assert compiled_settle(frontier, round, accepted) == settle(frontier, round, accepted)
