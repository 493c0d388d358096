"""How good the bundled pair is: bits per byte, acceptance along the target's own text, step times."""

import math
import statistics
import time
from typing import Any, TypeAlias

import torch
from torch import Tensor
from transformers import DynamicCache, LlamaForCausalLM

BOS, EOS, LONG = 256, 257, 768

Recipe: TypeAlias = dict[str, Any]
"""Facts for recipe.json."""

Lesson: TypeAlias = tuple[Tensor, Tensor]
"""Texts, and the target's log-probabilities of each next token."""


def spread(data: Tensor, count: int, length: int) -> Tensor:
    """Evenly spaced windows, each starting with BOS: the held-out prompts and texts."""
    starts = torch.linspace(0, len(data) - length - 1, count).long()[:, None]
    batch = data[starts + torch.arange(length)].long()
    batch[:, 0] = BOS
    return batch


@torch.inference_mode()
def generate(model: LlamaForCausalLM, prompts: Tensor, length: int, temperature: int, rng: torch.Generator) -> Lesson:
    """Continue prompts to `length` tokens; also the log-probabilities of every next token."""
    cache = DynamicCache(config=model.config)
    ids, logs, fed = prompts, [], prompts
    while True:
        logits = model(input_ids=fed, cache=cache, use_cache=True).logits.float()
        logs.append(logits.log_softmax(-1).bfloat16())
        if ids.shape[1] == length:
            return ids, torch.cat(logs, 1)[:, :-1]
        if temperature:
            fed = logits[:, -1].softmax(-1).multinomial(1, generator=rng)
        else:
            fed = logits[:, -1].argmax(-1, keepdim=True)
        ids = torch.cat([ids, fed], 1)


@torch.inference_mode()
def log_probabilities(model: LlamaForCausalLM, ids: Tensor) -> Tensor:
    """Teacher-forced log-probabilities of the token after each position."""
    rows = torch.split(ids, 8)
    return torch.cat([model(input_ids=r, use_cache=False).logits.log_softmax(-1) for r in rows])


def coupled(p: Tensor, q: Tensor) -> Tensor:
    """Per token, the chance that draws coupled by shared Gumbel noise both give it.

    Of rows of log-probabilities p and q: 1 / sum over y of max(p_y / p_x, q_y / q_x).
    """
    parts = []
    for a, b in zip(torch.split(p, 64), torch.split(q, 64), strict=True):
        ratio = torch.maximum(a[:, None] - a[:, :, None], b[:, None] - b[:, :, None])
        parts.append(1.0 / ratio.exp().sum(-1))
    return torch.cat(parts)


def rounds(agree: list[list[bool]], depth: int = 8) -> Recipe:
    """Walk rows of agreements as speculative decoding does: acceptance at each depth."""
    tried, kept, passes = [0] * depth, [0] * depth, 0
    for row in agree:
        at = 0
        while at + depth < len(row):
            hits = 0
            while hits < depth:
                tried[hits] += 1
                if not row[at + hits]:
                    break
                kept[hits] += 1
                hits += 1
            at, passes = at + hits + 1, passes + 1
    by_depth = [round(k / max(1, t), 4) for k, t in zip(kept, tried, strict=True)]
    return {"by_depth": by_depth, "tokens_per_round": round(1 + sum(kept) / max(1, passes), 3)}


def acceptance(
    target: LlamaForCausalLM, draft: LlamaForCausalLM, prompts: Tensor, temperature: int, seed: int
) -> Recipe:
    """Measure acceptance along the target's own continuations of prompts, 256 tokens each.

    Greedy: do both models choose the same token? At temperature 1: the chance that
    coupled draws agree. What follows a first EOS does not count.
    """
    rng, start = torch.Generator().manual_seed(seed), prompts.shape[1]
    ids, _ = generate(target, prompts, start + 256, temperature, rng)
    text = ids[:, start:]
    p, q = (log_probabilities(m, ids[:, :-1])[:, start - 1 :] for m in (target, draft))
    ends = text == EOS
    live = (ends.long().cumsum(1) - ends.long()) == 0
    facts: Recipe = {"prompts": len(prompts), "positions": int(live.sum())}
    facts["ended"] = int(ends.any(1).sum())
    if temperature:
        pairs = coupled(p.flatten(0, 1), q.flatten(0, 1)).view_as(p)
        chance = pairs.sum(-1)
        here = text[..., None]  # the chance that the draft drew this very text too
        agree = torch.rand(text.shape, generator=rng) < (pairs / p.exp()).gather(-1, here)[..., 0]
        facts["overlap"] = round(float(torch.minimum(p, q).exp().sum(-1)[live].mean()), 4)
    else:
        agree = p.argmax(-1) == q.argmax(-1)
        chance = agree.float()
    by_prompt = (chance * live).sum(1) / live.sum(1)
    facts["acceptance"] = round(float(chance[live].mean()), 4)
    facts["standard_error"] = round(float(by_prompt.std()) / math.sqrt(len(prompts)), 4)
    for part in (slice(0, 64), slice(192, 256)):
        mean = chance[:, part][live[:, part]].mean()
        facts[f"acceptance_tokens_{part.start}_to_{part.stop}"] = round(float(mean), 4)
    return facts | rounds([row[on].tolist() for row, on in zip(agree, live, strict=True)])


@torch.inference_mode()
def step_times(target: LlamaForCausalLM, draft: LlamaForCausalLM, context: Tensor, repeats: int = 40) -> Recipe:
    """Median milliseconds of one forward of n tokens after `context`.

    Taken in turns of eight of a kind, as both models decode: a machine that slows
    down slows all of them, and each still finds its own weights in the cache.
    """
    cases = {f"target_{n}": (target, n) for n in (1, 5, 9)} | {"draft_1": (draft, 1)}
    caches = {case: DynamicCache(config=model.config) for case, (model, _) in cases.items()}
    times: dict[str, list[float]] = {case: [] for case in cases}
    for case, (model, _) in cases.items():
        model(input_ids=context, cache=caches[case], use_cache=True)
    for _ in range(repeats):
        for case, (model, n) in cases.items():
            for _ in range(8):
                began = time.perf_counter()
                model(input_ids=context[:, :n], cache=caches[case], use_cache=True)
                times[case].append(1000 * (time.perf_counter() - began))
                caches[case].crop(-n)
    medians = {case: round(statistics.median(taken), 3) for case, taken in times.items()}
    ratio = round(medians["target_1"] / medians["draft_1"], 2)
    return {"milliseconds": medians, "ratio": ratio, "context": context.shape[1]}


def measure(target: LlamaForCausalLM, draft: LlamaForCausalLM, data: Tensor, seed: int, prompts: int = 80) -> Recipe:
    """Return what the bundled README states, measured on held-out `data`."""
    texts = spread(data, 160, LONG + 1)
    facts: Recipe = {"threads": torch.get_num_threads(), "bits_per_byte": {}}
    for name, model in (("target", target), ("draft", draft)):
        right = log_probabilities(model, texts[:, :-1]).gather(-1, texts[:, 1:, None])[..., 0]
        facts["bits_per_byte"][name] = {
            f"positions_{a}_to_{b}": round(float(-right[:, a:b].mean()) / math.log(2), 4)
            for a, b in ((0, 768), (0, 256), (256, 512), (512, 768))
        }
    held = spread(data, prompts, 128)
    facts["greedy"] = acceptance(target, draft, held, 0, seed)
    facts["sampled_coupled"] = acceptance(target, draft, held, 1, seed)
    facts["step_times"] = step_times(target, draft, texts[:1, :256])
    return facts
