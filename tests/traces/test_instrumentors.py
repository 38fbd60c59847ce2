"""Real instrumentors and OpenTelemetry's own exporter, into a real receiver: the answers of a bot become samples."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from receiving import TOKEN, read_stored, serving
from test_recorded_spans import CASES, check_samples

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "record_spans.py"
MODULES = {
    "openinference_langchain": "openinference.instrumentation.langchain",
    "openllmetry_langchain": "opentelemetry.instrumentation.langchain",
    "langfuse": "langfuse.langchain",
}


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


@pytest.mark.parametrize(
    "bot",
    ["openinference_langchain", *(pytest.param(name, marks=pytest.mark.slow) for name in list(MODULES)[1:])],
)
def test_what_instrumentors_send_becomes_samples(tmp_path: Path, bot: str) -> None:
    needed = ["opentelemetry.exporter.otlp.proto.http", MODULES[bot], "langchain.agents"]
    if missing := [name for name in needed if not _is_there(name)]:
        pytest.skip(f"not installed: {', '.join(missing)}")
    warehouse = tmp_path / "w.duckdb"
    with serving(warehouse) as house:
        command = [sys.executable, SCRIPT, bot, f"http://127.0.0.1:{house.port}/v1/traces", TOKEN]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
    assert house.reports[0].endswith("0 not sampled"), done.stderr
    samples, _ = read_stored(warehouse, None)
    expected = CASES["openinference_langchain" if bot == "langfuse" else bot]
    check_samples(sorted(samples, key=lambda sample: "conversation_id" in sample.metadata), expected)
