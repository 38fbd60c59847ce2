"""Verdicts from scores of pairs: how far does a text support a claim?

A request that a chat model gets in one piece is taken apart here and put together again as its reply:

- attribute: each statement against each context. Where no context supports it alone, and the prompt asks for contexts
  that do so together, the best stretches of the two to four highest contexts are judged as one text, as far as the
  model reads that many tokens.
- classify: each statement against all statements of the other side as one text.
- rank: each context against each sentence of the ground truth behind the question, without which a sentence such as
  "At 22:40" claims nothing. Useful is a context that supports any of them.

Each verdict gives in its reason what decided it: "0.831 ≥ 0.5 in words 120–480 of C2", or "not supported in words 1–96
of C2" from a model that gives no score.

Some chat models were made for this question (does this document support this claim, yes or no?). A judge named
FORM+JUDGE, such as `minicheck+openai:bespoke-minicheck`, is asked pair by pair in the words the model was trained on,
which are in forms.toml. Nothing marks off the texts there: an answer or a context can pose as a part of the question,
which our own prompts rule out.
"""

import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from importlib.resources import files
from typing import Any, Final, Literal, Protocol

from evalhouse.prompts import CONVERSATION, BlockValue, Item, Message, Prompt
from evalhouse.tasks.judge.protocol import (
    FORM_JOIN,
    LOCAL_TASKS,
    FatalJudgeError,
    Judge,
    ModelRequest,
    Question,
    UnusableReply,
    find_window,
    hash_canonical,
    require_prompt,
)
from evalhouse.tasks.lexical.split import split_statements
from evalhouse.warehouse.messages import shorten

