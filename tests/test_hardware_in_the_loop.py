"""Real forwards that follow a script do the script's rounds, whatever they compute; and what is made of them."""

import json
import subprocess
import sys

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("torch", reason="needs the extra: models")
pytest.importorskip("transformers", reason="needs the extra: models")

import tiny_pair
from cases import constant
from small_trace import small_trace

from pearl_sim import fidelity, fidelity_page, profile, prompts, replay
from pearl_sim.compare import compare, verdict
from pearl_sim.cost import EmpiricalCost
from pearl_sim.drivers.real import decode
from pearl_sim.drivers.sim import simulate
from pearl_sim.errors import InputError
from pearl_sim.judge import Request
from pearl_sim.latencies import timed
from pearl_sim.models.drafting import Script
from pearl_sim.models.lm import ModelSettings
from pearl_sim.models.pair import open_pair
from pearl_sim.models.sampling import Sampling
from pearl_sim.policies import POLICIES, label
from pearl_sim.profile_summary import doubts
from pearl_sim.scenario import read_cost
from pearl_sim.trace import REQUESTS, STEPS, TOKENS, Provenance, Trace, load, load_steps, save

COMMAND = [sys.executable, "-c", "from pearl_sim.cli import main; main()"]
SHAPE = {"model_type": "llama", "vocab_size": 259, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
SHAPE |= {"num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 256}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return tiny_pair.make(tmp_path_factory.mktemp("pair"))


def opened(models, sampling=None, draft="draft"):
    kind = ModelSettings("prompt-lookup") if draft == "prompt-lookup" else ModelSettings(str(models / draft))
    return open_pair(ModelSettings(str(models / "target")), kind, sampling or Sampling(), one_tokenizer=False)


@pytest.fixture(scope="module")
def pair(models):
    with opened(models) as pair:
        yield pair


def rounds(steps):
    return [step[4:] for step in steps]


def simulated(policy, prompt_tokens, limit, runs):
    timing = constant(1, 1).timing(policy)
    (timeline,) = simulate(policy, [Request(prompt_tokens, limit, np.array(runs, np.int64))], timing, 0)
    return timeline


def scripted(pair, policy, prompt, limit, script, **more):
    return list(decode(policy, prompt, limit, pair.target, pair.draft, pair.sampling, script=script, **more))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(sorted(POLICIES)),
    st.integers(1, 6),
    st.lists(st.tuples(st.integers(0, 258), st.integers(0, 9)), min_size=2, max_size=24),
    st.integers(1, 9),
)
def test_the_rounds_are_the_script_s_for_any_text_and_any_runs(pair, name, gamma, text, prompt_tokens):
    """Runs need not fit together, as those of a draft that depends on depth do not; and they may pass the end."""
    tokens, runs = zip(*text, strict=True)
    policy = POLICIES[name](gamma)
    emitted = scripted(pair, policy, [1] * prompt_tokens, len(text), Script(tokens, runs))
    assert rounds(e.step for e in emitted) == rounds(simulated(policy, prompt_tokens, len(text), runs))
    assert [token for e in emitted for token in e.tokens] == list(tokens)


@pytest.mark.parametrize("draft", ["draft", "prompt-lookup"])
@pytest.mark.parametrize("mode", ["greedy", "coupled", pytest.param("rejection", marks=pytest.mark.slow)])
def test_every_mode_and_draft_follows_a_script(models, mode, draft):
    runs = [3, 2, 1, 0, 0, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0]
    script = Script(list(range(40, 55)), runs)
    with opened(models, Sampling(mode=mode), draft) as pair:
        for name in POLICIES:
            emitted = scripted(pair, POLICIES[name](3), [1, 2, 3], len(runs), script)
            assert rounds(e.step for e in emitted) == rounds(simulated(POLICIES[name](3), 3, len(runs), runs))


def test_a_batch_reads_so_many_copies_in_every_forward_of_the_target(models):
    seen = []
    script = Script([7] * 12, [11 - i for i in range(12)])
    with opened(models) as pair:
        forward = pair.target.model.forward

        def watched(*given, **more):
            seen.append(tuple(more["input_ids"].shape))
            return forward(*given, **more)

        pair.target.model.forward = pair.target._forward = watched
        for batch in (1, 3, 1):
            seen.clear()
            emitted = scripted(pair, POLICIES["pearl"](2), [1, 2, 3], 12, script, batch=batch)
            assert {shape[0] for shape in seen} == {batch}
            assert len(seen) == sum(e.step.round.score > 0 for e in emitted)
            assert rounds(e.step for e in emitted) == rounds(simulated(POLICIES["pearl"](2), 3, 12, script.runs))


def recorded(path, requests=3, tokens=12, prompt_tokens=6, **more):
    """Return a trace of made-up acceptance, its tokens beyond the models' vocabulary or unknown."""
    rng = np.random.default_rng(1)
    names = [f"r{number}" for number in range(requests)]
    rows = [
        (name, i, None if i == 3 else 100_000 + i, int(rng.integers(0, 5)), None, None, None)
        for name in names
        for i in range(tokens)
    ]
    made = Trace(
        path,
        Provenance(source="made up", created="2026-01-01", command="none", **more),
        pl.DataFrame([(name, None, prompt_tokens, tokens, "length") for name in names], REQUESTS, orient="row"),
        pl.DataFrame(rows, TOKENS, orient="row"),
        pl.DataFrame(schema=STEPS),
    )
    save(made)
    return load(path)


def test_a_replayed_trace_has_the_old_acceptance_and_new_steps_that_compare_equal(pair, tmp_path):
    trace = recorded(tmp_path / "trace")
    policies = {label(name, gamma): POLICIES[name](gamma) for name in POLICIES for gamma in (1, 3)}
    made = replay.replay(pair, trace, 2, policies, tmp_path / "out", "pearl-sim replay", False)
    assert made.requests.equals(trace.requests.head(2))
    assert made.tokens.equals(trace.tokens.head(24))
    assert set(made.steps["source"]) == set(policies)
    assert made.provenance.source == "replayed on hardware"
    assert load(tmp_path / "out").steps.equals(made.steps)
    found = compare(made, EmpiricalCost(trace=tmp_path / "out"), "its own")
    assert verdict(found).rounds_equal
    assert len(found) == 9


def test_an_interrupted_replay_goes_on_where_it_stopped(pair, tmp_path):
    trace = recorded(tmp_path / "trace")
    policies = {"sd-2": POLICIES["sd"](2)}

    def replayed(resume, on_request=lambda *_: None):
        return replay.replay(pair, trace, None, policies, tmp_path / "out", "none", resume, on_request)

    def interrupt(number, _):
        if number == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        replayed(False, interrupt)
    with pytest.raises(InputError, match="interrupted recording; go on with --resume"):
        replayed(False)
    kept = pl.read_parquet(tmp_path / ".out.part" / "00001" / "steps.parquet")
    made = replayed(True)
    assert made.steps.filter(request="r1").equals(kept)
    assert not list(tmp_path.glob(".out*"))


def test_what_real_models_cannot_replay_is_refused_in_one_line(pair, tmp_path):
    policies = {"sd-4": POLICIES["sd"](4)}
    for number, (changes, complaint) in enumerate(
        (
            ({"prompt_tokens": 0}, "row 0: has no prompt tokens"),
            ({"prompt_tokens": 250}, "over the models' context of 256"),
            ({"run_limit": 4}, None),
            ({"run_limit": 4, "gamma": 5}, "gamma = 5: the trace was recorded with at most 4 drafts"),
        )
    ):
        gamma = changes.pop("gamma", 4)
        trace = recorded(tmp_path / str(number), **changes)
        chosen = {f"sd-{gamma}": POLICIES["sd"](gamma)}
        if complaint is None:
            made = replay.replay(pair, trace, 1, chosen, tmp_path / "fine", "none", False)
            assert made.provenance.run_limit == 4
            continue
        with pytest.raises(InputError, match=complaint):
            replay.replay(pair, trace, None, chosen, tmp_path / f"out {number}", "none", False)
        assert not list(tmp_path.glob(".*"))
    save(small_trace(tmp_path / "small", provenance=Provenance(source="t", created="2026-01-01", command="none")))
    with pytest.raises(InputError, match="row 1: has no prompt tokens"):
        replay.replay(pair, load(tmp_path / "small"), None, policies, tmp_path / "no", "none", False)


@pytest.mark.slow
def test_shapes_with_random_weights_are_replayed_and_profiled_from_the_command_line(tmp_path):
    for name, layers in (("big", 2), ("small", 1)):
        (tmp_path / f"{name}.json").write_text(json.dumps(SHAPE | {"num_hidden_layers": layers}))
    recorded(tmp_path / "trace")
    shapes = ["--target", "big.json", "--draft", "small.json"]

    def run(*arguments):
        command = [*COMMAND, *arguments, *shapes]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    told = run("replay", "--trace", "trace", "--policy", "pearl,ar", "--gamma", "2", "--requests", "2", "--out", "out")
    assert told.returncode == 0, told.stderr
    assert "wrote out: 2 requests" in told.stdout
    assert load(tmp_path / "out").provenance.target.id == "big.json (random weights)"
    told = run("profile", "--gammas", "1,3", "--contexts", "9,40", "--batches", "1,2", "--passes", "3", "--out", "prof")
    assert told.returncode == 0, told.stderr
    assert "affine fit:" in told.stdout
    refused = run("profile", "--contexts", "9000", "--out", "other")
    assert refused.returncode == 2
    assert "contexts: 9000 tokens" in refused.stderr
    assert not (tmp_path / "other").exists()


def test_a_profile_holds_every_kind_of_step_at_every_context_and_batch_size(pair, tmp_path):
    grid = profile.Grid((1, 3), (8, 40), (1, 2))
    made = profile.profile(pair, grid, 3, tmp_path / "profile", "pearl-sim profile", False)
    steps = load_steps(tmp_path / "profile")
    assert steps.equals(made.steps)
    decoding = timed(steps).filter(pl.col("context") > 0)
    for batch in grid.batches:
        own = decoding.filter(batch=batch)
        for role, sizes in (("draft", {1, 3}), ("target", {1, 2, 3, 4})):
            assert set(own.filter(role=role)["tokens"]) == sizes
        kinds = set(own.filter(role="draft", tokens=3).select("overlapped", "rested").rows())
        assert kinds == {(False, False), (False, True), (True, False), (True, True)}
        read = steps.filter(batch=batch, context=0)
        for role, beside in (("draft", False), ("draft", True), ("target", False), ("target", True)):
            assert set(read.filter(role=role, overlapped=beside)["tokens"]) == {8, 40}
    assert decoding["context"].min() == 9
    assert made.provenance.source == "profiled"
    assert read_cost(tmp_path / "profile" / "cost.toml").model == "affine"
    for policy in (POLICIES["pearl-no-post"](3), POLICIES["sd"](2)):
        assert EmpiricalCost(trace=tmp_path / "profile", batch=2).timing(policy)
    with pytest.raises(InputError, match="exists already"):
        profile.profile(pair, grid, 3, tmp_path / "profile", "none", False)


def passes(levels, spread=0.0):
    """Return a profile's steps, of a kind whose passes take so many ns in the mean."""
    rng = np.random.default_rng(0)
    rows = [
        ("profile ar at 9 x 1", f"{p:05}", n, "target", 0, round(level * (1 + spread * rng.normal())), 1, 9, 1, False)
        for p, level in enumerate(levels)
        for n in range(1, 13)
    ]
    rows += [(source, p, n, "draft", *rest) for source, p, n, _, *rest in rows]
    return pl.DataFrame(rows, STEPS, orient="row")


def test_a_profile_says_when_it_is_not_to_be_trusted():
    assert doubts(passes([1_000_000] * 5, 0.05)) == []
    assert "too few passes" in doubts(passes([1_000_000] * 2))[0]
    noisy, unsteady = doubts(passes([1_000_000, 1_600_000, 1_000_000, 1_000_000]))
    assert "too noisy to trust" in noisy
    assert "too unsteady to trust: the slowest pass took 1.60 times" in unsteady


@pytest.mark.slow
def test_fidelity_measures_compares_and_writes_its_page(models, tmp_path):
    texts = [prompts.Prompt("def f(x):", None), prompts.Prompt("import os", None), prompts.Prompt("class A", None)]
    with open_pair(
        ModelSettings(str(models / "target")), ModelSettings(str(models / "draft")), Sampling(mode="coupled")
    ) as pair:
        measured = fidelity.measure(pair, texts, 10, tmp_path / "fidelity", "pearl-sim fidelity")
    assert len(measured.found) == 2 * 21
    assert (measured.found["equal_requests"] == 3).all()
    whole, part = (load_steps(tmp_path / "fidelity" / name) for name in (fidelity.WHOLE, fidelity.PART))
    assert set(part.filter(pl.col("role") == "draft", pl.col("context") > 0)["tokens"]) == {2, 8}
    assert not any("pearl-no" in source for source in part["source"])
    assert {s.split(" ")[1] for s in part["source"]} == {"ar", "sd-2", "sd-8", "pearl-2", "pearl-8"}
    assert len(whole) > len(part)
    fidelity_page.write(measured, tmp_path / "page.md")
    text = (tmp_path / "page.md").read_text()
    assert "| pearl-no-post | 6 |" in text
    assert "21 runs" in text
    assert (tmp_path / "page.png").exists()
    with pytest.raises(InputError, match="holds no earlier measurement"):
        fidelity.refuse_foreign(tmp_path)
    fidelity.refuse_foreign(tmp_path / "fidelity")


@pytest.mark.slow
@pytest.mark.parametrize("cut", [1, 3])
def test_an_interrupted_measurement_goes_on_where_it_stopped(models, tmp_path, monkeypatch, cut):
    """Cut short after a request, and (3) after the last, while it is being compared."""
    monkeypatch.setattr(fidelity, "GAMMAS", (2, 8))
    texts = [prompts.Prompt("def f(x):", None), prompts.Prompt("import os", None), prompts.Prompt("class A", None)]
    passes, one_pass, judge = [], profile.one_pass, fidelity.judge

    def counted(pair, grid, number):
        passes.append(number)
        return one_pass(pair, grid, number)

    def interrupt(*_):
        if len(passes) == cut:
            raise KeyboardInterrupt

    monkeypatch.setattr(profile, "one_pass", counted)
    with open_pair(
        ModelSettings(str(models / "target")), ModelSettings(str(models / "draft")), Sampling(mode="coupled")
    ) as pair:

        def measured(**more):
            return fidelity.measure(pair, texts, **{"tokens": 10, "out": tmp_path / "out", "command": "none"} | more)

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(fidelity, "judge", interrupt)
            measured(on_request=interrupt if cut < len(texts) else lambda *_: None)
        assert not (tmp_path / "out").exists()
        with pytest.raises(InputError, match="go on with --resume"):
            measured()
        with pytest.raises(InputError, match="other settings"):
            measured(tokens=11, resume=True)
        assert fidelity.judge is judge
        found = measured(resume=True)
    assert passes == [0, 1, 2]
    assert (found.found["equal_requests"] == len(texts)).all()
    assert len(found.profile.steps["request"].unique()) == len(found.runs.requests) == len(texts)
    assert [entry.name for entry in tmp_path.iterdir()] == ["out"]
    fidelity.refuse_foreign(tmp_path / "out")
