"""The spans that real instrumentors wrote (tests/benchmarks/record_spans.py) become samples in every dialect; and
what one of them sends into a real receiver, by OpenTelemetry's own exporter."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from receiving import TOKEN, read_stored, serving
from trace_files import make_request, pack_all, read_traces_of, write_lines

from evalhouse.tasks.datasets import otel
from evalhouse.warehouse.rows.samples import StoredSample

RECORDED = Path(__file__).with_name("recorded")
GUIDE = Path(otel.__file__).parents[2] / "flows" / "guides" / "traces.md"
QUESTION, ANSWER = "When does the night ferry leave?", "The night ferry leaves at 22:40."
TEXTS = ["The night ferry leaves Quillon at 22:40.", "The day ferry leaves at noon."]
HISTORY = [("user", "Is there a ferry to Quillon?"), ("assistant", "Yes, two a day.")]
CALLS = [{"name": "find_times", "arguments": {"query": "night ferry"}}]
# The samples of each bot: calls of the model, and which of ids, history, tool calls, session the spans have.
CASES: dict[str, list[tuple[int, str]]] = {
    "openinference_langchain": [(2, "ids history calls"), (1, "ids history session")],
    "openinference_llama_index": [(1, "ids"), (1, "ids"), (2, "ids calls")],
    "openinference_openai": [(1, "history calls asks"), (1, "ids history")],
    "openllmetry_langchain": [(2, "ids history calls"), (1, "history session")],
    "openllmetry_openai": [(1, "history calls asks"), (1, "ids history")],
    "strands": [(2, "ids calls session")],
    "strands_latest": [(2, "ids calls session")],
    "pydantic_ai": [(2, "ids history calls session")],
    "mlflow": [(1, "ids")],
    "agent_framework": [(2, "ids history calls")],
    "promptflow": [(1, "nothing")],
    "google_adk": [(2, "ids calls session")],
}


def check(path: Path, expected: list[tuple[int, str]]) -> None:
    samples, _ = read_traces_of(path, "otel")
    check_samples(samples, expected)


def check_samples(samples: list[StoredSample], expected: list[tuple[int, str]]) -> None:
    assert len(samples) == len(expected)
    for sample, (n_calls, parts) in zip(samples, expected, strict=True):
        has = set(parts.split())
        metadata: dict[str, Any] = dict(sample.metadata)
        assert sample.question == QUESTION
        assert (sample.answer or "").strip() == ("" if "asks" in has else ANSWER)  # the trace ends with a call
        assert sample.contexts == (None if has & {"asks", "nothing"} else TEXTS)
        assert sample.context_ids == (["d1", "d2"] if "ids" in has else None)
        history = [(turn.role, turn.text) for turn in sample.conversation or []]
        assert history == (HISTORY if "history" in has else [])
        assert metadata.get("tool_calls") == (CALLS if "calls" in has else None)
        assert ("conversation_id" in metadata) is ("session" in has)
        assert (metadata["prompt_tokens"], metadata["completion_tokens"]) == (61 * n_calls, 6 * n_calls)
        assert metadata["models"] == ["ferry-1"]
        assert metadata["service"] == "ferry-bot"


@pytest.mark.parametrize("name", CASES)
def test_spans_of_real_instrumentors_become_samples(name: str) -> None:
    check(RECORDED / f"{name}.jsonl", CASES[name])


def test_every_recording_is_read_and_names_its_versions() -> None:
    names = sorted(path.stem for path in RECORDED.glob("*.jsonl"))
    assert names == sorted(CASES)
    assert sorted(json.loads((RECORDED / "versions.json").read_text(encoding="utf-8"))) == names


@pytest.mark.parametrize("ending", ["json", "jsonl"])
def test_objects_over_several_lines_one_after_another_are_read(tmp_path: Path, ending: str) -> None:
    lines = (RECORDED / "strands.jsonl").read_text(encoding="utf-8").splitlines()
    path = tmp_path / f"console.{ending}"
    path.write_text("\n".join(json.dumps(json.loads(line), indent=4) for line in lines), encoding="utf-8")
    check(path, CASES["strands"])


def test_ids_in_base64_are_read_as_those_in_hex(tmp_path: Path) -> None:
    def encode(an_id: str | None) -> str:
        return base64.b64encode(bytes.fromhex((an_id or "0x")[2:])).decode()

    spans = []
    for line in (RECORDED / "google_adk.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        spans.append(
            {
                "traceId": encode(row["context"]["trace_id"]),
                "spanId": encode(row["context"]["span_id"]),
                "parentSpanId": encode(row["parent_id"]),
                "startTimeUnixNano": "1773489600000000000",
                "endTimeUnixNano": "1773489601000000000",
                "attributes": pack_all(row["attributes"]),
            }
        )
    check(write_lines(tmp_path / "t.jsonl", [make_request(spans)]), CASES["google_adk"])


def test_guide_names_the_attributes_that_are_read() -> None:
    source = Path(otel.__file__).read_text(encoding="utf-8")
    read = set(re.findall(r'"((?:[a-z_]+\.)+[A-Za-z_.]+)"', source))
    table = GUIDE.read_text(encoding="utf-8").split("**Which attribute of which tracer.**")[1].split("Tokens are")[0]
    named = set(re.findall(r"`((?:[a-z_]+\.)+[A-Za-z_.]+)`", table))
    assert named
    assert sorted(name for name in named if name not in read) == []


SCRIPT = Path(__file__).parents[1] / "benchmarks" / "record_spans.py"
NEEDED = ("langchain", "langfuse", "openinference", "opentelemetry")


@pytest.mark.skipif(not all(map(find_spec, NEEDED)), reason=f"not all are installed: {', '.join(NEEDED)}")
@pytest.mark.parametrize("bot", ["openinference_langchain", pytest.param("langfuse", marks=pytest.mark.slow)])
def test_what_an_instrumentor_sends_becomes_samples(tmp_path: Path, bot: str) -> None:
    warehouse = tmp_path / "w.duckdb"
    with serving(warehouse) as house:
        command = [sys.executable, SCRIPT, bot, f"http://127.0.0.1:{house.port}/v1/traces", TOKEN]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
    assert house.reports[0].endswith("0 not sampled"), done.stderr
    samples, _ = read_stored(warehouse, None)
    check_samples(
        sorted(samples, key=lambda sample: "conversation_id" in sample.metadata), CASES["openinference_langchain"]
    )
