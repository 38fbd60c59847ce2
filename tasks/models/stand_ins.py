"""The substitutes for a judge and for the record of calls in a dry run, which counts the requests of a run.

Questions that the lexical judge can answer get its verdicts, others the reply of the prompt's first worked example.
Reasons come from the worked examples, one after the other, as they have the length that the prompt asks for. A text has
the statements that the lexical judge finds, although each model splits texts in its own way.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import cycle, islice
from typing import Any, cast

import orjson

from evalhouse.prompts import PREFERENCES, list_row_reasons, pick_verdict_lists, word_row
from evalhouse.tasks.asking.embeddings import pack_embedding
from evalhouse.tasks.asking.pairs import find_form
from evalhouse.tasks.asking.record import Call, ReplyFinder
from evalhouse.tasks.asking.usage import Price, Usage, count_request, count_tokens
from evalhouse.tasks.judge.protocol import (
    Judge,
    ModelReply,
    ModelRequest,
    Question,
    find_window,
    hash_canonical,
    plain_data,
    require_prompt,
)
from evalhouse.tasks.lexical.judge import judge_lexically
from evalhouse.warehouse.rows.calls import StoredReply
from evalhouse.warehouse.steps import LEXICAL_PROMPTS

# For prompts without worked examples, which are users' own.
_REASON = "It states the same as the other one, in other words."
_QUESTION = "When was it built, and by whom?"


class NoRecord:
    """A record of calls that finds nothing and keeps nothing."""

    async def find(self, request_hash: str) -> StoredReply | None:
        """Return None: nothing is recorded."""
        return None

    def claim(self, request_hash: str) -> bool:
        """Return True: no other process knows of it."""
        return True

    def keep(self, call: Call) -> str:
        """Return an id, as every call has one."""
        return call.request_hash

    def close(self) -> None:
        """Do nothing: nothing was written."""


@dataclass(kw_only=True)
class DryRecord(NoRecord):
    """A record that finds recorded replies and keeps nothing, but counts calls by step and by judge, and keeps each
    reply in memory.

    `prices` are the judges', by name: embeddings share no beginnings, so that a provider's cache saves nothing of them.
    """

    finder: ReplyFinder | None
    prices: Mapping[str, Price | None] = field(default_factory=dict)
    by_step: dict[str, Usage] = field(default_factory=dict)
    by_judge: dict[str, Usage] = field(default_factory=dict)
    counted: dict[str, StoredReply] = field(default_factory=dict)

    @property
    def usage(self) -> Usage:
        """The sum of all steps."""
        return sum(self.by_step.values(), start=Usage())

    async def find(self, request_hash: str) -> StoredReply | None:
        """Return the recorded reply, or the substitute of an equal request that was counted already."""
        counted = self.counted.get(request_hash)
        if counted is not None or self.finder is None:
            return counted
        return await self.finder.find(request_hash)

    def keep(self, call: Call) -> str:
        """Count a call, and keep its reply."""
        if call.status == "ok" and call.reply is not None:
            self.counted[call.request_hash] = StoredReply(call_id=call.request_hash, reply=call.reply)
            if call.reused_call_id is not None:
                return call.request_hash  # a part of a call that is counted as a whole
        counted, saved_usd = Usage(reused=1), 0.0
        price = self.prices.get(call.judge)
        if price is not None and call.cached_tokens:
            whole, reduced = (price.cost_usd(call.cached_tokens, 0, n_cached) for n_cached in (0, call.cached_tokens))
            saved_usd = (whole or 0.0) - (reduced or 0.0)
        if call.status != "cached":
            counted = Usage(
                requests=1,
                prompt_tokens=call.prompt_tokens or 0,
                cached_tokens=call.cached_tokens or 0,
                completion_tokens=call.completion_tokens or 0,
                spent_usd=(call.cost_usd or 0.0) + saved_usd,
                saved_usd=saved_usd,
                unpriced=call.cost_usd is None,
            )
        for sums, name in ((self.by_step, call.step), (self.by_judge, call.judge)):
            sums[name] = sums.get(name, Usage()) + counted
        return call.request_hash


@dataclass(frozen=True, kw_only=True)
class _QuestionRequest(ModelRequest):
    """A request with its question: most are prepared only to look for a recorded reply, and never sent."""

    question: Question


class StandInJudge:
    """A judge with the real requests of another one and substitutes for its replies; without a `judge` the requests
    have no content.

    Each question that is asked is put into `heard`, if that is given, by the hash of its request.
    """

    endpoint = None  # without an endpoint no limits are shared
    tasks = None

    def __init__(self, judge: Judge | None, *, heard: dict[str, Question] | None = None) -> None:
        self._judge = judge
        self._heard = heard
        self._beginnings: set[int] = set()
        self.name, self.model = (judge.name, judge.model) if judge else ("preview", "preview")

    @property
    def window(self) -> int | None:
        """The judge's context window."""
        return find_window(self._judge)

    def prepare(self, question: Question) -> ModelRequest:
        """Return the request, with the question for the reply."""
        if self._judge is not None:
            request = self._judge.prepare(question)
        else:
            parts = [require_prompt(question).name, question.step, plain_data(question.data), question.only]
            request = ModelRequest(request_hash=hash_canonical(parts), payload={})
        return _QuestionRequest(request_hash=request.request_hash, payload=request.payload, question=question)

    async def reply(self, request: ModelRequest) -> ModelReply:
        """Return a substitute of about the length of a model's reply; the lexical judge itself takes no tokens."""
        assert isinstance(request, _QuestionRequest)
        question = request.question
        if self._heard is not None:
            self._heard[request.request_hash] = question
        if question.prompt is None:
            vector, n_tokens = pack_embedding([1.0]), count_request(request.payload)
            return ModelReply(text=vector, parts=[vector] * len(question.parts), prompt_tokens=n_tokens)
        form = find_form(self.name)
        text = form.denial if form is not None else make_stand_in(question)
        if "messages" not in request.payload:
            return ModelReply(text=text, prompt_tokens=0, completion_tokens=0)
        # All messages but the last are cached if an earlier request began with the same and they are long enough.
        shared = cast(Sequence[Mapping[str, str]], request.payload["messages"])[:-1]
        beginning, n_cached = hash(tuple(message["content"] for message in shared)), 0
        if beginning in self._beginnings:
            n_tokens = count_request({**request.payload, "messages": shared})
            n_cached = n_tokens if n_tokens >= getattr(self._judge, "min_cached", 0) else 0
        self._beginnings.add(beginning)
        return ModelReply(
            text=text,
            prompt_tokens=count_request(request.payload),
            cached_tokens=n_cached,
            completion_tokens=round(count_tokens(text)),
        )

    async def close(self) -> None:
        """Close the real judge."""
        if self._judge is not None:
            await self._judge.close()


