"""A published benchmark predicted: PEARL's tokens per round and throughput, in 96 rows that others measured on H200.

Of each row is given what a user knows beforehand: the acceptance (MAT, the mean number of tokens between
corrections), the batch size, and how long plain decoding (AR) takes for the same target, prompts and batch.

    alpha            = 1 - 1 / MAT
    tokens per round = tokens between corrections / rounds between corrections      (theory.py)
    positions        = mean number of positions that the target scores per round and sequence    (theory.py)
    forward(n)       = hypot(t_target, n * t_position / efficiency)
    PEARL's run      = AR's run - 199 forward(batch) + 100 (1 + overhead) forward(batch * positions)

forward(n) is a roofline with a soft knee: a target forward over n positions takes t_target while it is bound by
reading the weights, and n positions' arithmetic once it is bound by that.  t_target is AR's time per token at batch 1;
t_position is 2 FLOP a parameter at the GPUs' peak.  What both runs pay once, prefill first of all, cancels.

Fitted: one integer gamma a pair, which the benchmark does not tell, and two numbers for all rows: `efficiency`, the
share of peak arithmetic reached, and `overhead`, by how much a round outlasts its target forward (the hand-over,
and waiting for the draft).  The exponent 2 of the knee was chosen with all rows in sight (docs/validation.md);
everything fitted is fitted anew for every group of rows left out, by `predict`.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pearl_sim import theory
from pearl_sim.errors import InputError
from pearl_sim.policies import pearl

ROWS = Path(__file__).parents[1] / "traces" / "published" / "nano_pearl_h200.csv"
"""The published rows; their columns and source are described beside them."""

PARAMETERS = {"Qwen2.5-72B-Instruct": 72.7e9, "Qwen3-32B": 32.8e9, "Meta-Llama-3.1-70B-Instruct": 70.6e9}
"""The targets' parameters (their model cards)."""

PEAK_FLOP_PER_S = {"H200": 989e12}
"""Dense bf16 arithmetic of one GPU (NVIDIA's data sheet)."""

SPLITS = {"nothing": None, "dataset": "dataset", "batch size": "batch_size", "pair": "draft", "target": "target"}
"""What a fit leaves out one value of, and its column."""

GAMMAS = range(1, 33)
LEAST_EFFICIENCY = 0.05

Floats: TypeAlias = NDArray[np.float64]
Gammas: TypeAlias = Mapping[str, int]


class Cost(NamedTuple):
    """The two fitted numbers."""

    efficiency: float
    overhead: float


class Work(NamedTuple):
    """What the cost model needs to know, an entry a row: see `read`; positions are a round's, of one sequence."""

    ar_run_s: Floats
    ar_forwards: Floats
    batch: Floats
    rounds: Floats
    t_target_s: Floats
    t_position_s: Floats
    positions: Floats


def read(file: Path = ROWS) -> pl.DataFrame:
    """Return the published rows, with what follows from them alone.

    ar_run_s, pearl_run_s:  seconds of one batch.  AR does not use the draft, so the runs of one target, dataset
                            and batch size with different drafts measure the same thing: their mean.
    ar_forwards:            forwards after prefill in AR's run
    t_target_s:             AR's seconds a token at batch 1, the median over datasets and drafts
    t_position_s:           arithmetic of one position at the peak of the target's GPUs
    tokens_per_round:       measured, prefill's token left out
    """
    if not file.is_file():
        raise InputError(file, "no such file; it is part of a clone of the repository: pip install -e . there")
    batches = pl.col("sequences") / pl.col("batch_size")
    ar_token_s = (pl.col("ar_seconds") / pl.col("ar_tokens")).filter(pl.col("batch_size") == 1)
    flop_per_s = pl.col("target_tp") * pl.col("gpu").replace_strict(PEAK_FLOP_PER_S)
    return pl.read_csv(file).with_columns(
        ar_run_s=(pl.col("ar_seconds") / batches).mean().over("target", "dataset", "batch_size"),
        pearl_run_s=pl.col("pearl_seconds") / batches,
        ar_forwards=pl.col("ar_tokens") / pl.col("sequences") - 1,
        t_target_s=ar_token_s.median().over("target"),
        t_position_s=2 * pl.col("target").replace_strict(PARAMETERS) / flop_per_s,
        tokens_per_round=(pl.col("pearl_tokens") / pl.col("sequences") - 1) / pl.col("pearl_steps_per_sequence"),
    )


def fit_gammas(rows: pl.DataFrame) -> dict[str, int]:
    """Return the gamma of each draft's pair that tells its measured tokens per round best, by mean absolute log."""
    return {
        str(draft): min(GAMMAS, key=partial(_gamma_error, pair))
        for (draft,), pair in rows.group_by("draft", maintain_order=True)
    }


def fit_cost(work: Work, measured_s: Floats) -> Cost:
    """Return the cost that tells the measured seconds of PEARL's runs best, by least squares of relative errors.

    For a given efficiency the best overhead is linear; efficiency is searched from 1 down to LEAST_EFFICIENCY.
    """
    low, high = 1.0, 1 / LEAST_EFFICIENCY
    for _ in range(10):
        tried = np.linspace(low, high, 21)
        costs = [_with_best_overhead(work, measured_s, 1 / slowness) for slowness in tried]
        best = int(np.argmin([np.square(run_s(work, cost) / measured_s - 1).sum() for cost in costs]))
        low, high = tried[max(best - 1, 0)], tried[min(best + 1, len(tried) - 1)]
    return costs[best]


