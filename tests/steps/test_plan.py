"""Metrics and the steps they need, token estimates, and names of judges."""

from __future__ import annotations

from pathlib import Path

import pytest
from live_runs import lay_out_run, make_settings
from prefect.assets import Asset
from prefect.tasks import MaterializingTask

from evalhouse.flows.preparing.suites import explain_bad_asset, make_asset_source, make_kb_source
from evalhouse.tasks.judge.protocol import FatalJudgeError
from evalhouse.tasks.lexical.judge import LexicalJudge
from evalhouse.tasks.models.make import check_embeddings_name, check_judge_name, make_judge
from evalhouse.tasks.score import list_upstream, make_scores_asset, name_dataset, name_source, pick_score_task, score
from evalhouse.tasks.settings.run import RunSettings
from evalhouse.warehouse.metric_files import MetricFileError, UnknownMetric, list_default, load_metrics, plan_run
from evalhouse.warehouse.rows.runs import RunKind

KNOWN = load_metrics()


def test_without_a_choice_come_the_default_metrics_and_all_that_cost_no_more() -> None:
    plan = plan_run((), KNOWN)
    names = {metric.name for metric in plan.metrics}
    assert [metric.name for metric in plan.metrics][:8] == [
        "factual_precision", "factual_recall", "statement_recall", "factual_f1", "answer_correctness",
        "context_recall", "context_precision", "faithfulness",
    ]  # fmt: skip
    assert list_default(KNOWN) == [metric.name for metric in plan.metrics][:8]
    assert {"noise_sensitivity_relevant", "hallucination", "self_knowledge", "context_utilization"} <= names
    assert plan_run(tuple(names), KNOWN).steps == plan.steps


@pytest.mark.parametrize(("metric", "steps"), [
    ("faithfulness", {"extract_answer", "attribute_answer"}),
    ("context_recall", {"extract_ground_truth", "attribute_ground_truth"}),
    ("factual_f1", {"extract_answer", "extract_ground_truth", "classify"}),
    ("context_precision", {"extract_ground_truth", "rank"}),
    ("semantic_similarity", {"similarity"}),
    ("answer_correctness", {"extract_answer", "extract_ground_truth", "classify", "similarity"}),
])  # fmt: skip
def test_a_metric_takes_its_own_steps_and_those_they_rest_on(metric: str, steps: set[str]) -> None:
    plan = plan_run((metric,), KNOWN)
    assert plan.steps == steps
    assert [chosen.name for chosen in plan.metrics] == [metric]


@pytest.mark.parametrize(("embeddings", "named", "other"), [
    ("hashing", "surface_similarity", "semantic_similarity"),
    ("openai:embedder", "semantic_similarity", "surface_similarity"),
])  # fmt: skip
def test_similarity_is_called_what_the_embeddings_compare(embeddings: str, named: str, other: str) -> None:
    names = {metric.name for metric in plan_run((), KNOWN, embeddings=embeddings).metrics}
    assert names & {named, other} == {named}
    with pytest.raises(MetricFileError, match=rf"metric '{other}' compares .*, and embeddings is '{embeddings}'"):
        plan_run((other,), KNOWN, embeddings=embeddings)


def test_an_unknown_metric_is_refused_with_those_that_are_like_it() -> None:
    with pytest.raises(UnknownMetric, match=r"^unknown metric 'faithfullness'; did you mean faithfulness\?$"):
        plan_run(("faithfullness",), KNOWN)
    with pytest.raises(UnknownMetric, match=r"^unknown metric 'x'; known: (\w+, ){11}\w+ and \d+ more$"):
        plan_run(("x",), KNOWN)


@pytest.mark.parametrize("name", ["", "gpt-4.1", "openai:", "openai: ", "a b:c", "module:", ":f", "m:f:g", "hashing"])
def test_other_names_are_refused_with_the_allowed_ones(name: str) -> None:
    with pytest.raises(FatalJudgeError, match=r"unknown judge .*; allowed: lexical, openai:MODEL"):
        check_judge_name(name)
    with pytest.raises(FatalJudgeError, match="unknown judge"):
        make_judge(RunSettings().model_copy(update={"judge": name}))


def test_names_of_embeddings() -> None:
    for name in ("hashing", "openai:text-embedding-3-small", "m:f"):
        check_embeddings_name(name)
    with pytest.raises(FatalJudgeError, match=r"unknown embeddings .*; allowed: hashing"):
        check_embeddings_name("lexical")


@pytest.mark.parametrize(("dataset", "key"), [
    ("sample", "evalhouse://dataset/sample"),
    ("/home/me/my questions.jsonl", "file:///home/me/my_questions.jsonl"),
    ("/srv/q.duckdb#nightly", "file:///srv/q.duckdb_nightly"),
    ("s3://bucket/q.parquet", "s3://bucket/q.parquet"),
])  # fmt: skip
def test_a_dataset_has_a_key_that_prefect_takes(dataset: str, key: str) -> None:
    assert name_dataset(dataset) == key
    assert Asset(key=key).key == key


def test_a_knowledge_base_has_a_key_of_ours_and_an_asset_its_own() -> None:
    assert name_source("team/handbook v2") == "evalhouse://knowledge-base/team/handbook_v2"
    assert name_source("s3://kb/handbook") == "s3://kb/handbook"
    assert make_scores_asset("nightly").key == "evalhouse://suite/nightly/scores"
    assert make_scores_asset("知识库").key == "evalhouse://suite/知识库/scores"


@pytest.mark.parametrize("key", ["s3://kb/handbook", "evalhouse://suite/other/scores", "snowflake://db.schema/t!1"])
def test_a_key_that_is_taken_is_one_of_prefects(key: str) -> None:
    assert explain_bad_asset(key) is None
    assert Asset(key=key).key == key
    assert make_asset_source(key).is_asset
    assert not make_kb_source("handbook").is_asset


async def test_only_the_scores_of_an_evaluation_of_a_suite_are_an_asset(tmp_path: Path) -> None:
    async with lay_out_run(tmp_path / "outside", judge=LexicalJudge()) as live_run:
        assert pick_score_task(live_run) is score
    settings = make_settings(suite="nightly", upstream="handbook")
    kinds: tuple[RunKind, ...] = ("evaluation", "noise", "repeats")
    for kind in kinds:
        async with lay_out_run(tmp_path / kind, settings, judge=LexicalJudge()) as live_run:
            live_run.kind = kind
            task = pick_score_task(live_run)
            upstream = [asset.key for asset in list_upstream(live_run) if isinstance(asset, Asset)]
        assert isinstance(task, MaterializingTask) == (kind == "evaluation")
        if isinstance(task, MaterializingTask):
            assert [asset.key for asset in task.assets] == ["evalhouse://suite/nightly/scores"]
        assert upstream == ["evalhouse://dataset/sample", "evalhouse://knowledge-base/handbook"]
