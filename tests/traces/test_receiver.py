"""`evalhouse receive`: what is taken, what is refused and how, what is stored, and what a killed one loses: nothing;
and prompts and completions that an application logs about its spans and keeps out of them: taken in, and joined."""

from __future__ import annotations

import base64
import gzip
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import duckdb
import httpx
import orjson
import pytest
from cli_process import Place
from receiving import (
    ALWAYS,
    HEADERS,
    TOKEN,
    WAITING,
    Receiving,
    keep_and_kill,
    make_settings,
    read_stored,
    receiving,
    serving,
)
from trace_files import (
    ANSWER,
    NOON_NS,
    QUESTION,
    TRACE,
    make_bot_trace,
    make_log,
    make_logs_request,
    make_request,
    make_span,
    number_trace,
    read_one,
    read_traces_of,
    write_lines,
)

from evalhouse.flows import receiver
from evalhouse.flows.errors import SettingsError
from evalhouse.flows.preparing.suites import load_suite
from evalhouse.flows.receiver import TOKEN_VARIABLE, Counts, SpanKeeper, load_receiver
from evalhouse.tasks.datasets.otel import read_otlp
from evalhouse.tasks.datasets.received import is_picked
from evalhouse.tasks.datasets.values import DatasetError
from evalhouse.tasks.settings.suite import TraceWindow
from evalhouse.warehouse import mover
from evalhouse.warehouse.engine.connection import open_reader
from evalhouse.warehouse.errors import WarehouseBusy, WarehouseError, WarehouseUnwritable
from evalhouse.warehouse.mover import FLUSH_POLICIES, JournalledTable, Segment, find_journal, take_in_orphans
from evalhouse.warehouse.rows.samples import StoredSample
from evalhouse.warehouse.store import Warehouse
from evalhouse.warehouse.upkeep.forget import Rule, forget


def _ids(number: int, **beside: str) -> list[dict[str, object]]:
    return make_bot_trace(trace=number_trace(number), **beside)  # type: ignore[arg-type]


def test_what_is_received_is_judged_as_what_is_read(tmp_path: Path) -> None:
    with receiving(tmp_path / "w.duckdb") as house:
        for _ in range(2):  # an exporter that got no answer sends again
            assert house.post(make_request(make_bot_trace(session="s-7"))).json() == {}
    rows = house.read()
    assert len(rows) == 6
    assert {row["session_id"] for row in rows} == {None, "s-7"}
    (trace,) = house.warehouse.read_rows("from traces")
    assert (trace["name"], trace["n_spans"], trace["duration_ms"], trace["status"]) == ("step 1", 3, 1000, "ok")
    (sample,), staged = read_stored(tmp_path / "w.duckdb")
    assert (sample.question, sample.answer, sample.context_ids) == (QUESTION, ANSWER, ["d1", "d2"])
    assert staged.notes[0] == "traces: 1 of 3 spans, 1 became samples"
    assert read_stored(tmp_path / "w.duckdb")[1].content_hash == staged.content_hash


def _as_basic(user: str, password: str) -> str:
    return f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"


def test_the_address_and_keys_of_langfuses_sdks_are_taken(tmp_path: Path) -> None:
    """Their exporters add a path, and send the two keys as user and password."""
    outer = {"langfuse.observation.type": "span", "langfuse.observation.input": f'{{"args": ["{QUESTION}"]}}'}
    answered = make_span(1, {**outer, "langfuse.observation.output": ANSWER, "session.id": "s-7"})
    with receiving(tmp_path / "w.duckdb") as house:
        headers = {"authorization": _as_basic("pk-lf-any", TOKEN)}
        path = "/api/public/otel/v1/traces"
        assert house.post(make_request([answered]), headers=headers, path=path).status_code == 200
    (row,) = house.read()
    assert row["session_id"] == "s-7"
    (sample,), _ = read_stored(tmp_path / "w.duckdb")
    assert (sample.question, sample.answer) == (QUESTION, ANSWER)


def test_gzip_is_unpacked_and_no_more_of_it_than_is_allowed(tmp_path: Path) -> None:
    with receiving(tmp_path / "w.duckdb", body_mb=0.05) as house:
        packed = gzip.compress(orjson.dumps(make_request(make_bot_trace())))
        assert house.post(packed, headers={"content-encoding": "gzip"}).status_code == 200
        bomb = gzip.compress(b" " * 50_000_000)
        assert len(bomb) < 0.05 * 2**20
        assert house.post(bomb, headers={"content-encoding": "gzip"}).status_code == 413
        assert house.post(b" " * 60_000).status_code == 413
        assert house.post(packed[:-9], headers={"content-encoding": "gzip"}).status_code == 400
        # A second member was dropped without a word.
        assert house.post(packed + packed, headers={"content-encoding": "gzip"}).status_code == 400
        assert house.post(b"{}", headers={"content-encoding": "gzip"}).status_code == 400


