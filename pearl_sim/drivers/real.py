"""The engine: the rounds that rules.py plans, carried out by real models, with live acceptance and real time.

Target forwards run here, the draft in its own process.  Nothing unverified is ever returned: a round yields only
tokens that the target stands behind, up to the limit or the first stop token.

With a Script this is hardware in the loop: the forwards are real and take real time, but what is written and accepted
comes from a record, so that models of any shape will do.
"""

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from pearl_sim.models.cache import CachedModel
from pearl_sim.models.drafting import Script
from pearl_sim.models.sampling import GUMBEL, TARGET, Sampling, accepted, choose, scores
from pearl_sim.models.worker import Worker, Written
from pearl_sim.rules import Frontier, Policy, candidates, plan, settle
from pearl_sim.timeline import PREFILL, Step


class Emitted(NamedTuple):
    """What a round brought: its step, the output tokens it verified, and when each model started (0: it waited)."""

    step: Step
    tokens: list[int]
    draft_start: int
    score_start: int


IDLE = Written(0, 0, [], None)
"""What a draft that waits has written."""

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
    script: Script | None = None,
    batch: int = 1,
) -> Iterator[Emitted]:
    """Yield the rounds of one request: prefill, then rounds until `limit` tokens or a token of `stop`.

    `draft` may be None where the policy has no draft.  Randomness is keyed by sampling.seed, `request` and the
    output position.  With `script`, tokens and acceptance are the script's; its tokens must be in both vocabularies.
    `batch` copies of the text are decoded in step.
    """
    clock = time.perf_counter_ns
    text, base = list(prompt), len(prompt)
    drafting = draft if policy.gamma else None
    assert drafting or not policy.gamma, "this policy needs a draft"

    prefill = _prefill(text, target, drafting, sampling, request, script, batch)
    text += prefill.tokens
    yield prefill

    frontier, chain, stopped = Frontier(1, 0), 1, text[base] in stop
    log_q: list[NDArray[np.float64]] = []  # of the pending drafts, one row each (rejection only)
    while frontier.verified < limit and not stopped:
        start = clock()
        verified, pending = frontier
        if pending == 0:
            chain = verified
        todo = plan(policy, frontier)
        scored = score_ns = 0
        written = IDLE
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
            text += written.tokens
            log_q += [] if written.log_q is None else list(written.log_q)

        checked, count = candidates(frontier, todo), 0
        if verdict:
            proposed = text[base + verified : base + verified + checked]
            count, correction = verdict(proposed, np.stack(log_q[:checked]) if log_q and checked else None)
            if script:  # the verdict has taken its time; what it is, is on record
                count, correction = by_equality(script.text(verified, todo.score), proposed)
            if count < todo.score:
                text[base + verified + count :] = [correction]
                log_q.clear()
            del log_q[:count]
        settled = settle(frontier, todo, count)
        new = _cut(text[base + verified : base + min(settled.verified, limit)], stop)
        stopped = bool(new) and new[-1] in stop
        step = Step(start, clock(), written.stop_ns - written.start_ns, score_ns, frontier, todo, count)
        yield Emitted(step, new, written.start_ns, scored)
        frontier = settled


def _prefill(
    text: list[int],
    target: CachedModel,
    draft: Worker | None,
    sampling: Sampling,
    request: int,
    script: Script | None,
    batch: int,
) -> Emitted:
    """Have both models read the prompt `text`; the target writes token 0."""
    start = time.perf_counter_ns()
    if draft:
        draft.read(text, script, batch)
    scored = time.perf_counter_ns()
    target.reset(batch)
    stream = TARGET if sampling.mode == "rejection" else GUMBEL
    token = choose(target.logits(text, 1), sampling, request, 0, stream)
    score_ns = time.perf_counter_ns() - scored
    reading = draft.finish() if draft else IDLE
    step = Step(start, time.perf_counter_ns(), reading.stop_ns - reading.start_ns, score_ns, *PREFILL, 0)
    return Emitted(step, script.text(0, 1) if script else token, reading.start_ns, scored)


def judge(logits: torch.Tensor, sampling: Sampling, request: int, position: int) -> Verdict:
    """Return the target's verdict on drafts from output position `position`, given its logits [score, vocabulary]."""
    if sampling.mode == "rejection":
        log_p = scores(logits, sampling).cpu()  # waits for the device: the forward's time is known then

        def by_rejection(proposed: Sequence[int], log_q: NDArray[np.float64] | None) -> tuple[int, int]:
            q = torch.zeros(0, log_p.shape[1]) if log_q is None else torch.from_numpy(log_q)
            return accepted(log_p[: len(proposed) + 1], q, proposed, sampling, request, position)

        return by_rejection
    own = choose(logits, sampling, request, position)
    return lambda proposed, _: by_equality(own, proposed)


def by_equality(own: Sequence[int], proposed: Sequence[int]) -> tuple[int, int]:
    """Return how many of `proposed` are the target's own tokens, and its own behind them (-1: it has no more)."""
    count = next((i for i, token in enumerate(proposed) if token != own[i]), len(proposed))
    return count, own[count] if count < len(own) else -1


def _cut(tokens: list[int], stop: Collection[int]) -> list[int]:
    """Return the tokens up to and including the first of `stop`."""
    end = next((i + 1 for i, token in enumerate(tokens) if token in stop), len(tokens))
    return tokens[:end]
