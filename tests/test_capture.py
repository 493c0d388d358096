"""Capture: a trace that replays what the engine did, kept request by request, and honest about what it holds."""

import json
import os
import signal
import subprocess
import sys
import time

import polars as pl
import pytest

pytest.importorskip("torch", reason="needs the extra: models")
pytest.importorskip("transformers", reason="needs the extra: models")

import tiny_pair

from pearl_sim import capture, cli, prompts
from pearl_sim.drivers.real import decode
from pearl_sim.errors import InputError
from pearl_sim.models.lm import ModelSettings
from pearl_sim.models.pair import open_pair
from pearl_sim.models.sampling import Sampling
from pearl_sim.policies import pearl, speculative
from pearl_sim.recording import step_rows
from pearl_sim.scenario import read
from pearl_sim.sweep import run
from pearl_sim.trace import load

COMMAND = [sys.executable, "-c", "from pearl_sim.cli import main; main()"]
PROMPTS = [prompts.Prompt("def f(x):", "code"), prompts.Prompt("import os", None), prompts.Prompt("z", "code")]
POLICIES = {"sd-3": speculative(3), "pearl-2": pearl(2)}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return tiny_pair.make(tmp_path_factory.mktemp("pair"))


GREEDY = Sampling()


def opened(models, sampling=GREEDY, draft=None):
    return open_pair(ModelSettings(str(models / "target")), draft or ModelSettings(str(models / "draft")), sampling)


def recorded(pair, out, resume=False, **changes):
    given = {"prompts": PROMPTS, "tokens": 24, "policies": POLICIES} | changes
    return capture.capture(pair, given["prompts"], given["tokens"], given["policies"], out, "pearl-sim capture", resume)


@pytest.mark.parametrize("mode", ["greedy", "coupled", "rejection"])
def test_a_trace_holds_requests_tokens_and_steps(models, tmp_path, mode):
    sampling = Sampling() if mode == "greedy" else Sampling(mode=mode, seed=3, temperature=0.7)
    with opened(models, sampling) as pair:
        recorded(pair, tmp_path / "trace")
    trace = load(tmp_path / "trace")
    assert trace.requests["category"].to_list() == ["code", None, "code"]
    assert trace.provenance.sampling["mode"] == mode
    assert trace.provenance.target.parameters > 10_000
    assert trace.provenance.execution == "eager"
    assert (trace.tokens["alpha"].null_count() == len(trace.tokens)) == (mode == "greedy")
    assert trace.tokens["margin"].min() >= 0
    # Every round is in the steps: the sizes that a policy uses, prefill at context 0.
    for source, drafted, widest in (("sd-3", 3, 4), ("pearl-2", 2, 2)):
        steps = trace.steps.filter(pl.col("source") == source)
        of_decode = steps.filter(pl.col("context") > 0)
        assert set(of_decode.filter(pl.col("role") == "draft")["tokens"]) == {drafted}
        assert of_decode.filter(pl.col("role") == "target")["tokens"].max() == widest
        assert of_decode["overlapped"].any() == (source == "pearl-2")
        assert len(steps.filter(pl.col("context") == 0)) == 2 * len(PROMPTS)


def test_a_captured_trace_is_replayed_by_a_scenario_with_its_own_latencies(models, tmp_path):
    with opened(models) as pair:
        recorded(pair, tmp_path / "trace")
    (tmp_path / "replay.toml").write_text(
        '[acceptance]\nlaw = "recorded"\ntrace = "trace"\n[cost]\nmodel = "empirical"\ntrace = "trace"\n'
        '[policy]\nnames = ["ar", "sd", "pearl"]\ngamma = 3\n'
    )
    rows = run(read(tmp_path / "replay.toml")).rows
    assert rows["tokens_per_s"].min() > 0
    assert rows["tokens_per_target_forward"][1] > 1