INVALID: list[tuple[dict[str, str], bytes, int, str]] = [
    ({"authorization": "Bearer wrong"}, b"{}", 401, "the token of this receiver"),
    ({"authorization": _as_basic("pk", "wrong")}, b"{}", 401, "the token of this receiver"),
    ({"authorization": _as_basic(TOKEN, "")}, b"{}", 401, "the token of this receiver"),
    ({"authorization": "Basic %%"}, b"{}", 401, "the token of this receiver"),
    ({"content-type": "text/plain"}, b"{}", 415, "allowed: application/x-protobuf, application/json"),
    ({"content-encoding": "br"}, b"{}", 415, "allowed: gzip"),
    ({}, b"{", 400, "not an ExportTraceServiceRequest"),
    ({}, b'{"resourceSpans": [1]}', 400, "not an ExportTraceServiceRequest"),
    ({"authorization": "Bearer no"}, b"{}", 401, "the token of this receiver"),
    ({}, b'{"resourceLogs": [1]}', 400, "not an ExportLogsServiceRequest"),
]


def test_invalid_request_is_refused_for_good(tmp_path: Path) -> None:
    with receiving(tmp_path / "w.duckdb") as house:
        for headers, body, status, why in INVALID:
            path = "/v1/logs" if b"Logs" in body or "no" in headers.get("authorization", "") else "/v1/traces"
            response = house.post(body, headers=headers, path=path)
            assert (response.status_code, why in response.json()["message"]) == (status, True), (headers, body)
            assert "retry-after" not in response.headers


def test_spans_and_events_without_ids_are_rejected_and_the_others_taken(tmp_path: Path) -> None:
    pytest.importorskip("opentelemetry.proto")
    from opentelemetry.proto.collector.logs.v1 import logs_service_pb2 as of_logs  # noqa: PLC0415
    from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as wire  # noqa: PLC0415

    bad, protobuf = {**make_span(1, {}), "traceId": "abc"}, {"content-type": "application/x-protobuf"}
    logs = [{**make_log(1, "gen_ai.choice"), "traceId": "abc"}, make_log(1, "gen_ai.choice")]
    with receiving(tmp_path / "w.duckdb") as house:
        request, logged = wire.ExportTraceServiceRequest(), of_logs.ExportLogsServiceRequest()
        span = request.resource_spans.add().scope_spans.add().spans.add(trace_id=b"x", span_id=b"y" * 8)
        records = logged.resource_logs.add().scope_logs.add().log_records
        records.add(trace_id=b"x", span_id=b"y" * 8, event_name="gen_ai.choice")
        for path, body, packed, answer, rejected in (
            ("/v1/traces", make_request([bad, *make_bot_trace()]), request, wire.ExportTraceServiceResponse, "Spans"),
            ("/v1/logs", make_logs_request(logs), logged, of_logs.ExportLogsServiceResponse, "LogRecords"),
        ):
            partial = house.post(body, path=path).json()["partialSuccess"]
            assert partial[f"rejected{rejected}"] == "1"
            assert "a traceId of 32" in partial["errorMessage"]
            response = house.post(packed.SerializeToString(), headers=protobuf, path=path)
            found = answer.FromString(response.content).partial_success
            n_rejected = found.rejected_spans if rejected == "Spans" else found.rejected_log_records
            assert (n_rejected, "a traceId of 32" in found.error_message) == (1, True)
            refused = house.post(b"\xff\xff", headers=protobuf, path=path)
            assert (refused.status_code, b"in protobuf" in refused.content) == (400, True)
        span.trace_id = b"z" * 16
        span.attributes.add(key="input.value").value.string_value = QUESTION
        span.attributes.add(key="n").value.int_value = 7
        assert house.post(request.SerializeToString(), headers=protobuf).content == b""
    assert orjson.loads(house.read()[-1]["attributes"]) == {"input.value": QUESTION, "n": 7}
    assert len(house.warehouse.read_rows("from span_events")) == 1


