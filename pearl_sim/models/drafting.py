"""What writes draft tokens: a causal LM, or prompt lookup.  To add a drafter, implement Drafter and name it below."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from pearl_sim.models.cache import CachedModel
from pearl_sim.models.lm import ModelSettings, load_model
from pearl_sim.models.sampling import DRAFT, GUMBEL, Sampling, choose, perturbed_argmax, scores

PROMPT_LOOKUP = "prompt-lookup"
"""The name of the draft that needs no model."""


class Foreseen(NamedTuple):
    """What a draft makes of a known text, at every output position.

    tokens: the draft token there, its chain starting there.
    log_q:  its log-probabilities [positions, vocabulary]; None in greedy mode.
    runs:   how many drafts in a row equal the text, from each position on; None if tokens alone tell.
    """

    tokens: list[int]
    log_q: NDArray[np.float64] | None
    runs: list[int] | None


class Script(NamedTuple):
    """A recorded text that real forwards are made to follow, whatever they compute: hardware in the loop.

    tokens: the target's output tokens; past their end it goes on with token 0.
    runs:   how many drafts in a row are right, from each position on (judge.Request.runs).
    """

    tokens: Sequence[int]
    runs: Sequence[int]

    def text(self, position: int, count: int) -> list[int]:
        """Return what the target writes at `count` positions."""
        written = list(self.tokens[position : position + count])
        return written + [0] * (count - len(written))

    def drafts(self, position: int, count: int, chain: int) -> list[int]:
        """Return what the draft writes there: the target's tokens as far as its chain is right, then others."""
        right = max(0, chain + self.runs[chain] - position)
        return [token if i < right else 1 - min(token, 1) for i, token in enumerate(self.text(position, count))]


class Drafter(Protocol):
    """Something that continues a text."""

    def read(self, text: list[int], script: Script | None, batch: int) -> tuple[list[int], None]:
        """Take in a prompt, `batch` copies of it; writes nothing.  With a script, write its drafts from now on."""

    def write(
        self, text: list[int], count: int, request: int, position: int, chain: int
    ) -> tuple[list[int], torch.Tensor | None]:
        """Return `count` more tokens, the first at output position `position`, and their log q or None.

        They belong to the chain of drafts that started at output position `chain`.
        """

    def foresee(self, text: list[int], prompt_tokens: int, request: int) -> "Foreseen":
        """Return what would have been drafted along a known `text`, for capture."""


class ModelDrafter:
    """A causal LM as the draft."""

    def __init__(self, model: CachedModel, sampling: Sampling) -> None:
        """Draft with `model`, choosing tokens as `sampling` says."""
        self._model = model
        self._sampling = sampling
        self._script: Script | None = None

    def read(self, text: list[int], script: Script | None, batch: int) -> tuple[list[int], None]:
        """Fill the cache with a prompt; writes nothing."""
        self._script = script
        self._model.reset(batch)
        self._model.logits(text, 1).cpu()  # waits for the device
        return [], None

    def write(
        self, text: list[int], count: int, request: int, position: int, chain: int
    ) -> tuple[list[int], torch.Tensor | None]:
        """Return `count` tokens, one forward each."""
        tokens: list[int] = []
        log_q = []
        forced = self._script.drafts(position, count, chain) if self._script else None
        for step in range(count):
            logits = self._model.logits(text + tokens, 1)
            if self._sampling.mode == "rejection":
                log_q.append(scores(logits, self._sampling))
                tokens += perturbed_argmax(log_q[-1], self._sampling.seed, request, position + step, DRAFT)
            else:
                tokens += choose(logits, self._sampling, request, position + step)
            if forced:
                tokens[-1] = forced[step]
        return tokens, torch.cat(log_q) if log_q else None

    def foresee(self, text: list[int], prompt_tokens: int, request: int) -> Foreseen:
        """Return the draft's view of the text: one teacher-forced forward."""
        self._model.reset()
        logits = self._model.logits(text[:-1], len(text) - prompt_tokens)
        if self._sampling.mode == "greedy":
            return Foreseen(choose(logits, self._sampling, request, 0), None, None)
        log_q = scores(logits, self._sampling)
        stream = DRAFT if self._sampling.mode == "rejection" else GUMBEL
        return Foreseen(perturbed_argmax(log_q, self._sampling.seed, request, 0, stream), log_q.cpu().numpy(), None)


class PromptLookup:
    """The n-gram draft: copy what followed the last occurrence of the text's newest tokens (Saxena 2023).

    A chain copies on from where its first token was found, so its quality depends on depth.  Where nothing is
    found, the newest token is repeated.
    """

    def __init__(self, sampling: Sampling, vocabulary: int) -> None:
        """Draft for a target of this vocabulary; in rejection mode the draft is sure of every token."""
        self._sampling = sampling
        self._vocabulary = vocabulary
        self._script: Script | None = None

    def read(self, text: list[int], script: Script | None, batch: int) -> tuple[list[int], None]:
        """Return nothing; there is nothing to prepare."""
        self._script = script
        return [], None

    def write(
        self, text: list[int], count: int, request: int, position: int, chain: int
    ) -> tuple[list[int], torch.Tensor | None]:
        """Return `count` tokens, going on with the chain that started at output position `chain`."""
        copied = list(text)
        start = len(text) - (position - chain)
        source = lookup(text[:start]) + position - chain
        for index in range(source, source + count):
            copied.append(copied[index])
        tokens = self._script.drafts(position, count, chain) if self._script else copied[len(text) :]
        return tokens, self._certainty(tokens) if self._sampling.mode == "rejection" else None

    def foresee(self, text: list[int], prompt_tokens: int, request: int) -> Foreseen:
        """Return the copies from each position on, as far as they equal the text."""
        tokens, runs = [], []
        for start in range(prompt_tokens, len(text)):
            source, run = lookup(text[:start]), 0
            tokens.append(text[source])
            while start + run < len(text) and text[start + run] == text[source + run]:
                run += 1
            runs.append(run)
        log_q = None if self._sampling.mode == "greedy" else self._certainty(tokens).numpy()
        return Foreseen(tokens, log_q, runs)

    def _certainty(self, tokens: list[int]) -> torch.Tensor:
        log_q = torch.full((len(tokens), self._vocabulary), -torch.inf, dtype=torch.float64)
        log_q[torch.arange(len(tokens)), torch.tensor(tokens, dtype=torch.int64)] = 0.0
        return log_q


def lookup(text: list[int], longest: int = 3) -> int:
    """Return the index after the last earlier occurrence of the newest tokens, as many of them as match."""
    for size in range(min(longest, len(text) - 1), 0, -1):
        newest = text[-size:]
        for start in range(len(text) - size - 1, -1, -1):
            if text[start : start + size] == newest:
                return start + size
    return len(text) - 1


def make_drafter(settings: ModelSettings, sampling: Sampling, vocabulary: int) -> Drafter:
    """Return the draft that `settings` names: a model, or prompt lookup."""
    if settings.name == PROMPT_LOOKUP:
        return PromptLookup(sampling, vocabulary)
    return ModelDrafter(CachedModel(load_model(settings), vocabulary, settings.graph), sampling)
