"""Train the bundled byte-level pair: a target and a draft small enough to ship.

    python -m pearl_sim.models.train_pair --out DIR [--minutes N] [--stage all|target|draft|evaluate]

The simulator needs a real pair of models wherever it runs, also offline and on
one slow core. So the text comes with Python itself (the standard library's
sources and pydoc's help topics, PSF licence), the vocabulary is the 256 bytes
and three marks, and the shapes follow what speculation needs:

* decoding cost at this size is overhead per layer, not arithmetic, so the target
  is deep and narrow and the draft has two layers: the fewest that can copy from
  earlier text, which most of the target's repetitive greedy text asks for;
* weights are stored as bf16 and run as fp32. The target is read back from its
  stored form before the draft learns from it, so the draft imitates what ships;
* a draft is worth what its guesses agree with the target. It is distilled on
  the target's whole distribution, over corpus windows and over the target's own
  text at temperatures 0 and 1. Those distributions are worked out once and used
  several times, because the target is the dearer model to run.

Work is counted in steps, not seconds: one seed gives one pair, apart from float
noise. `--minutes` scales the steps by the speed of the machine of the record.
"""

import argparse
import datetime
import json
import platform
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import torch
import torch.nn.functional as nnf
import transformers
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from pearl_sim.models.measure_pair import BOS, EOS, LONG, Lesson, Recipe, generate, measure

PAD, VOCAB, POSITIONS = 258, 259, 1024
SKIPPED = {"site-packages", "dist-packages", "test", "tests", "idle_test"}
SKIPPED |= {"encodings", "pydoc_data"}  # tables; the topics are taken by themselves
HELD_OUT_FILE, HELD_OUT_TOPIC, TOPIC_REPEATS = 20, 13, 3
STEP_TOKENS, SHORT, LONG_FROM = 3072, 256, 0.75
TARGET = {"num_hidden_layers": 14, "hidden_size": 160, "intermediate_size": 384}
DRAFT = {"num_hidden_layers": 2, "hidden_size": 160, "intermediate_size": 512}
MUON_LR, ADAM_LR = 0.02, 0.003
FULL_MINUTES, TARGET_STEPS, DRAFT_STEPS = 65.0, 1700, 3400
# The draft's lessons: windows of each kind at full length, and how often each is drawn.
OWN_BATCH, PROMPT, GREEDY_BATCHES, SAMPLED_BATCHES = 64, 48, 24, 12
CORPUS_WINDOWS, LONG_WINDOWS = 4096, 384
SHARES = {"corpus": 0.4, "sampled": 0.2, "greedy": 0.4}


def corpus() -> tuple[list[bytes], list[bytes]]:
    """Held-in and held-out documents: standard library sources and help topics."""
    root = Path(sysconfig.get_path("stdlib"))
    files = sorted(p for p in root.rglob("*.py") if not SKIPPED & set(p.relative_to(root).parts))
    documents = [p.read_bytes() for p in files]
    held_in = [d for i, d in enumerate(documents) if i % HELD_OUT_FILE and d]
    held_out = [d for i, d in enumerate(documents) if not i % HELD_OUT_FILE and d]
    for i, name in enumerate(sorted(topics)):
        text = topics[name].encode()
        if i % HELD_OUT_TOPIC:
            held_in += [text] * TOPIC_REPEATS
        else:
            held_out.append(text)
    return held_in, held_out


def stream(documents: list[bytes]) -> Tensor:
    """One long line of token ids: every document between BOS and EOS."""
    ids: list[int] = []
    for document in documents:
        ids += [BOS, *document, EOS]
    return torch.tensor(ids, dtype=torch.int16)


def windows(data: Tensor, count: int, length: int, rng: torch.Generator) -> Tensor:
    """Random windows; half start with BOS, as a prompt cut from a text does."""
    starts = torch.randint(0, len(data) - length, (count, 1), generator=rng)
    batch = data[starts + torch.arange(length)].long()
    batch[torch.rand(count, generator=rng) < 0.5, 0] = BOS
    return batch


def new_model(shape: dict[str, int], seed: int) -> LlamaForCausalLM:
    """Return a fresh model with heads 32 wide and tied embeddings."""
    torch.manual_seed(seed)
    heads = shape["hidden_size"] // 32
    marks = {"vocab_size": VOCAB, "bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": PAD}
    limits = {"max_position_embeddings": POSITIONS, "tie_word_embeddings": True}
    widths = {"num_attention_heads": heads, "num_key_value_heads": heads, **shape}
    return LlamaForCausalLM(LlamaConfig.from_dict({**marks, **limits, **widths}))