ODD_VALUES: list[object] = [
    {"intValue": "9" * 400}, {"intValue": 2**63}, {"intValue": "9" * 5000}, {"intValue": []}, {"doubleValue": "NaN"},
    {"stringValue": "[0x" + "f" * 400 + ", None]"}, {"stringValue": "[" * 50_000}, {"stringValue": {"a": [1]}},
    {"stringValue": "\0\x1b[2J\u202e"}, {"unknownValue": 1}, 7, "DEEP ARRAYS", "DEEP LISTS", "DEEP OBJECTS",
]  # fmt: skip
ODD_TIMES: list[object] = [
    "9" * 30, 10**19, "-1", [1], {"a": 1}, "9999-12-31T23:59:59-09:00", "0001-01-01T00:00:00+09:00"
]  # fmt: skip
FIELDS = ("name", "status", "attributes", "events", "parentSpanId")
LONG_NAMES = ("retrieval.documents.99999999999.document.content", "a." * 5_000, {"a": 1})
ODD: list[dict[str, object]] = [
    *({"attributes": [{"key": "input.value", "value": value}]} for value in ODD_VALUES),
    *({"attributes": [{"key": name, "value": {"stringValue": "x"}}]} for name in LONG_NAMES),
    *({name: time} for name in ("startTimeUnixNano", "endTimeUnixNano", "timeUnixNano") for time in ODD_TIMES),
    *({name: value} for name in FIELDS for value in ([1], {"a": 1}, 7)),
    *({"body": value} for value in ODD_VALUES),
    {"status": {"code": [1], "message": {"a": 1}}}, {"parentSpanId": "cd" * 8},
]  # fmt: skip


# What orjson reads and does not write.
DEEP = {
    "DEEP ARRAYS": '{"arrayValue":{"values":[' * 300 + "1" + "]}}" * 300,
    "DEEP LISTS": '{"stringValue":' + "[" * 900 + "]" * 900 + "}",
    "DEEP OBJECTS": '{"kvlistValue":{"values":[{"key":"k","value":' * 200 + "1" + "}]}}" * 200,
}


def pack_odd(body: object) -> bytes:
    text = json.dumps(body)
    for name, deep in DEEP.items():
        text = text.replace(f'"{name}"', deep)
    return text.encode()


def test_odd_span_or_event_does_not_keep_the_others_from_being_read(tmp_path: Path) -> None:
    ids = {"traceId": "ab" * 16, "spanId": "cd" * 8}
    with receiving(tmp_path / "w.duckdb", redaction={"patterns": ["email", "card", "key"]}) as house:
        for odd in ODD:
            answer = house.post(pack_odd(make_request([{**ids, **odd}, *make_bot_trace()])))
            assert answer.status_code == 200, odd
            records = [{**ids, "eventName": "gen_ai.x", **odd}]
            logs = {"resourceLogs": [{"scopeLogs": [{"logRecords": records}]}]}
            assert house.post(pack_odd(logs), path="/v1/logs").status_code == 200, odd
    samples, _ = read_stored(tmp_path / "w.duckdb")
    assert QUESTION in {sample.question for sample in samples}


def test_an_odd_resource_or_scope_never_fails_the_receiver(tmp_path: Path) -> None:
    with receiving(tmp_path / "w.duckdb") as house:
        for value in (*ODD_VALUES, {"intValue": "x"}, [1], None):
            request = make_request(make_bot_trace())
            (of_resource,) = request["resourceSpans"]
            pairs = [{"key": "service.name", "value": value}]
            for changed in (
                {"resource": {"attributes": pairs}}, {"resource": value}, {"resource": {"attributes": value}},
                {"scopeSpans": value}, {"scopeSpans": [value]}, {"scopeSpans": [{"spans": value}]},
            ):  # fmt: skip
                answer = house.post(pack_odd({"resourceSpans": [{**of_resource, **changed}]}))
                assert answer.status_code in (200, 400), changed


def test_without_the_extra_protobuf_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evalhouse.flows.receiver.has_protobuf", lambda: False)
    with receiving(tmp_path / "w.duckdb") as house:
        response = house.post(b"", headers={"content-type": "application/x-protobuf"})
        assert (response.status_code, b"pip install 'evalhouse[traces]'" in response.content) == (415, True)
        assert house.post(make_request(make_bot_trace())).status_code == 200


def test_too_many_spans_on_disk_are_sent_again_later(tmp_path: Path) -> None:
    with receiving(tmp_path / "w.duckdb", waiting_spans=3) as house:
        assert house.post(make_request(_ids(1))).status_code == 200
        refused = house.post(make_request(_ids(2)))
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "5")
        house.keeper._movers["spans"].flush()
        assert house.post(make_request(_ids(3))).status_code == 200
        house.receiver.n_open = 65
        assert house.post(make_request(_ids(4))).status_code == 429


def test_full_disk_is_reported_and_the_spans_are_sent_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with receiving(tmp_path / "w.duckdb") as house, monkeypatch.context() as patched:
        patched.setattr("evalhouse.warehouse.mover.os.write", fail)
        response = house.post(make_request(make_bot_trace()))
    assert (response.status_code, response.headers["retry-after"]) == (503, "5")
    assert "No space left" in response.json()["message"]


