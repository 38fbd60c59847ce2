"""The scores of a suite as an asset: what it and what it was made from are called, and which runs make one."""

from __future__ import annotations

from pathlib import Path

import pytest
from live_runs import lay_out_run, make_settings
from prefect.assets import Asset
from prefect.tasks import MaterializingTask
from warehouse_runs import make_run

from evalhouse.flows.errors import SettingsError
from evalhouse.flows.preparing.suites import explain_bad_asset, make_asset_source, make_kb_source
from evalhouse.tasks.lexical.judge import LexicalJudge
from evalhouse.tasks.score import list_upstream, make_scores_asset, name_dataset, name_source, pick_score_task, score
from evalhouse.warehouse.rows.runs import insert_run


@pytest.mark.parametrize(
    ("dataset", "key"),
    [
        ("sample", "evalhouse://dataset/sample"),
        ("/home/me/my questions.jsonl", "file:///home/me/my_questions.jsonl"),
        ("/srv/q.duckdb#nightly", "file:///srv/q.duckdb_nightly"),
        ("s3://bucket/q.parquet", "s3://bucket/q.parquet"),
    ],
)
def test_a_dataset_has_a_key_that_prefect_takes(dataset: str, key: str) -> None:
    assert name_dataset(dataset) == key
    assert Asset(key=key).key == key


def test_a_knowledge_base_has_a_key_of_ours_and_an_asset_its_own() -> None:
    assert name_source("team/handbook v2") == "evalhouse://knowledge-base/team/handbook_v2"
    assert name_source("s3://kb/handbook") == "s3://kb/handbook"
    assert make_scores_asset("nightly").key == "evalhouse://suite/nightly/scores"
    assert make_scores_asset("知识库").key == "evalhouse://suite/知识库/scores"


@pytest.mark.parametrize(
    "key", ["handbook", "S3://kb/a", "s3://", "s3://kb/a b", "s3://kb/*", "s3://k%", "s3://" + "x" * 510]
)
def test_what_cannot_be_an_asset_is_refused(key: str) -> None:
    with pytest.raises(SettingsError, match="cannot be the key of an asset"):
        make_asset_source(key)


@pytest.mark.parametrize("key", ["s3://kb/handbook", "evalhouse://suite/other/scores", "snowflake://db.schema/t!1"])
def test_a_key_that_is_taken_is_one_of_prefects(key: str) -> None:
    assert explain_bad_asset(key) is None
    assert Asset(key=key).key == key
    assert make_asset_source(key).is_asset
    assert not make_kb_source("handbook").is_asset


async def test_only_the_scores_of_an_evaluation_of_a_suite_are_an_asset(tmp_path: Path) -> None:
    async with lay_out_run(tmp_path / "outside", judge=LexicalJudge()) as live_run:
        assert await pick_score_task(live_run) is score
    settings = make_settings(suite="nightly", upstream="handbook")
    for kind in ("evaluation", "noise", "repeats"):
        async with lay_out_run(tmp_path / kind, settings, judge=LexicalJudge()) as live_run:
            insert_run(live_run.warehouse, make_run(run_id=live_run.run_id, suite="nightly", kind=kind))
            task = await pick_score_task(live_run)
            upstream = [asset.key for asset in list_upstream(live_run) if isinstance(asset, Asset)]
        assert isinstance(task, MaterializingTask) == (kind == "evaluation")
        if isinstance(task, MaterializingTask):
            assert [asset.key for asset in task.assets] == ["evalhouse://suite/nightly/scores"]
        assert upstream == ["evalhouse://dataset/sample", "evalhouse://knowledge-base/handbook"]