def test_an_interrupted_capture_goes_on_where_it_stopped_and_equals_one_in_one_piece(models, tmp_path, monkeypatch):
    whole_record = capture.record

    def interrupted(pair, prompt, number, *rest):
        if number == 1:
            raise KeyboardInterrupt
        return whole_record(pair, prompt, number, *rest)

    with opened(models) as pair:
        monkeypatch.setattr(capture, "record", interrupted)
        with pytest.raises(KeyboardInterrupt):
            recorded(pair, tmp_path / "trace")
        assert not (tmp_path / "trace").exists()
        redone = []
        monkeypatch.setattr(capture, "record", lambda *given: (redone.append(given[2]), whole_record(*given))[1])
        with pytest.raises(InputError, match="interrupted recording; go on with --resume"):
            recorded(pair, tmp_path / "trace")
        with pytest.raises(InputError, match="interrupted recording with other settings"):
            recorded(pair, tmp_path / "trace", resume=True, tokens=20)
        resumed = recorded(pair, tmp_path / "trace", resume=True)
        assert redone == [1, 2]
        at_once = recorded(pair, tmp_path / "other")
    assert resumed.requests.equals(at_once.requests)
    assert resumed.tokens.equals(at_once.tokens)
    assert [entry.name for entry in tmp_path.iterdir()].count("trace") == 1
    assert not list(tmp_path.glob(".*"))


def test_a_gamma_above_the_usual_lookahead_is_replayed_too(models, tmp_path):
    """The target as its own draft accepts everything, so the last round reaches far past the limit."""
    with opened(models, draft=ModelSettings(str(models / "target"))) as pair:
        recorded(pair, tmp_path / "trace", policies={"sd-40": speculative(40)}, tokens=8)


def test_a_prompt_that_is_too_long_leaves_nothing_behind(models, tmp_path):
    with opened(models) as pair, pytest.raises(InputError, match="prompt: has 301 tokens"):
        recorded(pair, tmp_path / "trace", prompts=[prompts.Prompt("x" * 300, None)])
    assert list(tmp_path.iterdir()) == []


def test_steps_carry_the_times_sizes_and_contexts_of_their_rounds(models):
    with opened(models) as pair:
        prompt = pair.tokenizer.encode("import os")
        emitted = list(decode(pearl(2), prompt, 12, pair.target, pair.draft, pair.sampling))
    rows = {(row[2], row[3]): row for row in step_rows(emitted, "pearl-2", "r", len(prompt))}
    for number, (step, _, draft_start, score_start) in enumerate(emitted):
        draft, target = rows[number, "draft"], rows[number, "target"]
        assert (draft[4], draft[5] - draft[4]) == (draft_start, step.draft_ns)
        assert (target[4], target[5] - target[4]) == (score_start, step.score_ns)
        if number:
            verified, pending = step.frontier
            assert draft[6:8] == (2, len(prompt) + verified + pending)
            assert target[6:8] == (step.round.score, len(prompt) + verified)
        else:
            assert draft[6:8] == target[6:8] == (len(prompt), 0)


def test_an_existing_trace_is_not_overwritten(models, tmp_path):
    (tmp_path / "trace").mkdir()
    with opened(models) as pair, pytest.raises(InputError, match="exists already"):
        recorded(pair, tmp_path / "trace")


def test_a_rejection_trace_is_marked_as_exact_in_distribution_only(models, tmp_path):
    with opened(models, Sampling(mode="rejection", seed=3)) as pair:
        trace = recorded(pair, tmp_path / "trace")
    assert any("in distribution only" in note for note in trace.provenance.notes)
    assert trace.tokens["alpha"].is_between(0, 1).all()


def test_a_depth_dependent_draft_is_recorded_from_each_start(models, tmp_path):
    with opened(models, Sampling(mode="coupled", seed=1), ModelSettings("prompt-lookup")) as pair:
        trace = recorded(pair, tmp_path / "trace", prompts=[prompts.Prompt("abcabcabc", None)])
    assert trace.provenance.draft.id == "prompt-lookup"
    assert (trace.tokens["run"] >= 0).all()


