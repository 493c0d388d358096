"""Published hardware measurements are predicted by fits that have not seen them, and the check can fail."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from pearl_sim import published, published_figure, published_table
from pearl_sim.errors import InputError

ROOT = Path(__file__).parents[1]
COMMAND = [sys.executable, "-c", "from pearl_sim.cli import main; main()"]
GAMMAS = {
    "Qwen2.5-1.5B-Instruct": 9,
    "Qwen2.5-3B-Instruct": 6,
    "Qwen3-0.6B": 6,
    "Qwen3-1.7B": 5,
    "Llama-3.2-1B-Instruct": 11,
    "Llama-3.2-3B-Instruct": 7,
}


@pytest.fixture(scope="module")
def answer():
    return published_table.compute()


@pytest.fixture(scope="module")
def rows():
    return published.read()


def errors(found, column="throughput_error"):
    off = np.abs(found[column].to_numpy())
    return np.median(off), np.quantile(off, 0.9), off.max()


def made(rows, gammas, cost, noise=0.0):
    """Return the rows as they would be if the model were the truth, their times off by noise."""
    tokens = published.tokens_per_round(rows, gammas)
    seconds = published.run_s(published.work_of(rows, gammas), cost)
    seconds *= np.exp(noise * np.random.default_rng(7).standard_normal(len(rows)))
    return rows.with_columns(
        pearl_run_s=pl.Series(seconds),
        pearl_seconds=pl.Series(seconds) * pl.col("sequences") / pl.col("batch_size"),
        tokens_per_round=pl.Series(tokens),
        pearl_tokens=(1 + pl.Series(tokens) * pl.col("pearl_steps_per_sequence")) * pl.col("sequences"),
    )


def test_the_figures_carried_are_the_published_ones(shared_data):
    source = shared_data / "nano_pearl_h200.csv"
    if not source.exists():
        pytest.skip(f"{source.name} is not on this machine")
    assert published.ROWS.read_text() == source.read_text()


def test_tokens_per_round_follow_from_mat_and_one_gamma_a_pair(answer):
    assert answer["rows"] == 96
    assert answer["gamma"] == GAMMAS
    fitted = answer["tokens_per_round"]["nothing"]["all"]
    assert fitted["median"] <= 0.025
    assert fitted["worst"] <= 0.10
    for split in ("dataset", "batch size"):
        assert answer["tokens_per_round"][split]["all"]["median"] <= 0.025
        assert answer["tokens_per_round"][split]["all"]["worst"] <= 0.12


@pytest.mark.parametrize("split", ["dataset", "batch size", "pair", "target"])
def test_throughput_of_rows_left_out_is_predicted(answer, split):
    reached = answer["throughput"][split]["all"]
    assert reached["median"] <= 0.025
    assert reached["p90"] <= 0.08


def test_without_the_cost_model_the_errors_are_many_times_larger(answer):
    assert answer["throughput_without_cost_model"]["median"] > 5 * answer["throughput"]["dataset"]["all"]["median"]


def test_no_prediction_depends_on_the_measurement_it_predicts(rows):
    for split in ("dataset", "batch_size"):
        honest = published.predict(rows, split)
        for value in rows[split].unique():
            hidden = pl.col(split) == value
            told = rows.with_columns(
                [pl.when(hidden).then(3 * pl.col(key)).otherwise(pl.col(key)).alias(key) for key in MEASURED]
            )
            seen, lied_to = (of.filter(hidden) for of in (honest, published.predict(told, split)))
            for key in ("predicted_tokens_per_s", "predicted_tokens_per_round", "predicted_run_s"):
                assert seen[key].to_list() == lied_to[key].to_list()


MEASURED = ("pearl_seconds", "pearl_run_s", "pearl_tokens", "tokens_per_round")


@pytest.mark.parametrize("split", ["draft", "target"])
def test_a_pair_left_out_is_timed_unseen(rows, split):
    honest = published.predict(rows, split)
    value = rows[split][0]
    hidden = pl.col(split) == value
    told = rows.with_columns(
        [pl.when(hidden).then(3 * pl.col(key)).otherwise(pl.col(key)).alias(key) for key in MEASURED[:2]]
    )
    seen, lied_to = (of.filter(hidden) for of in (honest, published.predict(told, split)))
    assert seen["predicted_run_s"].to_list() == lied_to["predicted_run_s"].to_list()


@pytest.mark.parametrize("truth", [published.Cost(0.6, 0.1), published.Cost(0.3, 0.0), published.Cost(0.95, 0.5)])
def test_the_fit_finds_what_made_synthetic_rows(rows, truth):
    gammas = {draft: gamma + 1 for draft, gamma in GAMMAS.items()}
    synthetic = made(rows, gammas, truth)
    assert published.fit_gammas(synthetic) == gammas
    found = published.fit_cost(published.work_of(synthetic, gammas), synthetic["pearl_run_s"].to_numpy())
    assert found == pytest.approx(truth, abs=1e-6)
    assert max(*errors(published.predict(synthetic, "batch_size"))) < 1e-6


def test_noise_moves_the_fit_by_no_more_than_noise_can(rows):
    truth = published.Cost(0.5, 0.05)
    noisy = made(rows, GAMMAS, truth, noise=0.02)
    found = published.fit_cost(published.work_of(noisy, GAMMAS), noisy["pearl_run_s"].to_numpy())
    assert found.efficiency == pytest.approx(truth.efficiency, rel=0.05)
    assert found.overhead == pytest.approx(truth.overhead, abs=0.01)
    assert 0.005 < errors(published.predict(noisy, "dataset"))[0] < 0.03


def test_the_check_fails_on_shuffled_acceptance_and_on_shuffled_times(rows):
    order = np.random.default_rng(3).permutation(len(rows))
    for key in ("pearl_mat", "pearl_run_s"):
        shuffled = rows.with_columns(rows[key][order])
        if key == "pearl_run_s":
            shuffled = shuffled.with_columns(pearl_seconds=pl.col(key) * pl.col("sequences") / pl.col("batch_size"))
        for split in ("dataset", "batch_size"):
            median, p90, _ = errors(published.predict(shuffled, split))
            assert median > 0.10
            assert p90 > 0.30


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.9, 0.99])
@pytest.mark.parametrize("gamma", [1, 2, 5, 11])
def test_positions_scored_in_a_round_are_one_before_and_gamma_after_the_first_accepted_draft(alpha, gamma):
    # For one pre-verify round there are alpha / (1 - alpha^gamma) post-verify rounds; at gamma 1, none.
    post = alpha / (1 - alpha**gamma) if gamma > 1 else 0.0
    assert published._positions(alpha, gamma) == pytest.approx((1 + gamma * post) / (1 + post), rel=1e-9)


def test_a_run_is_ars_run_with_its_forwards_exchanged(rows):
    """The first row, Qwen2.5 1.5B with 72B, batch 1, AIME, by hand."""
    cost = published.Cost(0.5, 0.1)
    first = rows[:1]
    alone = [275.56 / 12000, 593.11 / 25600, 592.11 / 25600, 586.79 / 25600]
    alone += [274.88 / 12000, 594.21 / 25600, 591.39 / 25600, 583.77 / 25600]
    t_target, t_position = np.median(alone), 2 * 72.7e9 / (2 * 989e12) / 0.5
    alpha = 1 - 1 / 15.084588155623884
    post = alpha / (1 - alpha**9)
    scored = (1 + 9 * post) / (1 + post)
    prefill = (275.56 + 274.88) / 2 / 60 - 199 * np.sqrt(t_target**2 + t_position**2)
    by_hand = prefill + 100 * 1.1 * np.sqrt(t_target**2 + (scored * t_position) ** 2)
    assert published.run_s(published.work_of(first, GAMMAS), cost) == pytest.approx([by_hand], rel=1e-9)
    assert rows["tokens_per_round"][0] == pytest.approx((28653 / 60 - 1) / 100)


def test_acceptance_that_is_nil_or_the_same_everywhere_is_no_obstacle(rows):
    for mat in (1.0, 8.0):
        found = published.predict(rows.with_columns(pearl_mat=pl.lit(mat)), "dataset")
        assert found["throughput_error"].is_finite().all()


def test_rows_that_are_not_there_are_told_in_one_line(tmp_path):
    with pytest.raises(InputError, match=r"gone\.csv: no such file"):
        published.read(tmp_path / "gone.csv")


def test_the_document_shows_what_the_command_prints(answer):
    done = subprocess.run([*COMMAND, "validate", "published"], capture_output=True, text=True, check=True, cwd=ROOT)
    document = (ROOT / "docs" / "validation.md").read_text().splitlines()
    shown = {line.strip() for line in document}
    printed = [line.strip() for line in done.stdout.splitlines() if line.strip()]
    assert len(printed) > 30
    assert [line for line in printed if line not in shown] == []


def test_json_holds_every_prediction():
    done = subprocess.run(
        [*COMMAND, "validate", "published", "--json"], capture_output=True, text=True, check=True, cwd=ROOT
    )
    told = json.loads(done.stdout)
    assert {name: len(found) for name, found in told["predictions"].items()} == dict.fromkeys(published.SPLITS, 96)
    row = told["predictions"]["dataset"][0]
    assert row["throughput_error"] == pytest.approx(row["predicted_tokens_per_s"] / row["tokens_per_s"] - 1)


def test_what_cannot_be_validated_is_refused():
    done = subprocess.run([*COMMAND, "validate", "stars"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "pearl-sim: what = 'stars': must be published\n")


def test_the_picture_is_a_png_or_refused(answer, tmp_path):
    published_figure.save(answer, tmp_path / "errors.png")
    assert (tmp_path / "errors.png").read_bytes().startswith(b"\x89PNG")
    done = subprocess.run(
        [*COMMAND, "validate", "published", "--figure", "errors.svg"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (2, "pearl-sim: --figure errors.svg: must be a .png file\n")
