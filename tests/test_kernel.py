"""The kernel gives what the SimPy driver and the plain loops give, `==`: rounds, nanoseconds, draws, sums."""

import json
import shutil
import subprocess
import sys
from itertools import chain, product
from pathlib import Path

import numpy as np
import pytest
from cases import PLAIN, constant, request, runs_from_bits
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numba.core.caching import CacheImpl
from polars.testing import assert_frame_equal
from small_trace import small_trace, steps_table

import pearl_sim
from pearl_sim.acceptance import Decaying, Iid
from pearl_sim.cost import AffineCost, AffineForward, RooflineCost
from pearl_sim.drivers import kernel, sim
from pearl_sim.drivers.compiled import compiled
from pearl_sim.drivers.walk import walk
from pearl_sim.errors import InputError
from pearl_sim.importers import specdecode_bench
from pearl_sim.policies import POLICIES, pearl
from pearl_sim.rules import Policy, widest
from pearl_sim.scenario import read
from pearl_sim.sweep import run
from pearl_sim.timing import HandOver, Latencies, Latency, Timing, everywhere
from pearl_sim.trace import save

ROOT = Path(__file__).parents[1]
EVERY_TEXT = [runs_from_bits([0, *bits]) for bits in product((0, 1), repeat=15)]
"""Every way in which a draft can be right or wrong at 15 positions, after the token that prefill yields."""

policies = st.builds(Policy, st.integers(0, 12), st.booleans(), st.booleans())
run_tables = st.lists(st.one_of(st.integers(0, 3), st.integers(0, 60)), min_size=1, max_size=60)
ns = st.integers(0, 10**7)


def same(policy, requests, timing, seed=0, run_limit=None):
    """Assert that both drivers agree, on timelines and on what is counted on them; runs of `run_limit` are cut."""
    censored = None if run_limit is None else [request.runs >= run_limit for request in requests]
    assert kernel.simulate(policy, requests, timing, seed) == sim.simulate(policy, requests, timing, seed)
    told = kernel.tally(policy, requests, timing, seed, censored)
    assert told == sim.tally(policy, requests, timing, seed, censored)
    assert all(type(number) is int for number in chain(*told.totals, *told.depths)), "as Python counts, without end"


@pytest.mark.parametrize(
    ("name", "gamma"), [("ar", 0), *product(sorted(POLICIES.keys() - {"ar"}), range(1, 9))]
)  # 33 * 2^15 > 10^6 cases
def test_kernel_and_plain_loop_agree_on_more_than_a_million_cases(name, gamma):
    policy = POLICIES[name](gamma)
    timing = constant(3, 10, sync=1).timing(policy)
    requests = [request(runs) for runs in EVERY_TEXT]
    walked = walk(policy, requests)
    spent = np.empty((len(walked.rounds), 3), np.int64)
    kernel._price_rounds(walked, timing, 0, kernel._prefill(walked, timing), spent)
    verified, pending, accepted = walked.rounds.T
    drafted, scored = np.array([walked.kinds.get(drafts, (0, 0)) for drafts in range(gamma + 1)])[pending].T
    told = np.column_stack((verified, pending, drafted, scored, accepted, spent[:, 0]))
    loop, times = PLAIN[name], (gamma, 3, 10, 1)
    expected = chain.from_iterable(row for runs in EVERY_TEXT for row in loop(runs, len(runs), *times))
    assert (np.fromiter(expected, np.int64) == told.ravel()).all()


@pytest.mark.parametrize("gamma", range(5))
@pytest.mark.parametrize("name", sorted(POLICIES))
def test_kernel_and_simpy_agree_on_every_acceptance_string(name, gamma):
    policy = POLICIES[name](gamma)
    requests = [request(runs_from_bits([0, *bits])) for bits in product((0, 1), repeat=7)]
    same(policy, requests, constant(3, 10, sync=1, contention=1.5).timing(policy), run_limit=2)


@st.composite
def workloads(draw):
    """Return some requests: free run tables, and limits that may lie before their end."""
    found = []
    for runs in draw(st.lists(run_tables, max_size=4)):
        found.append(request(runs, draw(st.integers(1, len(runs))), draw(st.integers(0, 5000))))
    return found


@st.composite
def timings(draw, policy):
    """Return any tables: several draws or one, slopes, floors, hand-over, contention."""
    draws = draw(st.sampled_from([1, 1, 2, 7]))

    def latency(sizes):
        rows = st.lists(ns, min_size=draws, max_size=draws).map(tuple)
        slopes = st.one_of(st.just(0), st.integers(0, 10**7))
        return Latency(*(tuple(draw(field) for _ in range(sizes)) for field in (rows, slopes, ns)))

    return Timing(
        Latencies(*(latency(policy.gamma + 1) for _ in range(4))),
        Latencies(*(latency(widest(policy) + 1) for _ in range(4))),
        HandOver(*draw(st.one_of(st.just((0, 0, 0)), st.tuples(ns, ns, ns)))),
        draw(st.one_of(st.just(0), st.integers(0, 5 * 10**6))),
        draw(st.tuples(ns, ns).map(lambda parts: lambda prompt_tokens: (parts[0], parts[1] + prompt_tokens))),
    )


