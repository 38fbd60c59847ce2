"""Noise floors of stored runs: the samples that count as judged again, and the noise runs that count."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from cli_process import Finished, call_here
from noise_house import BASE, CANDIDATE, METRIC, NoiseHouse
from scipy import stats

from evalhouse.tasks.comparing.noise import POOLED_RUNS
from evalhouse.tasks.comparing.runs import ComparisonSettings, compare_all_answers
from evalhouse.warehouse.rows.run_pairs import RunPair
from evalhouse.warehouse.rows.samples import score_run

HALF = [0.5] * 40
AGAIN = [0.25, -0.25, 0.5, -0.5, 0.25, 0.5, *[0.0] * 14]

Make = Callable[..., NoiseHouse]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def build(**columns: Any) -> NoiseHouse:  # noqa: ANN401  # columns of the candidate
        house = NoiseHouse(tmp_path, **columns)
        house.judge(BASE, HALF)
        return house

    return build


def find(differences: list[float], *, n: int, m: int) -> float:
    """The floor by another computation, for pairs of which at least two differ."""
    changed = [one for one in differences if one]
    t = stats.t.ppf(0.975, len(changed) - 1)
    half_step = np.sqrt(np.mean(np.square(changed))) / 2
    return float((t * np.sqrt(np.mean(np.square(differences)) * m) + half_step) / n)


def test_the_floor_counts_the_samples_that_do_not_rest_on_the_same_replies(make: Make) -> None:
    house = make()
    house.judge(CANDIDATE, [0.5] * 30 + [0.75] * 10, reused=25)
    house.measure("noise-1", AGAIN)
    found = house.compare()
    assert found.noise is not None
    assert found.noise.measured is not None
    assert (found.noise.n_judged_again, found.noise.measured.n_pairs, found.noise.measured.n_changed) == (15, 20, 6)
    assert found.noise_floor == pytest.approx(find(AGAIN, n=40, m=15))
    assert house.compare_all().noise_run_ids == ("noise-1",)


@pytest.mark.parametrize("judged", [{"judge": "lexical"}, {"step": "attribute"}])
def test_neither_the_lexical_judge_nor_other_steps_bring_noise(tmp_path: Path, judged: dict[str, Any]) -> None:
    house = NoiseHouse(tmp_path)
    house.judge(BASE, HALF, **judged)
    house.judge(CANDIDATE, HALF, **judged)
    assert house.compare().noise_floor == 0.0


def test_a_metric_whose_steps_are_not_known_counts_every_step(make: Make) -> None:
    house = make()
    house.judge(CANDIDATE, HALF, step="attribute")
    for run_id in (BASE, CANDIDATE):
        house.score(run_id, HALF, metric="ones_own")
    found = house.compare("ones_own")
    assert found.noise is not None
    assert found.noise.n_judged_again == 40


OTHERS: list[dict[str, Any]] = [
    {"judge": "openai:other"},
    {"language": "zh"},
    {"config": {"temperature": 0.7, "votes": 1}},
    {"config": {"temperature": 0.0, "votes": 3}},
    {"call": {"prompt_hash": "p2"}},
    {"call": {"model": "judge-2025"}},
    {"parent": "elsewhere"},
]


def test_noise_that_was_measured_otherwise_does_not_count(make: Make) -> None:
    house = make()
    house.judge(CANDIDATE, HALF)
    house.add_run("elsewhere", minute=30, dataset="other.jsonl")
    house.judge("elsewhere", HALF)
    for number, other in enumerate(OTHERS):
        house.measure(f"noise-{number}", AGAIN, **other)
    assert house.compare().noise_floor is None
    assert house.compare_all().noise_run_ids == ()
    house.measure("noise-alike", AGAIN)
    assert house.compare().noise_floor == pytest.approx(find(AGAIN, n=40, m=40))


def test_what_does_not_reach_the_metric_does_not_matter(make: Make) -> None:
    house = make()
    house.judge(CANDIDATE, HALF)
    house.measure("noise-1", AGAIN, call={"model": "judge-2026", "status": "cached"})
    house.measure("noise-2", AGAIN, config={"temperature": 0.0, "logprobs": True})
    assert set(house.compare_all().noise_run_ids) == {"noise-1", "noise-2"}


def test_scores_by_another_formula_do_not_make_pairs(make: Make) -> None:
    house = make()
    house.judge(CANDIDATE, HALF)
    house.measure("noise-1", AGAIN)
    with house.warehouse.writing() as connection:
        connection.execute("update scores set metric_version = '2' where run_id <> 'noise-1'")
    assert house.compare().noise_floor is None, "the candidate has a different formula"
    house.note(CANDIDATE)
    assert house.warehouse.read_rows("select n_samples, mean_difference, sd_difference from noise") == [
        {"n_samples": 0, "mean_difference": None, "sd_difference": None}
    ]


def test_runs_by_two_yardsticks_have_no_floor(make: Make) -> None:
    house = make(config={"temperature": 0.7, "votes": 1})
    house.judge(CANDIDATE, [0.9] * 40)
    house.measure("noise-1", AGAIN, config={"temperature": 0.7, "votes": 1})
    comparison = house.compare_all()
    assert comparison.metrics[0].noise_floor is None
    assert comparison.warnings == ("the runs differ in temperature: 0.0 and 0.7",)


def test_the_nearest_noise_runs_count_and_those_before_the_run_come_first(make: Make) -> None:
    house = make()
    house.judge(CANDIDATE, HALF)
    for number in range(POOLED_RUNS + 2):
        house.add_run(f"night-{number:02d}", minute=50 - number)
        house.judge(f"night-{number:02d}", HALF)
        house.measure(f"noise-{number:02d}", AGAIN, parent=f"night-{number:02d}")
    house.add_run("later", minute=61)
    house.judge("later", HALF)
    house.measure("noise-later", AGAIN, parent="later", minute=62)
    assert list(house.warehouse.fetch("noise/noise_runs", run_id=CANDIDATE)["noise_run_id"]) == [
        *(f"noise-{number:02d}" for number in range(POOLED_RUNS + 2)), "noise-later",
    ]  # fmt: skip
    found = house.compare().noise
    assert found is not None
    assert found.measured is not None
    assert (found.measured.n_runs, found.measured.n_pairs) == (POOLED_RUNS, POOLED_RUNS * len(AGAIN))
    assert house.compare_all().noise_run_ids == tuple(f"noise-{number:02d}" for number in range(POOLED_RUNS))
    assert house.warehouse.fetch("noise/noise_runs", run_id=BASE)["noise_run_id"][0] == "noise-11", (
        "of a first run all were measured later"
    )


def test_the_table_follows_when_either_run_is_scored_again(make: Make) -> None:
    house = make()
    house.judge(CANDIDATE, HALF)
    house.measure("noise-1", AGAIN)
    (row,) = house.warehouse.read_rows("select * from noise")
    assert row == {
        "run_id": CANDIDATE, "noise_run_id": "noise-1", "metric": METRIC, "n_samples": 20, "n_changed": 6,
        "mean_difference": pytest.approx(np.mean(AGAIN)), "sd_difference": pytest.approx(np.std(AGAIN, ddof=1)),
    }  # fmt: skip
    with house.warehouse.writing() as connection:
        connection.execute("update scores set value = 0.25 where run_id = 'candidate' and sample_id = 's019'")
    score_run(house.warehouse, CANDIDATE, (), {})
    (row,) = house.warehouse.read_rows("select n_changed from noise")
    assert row["n_changed"] == 7
    score_run(house.warehouse, BASE, (), {})
    assert house.warehouse.read("select count(*) as n from noise")["n"][0] == 1


def make_verdicts(
    run_id: str, text: str, label: str, *, supported: bool, useful: bool, rating: float
) -> dict[str, Any]:
    keys = {"run_id": run_id, "sample_id": "s000"}
    stated = {**keys, "statement_id": "A1"}
    return {
        "statements": {**stated, "source": "answer", "ordinal": 1, "text": text},
        "classifications": {**stated, "label": label},
        "attributions": {**stated, "supported": supported, "context_ranks": [1] if supported else []},
        "context_verdicts": {**keys, "context_rank": 1, "useful": useful},
        "grades": {**keys, "rubric": "accuracy", "criterion": "accuracy", "rating": rating},
    }


FLIPS: list[tuple[tuple[str, str, bool, bool, float], dict[str, int]]] = [
    (("It is red.", "TP", True, True, 7.0), {}),
    (("It  is red. ", "FP", True, True, 7.0), {"classify": 1}),
    (("It is red.", "TP", False, True, 7.0), {"attribute": 1}),
    (("It is red.", "TP", True, False, 7.0), {"rank": 1}),
    (("It is red.", "TP", True, True, 5.0), {"grade_accuracy": 1}),
    # What was split otherwise has no second verdict.
    (("Red it is.", "FP", False, True, 7.0), {"extract_answer": 2}),
]
"""The judge's second verdicts, and the flips by step that they make."""


