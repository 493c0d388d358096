"""The engine on real (tiny, random) models: lossless, and round for round what the simulator replays."""

import json
import os
import shutil
import signal
import time
from contextlib import contextmanager

import numpy as np
import psutil
import pytest

pytest.importorskip("torch", reason="needs the extra: models")
pytest.importorskip("transformers", reason="needs the extra: models")

import tiny_pair
import torch
from test_sampling import FALSE_ALARM, chi_square_p

from pearl_sim import capture
from pearl_sim.drivers import real
from pearl_sim.errors import InputError
from pearl_sim.judge import Request
from pearl_sim.models import cache, worker
from pearl_sim.models.lm import ModelSettings, load_model
from pearl_sim.models.pair import open_pair
from pearl_sim.models.sampling import Sampling, scores
from pearl_sim.policies import POLICIES

MODES = {
    "greedy": Sampling(),
    "coupled": Sampling(mode="coupled", temperature=0.7, seed=5),
    "rejection": Sampling(mode="rejection", temperature=0.7, seed=5),
}
PROMPTS = ["def f(x):", "import os", "z", "class A:\n    ", "the quick brown fox"]
LIMIT = 32


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return tiny_pair.make(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="module")
def pairs(models):
    """Return a function that opens a pair (once) for a mode and a kind of draft."""
    open_now = {}

    @contextmanager
    def opened():
        def get(mode, draft="model"):
            if (mode, draft) not in open_now:
                target = ModelSettings(str(models / "target"))
                kind = {
                    "model": ModelSettings(str(models / "draft")),
                    "layers": target._replace(layers=1),
                    "prompt-lookup": ModelSettings("prompt-lookup"),
                }[draft]
                manager = open_pair(target, kind, MODES[mode])
                open_now[mode, draft] = manager, manager.__enter__()
            return open_now[mode, draft][1]

        yield get
        for manager, _ in reversed(open_now.values()):  # each restores the cores it found
            manager.__exit__(None, None, None)

    with opened() as get:
        yield get


def emitted_by(pair, policy, prompt, limit=LIMIT, request=0, stop=()):
    return list(real.decode(policy, prompt, limit, pair.target, pair.draft, pair.sampling, request, stop))


def decode(*given, **more):
    """Return (output tokens, steps)."""
    emitted = emitted_by(*given, **more)
    return [token for e in emitted for token in e.tokens], [e.step for e in emitted]


def own_text(pair, prompt, tokens, request=0):
    """Return what the target writes alone, one token a forward, by transformers' own generate where greedy."""
    if pair.sampling.mode == "greedy":
        ids = torch.tensor([prompt])
        out = pair.target.model.generate(ids, max_new_tokens=tokens, do_sample=False, eos_token_id=None, pad_token_id=0)
        return out[0, len(prompt) :].tolist()
    return decode(pair, POLICIES["ar"](0), prompt, tokens, request)[0]


@pytest.mark.parametrize("mode", ["greedy", "coupled"])
@pytest.mark.parametrize("policy", ["sd", "pearl", "pearl-no-pre", "pearl-no-post"])
def test_text_is_the_targets_own_for_every_policy_and_gamma(pairs, mode, policy):
    pair = pairs(mode)
    for number, text in enumerate(PROMPTS[:2]):
        prompt = pair.tokenizer.encode(text)
        expected = own_text(pair, prompt, LIMIT, number)
        for gamma in range(1, 9):
            assert decode(pair, POLICIES[policy](gamma), prompt, LIMIT, number)[0] == expected, (policy, gamma)


@pytest.mark.parametrize("policy", list(POLICIES))
def test_a_stop_token_anywhere_in_a_window_ends_the_text_there(pairs, policy):
    pair = pairs("greedy")
    prompt = pair.tokenizer.encode(PROMPTS[0])
    text = own_text(pair, prompt, 20)
    for end in range(1, 13):
        stop = {text[end]}
        first = text.index(text[end])
        assert decode(pair, POLICIES[policy](5), prompt, stop=stop)[0] == text[: first + 1]


@pytest.mark.parametrize("policy", list(POLICIES))
def test_the_limit_anywhere_in_a_window_cuts_the_text_there(pairs, policy):
    pair = pairs("greedy")
    prompt = pair.tokenizer.encode(PROMPTS[1])
    text = own_text(pair, prompt, 20)
    for limit in range(1, 14):
        assert decode(pair, POLICIES[policy](5), prompt, limit)[0] == text[:limit]


