"""Noise runs at the end of a run: their samples, settings and dollars, and the message without one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from cli_house import write_dataset
from cli_process import Place
from live_runs import point_to
from noise_house import BASE, CANDIDATE, JUDGE, NoiseHouse

from evalhouse.flows.run.again import measure_noise
from evalhouse.flows.run.outcome import NoiseOutcome, RunOutcome
from evalhouse.tasks.asking.embeddings import AskedEmbedder
from evalhouse.tasks.asking.usage import Usage
from evalhouse.tasks.comparing.noise import MIN_SAMPLES
from evalhouse.tasks.judge.protocol import RepeatedJudge
from evalhouse.tasks.settings.run import RunSettings
from evalhouse.warehouse.rows.runs import RunRow, find_run, list_runs, update_run
from evalhouse.warehouse.store import Warehouse

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

    @property
    def sample_ids(self) -> list[str]:
        assert self.run is not None
        sql = "select sample_id from run_samples where run_id = $run_id order by ordinal"
        rows = self.house.warehouse.read_rows(sql, {"run_id": self.run.run_id})
        return [str(row["sample_id"]) for row in rows]


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


def test_of_unchanged_samples_a_share_is_drawn_and_a_handful_at_least(
    house: NoiseHouse, again: Again, measure: Measure
) -> None:
    house.judge(CANDIDATE, HALF, reused=40)
    found = measure(0.05)
    assert found is not None
    assert (found.population, found.n_samples) == ("unchanged", MIN_SAMPLES)
    assert len(again.sample_ids) == MIN_SAMPLES
    assert again.sample_ids == sorted(again.sample_ids) != house.ids[:MIN_SAMPLES]


def test_a_great_share_is_that_share(house: NoiseHouse, again: Again, measure: Measure) -> None:
    house.judge(CANDIDATE, HALF, reused=40)
    measure(0.6)
    assert len(again.sample_ids) == 24


@pytest.mark.parametrize(("n_unchanged", "population"), [(MIN_SAMPLES, "unchanged"), (MIN_SAMPLES - 1, "all")])
def test_where_too_few_are_unchanged_all_are_drawn_from(
    *, house: NoiseHouse, again: Again, measure: Measure, n_unchanged: int, population: str
) -> None:
    house.judge(CANDIDATE, HALF)
    with house.warehouse.writing() as connection:
        connection.execute(
            "update run_samples set input_hash = 'other' where run_id = 'candidate' and ordinal > ?", [n_unchanged]
        )
    found = measure()
    assert found is not None
    assert found.population == population
    assert (set(again.sample_ids) == set(house.ids[:MIN_SAMPLES])) == (population == "unchanged")


@pytest.mark.parametrize("change", [
    "update runs set language = 'zh' where run_id = 'base'",
    "update runs set judge = 'openai:other' where run_id = 'base'",
    """update runs set config = '{"temperature": 1.0}' where run_id = 'base'""",
    "update llm_calls set prompt_hash = 'p0' where run_id = 'base'",
    "update runs set status = 'cancelled' where run_id = 'base'",
    "update runs set dataset = 'other.jsonl' where run_id = 'base'",
    "update runs set kind = 'noise' where run_id = 'base'",
])  # fmt: skip
def test_unchanged_means_judged_alike_by_the_evaluation_before(
    house: NoiseHouse, measure: Measure, change: str
) -> None:
    house.judge(CANDIDATE, HALF)
    with house.warehouse.writing() as connection:
        connection.execute(change)
    found = measure()
    assert found is not None
    assert found.population == "all"


def test_samples_without_a_score_are_not_judged_again(house: NoiseHouse, again: Again, measure: Measure) -> None:
    house.judge(CANDIDATE, [None] * 28 + [0.5] * 12)
    measure(1.0)
    assert again.sample_ids == house.ids[28:]


def test_the_noise_run_has_the_settings_of_the_run_and_its_own_keys(
    house: NoiseHouse, again: Again, measure: Measure
) -> None:
    house.judge(CANDIDATE, HALF)
    measure(0.5, label="night", tags=("a",), votes=3, concurrency=7)
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


def test_embeddings_of_a_model_are_asked_again_as_well(house: NoiseHouse, again: Again, measure: Measure) -> None:
    house.judge(CANDIDATE, HALF)
    measure(embeddings="openai:embedder", metrics=("semantic_similarity",))
    assert again.live_run is not None
    assert isinstance(again.live_run.embedder, AskedEmbedder)
    assert isinstance(again.live_run.embedder.asker.judge, RepeatedJudge)
    assert again.live_run.embedder.asker.judge.name == "openai:embedder"


def test_a_run_is_measured_once(house: NoiseHouse, measure: Measure) -> None:
    house.judge(CANDIDATE, HALF)
    assert measure() is not None
    assert measure() is None, "as when a run is resumed that had been measured"


@pytest.mark.parametrize(
    "columns", [{"status": "cancelled"}, {"status": "failed"}, {"kind": "collection"}, {"kind": "noise"}]
)
def test_only_evaluations_that_came_to_their_end_are_measured(
    house: NoiseHouse, measure: Measure, columns: Mapping[str, object]
) -> None:
    house.judge(CANDIDATE, HALF)
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


def test_the_outcome_names_its_cost(house: NoiseHouse, again: Again, measure: Measure) -> None:
    house.judge(CANDIDATE, HALF)
    found = measure()
    assert found is not None
    assert again.run is not None
    assert found.describe() == (
        "judge's noise: 10 unchanged samples judged again, 0 with another score; 3 more requests, cost $0.5000 "
        f"(run {again.run.run_id})"
    )
    assert found.to_plain() == {
        "run_id": again.run.run_id, "status": "completed", "population": "unchanged", "n_samples": 10, "n_changed": 0,
        "requests": 3, "cost_usd": 0.5, "problem": None,
    }  # fmt: skip


def test_the_lexical_judge_is_not_asked_a_second_time(tmp_path: Path, prefect_home: Path) -> None:
    row = {"question": "Where?", "answer": "Here.", "ground_truth": "Here.", "contexts": ["Here."]}
    write_dataset(tmp_path, [{**row, "id": str(number)} for number in range(3)], "here.jsonl")
    place = Place(folder=tmp_path, variables={"PREFECT_HOME": str(prefect_home)})
    finished = place.call("run", "here.jsonl", "--noise", "0.5", "--judge", "lexical")
    assert finished.status == 0, finished.stderr
    assert "judge's noise: none: the judge always gives the same verdicts" in finished.lines
    assert Warehouse(str(tmp_path / "evalhouse.duckdb")).read_rows(
        "select distinct noise_run_id = run_id as is_itself, n_changed, sd_difference from noise where n_samples > 1"
    ) == [{"is_itself": True, "n_changed": 0, "sd_difference": 0.0}]
    assert len(place.call("runs", "--json").document) == 1