def test_flips_are_counted_by_step(make: Make) -> None:
    house = make()
    house.judge(CANDIDATE, HALF)
    for run_id, verdicts in [(CANDIDATE, FLIPS[0][0]), *((f"noise-{n}", again) for n, (again, _) in enumerate(FLIPS))]:
        if run_id != CANDIDATE:
            house.measure(run_id, [0.0])
        text, label, supported, useful, rating = verdicts
        rows = make_verdicts(run_id, text, label, supported=supported, useful=useful, rating=rating)
        for table, row in rows.items():
            house.add(table, row)
    # A sample that was judged once does not make a pair.
    house.add("context_verdicts", {"run_id": CANDIDATE, "sample_id": "s001", "context_rank": 1, "useful": True})
    for number, (_, flipped) in enumerate(FLIPS):
        rates = house.warehouse.fetch_rows("noise/flips", {"run_id": [f"noise-{number}"]})
        assert {row["step"]: row["n_flipped"] for row in rates if row["n_flipped"]} == flipped
        for row in rates:
            assert row["flip_rate"] == row["n_flipped"] / row["n_items"]  # type: ignore[operator]  # both are counts
            assert row["n_items"] == (2 if row["step"] in flipped and row["step"] == "extract_answer" else 1)


BY_HALF = [0.5, -0.5, 0.5, -0.5, 0.5, 0.5, *[0.0] * 14]
DROP = ("gate", CANDIDATE, "--against", BASE, "--max-drop", f"{METRIC}=0.01")


