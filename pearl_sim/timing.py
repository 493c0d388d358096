"""What the clock needs to know: integer tables of how long a part of a round takes, and how parts add up.

A cost model (cost.py) compiles itself to a Timing for one policy; drivers read only this.  All arithmetic is on
integers, so every driver gives the same nanoseconds.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pearl_sim.acceptance import LATENCY_STREAM, generator
from pearl_sim.rules import Policy


class Latency(NamedTuple):
    """How long one model's part of a round takes, by its size: tokens drafted, or positions scored.

    base_ns:  [size][draw], the time before context counts; more than one draw makes it random.
    slope_ps: [size], picoseconds for each token of context.
    floor_ns: [size], no time is shorter (a forward bound by arithmetic, not by memory).
    """

    base_ns: tuple[tuple[int, ...], ...]
    slope_ps: tuple[int, ...]
    floor_ns: tuple[int, ...]

    @property
    def draws(self) -> int:
        """Return how many equally likely base times each size has."""
        return len(self.base_ns[0])


class Latencies(NamedTuple):
    """One model's times in every circumstance, in the order of `circumstance`.

    alone, beside: while the other model waits, or runs too.
    rested:        the same where the model itself waited in the round before, and finds its caches cold;
                   so has a draft after prefill, since the target reads the prompt for longer.
    """

    alone: Latency
    beside: Latency
    alone_rested: Latency
    beside_rested: Latency

    @property
    def draws(self) -> int:
        """Return how many equally likely base times each size has."""
        return self.alone.draws


def circumstance(beside: bool, rested: bool) -> int:
    """Return which of Latencies holds."""
    return int(beside) + 2 * int(rested)


def everywhere(latency: Latency) -> Latencies:
    """Return times that no circumstance changes."""
    return Latencies(latency, latency, latency, latency)


class HandOver(NamedTuple):
    """What a round takes beyond its slower model, by which of them worked: messages, bookkeeping, rollback."""

    draft_ns: int
    target_ns: int
    both_ns: int


class Timing(NamedTuple):
    """The durations of one scenario under one policy.

    draft:         sizes 0..gamma, a chain of that many one-token forwards.
    target:        sizes 0..widest(policy), one forward over that many positions.
    hand_over:     added to every round, by its kind.
    overlap_ppm:   millionths of the overlap by which each model is delayed while the other runs too.
    prefill_ns:    prompt tokens -> (draft, target) time to read the prompt.
    """

    draft: Latencies
    target: Latencies
    hand_over: HandOver
    overlap_ppm: int
    prefill_ns: Callable[[int], tuple[int, int]]

    @property
    def fixed(self) -> bool:
        """Return whether neither context nor luck nor the round before changes a time."""
        latencies = (*self.draft, *self.target)
        alike = all(model[:2] == model[2:] for model in (self.draft, self.target))
        return alike and not any(part.draws > 1 or any(part.slope_ps) for part in latencies)


def latency_ns(latency: Latency, size: int, context: int, draw: int) -> int:
    """Return the time of a part of `size` after `context` tokens, for one of its draws."""
    return max(latency.floor_ns[size], latency.base_ns[size][draw] + latency.slope_ps[size] * context // 1000)


def delay_ns(draft_ns: int, score_ns: int, overlap_ppm: int) -> int:
    """Return what each of two parts that start together loses while both run on a shared device.

    At factor f = 1 + overlap_ppm / 1e6, both run at 1 / f of their speed until the shorter is done: it takes
    f * shorter, and the longer one the same delay, (f - 1) * shorter, on top of its own time.
    """
    return min(draft_ns, score_ns) * overlap_ppm // 1_000_000


def prefill_parts(policy: Policy, timing: Timing, prompt_tokens: int) -> tuple[int, int]:
    """Return how long draft and target take to read the prompt; a policy without drafts has no draft to fill."""
    draft_ns, target_ns = timing.prefill_ns(prompt_tokens)
    if policy.gamma == 0:
        return 0, target_ns
    delay = delay_ns(draft_ns, target_ns, timing.overlap_ppm)
    return draft_ns + delay, target_ns + delay


def draw_numbers(seed: int, request: int, draws: int, rounds: int) -> NDArray[np.int64]:
    """Return which base time (draft's, target's) each round of a request takes, from its own random stream.

    Where there is but one base time, no rows: nothing is drawn.
    """
    if draws == 1:
        return np.empty((0, 2), np.int64)
    return generator(seed, request, LATENCY_STREAM).integers(draws, size=(rounds, 2))


class RoundTimes(NamedTuple):
    """What rounds take, in arrays: each model, and the whole with hand-over."""

    round_ns: NDArray[np.int64]
    draft_ns: NDArray[np.int64]
    score_ns: NDArray[np.int64]


def add_up(
    draft_ns: NDArray[np.int64],
    score_ns: NDArray[np.int64],
    hand_over_ns: NDArray[np.int64] | int,
    overlap_ppm: NDArray[np.int64] | int,
) -> RoundTimes:
    """Return rounds whose models alone would take these times (0: it waits); arrays are broadcast."""
    shorter: NDArray[np.int64] = np.minimum(draft_ns, score_ns)
    longer: NDArray[np.int64] = np.maximum(draft_ns, score_ns)
    delay = shorter * overlap_ppm // 1_000_000
    return RoundTimes(np.add(longer + delay, hand_over_ns), draft_ns + delay, score_ns + delay)


def round_times(timing: Timing, drafted: int, scored: int) -> RoundTimes | None:
    """Return [draft's draw, target's draw], what one kind of round takes; None if context or the round before tells."""
    together = drafted > 0 and scored > 0
    hand_over_ns = timing.hand_over.both_ns if together else timing.hand_over[0 if drafted else 1]
    models = ((timing.draft, drafted), (timing.target, scored))
    fresh, rested = circumstance(together, rested=False), circumstance(together, rested=True)
    if any(model[fresh] != model[rested] for model, size in models if size):
        return None
    used = [(model[fresh], size) for model, size in models]
    if any(latency.slope_ps[size] for latency, size in used if size):
        return None
    parts = [
        np.maximum(np.array(latency.base_ns[size]), latency.floor_ns[size]) if size else np.zeros(1, np.int64)
        for latency, size in used
    ]
    draft_ns, score_ns = np.meshgrid(*parts, indexing="ij")
    return add_up(draft_ns, score_ns, hand_over_ns, timing.overlap_ppm)


def mean_round_ns(timing: Timing, drafted: int, scored: int) -> float | None:
    """Return the mean duration of a round over all draws; None if context or the round before changes it."""
    times = round_times(timing, drafted, scored)
    return None if times is None else float(times.round_ns.mean())
