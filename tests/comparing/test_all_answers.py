"""Two runs that asked questions again, compared over all answers; what compare and a gate say of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_process import call_here
from noise_house import BASE, CANDIDATE, METRIC, NoiseHouse

from evalhouse.tasks.comparing.runs import AllAnswers, ComparisonSettings, compare_all_answers
from evalhouse.warehouse.rows.run_pairs import RunPair

N, N_AGAIN, ROUNDS = 60, 40, 3
DROP = 0.1


def fill_house(folder: Path, *, sides: Sequence[str] = (BASE, CANDIDATE)) -> tuple[NoiseHouse, dict[str, np.ndarray]]:
    """Runs of 60 questions, of which the first 40 were asked three times more; scores are 0 or 1."""
    house, generator = NoiseHouse(folder, n=N), np.random.default_rng(7)
    chances = generator.beta(2, 1, N)
    scores = {}
    for run_id, drop in ((BASE, 0.0), (CANDIDATE, DROP)):
        values = generator.random((1 + ROUNDS, N)) < np.clip(chances - drop, 0, 1)
        scores[run_id] = values.astype(float)
        house.judge(run_id, scores[run_id][0].tolist())
        for number in range(1, 1 + ROUNDS if run_id in sides else 1):
            house.add_run(f"{run_id}-{number}", minute=90, kind="repeats", parent_run_id=run_id)
            house.judge(f"{run_id}-{number}", scores[run_id][number, :N_AGAIN].tolist())
    return house, scores


def compare(house: NoiseHouse) -> list[AllAnswers]:
    pair = RunPair(house.warehouse, house.runs[BASE], house.runs[CANDIDATE])
    return compare_all_answers(pair, ComparisonSettings(resamples=500))


def test_the_difference_is_that_of_the_questions_means(tmp_path: Path) -> None:
    house, scores = fill_house(tmp_path)
    (found,) = compare(house)
    means = {}
    for run_id, values in scores.items():
        means[run_id] = np.where(np.arange(N) < N_AGAIN, values.mean(axis=0), values[0])
    assert found.difference == pytest.approx((means[CANDIDATE] - means[BASE]).mean())
    assert (found.base, found.candidate) == pytest.approx((means[BASE].mean(), means[CANDIDATE].mean()))
    assert (found.metric, found.n, found.n_repeated) == (METRIC, N, N_AGAIN)
    first = house.compare().paired
    assert first.difference == pytest.approx((scores[CANDIDATE][0] - scores[BASE][0]).mean()), "by the first answers"
    assert found.ci_low is not None
    assert found.ci_high is not None
    assert first.ci_low is not None
    assert first.ci_high is not None
    assert found.ci_low < found.difference < found.ci_high
    assert found.ci_high - found.ci_low < 0.8 * (first.ci_high - first.ci_low)


@pytest.mark.parametrize("sides", [(), (BASE,), (CANDIDATE,)])
def test_without_repeats_on_both_sides_there_is_nothing_to_say(tmp_path: Path, sides: Sequence[str]) -> None:
    assert compare(fill_house(tmp_path, sides=sides)[0]) == []


def call(house: NoiseHouse, capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:  # noqa: ANN401  # a Finished
    return call_here(capsys, *arguments, "--warehouse", str(house.warehouse.location.path))


def test_compare_and_gate_explain_by_what_the_scores_vary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    house, _ = fill_house(tmp_path)
    house.measure("noise", [1.0, -1.0, *[0.0] * 18])
    document = call(house, capsys, "compare", BASE, CANDIDATE, "--json").document
    assert document["components_of"] == CANDIDATE
    (components,) = document["components"]
    assert (components["metric"], components["n_repeated"], components["n_judged_twice"]) == (METRIC, N_AGAIN, 20)
    assert components["judge_variance"] == pytest.approx(2 / 2 / 20)
    assert document["all_answers"][0]["n"] == N
    printed = call(house, capsys, "compare", BASE, CANDIDATE, "--top", "0").stdout
    assert "What the scores vary by: variances, and the drop of a mean that shows with 80% power" in printed
    assert "Over all answers, the repeated ones too, where the table above has the first ones" in printed

    gate = ("gate", CANDIDATE, "--against", BASE, "--max-drop", f"{METRIC}=0.02")
    (row,) = call(house, capsys, *gate, "--json").document["components"]
    assert row["plan"]["drop"] == 0.02
    assert row["plan"]["next"] in ("questions", "votes")
    finished = call(house, capsys, *gate, "--markdown", "-")
    assert f"to see a drop of 0.02 in {METRIC} with 80% power: " in finished.stdout
    explained = call(house, capsys, *gate).stdout
    assert f"{METRIC} varies by questions " in explained
    assert f"of the variance ({N_AGAIN} questions asked again)" in explained
    assert row["plan"]["text"] in explained


def test_repeats_decide_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "with").mkdir()
    (tmp_path / "without").mkdir()
    checks = []
    for folder, sides in (("with", (BASE, CANDIDATE)), ("without", ())):
        house, _ = fill_house(tmp_path / folder, sides=sides)
        document = call(house, capsys, "gate", CANDIDATE, "--against", BASE, "--max-drop", f"{METRIC}=0.02", "--json")
        checks.append({name: document.document[name] for name in ("outcome", "counts", "checks", "warnings")})
    assert checks[0] == checks[1]
