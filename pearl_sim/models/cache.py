"""A causal language model with a KV cache that always stands for a known list of tokens.

Rolling back is cropping to the common prefix; nothing is read twice.  What differs between versions of
transformers is in `_crop` and `_forward_keyword`, and nowhere else.
"""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn.functional import pad
from transformers import DynamicCache, StaticCache

from pearl_sim.errors import InputError

GRAPH_CONTEXT = 2048
"""Tokens that graph mode's cache holds: every forward pays for all of it."""

COMPILED_SHAPES = 64
"""How many widths of a forward graph mode may compile: 1 to gamma + 1 are in use."""


class CachedModel:
    """A model and the tokens that its cache holds.

    A batch is so many copies of that one text, read in step: what forwards of a batch take, without its bookkeeping.
    In graph mode the cache has a fixed size and every forward but prefill is compiled (on CUDA replayed as a CUDA
    graph), so that a small draft is not held up by launching its kernels one by one.
    """

    def __init__(self, model: Any, vocabulary: int, graph: bool = False) -> None:
        """Wrap a transformers causal LM, its cache empty; logits are cut or filled up to `vocabulary`.

        InputError if the model's cache cannot be rolled back.
        """
        _check_rollback(model, graph)
        self.model = model
        self.device = model.device
        self.tokens: list[int] = []
        self.graph = graph
        self.batch = 1
        self._vocabulary = vocabulary
        self._keyword = _forward_keyword(model)
        self._forward = _compiled(model) if graph else model.forward
        self._cache = self._empty()

    def reset(self, batch: int = 1) -> None:
        """Forget every token; from now on read `batch` copies of a text."""
        same, self.batch, self.tokens = batch == self.batch, batch, []
        if self.graph and same:
            # The compiled forwards know this cache by its address.
            for layer in self._cache.layers:
                layer.cumulative_length.zero_()
        else:
            self._cache = self._empty()

    def sync(self, text: Sequence[int], keep: int) -> None:
        """Crop the cache to what it shares with the first `keep` tokens of `text`."""
        shared = common_prefix(self.tokens, text, keep)
        if len(self.tokens) > shared:
            self._crop(len(self.tokens) - shared)
            del self.tokens[shared:]

    @torch.inference_mode()
    def logits(self, text: Sequence[int], last: int) -> torch.Tensor:
        """Return the logits after each of the last `last` tokens of `text`, shape [last, vocabulary], float32.

        Feeds what the cache does not hold yet, and at least those last tokens.
        """
        self.sync(text, len(text) - last)
        fed = list(text[len(self.tokens) :])
        prefill = not self.tokens
        forward = self.model.forward if prefill else self._forward
        if self.graph:
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        output = forward(
            input_ids=torch.tensor([fed] * self.batch, device=self.device),
            use_cache=True,
            logits_to_keep=last,
            **{self._keyword: self._cache},
        )
        self.tokens += fed
        # A CUDA graph writes its next output over this one.
        logits: torch.Tensor = output.logits[0, :, : self._vocabulary].float().clone()
        # Families pad their vocabularies to different sizes; what a draft does not have it never writes.
        return pad(logits, (0, self._vocabulary - logits.shape[1]), value=-torch.inf)

    def _empty(self) -> Any:
        if self.graph:
            return StaticCache(config=self.model.config, max_cache_len=GRAPH_CONTEXT)
        # Without the config every layer keeps all it has read, so that any rollback is possible; a sliding window is
        # still applied by the mask.
        return DynamicCache()

    def _crop(self, excess: int) -> None:
        if self.graph:
            # Static layers cannot crop in transformers 5.17; what lies past their length is masked, then overwritten.
            for layer in self._cache.layers:
                layer.cumulative_length.sub_(excess)
        else:
            # transformers crops by a negative number of tokens to remove.
            self._cache.crop(-excess)


def common_prefix(held: Sequence[int], text: Sequence[int], most: int) -> int:
    """Return how many tokens `held` and `text` share at their beginning, at most `most`."""
    most = min(most, len(held), len(text))
    # Nearly always only the end differs, so look from there.
    while held[:most] != text[:most]:
        most -= 1
    return most


def _check_rollback(model: Any, graph: bool) -> None:
    kinds = {type(layer).__name__ for layer in DynamicCache(config=model.config).layers}
    possible = {"DynamicLayer"} if graph else {"DynamicLayer", "DynamicSlidingWindowLayer"}
    if kinds - possible:
        raise InputError(
            model.name_or_path or type(model).__name__,
            f"has cache layers that cannot be rolled back{' in graph mode' if graph else ''}: "
            f"{', '.join(sorted(kinds - possible))}",
        )


def _compiled(model: Any) -> Callable[..., Any]:
    torch._dynamo.config.recompile_limit = COMPILED_SHAPES
    compiled: Callable[..., Any] = torch.compile(model.forward, mode="reduce-overhead", dynamic=False)
    return compiled


def _forward_keyword(model: Any) -> str:
    """Return what the forward calls its cache: `cache`, or `past_key_values` before transformers renamed it."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
