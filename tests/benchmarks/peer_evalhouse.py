"""evalhouse over samples of a JSON file, for `peers.py`: the whole flow with its Prefect server, one JSON line.

Measured from the flow's start, when the dataset is read and the server is up, to the end of the run: load, judge, keep
on record, score. CPU is that of this process and of its child, the Prefect server.

    PYTHON peer_evalhouse.py SAMPLES.json IN_FLIGHT
"""

from __future__ import annotations

import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent

from evalhouse.flows.evaluate import start_run  # noqa: E402
from evalhouse.flows.preparing.request import RunRequest  # noqa: E402
from evalhouse.tasks.pipeline.live_run import LiveRun  # noqa: E402
from evalhouse.tasks.settings.run import RunSettings  # noqa: E402
from evalhouse.warehouse.store import Warehouse  # noqa: E402

METRICS = ("answer_correctness", "context_recall", "context_precision", "faithfulness")
_SCORES = "select count(*) as n, count(value) as scored from scores where list_contains($metrics, metric)"


def main() -> None:
    marks: dict[str, float] = {}

    @contextmanager
    def watch(_: LiveRun) -> Iterator[None]:
        marks["clock"], marks["cpu"] = time.monotonic(), time.process_time()
        yield
        marks["wall_s"], marks["cpu_s"] = time.monotonic() - marks["clock"], time.process_time() - marks["cpu"]

    with tempfile.TemporaryDirectory() as folder:
        settings = RunSettings(
            dataset=sys.argv[1],
            warehouse=str(Path(folder) / "peers.duckdb"),
            judge="openai:judge",
            metrics=METRICS,
            concurrency=int(sys.argv[2]),
        )
        start_run(RunRequest(settings=settings), watch=watch)
        (row,) = Warehouse(settings.warehouse).read_rows(_SCORES, {"metrics": list(METRICS)})
    n, scored = int(str(row["n"])), int(str(row["scored"]))
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    told = {"wall_s": marks["wall_s"], "cpu_s": marks["cpu_s"], "peak_mb": peak_mb, "scores": n, "lost": n - scored}
    print(json.dumps(told))


if __name__ == "__main__":
    os.environ.setdefault("PREFECT_LOGGING_LEVEL", "ERROR")
    main()
