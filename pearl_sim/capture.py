"""Recording a trace from a real pair: acceptance at every position, and timed runs of named policies.

For each prompt the target writes its own text, past the limit by LOOKAHEAD tokens; the draft then says, along that
text, what it would have drafted at every position.
"""

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from pearl_sim.acceptance import runs_of
from pearl_sim.cost import ConstantCost
from pearl_sim.drivers.real import Emitted, decode
from pearl_sim.drivers.sim import simulate
from pearl_sim.judge import Request, Runs
from pearl_sim.models.lm import describe
from pearl_sim.models.pair import Pair
from pearl_sim.models.sampling import ACCEPT, GUMBEL, TARGET, contest, key, scores, uniform
from pearl_sim.prompts import Prompt
from pearl_sim.provenance import provenance
from pearl_sim.recording import Piece, Row, begin, discard, in_pieces, step_rows
from pearl_sim.rules import Policy, widest
from pearl_sim.trace import Trace, save

LOOKAHEAD = 32
"""Positions recorded past the limit at least, so that the last round's outcome is known for any gamma below this."""

NEAR_TIE = 1e-3
"""A top-2 margin of the target below which float32 may choose either token, as forwards of other widths do."""

WARM_UP = 24
"""Tokens decoded under each policy before anything is recorded."""


class DivergenceError(Exception):
    """The engine and the replay of its own trace disagree; the message shows the first round that does."""


class Text(NamedTuple):
    """What the target writes after a prompt, `lookahead` tokens past its end.

    margins: by how much each token won over the next best, in logits (greedy) or in log p plus noise.
    """

    tokens: list[int]
    margins: list[float]
    log_p: torch.Tensor | None
    output_tokens: int
    finish: str


def capture(
    pair: Pair,
    prompts: Sequence[Prompt],
    tokens: int,
    policies: Mapping[str, Policy],
    out: Path,
    command: str,
    resume: bool,
    on_request: Callable[[int, int], object] = lambda number, written: None,
) -> Trace:
    """Record every prompt and save the trace at `out`; return it.

    Each of `policies` (by the name its steps get) is run and timed on every prompt, and held to the replay of the
    record: DivergenceError if a round differs where sampling makes replay exact.  InputError if `out` exists, or an
    interrupted recording does and `resume` is false or its settings differ.
    """
    lookahead = max([LOOKAHEAD, *(2 * policy.gamma + 1 for policy in policies.values())])
    encoded = [pair.encode(prompt.text, tokens + lookahead) for prompt in prompts]
    models = [describe(settings).model_dump() for settings in (pair.target_settings, pair.draft_settings)]
    plan = {
        "models": [*models, pair.draft_settings.layers],
        "sampling": pair.sampling.model_dump(),
        "policies": {name: list(policy) for name, policy in policies.items()},
        "tokens": tokens,
        "prompts": [prompt.text for prompt in prompts],
    }

    begin(out, plan, resume)

    def record_one(number: int) -> Piece:
        return record(pair, encoded[number], number, prompts[number].category, tokens, lookahead, policies)

    warm_up(pair, policies, encoded[0], tokens)
    recorded = in_pieces(out, len(prompts), record_one, on_request)
    notes = []
    if pair.sampling.mode == "rejection":
        notes.append(
            "run is drawn, given the written token, as acceptance would be: replay is exact in distribution only"
        )
    if recorded.near_ties:
        notes.append(f"{recorded.near_ties} of the timed runs left the replay of the trace at a near tie of the target")
    told = f"{len(prompts)} prompts (sha256 {hashlib.sha256(repr(prompts).encode()).hexdigest()})"
    trace = Trace(out, provenance(pair, "captured", command, told, notes), *recorded[:3])
    save(trace)
    discard(out)
    return trace


def warm_up(pair: Pair, policies: Mapping[str, Policy], prompt: Sequence[int], tokens: int = WARM_UP) -> None:
    """Decode a little under each policy: first forwards are slow, and in graph mode compile."""
    for policy in policies.values():
        list(decode(policy, prompt, min(tokens, WARM_UP), pair.target, pair.draft, pair.sampling))


