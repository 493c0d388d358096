"""A sweep's rows depend on its points alone: not on their grouping, on who computes them, or on interruptions."""

import shutil
from itertools import chain, product
from unittest.mock import patch

import numpy as np
import polars as pl
import pytest
from cases import request
from hypothesis import example, given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal
from small_trace import small_trace, tokens_table

from pearl_sim import output, partitions, together
from pearl_sim.acceptance import Iid
from pearl_sim.cost import AffineCost, ConstantCost
from pearl_sim.drivers import growth, kernel, sim
from pearl_sim.drivers.walk import walk
from pearl_sim.errors import InputError
from pearl_sim.policies import POLICIES
from pearl_sim.prices import KEYS, Costs, values_of
from pearl_sim.rules import Policy
from pearl_sim.scenario import read
from pearl_sim.sweep import run
from pearl_sim.trace import load, save

PRICES = """
cost.draft = ["1 ms", "1.7 ms"]
cost.target = { start = "2 ms", stop = "40 ms", num = 3, scale = "log" }
cost.sync = ["0 ms", "300 us"]
cost.contention = [1.0, 1.37]
cost.prefill = ["0 ms", "55 ms"]
"""
SCENARIO = """
[acceptance]
law = "iid"
alpha = 0.8
[cost]
model = "constant"
draft = "1 ms"
target = "8 ms"
[policy]
names = ["ar", "sd", "pearl-no-pre", "pearl-no-post", "pearl"]
[workload]
requests = 3
tokens = 40
[sweep]
policy.gamma = [1, 5]
"""


@pytest.fixture
def scenario(tmp_path):
    """Return a function that reads a scenario, some of its text replaced."""

    def make(*changes):
        text = SCENARIO
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        (tmp_path / "case.toml").write_text(text)
        return read(tmp_path / "case.toml")

    return make


SWEPT_PRICES = ('draft = "1 ms"\ntarget = "8 ms"\n', ""), ("policy.gamma", PRICES + "policy.gamma")


def same(found, expected):
    assert_frame_equal(found.rows, expected.rows, check_exact=True)
    assert_frame_equal(found.depths, expected.depths, check_exact=True)
    assert found.driver == expected.driver


LAWS = {
    "iid": 'law = "iid"\nalpha = 0.8',
    "mixed": 'law = "beta"\na = 3.0\nb = 1.0',
    "sticky": 'law = "markov"\nstay_accepted = 0.9\nstay_rejected = 0.4',
    "certain": 'law = "iid"\nalpha = 1.0',
    "recorded": 'law = "recorded"\ntrace = "trace"',
}


@pytest.mark.parametrize("law", LAWS)
def test_points_priced_together_give_the_rows_that_simpy_gives_one_by_one(scenario, tmp_path, law):
    save(small_trace(tmp_path / "trace"))
    recorded = [("requests = 3\ntokens = 40\n", "")] if law == "recorded" else []
    planned = scenario(*SWEPT_PRICES, (LAWS["iid"], LAWS[law]), *recorded)
    together, alone = run(planned), run(planned, driver="sim")
    assert len(planned) == 2 * 2 * 3 * 2 * 2 * 2
    assert (together.driver, alone.driver) == ("kernel", "sim")
    assert_frame_equal(together.rows, alone.rows, check_exact=True)
    assert_frame_equal(together.depths, alone.depths, check_exact=True)


AFFINE = (
    ('model = "constant"\ndraft = "1 ms"\ntarget = "8 ms"\n', 'model = "affine"\n'),
    ("tokens = 40\n", "tokens = 40\nprompt_tokens = 30\n"),
)
AFFINE_PRICES = """
cost.draft.base = ["1 us", "2 us"]
cost.target.base = { start = "2 us", stop = "40 us", num = 5, scale = "log" }
cost.target.per_context_token = ["0 ns", "333 ps"]
cost.contention = [1.0, 1.37]
cost.batch = [1, 3]
"""
EACH_KEY = {
    "draft.per_sequence": ["0 ns", "7001 ps"], "draft.per_token": ["0 ns", "777 ps", "5 ns"],
    "draft.per_context_token": ["0 ns", "99 ps"], "draft.per_token_and_context_token": ["1 ps", "2 ns"],
    "target.per_sequence": ["0 ns", "7001 ps"], "target.per_token": ["0 ns", "777 ps", "5 ns"],
    "target.per_token_and_context_token": ["0 ns", "99 ps"], "draft_start": ["0 ns", "1 us"],
    "sync": ["0 ns", "300 ns"], "prefill": ["0 ns", "5 us"],
}  # fmt: skip


