"""`run --dry-run`: what a run would ask and cost, less what is on record, with nothing asked and nothing written.

The real steps go over the real samples with the real requests, so that what is on record is found as in the run
itself. A request that would have to be sent is counted instead, and the lexical judge replies in the model's place,
so that the steps that rest on statements have some; the length of a model's own replies is guessed from these.
"""

import asyncio
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import orjson

from flows.bench_maker import make_bench, make_plan
from flows.output import make_console, print_json, write_dollars
from tasks.attribute import attribute_statements
from tasks.bench import Bench
from tasks.call_record import Call
from tasks.classify import classify_statements
from tasks.embeddings import AskedEmbedder, pack_vector
from tasks.extract import extract_answer, extract_ground_truth
from tasks.judge import Judge, ModelReply, ModelRequest, Question, plain_data
from tasks.judge_makers import make_judge
from tasks.lexical_judge import judge_lexically
from tasks.rank import rank_contexts
from tasks.reply_finder import ReplyFinder
from tasks.run_settings import RunSettings
from tasks.shard import SampleWork, make_work
from tasks.similarity import compare_meaning
from tasks.staging import stage_dataset
from tasks.tokens import estimate_tokens
from warehouse.calls import RecordedReply
from warehouse.samples import Staging
from warehouse.store import Warehouse

_STEPS = (
    extract_answer, extract_ground_truth, classify_statements, attribute_statements, rank_contexts, compare_meaning,
)  # fmt: skip
_SAMPLES_AT_ONCE = 200
# What a chat's wrapping adds to each message, as OpenAI's counting has it.
_TOKENS_A_MESSAGE = 4


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What a run would need. `cost_usd` is None when a model has no known price."""

    n_samples: int
    judge: str
    requests: int
    reused: int
    prompt_tokens: int
    completion_tokens: int
    cost_usd: float | None


@dataclass(kw_only=True)
class _DryRecord:
    """Finds what is on record and keeps nothing, but remembers what was counted once."""

    finder: ReplyFinder | None
    counted: dict[str, RecordedReply] = field(default_factory=dict)

    async def find(self, request_hash: str) -> RecordedReply | None:
        """The reply on record, or the stand-in of an equal request that was counted already."""
        counted = self.counted.get(request_hash)
        if counted is not None or self.finder is None:
            return counted
        return await self.finder.find(request_hash)

    def keep(self, call: Call) -> str:
        """Remember a stand-in."""
        if call.status == "ok" and call.reply is not None:
            self.counted[call.request_hash] = RecordedReply(call_id=call.request_hash, reply=call.reply)
        return call.request_hash

    def close(self) -> None:
        """Nothing was written."""


class _DryJudge:
    """The real judge's requests, counted, with the lexical judge's replies."""

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self._asked: dict[str, Question] = {}
        self.name = judge.name
        self.model = judge.model
        self.endpoint = judge.endpoint

    def prepare(self, question: Question) -> ModelRequest:
        """The real request; the question is kept for the stand-in reply."""
        request = self._judge.prepare(question)
        self._asked[request.request_hash] = question
        return request

    async def reply(self, request: ModelRequest) -> ModelReply:
        """A stand-in of about the length of a model's reply; the lexical judge itself takes no tokens."""
        question = self._asked.pop(request.request_hash)
        if question.prompt is None:
            return ModelReply(text=pack_vector([1.0]), prompt_tokens=estimate_tokens(str(question.data["text"])))
        text = orjson.dumps(judge_lexically(question.prompt.name, plain_data(question.data))).decode()
        if "messages" not in request.payload:
            return ModelReply(text=text, prompt_tokens=0, completion_tokens=0)
        return ModelReply(
            text=text, prompt_tokens=_count_prompt(request.payload), completion_tokens=estimate_tokens(text)
        )

    async def close(self) -> None:
        """Close what the real judge had opened."""
        await self._judge.close()


def estimate_run(settings: RunSettings) -> Estimate:
    """Go through a run without asking anything; raises what the run itself would refuse beforehand."""
    # Nothing is sent, so a price can be had before there is a key.
    os.environ.setdefault("OPENAI_API_KEY", "none-needed-for-a-dry-run")
    plan = make_plan(settings)
    staged = stage_dataset(settings.dataset, mapping=settings.mapping, limit=settings.limit)
    try:
        warehouse = Warehouse(settings.warehouse)
        known = warehouse.location.path.exists() and not settings.fresh
        record = _DryRecord(finder=ReplyFinder(warehouse) if known else None)
        judge = _DryJudge(make_judge(settings))
        bench = make_bench("dry-run", settings, plan, judge, warehouse, record=record)
        if isinstance(bench.embedder, AskedEmbedder):
            bench.embedder.asker.judge = _DryJudge(bench.embedder.asker.judge)
        asyncio.run(_go_through(bench, staged.staging))
    finally:
        staged.staging.discard()
    counts = bench.asker.counts
    return Estimate(
        n_samples=staged.n_samples,
        judge=settings.judge,
        requests=counts.requests,
        reused=counts.reused,
        prompt_tokens=counts.prompt_tokens,
        completion_tokens=counts.completion_tokens,
        cost_usd=counts.cost_usd if counts.priced else None,
    )


def print_estimate(estimate: Estimate, *, as_json: bool) -> None:
    """Print an estimate as a line for people or as JSON."""
    if as_json:
        print_json(asdict(estimate))
        return
    tokens = f"{estimate.prompt_tokens:,} + {estimate.completion_tokens:,} tokens"
    make_console().print(
        f"{estimate.n_samples} samples, judged by {estimate.judge}: {estimate.requests} requests to send and "
        f"{estimate.reused} replies on record; about {tokens}, cost {write_dollars(estimate.cost_usd)}. "
        "Nothing was asked.",
        markup=False,
    )


async def _go_through(bench: Bench, staging: Staging) -> None:
    try:
        for samples in staging.read_parts():
            for first in range(0, len(samples), _SAMPLES_AT_ONCE):
                works = [make_work(sample) for sample in samples[first : first + _SAMPLES_AT_ONCE]]
                await asyncio.gather(*(_take_steps(bench, work) for work in works))
    finally:
        await bench.close()


async def _take_steps(bench: Bench, work: SampleWork) -> None:
    await asyncio.gather(*(step(bench, work) for step in _STEPS))


def _count_prompt(payload: Mapping[str, Any]) -> int:
    """Tokens of a request: its messages, and the reply's schema, which is sent along."""
    messages = sum(estimate_tokens(message["content"]) + _TOKENS_A_MESSAGE for message in payload["messages"])
    schema = payload.get("response_format")
    return messages + (estimate_tokens(orjson.dumps(schema).decode()) if schema else 0)
