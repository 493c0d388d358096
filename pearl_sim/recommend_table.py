"""What `pearl-sim recommend` says: the answer as sentences, as a table, and as plain data."""

import math
from typing import Any

from rich.table import Table
from rich.text import Text

from pearl_sim.metrics import Interval
from pearl_sim.recommend import Answer, Candidate, Rated, Replayed, Rival

FEW_REQUESTS = 10


def sentences(answer: Answer) -> str:
    """Return the answer in words: what to do, by how much it wins, and over what."""
    best, drafting, rival = answer.best, answer.drafting, answer.runner_up
    gain = f"{answer.speedup.mean:.2f} times autoregressive decoding{_between(answer.speedup, '{:.2f}')}"
    expected = f"{answer.tokens_per_s.mean:#.4g} tokens/s, {gain}"
    if answer.verdict == "do not speculate":
        text = (
            f"Do not speculate: autoregressive decoding writes {best.tokens_per_s.mean:#.4g} tokens/s, and the best "
            f"that drafts, {name(drafting.candidate)}, is {gain}."
        )
    elif answer.verdict == "speculate":
        text = (
            f"Use {name(best.candidate)}: expect {expected}. The runner-up is {name(rival.rated.candidate)}; "
            f"{best.candidate.policy} is {_faster(rival.margin)}."
        )
    else:
        text = (
            f"Too close to call between {name(best.candidate)} and {name(rival.rated.candidate)}: on these requests "
            f"{best.candidate.policy} is {_faster(rival.margin)}."
        )
        if "ar" in (best.candidate.policy, rival.rated.candidate.policy):
            text += " Whether drafting gains anything does not show; without it there is one model less to run."
        else:
            text += f" Of {name(drafting.candidate)} expect {expected}."
    next_gamma = answer.next_gamma
    if next_gamma and not next_gamma.margin.low > 0 and answer.requests > 1:
        text += f" Gamma {next_gamma.rated.candidate.gamma} may do as well: {_slower(next_gamma.margin)}."
    return text


def notes(answer: Answer, replayed: Replayed) -> list[str]:
    """Return what the reader must know to trust the answer as far as it goes, and no further."""
    said: list[str] = []
    best, single = answer.best, answer.one_device
    if single:
        per_device = best.speedup.mean / best.candidate.devices
        said.append(
            f"{best.candidate.policy} runs draft and target at once, so it occupies two devices: its speed-up per "
            f"device is {per_device:.2f}. On one device the best is {name(single.rated.candidate)}, "
            f"{single.rated.speedup.mean:.2f}; {best.candidate.policy} is {_faster(single.margin)}"
        )
    if answer.requests == 1:
        said.append("one request: there is no interval, and how sure this is cannot be said")
    elif answer.requests < FEW_REQUESTS:
        said.append(f"only {answer.requests} requests: the intervals are rough; record more")
    last = replayed.max_gamma
    rising = [rated.candidate.policy for rated in answer.by_policy if rated.candidate.gamma == last]
    if rising:
        said.append(
            f"{', '.join(rising)} did best at gamma {last}, the largest searched: beyond it "
            f"{'it' if len(rising) == 1 else 'they'} may gain, and the answer change"
        )
    if replayed.limited:
        said.append(f"gamma was searched to {last} only: {replayed.limited}")
    cut = max((rated.unknown_rounds or 0 for rated in answer.rated), default=0)
    if cut:
        said.append(
            f"up to {cut:.1%} of target forwards went past what the trace recorded; there replay takes a draft for "
            "wrong, so those speeds are too low, and a policy that looks slower may be faster"
        )
    if answer.optimism >= 0.0005:
        said.append(
            f"being the fastest of {len(answer.rated)} takes luck, worth about {answer.optimism:.3f} of its speed-up; "
            "that is taken off in the sentence, not in the table"
        )
    return said


