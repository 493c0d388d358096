"""What is read off recorded steps is what was put into them."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_trace import small_trace

from pearl_sim import latencies
from pearl_sim.cost import EmpiricalCost
from pearl_sim.errors import InputError
from pearl_sim.policies import pearl
from pearl_sim.timing import HandOver, latency_ns
from pearl_sim.trace import STEPS, Profile, load, load_steps, save


def steps(rows):
    """Return steps from (round, role, start, ns, tokens, context, overlapped)."""
    table = [("run", "r", n, role, t, t + ns, size, context, 1, both) for n, role, t, ns, size, context, both in rows]
    return latencies.timed(pl.DataFrame(table, STEPS, orient="row"))


def profile(path, rows):
    save(Profile(path, small_trace(path).provenance, steps(rows).drop("ns", "rested"), "[cost]\n"))
    return path


SIZES = {1: 1_000_000, 4: 1_600_000, 9: 2_600_000}


@given(st.integers(0, 2000), st.integers(0, 2**32 - 1))
def test_growth_with_context_is_found_whatever_the_sizes_and_where_each_was_seen(ppm, seed):
    """Larger sizes are seen at longer contexts here, which a fit over all sizes at once would take for growth."""
    rng = np.random.default_rng(seed)
    rows = [
        (0, "target", 0, round(base * (1 + ppm / 1e6 * context)), size, context, False)
        for size, base in SIZES.items()
        for context in 50 * size + rng.integers(1, 200, 60)
    ]
    found = latencies.context_growth(steps(rows), "target")
    # Relative to the mean over the contexts seen, which lies (1 + rate * mean) above the time at none.
    assert found == pytest.approx(ppm / 1e6 / (1 + ppm / 1e6 * 300), rel=0.35, abs=2e-8)
    table = latencies.target_table(latencies.by_circumstance(steps(rows), "target")[0], 10)
    for size, base in SIZES.items():
        at = 50 * size + 100
        middle = np.mean([latency_ns(table, size, at, draw) for draw in range(table.draws)])
        assert middle == pytest.approx(base * (1 + ppm / 1e6 * at), rel=0.02)


def test_steps_that_get_shorter_with_context_are_taken_for_noise():
    rows = [(0, "draft", 0, 1000 - context, 1, context, False) for context in range(1, 100)]
    assert latencies.context_growth(steps(rows), "draft") == 0
    assert latencies.context_growth(steps(rows[:1]), "draft") == 0


def test_a_chain_costs_its_forwards_and_what_starting_one_takes():
    rows = [(0, "draft", 0, 300 + 100 * size, size, 9, False) for size in (2, 4, 8)]
    table = latencies.draft_table(latencies.by_circumstance(steps(rows), "draft")[0], 13)
    assert [table.base_ns[size][0] for size in range(13)] == [0, *(300 + 100 * size for size in range(1, 13))]


def test_hand_over_is_what_rounds_last_beyond_their_longer_step_by_kind():
    rows = [
        (0, "draft", 0, 100, 2, 9, False),  # alone: 100 and 30
        (1, "target", 130, 200, 3, 9, False),  # alone: 200 and 4
        (2, "draft", 340, 100, 2, 9, True),  # both, the draft 6 late: 206 and 11
        (2, "target", 334, 206, 2, 9, True),
        (3, "target", 551, 200, 3, 9, False),  # the last round: when it was over nobody knows
    ]
    assert latencies.hand_over(steps(rows)) == HandOver(30, 4, 11)
    assert latencies.hand_over(steps(rows[:2])) == HandOver(30, 30, 30), "one kind stands for all"
    assert latencies.hand_over(steps(rows[:1])) == HandOver(0, 0, 0), "nothing is known"


def test_what_passes_until_a_draft_of_its_own_starts_is_that_round_s_not_the_one_before_it():
    """Autoregressive decoding shows what the target's round takes: 4.  Before a draft 20 more pass: the call."""
    rows = [(n, "target", 104 * n, 100, 1, 9, False) for n in range(4)]
    ar = steps(rows).with_columns(source=pl.lit("ar"))
    serial = [(0, "draft", 0, 50, 2, 9, False), (1, "target", 80, 100, 3, 9, False), (2, "draft", 204, 50, 2, 9, False)]
    both = pl.concat([ar, steps([*serial, (3, "target", 284, 100, 3, 9, False)])])
    assert latencies.hand_over(both) == HandOver(30 + 20, 4, round((4 * 3 + 30 * 2 + 24) / 6))