def test_a_disk_that_was_full_for_a_moment_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failures = [WarehouseUnwritable("no room on the disk")] * 2
    take_in = mover.take_in_segment

    def fail_twice(warehouse: Warehouse, table: JournalledTable, segment: Segment, *, patience_s: float) -> None:
        if failures:
            raise failures.pop()
        take_in(warehouse, table, segment, patience_s=patience_s)

    monkeypatch.setattr(mover, "take_in_segment", fail_twice)
    every = dict.fromkeys(("spans", "span_events"), 0.05)
    policies = {table: replace(policy, every_s=every.get(table, 5.0)) for table, policy in FLUSH_POLICIES.items()}
    monkeypatch.setattr(mover, "FLUSH_POLICIES", policies)
    with receiving(tmp_path / "w.duckdb") as house:
        assert house.post(make_request(make_bot_trace())).status_code == 200
        deadline = time.monotonic() + 60
        while (failures or house.keeper.n_on_disk) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert house.post(make_request(make_bot_trace(trace=number_trace(2)))).status_code == 200
    assert len(house.read()) == 6
    assert caplog.text.count("rows of spans wait on disk, and are moved when there is room: no room on the disk") == 1


def test_spans_that_were_in_the_journal_are_forgotten_with_their_trace(tmp_path: Path) -> None:
    warehouse = Warehouse(str(tmp_path / "w.duckdb"))
    chain, _, model = make_bot_trace()
    with receiving(tmp_path / "w.duckdb") as house:
        house.post(make_request([chain]))
        house.keeper._movers["spans"].flush()
        house.post(make_request([model, *make_bot_trace(trace=number_trace(2))]))
        forgotten = forget(warehouse, Rule(words="--sample", sample_id=TRACE))
        assert forgotten.traces is not None
        house.keeper._movers["spans"].flush()
        house.post(make_request([chain]))  # what comes later is new
    rows = house.read()
    assert sorted((row["trace_id"], row["span_id"][-1]) for row in rows) == sorted(
        [(TRACE, chain["spanId"][-1]), *((number_trace(2), str(number)) for number in (1, 2, 3))]
    )


def test_beside_a_reader_spans_are_taken_and_moved_later(tmp_path: Path) -> None:
    with receiving(tmp_path / "w.duckdb") as house:
        with open_reader(house.warehouse.location):
            assert house.post(make_request(make_bot_trace())).status_code == 200
            assert house.keeper.n_on_disk == 3
        house.keeper._movers["spans"].flush()
        assert house.keeper.n_on_disk == 0
    assert len(house.read()) == 3


def _find_bytes(folder: Path, private: bytes) -> list[str]:
    return [path.name for path in folder.rglob("*") if path.is_file() and private in path.read_bytes()]


def test_no_byte_of_what_is_redacted_reaches_the_disk(tmp_path: Path) -> None:
    """While spans lie in the journal, while they wait for their trace, and when they are in the warehouse."""
    private, name = "ada.quill@mail.example.org", "李明华"
    redaction = {"patterns": ["email"], "own": [{"pattern": name, "replacement": "[customer]"}]}
    question = f"I am {private}, {name}: {orjson.dumps({'who': private}).decode()}"
    spans = _ids(1, question=question) + _ids(2, question=question)
    spans[0]["attributes"].append(  # type: ignore[attr-defined]
        {"key": "nested", "value": {"stringValue": f'{{"a": "{name.encode("unicode_escape").decode()}"}}'}}
    )
    forms = [form for text in (private, name) for form in (text.encode(), text.encode("unicode_escape"))]
    sampling = {"share": 0.0, "wait_s": 3600, "attributes": {"llm.model_name": ["m-2"]}}
    for folder, tables in (("kept", {}), ("waiting", {"sampling": sampling})):
        (tmp_path / folder).mkdir()
        with receiving(tmp_path / folder / "w.duckdb", redaction=redaction, **tables) as house:
            assert house.post(make_request(spans)).status_code == 200
            event = make_log(1, "gen_ai.user.message", body={"content": question}, trace=number_trace(1))
            assert house.post(make_logs_request([event]), path="/v1/logs").status_code == 200
            assert _find_bytes(tmp_path / folder, b"[customer]"), folder
            assert [_find_bytes(tmp_path / folder, form) for form in forms] == [[]] * len(forms)
    assert [_find_bytes(tmp_path, form) for form in forms] == [[]] * len(forms)
    kept = Warehouse(str(tmp_path / "kept" / "w.duckdb"))
    assert (len(kept.read_rows("from spans")), len(kept.read_rows("from span_events"))) == (6, 1)
    assert "[customer]" in str(kept.read_rows("from span_events"))


