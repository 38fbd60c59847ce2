"""A plan past the machines at hand: what a billion verdicts take, and what gives way first. A simulation, no network.

    python tests/benchmarks/plan.py [--verdicts 1000000000 --workers 8 --concurrency 512 --rpm 30000 --changed 1.0 …]

Two resources are shared by all workers, the endpoint's limit and the lake's one lock for writers. The endpoint's is a
rate. The lock is simulated: for an hour of virtual time every worker ends shards and moves its journal, each a
transaction that queues for the lock, first come, first served. What the hour shows is scaled to the whole. Every
number that goes in is an option. What evalhouse itself takes was measured (`workers.py`, `scale.py`, `history.py`);
tokens, prices, latency, limits and the pace of compacting are examples to be replaced by your own.
"""

from __future__ import annotations

import argparse
import dataclasses
import heapq
import random
from dataclasses import dataclass, field
from typing import Any

_HOUR_S = 3600.0
_MB, _GB = 1e6, 1e9
# A queue whose server is busy for longer than this share of the time only grows.
_BUSY_MOST = 0.85


def _option(default: float, text: str) -> Any:  # noqa: ANN401  # a field of any number's type
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True, kw_only=True)
class Assumptions:
    """Everything that goes in. Times are seconds."""

    verdicts: int = _option(1_000_000_000, "verdicts to give")
    verdicts_a_sample: float = _option(19.0, "labels of statements, supports and contexts of a sample")
    calls_a_sample: float = _option(5.0, "requests of a sample that was never asked")
    changed: float = _option(1.0, "share of samples of which something changed since they were last judged")
    prompt_tokens: float = _option(1100.0, "of a request")
    cached_share: float = _option(0.5, "of the prompt tokens that the provider has cached")
    completion_tokens: float = _option(180.0, "of a reply")
    usd_in: float = _option(0.40, "dollars a million prompt tokens")
    usd_cached: float = _option(0.10, "dollars a million cached prompt tokens")
    usd_out: float = _option(1.60, "dollars a million completion tokens")
    latency_s: float = _option(2.0, "of a request")
    concurrency: int = _option(512, "requests in flight, over all workers")
    rpm: int = _option(30_000, "requests a minute, over all workers")
    tpm: int = _option(150_000_000, "tokens a minute, over all workers")
    workers: int = _option(8, "processes that judge")
    cpu_call_s: float = _option(0.006, "of CPU for a request, the record and the journal")
    cpu_reuse_s: float = _option(0.0015, "of CPU for a reply from the record")
    shard: int = _option(128, "samples whose verdicts are one transaction")
    move_s: float = _option(20.0, "between two moves of a worker's journal")
    transaction_s: float = _option(0.06, "the lock is held for a transaction of few rows")
    row_s: float = _option(0.000004, "more for each row")
    rows_a_sample: float = _option(45.0, "of all verdict tables")
    bytes_a_call: float = _option(900.0, "on disk, request and reply, compressed with those beside it")
    bytes_a_reuse: float = _option(40.0, "on disk, of a call that was answered from the record")
    bytes_a_row: float = _option(14.0, "on disk, of a verdict with its reason")
    scores_a_sample: float = _option(21.0, "metrics")
    bytes_a_score: float = _option(9.0, "on disk")
    score_sample_s: float = _option(0.00025, "to score a sample, one thread, in the process that began the run")
    catalogue_bytes: float = _option(9000.0, "of the catalogue for a transaction until it is compacted")
    compact_mb_s: float = _option(40.0, "megabytes a second that compacting merges, while writers wait")
    run_samples: int = _option(1_000_000, "samples of one run")
    usd_gb_month: float = _option(0.023, "dollars a gigabyte and month in the bucket")


@dataclass(frozen=True, kw_only=True)
class Queue:
    """An hour at the writers' lock; `keeps_up` is true if all were through at its end."""

    transactions: int
    busy: float
    median_wait_s: float
    worst_wait_s: float
    keeps_up: bool


def find_rates(given: Assumptions) -> dict[str, float]:
    """Samples a second that each limit alone would let through."""
    asked = given.calls_a_sample * given.changed
    reused = given.calls_a_sample - asked
    cpu_s = asked * given.cpu_call_s + reused * given.cpu_reuse_s
    tokens = asked * (given.prompt_tokens + given.completion_tokens)
    rates = {"CPU of the workers": given.workers / cpu_s, "the lock of the writers": _find_lock_rate(given)}
    if asked:
        rates |= {
            "requests in flight": given.concurrency / given.latency_s / asked,
            "requests a minute": given.rpm / 60 / asked,
            "tokens a minute": given.tpm / 60 / tokens,
        }
    return rates


def _find_lock_rate(given: Assumptions) -> float:
    """Return the rate of a lock that is never free: shards, after the moves of all journals have had their time."""
    moves = given.workers / given.move_s * given.transaction_s
    rows = given.rows_a_sample + given.calls_a_sample
    a_sample_s = given.transaction_s / given.shard + rows * given.row_s
    return max(1e-9, (_BUSY_MOST - moves) / a_sample_s)


