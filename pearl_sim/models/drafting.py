"""The draft's side: what writes the tokens, and the process it runs in.

The draft works beside the target in a process of its own, with its own cores.  Only token ids cross, and in
rejection mode the draft's probabilities.
"""

import multiprocessing
import os
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from pearl_sim.models.cache import CachedModel, common_prefix
from pearl_sim.models.lm import ModelSettings, load_model
from pearl_sim.models.sampling import DRAFT, GUMBEL, Sampling, choose, perturbed_argmax, scores

PROMPT_LOOKUP = "prompt-lookup"
"""The name of the draft that needs no model."""

PATIENCE_S = 120.0
"""A worker that is silent for this long is taken for dead."""


class WorkerError(RuntimeError):
    """The draft's process died, hangs or failed; the message says which."""


class Written(NamedTuple):
    """What the draft wrote in one round: when, which tokens, and (rejection) its log-probabilities [n, vocabulary]."""

    start_ns: int
    stop_ns: int
    tokens: list[int]
    log_q: NDArray[np.float64] | None


class Place(NamedTuple):
    """Where a process runs: which cores it keeps to (none: any), and with how many torch threads."""

    cores: tuple[int, ...]
    threads: int


class Foreseen(NamedTuple):
    """What a draft makes of a known text, at every output position.

    tokens: the draft token there, its chain starting there.
    log_q:  its log-probabilities [positions, vocabulary]; None in greedy mode.
    runs:   how many drafts in a row equal the text, from each position on; None if tokens alone tell.
    """

    tokens: list[int]
    log_q: NDArray[np.float64] | None
    runs: list[int] | None


class Drafter(Protocol):
    """Something that continues a text."""

    def read(self, text: list[int]) -> tuple[list[int], None]:
        """Take in a prompt; writes nothing."""

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

    def read(self, text: list[int]) -> tuple[list[int], None]:
        """Fill the cache with a prompt; writes nothing."""
        self._model.reset()
        self._model.logits(text, 1)
        return [], None

    def write(
        self, text: list[int], count: int, request: int, position: int, chain: int
    ) -> tuple[list[int], torch.Tensor | None]:
        """Return `count` tokens, one forward each."""
        tokens: list[int] = []
        log_q = []
        for step in range(count):
            logits = self._model.logits(text + tokens, 1)
            if self._sampling.mode == "rejection":
                log_q.append(scores(logits, self._sampling))
                tokens += perturbed_argmax(log_q[-1], self._sampling.seed, request, position + step, DRAFT)
            else:
                tokens += choose(logits, self._sampling, request, position + step)
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

    def read(self, text: list[int]) -> tuple[list[int], None]:
        """Return nothing; there is nothing to prepare."""
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
        tokens = copied[len(text) :]
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


class DraftProcess:
    """A draft in a process of its own; `begin` a piece of work, then `finish` it while the target works too."""

    def __init__(self, settings: ModelSettings, sampling: Sampling, vocabulary: int, place: Place) -> None:
        """Start the process and wait until its model is loaded; WorkerError if that fails."""
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(theirs, settings, sampling, vocabulary, place), name="draft", daemon=True
        )
        self._process.start()
        theirs.close()
        self._text: list[int] = []
        try:
            self._receive()
        except WorkerError:
            self.close()
            raise

    def foresee(self, text: Sequence[int], prompt_tokens: int, request: int) -> Foreseen:
        """Return the draft's view of a known text, as Drafter.foresee does."""
        self._text = []
        self._send(("foresee", list(text), prompt_tokens, request))
        foreseen = self._receive()
        assert isinstance(foreseen, Foreseen)
        return foreseen

    def begin(self, text: Sequence[int], count: int, request: int, position: int, chain: int) -> None:
        """Have the draft write `count` tokens after `text`, as Drafter.write does; 0 tokens: read a prompt."""
        shared = common_prefix(self._text, text, len(text))
        self._text[shared:] = text[shared:]
        self._send(("write", shared, list(text[shared:]), count, request, position, chain))

    def finish(self) -> Written:
        """Return what was written since `begin`; WorkerError if the process died or does not answer."""
        written = self._receive()
        assert isinstance(written, Written)
        self._text += written.tokens
        return written

    def close(self) -> None:
        """End the process; safe to call twice."""
        self._pipe.close()
        self._process.join(timeout=2)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def _send(self, message: tuple[object, ...]) -> None:
        try:
            self._pipe.send(message)
        except OSError:
            raise self._dead() from None

    def _receive(self) -> object:
        try:
            if not self._pipe.poll(PATIENCE_S):
                self._process.kill()
                raise WorkerError(f"the draft's process has not answered for {PATIENCE_S:.0f} s and was ended")
            answer = self._pipe.recv()
        except (EOFError, ConnectionError):
            raise self._dead() from None
        if isinstance(answer, str):
            raise WorkerError(f"the draft's process failed:\n{answer}")
        return answer

    def _dead(self) -> WorkerError:
        self._process.join(timeout=2)
        return WorkerError(f"the draft's process died (exit code {self._process.exitcode})")


def settle_in(place: Place) -> None:
    """Keep this process to its place, as far as the system allows it."""
    if place.cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, place.cores)
    torch.set_num_threads(place.threads)


def make_drafter(settings: ModelSettings, sampling: Sampling, vocabulary: int) -> Drafter:
    """Return the draft that `settings` names: a model, or prompt lookup."""
    if settings.name == PROMPT_LOOKUP:
        return PromptLookup(sampling, vocabulary)
    return ModelDrafter(CachedModel(load_model(settings), vocabulary), sampling)


def _serve(pipe: Connection, settings: ModelSettings, sampling: Sampling, vocabulary: int, place: Place) -> None:
    """Serve requests until the pipe closes, which also happens when the other process dies."""
    try:
        settle_in(place)
        drafter = make_drafter(settings, sampling, vocabulary)
        text: list[int] = []
        pipe.send(True)
        while True:
            kind, *message = pipe.recv()
            if kind == "foresee":
                pipe.send(drafter.foresee(*message))
                text = []
                continue
            shared, new, count, *place_in_text = message
            start_ns = time.perf_counter_ns()
            text[shared:] = new
            tokens, log_q = drafter.write(text, count, *place_in_text) if count else drafter.read(text)
            text += tokens
            stop_ns = time.perf_counter_ns()
            pipe.send(Written(start_ns, stop_ns, tokens, None if log_q is None else log_q.cpu().numpy()))
    except (EOFError, KeyboardInterrupt, BrokenPipeError):
        pass
    except BaseException:
        with suppress(OSError):
            pipe.send(traceback.format_exc(limit=-3))
