"""Hardware in the loop: a trace's acceptance on real forwards, so that its time is measured rather than modelled.

Any models will do, of any shape and with random weights: which tokens are written and accepted comes from the trace,
only how long forwards take comes from them.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pearl_sim.capture import WARM_UP, Text, hold_to_replay
from pearl_sim.drivers.real import decode
from pearl_sim.errors import InputError
from pearl_sim.judge import Request
from pearl_sim.models.drafting import PROMPT_LOOKUP, Script
from pearl_sim.models.lm import describe, vocabulary_size
from pearl_sim.models.pair import Pair
from pearl_sim.provenance import provenance
from pearl_sim.recording import Piece, Row, begin, discard, in_pieces, step_rows
from pearl_sim.rules import Policy
from pearl_sim.trace import Trace, refuse_beyond_record, save


def replay(
    pair: Pair,
    trace: Trace,
    count: int | None,
    policies: Mapping[str, Policy],
    out: Path,
    command: str,
    resume: bool,
    on_request: Callable[[int, int], object] = lambda number, written: None,
) -> Trace:
    """Run `policies` on the first `count` requests of `trace` with real forwards; return what is saved at `out`.

    The result holds the same requests and tokens and the new steps.  Every run is held to the simulator, round for
    round: DivergenceError if one differs.  InputError if a request overruns the pair's context, or as `begin`.
    """
    requests = trace.workload(count, None)
    _check(pair, trace, requests, max(policy.gamma for policy in policies.values()))
    models = [describe(settings).model_dump() for settings in (pair.target_settings, pair.draft_settings)]
    plan = {
        "trace": [trace.provenance.model_dump(mode="json"), len(requests)],
        "models": [*models, pair.draft_settings.layers],
        "sampling": pair.sampling.model_dump(),
        "policies": {name: list(policy) for name, policy in policies.items()},
    }
    begin(out, plan, resume)
    names = trace.requests["request"]
    vocabulary = min(vocabulary_size(s) for s in (pair.target_settings, pair.draft_settings) if s.name != PROMPT_LOOKUP)
    tokens = trace.tokens.partition_by("request", as_dict=True, include_key=True, maintain_order=True)

    def record(number: int) -> Piece:
        request, of_request = requests[number], tokens[(names[number],)]
        written = of_request["token"].fill_null(0).to_list()
        script = Script([token % vocabulary for token in written], request.runs.tolist())
        text = Text(list(script.tokens), [], None, request.limit, "")
        steps: list[Row] = []
        for source, policy in policies.items():
            emitted = list(
                decode(
                    policy,
                    filler(request.prompt_tokens),
                    request.limit,
                    pair.target,
                    pair.draft,
                    pair.sampling,
                    number,
                    script=script,
                )
            )
            hold_to_replay(policy, request, emitted, text, source)
            steps += step_rows(emitted, source, names[number], request.prompt_tokens)
        return Piece([], [], steps)

    warm_up(pair, policies, filler(requests[0].prompt_tokens), min(WARM_UP, requests[0].limit))
    recorded = in_pieces(out, len(requests), record, on_request)
    note = f"tokens and acceptance are those of the trace {trace.path.name}, recorded with {_pair_of(trace)}"
    made = provenance(pair, "replayed on hardware", command, trace.provenance.prompts, [note, *trace.provenance.notes])
    made = made.model_copy(update={"run_limit": trace.provenance.run_limit})
    written = sum(len(request.runs) for request in requests)
    replayed = Trace(out, made, trace.requests.head(len(requests)), trace.tokens.head(written), recorded.steps)
    save(replayed)
    discard(out)
    return replayed


def filler(count: int) -> list[int]:
    """Return a prompt of `count` tokens: what they are changes nothing in how long forwards take."""
    return [1] * count


def warm_up(
    pair: Pair, policies: Mapping[str, Policy], prompt: Sequence[int], tokens: int = WARM_UP, batch: int = 1
) -> None:
    """Write so many made-up tokens under each policy: first forwards are slow, and in graph mode compile."""
    script = Script([1] * tokens, [tokens - i if i % 5 else 0 for i in range(tokens)])
    for policy in policies.values():
        list(decode(policy, prompt, tokens, pair.target, pair.draft, pair.sampling, script=script, batch=batch))


def _check(pair: Pair, trace: Trace, requests: Sequence[Request], gamma: int) -> None:
    """Raise InputError if a request cannot be run with this pair at this gamma."""
    refuse_beyond_record(trace.provenance, gamma, f"gamma = {gamma}")
    file, beyond = trace.path / "requests.parquet", 2 * gamma + 1
    for row, request in enumerate(requests):
        if request.prompt_tokens == 0:
            raise InputError(f"{file}: row {row}", "has no prompt tokens; real models read at least one")
        if request.prompt_tokens + request.limit + beyond > pair.context:
            raise InputError(
                f"{file}: row {row}",
                f"has {request.prompt_tokens} + {request.limit} tokens; with up to {beyond} drafted beyond them that "
                f"is over the models' context of {pair.context}: take other models, or the --requests before it",
            )


def _pair_of(trace: Trace) -> str:
    target, draft = trace.provenance.target, trace.provenance.draft
    return f"{target.id if target else 'an unknown target'} and {draft.id if draft else 'an unknown draft'}"