def rows_of_simpy(planned):
    found, alone = run(planned), run(planned, driver="sim")
    assert (found.driver, alone.driver) == ("kernel", "sim")
    assert_frame_equal(found.rows, alone.rows, check_exact=True)
    assert_frame_equal(found.depths, alone.depths, check_exact=True)


@pytest.mark.parametrize("law", ["iid", "mixed", "recorded"])
def test_affine_points_priced_together_give_the_rows_that_simpy_gives_one_by_one(scenario, tmp_path, law):
    save(small_trace(tmp_path / "trace"))
    recorded = [("requests = 3\ntokens = 40\nprompt_tokens = 30\n", "")] if law == "recorded" else []
    planned = scenario(*AFFINE, ("policy.gamma", AFFINE_PRICES + "policy.gamma"), (LAWS["iid"], LAWS[law]), *recorded)
    assert len(planned) == 2 * 2 * 5 * 2 * 2 * 2
    assert len(planned.prices) == 5
    rows_of_simpy(planned)


@pytest.mark.parametrize("key", EACH_KEY)
def test_every_key_of_an_affine_cost_is_a_price(scenario, key):
    axes = f"cost.{key} = {EACH_KEY[key]}\ncost.draft.base = ['1 us', '2 us']\ncost.target.base = ['2 us', '9 us']\n"
    planned = scenario(*AFFINE, ("policy.gamma", axes + "policy.gamma"))
    assert len(planned.prices) == 3
    rows_of_simpy(planned)


def test_every_key_of_an_affine_cost_that_can_be_swept_is_tried_here():
    tried = {key.removeprefix("cost.").split(" ")[0] for key in AFFINE_PRICES.split("\n") if key} | EACH_KEY.keys()
    assert tried == set(KEYS[AffineCost])


def test_where_luck_plays_a_part_affine_points_are_simulated_one_by_one(scenario):
    spread = "draft.spread = [-0.1, 0.2]\ntarget.spread = [-0.3, 0.1]\n"
    axes = "cost.draft.base = ['1 us', '2 us']\ncost.target.base = ['2 us', '9 us']\n"
    planned = scenario(
        *AFFINE, ('model = "affine"\n', 'model = "affine"\n' + spread), ("policy.gamma", axes + "policy.gamma")
    )
    assert not planned.prices
    rows_of_simpy(planned)


@pytest.mark.parametrize(
    "long",
    ["draft.base", "target.base", "draft.per_context_token", "target.per_token", "draft_start", "sync"],
)
def test_an_affine_price_too_long_for_arrays_or_the_kernels_clock_is_left_to_simpy(scenario, long):
    """Three sequences, each three months for a token of context, are more picoseconds than 64 bits hold."""
    bases = {"draft.base": ["1 us"], "target.base": ["9 us"]} | {long: ["1 us", "1e5 s", "8e6 s"]}
    axes = "".join(f"cost.{key} = {values}\n" for key, values in bases.items())
    planned = scenario(*AFFINE, ("tokens = 40\n", "tokens = 200\n"), ("policy.gamma", axes + "policy.gamma"))
    found, alone = run(planned), run(planned, driver="sim")
    assert found.driver == "kernel, sim"
    assert_frame_equal(found.rows, alone.rows, check_exact=True)
    told = "batch = 3\n" + "".join(f"{key} = '{values[-1]}'\n" for key, values in bases.items())
    planned = scenario(
        *AFFINE, ('model = "affine"\n', f'model = "affine"\n{told}'), ("tokens = 40\n", "tokens = 200\n")
    )
    found = run(planned)
    assert found.driver == "sim"
    assert_frame_equal(found.rows, run(planned, driver="sim").rows, check_exact=True)


