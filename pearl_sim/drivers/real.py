"""The engine: the rounds that rules.py plans, carried out by real models, with live acceptance and real time.

Target forwards run here, the draft in its own process.  Nothing unverified is ever returned: a round yields only
tokens that the target stands behind, up to the limit or the first stop token.
"""

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from pearl_sim.models.cache import CachedModel
from pearl_sim.models.sampling import GUMBEL, TARGET, Sampling, accepted, choose, scores
from pearl_sim.models.worker import Worker
from pearl_sim.rules import Frontier, Policy, candidates, plan, settle
from pearl_sim.timeline import PREFILL, Step


class Emitted(NamedTuple):
    """What a round brought: its step, and the output tokens it verified."""

    step: Step
    tokens: list[int]


Verdict = Callable[[Sequence[int], NDArray[np.float64] | None], tuple[int, int]]
"""Given the candidates and the draft's log q, returns how many are accepted and the target's own token behind them."""


def decode(
    policy: Policy,
    prompt: Sequence[int],
    limit: int,
    target: CachedModel,
    draft: Worker | None,
    sampling: Sampling,
    request: int = 0,
    stop: Collection[int] = (),
) -> Iterator[Emitted]:
    """Yield the rounds of one request: prefill, then rounds until `limit` tokens or a token of `stop`.

    `draft` may be None where the policy has no draft.  Randomness is keyed by sampling.seed, `request` and the
    output position.
    """
    clock = time.perf_counter_ns
    text, base = list(prompt), len(prompt)
    drafting = draft if policy.gamma else None
    assert drafting or not policy.gamma, "this policy needs a draft"

    start = clock()
    if drafting:
        drafting.begin(text, 0, request, 0, 0)
    target.reset()
    text += choose(target.logits(text, 1), sampling, request, 0, _own_stream(sampling))
    score_ns = clock() - start
    reading = drafting.finish() if drafting else None
    draft_ns = reading.stop_ns - reading.start_ns if reading else 0
    yield Emitted(Step(start, clock(), draft_ns, score_ns, *PREFILL, 0), text[base:])

    frontier, chain, stopped = Frontier(1, 0), 1, text[base] in stop
    log_q: list[NDArray[np.float64]] = []  # of the pending drafts, one row each (rejection only)
    while frontier.verified < limit and not stopped:
        start = clock()
        verified, pending = frontier
        if pending == 0:
            chain = verified
        todo = plan(policy, frontier)
        draft_ns = score_ns = 0
        if todo.draft and drafting:
            drafting.begin(text, todo.draft, request, verified + pending, chain)
        verdict: Verdict | None = None
        if todo.score:
            scored = clock()
            logits = target.logits(text[: base + verified + todo.score - 1], todo.score)
            verdict = judge(logits, sampling, request, verified)
            score_ns = clock() - scored
        if todo.draft and drafting:
            written = drafting.finish()
            draft_ns = written.stop_ns - written.start_ns
            text += written.tokens
            log_q += [] if written.log_q is None else list(written.log_q)

        checked, count = candidates(frontier, todo), 0
        if verdict:
            proposed = text[base + verified : base + verified + checked]
            count, own = verdict(proposed, np.stack(log_q[:checked]) if log_q and checked else None)
            if count < todo.score:
                text[base + verified + count :] = [own]
                log_q.clear()
            del log_q[:count]
        settled = settle(frontier, todo, count)
        new = _cut(text[base + verified : base + min(settled.verified, limit)], stop)
        stopped = bool(new) and new[-1] in stop
        yield Emitted(Step(start, clock(), draft_ns, score_ns, frontier, todo, count), new)
        frontier = settled


def judge(logits: torch.Tensor, sampling: Sampling, request: int, position: int) -> Verdict:
    """Return the target's verdict on drafts from output position `position`, given its logits [score, vocabulary]."""
    if sampling.mode == "rejection":
        log_p = scores(logits, sampling).cpu()  # waits for the device: the forward's time is known then

        def by_rejection(proposed: Sequence[int], log_q: NDArray[np.float64] | None) -> tuple[int, int]:
            q = torch.zeros(0, log_p.shape[1]) if log_q is None else torch.from_numpy(log_q)
            return accepted(log_p[: len(proposed) + 1], q, proposed, sampling, request, position)

        return by_rejection
    own = choose(logits, sampling, request, position)

    def by_equality(proposed: Sequence[int], _: NDArray[np.float64] | None) -> tuple[int, int]:
        count = next((i for i, token in enumerate(proposed) if token != own[i]), len(proposed))
        return count, own[count] if count < len(own) else -1

    return by_equality


def _own_stream(sampling: Sampling) -> int:
    return TARGET if sampling.mode == "rejection" else GUMBEL


def _cut(tokens: list[int], stop: Collection[int]) -> list[int]:
    """Return the tokens up to and including the first of `stop`."""
    end = next((i + 1 for i, token in enumerate(tokens) if token in stop), len(tokens))
    return tokens[:end]