def test_sessions_whose_names_are_redacted_stay_apart(tmp_path: Path) -> None:
    """The phone numbers of a chat bot's users all became `[phone]`: one conversation with the turns of everybody."""
    sessions = ["+4915112345678", "+4917098765432", "19:abc@thread.v2", "+4915112345678"]
    with receiving(tmp_path / "w.duckdb", redaction={"patterns": ["phone", "email"]}) as house:
        for number, session in enumerate(sessions):
            house.post(make_request(make_bot_trace(trace=number_trace(number), session=session, at_s=10.0 * number)))
    samples, _ = read_stored(tmp_path / "w.duckdb")
    turns = {sample.sample_id: sample.metadata["turn"] for sample in samples}
    assert turns == {number_trace(0): 1, number_trace(1): 1, number_trace(2): 1, number_trace(3): 2}
    assert len({sample.metadata["conversation_id"] for sample in samples}) == 3
    assert not any(_find_bytes(tmp_path, session.encode()) for session in sessions)


def test_the_word_none_is_the_id_of_no_session(tmp_path: Path) -> None:
    """`str(session_id)` where a bot has none made one conversation of all its users."""
    with receiving(tmp_path / "w.duckdb") as house:
        for number, session in enumerate(("None", "None", "undefined", "undefined")):
            house.post(make_request(make_bot_trace(trace=number_trace(number), session=session, at_s=10.0 * number)))
    samples, _ = read_stored(tmp_path / "w.duckdb")
    assert [sample.conversation for sample in samples] == [[]] * 4


def test_a_trace_is_kept_whole_for_one_of_its_spans(tmp_path: Path) -> None:
    """Its children come before the span that keeps it, in separate requests."""
    sampling = {"share": 0.0, "wait_s": 0.4, "slower_than_ms": 2000}
    with receiving(tmp_path / "w.duckdb", sampling=sampling) as house:
        slow = make_span(1, {"input.value": QUESTION}, trace=number_trace(2), took_s=3.0)
        failed = make_span(1, {}, trace=number_trace(3), error="no")
        for spans in (_ids(1), _ids(2)[:2], _ids(3)[:2], [slow], [failed], _ids(2)[1:2]):
            house.post(make_request(spans))
        assert house.keeper.n_on_disk == 10
        time.sleep(0.5)
        house.keeper.drop_old()
        assert house.keeper.counts.n_dropped == 3
        assert not _find_bytes(find_journal(house.warehouse.location, "spans"), number_trace(1).encode())
    kept = house.warehouse.read_rows("select trace_id, n_spans from traces order by trace_id")
    assert [tuple(row.values()) for row in kept] == [(number_trace(2), 3), (number_trace(3), 3)]


def test_the_share_keeps_sessions_as_a_whole(tmp_path: Path) -> None:
    """A follow-up was kept without the turns before it. A session may be on the outermost span alone, the last one."""
    sampling = {"share": 0.5, "wait_s": 0.4}
    with receiving(tmp_path / "w.duckdb", sampling=sampling) as house:
        for number in range(60):
            trace = number_trace(number)
            house.post(make_request([make_span(2, {"input.value": QUESTION}, parent=1, trace=trace)]))
            session = {"session.id": f"s{number // 3}"} if number < 45 else {}
            house.post(make_request([make_span(1, session, trace=trace)]))
        time.sleep(0.5)
        house.keeper.drop_old()
    kept = {row["trace_id"] for row in house.warehouse.read_rows("from spans")}
    n_kept = [sum(number_trace(3 * session + turn) in kept for turn in range(3)) for session in range(15)]
    assert set(n_kept) == {0, 3}
    alone = [number_trace(number) in kept for number in range(45, 60)]
    assert {*alone} == {True, False}, "a trace without a session by its id"
    assert len(house.warehouse.read_rows("from spans")) == 2 * len(kept)


