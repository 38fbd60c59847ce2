"""evalhouse beside ragas and deepeval: the same samples, the same endpoint, one after the other in turns.

Starts the local endpoint with a given latency and faults, lets each evaluator judge the same samples of five contexts
for correctness, recall, precision and faithfulness, and prints side by side what the endpoint counted and what each
process took. Asking lasts from the first request to the last reply, as the endpoint saw it; the ideal for that is
answered requests x latency / requests in flight. Wall time adds what comes before and after, but for start-up.
Peers live in environments of their own and are left out where they are not named:

    python -m venv ragas && ragas/bin/pip install ragas 'langchain-community<0.4' langchain-openai
    python -m venv deepeval && deepeval/bin/pip install deepeval
    python tests/benchmarks/peers.py --ragas ragas/bin/python --deepeval deepeval/bin/python --in-flight 16
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
sys.path[:0] = [str(FOLDER), str(FOLDER.parent / "helpers")]

from call_path import build_samples, read_json  # noqa: E402
from endpoint import running_command  # noqa: E402

_COLUMNS = (
    "evaluator", "calls", "a sample", "twice", "refused", "prompt tokens", "completion", "wall s", "asking s",
    "ideal s", "efficiency", "CPU ms/call", "peak MB", "scores lost",
)  # fmt: skip


def write_samples(path: Path, count: int) -> None:
    """The samples of `call_path.py` as a JSON file that any of the evaluators reads."""
    rows = [
        {
            "sample_id": sample.sample_id,
            "question": sample.question,
            "answer": sample.answer,
            "ground_truth": sample.ground_truth,
            "contexts": sample.contexts,
        }
        for sample in build_samples(count)
    ]
    path.write_text(json.dumps(rows), encoding="utf-8")


def measure(name: str, python: str, samples: Path, options: argparse.Namespace) -> dict[str, Any] | None:
    """One evaluator against an endpoint of its own; None when it did not come to an end in time or failed."""
    arguments = ["--latency", str(options.latency)]
    for flag, value in (("--faults", options.faults), ("--max-in-flight", options.server_limit)):
        arguments += [flag, str(value)] if value else []
    with running_command(*arguments) as addresses:
        environment = os.environ | {
            "OPENAI_BASE_URL": addresses["base_url"],
            "OPENAI_API_KEY": "none-needed",
            "RAGAS_DO_NOT_TRACK": "true",
        }
        command = [os.path.abspath(python), str(FOLDER / f"peer_{name}.py"), str(samples), str(options.in_flight)]
        try:
            done = subprocess.run(
                command, env=environment, cwd=samples.parent, capture_output=True, text=True,
                timeout=options.patience, check=True,
            )  # fmt: skip
        except (subprocess.TimeoutExpired, subprocess.CalledProcessError) as error:
            told = error.stderr or b""
            text = told if isinstance(told, str) else told.decode(errors="replace")
            print(f"{name}: {type(error).__name__}: {text.strip()[-400:]}", file=sys.stderr, flush=True)
            return None
        return {**json.loads(done.stdout.splitlines()[-1]), "stats": read_json(addresses["stats_url"])}


def describe(name: str, found: list[dict[str, Any]], options: argparse.Namespace) -> tuple[str, ...]:
    """One line of the table: medians over the turns."""
    calls = [sum(one["stats"]["requests"].values()) for one in found]
    refused = [one["stats"]["statuses"].get("429", 0) for one in found]
    answered = statistics.median(calls) - statistics.median(refused)
    bearable = min(options.in_flight, options.server_limit or options.in_flight)
    ideal_s = answered * options.latency / bearable
    asking_s = statistics.median(
        one["stats"]["last_request_at"] + options.latency - one["stats"]["first_request_at"] for one in found
    )
    wall_s = statistics.median(one["wall_s"] for one in found)
    cpu_s = statistics.median(one["cpu_s"] for one in found)
    return (
        name,
        f"{statistics.median(calls):,.0f}",
        f"{statistics.median(calls) / options.samples:.1f}",
        f"{statistics.median(one['stats']['duplicates_answered'] for one in found):,.0f}",
        f"{statistics.median(refused):,.0f}",
        f"{statistics.median(one['stats']['prompt_tokens'] for one in found):,.0f}",
        f"{statistics.median(one['stats']['completion_tokens'] for one in found):,.0f}",
        f"{wall_s:.1f}",
        f"{asking_s:.1f}",
        f"{ideal_s:.1f}",
        f"{ideal_s / asking_s:.0%}",
        f"{1000 * cpu_s / max(1, statistics.median(calls)):.1f}",
        f"{statistics.median(one['peak_mb'] for one in found):.0f}",
        f"{statistics.median(one['lost'] for one in found):,.0f} of {found[0]['scores']:,}",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="evalhouse beside ragas and deepeval.")
    parser.add_argument("--ragas", metavar="PYTHON", help="the interpreter of an environment that has ragas")
    parser.add_argument("--deepeval", metavar="PYTHON", help="the interpreter of an environment that has deepeval")
    parser.add_argument("--latency", type=float, default=0.3, help="seconds")
    parser.add_argument("--in-flight", type=int, default=16)
    parser.add_argument("--samples", type=int, default=300)
    parser.add_argument("--turns", type=int, default=1, help="how often each is measured, in turns")
    parser.add_argument("--faults", help="as the endpoint takes them, such as rate_limit=0.01,truncated=0.01")
    parser.add_argument("--server-limit", type=int, help="the endpoint answers 429 above this many")
    parser.add_argument("--patience", type=float, default=1800.0, help="seconds before an evaluator is given up")
    options = parser.parse_args()
    pythons = {"evalhouse": sys.executable, "ragas": options.ragas, "deepeval": options.deepeval}
    found: dict[str, list[dict[str, Any]]] = {name: [] for name, python in pythons.items() if python}
    with tempfile.TemporaryDirectory() as folder:
        samples = Path(folder) / "samples.json"
        write_samples(samples, options.samples)
        for _ in range(options.turns):
            for name in found:
                measured = measure(name, pythons[name], samples, options)
                found[name] += [measured] if measured else []
    print(f"{options.samples} samples, {options.latency:g} s latency, {options.in_flight} in flight")
    print("| " + " | ".join(_COLUMNS) + " |\n|" + " --- |" * len(_COLUMNS))
    for name, measurements in found.items():
        line = describe(name, measurements, options) if measurements else (name, *["–"] * (len(_COLUMNS) - 1))
        print("| " + " | ".join(line) + " |")


if __name__ == "__main__":
    main()
