"""Traces as tools export them, one bot's answer to one question each, in files; and what becomes of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from evalhouse.tasks.datasets.read import StagedDataset, stage_of
from evalhouse.tasks.settings.run import RunSettings
from evalhouse.warehouse.rows.samples import StoredSample

TRACE = "5b8efff798038103d269b633813fc60c"
NOON_NS = 1_773_489_600_000_000_000  # 2026-03-14, 12:00 UTC
NOON = "2026-03-14T12:00:0{}+00:00"
QUESTION, ANSWER = "When does the night ferry leave?", "At 22:40."
TEXTS = ["The night ferry leaves Quillon at 22:40.", "The day ferry leaves at noon."]

Attributes = Mapping[str, Any]


def write_lines(path: Path, rows: Iterable[object]) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def read_traces_of(path: Path, form: str) -> tuple[list[StoredSample], StagedDataset]:
    """The samples that a file of traces becomes."""
    staged = stage_of(RunSettings(dataset=str(path), format=form))  # type: ignore[arg-type]  # a name of TraceFormat
    try:
        return staged.staging.read_between(1, staged.n_samples), staged
    finally:
        staged.staging.discard()


def read_one(path: Path, form: str) -> StoredSample:
    (sample,), _ = read_traces_of(path, form)
    return sample


def check_bot(sample: StoredSample, *, ids: list[str] | None) -> dict[str, Any]:
    """Compare a sample with the answer of the bot of these traces, and return its metadata."""
    assert (sample.question, sample.answer, sample.ground_truth) == (QUESTION, ANSWER, None)
    assert (sample.contexts, sample.context_ids) == (TEXTS, ids)
    metadata: dict[str, Any] = dict(sample.metadata)
    assert (metadata["prompt_tokens"], metadata["completion_tokens"], metadata["models"]) == (61, 6, ["m-1"])
    assert metadata["latency_ms"] == pytest.approx(1000)
    return metadata


def pack(value: object) -> dict[str, Any]:
    """A value as OTLP has it in JSON."""
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    if isinstance(value, list):
        return {"arrayValue": {"values": [pack(item) for item in value]}}
    if isinstance(value, dict):
        return {"kvlistValue": {"values": pack_all(value)}}
    return {"stringValue": value}


def pack_all(attributes: Attributes) -> list[dict[str, Any]]:
    return [{"key": key, "value": pack(value)} for key, value in attributes.items()]


def make_span(
    number: int,
    attributes: Attributes,
    *,
    parent: int | None = None,
    trace: str = TRACE,
    at_s: float = 0.0,
    took_s: float | None = 1.0,
    error: str | None = None,
    events: Iterable[tuple[str, Attributes]] = (),
) -> dict[str, Any]:
    """A span as OTLP has it in JSON; it begins `at_s` seconds after noon."""
    begin = NOON_NS + int(at_s * 1e9)
    return {
        "traceId": trace,
        "spanId": f"{number:016x}",
        "parentSpanId": "" if parent is None else f"{parent:016x}",
        "name": f"step {number}",
        "kind": 1,
        "startTimeUnixNano": str(begin),
        **({"endTimeUnixNano": str(begin + int(took_s * 1e9))} if took_s is not None else {}),
        "attributes": pack_all(attributes),
        "events": [{"name": name, "attributes": pack_all(own)} for name, own in events],
        "status": {} if error is None else {"code": 2, "message": error},
    }


def make_request(spans: Iterable[object], service: str = "ferry-bot") -> dict[str, Any]:
    """An ExportTraceServiceRequest in JSON."""
    resource = {"attributes": pack_all({"service.name": service})}
    return {"resourceSpans": [{"resource": resource, "scopeSpans": [{"scope": {"name": "x"}, "spans": list(spans)}]}]}


def make_log(
    number: int,
    name: str,
    *,
    body: object = None,
    attributes: Attributes | None = None,
    trace: str = TRACE,
    at_s: float = 0.0,
) -> dict[str, Any]:
    """A log record about a span as OTLP has it in JSON; it is written `at_s` seconds after noon."""
    return {
        "timeUnixNano": str(NOON_NS + int(at_s * 1e9)),
        "severityNumber": 9,
        "eventName": name,
        "attributes": pack_all(attributes or {}),
        "traceId": trace,
        "spanId": f"{number:016x}",
        **({} if body is None else {"body": pack(body)}),
    }


def make_logs_request(records: Iterable[object], service: str = "ferry-bot") -> dict[str, Any]:
    """An ExportLogsServiceRequest in JSON."""
    resource = {"attributes": pack_all({"service.name": service})}
    return {"resourceLogs": [{"resource": resource, "scopeLogs": [{"scope": {"name": "x"}, "logRecords": [*records]}]}]}


def make_bot_trace(
    *, trace: str = TRACE, question: str = QUESTION, answer: str = ANSWER, at_s: float = 0.0, session: str | None = None
) -> list[dict[str, Any]]:
    """A chain with a retriever and a model in it, by OpenInference."""
    beside = {"session.id": session} if session else {}
    documents = {
        f"retrieval.documents.{place}.document.{key}": value
        for place, text in enumerate(TEXTS)
        for key, value in {"content": text, "id": f"d{place + 1}", "score": 0.9 - place / 4}.items()
    }
    outer = {"openinference.span.kind": "CHAIN", "input.value": question, "output.value": answer, **beside}
    retriever = {"openinference.span.kind": "RETRIEVER", "input.value": question, **documents}
    model = {
        "openinference.span.kind": "LLM",
        "llm.model_name": "m-1",
        "llm.input_messages.0.message.role": "user",
        "llm.input_messages.0.message.content": f"Answer {question} from: {' '.join(TEXTS)}",
        "llm.output_messages.0.message.role": "assistant",
        "llm.output_messages.0.message.content": answer,
        "llm.token_count.prompt": 61,
        "llm.token_count.completion": 6,
    }
    return [
        make_span(2, retriever, parent=1, trace=trace, at_s=at_s + 0.1, took_s=0.2),
        make_span(3, model, parent=1, trace=trace, at_s=at_s + 0.4, took_s=0.5),
        make_span(1, outer, trace=trace, at_s=at_s),
    ]


def make_langfuse_trace() -> dict[str, Any]:
    """A trace with its observations, as the API of Langfuse has one."""
    observation = {"traceId": TRACE, "startTime": NOON.format(0), "endTime": NOON.format(1), "level": "DEFAULT"}
    return {
        "id": TRACE, "timestamp": NOON.format(0), "name": "answer", "input": {"question": QUESTION},
        "output": {"answer": ANSWER}, "sessionId": "s-7", "userId": "u", "latency": 1.0, "tags": [],
        "observations": [
            {
                **observation, "id": "o1", "type": "RETRIEVER", "name": "search", "parentObservationId": None,
                "input": QUESTION,
                "output": [
                    {"page_content": text, "metadata": {"id": f"d{place}"}} for place, text in enumerate(TEXTS, start=1)
                ],
            },
            {
                **observation, "id": "o2", "type": "GENERATION", "name": "llm", "parentObservationId": None,
                "model": "m-1", "input": [{"role": "user", "content": "prompt"}],
                "output": {"role": "assistant", "content": ANSWER}, "usageDetails": {"input": 61, "output": 6},
            },
        ],
    }  # fmt: skip


def number_trace(number: int) -> str:
    """An id of a trace."""
    return f"{number:032x}"
