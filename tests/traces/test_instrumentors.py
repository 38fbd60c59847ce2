"""Real instrumentors and OpenTelemetry's own exporter, into a real receiver: the answers of a bot become samples."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from receiving import TOKEN, read_stored, serving
from test_recorded_spans import CASES, check_samples

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "record_spans.py"
RECORDED = "openinference_langchain"
NEEDED = ("langchain", "langfuse", "openinference", "opentelemetry")


@pytest.mark.skipif(not all(map(find_spec, NEEDED)), reason=f"not all are installed: {', '.join(NEEDED)}")
@pytest.mark.parametrize("bot", [RECORDED, pytest.param("langfuse", marks=pytest.mark.slow)])
def test_what_an_instrumentor_sends_becomes_samples(tmp_path: Path, bot: str) -> None:
    warehouse = tmp_path / "w.duckdb"
    with serving(warehouse) as house:
        command = [sys.executable, SCRIPT, bot, f"http://127.0.0.1:{house.port}/v1/traces", TOKEN]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
    assert house.reports[0].endswith("0 not sampled"), done.stderr
    samples, _ = read_stored(warehouse, None)
    check_samples(sorted(samples, key=lambda sample: "conversation_id" in sample.metadata), CASES[RECORDED])