_MAX_TOGETHER: Final = 4
_SHOWN: Final = 60
_REASON = re.compile(r"(?:at most |together )?([01]\.\d{3}) [≥<] ")
_FEW_SPACES = 20  # characters a word: with more, words have no spaces between them
_PLACES = re.compile(r"(\{document\}|\{claim\})")
_SCORE = re.compile(r"<score>\s*(yes|no)\b", re.IGNORECASE)
_WORD = re.compile(r"\W*(yes|no)\b", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A document, and a claim that it may support."""

    document: str
    claim: str


@dataclass(frozen=True, kw_only=True)
class Scored:
    """The score of a document for a claim, 0 to 1: the highest score of its windows.

    `text` is that window, from `first` to `last` in `unit`s of the document counted from 1. `reply` is the answer of a
    model that gives no score, `call_id` its call.
    """

    score: float
    text: str
    first: int
    last: int
    unit: str = "words"
    reply: str | None = None
    call_id: str | None = None


class Scorer(Protocol):
    """Scores pairs: a classifier in this process, or a chat model over a network."""

    @property
    def threshold(self) -> float:
        """The score from which on a claim counts as supported."""

    async def score(self, pairs: Sequence[Pair], *, whole: bool = False) -> list[Scored]:
        """Return a score for each pair; `whole` takes a document that fits as one window."""

    def fits(self, pair: Pair) -> bool:
        """Return whether the model reads the whole document beside the claim at once."""


Verdicts = list[dict[str, Any]]


def locate(document: str, start: int, end: int) -> dict[str, Any]:
    """Return the place of a stretch of characters in a document: in words, or in characters without spaces."""
    if len(document) > _FEW_SPACES * len(document.split()):
        return {"first": start + 1, "last": end, "unit": "characters"}
    before = document[:start].split()
    # A window may begin within a word, which then counts as part of it.
    cuts_word = bool(start) and not document[start - 1].isspace() and not document[start : start + 1].isspace()
    first = len(before) + (0 if cuts_word else 1)
    return {"first": max(1, first), "last": max(1, len(document[:end].split())), "unit": "words"}


async def judge_pairs(prompt: str, data: Mapping[str, Any], scorer: Scorer, *, joint: bool) -> Verdicts:
    """Return the verdicts on the wire data of the request `prompt`; `joint` where it asks for support together."""
    if prompt == "attribute":
        return await _attribute(data, scorer, joint=joint)
    return await (_classify if prompt == "classify" else _rank)(data, scorer)


def read_score(reason: str) -> float | None:
    """Return the score that a reason begins with; None where it begins with none."""
    match = _REASON.match(reason)
    return float(match[1]) if match else None


def _list_items(data: Mapping[str, Any], *names: str) -> list[Item]:
    return [Item(id=item["id"], text=item["text"]) for name in names for item in data.get(name) or ()]


def _explain(scored: Scored, threshold: float, of: str = "") -> str:
    place = f"{scored.unit} {scored.first}–{scored.last}{of and f' of {of}'}"
    if scored.reply is not None:
        return f"{scored.reply} in {place}"
    # Rounded down, so that a score never looks as if it were on the other side of the threshold.
    shown = math.floor(scored.score * 1000) / 1000
    return f"{shown:.3f} {'≥' if scored.score >= threshold else '<'} {threshold:g} in {place}"


def _describe(scored: Scored) -> dict[str, object]:
    call = {} if scored.call_id is None else {"call_id": scored.call_id}
    return {"score": round(scored.score, 6), scored.unit: [scored.first, scored.last], **call}


async def _attribute(data: Mapping[str, Any], scorer: Scorer, *, joint: bool) -> Verdicts:
    statements = _list_items(data, "answer_statements", "ground_truth_statements")
    contexts = _list_items(data, "contexts", CONVERSATION)
    pairs = [Pair(document=context.text, claim=entry.text) for entry in statements for context in contexts]
    scored_pairs, n = await scorer.score(pairs), len(contexts)
    by_id = {entry.id: scored_pairs[place * n : (place + 1) * n] for place, entry in enumerate(statements)}
    orders = {item: sorted(range(n), key=lambda place, of=of: -of[place].score) for item, of in by_id.items()}  # type: ignore[misc]
    verdicts: dict[str, dict[str, Any]] = {}
    for entry in statements:
        scores, best = by_id[entry.id], orders[entry.id][0]
        named = [item.id for item, scored in zip(contexts, scores, strict=True) if scored.score >= scorer.threshold]
        reason = _explain(scores[best], scorer.threshold, contexts[best].id)
        verdicts[entry.id] = {
            "reason": reason if named or scores[best].reply is not None else f"at most {reason}",
            "contexts": named,
            "together": [],
            "scores": [
                {"context": item.id, **_describe(scored)} for item, scored in zip(contexts, scores, strict=True)
            ],
            "call_id": scores[best].call_id,
        }
    # By statement the fewest of its highest contexts whose best stretches support it as one text.
    unsupported = [entry for entry in statements if not verdicts[entry.id]["contexts"]]
    for size in range(2, min(_MAX_TOGETHER, n) + 1) if joint else ():
        asked = []
        for entry in unsupported:
            places = sorted(orders[entry.id][:size])
            document = "\n".join(by_id[entry.id][place].text for place in places)
            pair = Pair(document=document, claim=entry.text)
            if not verdicts[entry.id]["together"] and scorer.fits(pair):
                asked.append((entry, places, pair))
        scored_pairs = await scorer.score([pair for _, _, pair in asked], whole=True)
        for (entry, places, _), scored in zip(asked, scored_pairs, strict=True):
            if scored.score >= scorer.threshold:
                names = [contexts[place].id for place in places]
                verdicts[entry.id] |= {
                    "reason": f"together {_explain(scored, scorer.threshold, ' and '.join(names))}",
                    "together": names,
                    "together_score": round(scored.score, 6),
                    "call_id": scored.call_id,
                }
    # A model in this process makes no calls.
    return [
        {"id": item, **{name: value for name, value in verdict.items() if value is not None}}
        for item, verdict in verdicts.items()
    ]


async def _classify(data: Mapping[str, Any], scorer: Scorer) -> Verdicts:
    answer, truth = _list_items(data, "answer_statements"), _list_items(data, "ground_truth_statements")
    sides = [(answer, truth, "FP", "the ground truth"), (truth, answer, "FN", "the answer")]
    asked = [(entry, other, label, name) for side, other, label, name in sides for entry in side]
    pairs = [Pair(document="\n".join(item.text for item in other), claim=entry.text) for entry, other, _, _ in asked]
    scores = await scorer.score(pairs)
    return [
        {
            "id": entry.id,
            "reason": _explain(scored, scorer.threshold, f"the statements of {name}"),
            "label": "TP" if scored.score >= scorer.threshold else label,
            **_describe(scored),
        }
        for (entry, _, label, name), scored in zip(asked, scores, strict=True)
    ]


async def _rank(data: Mapping[str, Any], scorer: Scorer) -> Verdicts:
    contexts, question, truth = _list_items(data, "contexts"), str(data["question"]), str(data["ground_truth"])
    sentences = split_statements(truth) or [truth]
    claims = [f"{question} {sentence}".strip() for sentence in sentences]
    scores = await scorer.score([Pair(document=context.text, claim=claim) for context in contexts for claim in claims])
    verdicts: Verdicts = []
    for place, context in enumerate(contexts):
        of_context = scores[place * len(claims) : (place + 1) * len(claims)]
        best = max(range(len(claims)), key=lambda at: of_context[at].score)
        useful = of_context[best].score >= scorer.threshold
        reason = f"{_explain(of_context[best], scorer.threshold)}, for “{shorten(sentences[best], _SHOWN)}”"
        label = "useful" if useful else "not_useful"
        verdicts.append({"id": context.id, "reason": reason, "label": label, **_describe(of_context[best])})
    return verdicts


@dataclass(frozen=True, kw_only=True)
class Form:
    """The messages of a pair and fields of the body with {document} and {claim}, and the meaning of a yes."""

    name: str
    source: str
    yes: Literal["supported", "unsupported"]
    messages: tuple[Message, ...]
    body: Mapping[str, Any] = field(default_factory=dict)

    @property
    def denial(self) -> str:
        """The reply that a claim is not supported, after which most is asked."""
        return "no" if self.yes == "supported" else "yes"

    def fill(self, pair: Mapping[str, BlockValue]) -> tuple[Message, ...]:
        """Return the messages about a pair."""
        return tuple(Message(role=item.role, content=_fill(item.content, pair)) for item in self.messages)

    def read(self, text: str) -> bool:
        """Return whether a reply calls the claim supported; raises UnusableReply for one that is neither yes nor no."""
        reply = text.rpartition("</think>")[2]
        match = _SCORE.search(reply) or _WORD.match(reply)
        if match is None:
            raise UnusableReply(f"the reply was neither yes nor no: {reply.strip()[:_SHOWN]!r}")
        return (match[1].lower() == "yes") == (self.yes == "supported")


@dataclass(frozen=True, kw_only=True)
class FormPrompt(Prompt):
    """A form in the place of a step's prompt. A note behind it would make it another question than the trained one."""

    form: Form

    def render(self, data: Mapping[str, BlockValue], *, note: str = "") -> tuple[Message, ...]:
        """Return the form's messages about the pair in `data`."""
        return self.form.fill(data)


class FormJudge:
    """Asks `judge` about pairs of a document and a claim, which `asking/pairs` makes."""

    tasks = LOCAL_TASKS

    def __init__(self, name: str, form: Form, judge: Judge) -> None:
        self.name = name
        self.model = judge.model
        self.endpoint = judge.endpoint
        self.made = judge  # the judge of the model
        self.reply = judge.reply
        self.close = judge.close
        self._form = form

    @property
    def window(self) -> int | None:
        """The model's context window."""
        return find_window(self.made)

    def prepare(self, question: Question) -> ModelRequest:
        """Return the form's messages with the model's own parameters; no schema, for the reply is one word."""
        pair = question.data
        if pair.keys() != {"document", "claim"}:
            raise FatalJudgeError(f"{self.name} answers whether a document supports a claim, not {question.step!r}")
        prompt = require_prompt(question)
        prompt = FormPrompt(form=self._form, **{item.name: getattr(prompt, item.name) for item in fields(Prompt)})
        request = self.made.prepare(replace(question, prompt=prompt))
        payload = {key: value for key, value in request.payload.items() if key != "response_format"}
        payload |= _fill(self._form.body, pair)
        keyed = [request.request_hash, self._form.name, pair["document"], pair["claim"]]
        return ModelRequest(request_hash=hash_canonical(keyed), payload=payload)


@cache
def load_forms() -> dict[str, Form]:
    """Return all forms by name."""
    table = tomllib.loads(files("evalhouse.tasks.asking").joinpath("forms.toml").read_text(encoding="utf-8"))
    forms = {}
    for name, row in table.items():
        messages = tuple(Message(**message) for message in row.pop("messages"))
        forms[name] = Form(name=name, messages=messages, **row)
    return forms


def find_form(judge: str) -> Form | None:
    """Return the form in a judge's name; None where it names none. Raises FatalJudgeError for an unknown one."""
    kind = judge.partition(":")[0]
    if FORM_JOIN not in kind:
        return None
    name, forms = kind.partition(FORM_JOIN)[0], load_forms()
    if name not in forms:
        raise FatalJudgeError(f"{judge!r} names the form {name!r}; known: {', '.join(forms)}")
    return forms[name]


def _fill(value: Any, pair: Mapping[str, BlockValue]) -> Any:  # noqa: ANN401  # any JSON
    """Fill a pair into the texts of a value, in one pass: a text that holds {claim} is not filled in again."""
    if isinstance(value, str):
        return "".join(str(pair[part[1:-1]]) if _PLACES.fullmatch(part) else part for part in _PLACES.split(value))
    if isinstance(value, list):
        return [_fill(item, pair) for item in value]
    return {key: _fill(item, pair) for key, item in value.items()} if isinstance(value, dict) else value
