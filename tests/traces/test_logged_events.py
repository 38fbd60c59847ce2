"""Prompts and completions that an application logs about its spans and keeps out of them: taken in, and joined."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from receiving import TOKEN, WAITING, Receiving, keep_and_kill, make_settings, read_stored, receiving, serving
from trace_files import (
    ANSWER,
    QUESTION,
    TRACE,
    make_log,
    make_logs_request,
    make_request,
    make_span,
    number_trace,
    read_one,
    read_traces_of,
    write_lines,
)

from evalhouse.flows.receiver import Counts, SpanKeeper
from evalhouse.tasks.datasets.otel import read_otlp
from evalhouse.tasks.datasets.values import DatasetError
from evalhouse.warehouse.mover import take_in_orphans
from evalhouse.warehouse.rows.samples import StoredSample
from evalhouse.warehouse.store import Warehouse
from evalhouse.warehouse.upkeep.forget import Rule, forget

DETAILS = "gen_ai.client.inference.operation.details"
LOGS = "/v1/logs"


def _make_call(trace: str = TRACE, **beside: Any) -> dict[str, Any]:  # noqa: ANN401  # as make_span
    """A model's call whose span has the cost and no messages."""
    attributes = {
        "gen_ai.operation.name": "chat", "gen_ai.request.model": "m-1", "gen_ai.usage.input_tokens": 61,
        "gen_ai.usage.output_tokens": 6,
    }  # fmt: skip
    return make_span(1, attributes, trace=trace, **beside)


