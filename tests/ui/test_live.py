"""A running run in `evalhouse ui`: its page fills while it runs, and reports when no updates come any more."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from browser import Browser, Page
from live_runs import ScriptedJudge, judge_samples, lay_out_run, make_sample, make_settings, open_warehouse, say_good
from rows import RowsToCome
from starlette.testclient import TestClient
from ui_house import make_client, serve_ui
from warehouse_runs import make_run

from evalhouse.tasks.pipeline.live_run import LiveRun, SampleWork, Shard
from evalhouse.warehouse.engine.locks import hold_run
from evalhouse.warehouse.rows.progress import JournalReader
from evalhouse.warehouse.rows.runs import insert_run, now_utc, update_run
from evalhouse.warehouse.rows.samples import score_run
from evalhouse.warehouse.store import Warehouse

RUN = "20260101-000000-live"
N = 4
SAMPLES = [make_sample(number) for number in range(1, N + 1)]
METRICS = ("factual_f1", "faithfulness", "context_precision")
WHO_ASKS = "document.querySelector('[data-live=\"step-classify\"]:not(progress)').textContent"


def begin(folder: Path) -> Warehouse:
    """A warehouse with a run that has just begun."""
    warehouse = open_warehouse(folder)
    run = make_run(RUN, judge="scripted", metrics=METRICS, n_samples=N, label="night")
    insert_run(warehouse, replace(run, started_at=now_utc()))
    rows = RowsToCome()
    for sample in SAMPLES:
        texts = ("question", "answer", "ground_truth", "contexts")
        key = {"sample_id": sample.sample_id, "input_hash": sample.input_hash}
        rows.add("samples", {**key, **{name: getattr(sample, name) for name in texts}})
        rows.add("run_samples", {**key, "run_id": RUN, "ordinal": sample.ordinal})
    rows.write(warehouse)
    return warehouse


def write(live_run: LiveRun, works: Sequence[SampleWork]) -> None:
    """Write a shard's verdicts, as a run does."""
    shard = Shard(number=0, first=1, last=len(works), works=works)
    live_run.warehouse.append(shard.to_batch(RUN, key=f"{RUN}/shard", replaces=False))


def end(live_run: LiveRun) -> None:
    """Score and end the run."""
    score_run(live_run.warehouse, RUN, live_run.metrics, {})
    update_run(live_run.warehouse, RUN, status="completed", finished_at=now_utc())


def ask(client: TestClient) -> dict[str, Any]:
    answer = client.get(f"/runs/{RUN}/live")
    assert answer.status_code == 200, answer.text
    message: dict[str, Any] = answer.json()
    return message


def make_fresh_client(warehouse: Warehouse) -> TestClient:
    """A client of a ui that has kept nothing it read."""
    return make_client(str(warehouse.location.path))


@pytest.mark.usefixtures("opened_once")
def test_what_was_answered_counts_at_once_and_once(tmp_path: Path) -> None:
    warehouse = begin(tmp_path)

    async def go() -> None:
        judge = ScriptedJudge(say_good)
        async with lay_out_run(tmp_path, make_settings(), judge=judge, run_id=RUN, metrics=METRICS) as live_run:
            works = await judge_samples(live_run, SAMPLES[:3])
            before = ask(make_fresh_client(warehouse))
            assert before["texts"]["step-classify"] == f"3 of {N}"
            assert before["texts"]["requests"] == str(len(judge.asked))
            assert before["values"]["step-rank"] == 3 / N
            assert before["texts"]["mean-faithfulness"] == "none yet"
            assert warehouse.read("from llm_calls").is_empty()  # all of it came from the journal
            await asyncio.to_thread(live_run.asker.record.close)
            await asyncio.to_thread(write, live_run, works)
        after = ask(make_fresh_client(warehouse))
        assert not warehouse.read("from llm_calls").is_empty()
        assert after["texts"] | {"stand": ""} == before["texts"] | {
            "stand": "",  # the time left differs by now
            "mean-faithfulness": "1.000 of 3 samples",
            "mean-context_precision": "1.000 of 3 samples",
        }

    with hold_run(warehouse.location, RUN):
        asyncio.run(go())


