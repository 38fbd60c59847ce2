"""Evaluation from Python: frames, a mean to assert on, and errors that a notebook can show."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from cli_process import Place
from endpoint import running_endpoint
from prefect_holder import find_server

from evalhouse.flows.errors import SettingsError
from evalhouse.flows.start import Evaluation, EvaluationError, evaluate
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


def test_a_run_that_a_metrics_sql_ends_has_failed(tmp_path: Path) -> None:
    """Scoring what such a run has raises again, and the run kept the status `running`."""
    (tmp_path / "odd.sql").write_text(
        "-- metric: odd\n-- version: 1\n-- needs: extract_answer\n-- meaning: A test\n"
        "-- One row per sample of the run: NaN\n"
        "select run_id, sample_id, 'nan'::double as value, null::varchar as unscored_reason\n"
        "from run_samples where run_id = $run_id\n"
    )
    url = str(tmp_path / "w.duckdb")
    result = evaluate(SAMPLES, metrics="odd", judge="lexical", warehouse=url, metric_files=str(tmp_path))
    assert result.status == "failed"
    assert "metric 'odd' gave 2 values that are not finite numbers" in str(result.problem)
    ((status, problem),) = Warehouse(url).read("select status, problem from runs").rows()
    assert (status, problem) == ("failed", result.problem)


def test_mean_without_scores_is_an_error(result: Evaluation) -> None:
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


MILL = SAMPLES[0]


@pytest.mark.parametrize(
    ("samples", "settings", "expected"),
    [
        (SAMPLES, {"votes": 0}, "votes: got 0"),
        (SAMPLES, {"judge": "lexical", "votes": 3}, "name a model with judge="),
        (SAMPLES, {"judg": "lexical"}, "evaluate() has no setting judg; did you mean judge?"),
        (MILL, {}, "samples is a dict; give a list of dictionaries"),
        ([], {}, "samples is empty; give at least one dictionary"),
        ([MILL, {**MILL, "contexts": {"a"}}], {}, "samples[1]: column 'contexts' holds a value that cannot be read"),
        ([{"answer": "Nothing is there."}], {}, 'mapping={"question": "COLUMN"}'),
        ([MILL, {**MILL, "sample_id": "b", "question": ""}], {}, "samples[1]: "),
        ([MILL, MILL], {}, "samples[1]: id 'mill' is that of samples[0] already"),
        (pl.DataFrame([{"answer": "Nothing is there."}]), {}, "samples: no question column"),
        (SAMPLES, {"metrics": ["faithfullness"]}, "faithfullness"),
        ("missing.jsonl", {"name": "shop"}, "evaluate() got name='shop' and a dataset that has a name, missing.jsonl"),
        (SAMPLES, {"metrics": ["accuracy"]}, "judge="),
        (SAMPLES, {"mapping": {"answer": "reply"}}, 'samples: no column for mapping={"answer": "reply"}'),
        ("missing.jsonl", {}, "missing.jsonl: no such file"),
    ],
)  # fmt: skip
def test_an_error_speaks_of_the_call(
    samples: Any,  # noqa: ANN401  # also invalid values
    settings: dict[str, Any],
    expected: str,
    tmp_path: Path,
) -> None:
    settings = {"judge": "lexical", "warehouse": f"duckdb:///{tmp_path / 'w.duckdb'}", **settings}
    with pytest.raises((SettingsError, EvaluationError)) as caught:
        evaluate(samples, **settings)
    assert expected in str(caught.value)
    assert "--" not in str(caught.value)
    assert "evalhouse-" not in str(caught.value)


def test_printed_it_is_its_means_and_in_a_notebook_a_table(result: Evaluation) -> None:
    lines = repr(result).splitlines()
    assert lines[0] == f"run {result.run_id} completed (2 samples)"
    row = result.summary.row(by_predicate=pl.col("metric") == "context_recall", named=True)
    interval = f"{row['ci_low']:.3f} to {row['ci_high']:.3f}"
    assert " ".join(lines[2].split()) == f"context_recall 1.000 {interval} 1 1 no_ground_truth"
    page = result._repr_html_()
    assert page.count("<tr>") == 1 + len(result.metrics)
    assert "<td>1 no_ground_truth</td>" in page


def test_text_of_a_dataset_is_escaped_in_a_notebook(result: Evaluation) -> None:
    hostile = Evaluation(run_id=result.run_id, status="failed", problem="<img src=x>", warehouse=result.warehouse)
    assert "<img" not in hostile._repr_html_()
    assert "&lt;img src=x&gt;" in hostile._repr_html_()


def test_the_report_is_written_and_linked_from_the_notebooks_folder(
    result: Evaluation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    report = result.report()
    assert Path(report).read_text(encoding="utf-8").startswith("<!doctype html>")
    assert report._repr_html_() == f'<a href="{report.path.name}" target="_blank">{report.path.name}</a>'
    monkeypatch.chdir("/")
    elsewhere = result.report(tmp_path / "b.html")
    assert elsewhere._repr_html_().startswith(f'<a href="{str(tmp_path).removeprefix("/")}/b.html"')


@pytest.mark.slow
def test_any_frame_that_speaks_arrow_is_taken_also_within_a_running_event_loop(tmp_path: Path) -> None:
    table = pl.DataFrame([MILL]).to_arrow()

    async def in_a_notebook() -> Evaluation:
        return evaluate(table, metrics="faithfulness,,", judge="lexical", warehouse=str(tmp_path / "w.duckdb"))

    result = asyncio.run(in_a_notebook())
    assert result.metrics == ["faithfulness"]
    assert result.mean("faithfulness") == 0.5
    evaluate(table, metrics="faithfulness", judge="lexical", warehouse=str(tmp_path / "w.duckdb"), name="mills")
    series = Warehouse(result.warehouse).read_rows("select series from run_series order by started_at")
    assert [row["series"] for row in series] == ["dataset samples", "dataset mills"]
