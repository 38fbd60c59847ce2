"""Evaluation from Python: frames, a mean to assert on, and errors that a notebook can show."""

from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest
from cli_process import Place
from endpoint import running_endpoint
from prefect_holder import find_server

from evalhouse.flows.errors import SettingsError
from evalhouse.flows.evaluate import Evaluation, EvaluationError, evaluate
from evalhouse.warehouse.store import Warehouse

SAMPLES = [
    {
        "sample_id": "mill",
        "question": "Which river turns the Helm mill?",
        "answer": "The Arl turns the mill. It was built in 1802.",
        "ground_truth": "The Arl turns the mill.",
        "contexts": ["The Arl turns the mill.", "The baker sells rye bread."],
    },
    {"sample_id": "quay", "question": "How long is the quay?", "answer": "90 metres.", "contexts": ["Nothing here."]},
]


@pytest.fixture(scope="module", autouse=True)
def _shared_server(prefect_home: Path) -> Iterator[None]:
    """Runs take the server that is configured."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"PREFECT_HOME": str(prefect_home), **find_server()}.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Evaluation:
    url = f"duckdb:///{tmp_path_factory.mktemp('evaluate') / 'w.duckdb'}"
    return evaluate(
        SAMPLES, metrics=["faithfulness", "context_recall"], judge="lexical", warehouse=url, label="from Python"
    )


def test_a_mean_can_be_asserted_on(result: Evaluation) -> None:
    assert result.status == "completed"
    assert result.problem is None
    assert result.mean("context_recall") == 1
    by_sample = dict(result.scores.filter(pl.col("metric") == "faithfulness").select("sample_id", "value").iter_rows())
    assert result.mean("faithfulness") == pytest.approx(sum(by_sample.values()) / 2)


def test_scores_statements_and_verdicts_are_frames(result: Evaluation) -> None:
    assert result.scores.height == 4
    unscored = result.scores.filter(pl.col("value").is_null())
    assert unscored.select("sample_id", "metric", "unscored_reason").rows() == [
        ("quay", "context_recall", "no_ground_truth")
    ]
    texts = result.statements.filter(pl.col("sample_id") == "mill")["text"].to_list()
    assert texts == ["The Arl turns the mill.", "It was built in 1802.", "The Arl turns the mill."]
    supports = result.verdicts.filter((pl.col("step") == "attribute_answer") & (pl.col("sample_id") == "mill"))
    assert supports.sort("statement_id")["supported"].to_list() == [True, False]
    assert result.summary["n_unscored"].to_list() == [1, 0]


def test_the_run_is_on_record_as_any_other(result: Evaluation) -> None:
    (run,) = Warehouse(result.warehouse).read_rows("select run_id, label, judge from runs")
    assert run == {"run_id": result.run_id, "label": "from Python", "judge": "lexical"}


def test_what_has_no_score_is_an_error_and_no_number(result: Evaluation) -> None:
    with pytest.raises(EvaluationError, match=r"has no metric 'mrr'; it has context_recall, faithfulness"):
        result.mean("mrr")


def test_a_frame_a_chat_model_and_a_second_time_for_nothing(
    tmp_path: Path, prefect_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second time by the command line, which finds on record what Python has asked."""
    frame, url = pl.DataFrame(SAMPLES[:1]), f"duckdb:///{tmp_path / 'w.duckdb'}"
    frame.write_parquet(tmp_path / "samples.parquet")
    with running_endpoint() as endpoint:
        keys = {"OPENAI_BASE_URL": endpoint.base_url, "OPENAI_API_KEY": "none-needed"}
        for name, value in keys.items():
            monkeypatch.setenv(name, value)
        first = evaluate(frame, metrics=["faithfulness"], judge="openai:judge", warehouse=url)
        asked = endpoint.stats.requests.total()
        place = Place(folder=tmp_path, variables={"PREFECT_HOME": str(prefect_home), **keys})
        options = ("--metrics", "faithfulness", "--judge", "openai:judge", "--warehouse", url, "--json")
        second = place.call("run", "samples.parquet", *options).document
        assert endpoint.stats.requests.total() == asked == 2
    assert first.mean("faithfulness") == second["metrics"]["faithfulness"]["mean"] == 0.5
    assert first.run_id != second["run_id"]


def test_bad_input_is_told_in_one_message(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="votes"):
        evaluate(SAMPLES, votes=0)
    url = f"duckdb:///{tmp_path / 'w.duckdb'}"
    with pytest.raises(EvaluationError, match=r"no question"):
        evaluate([{"answer": "There is none."}], judge="lexical", warehouse=url)
