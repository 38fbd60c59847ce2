"""`run --dry-run`: what a run would ask and cost, less what is on record, with nothing asked and nothing written.

The real steps go over the real samples with the real requests, so that what is on record is found as in the run
itself. A request that would have to be sent is counted instead (`usage`) and answered by a stand-in (`stand_ins`).
Whether a provider's cache holds the beginnings that requests share is known only afterwards (OpenAI keeps none under
1,024 tokens), so there are two sums: without such a cache, and with one that holds them all.
"""

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from evalhouse.flows.display.output import make_table, print_json, print_line, print_table, write_dollars
from evalhouse.flows.preparing.live_run import make_live_run, make_plan
from evalhouse.tasks.asking.embedders import AskedEmbedder, pack_vector
from evalhouse.tasks.asking.finder import ReplyFinder
from evalhouse.tasks.asking.prices import Price
from evalhouse.tasks.asking.record import Call
from evalhouse.tasks.asking.usage import count_request, count_tokens
from evalhouse.tasks.datasets.read import stage_dataset
from evalhouse.tasks.judge.protocol import Judge, ModelReply, ModelRequest, Question
from evalhouse.tasks.models.make import make_judge
from evalhouse.tasks.models.stand_ins import make_stand_in
from evalhouse.tasks.pipeline.live_run import LiveRun
from evalhouse.tasks.pipeline.run_step import take_asking_steps
from evalhouse.tasks.pipeline.shard import make_work
from evalhouse.tasks.settings.run import RunSettings
from evalhouse.warehouse.rows.calls import RecordedReply
from evalhouse.warehouse.rows.samples import Staging, StoredSample
from evalhouse.warehouse.store import Warehouse

_SAMPLES_AT_ONCE = 200

FillIn = Callable[[Sequence[StoredSample]], list[StoredSample]]


@dataclass(frozen=True, kw_only=True)
class StepEstimate:
    """What one step would need.

    `cached_tokens` are those of the prompt tokens that equal the beginning of an earlier request. `cost_usd` is the sum
    without a provider's cache, `cached_usd` with one; both are None when a model has no known price.
    """

    step: str
    requests: int
    reused: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    cost_usd: float | None
    cached_usd: float | None


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What a run would need, in all and by step, which tells what the numbers are."""

    n_samples: int
    judge: str
    requests: int
    reused: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    cost_usd: float | None
    cached_usd: float | None
    steps: tuple[StepEstimate, ...]
    budget_usd: float | None = None
    noise: "NoiseEstimate | None" = None


@dataclass(frozen=True, kw_only=True)
class NoiseEstimate:
    """What measuring the judge's noise after the run would need on top of it: `n_samples` judged again, all asked anew.

    `cost_usd` is None as well when the run itself has nothing to send that would tell what a request costs.
    """

    n_samples: int
    requests: int
    cost_usd: float | None


@dataclass(kw_only=True)
class _Tally:
    """What a step's calls come to so far."""

    requests: int = 0
    reused: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    cached_usd: float = 0.0
    saved_usd: float = 0.0
    priced: bool = True

    def add(self, call: Call, price: Price | None) -> None:
        """Count a call; `price` is the judge's, for embeddings share no beginnings."""
        if call.status == "cached":
            self.reused += 1
            return
        self.requests += 1
        self.prompt_tokens += call.prompt_tokens or 0
        self.completion_tokens += call.completion_tokens or 0
        self.cached_tokens += call.cached_tokens or 0
        self.cached_usd += call.cost_usd or 0.0
        if price is not None and call.cached_tokens:
            uncached, cached = (price.cost_usd(call.cached_tokens, 0, part) for part in (0, call.cached_tokens))
            self.saved_usd += (uncached or 0.0) - (cached or 0.0)
        self.priced = self.priced and call.cost_usd is not None