@pytest.mark.parametrize("draft", ["model", pytest.param("layers", marks=pytest.mark.slow), "prompt-lookup"])
@pytest.mark.parametrize("mode", ["greedy", "coupled"])
def test_rounds_are_those_of_the_simulator_replaying_the_trace(pairs, mode, draft):
    """For every policy and gamma 1..8, over several requests: (frontier, round, accepted) equal, `==`."""
    pair = pairs(mode, draft)
    compared = 0
    for number, text in enumerate(PROMPTS[:3] if draft == "model" else PROMPTS[:1]):
        prompt = pair.encode(text, LIMIT + capture.LOOKAHEAD)
        written = capture.write_text(pair, prompt, number, LIMIT)
        _, runs, _ = capture.foresee(pair, prompt, written, number)
        request = Request(len(prompt), written.output_tokens, runs)
        for name, policy_of in POLICIES.items():
            for gamma in range(1, 9 if name != "ar" else 2):
                emitted = emitted_by(pair, policy_of(gamma), prompt, LIMIT, number, pair.stop)
                assert capture.hold_to_replay(policy_of(gamma), request, emitted, written, f"{name}-{gamma}")
                compared += written.output_tokens
    assert compared >= (2000 if draft == "model" else 300)


def test_a_wrong_trace_is_shown_at_its_first_diverging_round_unless_a_near_tie_explains_it(pairs):
    pair = pairs("greedy")
    prompt = pair.tokenizer.encode(PROMPTS[0])
    written = capture.write_text(pair, prompt, 0, LIMIT)
    _, runs, _ = capture.foresee(pair, prompt, written, 0)
    wrong = runs.copy()
    wrong[10:] = 0
    request = Request(len(prompt), LIMIT, wrong)
    policy, emitted = POLICIES["sd"](4), emitted_by(pair, POLICIES["sd"](4), prompt)
    with pytest.raises(capture.DivergenceError, match=r"sd-4, round \d+: the engine did .* replay .* margin"):
        capture.hold_to_replay(policy, request, emitted, written, "sd-4")
    assert not capture.hold_to_replay(policy, request, emitted, written, "sd-4", dtype="bfloat16")
    tied = written._replace(margins=[1e-6] * len(written.margins))
    assert not capture.hold_to_replay(policy, request, emitted, tied, "sd-4")
    other_text = written._replace(tokens=[1, *written.tokens[1:]])
    with pytest.raises(capture.DivergenceError):
        capture.hold_to_replay(policy, request._replace(runs=runs), emitted, other_text, "sd-4")


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["sd", "pearl", "pearl-no-pre", "pearl-no-post"])
def test_rejection_decoding_keeps_the_targets_joint_distribution(tmp_path_factory, policy):
    """Three tokens after prefill over a vocabulary of 4: exact probabilities against 900 requests."""
    tiny = tiny_pair.make(tmp_path_factory.mktemp("four"), vocabulary=4, noise=0.3)
    sampling = Sampling(mode="rejection", temperature=1.3, seed=8)
    requests, length, prompt = 900, 4, [1, 2]
    with open_pair(ModelSettings(str(tiny / "target")), ModelSettings(str(tiny / "draft")), sampling) as pair:
        probability = np.zeros([4] * length)
        for text in np.ndindex(*probability.shape):
            log_p = scores(pair.target.logits([*prompt, *text[:-1]], length), sampling)
            probability[text] = float(log_p[range(length), list(text)].sum().exp())
        counts = np.zeros_like(probability)
        accepted = 0
        for number in range(requests):
            tokens, steps = decode(pair, POLICIES[policy](2), prompt, length, number)
            counts[tuple(tokens)] += 1
            accepted += sum(step.accepted for step in steps)
    assert probability.sum() == pytest.approx(1)
    assert accepted > 0.2 * requests
    expected = (probability * requests).ravel()
    common = expected >= 5  # the rest is pooled, as Pearson's test wants
    pooled = [np.append(x[common], x[~common].sum()) for x in (counts.ravel(), expected)]
    assert chi_square_p(*pooled) > FALSE_ALARM


@pytest.mark.slow
def test_a_draft_of_a_smaller_vocabulary_leaves_the_targets_text_alone(tmp_path_factory):
    """Its logits are filled up; the target's are never cut."""
    small = tiny_pair.make(tmp_path_factory.mktemp("small"), vocabulary=200)
    large = tiny_pair.make(tmp_path_factory.mktemp("large"), vocabulary=259)
    for sampling in MODES.values():
        with open_pair(ModelSettings(str(large / "target")), ModelSettings(str(small / "draft")), sampling) as pair:
            assert pair.vocabulary == 259
            written = capture.write_text(pair, [65, 66], 0, 12)
            if max(written.tokens) < 200 and sampling.mode != "rejection":
                assert decode(pair, POLICIES["pearl"](3), [65, 66], 12)[0] == written.tokens[:12]
            logits = cache.CachedModel(load_model(ModelSettings(str(small / "draft"))), 259).logits([1, 2], 2)
            assert logits.shape == (2, 259)
            assert torch.isinf(logits[:, 200:]).all()


