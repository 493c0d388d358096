"""Serial speed-ups at batch 1 of SpecDecode-Bench's acceptance files with their published costs: a plain loop is right.

The loop is written from the files' format and the published cost formulas alone, in seconds; the simulator replays
the imported trace with AffineCost, in whole nanoseconds.

The oracle knows, at every step, how many drafts would be accepted, and drafts exactly so many: no draft is ever
wasted.  It is no policy, since none can know that.  Nor is it the fastest: a draft cut short can lead to a better
start.  The optimum over all ways to choose the lengths is found backwards from the end; nothing beats it.
"""

import json
import random
from pathlib import Path

import pytest

from pearl_sim.cost import AffineCost, AffineForward
from pearl_sim.drivers.kernel import tally
from pearl_sim.importers.specdecode_bench import read
from pearl_sim.policies import autoregressive, speculative
from pearl_sim.trace import load, save

ROOT = Path(__file__).parents[1]
FIXED = (1, 3, 5)
COST = AffineCost(
    draft=AffineForward(base="2.135 ms", per_token="841 ns", per_context_token="2.378 ns"),
    target=AffineForward(base="7.093 ms", per_token="21.01 us", per_context_token="39.26 ns"),
    prefill="0 ns",
)
"""Llama-3.1-8B-Instruct and its EAGLE draft on one H100; the 1.207 ms of every step are in the target's base."""


def target_s(context, positions):
    return 3.926e-8 * context + 2.101e-5 * positions + 5.886e-3


def draft_s(context, length):
    return sum(2.378e-9 * (context + i) + 8.41e-7 + 2.135e-3 for i in range(length))


def step_s(context, drafts):
    return draft_s(context, drafts) + target_s(context, drafts + 1) + 1.207e-3


def plain_s(prompt, emitted, choose):
    """Return the seconds to write the tokens after the first; `choose` says how many to draft, told the run there."""
    seconds, written = 0.0, 1
    while written < len(emitted):
        drafts = choose(emitted[written] - 1)
        seconds += step_s(prompt + written, drafts)
        written += min(emitted[written], drafts + 1)
    return seconds


def optimum_s(prompt, emitted):
    """Return the least seconds that any choice of draft lengths takes; a draft longer than its run only costs more."""
    left = [0.0] * (len(emitted) + 1)
    for written in range(len(emitted) - 1, 0, -1):
        lengths = range(min(emitted[written], len(emitted) - written))
        left[written] = min(step_s(prompt + written, k) + left[written + k + 1] for k in lengths)
    return left[1]


def records(file):
    """Return (prompt tokens, tokens that an EAGLE step emits at each position) of every request."""
    with file.open() as lines:
        for line in lines:
            record = json.loads(line)
            emitted = record["acc_eagle"]["acc_len"][: len(record["generated_token_ids"])]
            yield len(record["prompt_token_ids"]), emitted


def plain_totals(file):
    """Return total seconds by strategy: "ar", each fixed length, "oracle", "optimum"."""
    strategies = {"ar": lambda run: 0, "oracle": lambda run: run}
    strategies |= {length: lambda run, length=length: length for length in FIXED}
    found = list(records(file))
    totals = {name: sum(plain_s(*request, choose) for request in found) for name, choose in strategies.items()}
    return totals | {"optimum": sum(optimum_s(*request) for request in found)}


def simulated_totals(file, out):
    """Return total seconds of the imported trace, replayed: "ar" and each fixed length."""
    save(read(file, "eagle", out))
    requests = load(out).workload(None, None)
    policies = {"ar": autoregressive()} | {length: speculative(length) for length in FIXED}
    return {
        name: sum(request.time_ns for request in tally(policy, requests, COST.timing(policy), 0, None).totals) / 1e9
        for name, policy in policies.items()
    }


def hold(plain, simulated):
    """Hold the simulator to the loop; whole nanoseconds cost under 2 in a step of 7 million."""
    assert simulated == pytest.approx({name: plain[name] for name in simulated}, rel=1e-6)
    assert all(plain["optimum"] <= seconds * (1 + 1e-12) for seconds in plain.values())


def test_the_simulator_takes_what_a_plain_loop_takes(tmp_path):
    luck = random.Random(5)
    with (tmp_path / "made.jsonl").open("w") as file:
        for number in range(12):
            length = luck.choice([1, 2, 30, 200])
            emitted = [luck.choice([1, 1, 2, 3, 6]) for _ in range(length)]
            record = {"id": str(number), "prompt_token_ids": [0] * luck.randrange(1, 900)}
            record |= {"generated_token_ids": [0] * length, "acc_eagle": {"acc_len": emitted}}
            file.write(json.dumps(record) + "\n")
    hold(plain_totals(tmp_path / "made.jsonl"), simulated_totals(tmp_path / "made.jsonl", tmp_path / "trace"))


@pytest.mark.parametrize("dataset", ["gsm8k", "sharegpt"])
def test_the_h100_files_give_the_speed_ups_that_the_document_states(shared_data, tmp_path, dataset):
    file = shared_data / "llama31_8b_h100" / f"{dataset}.jsonl"
    if not file.exists():
        pytest.skip(f"{file.name} is not on this machine")
    plain = plain_totals(file)
    hold(plain, simulated_totals(file, tmp_path / dataset))
    speedups = [plain["ar"] / plain[name] for name in (*FIXED, "oracle", "optimum")]
    row = f"| {dataset} | " + " | ".join(f"{speedup:.3f}" for speedup in speedups) + " |"
    assert row in (ROOT / "docs" / "validation.md").read_text().splitlines()