@pytest.mark.usefixtures("opened_once")
def test_a_run_whose_process_is_gone_does_not_stand_as_running_for_ever(tmp_path: Path) -> None:
    warehouse = begin(tmp_path)
    with hold_run(warehouse.location, RUN):
        assert ask(make_fresh_client(warehouse))["texts"]["stand"].startswith("running")
        assert ask(make_fresh_client(warehouse))["texts"]["warning"] == ""
    message = ask(make_fresh_client(warehouse))
    assert message["texts"]["stand"] == "stopped at 0 %, no process works on it"
    assert f"`evalhouse resume {RUN}` continues it" in message["texts"]["warning"]
    assert message["say"] == message["texts"]["warning"]
    assert "stopped at" in make_fresh_client(warehouse).get("/live").json()["texts"][f"{RUN}-status"]


@pytest.mark.usefixtures("opened_once")
def test_another_stamp_states_when_a_run_began_or_ended(tmp_path: Path) -> None:
    warehouse = begin(tmp_path)
    client = make_fresh_client(warehouse)

    def read_stamp() -> str:
        return str(client.get("/live").json()["stamp"])

    stamps = [read_stamp()]
    assert read_stamp() == stamps[0]
    insert_run(warehouse, make_run("20260102-000000-next"))
    stamps.append(read_stamp())
    update_run(warehouse, RUN, status="completed", finished_at=now_utc())
    stamps.append(read_stamp())
    assert len(set(stamps)) == len(stamps)
    assert ask(client)["stamp"] == "completed"


@pytest.fixture
def running(tmp_path: Path) -> Warehouse:
    return begin(tmp_path)


@pytest.mark.slow
def test_the_page_fills_while_the_run_continues_and_is_whole_when_it_ends(
    tmp_path: Path, running: Warehouse, browser: Browser
) -> None:
    async def go(page: Page) -> None:
        judge = ScriptedJudge(say_good)
        async with lay_out_run(tmp_path, make_settings(), judge=judge, run_id=RUN, metrics=METRICS) as live_run:
            works = await judge_samples(live_run, SAMPLES[:2])
            page.wait_for(f"{WHO_ASKS} === '2 of {N}'")
            page.evaluate("document.querySelector('nav a[href=\"/runs\"]').focus()")
            works += await judge_samples(live_run, SAMPLES[2:])
            await asyncio.to_thread(write, live_run, works)
        await asyncio.to_thread(end, live_run)
        page.wait_for("document.querySelector('#scores') && document.readyState === 'complete'")

    with hold_run(running.location, RUN), serve_ui(running.location.path) as address, browser.opened_page() as page:
        page.show_as()
        page.visit(f"{address}/runs/{RUN}")
        assert page.evaluate(WHO_ASKS) == f"0 of {N}"
        asyncio.run(go(page))
        assert page.evaluate("document.activeElement.getAttribute('href')") == "/runs"
        assert page.problems == []


def test_half_a_line_of_the_journal_waits_for_its_other_half(tmp_path: Path) -> None:
    location = Warehouse(str(tmp_path / "w.duckdb")).location
    location.journal_path.mkdir()
    path = location.journal_path / "0123456789abcdef-000001.jsonl"
    line = orjson.dumps({"run_id": RUN, "step": "classify", "status": "ok", "started_at": 1}) + b"\n"
    reader = JournalReader(location)
    path.write_bytes(line + line[:20])
    assert len(reader.read("llm_calls")) == 1
    with path.open("ab") as file:
        file.write(line[20:] + line)
    assert reader.read("llm_calls")["batch_key"].to_list() == [f"journal/{path.stem}"] * 3
    path.unlink()
    assert reader.read("llm_calls").is_empty()