def test_a_sliding_window_is_rolled_back_exactly_and_refused_in_graph_mode():
    from transformers import MistralConfig, MistralForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = MistralConfig(vocab_size=64, num_key_value_heads=2, sliding_window=8, initializer_range=0.3, **sizes)
    model = MistralForCausalLM(config).eval()
    own = model.generate(torch.tensor([[1, 2]]), max_new_tokens=30, do_sample=False, eos_token_id=None, pad_token_id=0)
    text, held = [1, 2], cache.CachedModel(model, 64)
    while len(text) < 32:
        wrong_drafts = [(7 * len(text) + i) % 64 for i in range(3)]
        text.append(int(held.logits(text + wrong_drafts, 4)[0].argmax()))
    assert text == own[0].tolist()
    with pytest.raises(InputError, match="cannot be rolled back in graph mode"):
        cache.CachedModel(model, 64, graph=True)


def test_only_safetensors_are_loaded_and_only_trusted_code_is_run(models, tmp_path):
    directory = tmp_path / "pickled"
    shutil.copytree(models / "target", directory)
    (directory / "model.safetensors").unlink()
    torch.save({}, directory / "pytorch_model.bin")
    with pytest.raises(InputError, match="safetensors"):
        load_model(ModelSettings(str(directory)))
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "code.py").write_text("raise SystemExit('ran')")
    auto = {"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Model"}
    (foreign / "config.json").write_text(json.dumps({"model_type": "own", "auto_map": auto}))
    with pytest.raises(InputError, match="--trust-remote-code"):
        load_model(ModelSettings(str(foreign)))


@pytest.mark.parametrize("device", ["gpu", "cuda:7"])
def test_a_device_that_is_not_there_is_one_line(models, device):
    target = ModelSettings(str(models / "target"), device=device)
    with pytest.raises(InputError, match=f"device '{device}'") as error, open_pair(target, target, Sampling()):
        pass
    assert "\n" not in str(error.value)


def test_bad_input_in_the_drafts_process_is_one_line_too(models):
    target = ModelSettings(str(models / "target"))
    with pytest.raises(InputError, match="has 2 layers; cannot keep the first 9"):
        open_pair(target, target._replace(layers=9), Sampling()).__enter__()