def test_a_suite_judges_the_share_and_not_what_rules_kept_beside_it(tmp_path: Path) -> None:
    """A night's mean had all answers that users voted down and a share of the others: 0.66 where all had 0.95."""
    sampling = {"share": 0.5, "wait_s": 0.4, "attributes": {"user.feedback": ["down"]}}
    redaction = {"patterns": ["email"]}  # of sessions too: the share picks them by what the bot sent
    path = tmp_path / "w.duckdb"
    trace_of: dict[str, str] = {}
    with receiving(path, sampling=sampling, redaction=redaction) as house:
        for number in range(40):
            trace, session = number_trace(number), f"guest{number}@mail.example.org" if number < 20 else None
            spans = make_bot_trace(trace=trace, session=session, question=f"Q {number}?")
            vote = make_span(9, {"user.feedback": "down"}, parent=1, trace=trace)
            house.post(make_request([*spans, vote] if number % 2 else spans))
            trace_of[session or trace] = trace
        time.sleep(0.5)
        house.keeper.drop_old()
    picked = {trace for name, trace in trace_of.items() if is_picked(name, 0.5)}
    voted = {number_trace(number) for number in range(1, 40, 2)}
    assert picked - voted
    assert picked & voted
    assert voted - picked
    windows = {by: ALWAYS.model_copy(update={"kept_by": by}) for by in ("share", "rule", "all")}
    read = {by: read_stored(path, window) for by, window in windows.items()}
    assert {by: {sample.sample_id for sample in samples} for by, (samples, _) in read.items()} == {
        "share": picked, "rule": voted - picked, "all": picked | voted,
    }  # fmt: skip
    assert ALWAYS.kept_by == "share"
    left_out = f"left out: {len(voted - picked)} that only a rule of the receiver kept, not its share"
    assert f'{left_out} (kept_by = "share" in [traces])' in read["share"][1].notes[0]
    assert "left out" not in read["all"][1].notes[0]


def test_a_night_of_traces_that_rules_alone_kept_says_so(tmp_path: Path) -> None:
    sampling = {"share": 1e-9, "wait_s": 0.4, "errors": False, "attributes": {"user.feedback": []}}
    with receiving(tmp_path / "w.duckdb", sampling=sampling) as house:
        house.post(make_request([*make_bot_trace(), make_span(9, {"user.feedback": "down"}, parent=1)]))
    with pytest.raises(DatasetError, match=r"no traces from .*, but 1 that only a rule of the receiver kept, not its"):
        read_stored(tmp_path / "w.duckdb")


@pytest.mark.slow
def test_a_killed_receiver_loses_nothing_that_it_acknowledged(tmp_path: Path, prefect_home: Path) -> None:
    """Run the command itself: its lines, its token, kill -9 in the middle, and an orderly end."""
    place = Place(folder=tmp_path, variables={"PREFECT_HOME": str(prefect_home), TOKEN_VARIABLE: TOKEN})
    (tmp_path / "receiver.toml").write_text('[redaction]\npatterns = ["email"]\n', encoding="utf-8")
    acknowledged = 0
    for sign in (signal.SIGKILL, signal.SIGTERM):
        with place.start("receive", "receiver.toml", "--warehouse", "w.duckdb") as process:
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in range(5)]
            (address,) = re.findall(r"ENDPOINT=(http://127\.0\.0\.1:\d+/v1/traces)", lines[3])
            assert "redacted: email" in lines[1]
            assert TOKEN not in "".join(lines)
            for _ in range(3):
                acknowledged += 1
                response = httpx.post(address, json=make_request(_ids(acknowledged)), headers=HEADERS)
                assert response.status_code == 200
            process.send_signal(sign)
            rest = process.stdout.read()
            process.wait(60)
    assert "9 spans received, 9 kept, 0 not sampled" in rest
    query = ("query", "select count(*) as n from traces", "--format", "csv", "--warehouse", "w.duckdb")
    assert place.call(*query).lines == ["n", str(acknowledged)]


def _minute(number: int) -> datetime:
    return datetime(2026, 3, 14, 12, number)  # UTC, as the warehouse has it


def test_a_trace_of_several_questions_is_forgotten_by_its_samples(tmp_path: Path) -> None:
    """The samples stayed when the trace was named, and the spans with their texts when a sample was."""
    path = tmp_path / "w.duckdb"
    with receiving(path) as house:
        house.post(make_request([*make_bot_trace(), *make_bot_trace(trace=number_trace(2))]))
    with duckdb.connect(str(path)) as con:
        con.execute(
            "insert into runs by name select 'r' as run_id, 'evaluation' as kind, 'completed' as status, "
            "now()::timestamp as started_at, 'lexical' as judge, 'en' as language, 'cli' as trigger, '{}' as config"
        )
        for place in (1, 2):
            row = {"sample_id": f"{TRACE}/{place}", "ordinal": place}
            con.execute(
                "insert into run_samples by name select 'r' as run_id, $sample_id as sample_id, 'h' as input_hash, "
                "$ordinal as ordinal",
                row,
            )
    warehouse = Warehouse(str(path))
    with pytest.raises(WarehouseError, match=f"became several samples; forget each of {TRACE}/1, {TRACE}/2"):
        forget(warehouse, Rule(words="--sample", sample_id=TRACE))
    forget(warehouse, Rule(words="--sample", sample_id=f"{TRACE}/1"))
    assert {row["trace_id"] for row in warehouse.read_rows("from spans")} == {number_trace(2)}
    assert warehouse.read_rows("select sample_id from forgotten") == [{"sample_id": f"{TRACE}/1"}]


