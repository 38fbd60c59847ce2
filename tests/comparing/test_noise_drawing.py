"""Noise runs at the end of a run: their samples, settings and dollars, and the message without one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from live_runs import point_to
from noise_house import BASE, CANDIDATE, JUDGE, NoiseHouse

from evalhouse.flows.run.again import _draw_samples, measure_noise
from evalhouse.flows.run.outcome import NoiseOutcome, RunOutcome
from evalhouse.tasks.asking.embeddings import AskedEmbedder
from evalhouse.tasks.asking.usage import Usage
from evalhouse.tasks.comparing.noise import MIN_SAMPLES
from evalhouse.tasks.judge.protocol import RepeatedJudge
from evalhouse.tasks.settings.run import RunSettings
from evalhouse.warehouse.rows.runs import RunRow, find_run, list_runs, update_run

if TYPE_CHECKING:
    from evalhouse.tasks.pipeline.live_run import LiveRun

HALF = [0.5] * 40
"""Scores of forty samples."""


class Again:
    """Replaces the noise run and keeps its arguments."""

    def __init__(self, house: NoiseHouse) -> None:
        self.house = house
        self.live_run: LiveRun | None = None
        self.run: RunRow | None = None

    async def __call__(self, live_run: LiveRun, run: RunRow) -> RunOutcome:
        assert self.live_run is None, "asked once at most"
        self.live_run, self.run = live_run, run
        live_run.asker.record.close()
        update_run(self.house.warehouse, run.run_id, status="completed")
        return RunOutcome(run=run, status="completed", counts=Usage(requests=3, spent_usd=0.5), problem=None)


Measure = Callable[..., NoiseOutcome | None]


@pytest.fixture
def house(tmp_path: Path) -> NoiseHouse:
    point_to("http://127.0.0.1:9/v1")
    house = NoiseHouse(tmp_path)
    house.judge(BASE, HALF)
    return house


@pytest.fixture
def again(house: NoiseHouse) -> Again:
    return Again(house)


@pytest.fixture
def measure(house: NoiseHouse, again: Again) -> Measure:
    def call(share: float = 0.05, run_id: str = CANDIDATE, **settings: Any) -> NoiseOutcome | None:  # noqa: ANN401
        values = {"judge": JUDGE, "metrics": ("factual_f1",), "noise_share": share, **settings}
        made = RunSettings(warehouse=house.warehouse.location.url, **values)
        return asyncio.run(measure_noise(find_run(house.warehouse, run_id), made, house.warehouse, again))

    return call


def draw(house: NoiseHouse, share: float = 0.05, run_id: str = CANDIDATE) -> tuple[list[str], str]:
    """The samples that a noise run would judge, and what they are drawn from."""
    return _draw_samples(find_run(house.warehouse, run_id), house.warehouse, share=share)


def test_of_unchanged_samples_a_share_is_drawn_and_a_handful_at_least(house: NoiseHouse) -> None:
    house.judge(CANDIDATE, HALF, reused=40)
    drawn, population = draw(house)
    assert (len(drawn), population) == (MIN_SAMPLES, "unchanged")
    assert drawn == sorted(drawn) != house.ids[:MIN_SAMPLES]
    assert len(draw(house, 0.6)[0]) == 24


def test_where_too_few_are_unchanged_all_are_drawn_from(house: NoiseHouse) -> None:
    house.judge(CANDIDATE, HALF)
    change = "update run_samples set input_hash = 'other' where run_id = 'candidate' and ordinal > ?"
    for n_unchanged, population in ((MIN_SAMPLES, "unchanged"), (MIN_SAMPLES - 1, "all")):
        with house.warehouse.writing() as connection:
            connection.execute(change, [n_unchanged])
        drawn, found = draw(house)
        assert found == population
        assert (drawn == house.ids[:MIN_SAMPLES]) == (population == "unchanged")


CHANGES: tuple[dict[str, Any], ...] = (
    {},
    {"language": "zh"},
    {"judge": "openai:other"},
    {"config": {"temperature": 1.0}},
    {"prompt_hash": "p0"},
    {"status": "cancelled"},
    {"dataset": "other.jsonl"},
    {"kind": "noise"},
)


def test_unchanged_means_judged_alike_by_the_evaluation_before(tmp_path: Path) -> None:
    """Each change is of the run before in a separate series."""
    house = NoiseHouse(tmp_path)
    for number, change in enumerate(CHANGES):
        series = {"dataset": f"{number}.jsonl"}
        of_call = {name: value for name, value in change.items() if name == "prompt_hash"}
        of_run = {name: value for name, value in change.items() if name not in of_call}
        house.add_run(f"before-{number}", minute=0, **{**series, **of_run})
        house.judge(f"before-{number}", HALF, **of_call)
        house.add_run(f"after-{number}", minute=1, **series)
        house.judge(f"after-{number}", HALF)
    populations = [draw(house, run_id=f"after-{number}")[1] for number in range(len(CHANGES))]
    assert populations == ["unchanged"] + ["all"] * (len(CHANGES) - 1)


def test_samples_without_a_score_are_not_judged_again(house: NoiseHouse) -> None:
    house.judge(CANDIDATE, [None] * 28 + [0.5] * 12)
    assert draw(house, 1.0)[0] == house.ids[28:]


def test_a_noise_run_has_the_settings_of_the_run_and_is_made_once(
    house: NoiseHouse, again: Again, measure: Measure
) -> None:
    house.judge(CANDIDATE, HALF)
    found = measure(0.5, label="night", tags=("a",), votes=3, concurrency=7)
    assert found is not None
    assert again.live_run is not None
    assert again.run is not None
    config = again.run.config
    assert (config["fresh"], config["noise_share"], config["label"], config["budget_usd"]) == (True, 0.0, None, None)
    assert (config["votes"], config["concurrency"], config["judge"]) == (3, 7, JUDGE)
    assert again.run.tags == ("of unchanged samples",)
    assert (again.run.kind, again.run.parent_run_id, again.run.dataset) == ("noise", CANDIDATE, "data.jsonl")
    assert isinstance(again.live_run.asker.judge, RepeatedJudge)
    assert again.live_run.progress.n_samples == 20
    assert find_run(house.warehouse, "latest").run_id == CANDIDATE
    assert found.describe() == (
        "judge's noise: 20 unchanged samples judged again, 0 with another score; 3 more requests, cost $0.5000 "
        f"(run {again.run.run_id})"
    )
    assert found.to_plain() == {
        "run_id": again.run.run_id, "status": "completed", "population": "unchanged", "n_samples": 20, "n_changed": 0,
        "requests": 3, "cost_usd": 0.5, "problem": None,
    }  # fmt: skip
    assert measure() is None, "as when a run is resumed that had been measured"


def test_embeddings_of_a_model_are_asked_again_as_well(house: NoiseHouse, again: Again, measure: Measure) -> None:
    house.judge(CANDIDATE, HALF)
    measure(embeddings="openai:embedder", metrics=("semantic_similarity",))
    assert again.live_run is not None
    assert isinstance(again.live_run.embedder, AskedEmbedder)
    assert isinstance(again.live_run.embedder.asker.judge, RepeatedJudge)
    assert again.live_run.embedder.asker.judge.name == "openai:embedder"


def test_only_evaluations_that_came_to_their_end_are_measured(house: NoiseHouse, measure: Measure) -> None:
    house.judge(CANDIDATE, HALF)
    for columns in ({"kind": "collection"}, {"kind": "noise"}, {"kind": "evaluation", "status": "cancelled"}):
        update_run(house.warehouse, CANDIDATE, **columns)
        assert measure() is None
    assert len(list_runs(house.warehouse)) == 2


def test_it_spends_what_is_left_of_the_budget(
    house: NoiseHouse, again: Again, measure: Measure, tmp_path: Path
) -> None:
    house.judge(CANDIDATE, HALF, cost_usd=0.01)
    prices = tmp_path / "prices.yaml"
    prices.write_text("judge: [1.0, 4.0]\n", encoding="utf-8")
    measure(budget_usd=1.0, prices=str(prices))
    assert again.live_run is not None
    assert again.live_run.asker.budget_usd == pytest.approx(0.6)
    assert again.live_run.asker.spent_usd == 0.0


def test_nothing_is_asked_when_nothing_is_left_of_the_budget(house: NoiseHouse, measure: Measure) -> None:
    house.judge(CANDIDATE, HALF, cost_usd=0.025)
    found = measure(budget_usd=1.0)
    assert found == NoiseOutcome(problem="nothing is left of the budget")
    assert found.describe() == "judge's noise: not measured, nothing is left of the budget"
    assert len(list_runs(house.warehouse)) == 2


def test_a_run_without_a_score_has_nothing_to_judge_again(house: NoiseHouse, measure: Measure) -> None:
    house.judge(CANDIDATE, [None] * 40)
    assert measure() == NoiseOutcome(problem="no sample has a score")


def test_the_lexical_judge_is_not_asked_a_second_time(tmp_path: Path, measure: Measure, house: NoiseHouse) -> None:
    house.judge(CANDIDATE, HALF)
    update_run(house.warehouse, CANDIDATE, judge="lexical")
    found = measure(judge="lexical")
    assert found is not None
    assert found.describe() == "judge's noise: none: the judge always gives the same verdicts"
    assert house.warehouse.read_rows(
        "select distinct noise_run_id = run_id as is_itself, n_changed, sd_difference from noise where n_samples > 1"
    ) == [{"is_itself": True, "n_changed": 0, "sd_difference": 0.0}]
    assert len(list_runs(house.warehouse)) == 2