BASES = "cost.draft.base = ['1 us']\ncost.target.base = ['2 us', '7 us']\n"
FAR_OUT = {
    "a long prompt": (10**9, BASES + "cost.target.per_token = ['99999999999 ps', '1 ps']\n"),
    "a long prompt's context": (10**9, BASES + "cost.draft.per_context_token = ['999999999 ps', '1 ps']\n"),
    "long products": (1, "cost.draft.base = ['30 s']\ncost.target.base = ['100.000000001 s']\n"
        + "cost.contention = [1.0, 100.0]\n"),
}  # fmt: skip


@pytest.mark.parametrize("case", FAR_OUT)
def test_points_far_out_are_priced_together_only_where_that_is_exact(scenario, case):
    """Each is wrong, were one of the bounds left out that send it to the kernel or SimPy."""
    prompt_tokens, axes = FAR_OUT[case]
    planned = scenario(
        *AFFINE, ("prompt_tokens = 30", f"prompt_tokens = {prompt_tokens}"), ("policy.gamma", axes + "policy.gamma")
    )
    assert_frame_equal(run(planned).rows, run(planned, driver="sim").rows, check_exact=True)


@given(st.integers(2**40, 2**63 - 1), st.integers(0, 10**6), st.integers(1, 12))
@example(2**63 - 2, 1, 3)
def test_no_prompt_however_long_makes_times_wrap_around(prompt, slope_ps, gamma):
    """A prompt that long is refused in a scenario; whoever hands one to the kernel learns that it cannot."""
    requests, policy = [request([3, 2, 1, 0, 9], prompt_tokens=prompt)], POLICIES["pearl"](gamma)
    cost = AffineCost.read(
        "test", {"draft": {"base": "1 ns"}, "target": {"base": "1 ns", "per_context_token": f"{slope_ps} ps"}}
    )
    walked = walk(policy, requests)
    if together.fitting(walked, Costs.of(cost, {}, 1)).all():
        priced_as_by_the_kernel(policy, requests, [cost])
    try:
        told = kernel.tally(policy, requests, cost.timing(policy), 0, None)
    except OverflowError:
        return
    assert told == sim.tally(policy, requests, cost.timing(policy), 0, None)


def test_the_readers_note_is_the_same_for_points_together_and_alone(scenario):
    planned = scenario(*SWEPT_PRICES, ("[acceptance]", "reading_note = true\n[acceptance]"))
    found = run(planned).rows
    assert found["note_tokens_per_t_draft"].count() == 2 * len(planned)
    assert_frame_equal(found, run(planned, driver="sim").rows, check_exact=True)


durations = st.integers(1, 5 * 10**6).map("{} ns".format)
counts = st.integers(1, 10**9)
picoseconds = st.one_of(st.just(0), st.integers(1, 10**4)).map("{} ps".format)
runs = st.lists(st.one_of(st.integers(0, 3), st.integers(0, 40)), min_size=1, max_size=40)
shared = {
    "sync": st.none() | durations,
    "contention": st.just(1.0) | st.floats(1, 100),
    "prefill": st.none() | st.just("0 ns") | durations,
}


def keys_of(cost):
    """Return the cost's priced keys with their settings, as a scenario would write them."""
    told = cost.model_dump()
    flat = told | {f"{role}.{term}": value for role in ("draft", "target") if isinstance(told[role], dict)
                   for term, value in told[role].items()}  # fmt: skip
    return {key: flat[key] for key in KEYS[type(cost)]}


def priced_as_by_the_kernel(policy, requests, costs, block=50):
    """Assert that these costs, priced together and in blocks, take for every request what each takes alone."""
    written = [keys_of(cost) for cost in costs]
    swept = {key: values_of(costs[0], key, [one[key] for one in written]) for key in written[0]}
    every = Costs.of(costs[0], swept, len(costs))
    walked = walk(policy, requests)
    assert together.fitting(walked, every).all()
    places = []
    for group in every.by_slopes():
        rates = together.rates(walked, every.taken(group))
        time_ns, draft_ns, score_ns = (
            np.concatenate(part)
            for part in zip(
                *(together.price(rates, slice(start, start + block)) for start in range(0, len(group), block)),
                strict=True,
            )
        )
        for place, told in zip(
            group, zip(time_ns.tolist(), draft_ns.tolist(), score_ns.tolist(), strict=True), strict=True
        ):
            time, draft, score = kernel.price(walked, costs[place].timing(policy), 0).tolist()
            assert told == (time, sum(draft), sum(score))
        places += group.tolist()
    assert sorted(places) == list(range(len(costs)))