def test_traces_are_forgotten_by_age_and_by_sample_and_that_is_on_record(tmp_path: Path) -> None:
    path = tmp_path / "w.duckdb"
    numbers = (1, 2, 3, 4)
    with receiving(path) as house:
        spans = [span for number in numbers for span in make_bot_trace(trace=number_trace(number), at_s=number * 60)]
        house.post(make_request(spans))
    warehouse = Warehouse(str(path))
    rule = Rule(words="--sample", sample_id=number_trace(2))
    assert forget(warehouse, rule, dry_run=True).tables == {"spans": 3}
    assert warehouse.read_rows("from forgotten_traces") == []
    assert forget(warehouse, rule).n_bytes > 300
    assert len(warehouse.read_rows("from spans")) == 9
    assert forget(warehouse, Rule(words="--older-than", before=_minute(4), suite="nightly")).tables == {}
    assert forget(warehouse, Rule(words="--older-than 9d", before=_minute(4))).tables == {"spans": 6}
    with receiving(path, retention={"traces": "30d"}) as house:
        for _ in range(200):
            if not house.read():
                break
            time.sleep(0.05)
        assert house.read() == []
    recorded = warehouse.read_rows("from forgotten_traces order by forgotten_at")
    assert [(row["rule"], row["trace_id"], row["n_traces"], row["n_spans"], row["n_events"]) for row in recorded] == [
        ("--sample", number_trace(2), 1, 3, 0),
        ("--older-than 9d", None, 2, 6, 0),
        ('[retention] traces = "30d"', None, 1, 3, 0),
    ]
    began = [(row["first_began_at"], row["last_began_at"]) for row in recorded]
    assert began == [(_minute(2), _minute(2)), (_minute(1), _minute(3)), (_minute(4), _minute(4))]
    assert all(row["forgotten_by"] and row["n_bytes"] > 300 for row in recorded)
    assert warehouse.read_rows("from forgotten") == []


def test_reading_deleted_traces_reports_the_deletion(tmp_path: Path, prefect_home: Path) -> None:
    place = Place(folder=tmp_path, variables={"PREFECT_HOME": str(prefect_home)})
    with receiving(tmp_path / "w.duckdb") as house:
        for number in (1, 2, 3):
            house.post(make_request(make_bot_trace(trace=number_trace(number), at_s=number * 60)))
    forgotten = place.call(
        "warehouse", "forget", "--yes", "--sample", number_trace(1), "--warehouse", "w.duckdb", "--json"
    )
    traces = {"n_traces": 1, "first_began_at": "2026-03-14T12:01:00", "last_began_at": "2026-03-14T12:01:00"}
    assert (forgotten.document["traces"], forgotten.document["rows"]) == (traces, {"spans": 3})
    forget(house.warehouse, Rule(words="--older-than 9d", before=_minute(3)))
    note = read_stored(tmp_path / "w.duckdb")[1].notes[0]
    assert "; forgotten by 20" in note
    gone = "2 that began from 2026-03-14 12:01 to 2026-03-14 12:02 UTC"
    assert note.endswith(f": {gone} (--older-than 9d, --sample {number_trace(1)})")
    last = place.call("warehouse", "forget", "--yes", "--older-than", "1d", "--warehouse", "w.duckdb")
    assert "and 1 received trace that began at 2026-03-14 12:03 UTC" in last.stdout
    with pytest.raises(
        DatasetError, match=r"no traces from .*; forgotten by .*: 3 that began from 2026-03-14 12:01 to "
    ):
        read_stored(tmp_path / "w.duckdb")
    before = TraceWindow(last="1h", until="2026-03-14T11:00:00")
    with pytest.raises(DatasetError) as refused:
        read_stored(tmp_path / "w.duckdb", before)
    assert "forgotten" not in str(refused.value)


def test_a_receivers_file_is_refused_with_lines_and_keys(tmp_path: Path) -> None:
    path = tmp_path / "receiver.toml"
    path.write_text('body = 3\n[sampling]\nshare = 2\n[redaction]\npatterns = ["mail"]\nown = [{ patern = "x" }]\n')
    with pytest.raises(SettingsError) as refused:
        load_receiver(path)
    lines = str(refused.value).splitlines()
    assert lines[0].startswith("receiver.toml, line 1: body: unknown key; did you mean body_mb?")
    assert lines[1] == "receiver.toml, line 3: sampling.share: got 2; input should be less than or equal to 1"
    assert "line 5: redaction.patterns[1]: got 'mail'; input should be 'email', 'phone'" in lines[2]
    assert any("patern" in line for line in lines)
    assert load_receiver(None).sampling.share == 1


