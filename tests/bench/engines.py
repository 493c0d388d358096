"""The engine against transformers' own generation: same pair, prompts, text and cores; interleaved, in one run.

    python tests/bench/engines.py [--prompts 6] [--tokens 128]

Tokens a second, the median over prompts, and its ratio to the engine's autoregressive decoding.  transformers'
`generate` gets both cores, once with one thread and once with one a core; the engine a thread and a core a model.
"""

import argparse
import itertools
import json
import os
import statistics
import time
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from pearl_sim import prompts
from pearl_sim.drivers.real import decode
from pearl_sim.models.lm import ModelSettings, locate
from pearl_sim.models.pair import open_pair
from pearl_sim.models.sampling import Sampling
from pearl_sim.policies import autoregressive, pearl, speculative

GAMMAS = (2, 4, 8)


def transformers_generate(models, prompt, tokens, gamma):
    """Return the new tokens of greedy generation, assisted if gamma is given."""
    target, draft = models
    options = {"max_new_tokens": tokens, "do_sample": False, "eos_token_id": None, "pad_token_id": 258}
    if gamma:
        draft.generation_config.num_assistant_tokens = gamma
        draft.generation_config.num_assistant_tokens_schedule = "constant"
        draft.generation_config.assistant_confidence_threshold = 0.0
        options["assistant_model"] = draft
    return target.generate(torch.tensor([prompt]), **options)[0, len(prompt) :].tolist()


def main():
    """Measure and print."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--prompts", type=int, default=6)
    arguments.add_argument("--tokens", type=int, default=128)
    asked = arguments.parse_args()
    texts = prompts.read(prompts.BUNDLED)
    texts = texts[:: len(texts) // asked.prompts][: asked.prompts]
    models = tuple(
        AutoModelForCausalLM.from_pretrained(locate(f"bundled/{role}"), dtype=torch.float32).eval()
        for role in ("target", "draft")
    )
    every_core = os.sched_getaffinity(0)
    policies = {"ar": autoregressive()}
    policies |= {f"{name}-{g}": make(g) for g in GAMMAS for name, make in (("sd", speculative), ("pearl", pearl))}
    speeds: dict[str, list[float]] = {}
    efficiency: dict[str, list[float]] = {}
    with open_pair(ModelSettings("bundled/target"), ModelSettings("bundled/draft"), Sampling()) as pair:
        own_cores = os.sched_getaffinity(0)
        for number, text in enumerate([texts[0], *texts]):  # the first round only warms up
            prompt = pair.encode(text.text, asked.tokens + 32)
            expected = None
            for name, policy in policies.items():
                emitted = list(decode(policy, prompt, asked.tokens, pair.target, pair.draft, pair.sampling))
                written = [token for e in emitted for token in e.tokens]
                expected = expected or written
                assert written == expected, f"{name} is not lossless"
                steps = [e.step for e in emitted[1:]]
                if number:
                    wall = steps[-1].stop - steps[0].start
                    speeds.setdefault(name, []).append((len(written) - 1) / wall * 1e9)
                    path = sum(max(s.draft_ns, s.score_ns) for s in steps)
                    efficiency.setdefault(name, []).append(wall / path)
            os.sched_setaffinity(0, every_core)
            for threads, gamma in itertools.product((1, len(every_core)), (0, *GAMMAS)):
                torch.set_num_threads(threads)
                kind = f"assisted-{gamma}" if gamma else "greedy"
                name = f"transformers {kind}, {threads} thread{'s' * (threads > 1)}"
                start = time.perf_counter()
                written = transformers_generate(models, prompt, asked.tokens, gamma)
                seconds = time.perf_counter() - start
                assert written == expected, f"{name} is not lossless"
                if number:
                    speeds.setdefault(name, []).append(len(written) / seconds)
            os.sched_setaffinity(0, own_cores)
            torch.set_num_threads(pair.threads)
    base = statistics.median(speeds["ar"])
    for name, found in speeds.items():
        median = statistics.median(found)
        wall = f"  wall / critical path {statistics.median(efficiency[name]):.3f}" if name in efficiency else ""
        print(f"{name:36} {median:7.1f} tokens/s  {median / base:5.2f} x{wall}")
    Path("results").mkdir(exist_ok=True)
    Path("results/engines.json").write_text(json.dumps(speeds, indent=1) + "\n")


if __name__ == "__main__":
    main()