@dataclass(kw_only=True)
class DryRecord:
    """Finds what is on record and keeps nothing, but counts calls and remembers what was answered once."""

    finder: ReplyFinder | None
    price: Price | None = None
    tallies: dict[str, _Tally] = field(default_factory=dict)  # by step
    counted: dict[str, RecordedReply] = field(default_factory=dict)

    async def find(self, request_hash: str) -> RecordedReply | None:
        """The reply on record, or the stand-in of an equal request that was counted already."""
        counted = self.counted.get(request_hash)
        if counted is not None or self.finder is None:
            return counted
        return await self.finder.find(request_hash)

    def keep(self, call: Call) -> str:
        """Count a call, and remember its stand-in."""
        if call.status == "ok" and call.reply is not None:
            self.counted[call.request_hash] = RecordedReply(call_id=call.request_hash, reply=call.reply)
        self.tallies.setdefault(call.step, _Tally()).add(call, self.price)
        return call.request_hash

    def close(self) -> None:
        """Nothing was written."""


class DryJudge:
    """The real judge's requests, counted, with replies that stand in for a model's."""

    endpoint = None  # where nothing is asked there are no limits to share

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self._asked: dict[str, Question] = {}
        self._beginnings: set[int] = set()
        self.name = judge.name
        self.model = judge.model

    def prepare(self, question: Question) -> ModelRequest:
        """The real request; the question is kept for the stand-in."""
        request = self._judge.prepare(question)
        self._asked[request.request_hash] = question
        return request

    async def reply(self, request: ModelRequest) -> ModelReply:
        """A stand-in of about the length of a model's reply; the lexical judge itself takes no tokens."""
        question = self._asked.pop(request.request_hash)
        if question.prompt is None:
            return ModelReply(text=pack_vector([1.0]), prompt_tokens=count_request(request.payload))
        text = make_stand_in(question)
        if "messages" not in request.payload:
            return ModelReply(text=text, prompt_tokens=0, completion_tokens=0)
        return ModelReply(
            text=text,
            prompt_tokens=count_request(request.payload),
            cached_tokens=self._count_cached(request.payload),
            completion_tokens=round(count_tokens(text)),
        )

    def _count_cached(self, payload: Mapping[str, Any]) -> int:
        """Tokens of all messages but the last, when an earlier request began with the same."""
        beginning = hash(tuple(message["content"] for message in payload["messages"][:-1]))
        if beginning in self._beginnings:
            return count_request({**payload, "messages": payload["messages"][:-1]})
        self._beginnings.add(beginning)
        return 0

    async def close(self) -> None:
        """Close what the real judge had opened."""
        await self._judge.close()


def estimate_run(settings: RunSettings, *, fill_in: FillIn = list) -> Estimate:
    """Go through a run without asking anything; raises what the run itself would refuse beforehand.

    `fill_in` gives samples answers from elsewhere and leaves out those that have none.
    """
    # Nothing is sent, so a price can be had before there is a key.
    os.environ.setdefault("OPENAI_API_KEY", "none-needed-for-a-dry-run")
    plan = make_plan(settings)
    staged = stage_dataset(settings.dataset, mapping=settings.mapping, limit=settings.limit)
    try:
        warehouse = Warehouse(settings.warehouse)
        known = warehouse.exists() and not settings.fresh
        record = DryRecord(finder=ReplyFinder(warehouse) if known else None)
        unlimited = settings.model_copy(update={"rpm": None, "tpm": None})
        live_run = make_live_run("dry-run", unlimited, plan, DryJudge(make_judge(settings)), warehouse, record=record)
        if isinstance(live_run.embedder, AskedEmbedder):
            live_run.embedder.asker.judge = DryJudge(live_run.embedder.asker.judge)
        for asker in live_run.askers:
            asker.budget_usd = None
        record.price = live_run.asker.price
        asyncio.run(_go_through(live_run, staged.staging, fill_in))
    finally:
        staged.staging.discard()
    steps = tuple(_sum_up(step, tally) for step, tally in sorted(record.tallies.items()))
    estimate = Estimate(
        n_samples=staged.n_samples,
        judge=settings.judge,
        requests=sum(step.requests for step in steps),
        reused=sum(step.reused for step in steps),
        prompt_tokens=sum(step.prompt_tokens for step in steps),
        cached_tokens=sum(step.cached_tokens for step in steps),
        completion_tokens=sum(step.completion_tokens for step in steps),
        cost_usd=_sum_dollars(step.cost_usd for step in steps),
        cached_usd=_sum_dollars(step.cached_usd for step in steps),
        steps=steps,
        budget_usd=settings.budget_usd,
    )
    return replace(estimate, noise=_estimate_noise(estimate, settings))