def save(model: LlamaForCausalLM, folder: Path) -> None:
    """Store config and bf16 weights, nothing else; the model itself stays fp32."""
    copy: Any = LlamaForCausalLM(model.config)
    copy.load_state_dict(model.state_dict())
    copy.to(torch.bfloat16).save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    (folder / "model.safetensors").chmod(0o644)


def load(folder: Path) -> LlamaForCausalLM:
    """Load a stored model to be run in fp32."""
    model: LlamaForCausalLM = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.train(False)
    return model


def record(out: Path, part: str, facts: Recipe) -> None:
    """Put one part into the recipe kept beside the models."""
    path = out / "recipe.json"
    recipe: Recipe = json.loads(path.read_text()) if path.exists() else {}
    recipe[part] = facts
    recipe["date"] = datetime.datetime.now(datetime.UTC).date().isoformat()
    recipe["hyperparameters"] = {
        "optimiser": "Muon for matrices (weight decay 0.05), AdamW for embedding and norms",
        "learning_rates": {"muon": MUON_LR, "adamw": ADAM_LR},
        "schedule": "50 steps of warm-up, flat to 40%, linear to nothing; gradients clipped at 1",
        "tokens_per_step": STEP_TOKENS,
        "window_lengths": [SHORT, LONG],
        "topic_repeats": TOPIC_REPEATS,
        "held_out": f"each {HELD_OUT_FILE}th file, each {HELD_OUT_TOPIC}th topic",
    }
    recipe["versions"] = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    path.write_text(json.dumps(recipe, indent=2) + "\n")


def optimise(model: LlamaForCausalLM, steps: int, loss_of: Callable[[int], Tensor], folder: Path) -> Recipe:
    """Muon for the matrices, AdamW for the rest; flat rate, then linear to nothing."""
    named = list(model.model.named_parameters())
    matrices = [p for n, p in named if p.ndim == 2 and "embed" not in n]
    others = [p for n, p in named if p.ndim != 2 or "embed" in n]
    optimisers = [
        torch.optim.Muon(matrices, lr=MUON_LR, weight_decay=0.05),
        torch.optim.AdamW(others, lr=ADAM_LR, betas=(0.9, 0.95), weight_decay=0.0),
    ]
    began, mean = time.time(), 0.0
    model.train()
    for step in range(steps):
        scale = min(1.0, (step + 1) / 50, (steps - step) / (0.6 * steps))
        for optimiser, rate in zip(optimisers, (MUON_LR, ADAM_LR), strict=True):
            optimiser.param_groups[0]["lr"] = rate * scale
        loss = loss_of(step)
        model.zero_grad()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimiser in optimisers:
            optimiser.step()
        mean += 0.02 * (loss.item() - mean) if step else loss.item()
        if step % 50 == 0:
            print(f"step {step}/{steps} loss {mean:.4f}, {time.time() - began:.0f} s", flush=True)
        if step % 250 == 249:
            save(model, folder)
    model.train(False)
    save(model, folder)
    return {
        "parameters": model.num_parameters(),
        "steps": steps,
        "tokens_seen": steps * STEP_TOKENS,
        "final_loss_nats": round(mean, 4),
        "minutes": round((time.time() - began) / 60, 1),
    }


def is_long(step: int, steps: int) -> bool:
    """Return whether a step of the last quarter has long windows: every other one does."""
    return step >= LONG_FROM * steps and step % 2 == 1


def train_target(data: Tensor, steps: int, seed: int, out: Path) -> None:
    """Plain next-byte cross-entropy on random held-in windows."""
    model = new_model(TARGET, seed)
    rng = torch.Generator().manual_seed(seed)

    def loss_of(step: int) -> Tensor:
        length = LONG if is_long(step, steps) else SHORT
        ids = windows(data, STEP_TOKENS // length, length + 1, rng)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(input_ids=ids[:, :-1], use_cache=False).logits
        return nnf.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten())

    facts = optimise(model, steps, loss_of, out / "target")
    record(out, "target", {"shape": TARGET, "seed": seed, **facts})


