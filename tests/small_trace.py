"""A small trace for tests, and variations of it."""

import polars as pl

from pearl_sim.trace import REQUESTS, STEPS, TOKENS, Provenance, Trace


def requests_table():
    return pl.DataFrame(
        {
            "request": ["first", "second"],
            "category": ["code", None],
            "prompt_tokens": [7, 0],
            "output_tokens": [4, 2],
            "finish": ["length", None],
        },
        schema=REQUESTS,
    )


def tokens_table():
    return pl.DataFrame(
        {
            "request": ["first"] * 4 + ["second"] * 2,
            "position": [0, 1, 2, 3, 0, 1],
            "token": [5, 6, 7, 8, 9, None],
            "run": [2, 1, 0, 9, 0, 3],
            "draft_token": [5, 6, 1, 8, 2, None],
            "margin": [0.5, 0.25, None, 1.0, 2.0, 0.0],
            "alpha": [None, 0.5, 1.0, 0.0, 0.25, None],
        },
        schema=TOKENS,
    )


def steps_table(rows=(("draft", 1, 10, 30), ("target", 4, 10, 200))):
    """Return steps as (role, tokens, context, ns)."""
    return pl.DataFrame(
        [
            ("profile", "first", number, role, 1000 * number, 1000 * number + ns, tokens, context, 1, True)
            for number, (role, tokens, context, ns) in enumerate(rows)
        ],
        schema=STEPS,
        orient="row",
    )


def small_trace(path, **parts):
    """Return a trace at `path` that is right, but for the parts given."""
    made = {
        "provenance": Provenance(source="test", created="2026-01-01", command="none", run_limit=9, notes=("a note",)),
        "requests": requests_table(),
        "tokens": tokens_table(),
        "steps": steps_table(),
    }
    return Trace(path, **(made | parts))