def print_estimate(estimate: Estimate, *, as_json: bool) -> None:
    """Print an estimate as a table for people or as JSON."""
    if as_json:
        print_json(asdict(estimate))
        return
    columns = [
        "step",
        "#requests",
        "#on record",
        "#tokens in",
        "#of them shared",
        "#tokens out",
        "#cost",
        "#with cache",
    ]
    rows = [_make_cells(step.step, step) for step in estimate.steps]
    print_table(make_table(columns, [*rows, _make_cells("total", estimate)]))
    print_line()
    print_line(
        f"{estimate.n_samples} samples, judged by {estimate.judge}: {estimate.requests:,} requests to send and "
        f"{estimate.reused:,} replies on record; about {estimate.prompt_tokens:,} + {estimate.completion_tokens:,} "
        f"tokens, cost {_write_cost(estimate)}. Nothing was asked."
    )
    if noise := estimate.noise:
        cost = f", cost {write_dollars(noise.cost_usd)}" if noise.cost_usd is not None else ""
        print_line(
            f"On top comes what measures the judge's noise: {noise.n_samples} samples judged again, about "
            f"{noise.requests:,} requests{cost}."
        )
    if estimate.budget_usd is not None and (estimate.cost_usd or 0.0) > estimate.budget_usd:
        print_line(f"That is more than the budget of ${estimate.budget_usd:g}: the run would stop with samples left.")


def _estimate_noise(estimate: Estimate, settings: RunSettings) -> NoiseEstimate | None:
    """None where nothing would be measured. Samples are taken to need as many requests as they do on average."""
    asks = estimate.requests + estimate.reused
    if not settings.noise_share or not asks:
        return None
    from evalhouse.tasks.comparing.noise import count_picked, has_noise  # noqa: PLC0415  # imports the statistics

    if not has_noise(settings.judge, settings.embeddings):
        return None
    n_samples = count_picked(estimate.n_samples, settings.noise_share)
    requests = round(asks * n_samples / estimate.n_samples)
    known = estimate.cost_usd is not None and estimate.requests
    cost_usd = (estimate.cost_usd or 0.0) / estimate.requests * requests if known else None
    return NoiseEstimate(n_samples=n_samples, requests=requests, cost_usd=cost_usd)


async def _go_through(live_run: LiveRun, staging: Staging, fill_in: FillIn) -> None:
    try:
        for first in range(1, staging.n_rows + 1, _SAMPLES_AT_ONCE):
            samples = fill_in(staging.read_between(first, first + _SAMPLES_AT_ONCE - 1))
            await asyncio.gather(*(take_asking_steps(live_run, make_work(sample)) for sample in samples))
    finally:
        await live_run.close()


def _write_cost(estimate: Estimate) -> str:
    """The cost, and what it comes to where the provider's cache helps; that there is one shows in its price."""
    cost = write_dollars(estimate.cost_usd)
    if estimate.cached_usd == estimate.cost_usd:
        return cost
    return f"{cost}, or {write_dollars(estimate.cached_usd)} if the provider caches what requests have in common"


def _sum_up(step: str, tally: _Tally) -> StepEstimate:
    return StepEstimate(
        step=step,
        requests=tally.requests,
        reused=tally.reused,
        prompt_tokens=tally.prompt_tokens,
        cached_tokens=tally.cached_tokens,
        completion_tokens=tally.completion_tokens,
        cost_usd=tally.cached_usd + tally.saved_usd if tally.priced else None,
        cached_usd=tally.cached_usd if tally.priced else None,
    )


def _sum_dollars(parts: Iterable[float | None]) -> float | None:
    """The sum, or None when a part is not known."""
    known = list(parts)
    return None if None in known else sum(part for part in known if part is not None)


def _make_cells(name: str, counted: StepEstimate | Estimate) -> list[object]:
    return [
        name, f"{counted.requests:,}", f"{counted.reused:,}", f"{counted.prompt_tokens:,}",
        f"{counted.cached_tokens:,}", f"{counted.completion_tokens:,}", write_dollars(counted.cost_usd),
        write_dollars(counted.cached_usd),
    ]  # fmt: skip
