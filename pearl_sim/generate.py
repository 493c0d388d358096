"""Decoding one prompt for a person to read: text as it is verified, then how it went."""

import sys

from pearl_sim.drivers.real import decode
from pearl_sim.models.lm import ModelSettings
from pearl_sim.models.pair import open_pair
from pearl_sim.models.sampling import Sampling
from pearl_sim.rules import Policy


def stream(
    prompt: str, policy: Policy, tokens: int, target: ModelSettings, draft: ModelSettings, sampling: Sampling
) -> None:
    """Print the continuation of `prompt` as its tokens are verified; tokens a second and rounds go to stderr."""
    with open_pair(target, draft, sampling, with_draft=policy.gamma > 0) as pair:
        encoded = pair.encode(prompt, tokens + 2 * policy.gamma + 1)
        written: list[int] = []
        shown = ""
        steps = []
        for emitted in decode(policy, encoded, tokens, pair.target, pair.draft, sampling, 0, pair.stop):
            written += emitted.tokens
            steps.append(emitted.step)
            # A token can be half a character; what is not certain yet is held back.
            text = pair.tokenizer.decode(written).rstrip("\N{REPLACEMENT CHARACTER}")
            print(text[len(shown) :], end="", flush=True)
            shown = max(text, shown, key=len)
        print(pair.tokenizer.decode(written)[len(shown) :])
    seconds = (steps[-1].stop - steps[0].stop) / 1e9
    decoded, forwards = len(written) - 1, sum(step.round.score > 0 for step in steps[1:])
    if decoded:
        told = f"{decoded} tokens after prefill in {seconds:.2f} s: {decoded / seconds:.1f} tokens/s"
        print(f"{told}, {decoded / forwards:.2f} tokens per target forward", file=sys.stderr)