@given(policies, workloads(), st.integers(0, 2**64 - 1), st.none() | st.integers(0, 9), st.data())
def test_kernel_and_simpy_agree_on_any_policy_run_tables_and_times(policy, requests, seed, run_limit, data):
    if not requests:
        run_limit = None  # a share of no rounds is none
    same(policy, requests, data.draw(timings(policy)), seed, run_limit)


@settings(max_examples=20)
@given(policies, st.sampled_from([Iid(alpha=0.9), Iid(alpha=1.0), Decaying(alpha=0.95, rate=0.98)]), st.data())
def test_kernel_and_simpy_agree_on_long_texts(policy, law, data):
    requests = [request(law.runs(1, number, 1500), 1480 + number) for number in range(2)]
    same(policy, requests, data.draw(timings(policy)), 3, run_limit=20)


FORWARD = AffineForward(base="1 us", per_token="7 ns", per_context_token="333 ps")
DEVICE = {"bandwidth_bytes_per_s": 2e12, "flop_per_s": 1e15, "kv_bytes_per_token": 4000.0}
COSTS = {
    "constant": constant(3, 10, sync=1),
    "contended": constant(300, 1000, sync=7, contention=1.37),
    "prefill given": constant(3, 10, prefill="0 ns"),
    "affine": AffineCost(draft=FORWARD, target=FORWARD, batch=3, sync="5 ns", contention=2.0),
    "roofline": RooflineCost.read(
        "test", {"draft": {"parameters": 1e7, **DEVICE}, "target": {"parameters": 1e9, **DEVICE}, "batch": 40}
    ),
}


@pytest.mark.parametrize("cost", COSTS.values(), ids=COSTS.keys())
@pytest.mark.parametrize("name", sorted(POLICIES))
def test_kernel_and_simpy_agree_on_every_cost_model(name, cost):
    policy = POLICIES[name](5)
    requests = [request(Iid(alpha=0.8).runs(0, number, 110), 100, prompt_tokens=50 * number) for number in range(5)]
    same(policy, requests, cost.timing(policy), run_limit=8)


