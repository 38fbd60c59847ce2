"""Measure the cost of `kill -9`: a run of 300 samples of five contexts is killed after half of its requests were
answered, resumed, and counted at the endpoint. With `--kills` it is killed that often at random moments.

`asked again` are requests whose body had been received before; `paid twice` were answered before, too. A request that
was not answered when the process died (`in flight`) may be asked again, a recorded one never is.

    python tests/benchmarks/kill_half_way.py [--samples 300] [--latency 0.3] [--in-flight 16] [--kills 20]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests" / "helpers"))

from call_path import list_rows  # noqa: E402
from cli_process import Place  # noqa: E402
from kill_runs import Lane, Life, Moment, noting_endpoint, read_recorded, read_rows  # noqa: E402

METRICS = "answer_correctness,context_recall,context_precision,faithfulness"
REQUESTS_A_SAMPLE = 6


def report(lane: Lane, lives: Sequence[Life], document: dict[str, object]) -> None:
    """Print a line for each kill, and two for the whole run."""
    asked = [noted.texts for noted in lane.endpoint.asked]
    path = lane.place.folder / "evalhouse.duckdb"
    (scored,) = read_rows(path, "select count(*) as n, count(value) as scored from scores")
    n_twice = sum(read_recorded(path).values()) - len(read_recorded(path))
    for life in lives:
        print(
            f"killed after {life.n_asked} requests: {life.n_recorded} replies recorded, {life.n_open} in flight, "
            f"{len(life.unsettled) - life.n_open} answered and not recorded (the oldest sent "
            f"{life.late_s * 1000:.0f} ms before the kill)"
        )
    print(
        f"resumed to the end ({document['status']}): {len(set(asked))} different requests, "
        f"{len(asked) - len(set(asked))} asked again, {lane.endpoint.stats.duplicates_answered} paid twice, "
        f"{n_twice} of the recorded ones asked again"
    )
    print(f"scores: {scored['n']}, of them without a value {scored['n'] - scored['scored']}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Kill a run half way, resume it, and count what is paid again.")
    parser.add_argument("--samples", type=int, default=300)
    parser.add_argument("--latency", type=float, default=0.3, help="seconds")
    parser.add_argument("--in-flight", type=int, default=16)
    parser.add_argument("--kills", type=int, default=1, help="at random moments when more than one")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    run = ("samples.jsonl", "--judge", "openai:judge", "--metrics", METRICS, "--concurrency", str(options.in_flight))
    n_requests = options.samples * REQUESTS_A_SAMPLE
    moments = [Moment(stage="asking", n_more=n_requests // 2, delay_s=0.0)]
    if options.kills > 1:
        dice = random.Random(options.seed)
        max_more = max(2, 2 * n_requests // (options.kills + 1))
        moments = [
            Moment(stage="asking", n_more=dice.randrange(1, max_more), delay_s=dice.uniform(0.0, 0.5))
            for _ in range(options.kills)
        ]
    with noting_endpoint(latency=options.latency) as endpoint, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["TESTS_SESSION_FOLDER"] = f"{name}/session"  # each process has its own Prefect server
        rows = "".join(f"{json.dumps(row)}\n" for row in list_rows(options.samples))
        (folder / "samples.jsonl").write_text(rows, encoding="utf-8")
        variables = {"OPENAI_BASE_URL": endpoint.base_url, "OPENAI_API_KEY": "none", "PREFECT_HOME": f"{name}/prefect"}
        lane = Lane(
            place=Place(folder=folder, variables=variables), endpoint=endpoint, arguments=run, n_requests=n_requests
        )
        n_killed = sum(lane.kill_at(moment) for moment in moments)
        if n_killed < min(2, options.kills):
            raise SystemExit("the run ended before it was killed; give it more samples or latency")
        finished = lane.place.call_process("resume", "latest", "--json", timeout_s=3600.0)
        if finished.status != 0:
            raise SystemExit(finished.stderr)
        report(lane, lane.lives, finished.document)


if __name__ == "__main__":
    main()
