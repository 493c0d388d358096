"""The trace and the sweep that the benchmarks share: 300 requests of 334 tokens, each with its own acceptance."""

from pathlib import Path

import numpy as np
import polars as pl

from pearl_sim.acceptance import Beta
from pearl_sim.scenario import Scenario, read
from pearl_sim.trace import REQUESTS, STEPS, TOKENS, Provenance, Trace, save

REQUESTS_MADE, TOKENS_EACH = 300, 334

PRICES = """
cost.model = "constant"
policy.names = ["pearl"]
[sweep]
policy.gamma = {{ start = 1, stop = {gammas}, num = {gammas} }}
cost.draft = {{ start = "0.2 ms", stop = "4 ms", num = {drafts}, scale = "log" }}
cost.target = {{ start = "4 ms", stop = "80 ms", num = {targets}, scale = "log" }}
"""
"""(gamma, t_draft, t_target), so many of each."""

SLOPES = """
cost.draft.per_context_token = "3 ns"
cost.target.per_context_token = "40 ns"
cost.target.per_token = "20 us"
"""
GROWING = SLOPES + PRICES.replace("constant", "affine").replace("cost.draft", "cost.draft.base").replace(
    "cost.target", "cost.target.base"
)
"""The same, where times grow with context."""


def make_trace(path: Path) -> None:
    """Save the trace, drawn from Beta(4, 1), at `path`."""
    names = [f"r{number}" for number in range(REQUESTS_MADE)]
    law = Beta(a=4, b=1)
    nothing = [None] * (REQUESTS_MADE * TOKENS_EACH)
    requests = {
        "request": names,
        "category": nothing[:REQUESTS_MADE],
        "prompt_tokens": [50] * REQUESTS_MADE,
        "output_tokens": [TOKENS_EACH] * REQUESTS_MADE,
        "finish": nothing[:REQUESTS_MADE],
    }
    tokens = {
        "request": np.repeat(names, TOKENS_EACH),
        "position": np.tile(np.arange(TOKENS_EACH), REQUESTS_MADE),
        "token": nothing,
        "run": np.concatenate([law.runs(0, number, TOKENS_EACH) for number in range(REQUESTS_MADE)]),
        "draft_token": nothing,
        "margin": nothing,
        "alpha": nothing,
    }
    provenance = Provenance(source="drawn from Beta(4, 1)", created="for a benchmark", command="tests/bench")
    save(
        Trace(
            path,
            provenance,
            pl.DataFrame(requests, REQUESTS),
            pl.DataFrame(tokens, TOKENS),
            pl.DataFrame(schema=STEPS),
        )
    )


def read_scenario(directory: Path, text: str) -> Scenario:
    """Return the scenario that replays directory/trace at these costs and policies."""
    file = directory / "sweep.toml"
    file.write_text('acceptance = { law = "recorded", trace = "trace" }\n' + text)
    return read(file)