@given(policies, st.integers(0, 2**63), st.integers(0, 10**8), st.integers(1, 40))
@example(Policy(0, True, False), (2**63 - 1) // 80, 0, 40)
@example(Policy(0, True, False), (2**63 - 1) // 79, 0, 40)
def test_a_time_past_the_end_of_the_clock_is_refused_never_wrong(policy, long_ns, overlap_ppm, limit):
    sizes = max(policy.gamma, widest(policy)) + 1
    for latency in (
        Latency(((long_ns,),) * sizes, (0,) * sizes, (0,) * sizes),
        Latency(((0,),) * sizes, (0,) * sizes, (long_ns,) * sizes),
        Latency(((0,),) * sizes, (long_ns,) * sizes, (0,) * sizes),
    ):
        hand_over = HandOver(*[long_ns if overlap_ppm % 2 else 0] * 3)
        timing = Timing(everywhere(latency), everywhere(latency), hand_over, overlap_ppm, lambda _: (1, 1))
        requests = [request([2] * limit, prompt_tokens=1)]
        try:
            told = kernel.simulate(policy, requests, timing, 0)
        except OverflowError:
            with pytest.raises(OverflowError):
                kernel.tally(policy, requests, timing, 0, None)
        else:
            assert told == sim.simulate(policy, requests, timing, 0)


@pytest.mark.parametrize(
    "change",
    [
        {"target": everywhere(Latency(((10**18,), (10**18,)), (0, 0), (0, 0)))},
        {"target": everywhere(Latency(((0,), (0,)), (0, 0), (10**18, 10**18)))},
        {"target": everywhere(Latency(((0,), (0,)), (3 * 10**17, 3 * 10**17), (0, 0)))},
        {"draft": everywhere(Latency(((10**18,), (10**18,)), (0, 0), (0, 0)))},
        {"target": everywhere(Latency(((10**12,), (10**12,)), (0, 0), (0, 0))), "overlap_ppm": 10**8},
        {"target": everywhere(Latency(((1,), (2**64,)), (0, 0), (0, 0)))},
        {"hand_over": HandOver(0, 0, 2**62)},
        {"prefill_ns": lambda _: (2**63 - 40, 1)},
        {"draft": everywhere(Latency(((0,), (0,)), (3 * 10**17, 3 * 10**17), (0, 0)))},
    ],
)
def test_each_part_of_the_time_is_kept_within_the_clock(change):
    """Forty tokens after a prompt of one, each change alone too long for 64 bits in a sum or in a product."""
    short = Latency(((1,), (1,)), (0, 0), (0, 0))
    fitting = Timing(everywhere(short), everywhere(short), HandOver(1, 1, 1), 0, lambda _: (1, 1))
    requests = [request([0] * 40, prompt_tokens=1)]
    same(pearl(1), requests, fitting)
    for entry in (
        lambda timing: kernel.simulate(pearl(1), requests, timing, 0),
        lambda timing: kernel.tally(pearl(1), requests, timing, 0, None),
    ):
        with pytest.raises(OverflowError):
            entry(fitting._replace(**change))


def test_where_the_clock_ends_simulate_takes_simpy_and_refuses_a_forced_kernel(tmp_path):
    text = (ROOT / "scenarios" / "ratio_sweep.toml").read_text()
    assert 'start = "1 ms", stop = "32 ms", num = 16' in text
    file = tmp_path / "long.toml"
    file.write_text(text.replace('"1 ms", stop = "32 ms", num = 16', '"1 s", stop = "8e6 s", num = 2'))
    few = {"workload.requests": "2", "workload.tokens": "400"}
    found = run(read(file, few))
    assert found.driver == "kernel, sim"
    assert_frame_equal(found.rows, run(read(file, few), driver="sim").rows, check_exact=True)
    with pytest.raises(InputError, match=r"long, driver kernel.*clock; use sim"):
        run(read(file, few), driver="kernel")


def drivers_agree(scenario):
    told, expected = (run(scenario, driver=driver) for driver in ("kernel", "sim"))
    assert (told.driver, expected.driver) == ("kernel", "sim")
    assert_frame_equal(told.rows, expected.rows, check_exact=True)
    assert_frame_equal(told.depths, expected.depths, check_exact=True)


@pytest.mark.parametrize("file", sorted((ROOT / "scenarios").glob("*.toml")), ids=lambda file: file.stem)
def test_shipped_scenarios_give_the_same_tables_with_either_driver(file):
    drivers_agree(read(file, {"workload.requests": "3", "workload.tokens": "60"}))


def test_recorded_acceptance_and_resampled_latencies_give_the_same_tables_with_either_driver(tmp_path):
    steps = [("draft", 1, 10, 100), ("draft", 1, 10, 190), ("draft", 7, 0, 60), ("target", 7, 0, 3000)]
    steps += [("target", size, 10, took) for size in (1, 6) for took in (1000, 2000, 4000)]
    save(small_trace(tmp_path / "trace", steps=steps_table(steps)))
    file = tmp_path / "jitter.toml"
    file.write_text("""
        [acceptance]
        law = "recorded"
        trace = "trace"
        [cost]
        model = "empirical"
        trace = "trace"
        sync = "9 ns"
        [policy]
        names = ["ar", "sd", "pearl", "pearl-no-pre", "pearl-no-post"]
        [workload]
        seed = 3
        [sweep]
        policy.gamma = [1, 2, 4, 5]
        """)
    drivers_agree(read(file))


def test_imported_record_gives_the_same_tables_with_either_driver(tmp_path, shared_data):
    file = shared_data / "llama31_8b_h100" / "gsm8k.jsonl"
    save(specdecode_bench.read(file, "eagle", tmp_path / "traces" / "h100_gsm8k"))
    (tmp_path / "scenarios" / "imported").mkdir(parents=True)
    shutil.copy(ROOT / "scenarios" / "imported" / "h100_gsm8k.toml", tmp_path / "scenarios" / "imported")
    scenario = tmp_path / "scenarios" / "imported" / "h100_gsm8k.toml"
    drivers_agree(read(scenario, {"workload.requests": "20", "policy.gamma": "4"}))


def test_without_a_directory_to_keep_compiled_code_in_the_kernel_compiles_anew(monkeypatch):
    monkeypatch.setattr(CacheImpl, "_locator_classes", [])
    monkeypatch.setattr(kernel, "clock", compiled(kernel._clock))
    policy = pearl(3)
    same(policy, [request([0, 3, 2, 1, 0, 5, 4])], constant(3, 10).timing(policy))
    assert not kernel.clock.stats.cache_path


COUNT = """
import sys, json
sys.path.insert(0, ".")
import numpy as np
from pearl_sim.cost import ConstantCost
from pearl_sim.drivers import kernel
from pearl_sim.drivers.walk import follow
from pearl_sim.judge import Request
from pearl_sim.policies import speculative
timing = ConstantCost(draft="1 ns", target="10 ns").timing(speculative(2))
((timeline,), hits) = kernel.simulate(speculative(2), [Request(0, 9, np.zeros(9, int))], timing, 0), follow.stats
print(json.dumps([len(timeline), sum(hits.cache_hits.values())]))
"""


@pytest.mark.slow
def test_compiled_code_is_kept_and_made_anew_when_a_rule_changes(tmp_path):
    package = Path(pearl_sim.__file__).parent
    shutil.copytree(package, tmp_path / "pearl_sim", ignore=shutil.ignore_patterns("models", "__pycache__"))

    def count():
        done = subprocess.run([sys.executable, "-c", COUNT], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    assert [count(), count()] == [[1 + 2 * 8, 0], [1 + 2 * 8, 1]]
    rules = tmp_path / "pearl_sim" / "rules.py"
    right = "return Frontier(frontier.verified + accepted + 1, 0)"
    assert right in rules.read_text()
    rules.write_text(rules.read_text().replace(right, right.replace("+ 1", "+ 2")))
    assert [count(), count()] == [[1 + 2 * 4, 0], [1 + 2 * 4, 1]]