def test_steps_after_a_rest_are_kept_apart_from_steps_after_work():
    """The draft takes 30 after a rest and 20 after work, whether or not the target works too."""
    rested = [(2 * n, "draft", 1000 * n, 30, 2, 9, False) for n in range(5)]
    worked = [(n, "draft", 1000 * n, 20 if n else 30, 2, 9, True) for n in range(5)]
    apart = pl.concat([steps(rows).with_columns(source=pl.lit(name)) for name, rows in (("sd", rested), ("p", worked))])
    alone, beside, alone_rested, beside_rested = (m.base[2][-1] for m in latencies.by_circumstance(apart, "draft"))
    assert (alone, beside) == (20, 20), "the draft was never seen alone after work: rest matters more"
    assert (alone_rested, beside_rested) == (30, 30)


def test_sizes_that_a_circumstance_lacks_come_from_the_likest_one_beyond_its_own_range_only():
    rows = [(n, "target", 0, ns, size, 9, True) for n, (size, ns) in enumerate(((2, 20), (6, 60)))]
    alone = [(n, "target", 0, ns, size, 9, False) for n, (size, ns) in enumerate(((1, 5), (4, 1000), (9, 90)))]
    found = latencies.by_circumstance(
        pl.concat([steps(rows), steps(alone).with_columns(source=pl.lit("other"))]), "target"
    )
    assert sorted(found[1].base) == [1, 2, 6, 9], "4 lies between sizes of its own"
    assert sorted(found[0].base) == [1, 4, 9]


def test_prefill_lies_on_a_line_through_the_recorded_prompts():
    lengths = ((100, 1100), (200, 2100), (200, 2150), (200, 9000), (400, 4100))
    rows = [(0, role, 0, ns, length, 0, True) for role in ("draft", "target") for length, ns in lengths]
    draft_ns, target_ns = latencies.prefill(steps(rows), 300, True)
    assert draft_ns == target_ns == pytest.approx(3100, rel=0.02)
    assert latencies.prefill(steps(rows[:1] + rows[5:6]), 777, True) == (1100, 1100), "one length stands for all"


BOTH = [(0, "draft", 0, 50, 2, 9, True), (0, "target", 0, 90, 2, 9, True), (0, "target", 0, 80, 1, 9, True)]


def test_a_profile_gives_times_and_no_acceptance(tmp_path):
    path = profile(tmp_path / "profile", BOTH)
    assert len(load_steps(path)) == 3
    assert EmpiricalCost(trace=path).timing(pearl(2)).target.beside.base_ns[2][0] == 90
    with pytest.raises(InputError, match=r"is a profile.*name a trace"):
        load(path)


def test_one_of_several_batch_sizes_is_chosen_by_name(tmp_path):
    many = pl.concat([steps(BOTH).with_columns(batch=pl.lit(size, pl.Int64)) for size in (1, 4)]).drop("ns", "rested")
    path = tmp_path / "profile"
    save(Profile(path, small_trace(path).provenance, many, ""))
    with pytest.raises(InputError, match=r"batch sizes 1, 4; choose one with cost\.batch"):
        EmpiricalCost(trace=path)
    with pytest.raises(InputError, match=r"cost\.batch: 2 was not recorded.*recorded: 1, 4"):
        EmpiricalCost(trace=path, batch=2)
    assert EmpiricalCost(trace=path, batch=4).timing(pearl(1))