def make_stand_in(question: Question) -> str:
    """Return a usable reply to a question for the judge, as JSON; equal questions get equal ones."""
    prompt = require_prompt(question)
    examples, given_reasons = _parse_examples(prompt.opening)
    reply: dict[str, Any]
    if prompt.name in LEXICAL_PROMPTS:
        reply = judge_lexically(prompt.name, plain_data(question.data))
    elif prompt.rubric is not None and not examples:
        reply = {}
        for name, criterion in prompt.rubric.criteria.items():
            lowest: dict[str, dict[str, Any]] = {
                "flag": {"verdict": False},
                "rating": {"rating": criterion.min},
                "spread": {"scores": [{"score": criterion.min, "probability": 1}]},
                "preference": {"verdict": PREFERENCES[-1]},
            }
            reply[name] = {"reason": _REASON, **lowest[criterion.kind]}
    elif prompt.name == "questions":
        # As many as were asked for, and different ones for each answer, as a model's would be.
        texts = examples[0]["questions"] if examples and examples[0].get("questions") else [_QUESTION]
        mark = hash_canonical(plain_data(question.data))[:4]
        asked = islice(cycle(texts), int(str(question.data["count"])))
        numbered = [f"{text} {mark} {number}" for number, text in enumerate(asked)]
        reply = {"reason": _REASON, "noncommittal": False, "questions": numbered}
    else:
        reply = dict(examples[0]) if examples else {}
    # Changed by a full stop: a reply with the very reasons of an example counts as a copy, and is asked for again.
    reasons = cycle([f"{reason}." for reason in given_reasons] or [_REASON])
    reasoned = {
        name: [
            verdict | {"reason": next(reasons)}
            if isinstance(verdict, dict)
            else word_row(verdict, in_favour=verdict[2] == prompt.labels[verdict[0][0]][0], reasons=reasons)
            for verdict in verdicts
        ]
        for name, verdicts in pick_verdict_lists(reply, prompt.variables).items()
    }
    return orjson.dumps(reply | reasoned).decode()


@lru_cache(maxsize=64)
def _parse_examples(opening: tuple[Any, ...]) -> tuple[Sequence[Mapping[str, Any]], Sequence[str]]:
    """Return the replies of the worked examples, and the reasons in them."""
    replies = [orjson.loads(message.content) for message in opening if message.role == "ai"]
    lists = [part for reply in replies for part in reply.values() if isinstance(part, list)]
    reasons = [item["reason"] for part in lists for item in part if isinstance(item, dict) and "reason" in item]
    return replies, [*reasons, *(reason for reply in replies for reason in list_row_reasons(reply))]