def test_cores_and_threads_are_given_back(models):
    before = os.sched_getaffinity(0), torch.get_num_threads()
    with opened(models):
        assert len(os.sched_getaffinity(0)) <= max(1, len(before[0]) // 2)
    assert (os.sched_getaffinity(0), torch.get_num_threads()) == before


@pytest.mark.slow
def test_acceptance_is_neither_nothing_nor_everything(pairs):
    """The promises above would be empty otherwise."""
    for mode in MODES:
        pair = pairs(mode)
        _, steps = decode(pair, POLICIES["sd"](4), pair.tokenizer.encode(PROMPTS[0]))
        accepted, checked = sum(s.accepted for s in steps), sum(s.round.score - 1 for s in steps if s.round.score > 1)
        assert 0.1 < accepted / checked < 0.95, mode


@pytest.mark.parametrize("mode", list(MODES))
def test_a_round_can_be_repeated_exactly(pairs, mode):
    pair = pairs(mode)
    prompt = pair.tokenizer.encode(PROMPTS[2])
    first, again, other = (decode(pair, POLICIES["pearl"](3), prompt, request=number)[0] for number in (0, 0, 1))
    assert first == again
    assert (first != other) == (mode != "greedy")


def test_parallel_rounds_overlap_and_no_step_outlasts_its_round(pairs):
    pair = pairs("greedy")
    for name, policy_of in POLICIES.items():
        _, steps = decode(pair, policy_of(4), pair.tokenizer.encode(PROMPTS[0]))
        for step, following in zip(steps, [*steps[1:], None], strict=True):
            assert max(step.draft_ns, step.score_ns) <= step.stop - step.start, name
            assert (step.draft_ns > 0) == (step.round.draft > 0 or (step == steps[0] and name != "ar"))
            assert following is None or following.start >= step.stop


def test_a_prompt_of_one_token_and_one_too_long(pairs):
    pair = pairs("greedy")
    assert len(decode(pair, POLICIES["pearl"](4), [65], 10)[0]) == 10
    with pytest.raises(InputError, match=r"prompt: has \d+ tokens; with up to 50 .* context of 256"):
        pair.encode("x" * 220, 50)


def test_a_directory_without_a_tokenizer_is_no_model_of_bytes_unless_it_is_small(tmp_path):
    large = tiny_pair.make(tmp_path, vocabulary=300)
    target = ModelSettings(str(large / "target"))
    with pytest.raises(InputError, match="too large a vocabulary to be a model of bytes"):
        open_pair(target, target, Sampling()).__enter__()


def test_a_missing_model_is_one_line_that_says_what_to_do(tmp_path):
    gone = ModelSettings(str(tmp_path / "gone"))
    with pytest.raises(InputError, match=r"gone: cannot be loaded .* give a local directory") as error:
        open_pair(gone, gone, Sampling()).__enter__()
    assert "\n" not in str(error.value)


def children():
    return [child for child in psutil.Process().children(recursive=True) if "spawn_main" in " ".join(child.cmdline())]


def opened(models):
    return open_pair(ModelSettings(str(models / "target")), ModelSettings(str(models / "draft")), Sampling())


def test_a_draft_that_dies_ends_the_run_and_is_named(models):
    with opened(models) as pair, pytest.raises(worker.WorkerError, match=r"draft's process died \(exit code -9\)"):
        for number, _ in enumerate(
            real.decode(POLICIES["pearl"](2), [1, 2], 200, pair.target, pair.draft, pair.sampling)
        ):
            if number == 3:
                os.kill(pair.draft._process.pid, signal.SIGKILL)


def test_a_draft_that_hangs_ends_the_run_and_is_named(models, monkeypatch):
    with opened(models) as pair:
        monkeypatch.setattr(worker, "PATIENCE_S", 0.5)
        os.kill(pair.draft._process.pid, signal.SIGSTOP)
        with pytest.raises(worker.WorkerError, match=r"has not answered for .* and was ended"):
            decode(pair, POLICIES["pearl"](2), [1, 2])


def test_a_draft_that_fails_tells_why(models):
    with opened(models) as pair, pytest.raises(worker.WorkerError, match="the draft's process failed:\n"):
        pair.draft.begin([100_000], 1, 0, 0, 0)
        pair.draft.finish()


def test_no_process_stays_behind(models):
    before = {child.pid for child in children()}
    with pytest.raises(RuntimeError, match="anything"), opened(models):
        assert {child.pid for child in children()} - before
        raise RuntimeError("anything")
    time.sleep(0.2)
    assert {child.pid for child in children()} - before == set()


@pytest.mark.parametrize("mode", list(MODES))
def test_a_draft_in_a_thread_writes_what_one_in_a_process_does(pairs, models, mode):
    pair = pairs(mode)
    draft = ModelSettings(str(models / "draft"))
    thread = worker.DraftThread(draft, MODES[mode], pair.vocabulary)
    prompt = pair.tokenizer.encode(PROMPTS[0])
    for policy in (POLICIES["sd"](3), POLICIES["pearl"](3)):
        by_thread = real.decode(policy, prompt, LIMIT, pair.target, thread, pair.sampling)
        assert [token for e in by_thread for token in e.tokens] == decode(pair, policy, prompt)[0]
    with pytest.raises(worker.WorkerError, match="the draft's thread failed"):
        thread.begin([100_000], 1, 0, 0, 0)
        thread.finish()
    thread.close()


def test_graph_mode_rolls_its_static_cache_back_to_the_same_tokens(pairs, models, monkeypatch):
    """Compiled without inductor here, which only makes it slow; the cache and its rollback are the real ones."""
    monkeypatch.setattr(cache, "_compiled", lambda model: torch.compile(model.forward, backend="eager", dynamic=False))
    pair = pairs("greedy")
    static = cache.CachedModel(pair.target.model, pair.vocabulary, graph=True)
    for text in PROMPTS[:2]:
        prompt = pair.tokenizer.encode(text)
        by_graph = real.decode(POLICIES["pearl"](3), prompt, LIMIT, static, pair.draft, pair.sampling)
        assert [token for e in by_graph for token in e.tokens] == own_text(pair, prompt, LIMIT)


def test_a_config_alone_gives_a_model_of_random_weights(models, tmp_path):
    config = models / "target" / "config.json"
    settings = ModelSettings(str(config))
    with open_pair(settings, settings, Sampling()) as pair:
        tokens, _ = decode(pair, POLICIES["pearl"](2), [65, 66], 8)
        assert len(tokens) == 8