def table(answer: Answer) -> Table:
    """Return each policy at its best gamma, as replayed."""
    shown = Table(box=None, padding=(0, 2, 0, 0))
    headings = ("policy", "best\ngamma", "tokens\n/s", "speed\n-up", "95 %\ninterval", "fastest\nin", "devices")
    for heading in headings:
        shown.add_column(heading, justify="left" if heading == "policy" else "right", no_wrap=True)
    for rated in answer.by_policy:
        shown.add_row(
            rated.candidate.policy,
            str(rated.candidate.gamma or "-"),
            f"{rated.tokens_per_s.mean:#.4g}",
            f"{rated.speedup.mean:.3f}",
            "-" if math.isnan(rated.speedup.low) else f"{rated.speedup.low:.3f} to {rated.speedup.high:.3f}",
            "-" if math.isnan(rated.fastest_share) else f"{rated.fastest_share:.0%}",
            str(rated.candidate.devices),
        )
    return shown


def render(answer: Answer, replayed: Replayed) -> list[Text | Table]:
    """Return all of it for a terminal: sentences, table, notes."""
    said = [Text(f"- {note}.") for note in notes(answer, replayed)]
    return [Text(sentences(answer)), Text(""), table(answer), *([Text("")] if said else []), *said]


def as_data(answer: Answer, replayed: Replayed) -> dict[str, Any]:
    """Return the answer as plain data; what is not known is null."""
    return {
        "verdict": answer.verdict,
        "sentence": sentences(answer),
        "notes": notes(answer, replayed),
        "requests": answer.requests,
        "tokens": int(replayed.tokens.sum()),
        "max_gamma": replayed.max_gamma,
        "best": _rated(answer.best),
        "expected": {
            "policy": answer.drafting.candidate.policy,
            "gamma": answer.drafting.candidate.gamma,
            **_interval("tokens_per_s", answer.tokens_per_s),
            **_interval("speedup", answer.speedup),
            "optimism": answer.optimism,
        },
        "runner_up": _rival(answer.runner_up),
        "next_gamma": _rival(answer.next_gamma),
        "one_device": _rival(answer.one_device),
        "candidates": [_rated(rated) for rated in answer.rated],
    }


def name(candidate: Candidate) -> str:
    """Return what a sentence calls a candidate."""
    if not candidate.gamma:
        return "autoregressive decoding"
    return f"{candidate.policy} with gamma {candidate.gamma}"


def _between(interval: Interval, form: str) -> str:
    if math.isnan(interval.low):
        return ""
    return f" (95 % interval {form.format(interval.low)} to {form.format(interval.high)})"


def _faster(margin: Interval) -> str:
    """Return "3.1 % faster", with its interval."""
    if margin.mean == 0:
        return "as fast"
    return f"{100 * margin.mean:.1f} % faster{_between(Interval(*(100 * value for value in margin)), '{:.1f}')}"


def _slower(margin: Interval) -> str:
    """Return how much slower the rival is than the recommendation: 1 - 1 / (1 + margin)."""
    return f"{100 * (1 - 1 / (1 + margin.mean)):.1f} % slower on these requests, which is within luck"


def _interval(key: str, interval: Interval) -> dict[str, float | None]:
    known = (None if math.isnan(value) else value for value in interval)
    return dict(zip((key, f"{key}_low", f"{key}_high"), known, strict=True))


def _rated(rated: Rated) -> dict[str, Any]:
    return {
        "policy": rated.candidate.policy,
        "gamma": rated.candidate.gamma,
        "devices": rated.candidate.devices,
        **_interval("tokens_per_s", rated.tokens_per_s),
        **_interval("speedup", rated.speedup),
        "fastest_share": None if math.isnan(rated.fastest_share) else rated.fastest_share,
        "unknown_rounds": rated.unknown_rounds,
    }


def _rival(rival: Rival | None) -> dict[str, Any] | None:
    return rival and {**_rated(rival.rated), **_interval("margin", rival.margin)}