def test_prompt_files_of_every_kind(tmp_path):
    lines = tmp_path / "p.txt"
    lines.write_text("one\n\ntwo\n")
    assert prompts.read(lines) == [prompts.Prompt("one", None), prompts.Prompt("two", None)]
    records = tmp_path / "p.jsonl"
    records.write_text('{"prompt": "one"}\n{"question_id": 81, "category": "writing", "turns": ["two", "three"]}\n')
    assert prompts.read(records) == [prompts.Prompt("one", None), prompts.Prompt("two", "writing")]
    assert len(prompts.read(prompts.BUNDLED)) == 40
    assert {prompt.category for prompt in prompts.read(prompts.BUNDLED)} == {"code", "prose", "list", "maths"}


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("p.jsonl", '{"prompt": "x"}\n{"prompt": ', "line 2: is not JSON"),
        ("p.jsonl", '{"text": "x"}', 'line 1: must be an object with "prompt"'),
        ("p.jsonl", '{"turns": []}', "line 1: must be an object"),
        ("p.txt", "\n \n", "has no prompts"),
    ],
)
def test_bad_prompt_files_are_one_line(tmp_path, name, content, complaint):
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=complaint):
        prompts.read(tmp_path / name)


@pytest.mark.slow
def test_the_command_survives_control_c_and_resumes(models, tmp_path):
    pair = ["--target", str(models / "target"), "--draft", str(models / "draft")]
    full = [*COMMAND, "capture", *pair, "--out", "trace", "--requests", "6", "--tokens", "60"]
    # What is started by a test in the background would ignore Ctrl-C.
    heeding = [sys.executable, "-c", f"import signal; signal.signal(2, signal.default_int_handler); {COMMAND[-1]}"]
    run_ = subprocess.Popen(
        [*heeding, *full[len(COMMAND) :]], cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    for _ in range(900):
        if list((tmp_path / ".trace.part").glob("*/done")):
            break
        time.sleep(0.1)
    os.kill(run_.pid, signal.SIGINT)
    _, errors = run_.communicate(timeout=60)
    assert run_.returncode == 130, errors
    assert "--resume" in errors
    done = subprocess.run([*full, "--resume"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "wrote trace: 6 requests" in done.stdout
    assert json.loads((tmp_path / "trace" / "trace.json").read_text())["command"].startswith("pearl-sim capture")


@pytest.mark.slow
def test_generate_streams_the_same_text_under_every_policy(models, tmp_path):
    pair = ["--target", str(models / "target"), "--draft", str(models / "draft"), "--tokens", "24"]
    texts = set()
    for policy in ("ar", "sd", "pearl"):
        done = subprocess.run(
            [*COMMAND, "generate", "--policy", policy, "--gamma", "3", *pair, "def "],
            cwd=tmp_path, capture_output=True, text=True, check=True,
        )  # fmt: skip
        texts.add(done.stdout)
        assert "tokens/s" in done.stderr
    assert len(texts) == 1


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--policy", "perl"], "policy 'perl': must be one of"),
        (["--gamma", "0"], "gamma 0: must be 1 or more"),
        (["--tokens", "0"], "--tokens 0: must be 1 or more"),
        (["--mode", "guess"], "mode = 'guess': must be"),
        (["--temperature", "0.5"], "temperature changes nothing in greedy mode"),
        (["--dtype", "int4"], "--dtype int4: must be one of"),
        (["--draft", "layers:x"], "--draft layers:x: must be layers:K"),
        (["--target", "gone"], "gone: cannot be loaded"),
    ],
)
def test_bad_options_are_one_line_and_exit_code_2(tmp_path, options, complaint, monkeypatch, capsys):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["pearl-sim", "generate", *options, "x"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert complaint in told
    assert told.count("\n") == 1, told