@torch.inference_mode()
def lessons(teacher: LlamaForCausalLM, data: Tensor, part: float, rng: torch.Generator) -> dict[str, Lesson]:
    """Texts of every kind with the teacher's log-probabilities, worked out once."""

    def read(count: int, length: int) -> Lesson:
        ids = windows(data, count, length + 1, rng)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = teacher(input_ids=ids[:, :-1], use_cache=False).logits
        return ids, logits.float().log_softmax(-1).bfloat16()

    def write(temperature: int) -> Lesson:
        prompts = windows(data, OWN_BATCH, PROMPT, rng)
        return generate(teacher, prompts, SHORT + 1, temperature, rng)

    plans: list[tuple[str, int, Callable[[], Lesson]]] = [
        ("corpus", CORPUS_WINDOWS // 16, lambda: read(16, SHORT)),
        ("long", LONG_WINDOWS // 8, lambda: read(8, LONG)),
        ("sampled", SAMPLED_BATCHES, lambda: write(1)),
        ("greedy", GREEDY_BATCHES, lambda: write(0)),
    ]
    taught = {}
    for kind, count, make in plans:
        made = [make() for _ in range(max(1, round(count * part)))]
        taught[kind] = (torch.cat([m[0] for m in made]), torch.cat([m[1] for m in made]))
        print(f"{kind} lessons ready at {time.strftime('%H:%M:%S')}", flush=True)
    return taught


def train_draft(data: Tensor, steps: int, seed: int, out: Path) -> None:
    """Distil: the divergence from the target's distribution, and the chance of a rejection."""
    teacher, model = load(out / "target"), new_model(DRAFT, seed + 1)
    model.model.embed_tokens.load_state_dict(teacher.model.embed_tokens.state_dict())
    rng = torch.Generator().manual_seed(seed + 1)
    taught = lessons(teacher, data, steps / DRAFT_STEPS, rng)
    counts = {kind: round(share * STEP_TOKENS / SHORT) for kind, share in SHARES.items()}

    def loss_of(step: int) -> Tensor:
        long = is_long(step, steps) and step % 4 == 1  # seldom: only the corpus has long ones
        wanted = {"long": STEP_TOKENS // LONG} if long else counts
        drawn = []
        for kind, count in wanted.items():
            ids, logs = taught[kind]
            pick = torch.randint(0, len(ids), (count,), generator=rng)
            drawn.append((ids[pick], logs[pick]))
        ids = torch.cat([i for i, _ in drawn])
        p = torch.cat([q for _, q in drawn]).float()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(input_ids=ids[:, :-1], use_cache=False).logits
        q = logits.float().log_softmax(-1)
        divergence = nnf.kl_div(q, p, reduction="none", log_target=True).sum(-1)
        rejection = 0.5 * (q.exp() - p.exp()).abs().sum(-1)
        loss: Tensor = (divergence + rejection).mean()
        return loss

    facts = optimise(model, steps, loss_of, out / "draft")
    tokens = {kind: ids[:, 1:].numel() for kind, (ids, _) in taught.items()}
    facts |= {"loss": "KL(target || draft) + total variation", "lessons": tokens, "shares": SHARES}
    record(out, "draft", {"shape": DRAFT, "seed": seed + 1, **facts})


def main() -> None:
    """Run the stages asked for."""
    parser = argparse.ArgumentParser(description="Train or measure the byte-level pair.")
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    parser.add_argument("--minutes", type=float, default=FULL_MINUTES, help="scales the steps")
    parser.add_argument("--stage", choices=("all", "target", "draft", "evaluate"), default="all")
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    scale = options.minutes / FULL_MINUTES
    held_in, held_out = (stream(documents) for documents in corpus())
    print(f"{len(held_in)} tokens held in, {len(held_out)} held out", flush=True)
    if options.stage in ("all", "target"):
        train_target(held_in, max(2, round(TARGET_STEPS * scale)), options.seed, options.out)
    if options.stage in ("all", "draft"):
        train_draft(held_in, max(2, round(DRAFT_STEPS * scale)), options.seed, options.out)
    if options.stage in ("all", "evaluate"):
        facts = measure(load(options.out / "target"), load(options.out / "draft"), held_out, options.seed)
        print(json.dumps(facts, indent=2))
        record(options.out, "evaluation", facts)


if __name__ == "__main__":
    main()
