"""Measure the judge's call path: calls, time against the ideal, CPU a call, memory.

Starts the local endpoint as a separate process, takes samples of five contexts through all steps without Prefect,
and prints one line. The ideal time is calls x latency / requests in flight; the wall time is taken from the first
request to the last row in the warehouse. CPU is that of this process alone, imports and start-up apart.

    python tests/benchmarks/call_path.py --latency 0.3 --in-flight 16 --samples 300 [--server-limit 16] [--again]
        [--judge anthropic:judge] [--embeddings]
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import resource
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests" / "helpers"))

from endpoint import running_endpoint  # noqa: E402
from live_runs import lay_out_run, make_sample, make_settings, point_to  # noqa: E402
from provider_cases import point_provider  # noqa: E402

from evalhouse.tasks.models.make import make_judge  # noqa: E402
from evalhouse.tasks.pipeline.live_run import LiveRun, Shard, make_work, registered, take_shard  # noqa: E402
from evalhouse.warehouse.rows.samples import StoredSample  # noqa: E402

SHARD = 128


def build_samples(count: int) -> list[StoredSample]:
    """Return samples of realistic length: five contexts of some 600 characters, answers of five sentences."""
    filler = (
        " The keeper writes the weather into the log every morning and every evening, in ink, as the rules ask." * 5
    )
    samples = []
    for number in range(1, count + 1):
        facts = [f"The {part} of lighthouse {number} was made in {1800 + number + k}." for k, part in enumerate(
            ("tower", "lamp", "stair", "horn", "quay"))]  # fmt: skip
        samples.append(
            make_sample(
                number,
                answer=" ".join(facts),
                ground_truth=" ".join(facts[:4]) + f" The door of lighthouse {number} is red.",
                contexts=[fact + filler for fact in facts],
            )
        )
    return samples


def list_rows(count: int) -> list[dict[str, Any]]:
    """The same as rows of a dataset."""
    names = ("question", "answer", "ground_truth", "contexts")
    return [{"id": one.sample_id, **{name: getattr(one, name) for name in names}} for one in build_samples(count)]


async def judge_shards(live_run: LiveRun, samples: list[StoredSample]) -> None:
    """Judge as the flow does: a few shards side by side, all steps of a shard side by side."""
    from live_runs import SAMPLE_STEPS  # noqa: PLC0415

    turns = asyncio.Semaphore(1 + -(-2 * live_run.settings.concurrency // SHARD))

    async def judge_shard(number: int) -> None:
        async with turns:
            part = samples[number * SHARD : (number + 1) * SHARD]
            live_run.shards[number] = Shard(number=number, first=0, last=0, works=[make_work(item) for item in part])
            await asyncio.gather(*(take_shard(live_run.run_id, number, step) for step in SAMPLE_STEPS))

    await asyncio.gather(*(judge_shard(number) for number in range(-(-len(samples) // SHARD))))


async def measure(options: argparse.Namespace, folder: Path, run_id: str) -> dict[str, float]:
    """Judge all samples in one run; return seconds and CPU seconds, without imports and start-up."""
    samples = build_samples(options.samples)
    settings = make_settings(judge=options.judge, concurrency=options.in_flight, timeout_s=60.0)
    if options.embeddings:
        settings = settings.model_copy(update={"embeddings": "openai:embedder"})
    async with lay_out_run(folder, settings, judge=make_judge(settings), run_id=run_id) as live_run:
        with registered(live_run):
            started, cpu_started = time.monotonic(), time.process_time()
            await judge_shards(live_run, samples)
            asked_s = time.monotonic() - started
        reused = live_run.asker.counts.reused
    cpu_s = time.process_time() - cpu_started
    return {"wall_s": time.monotonic() - started, "asked_s": asked_s, "cpu_s": cpu_s, "reused": reused}


def report(options: argparse.Namespace, measured: dict[str, float], stats: dict[str, Any]) -> None:
    """Print one line of figures."""
    requests = sum(stats["requests"].values())
    refused = stats["statuses"].get(429, 0)
    calls = requests - refused
    at_once = min(options.in_flight, options.server_limit or options.in_flight)
    ideal = calls * options.latency / at_once
    counted = max(1, calls + int(measured["reused"]))
    print(
        f"{options.judge}: latency {options.latency:g} s, {options.in_flight} in flight: {calls} calls, "
        f"{int(measured['reused'])} reused, "
        f"{stats['duplicates_answered']} paid twice, {refused} refused ({refused / max(1, requests):.1%}), "
        f"most in flight {stats['max_in_flight']}; asked {measured['asked_s']:.2f} s, with the record "
        f"{measured['wall_s']:.2f} s, ideal {ideal:.2f} s, efficiency {ideal / measured['asked_s']:.1%}; "
        f"{1000 * measured['cpu_s'] / counted:.2f} ms CPU a call; "
        f"peak {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB",
        flush=True,
    )


def serve(pipe: Connection, options: dict[str, Any]) -> None:
    """Serve an endpoint in this process; answer each word with what was asked since the last one."""
    with running_endpoint(**options) as endpoint:
        pipe.send(endpoint.base_url)
        while pipe.recv():
            pipe.send(vars(endpoint.stats))
            endpoint.reset()


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the judge's call path.")
    parser.add_argument("--latency", type=float, default=0.3, help="seconds")
    parser.add_argument("--in-flight", type=int, default=16)
    parser.add_argument("--samples", type=int, default=300)
    parser.add_argument("--server-limit", type=int, help="the endpoint answers 429 above this many")
    parser.add_argument("--judge", default="openai:judge", help="a provider of tests/helpers/provider_cases.py")
    parser.add_argument("--embeddings", action="store_true", help="compare meaning by the same endpoint's embeddings")
    parser.add_argument("--again", action="store_true", help="a second run, which should find all replies recorded")
    options = parser.parse_args()
    os.environ["PREFECT_SERVER_ALLOW_EPHEMERAL_MODE"] = "false"
    ours, theirs = multiprocessing.Pipe()
    endpoint = {"latency": options.latency, "max_in_flight": options.server_limit}
    serving = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs, endpoint), daemon=True)
    serving.start()
    base_url = ours.recv()
    point_to(base_url)
    if not options.judge.startswith("openai:"):
        point_provider(options.judge, base_url.removesuffix("/v1"))
    with tempfile.TemporaryDirectory() as folder:
        for run_id in ["first", "second"][: 1 + options.again]:
            measured = asyncio.run(measure(options, Path(folder), run_id))
            ours.send("stats")
            report(options, measured, ours.recv())
    ours.send("")
    serving.join()


if __name__ == "__main__":
    main()
