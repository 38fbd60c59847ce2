"""`evalhouse rescore`: other weights and more metrics over verdicts that are there, with no model call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pytest
from cli_house import House, write_metric
from cli_process import Ask


def read(url: str, sql: str) -> list[dict[str, Any]]:
    with duckdb.connect(url, read_only=True) as connection:
        found: list[dict[str, Any]] = connection.sql(sql).pl().to_dicts()
        return found


def count_calls(url: str) -> int:
    return int(read(url, "select count(*) as n from llm_calls")[0]["n"])


def test_without_changes_every_score_stays(url: str, ask: Ask) -> None:
    sql = "select run_id, sample_id, metric, value, unscored_reason, metric_version from scores order by all"
    before, n_calls = read(url, sql), count_calls(url)
    finished = ask("rescore", "--warehouse", url)
    assert finished.status == 0
    assert read(url, sql) == before
    assert count_calls(url) == n_calls
    assert len(finished.lines) == 5, "two runs below their header, and what to type next"


def test_a_metric_without_verdicts_is_left_out_and_reported(house: House, url: str, ask: Ask) -> None:
    with duckdb.connect(url) as connection:
        for table in ("outcomes", "similarities"):
            column = "step" if table == "outcomes" else "'similarity'"
            connection.execute(f"delete from {table} where run_id = ? and {column} = 'similarity'", [house.run_id])
        connection.execute("update runs set metrics = ['factual_f1'] where run_id = ?", [house.run_id])
    arguments = ("rescore", house.run_id, "--metrics", "semantic_similarity,bleu,factual_recall", "--warehouse", url)
    (item,) = ask(*arguments, "--json").document
    assert item["metrics"] == ["factual_f1", "factual_recall"]
    assert item["left_out"] == {
        "semantic_similarity": "it has no value with embeddings 'hashing'",
        "bleu": "the run has no verdicts for it",
    }
    assert "bleu: the run has no verdicts for it" in ask(*arguments).stdout


def test_a_metric_whose_texts_another_version_read_keeps_its_scores(house: House, url: str, ask: Ask) -> None:
    """Its formula would be computed from marks as they were read then, and pass for this version's."""
    with duckdb.connect(url) as connection:
        connection.execute(
            "insert into scores (run_id, sample_id, metric, value, metric_version) "
            "values (?, 'tide-1', 'citation_validity', 0.25, '1;k=1')",
            [house.run_id],
        )
        connection.execute(
            "update runs set metrics = ['factual_f1', 'citation_validity'] where run_id = ?", [house.run_id]
        )
    (item,) = ask("rescore", house.run_id, "--metrics", "citation_recall", "--warehouse", url, "--json").document
    assert item["metrics"] == ["factual_f1"]
    why = "another version of evalhouse read the texts for it; run the data again"
    assert item["left_out"] == {"citation_validity": why, "citation_recall": why}
    (kept,) = read(url, "select value, metric_version from scores where metric = 'citation_validity'")
    assert kept == {"value": 0.25, "metric_version": "1;k=1"}


def test_settings_of_another_version_are_named_with_their_run(house: House, url: str, ask: Ask) -> None:
    with duckdb.connect(url) as connection:
        connection.execute("""update runs set config = '{"telepathy": true}' where run_id = ?""", [house.run_id])
    finished = ask("rescore", house.run_id, "--warehouse", url)
    assert finished.status == 2
    assert house.run_id in finished.stderr
    assert "telepathy" in finished.stderr


def test_a_weight_changes_one_metric_of_one_run_and_is_kept_for_the_next_rescoring(
    house: House, url: str, ask: Ask
) -> None:
    for name, value in (("similarity_weight", 0), ("factual_weight", 1)):
        assert (
            ask("rescore", house.run_id, "--set", f"answer_correctness.{name}={value}", "--warehouse", url).status == 0
        )
    sql = """
        select correct.value = f1.value as is_f1, correct.run_id, correct.metric_version as version
        from scores as correct join scores as f1 using (run_id, sample_id)
        where correct.metric = 'answer_correctness' and f1.metric = 'factual_f1' and sample_id = 'tide-1'
    """
    by_run = {row["run_id"]: row for row in read(url, sql)}
    assert by_run.pop(house.run_id) == {
        "run_id": house.run_id, "is_f1": True, "version": "1;factual_weight=1;similarity_weight=0",
    }  # fmt: skip
    (other,) = by_run.values()
    assert not other["is_f1"]
    assert other["version"] == "1"


@pytest.mark.slow
def test_a_metric_of_the_user_is_added_to_history_and_keeps_its_scores_when_its_file_is_gone(
    house: House, url: str, ask: Ask, tmp_path: Path
) -> None:
    own = write_metric(tmp_path)
    report = ask("rescore", "--metric-files", str(own), "--json", "--warehouse", url).document
    assert len(report) == 2
    assert all("answer_length" in item["metrics"] and item["left_out"] == {} for item in report)
    sql = "select value, unscored_reason as reason from scores where metric = 'answer_length' order by value"
    lengths = read(url, sql)
    assert len(lengths) == 8
    assert {row["reason"] for row in lengths} == {None, "no_answer"}
    assert "answer_length" in ask("show", house.run_id, "--warehouse", url).stdout
    (own / "answer_length.sql").unlink()
    finished = ask("rescore", house.run_id, "--warehouse", url)
    assert finished.status == 0
    assert "answer_length: its file no longer exists" in finished.stdout
    assert read(url, sql) == lengths


def test_a_wrong_name_changes_nothing(url: str, ask: Ask) -> None:
    before = read(url, "from runs order by run_id")
    for arguments, message in (
        (("--metrics", "nothing"), "unknown metric 'nothing'"),
        (("--set", "nothing.k=1"), "unknown metric 'nothing'"),
        (("--set", "answer_correctness.k=1"), "no parameter 'k'"),
        (("--metric-files", "absent"), "no folder of metric files at absent"),
        (("stranger",), "no run fits 'stranger'"),
    ):
        finished = ask("rescore", *arguments, "--warehouse", url)
        assert finished.status == 2
        assert message in finished.stderr
    assert read(url, "from runs order by run_id") == before