def record(
    pair: Pair,
    prompt: list[int],
    number: int,
    category: str | None,
    tokens: int,
    lookahead: int,
    policies: Mapping[str, Policy],
) -> Piece:
    """Return one request's share of the trace."""
    name, near_ties = f"{number:05}", 0
    text = write_text(pair, prompt, number, tokens, lookahead)
    draft_tokens, runs, alpha = foresee(pair, prompt, text, number)
    kept = text.output_tokens
    positions: list[Row] = [
        (name, i, text.tokens[i], int(runs[i]), draft_tokens[i], text.margins[i], alpha[i] if alpha else None)
        for i in range(kept)
    ]
    steps: list[Row] = []
    request = Request(len(prompt), kept, runs)
    for source, policy in policies.items():
        emitted = list(decode(policy, prompt, kept, pair.target, pair.draft, pair.sampling, number, pair.stop))
        if pair.sampling.mode != "rejection":
            replayed = hold_to_replay(policy, request, emitted, text, source, pair.target_settings.dtype)
            near_ties += not replayed
        steps += step_rows(emitted, source, name, len(prompt))
    return Piece([(name, category, len(prompt), kept, text.finish)], positions, steps, near_ties)


def write_text(pair: Pair, prompt: list[int], number: int, tokens: int, lookahead: int = LOOKAHEAD) -> Text:
    """Return the target's own text, one token a forward, to `lookahead` past `tokens` or its first stop token."""
    stream = TARGET if pair.sampling.mode == "rejection" else GUMBEL
    written: list[int] = []
    margins: list[float] = []
    log_p = []
    pair.target.reset()
    end = tokens
    while len(written) < end + lookahead:
        logits = pair.target.logits(prompt + written, 1)
        best = torch.topk(contest(logits, pair.sampling, number, len(written), stream)[0], 2)
        margins.append(float(best.values[0] - best.values[1]))
        if pair.sampling.mode != "greedy":
            log_p.append(scores(logits, pair.sampling).cpu())
        written.append(int(best.indices[0]))
        if end == tokens and written[-1] in pair.stop and len(written) <= tokens:
            end = len(written)
    finish = "stop" if written[end - 1] in pair.stop else "length"
    return Text(written, margins, torch.cat(log_p) if log_p else None, end, finish)


def foresee(pair: Pair, prompt: list[int], text: Text, number: int) -> tuple[list[int], Runs, list[float] | None]:
    """Return the draft token, the run length and (when sampling) sum of min(p, q) at every position of the text."""
    assert pair.draft, "a pair without a draft has nothing to record"
    seen = pair.draft.foresee(prompt + text.tokens, len(prompt), number)
    alpha = None
    if text.log_p is not None and seen.log_q is not None:
        alpha = np.minimum(np.exp(text.log_p.numpy()), np.exp(seen.log_q)).sum(axis=1)
    if seen.runs is not None:
        runs = np.array(seen.runs, np.int64)
    elif pair.sampling.mode == "rejection":
        # Given that x was written, it had been drafted and accepted with probability min(p, q) / p at x.
        assert text.log_p is not None and seen.log_q is not None
        here = np.arange(len(text.tokens)), np.array(text.tokens)
        luck = np.array([uniform(key(pair.sampling.seed, number, i, ACCEPT)) for i in range(len(text.tokens))])
        runs = runs_of(np.log(luck) < seen.log_q[here] - text.log_p.numpy()[here])
    else:
        runs = runs_of(np.array(seen.tokens) == np.array(text.tokens))
    return seen.tokens, runs, None if alpha is None else [min(1.0, a) for a in alpha.tolist()]


def hold_to_replay(
    policy: Policy, request: Request, emitted: Sequence[Emitted], text: Text, source: str, dtype: str = "float32"
) -> bool:
    """Return whether the engine did in every round what replay of its trace does, and wrote the target's text.

    Where it did not and a near tie explains it (any, in half precision), return False; else raise DivergenceError
    with the first round that differs.
    """
    cost = ConstantCost(draft="1 ns", target="1 ns")  # type: ignore[arg-type]
    (replayed,) = simulate(policy, [request], cost.timing(policy), 0)
    steps = [e.step for e in emitted]
    written = [token for e in emitted for token in e.tokens]
    if [step[4:] for step in steps] == [step[4:] for step in replayed] and written == text.tokens[: request.limit]:
        return True
    pairs = enumerate(zip_longest(steps, replayed))
    number = next((n for n, (real, sim) in pairs if not (real and sim and real[4:] == sim[4:])), len(steps) - 1)
    sides = [timeline[number][4:] if number < len(timeline) else None for timeline in (steps, replayed)]
    frontier = steps[min(number, len(steps) - 1)].frontier
    margin = min(text.margins[frontier.verified : frontier.verified + widest(policy)], default=math.inf)
    if dtype != "float32" or margin < NEAR_TIE:
        return False
    raise DivergenceError(
        f"{source}, round {number}: the engine did {sides[0]}, replay {sides[1]}; the target's smallest top-2 margin "
        f"among the positions scored there is {margin:.3g}, so no near tie explains it"
    )
