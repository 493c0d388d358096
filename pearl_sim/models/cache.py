"""A causal language model with a KV cache that always stands for a known list of tokens.

Rolling back is cropping to the common prefix; nothing is read twice.  What differs between versions of
transformers is in `_forward_keyword`, and nowhere else.
"""

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from transformers import DynamicCache


class CachedModel:
    """A model and the tokens that its cache holds, batch size 1."""

    def __init__(self, model: Any, vocabulary: int) -> None:
        """Wrap a transformers causal LM, its cache empty; of its logits, the first `vocabulary` count."""
        self.model = model
        self._vocabulary = vocabulary
        self.device = model.device
        self.tokens: list[int] = []
        self._cache = DynamicCache(config=model.config)
        self._keyword = _forward_keyword(model)

    def reset(self) -> None:
        """Forget every token."""
        self.tokens = []
        self._cache = DynamicCache(config=self.model.config)

    def sync(self, text: Sequence[int], keep: int) -> None:
        """Crop the cache to what it shares with the first `keep` tokens of `text`."""
        shared = common_prefix(self.tokens, text, keep)
        excess = len(self.tokens) - shared
        if excess:
            # transformers crops by a negative number of tokens to remove.
            self._cache.crop(-excess)
            del self.tokens[shared:]

    @torch.inference_mode()
    def logits(self, text: Sequence[int], last: int) -> torch.Tensor:
        """Return the logits after each of the last `last` tokens of `text`, shape [last, vocabulary], float32.

        Feeds what the cache does not hold yet, and at least those last tokens.
        """
        self.sync(text, len(text) - last)
        fed = list(text[len(self.tokens) :])
        output = self.model(
            input_ids=torch.tensor([fed], device=self.device),
            use_cache=True,
            logits_to_keep=last,
            **{self._keyword: self._cache},
        )
        self.tokens += fed
        return output.logits[0, :, : self._vocabulary].float()  # type: ignore[no-any-return]


def common_prefix(held: Sequence[int], text: Sequence[int], most: int) -> int:
    """Return how many tokens `held` and `text` share at their beginning, at most `most`."""
    most = min(most, len(held), len(text))
    # Nearly always only the end differs, so look there first.
    if held[:most] == text[:most]:
        return most
    return next(i for i in range(most) if held[i] != text[i])


def _forward_keyword(model: Any) -> str:
    """Return what the forward calls its cache: `cache`, or `past_key_values` before transformers 5.2x renamed it."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