def test_a_suite_judges_the_traces_of_a_time_and_pays_for_none_twice(tmp_path: Path, prefect_home: Path) -> None:
    place = Place(folder=tmp_path, variables={"PREFECT_HOME": str(prefect_home)})
    path = tmp_path / "w.duckdb"
    now_s = time.time() - NOON_NS / 1e9
    with receiving(path) as house:
        for number, at_s in ((1, now_s - 7200), (2, now_s - 60), (3, now_s - 90_000)):
            house.post(make_request(make_bot_trace(trace=number_trace(number), at_s=at_s, question=f"Q {number}?")))
        house.post(make_request(make_bot_trace(trace=number_trace(4), at_s=now_s), service="other-bot"))
    suite = tmp_path / "nightly.toml"
    suite.write_text(
        'dataset = "traces"\njudge = "lexical"\nwarehouse = "w.duckdb"\n\n[traces]\n'
        'last = "24h"\nservice = "ferry-bot"\n',
        encoding="utf-8",
    )
    nights = [place.call("run", suite.name, "--json") for _ in range(2)]
    assert [night.status for night in nights] == [0, 0], nights[0].stderr
    first, second = (night.document for night in nights)
    assert first["n_samples"] == 2
    assert list(first["metrics"]) == ["faithfulness"]
    assert (second["calls"]["requests"], second["calls"]["reused"]) == (0, first["calls"]["requests"])
    warehouse = Warehouse(str(path))
    runs = warehouse.read_rows("select dataset_hash, config ->> '$.traces.until' as until from runs")
    assert len({row["dataset_hash"] for row in runs}) == 1
    assert all(row["until"] for row in runs)
    joined = "select distinct trace_id from run_samples join spans on trace_id = sample_id order by all"
    assert [row["trace_id"] for row in warehouse.read_rows(joined)] == [number_trace(1), number_trace(2)]
    dry = place.call("run", suite.name, "--dry-run")
    assert (dry.status, "traces: 2 of 6 spans" in dry.stderr) == (0, True)
    suite.write_text(suite.read_text(encoding="utf-8").replace("ferry-bot", "no-bot"), encoding="utf-8")
    refused = place.call("run", suite.name)
    assert refused.status == 2
    assert "no traces of service 'no-bot' from" in refused.stderr
    assert "evalhouse receive" in refused.stderr


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('dataset = "traces"\n[traces]\nlast = "1 day"\n', "line 3: traces.last: got '1 day'; write a number of hours"),
        ('dataset = "traces"\n[traces]\nsince = "1d"\n', "line 3: traces.since: unknown key"),
        ('dataset = "traces"\n[traces]\nuntil = "noon"\n', "write a time in UTC"),
        ('dataset = "sample"\n[traces]\nlast = "1d"\n', "line 2: traces: the dataset is 'sample'"),
    ],
)
def test_a_time_that_makes_no_sense_is_refused(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "s.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(SettingsError) as refused:
        load_suite(path)
    assert why in str(refused.value)


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
    assert staged.notes[0] == "traces: 1 of 1 spans, 1 became samples; 3 events that name no span left out"
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


def test_a_warehouse_that_is_held_ends_neither_sampling_nor_retention(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Another program may keep the file open for longer than the receiver waits, and a disk may be full for a while."""
    done: list[str] = []

    def fail_once(name: str, error: Exception) -> Callable[..., None]:
        def call(*_: object) -> None:
            done.append(name)
            if done.count(name) == 1:
                raise error

        return call

    monkeypatch.setattr(receiver, "_FORGET_AGAIN_S", 0.0)
    monkeypatch.setattr(receiver, "forget_traces", fail_once("forget", WarehouseBusy("it is held")))
    monkeypatch.setattr(SpanKeeper, "drop_old", fail_once("drop", OSError("disk full")))
    sampling = {"share": 0.0, "wait_s": 0.4}
    with receiving(tmp_path / "w.duckdb", sampling=sampling, retention={"traces": "30d"}):
        deadline = time.monotonic() + 60
        while (done.count("forget") < 2 or done.count("drop") < 2) and time.monotonic() < deadline:
            time.sleep(0.05)
    assert done.count("forget") == 2  # the next time is an hour later
    assert done.count("drop") >= 2
    assert "traces that are too old were not removed, which is tried again: it is held" in caplog.text
    assert "disk full" in caplog.text


@pytest.mark.slow
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
    with receiving(tmp_path / "alone.duckdb") as house:  # without its spans
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
