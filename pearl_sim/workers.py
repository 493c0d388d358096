"""Who computes the partitions of a sweep: this process, more of them beside it, or a Ray cluster.

Whoever it is, the results are the same.  A worker that dies loses nothing but the partition that it was at, which is
computed again.
"""

import multiprocessing
import os
import signal
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from queue import SimpleQueue
from threading import Thread
from typing import TypeAlias

from pearl_sim.errors import InputError
from pearl_sim.evaluate import Evaluated

Work: TypeAlias = Callable[[int], Evaluated]
"""Computes the partition of a number."""

ALONE_S = 0.5
"""This process works alone for so long; most sweeps are done before another process would have started."""

RETRIES = 5
"""How often Ray starts a partition anew whose worker was lost."""


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def here(work: Work, numbers: Iterable[int], processes: int) -> Iterator[tuple[int, Evaluated]]:
    """Yield (number, work(number)) as they are done, by this process and, if it takes long, `processes` - 1 more."""
    waiting = deque(numbers)
    began = time.monotonic()
    while waiting and (processes == 1 or time.monotonic() - began < ALONE_S):
        number = waiting.popleft()
        yield number, work(number)
    if waiting:
        yield from _beside(work, waiting, min(processes - 1, len(waiting)))


def _beside(work: Work, waiting: deque[int], helpers: int) -> Iterator[tuple[int, Evaluated]]:
    left, outcomes = len(waiting), SimpleQueue[tuple[int, Evaluated | Exception] | None]()
    context = multiprocessing.get_context("spawn")
    started = []
    for _ in range(helpers):
        own, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs, work), daemon=True)
        process.start()
        theirs.close()
        started.append(process)
        Thread(target=_ask, args=(own, waiting, outcomes), daemon=True).start()
    try:
        while left:
            # While there is work this process works too, and looks up only in between.
            number = _next(waiting) if outcomes.empty() else None
            if number is not None:
                yield number, work(number)
            elif (outcome := outcomes.get()) is not None:
                yield outcome[0], _income(outcome[1])
            else:
                continue
            left -= 1
    finally:
        for process in started:
            process.terminate()
            process.join()


def _ask(
    connection: Connection, waiting: deque[int], outcomes: SimpleQueue[tuple[int, Evaluated | Exception] | None]
) -> None:
    """Have the process at the other end of `connection` work as long as anything waits."""
    while (number := _next(waiting)) is not None:
        try:
            connection.send(number)
            outcomes.put((number, connection.recv()))
        except (EOFError, OSError):  # it died
            waiting.appendleft(number)
            outcomes.put(None)
            return


def _next(waiting: deque[int]) -> int | None:
    try:
        return waiting.popleft()
    except IndexError:
        return None


def _serve(connection: Connection, work: Work) -> None:
    """Work until the other end is closed or dead.  Ctrl-C is for that side to act on."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(EOFError, OSError):
        while True:
            connection.send(_outcome(work, connection.recv()))


def on_ray(work: Work, numbers: Iterable[int], address: str) -> Iterator[tuple[int, Evaluated]]:
    """Yield (number, work(number)) as they are done, by the Ray cluster at `address`; a core a partition."""
    try:
        import ray
    except ImportError:
        raise InputError(f"--ray {address}", "needs Ray: pip install 'pearl-sim[ray]'") from None
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        if port.isdigit():
            # Ray itself would try for minutes.
            socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
        ray.init(address=address, log_to_driver=False, configure_logging=False)
    except (OSError, OverflowError, ValueError, RuntimeError) as error:
        raise InputError(f"--ray {address}", f"no cluster answers there: {str(error).splitlines()[0]}") from None
    try:
        held, remote = ray.put(work), ray.remote(max_retries=RETRIES, num_cpus=1)(_outcome)
        pending = {remote.remote(held, number): number for number in numbers}
        while pending:
            for done in ray.wait(list(pending))[0]:
                yield pending.pop(done), _income(ray.get(done))
    except ray.exceptions.RayError as error:
        raise InputError(f"--ray {address}", str(error).splitlines()[0]) from None
    finally:
        ray.shutdown()


def _outcome(work: Work, number: int) -> Evaluated | Exception:
    """Return the result, or the exception: both cross to another process as they are."""
    try:
        return work(number)
    except Exception as error:
        return error


def _income(outcome: Evaluated | Exception) -> Evaluated:
    if isinstance(outcome, Exception):
        raise outcome
    return outcome
