"""Where the draft runs, beside the target: a process with its own cores, or a thread with its own CUDA stream.

Only token ids cross, and in rejection mode the draft's probabilities.  Two processes share one GPU badly (they
take turns), so there the draft is a thread; everywhere else Python's lock would make a thread wait.
"""

import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from multiprocessing.connection import Connection
from queue import Empty, SimpleQueue
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from pearl_sim.errors import InputError
from pearl_sim.models.cache import common_prefix
from pearl_sim.models.drafting import Foreseen, Script, make_drafter
from pearl_sim.models.lm import ModelSettings
from pearl_sim.models.sampling import Sampling

PATIENCE_S = 120.0
"""A worker that is silent for this long is taken for dead."""

LOADING_S = 3600.0
"""Loading a model may take longer, and downloading it too."""


SOON_S = 0.02
"""Rounds last about so long; between requests nobody is kept busy."""


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


class Worker(Protocol):
    """A draft at work; `begin` a piece of work, then `finish` it while the target works too."""

    def foresee(self, text: Sequence[int], prompt_tokens: int, request: int) -> Foreseen:
        """Return the draft's view of a known text, as Drafter.foresee does."""

    def read(self, prompt: Sequence[int], script: Script | None = None, batch: int = 1) -> None:
        """Have the draft read a prompt, as Drafter.read does; `finish` it too."""

    def begin(self, text: Sequence[int], count: int, request: int, position: int, chain: int) -> None:
        """Have the draft write `count` tokens after `text`, as Drafter.write does."""

    def finish(self) -> Written:
        """Return what was written since `begin`; WorkerError if the draft died, failed or does not answer."""

    def close(self) -> None:
        """End the worker; safe to call twice."""


class DraftProcess:
    """A draft in a process of its own; a Worker."""

    def __init__(self, settings: ModelSettings, sampling: Sampling, vocabulary: int, place: Place) -> None:
        """Start the process and wait until its model is loaded; WorkerError if that fails."""
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(theirs, settings, sampling, vocabulary, place), name="draft", daemon=True
        )
        # Control-C reaches every process of the terminal; the draft is to end with its pipe, not in its imports.
        with _deaf_to_interrupts():
            self._process.start()
        theirs.close()
        self._text: list[int] = []
        try:
            self._receive(LOADING_S)
        except BaseException:
            self.close()
            raise

    def foresee(self, text: Sequence[int], prompt_tokens: int, request: int) -> Foreseen:
        """Return the draft's view of a known text, as Drafter.foresee does."""
        self._text = []
        self._send(("foresee", list(text), prompt_tokens, request))
        foreseen = self._receive()
        assert isinstance(foreseen, Foreseen)
        return foreseen

    def read(self, prompt: Sequence[int], script: Script | None = None, batch: int = 1) -> None:
        """Have the draft read a prompt, as Drafter.read does; `finish` it too."""
        self._text = list(prompt)
        self._send(("read", self._text, script, batch))

    def begin(self, text: Sequence[int], count: int, request: int, position: int, chain: int) -> None:
        """Have the draft write `count` tokens after `text`, as Drafter.write does."""
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

    def _receive(self, patience_s: float | None = None) -> object:
        patience_s = PATIENCE_S if patience_s is None else patience_s
        try:
            if not (comes_soon(self._pipe) or self._pipe.poll(patience_s)):
                self._process.kill()
                raise WorkerError(f"the draft's process has not answered for {patience_s:.0f} s and was ended")
            answer = self._pipe.recv()
        except (EOFError, ConnectionError):
            raise self._dead() from None
        if isinstance(answer, InputError):
            raise answer
        if isinstance(answer, str):
            raise WorkerError(f"the draft's process failed:\n{answer}")
        return answer

    def _dead(self) -> WorkerError:
        self._process.join(timeout=2)
        return WorkerError(f"the draft's process died (exit code {self._process.exitcode})")


def comes_soon(pipe: Connection) -> bool:
    """Return whether a message is there within SOON_S, looking again and again rather than sleeping until then.

    A process that sleeps takes longer to wake than a message takes to pass, and then finds its caches cold.  Whoever
    else wants the core gets it.
    """
    end = time.monotonic() + SOON_S
    while time.monotonic() < end:
        if pipe.poll(0):
            return True
        time.sleep(0)
    return False


