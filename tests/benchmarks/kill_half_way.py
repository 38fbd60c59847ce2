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
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests" / "helpers"))

from call_path import list_rows  # noqa: E402
from cli_process import Place, finish  # noqa: E402
from kill_runs import NotingEndpoint, noting_endpoint, read_recorded, read_rows  # noqa: E402

METRICS = "answer_correctness,context_recall,context_precision,faithfulness"
REQUESTS_A_SAMPLE = 6


def kill(process: subprocess.Popen[str], endpoint: NotingEndpoint, n_settled: int, delay_s: float, path: Path) -> None:
    """Kill a run so long after so many requests have been answered, and print what it left."""
    n_before = len(endpoint.asked)
    while process.poll() is None and len(endpoint.settled) < n_settled:
        time.sleep(0.005)
    time.sleep(delay_s)
    killed_at = time.monotonic()
    process.send_signal(signal.SIGKILL)
    if finish(process).status != -signal.SIGKILL:
        raise SystemExit("the run ended before it was killed; give it more samples or latency")
    endpoint.settle()
    recorded, asked = read_recorded(path), endpoint.asked[n_before:]
    unsettled = {noted.texts for noted in asked} - recorded.keys()
    answered = unsettled & {noted.texts for noted in endpoint.answered if noted.at <= killed_at}
    print(
        f"killed after {len(asked)} requests: {len(recorded)} replies recorded, {len(unsettled - answered)} in flight, "
        f"{len(answered)} answered and not recorded"
    )


def report(endpoint: NotingEndpoint, path: Path, status: str) -> None:
    """Print two lines for the whole run."""
    asked = [noted.texts for noted in endpoint.asked]
    (scored,) = read_rows(path, "select count(*) as n, count(value) as scored from scores")
    n_twice = sum(read_recorded(path).values()) - len(read_recorded(path))
    print(
        f"resumed to the end ({status}): {len(set(asked))} different requests, "
        f"{len(asked) - len(set(asked))} asked again, {endpoint.stats.duplicates_answered} paid twice, "
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
    dice, max_more = random.Random(options.seed), max(2, 2 * n_requests // (options.kills + 1))
    with noting_endpoint(latency=options.latency) as endpoint, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["TESTS_SESSION_FOLDER"] = f"{name}/session"  # each process has its own Prefect server
        rows = "".join(f"{json.dumps(row)}\n" for row in list_rows(options.samples))
        (folder / "samples.jsonl").write_text(rows, encoding="utf-8")
        variables = {"OPENAI_BASE_URL": endpoint.base_url, "OPENAI_API_KEY": "none", "PREFECT_HOME": f"{name}/prefect"}
        place, path = Place(folder=folder, variables=variables), folder / "evalhouse.duckdb"
        for number in range(options.kills):
            process = place.start("resume", "latest") if number else place.start("run", *run)
            is_one = options.kills == 1
            n_more = n_requests // 2 if is_one else dice.randrange(1, max_more)
            delay_s = 0.0 if is_one else dice.uniform(0.0, 0.5)
            kill(process, endpoint, min(n_requests, len(endpoint.settled) + n_more), delay_s, path)
        finished = place.call_process("resume", "latest", "--json", timeout_s=3600.0)
        if finished.status != 0:
            raise SystemExit(finished.stderr)
        report(endpoint, path, finished.document["status"])


if __name__ == "__main__":
    main()