policies = st.builds(Policy, st.integers(0, 12), st.booleans(), st.booleans())


@settings(max_examples=200)
@given(
    policies,
    st.lists(runs, min_size=1, max_size=3),
    st.lists(st.builds(ConstantCost, draft=durations, target=durations, **shared), min_size=1, max_size=4),
)
def test_a_walk_priced_in_arrays_is_the_kernel_for_every_request_and_constant_cost(policy, tables, costs):
    priced_as_by_the_kernel(policy, [request(table) for table in tables], costs)


forwards = st.fixed_dictionaries({"base": st.integers(1, 3 * 10**4).map("{} ns".format)}, optional=dict.fromkeys(
    ("per_sequence", "per_token", "per_context_token", "per_token_and_context_token"), picoseconds))  # fmt: skip


@settings(max_examples=400)
@given(
    policies,
    st.lists(st.tuples(runs, st.integers(0, 3000)), min_size=1, max_size=4),
    st.tuples(forwards, forwards, st.integers(1, 3)),
    st.lists(
        st.tuples(forwards, forwards, st.booleans(), durations, st.fixed_dictionaries(shared)), min_size=1, max_size=6
    ),
    st.sampled_from([0, 2, growth.FEW]),
)
def test_a_walk_priced_in_arrays_is_the_kernel_for_every_request_and_affine_cost(policy, tables, usual, changes, few):
    """Bases and slopes lie where either model can be the slower; most costs share their slopes, some have their own."""
    costs = []
    for draft, target, alike, start, more in changes:
        growing = [{term: ps for term, ps in forward.items() if "context" in term} for forward in usual[:2]]
        own = (draft | growing[0], target | growing[1]) if alike else (draft, target)
        read = {"draft": own[0], "target": own[1], "draft_start": start, "batch": usual[2], **more}
        costs.append(AffineCost.read("test", read))
    requests = [request(table, prompt_tokens=prompt) for table, prompt in tables]
    with patch.object(growth, "FEW", few):
        priced_as_by_the_kernel(policy, requests, costs, block=3)


LONG = {"prefill": "8639999123456788 ns", "draft": {"base": "1 ns"}, "target": {"base": "10000000000001 ns"}}
long = st.integers(1, 8 * 10**15).map("{} ns".format)
growing = st.integers(1, 8 * 10**18).map("{} ps".format)
optional = ("per_sequence", "per_token", "per_context_token", "per_token_and_context_token")
long_forwards = st.fixed_dictionaries(
    {"base": long | durations}, optional=dict.fromkeys(optional, growing | picoseconds)
)


@settings(max_examples=300)
@given(
    policies,
    st.integers(1, 9),
    st.fixed_dictionaries(
        {"draft": long_forwards, "target": long_forwards},
        optional={"sync": long, "prefill": long, "draft_start": long, "contention": st.floats(1, 100), "batch": counts},
    ),
)
@example(POLICIES["ar"](0), 1, LONG)
def test_what_is_said_to_fit_in_a_float_does(policy, prompt, table):
    """Of one request of forty tokens; the example is too long by a nanosecond or two."""
    cost, walked = AffineCost.read("test", table), walk(policy, [request([1] * 40, prompt_tokens=prompt)])
    if together.fitting(walked, Costs.of(cost, {}, 1)).all():
        time_ns, draft_ns, score_ns = together.price(together.rates(walked, Costs.of(cost, {}, 1)), slice(0, 1))
        told = [int(time_ns[0, 0]), int(draft_ns[0]), int(score_ns[0])]
        assert told == kernel.price(walked, cost.timing(policy), 0)[:, 0].tolist()


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_costs_are_alike_only_if_all_their_slopes_are(name):
    """Slopes that are equal for one token, or one position, need not be for more."""
    terms = ("per_context_token", "per_token_and_context_token")
    forwards = [{"base": "90 ns"} | dict(zip(terms, ps, strict=True)) for ps in product(("0 ps", "900 ps"), repeat=2)]
    costs = [
        AffineCost.read("test", {"draft": draft, "target": target, "batch": batch})
        for draft, target, batch in product(forwards, forwards, (1, 2))
    ]
    requests = [request(Iid(alpha=0.7).runs(0, number, 40), 38, prompt_tokens=7 * number) for number in range(3)]
    priced_as_by_the_kernel(POLICIES[name](3), requests, costs)