def settle_in(place: Place) -> None:
    """Keep this process to its place, as far as the system allows it."""
    if place.cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, place.cores)
    torch.set_num_threads(place.threads)


class DraftThread:
    """A draft in a thread of this process, on a CUDA stream of its own; a Worker."""

    def __init__(self, settings: ModelSettings, sampling: Sampling, vocabulary: int) -> None:
        """Load the draft."""
        self._drafter = make_drafter(settings, sampling, vocabulary)
        self._stream: torch.cuda.Stream | None = None
        if torch.device(settings.device).type == "cuda":
            self._stream = torch.cuda.Stream(settings.device)  # type: ignore[no-untyped-call]
            # The weights were made on another stream.
            torch.cuda.synchronize(settings.device)
        self._work: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._answers: SimpleQueue[object] = SimpleQueue()
        # A daemon, so that a hung draft does not keep the program from ending.
        threading.Thread(target=self._serve, name="draft", daemon=True).start()

    def foresee(self, text: Sequence[int], prompt_tokens: int, request: int) -> Foreseen:
        """Return the draft's view of a known text, as Drafter.foresee does."""
        self._work.put(lambda: self._drafter.foresee(list(text), prompt_tokens, request))
        foreseen = self._receive()
        assert isinstance(foreseen, Foreseen)
        return foreseen

    def read(self, prompt: Sequence[int], script: Script | None = None, batch: int = 1) -> None:
        """Have the draft read a prompt, as Drafter.read does; `finish` it too."""
        copied = list(prompt)
        self._work.put(lambda: _timed(lambda: self._drafter.read(copied, script, batch)))

    def begin(self, text: Sequence[int], count: int, request: int, position: int, chain: int) -> None:
        """Have the draft write `count` tokens after `text`, as Drafter.write does."""
        copied = list(text)
        self._work.put(lambda: _timed(lambda: self._drafter.write(copied, count, request, position, chain)))

    def finish(self) -> Written:
        """Return what was written since `begin`; WorkerError if the draft failed or does not answer."""
        written = self._receive()
        assert isinstance(written, Written)
        return written

    def close(self) -> None:
        """End the thread; safe to call twice."""
        self._work.put(None)

    def _receive(self) -> object:
        try:
            answer = self._answers.get(timeout=PATIENCE_S)
        except Empty:
            raise WorkerError(f"the draft's thread has not answered for {PATIENCE_S:.0f} s") from None
        if isinstance(answer, Exception):
            raise WorkerError(f"the draft's thread failed: {answer}") from answer
        return answer

    def _serve(self) -> None:
        with torch.cuda.stream(self._stream) if self._stream else nullcontext():
            while work := self._work.get():
                try:
                    self._answers.put(work())
                except Exception as error:
                    self._answers.put(error)


@contextmanager
def _deaf_to_interrupts() -> Iterator[None]:
    """Have a process that is started here ignore Control-C."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _timed(work: Callable[[], tuple[list[int], torch.Tensor | None]]) -> Written:
    """Return what the draft writes, timed; reading tokens back waits for the device."""
    start_ns = time.perf_counter_ns()
    tokens, log_q = work()
    stop_ns = time.perf_counter_ns()
    return Written(start_ns, stop_ns, tokens, None if log_q is None else log_q.cpu().numpy())


def _serve(pipe: Connection, settings: ModelSettings, sampling: Sampling, vocabulary: int, place: Place) -> None:
    """Serve requests until the pipe closes, which also happens when the other process dies."""
    try:
        settle_in(place)
        drafter = make_drafter(settings, sampling, vocabulary)
        text: list[int] = []
        pipe.send(True)
        while True:
            comes_soon(pipe)
            kind, *message = pipe.recv()
            if kind == "foresee":
                pipe.send(drafter.foresee(*message))
                text = []
            elif kind == "read":
                text = message[0]
                pipe.send(_timed(partial(drafter.read, *message)))
            else:
                shared, new, *rest = message
                text[shared:] = new
                written = _timed(partial(drafter.write, text, *rest))
                text += written.tokens
                pipe.send(written)
    except (EOFError, KeyboardInterrupt, BrokenPipeError):
        pass
    except InputError as error:
        with suppress(OSError):
            pipe.send(error)
    except BaseException:
        with suppress(OSError):
            pipe.send(traceback.format_exc(limit=-3))