def _make_messages(trace: str = TRACE, question: str = QUESTION) -> list[dict[str, Any]]:
    """An event a message, as conventions before 1.37 have it, with the messages in the bodies."""
    messages: list[tuple[str, Any]] = [
        ("gen_ai.system.message", {"content": "Be brief."}),
        ("gen_ai.user.message", {"content": "Who are you?"}),
        ("gen_ai.assistant.message", {"content": "A bot."}),
        ("gen_ai.user.message", {"content": question}),
        ("gen_ai.choice", {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": ANSWER}}),
    ]
    system = {"gen_ai.system": "openai"}
    return [
        make_log(1, name, body=body, attributes=system, trace=trace, at_s=place / 10)
        for place, (name, body) in enumerate(messages)
    ]


def _make_details(trace: str = TRACE) -> list[dict[str, Any]]:
    """All of them in one event, as the conventions have it since."""
    asked = [("user", "Who are you?"), ("assistant", "A bot."), ("user", QUESTION)]
    attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.system_instructions": [{"type": "text", "content": "Be brief."}],
        "gen_ai.input.messages": [{"role": role, "parts": [{"type": "text", "content": text}]} for role, text in asked],
        "gen_ai.output.messages": [
            {"role": "assistant", "parts": [{"type": "text", "content": ANSWER}], "finish_reason": "stop"}
        ],
    }
    return [make_log(1, DETAILS, attributes=attributes, trace=trace)]


def _make_unplaced(text: str) -> list[dict[str, Any]]:
    """Events that no span is known of: with empty ids, without the span's, and with the zeros that stand for none."""
    ids: list[dict[str, str]] = [{"traceId": "", "spanId": ""}, {"spanId": ""}, {"traceId": "0" * 32}]
    return [{**make_log(1, "gen_ai.choice", body={"content": text}), **of_none} for of_none in ids]


def _check(sample: StoredSample) -> None:
    assert (sample.question, sample.answer) == (QUESTION, ANSWER)
    assert [turn.text for turn in sample.conversation or ()] == ["Who are you?", "A bot."]
    assert (sample.metadata["prompt_tokens"], sample.metadata["models"]) == (61, ["m-1"])
    assert sample.metadata["n_spans"] == 1


@pytest.mark.parametrize(("logs", "are_logs_first"), [(_make_messages(), True), (_make_details(), False)])
def test_events_are_joined_to_their_spans_in_any_order(
    tmp_path: Path, logs: list[dict[str, Any]], are_logs_first: bool
) -> None:
    sent = [("/v1/traces", make_request([_make_call()])), *((LOGS, make_logs_request([log])) for log in reversed(logs))]
    with receiving(tmp_path / "w.duckdb") as house:
        for path, body in reversed(sent) if are_logs_first else sent:
            for _ in range(2):  # an exporter that got no answer sends again
                assert house.post(body, path=path).json() == {}
    _check(*read_stored(tmp_path / "w.duckdb")[0])
    lines = [body for _, body in (reversed(sent) if are_logs_first else sent)]
    _check(read_one(write_lines(tmp_path / "t.jsonl", lines), "otel"))


def test_events_of_one_moment_stay_in_the_order_in_which_they_came(tmp_path: Path) -> None:
    """Clocks of some SDKs tick in milliseconds."""
    logs = [log | {"timeUnixNano": make_log(1, "")["timeUnixNano"]} for log in _make_messages()]
    with receiving(tmp_path / "w.duckdb") as house:
        house.post(make_request([_make_call()]))
        for _ in range(2):
            house.post(make_logs_request(logs), path=LOGS)
    _check(*read_stored(tmp_path / "w.duckdb")[0])


def test_a_file_of_one_request_and_lines_of_an_sdk_are_read(tmp_path: Path) -> None:
    """Write the output of the console's exporters: one object a span, and one a log record."""
    both = tmp_path / "both.json"
    both.write_text(json.dumps({**make_logs_request(_make_details()), **make_request([_make_call()])}))
    _check(read_one(both, "otel"))
    attributes = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m-1", "gen_ai.usage.input_tokens": 61}
    context = {"trace_id": f"0x{TRACE}", "span_id": "0x00000000000000a1"}
    times = {"start_time": "2026-03-14T12:00:00Z", "end_time": "2026-03-14T12:00:01Z"}
    rows: list[dict[str, Any]] = [
        {"name": "chat", "context": context, "parent_id": None, "attributes": attributes, **times}
    ]
    for log in _make_messages():
        body = {"content": QUESTION} if "choice" not in log["eventName"] else {"message": {"content": ANSWER}}
        record = {"body": body, "attributes": {"event.name": log["eventName"]}, "event_name": "", **context}
        rows.append({**record, "timestamp": None, "observed_timestamp": "2026-03-14T12:00:00Z", "severity_number": 9})
    rows.append({**rows[-1], "attributes": {}, "body": "starting"})
    sample = read_one(write_lines(tmp_path / "t.jsonl", rows), "otel")
    assert (sample.question, sample.answer) == (QUESTION, ANSWER)


def test_events_do_not_replace_what_a_span_has(tmp_path: Path) -> None:
    outer = make_span(1, {"openinference.span.kind": "CHAIN", "input.value": "Mine?", "output.value": "Mine."})
    lines = [make_request([outer]), make_logs_request(_make_details())]
    sample = read_one(write_lines(tmp_path / "t.jsonl", lines), "otel")
    assert (sample.question, sample.answer) == ("Mine?", "Mine.")


def test_events_without_their_span_make_no_sample(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "t.jsonl", [make_logs_request(_make_details())])
    with pytest.raises(DatasetError, match="0 became samples; left out: 1 still running, or its outermost span is not"):
        read_traces_of(path, "otel")


def _count(house: Receiving) -> int:
    return len(house.warehouse.read_rows("from span_events"))


def test_other_log_records_are_answered_and_not_kept(tmp_path: Path) -> None:
    secret = "the password is swordfish"
    records = [
        make_log(1, "", body=secret),
        make_log(1, "session.start", body={"content": secret}),
        *_make_unplaced(secret),
    ]
    with receiving(tmp_path / "w.duckdb") as house:
        assert house.post(make_logs_request(records), path=LOGS).json() == {}
        assert house.keeper.n_on_disk == 0
    assert _count(house) == 0
    assert house.keeper.counts == Counts(n_unplaced=3)


def test_events_that_name_no_span_are_counted_in_files(tmp_path: Path) -> None:
    logs = [*_make_details(), *_make_unplaced("Who?"), make_log(1, "session.start")]
    path = write_lines(tmp_path / "t.jsonl", [make_request([_make_call()]), make_logs_request(logs)])
    (sample,), staged = read_traces_of(path, "otel")
    _check(sample)
    assert staged.notes == ("traces: 1 of 1 spans, 1 became samples; 3 events that name no span left out",)
    # As the console's exporter writes one that was logged outside of any span.
    unplaced = {"trace_id": f"0x{'0' * 32}", "span_id": f"0x{'0' * 16}", "event_name": "gen_ai.choice"}
    record = {**unplaced, "body": "Who?", "attributes": {}, "observed_timestamp": "2026-03-14T12:00:00Z"}
    with pytest.raises(DatasetError, match="0 of 0 spans, 0 became samples; 1 event that names no span left out"):
        read_traces_of(write_lines(tmp_path / "alone.jsonl", [record]), "otel")


def test_events_are_kept_and_dropped_with_their_trace(tmp_path: Path) -> None:
    with receiving(tmp_path / "w.duckdb", sampling={"share": 0.0, "wait_s": 0.4}) as house:
        for number in (1, 2, 3):
            house.post(make_logs_request(_make_details(number_trace(number))), path=LOGS)
        house.post(make_request([_make_call(number_trace(1)), _make_call(number_trace(2), error="no")]))
        house.post(make_logs_request([make_log(1, "gen_ai.choice", trace=number_trace(2))]), path=LOGS)
        time.sleep(0.5)
        house.keeper.drop_old()
        assert (house.keeper.counts.n_kept, house.keeper.counts.n_dropped, house.keeper.n_on_disk) == (3, 3, 3)
    for table, n in (("spans", 1), ("span_events", 2)):
        rows = house.warehouse.read_rows(f"select trace_id from {table}")
        assert [row["trace_id"] for row in rows] == [number_trace(2)] * n, table


def test_what_a_killed_receiver_acknowledged_is_in_the_warehouse_of_the_next(tmp_path: Path) -> None:
    """Stored events, and events that waited for their trace."""
    warehouse = Warehouse(str(tmp_path / "w.duckdb"))
    warehouse.make_ready()
    failed = make_request([_make_call(number_trace(1), error="no")])
    logs = make_logs_request([*_make_details(number_trace(1)), *_make_details(number_trace(2))])
    keep_and_kill(tmp_path / "w.duckdb", failed, logs)
    assert take_in_orphans(warehouse) == 2
    keeper = SpanKeeper(warehouse, make_settings(**WAITING))
    assert keeper.n_on_disk == 1
    keeper.keep(read_otlp(make_request([_make_call(number_trace(2), error="no")]), print), print)
    keeper.close()
    rows = warehouse.read_rows("select trace_id from span_events order by trace_id")
    assert [row["trace_id"] for row in rows] == [number_trace(1), number_trace(2)]


def test_events_are_forgotten_with_their_trace(tmp_path: Path) -> None:
    with receiving(tmp_path / "w.duckdb") as house:
        for number in (1, 2):
            house.post(make_request([_make_call(number_trace(number), at_s=60 * number)]))
            house.post(make_logs_request(_make_messages(number_trace(number))), path=LOGS)
    warehouse = house.warehouse
    rule = Rule(words="--sample", sample_id=number_trace(1))
    assert forget(warehouse, rule, dry_run=True).tables == {"spans": 1, "span_events": 5}
    assert forget(warehouse, rule).n_bytes > 300
    (left,) = warehouse.read_rows("select count(*) as n, any_value(trace_id) as trace_id from span_events")
    assert left == {"n": 5, "trace_id": number_trace(2)}


def test_a_trace_of_which_only_events_came_is_forgotten_by_its_name(tmp_path: Path) -> None:
    with receiving(tmp_path / "w.duckdb") as house:
        house.post(make_logs_request(_make_messages()), path=LOGS)
    assert forget(house.warehouse, Rule(words="--sample", sample_id=TRACE)).tables == {"span_events": 5}
    assert _count(house) == 0


def test_the_sdks_own_log_exporter_is_understood(tmp_path: Path) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http._log_exporter")
    sent = [sys.executable, str(Path(__file__).parents[1] / "helpers" / "logging_bot.py")]
    with serving(tmp_path / "w.duckdb") as house:
        command = [*sent, f"http://127.0.0.1:{house.port}", TOKEN]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env={**os.environ})
        assert (done.returncode, done.stderr) == (0, "")
    assert house.reports == [
        "2 spans and 4 events about them received, 6 kept, 0 not sampled; 1 event that names no span left out"
    ]
    samples, _ = read_stored(tmp_path / "w.duckdb", None)
    assert [(sample.question, sample.answer) for sample in samples] == [(QUESTION, ANSWER)] * 2
    assert {str(sample.metadata["service"]) for sample in samples} == {"ferry-bot"}
