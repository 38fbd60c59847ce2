"""Real instrumentors and OpenTelemetry's own exporter, into a real receiver: the answers of a bot become samples."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
import traced_bot
from endpoint import running_endpoint
from receiving import TOKEN, serving

from evalhouse.tasks.datasets.read import stage_of
from evalhouse.tasks.settings.run import RunSettings


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


@pytest.mark.parametrize(
    "instrumentor",
    ["openinference", *(pytest.param(name, marks=pytest.mark.slow) for name in ("openllmetry", "langfuse"))],
)
def test_what_instrumentors_record_becomes_samples(tmp_path: Path, instrumentor: str) -> None:
    needed = ["opentelemetry.exporter.otlp.proto.http", *(name for name, _ in traced_bot.INSTRUMENTORS[instrumentor])]
    if missing := [name for name in needed if not _is_there(name)]:
        pytest.skip(f"not installed: {', '.join(missing)}")
    warehouse = tmp_path / "w.duckdb"
    with serving(warehouse) as house, running_endpoint() as endpoint:
        receiver = f"http://127.0.0.1:{house.port}/v1/traces"
        command = [sys.executable, traced_bot.__file__, instrumentor, endpoint.base_url, receiver, TOKEN]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
    assert house.reports[0].endswith("0 not sampled"), done.stderr
    staged = stage_of(RunSettings(dataset="traces", warehouse=str(warehouse)))
    chain, call = staged.staging.read_between(1, 2)
    staged.staging.discard()
    for sample in (chain, call):
        assert sample.question == traced_bot.QUESTION
        assert sample.answer
        assert sample.metadata["models"] == ["ferry-1"]
        assert sample.metadata["service"] == "ferry-bot"
        assert int(str(sample.metadata["prompt_tokens"])) > 0
    assert (chain.contexts, chain.context_ids) == (list(traced_bot.DOCUMENTS), ["d1", "d2"])
    assert chain.metadata["conversation_id"] == "s-7"
    assert call.contexts is None
    assert staged.notes[0].endswith("2 became samples")