@pytest.mark.parametrize("few", [0, 10**6])
@pytest.mark.parametrize("name", sorted(POLICIES))
def test_every_crossing_of_the_two_models_is_priced_as_by_the_kernel(name, few, monkeypatch):
    """All differences of two bases, through every context at which the slower model changes, ties among them."""
    monkeypatch.setattr(growth, "FEW", few)
    requests = [request(Iid(alpha=0.7).runs(0, number, 40), 38, prompt_tokens=7 * number) for number in range(3)]
    for slopes in product((0, 300, 1000, 1700), repeat=2):
        forward = [{"base": "1 ns", "per_context_token": f"{ps} ps"} for ps in slopes]
        bases = [(1, 1 + gap) for gap in range(90)] + [(1 + gap, 1) for gap in range(90)]
        costs = [
            AffineCost.read(
                "test", {"draft": forward[0] | {"base": f"{draft} ns"}, "target": forward[1] | {"base": f"{target} ns"}}
            )
            for draft, target in bases
        ]
        priced_as_by_the_kernel(POLICIES[name](3), requests, costs)


def test_the_order_of_the_axes_orders_the_rows_and_changes_none(scenario):
    first = run(scenario(*SWEPT_PRICES)).rows
    last = run(scenario(SWEPT_PRICES[0], ("policy.gamma = [1, 5]\n", "policy.gamma = [1, 5]\n" + PRICES))).rows
    assert not first.select(last.columns).equals(last)
    assert_frame_equal(first, last, check_row_order=False, check_column_order=False, check_exact=True)


def test_depths_stand_once_for_all_prices(scenario):
    priced, single = run(scenario(*SWEPT_PRICES)), run(scenario())
    assert_frame_equal(priced.depths, single.depths, check_exact=True)


@pytest.mark.parametrize("spread", ["", "draft.spread = [-0.1, 0.2]\ntarget.spread = [-0.3, 0.1]\n"])
def test_depths_stand_once_for_all_costs_priced_together_or_not(scenario, spread):
    axes = "cost.draft.base = ['1 us', '2 us']\ncost.target.base = ['2 us', '9 us']\npolicy.gamma"
    planned = scenario(*AFFINE, ('model = "affine"\n', 'model = "affine"\n' + spread), ("policy.gamma", axes))
    assert bool(planned.prices) != bool(spread)
    assert_frame_equal(run(planned).depths, run(scenario()).depths, check_exact=True)


@pytest.mark.parametrize(
    ("set_too", "swept", "expected"),
    [
        ("", "target.base", 2),
        ("target.per_context_token = '1 ns'\n", "target.base", 2),
        ("target.per_context_token = '1 ns'\ncontention = 1.5\n", "target.base", 200),
        ("", "target.per_context_token", 200),
        ("draft.per_token_and_context_token = '1 ns'\n", "batch", 200),
        ("", "batch", 2),
        ("draft.spread = [0.1]\ntarget.spread = [0.1]\n", "target.base", 200),
    ],
)
def test_partitions_are_small_where_each_point_takes_its_time(scenario, set_too, swept, expected):
    values = [*range(1, 1001)] if swept == "batch" else [f"{ns} ns" for ns in range(1, 1001)]
    bases = "" if swept == "target.base" else "target.base = '9 us'\n"
    planned = scenario(
        *AFFINE,
        ('model = "affine"\n', f'model = "affine"\ndraft.base = "1 us"\n{bases}{set_too}'),
        ("policy.gamma", f"cost.{swept} = {values}\npolicy.gamma"),
    )
    assert len(partitions.ranges(planned)) == expected


