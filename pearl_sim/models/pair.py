"""A target and a draft, opened side by side: the target here, the draft in its own process, each on its own cores."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from pearl_sim.errors import InputError
from pearl_sim.models.cache import CachedModel
from pearl_sim.models.drafting import PROMPT_LOOKUP
from pearl_sim.models.lm import (
    ModelSettings,
    Tokenizer,
    check_device,
    context_length,
    load_model,
    load_tokenizer,
    same_device,
    stop_tokens,
    vocabulary_size,
)
from pearl_sim.models.sampling import Sampling
from pearl_sim.models.worker import DraftProcess, DraftThread, Place, Worker, settle_in


@dataclass(frozen=True)
class Pair:
    """An open pair; `draft` is None where it was opened without one."""

    target_settings: ModelSettings
    draft_settings: ModelSettings
    sampling: Sampling
    target: CachedModel
    draft: Worker | None
    tokenizer: Tokenizer
    stop: frozenset[int]
    context: int
    vocabulary: int
    threads: int

    def encode(self, prompt: str, beyond: int) -> list[int]:
        """Return the tokens of a prompt; InputError if it is empty, or it and `beyond` more overrun the context."""
        tokens = self.tokenizer.encode(prompt)
        if not tokens:
            raise InputError("prompt", "is empty, and this tokenizer adds no token of its own; give some text")
        if len(tokens) + beyond > self.context:
            raise InputError(
                "prompt",
                f"has {len(tokens)} tokens; with up to {beyond} to write and draft beyond it, that is over the "
                f"context of {self.context} tokens: shorten it, or write fewer",
            )
        return tokens


@contextmanager
def open_pair(
    target: ModelSettings,
    draft: ModelSettings,
    sampling: Sampling,
    with_draft: bool = True,
    one_tokenizer: bool = True,
) -> Iterator[Pair]:
    """Yield the pair with its draft's process running; leaving ends that process, whatever happened.

    InputError if a model cannot be loaded or, where `one_tokenizer` is asked for, the two do not share it;
    WorkerError if the draft's process fails.
    """
    for settings in (target, draft):
        check_device(settings)
    tokenizer, vocabulary, context = load_tokenizer(target), vocabulary_size(target), context_length(target)
    if with_draft and draft.name != PROMPT_LOOKUP:
        if one_tokenizer and load_tokenizer(draft).vocabulary() != tokenizer.vocabulary():
            raise InputError(draft.name, f"does not share a tokenizer with {target.name}; take a draft of its family")
        context = min(context, context_length(draft))
    here, there = _places(target, draft)
    before = Place(tuple(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (), torch.get_num_threads())
    worker: Worker | None = None
    try:
        # Before the model is loaded, so that the threads that it starts stay on these cores too.
        settle_in(here)
        model = CachedModel(load_model(target), vocabulary, target.graph)
        if with_draft:
            one_gpu = torch.device(target.device).type == "cuda" and same_device(target, draft)
            worker = (
                DraftThread(draft, sampling, vocabulary)
                if one_gpu
                else DraftProcess(draft, sampling, vocabulary, there)
            )
        stop = stop_tokens(model.model)
        yield Pair(target, draft, sampling, model, worker, tokenizer, stop, context, vocabulary, here.threads)
    finally:
        if worker:
            worker.close()
        settle_in(before)


def _places(target: ModelSettings, draft: ModelSettings) -> tuple[Place, Place]:
    """Return where target and draft run: half of the cores each, or one thread each where a GPU does the work."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    half = len(cores) // 2
    if half == 0:
        return Place((), 1), Place((), 1)
    threads = [1 if torch.device(settings.device).type == "cuda" else half for settings in (target, draft)]
    return Place(tuple(cores[:half]), threads[0]), Place(tuple(cores[half : 2 * half]), threads[1])