def simulate_hour(given: Assumptions, pace: float, seed: int) -> Queue:
    """One hour of virtual time at the lock, at so many samples a second over all workers."""
    dice = random.Random(seed)
    arrivals: list[tuple[float, float]] = []
    shard_s = given.shard * given.workers / pace
    for _ in range(given.workers):
        at = dice.uniform(0, shard_s)
        while at < _HOUR_S:
            arrivals.append((at, given.transaction_s + given.shard * given.rows_a_sample * given.row_s))
            at += shard_s * dice.uniform(0.7, 1.3)
        at = dice.uniform(0, given.move_s)
        calls = given.move_s * pace / given.workers * given.calls_a_sample
        while at < _HOUR_S:
            arrivals.append((at, given.transaction_s + calls * given.row_s))
            at += given.move_s
    heapq.heapify(arrivals)
    free_at, busy_s, waits = 0.0, 0.0, []
    while arrivals:
        at, takes = heapq.heappop(arrivals)
        takes *= dice.uniform(0.6, 1.4)
        begins = max(at, free_at)
        waits.append(begins - at)
        free_at, busy_s = begins + takes, busy_s + takes
    waits.sort()
    return Queue(
        transactions=len(waits),
        busy=busy_s / _HOUR_S,
        median_wait_s=waits[len(waits) // 2],
        worst_wait_s=waits[-1],
        keeps_up=free_at < _HOUR_S + 60,
    )


def print_plan(given: Assumptions, queue: Queue, rates: dict[str, float]) -> None:
    """The plan for a person; `rates` are samples a second that each limit lets through; the smallest of them counts."""
    samples = given.verdicts / given.verdicts_a_sample
    calls = samples * given.calls_a_sample * given.changed
    reused = samples * given.calls_a_sample - calls
    prompt, completion = calls * given.prompt_tokens, calls * given.completion_tokens
    price = given.usd_in * (1 - given.cached_share) + given.usd_cached * given.cached_share
    narrowest = min(rates, key=lambda name: rates[name])
    hours = samples / rates[narrowest] / _HOUR_S
    stored = calls * given.bytes_a_call + reused * given.bytes_a_reuse
    stored += samples * (given.rows_a_sample * given.bytes_a_row + given.scores_a_sample * given.bytes_a_score)
    catalogue_gb = queue.transactions * hours * given.catalogue_bytes / _GB
    rows = {
        "samples": f"{samples:,.0f}, in {samples / given.run_samples:,.0f} runs of {given.run_samples:,}",
        "requests": f"{calls:,.0f}",
        "tokens": f"{prompt + completion:,.0f}",
        "dollars": f"{(prompt * price + completion * given.usd_out) / 1e6:,.0f}",
        "hours": f"{hours:,.0f} ({hours / 24:,.1f} days); what counts is {narrowest}",
        "writers' lock": f"{queue.busy:.0%} busy; a transaction waits {queue.median_wait_s:.2f} s, at worst "
        f"{queue.worst_wait_s:.1f} s" + ("" if queue.keeps_up else "; the queue only grows"),
        "stored": f"{stored / _GB:,.0f} GB, {stored / _GB * given.usd_gb_month:,.0f} dollars a month",
        "transactions": f"{queue.transactions * hours:,.0f}; {catalogue_gb:,.1f} GB of catalogue if never compacted",
        "compacting": f"{stored / _MB / given.compact_mb_s / _HOUR_S:,.1f} hours in all, in which writers wait; best "
        "after each run",
        "scoring": f"{samples * given.score_sample_s / _HOUR_S:,.1f} hours in all, in the process that began the run",
    }
    for name, text in rows.items():
        print(f"{name:>14}  {text}")
    print("\nwhat each limit alone would let through, in samples a second:")
    for name, rate in sorted(rates.items(), key=lambda item: item[1]):
        print(f"{rate:>14,.1f}  {name}")
    print("\nhours and the lock, by number of workers:")
    for workers in (1, 2, 4, 8, 16, 32, 64, 128, 256):
        one = dataclasses.replace(given, workers=workers)
        if one.workers / one.move_s * one.transaction_s >= _BUSY_MOST:
            print(f"{workers:>14}      never    moving the journals alone fills the lock")
            continue
        name, pace = min(find_rates(one).items(), key=lambda item: item[1])
        busy = simulate_hour(one, pace, seed=1).busy
        print(f"{workers:>14}  {samples / pace / _HOUR_S:>9,.0f} h  lock {busy:>4.0%}  {name}")


def main() -> None:
    """Read the assumptions and print the plan."""
    parser = argparse.ArgumentParser(description="What a number of verdicts would take.")
    for item in dataclasses.fields(Assumptions):
        kind = int if isinstance(item.default, int) else float
        flag = f"--{item.name.replace('_', '-')}"
        parser.add_argument(flag, type=kind, default=item.default, help=f"{item.metadata['help']} ({item.default})")
    given = Assumptions(**vars(parser.parse_args()))
    rates = find_rates(given)
    print_plan(given, simulate_hour(given, min(rates.values()), seed=1), rates)


if __name__ == "__main__":
    main()