@pytest.fixture
def house(tmp_path: Path) -> NoiseHouse:
    """Every answer is judged again, and every score is 0.05 lower."""
    house = NoiseHouse(tmp_path)
    house.judge(BASE, [0.5] * 40)
    house.judge(CANDIDATE, [0.45] * 40)
    return house


def call(house: NoiseHouse, capsys: pytest.CaptureFixture[str], *arguments: str) -> Finished:
    return call_here(capsys, *arguments, "--warehouse", str(house.warehouse.location.path))


def test_a_drop_within_the_floor_fails_by_its_interval_and_says_so_everywhere(
    house: NoiseHouse, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    unknown = call(house, capsys, *DROP, "--json")
    (warning,) = unknown.document["warnings"]
    assert "no noise floor is known for factual_f1" in warning
    assert "--noise 0.05" in warning
    assert (unknown.status, unknown.document["checks"][0]["noise_floor"]) == (1, None)
    house.measure("noise-1", BY_HALF)
    junit = tmp_path / "gate.xml"
    finished = call(house, capsys, *DROP, "--json", "--junit", str(junit))
    (check,) = finished.document["checks"]
    floor = f"{check['noise_floor']:.3f}"
    assert (finished.status, check["outcome"], check["reason"]) == (1, "failed", "beyond_limit")
    assert check["value"] == pytest.approx(0.05)
    assert check["noise_floor"] > 0.05
    assert finished.document["warnings"] == []
    (failure,) = ElementTree.fromstring(junit.read_bytes()).iter("failure")
    assert f", noise floor {floor}" in str(failure.text)
    markdown = call(house, capsys, *DROP, "--markdown", "-").stdout
    lines = [line for line in markdown.splitlines() if line.startswith("|")]
    header, rule, row = lines[-3:] if "noise floor" in lines[-3] else lines[:3]
    assert header.split("|")[7].strip() == "noise floor"
    assert row.split("|")[7].strip() == floor
    assert len(header.split("|")) == len(rule.split("|")) == len(row.split("|"))
    assert f"the judge's noise alone may make changes of up to {floor}" in row
    assert floor in call(house, capsys, *DROP).stdout


def test_gate_compare_and_show_warn_of_a_shifted_judge(house: NoiseHouse, capsys: pytest.CaptureFixture[str]) -> None:
    """Asked again about the same texts it gives a quarter less to most of them: so the drop may be its own."""
    house.measure("noise-1", [-0.25] * 9 + [0.0] * 3)
    (warning,) = call(house, capsys, *DROP, "--json").document["warnings"]
    assert warning.startswith("the judge has shifted as a whole: asked again about the same texts it scores")
    assert "factual_f1 0.188 lower (-0." in warning
    assert "; 12 pairs)" in warning
    for command in (("compare", BASE, CANDIDATE), ("show", CANDIDATE), DROP):
        assert f"warning: {warning}" in call(house, capsys, *command).stdout.replace("\n", " "), command
    document = call(house, capsys, "compare", BASE, CANDIDATE, "--json").document
    (shift,) = document["noise"]["shifts"]
    assert (shift["metric"], shift["n_pairs"], shift["n_runs"]) == (METRIC, 12, 1)
    assert shift["difference"] == pytest.approx(-0.1875)
    assert call(house, capsys, "show", CANDIDATE, "--json").document["warnings"] == [warning]


N, N_AGAIN, ROUNDS = 60, 40, 3
MEAN_DROP = 0.1


def fill_house(folder: Path, *, sides: Sequence[str] = (BASE, CANDIDATE)) -> tuple[NoiseHouse, dict[str, np.ndarray]]:
    """Runs of 60 questions, of which the first 40 were asked three times more; scores are 0 or 1."""
    house, generator = NoiseHouse(folder, n=N), np.random.default_rng(7)
    chances = generator.beta(2, 1, N)
    scores = {}
    for run_id, drop in ((BASE, 0.0), (CANDIDATE, MEAN_DROP)):
        values = generator.random((1 + ROUNDS, N)) < np.clip(chances - drop, 0, 1)
        scores[run_id] = values.astype(float)
        house.judge(run_id, scores[run_id][0].tolist())
        for number in range(1, 1 + ROUNDS if run_id in sides else 1):
            house.add_run(f"{run_id}-{number}", minute=90, kind="repeats", parent_run_id=run_id)
            house.judge(f"{run_id}-{number}", scores[run_id][number, :N_AGAIN].tolist())
    return house, scores


def compare(house: NoiseHouse) -> list[dict[str, Any]]:
    pair = RunPair(house.warehouse, house.runs[BASE], house.runs[CANDIDATE])
    return compare_all_answers(pair, ComparisonSettings(resamples=500))


def test_the_difference_is_that_of_the_questions_means(tmp_path: Path) -> None:
    house, scores = fill_house(tmp_path)
    (found,) = compare(house)
    means = {}
    for run_id, values in scores.items():
        means[run_id] = np.where(np.arange(N) < N_AGAIN, values.mean(axis=0), values[0])
    assert found["difference"] == pytest.approx((means[CANDIDATE] - means[BASE]).mean())
    assert (found["base"], found["candidate"]) == pytest.approx((means[BASE].mean(), means[CANDIDATE].mean()))
    assert (found["metric"], found["n"], found["n_repeated"]) == (METRIC, N, N_AGAIN)
    first = house.compare().paired
    assert first.difference == pytest.approx((scores[CANDIDATE][0] - scores[BASE][0]).mean()), "by the first answers"
    assert first.ci_low is not None
    assert first.ci_high is not None
    assert found["ci_low"] < found["difference"] < found["ci_high"]
    assert found["ci_high"] - found["ci_low"] < 0.8 * (first.ci_high - first.ci_low)


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
    """Without them on both sides there is nothing more to say."""
    checks = []
    for folder, sides in (("with", (BASE, CANDIDATE)), ("without", (BASE,))):
        house, _ = fill_house(tmp_path / folder, sides=sides)
        assert bool(compare(house)) == (folder == "with")
        document = call(house, capsys, "gate", CANDIDATE, "--against", BASE, "--max-drop", f"{METRIC}=0.02", "--json")
        checks.append({name: document.document[name] for name in ("outcome", "counts", "checks", "warnings")})
    assert checks[0] == checks[1]