@pytest.mark.parametrize(
    ("gammas", "prices", "expected"),
    [(1, 1, 1), (2, 1, 2), (199, 1, 199), (200, 1, 200), (201, 1, 101), (1, 999, 1), (3, 7, 3), (9, 9973, 90)],
)
def test_partitions_are_every_point_once_and_few(scenario, gammas, prices, expected):
    planned = scenario(
        ('target = "8 ms"\n', ""),
        ("policy.gamma = [1, 5]", f"policy.gamma = {[*range(1, gammas + 1)]}\n"
         f"cost.target = {[f'{ns} ns' for ns in range(1, prices + 1)]}"),
    )  # fmt: skip
    ranges = partitions.ranges(planned)
    assert len(ranges) == expected <= partitions.MOST
    assert [*chain.from_iterable(ranges)] == [*range(gammas * prices)]


@pytest.fixture
def counted(monkeypatch):
    """Return the list of partitions that are computed."""
    computed = []
    evaluate = partitions.evaluate
    monkeypatch.setattr(partitions, "evaluate", lambda *of: computed.append(of[1]) or evaluate(*of))
    return computed


class Killed(BaseException):
    """What no handler of errors catches."""


def killed_after(points):
    done = [0]

    def tell(more):
        done[0] += more
        if done[0] >= points:
            raise Killed

    return tell


def test_a_sweep_that_was_killed_goes_on_where_it_stopped(scenario, tmp_path, counted):
    planned = scenario(*SWEPT_PRICES, ("[1, 5]", "[1, 2, 3, 4, 5, 6, 7, 8, 9]"))
    expected = run(planned)
    ranges = counted.copy()
    assert len(ranges) == 9
    counted.clear()
    with pytest.raises(Killed):
        run(planned, killed_after(3 * 48), out=tmp_path / "out")
    assert counted == ranges[:3]
    counted.clear()
    told = []
    same(run(planned, told.append, out=tmp_path / "out"), expected)
    assert counted == ranges[3:]
    assert told == [3 * 48, *[48] * 6]


def test_a_partition_that_is_damaged_or_half_there_is_computed_again(scenario, tmp_path, counted):
    planned = scenario()
    expected = run(planned, out=tmp_path)
    (kept,) = tmp_path.glob(".case.partitions-*")
    rows = (kept / "000.parquet").read_bytes()
    for damage in (rows[:-9], b"", None):
        (kept / "000.parquet").unlink()
        if damage is not None:
            (kept / "000.parquet").write_bytes(damage)
        counted.clear()
        same(run(planned, out=tmp_path), expected)
        assert counted == [range(1)]