def predict(rows: pl.DataFrame, split: str | None) -> pl.DataFrame:
    """Return `rows` with predictions by fits that leave out all rows of the same value of column `split`.

    With `split` None nothing is left out, and the predictions are the fit itself.  Of the rows left out, AR's times
    stay known.  A pair that is left out as a whole keeps the gamma found from its tokens, since no other pair
    tells it; its times stay unseen.

    Added: gamma, efficiency, overhead; predicted_tokens_per_round and predicted_run_s; tokens_per_s and
    predicted_tokens_per_s; and tokens_error, time_error and throughput_error, each predicted / measured - 1.
    """
    folds, of_all = [], fit_gammas(rows)
    for value in [None] if split is None else rows[split].unique(maintain_order=True):
        seen = rows if split is None else rows.filter(pl.col(split) != value)
        unseen = rows if split is None else rows.filter(pl.col(split) == value)
        gammas = of_all | fit_gammas(seen)
        cost = fit_cost(work_of(seen, gammas), _column(seen, "pearl_run_s"))
        tokens = tokens_per_round(unseen, gammas)
        seconds = run_s(work_of(unseen, gammas), cost)
        written = _column(unseen, "batch_size") * (1 + tokens * _column(unseen, "pearl_steps_per_sequence"))
        folds.append(
            unseen.with_columns(
                gamma=pl.col("draft").replace_strict(gammas, return_dtype=pl.Int64),
                efficiency=pl.lit(cost.efficiency),
                overhead=pl.lit(cost.overhead),
                predicted_tokens_per_round=pl.Series(tokens),
                predicted_run_s=pl.Series(seconds),
                tokens_per_s=pl.col("pearl_tokens") / pl.col("pearl_seconds"),
                predicted_tokens_per_s=pl.Series(written / seconds),
            )
        )
    return pl.concat(folds).with_columns(
        tokens_error=pl.col("predicted_tokens_per_round") / pl.col("tokens_per_round") - 1,
        time_error=pl.col("predicted_run_s") / pl.col("pearl_run_s") - 1,
        throughput_error=pl.col("predicted_tokens_per_s") / pl.col("tokens_per_s") - 1,
    )


def tokens_per_round(rows: pl.DataFrame, gammas: Gammas) -> Floats:
    """Return PEARL's tokens per round as MAT tells them."""
    return _of_acceptance(theory.pearl_tokens_per_round, rows, gammas)


def work_of(rows: pl.DataFrame, gammas: Gammas) -> Work:
    """Return what the cost model needs to know of every row."""
    return Work(
        ar_run_s=_column(rows, "ar_run_s"),
        ar_forwards=_column(rows, "ar_forwards"),
        batch=_column(rows, "batch_size"),
        rounds=_column(rows, "pearl_steps_per_sequence"),
        t_target_s=_column(rows, "t_target_s"),
        t_position_s=_column(rows, "t_position_s"),
        positions=_of_acceptance(_positions, rows, gammas),
    )


def run_s(work: Work, cost: Cost) -> Floats:
    """Return the seconds that PEARL takes for one batch, prefill included."""
    alone = work.ar_forwards * _forward_s(work, cost, work.batch)
    rounds = work.rounds * (1 + cost.overhead) * _forward_s(work, cost, work.batch * work.positions)
    return work.ar_run_s - alone + rounds


def _forward_s(work: Work, cost: Cost, scored: Floats) -> Floats:
    arithmetic: Floats = scored * work.t_position_s / cost.efficiency
    return np.hypot(work.t_target_s, arithmetic)


def _with_best_overhead(work: Work, measured_s: Floats, efficiency: float) -> Cost:
    none, double = (run_s(work, Cost(efficiency, overhead)) / measured_s for overhead in (0.0, 1.0))
    slope = double - none
    return Cost(efficiency, max(0.0, float(slope @ (1 - none) / (slope @ slope))))


@lru_cache(maxsize=4096)
def _positions(alpha: float, gamma: int) -> float:
    """Return the mean number of positions that the target scores for a sequence in one of PEARL's rounds."""
    policy, survival = pearl(gamma), theory.iid(alpha)
    return theory.time_per_cycle(policy, survival, lambda work: work.score) / theory.rounds_per_cycle(policy, survival)


def _gamma_error(pair: pl.DataFrame, gamma: int) -> float:
    predicted = tokens_per_round(pair, {pair["draft"][0]: gamma})
    return float(np.abs(np.log(predicted / _column(pair, "tokens_per_round"))).mean())


def _of_acceptance(value: Callable[[float, int], float], rows: pl.DataFrame, gammas: Gammas) -> Floats:
    """Return value(alpha, gamma) of every row."""
    return np.array([value(1 - 1 / mat, gammas[draft]) for draft, mat in rows.select("draft", "pearl_mat").iter_rows()])


def _column(rows: pl.DataFrame, name: str) -> Floats:
    return rows[name].to_numpy().astype(np.float64)