def test_the_key_is_another_for_whatever_changes_rows(scenario, tmp_path, monkeypatch):
    save(small_trace(tmp_path / "trace"))
    recorded = (LAWS["iid"], LAWS["recorded"]), ("requests = 3\ntokens = 40\n", "")
    keys = [
        partitions.key_of(scenario(), None),
        partitions.key_of(scenario(), "sim"),
        partitions.key_of(scenario(("alpha = 0.8", "alpha = 0.81")), None),
        partitions.key_of(scenario(("[1, 5]", "[1, 6]")), None),
        partitions.key_of(scenario(("[1, 5]", "[5, 1]")), None),
        partitions.key_of(scenario(*recorded), None),
    ]
    assert partitions.key_of(scenario(*recorded), None) == keys[-1]
    shutil.rmtree(tmp_path / "trace")
    save(
        small_trace(tmp_path / "trace", tokens=tokens_table().with_columns(run=pl.col("run") + 1 - pl.col("run") // 9))
    )
    assert load(tmp_path / "trace")
    keys.append(partitions.key_of(scenario(*recorded), None))
    monkeypatch.setattr(partitions, "_code", lambda: ["another version"])
    keys.append(partitions.key_of(scenario(), None))
    assert len(set(keys)) == len(keys)
    assert partitions.key_of(scenario(), None) == keys[-1]


def test_a_worker_with_other_code_is_refused(scenario, monkeypatch):
    task = partitions.task(scenario(), None)
    monkeypatch.setattr(partitions, "_known_keys", set())
    task(0)
    monkeypatch.setattr(partitions, "_known_keys", set())
    monkeypatch.setattr(partitions, "_code", lambda: ["another version"])
    with pytest.raises(InputError, match="case: a worker has another pearl_sim"):
        task(0)


def test_written_results_are_taken_as_they_are_until_something_changes(scenario, tmp_path, counted):
    planned = scenario()
    written = run(planned, out=tmp_path)
    assert output.unchanged(planned, None, tmp_path) is None
    directory = output.write(written, tmp_path)
    assert [entry.name for entry in tmp_path.iterdir() if entry.name.startswith(".")] == []
    same(output.unchanged(planned, None, tmp_path), written)
    assert output.unchanged(planned, "sim", tmp_path) is None
    assert output.unchanged(scenario(("alpha = 0.8", "alpha = 0.7")), None, tmp_path) is None
    (directory / "figure.png").unlink()
    assert output.unchanged(planned, None, tmp_path) is None


@pytest.mark.parametrize(
    ("key", "bad", "complaint"),
    [
        ("target", '"0 ms"', "cost.target = '0 ms': must be greater than 0"),
        ("sync", '"0.1 ns"', "cost.sync = '0.1 ns': shorter than the simulator's clock"),
        ("sync", '"1 km"', "sweep.cost.sync: not a duration"),
        ("contention", "0.5", "cost.contention = 0.5: must be greater than or equal to 1"),
        ("contention", "nan", "cost.contention = nan"),
        ("drift", '"1 ms"', "cost: unknown key 'drift'"),
    ],
)
def test_a_bad_price_is_told_before_anything_runs_even_at_the_end_of_its_axis(scenario, key, bad, complaint):
    good = "1.5" if key == "contention" else '"2 ms"'
    axis = f"cost.{key} = [{good}, {bad}]\npolicy.gamma"
    unset = [('target = "8 ms"\n', "")] if key == "target" else []
    with pytest.raises(InputError) as error:
        scenario(*unset, ("policy.gamma", axis))
    assert complaint in str(error.value)
    assert "case.toml" in str(error.value)


@pytest.mark.parametrize(
    ("key", "bad", "complaint"),
    [
        ("target.base", '"0 ms"', "cost.target.base = '0 ms': must be greater than 0"),
        ("target.per_token", '"0.1 ps"', "sweep.cost.target.per_token: shorter than 1 ps"),
        ("batch", "0", "cost.batch = 0: must be greater than or equal to 1"),
        ("batch", "1.5", "cost.batch = 1.5: must be a valid integer"),
        ("draft.drift", '"1 ms"', "cost.draft: unknown key 'drift'"),
        ("draft.spread", "0.1", "cost.draft.spread = 1: must be a list"),
    ],
)
def test_a_bad_affine_price_is_told_likewise(scenario, key, bad, complaint):
    bases = "" if key == "target.base" else 'cost.target.base = ["1 ms"]\n'
    good = '"2 ms"' if bad.startswith('"') else "1"
    axes = f'{bases}cost.draft.base = ["1 ms", "3 ms"]\ncost.{key} = [{good}, {bad}]\npolicy.gamma'
    with pytest.raises(InputError) as error:
        scenario(*AFFINE, ("policy.gamma", axes))
    assert complaint in str(error.value)


def test_price_axes_of_a_million_points_are_read_at_once(scenario):
    many = scenario(
        ('draft = "1 ms"\ntarget = "8 ms"\n', ""),
        ("policy.gamma", 'cost.draft = { start = "1 ms", stop = "9 ms", num = 1000 }\n'
         'cost.target = { start = "1 ms", stop = "90 ms", num = 500 }\npolicy.gamma'),
    )  # fmt: skip
    assert len(many) == 10**6
    places = many.places(np.array([0, 999_999, 1234]))
    assert {key: at.tolist() for key, at in places.items()} == {
        "cost.draft": [0, 999, 1], "cost.target": [0, 499, 117], "policy.gamma": [0, 1, 0],
    }  # fmt: skip
    assert many.point(999_999).cost.target == 90_000_000
    point = many.point(1234)
    middle = many.costs(many.point(0).cost, {key: at[2:] for key, at in places.items()}, 1)
    assert (middle.law.draft.base[0], middle.law.target.base[0]) == (point.cost.draft, point.cost.target)


def test_points_are_numbered_as_the_product_of_the_axes(scenario):
    planned = scenario(*SWEPT_PRICES)
    assert [point for _, point in planned.points] == [planned.point(number) for number in range(len(planned))]
    assert [tuple(swept.values()) for swept, _ in planned.points] == list(product(*planned.axes.values()))
    assert sorted(POLICIES) == sorted(planned.point(0).policy.names)
