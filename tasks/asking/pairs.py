"""Verdicts from scores of pairs: a text and a claim go in, and how far the text supports the claim comes out.

What a chat model is asked in one request is taken apart here and put together again as its reply:

- attribute: each statement against each context. Where no context supports it alone, and the prompt asks for contexts
  that do so together, the best stretches of the two to four highest contexts are judged as one text, as far as the
  model reads that many tokens.
- classify: each statement against all statements of the other side as one text.
- rank: each context against each sentence of the ground truth behind the question, without which a sentence such as
  "At 22:40" claims nothing. Useful is a context that supports any of them.

Each verdict says in its reason what decided it: "0.831 ≥ 0.5 in words 120–480 of C2", or "not supported in words 1–96
of C2" where the model says no more than that. Whoever scores is asked by a generator, so that a classifier in this
process and a chat model over a network answer to the same rules.
"""

import math
import re
import tomllib
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any, Final, Literal, Protocol

from evalhouse.prompts import CONVERSATION, BlockValue, Message, Prompt
from evalhouse.tasks.judge.errors import FatalJudgeError, UnusableReply
from evalhouse.tasks.lexical.split import split_statements
from evalhouse.warehouse.messages import shorten

_MOST_TOGETHER: Final = 4
_SHOWN: Final = 60
_REASON = re.compile(r"(?:at most |together )?([01]\.\d{3}) [≥<] ")
_FEW_SPACES = 20  # characters a word: with more there are no spaces between words


@dataclass(frozen=True, kw_only=True)
class Pair:
    """What is asked: does the document support the claim?"""

    document: str
    claim: str


@dataclass(frozen=True, kw_only=True)
class Scored:
    """How far a document supports a claim, 0 to 1: the highest score of its windows.

    `text` is that window; `first` and `last` say where it stands, in `unit`s of the document counted from 1. `said` is
    the answer of a model that gives no score, `call_id` the call that it stands in.
    """

    score: float
    text: str
    first: int
    last: int
    unit: str = "words"
    said: str | None = None
    call_id: str | None = None

    @property
    def place(self) -> str:
        """As reasons say it."""
        return f"{self.unit} {self.first}–{self.last}"


@dataclass(frozen=True, kw_only=True)
class Rules:
    """From which score on a claim counts as supported, whether support together is asked for, and whether the model
    reads a document beside a claim at once."""

    threshold: float
    joint: bool
    fits: Callable[[Pair], bool]


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Pairs whose scores are wanted; `whole` takes a document that fits as one window."""

    pairs: Sequence[Pair]
    whole: bool = False


class Scorer(Protocol):
    """Whatever scores pairs at once."""

    @property
    def threshold(self) -> float:
        """From which score on a claim counts as supported."""

    def score(self, pairs: Sequence[Pair], *, whole: bool = False) -> list[Scored]:
        """A score for each pair."""

    def fits(self, pair: Pair) -> bool:
        """Whether the model reads the whole document at once."""


Verdicts = list[dict[str, Any]]
Judging = Generator[Batch, list[Scored], Verdicts]


@dataclass(frozen=True, kw_only=True)
class _Entry:
    id: str
    text: str


def locate(document: str, start: int, end: int) -> dict[str, Any]:
    """Where a stretch of characters stands in a document: in words, or where these have no spaces in characters."""
    if len(document) > _FEW_SPACES * len(document.split()):
        return {"first": start + 1, "last": end, "unit": "characters"}
    before = document[:start].split()
    # A window may begin within a word, which then counts as part of it.
    cuts_word = bool(start) and not document[start - 1].isspace() and not document[start : start + 1].isspace()
    first = len(before) + (0 if cuts_word else 1)
    return {"first": max(1, first), "last": max(1, len(document[:end].split())), "unit": "words"}


def begin_judging(prompt: str, data: Mapping[str, object], rules: Rules) -> Judging:
    """Asks for scores batch by batch, and returns the verdicts on the wire data of the request named `prompt`."""
    return _JUDGES[prompt](data, rules)


def judge_pairs(prompt: str, data: Mapping[str, object], scorer: Scorer, *, joint: bool) -> dict[str, object]:
    """The reply to the request named `prompt` about its wire data; `joint` where it asks for support together."""
    judging = begin_judging(prompt, data, Rules(threshold=scorer.threshold, joint=joint, fits=scorer.fits))
    try:
        batch = next(judging)
        while True:
            batch = judging.send(scorer.score(batch.pairs, whole=batch.whole))
    except StopIteration as ended:
        return {"threshold": scorer.threshold, "verdicts": ended.value}


def read_score(reason: str) -> float | None:
    """The score that a reason begins with; None where it begins with none."""
    match = _REASON.match(reason)
    return float(match[1]) if match else None


def _read_entries(data: Mapping[str, object], *names: str) -> list[_Entry]:
    lists = [data.get(name) or () for name in names]
    return [_Entry(id=item["id"], text=item["text"]) for items in lists for item in items]  # type: ignore[attr-defined]


def _explain(scored: Scored, threshold: float, of: str = "") -> str:
    if scored.said is not None:
        return f"{scored.said} in {scored.place}{of and f' of {of}'}"
    # Rounded down, so that a score never looks as if it were on the other side of the threshold.
    shown = math.floor(scored.score * 1000) / 1000
    sign = "≥" if scored.score >= threshold else "<"
    return f"{shown:.3f} {sign} {threshold:g} in {scored.place}{of and f' of {of}'}"


def _evidence(scored: Scored) -> dict[str, object]:
    return {"score": round(scored.score, 6), scored.unit: [scored.first, scored.last], **_name_call(scored)}


def _name_call(scored: Scored) -> dict[str, object]:
    return {} if scored.call_id is None else {"call_id": scored.call_id}


def _attribute(data: Mapping[str, object], rules: Rules) -> Judging:
    statements = _read_entries(data, "answer_statements", "ground_truth_statements")
    contexts = _read_entries(data, "contexts", CONVERSATION)
    pairs = [Pair(document=context.text, claim=entry.text) for entry in statements for context in contexts]
    scores, n = (yield Batch(pairs=pairs)), len(contexts)
    by_id = {entry.id: scores[place * n : (place + 1) * n] for place, entry in enumerate(statements)}
    verdicts = {entry.id: _name_supporting(by_id[entry.id], contexts, rules.threshold) for entry in statements}
    unsupported = [entry for entry in statements if not verdicts[entry.id]["contexts"]]
    if rules.joint and n > 1:
        together = yield from _find_together(unsupported, by_id, contexts, rules)
        for entry_id, joint in together.items():
            verdicts[entry_id] |= joint
    return [{"id": entry.id, **verdicts[entry.id]} for entry in statements]


def _name_supporting(scores: Sequence[Scored], contexts: Sequence[_Entry], threshold: float) -> dict[str, Any]:
    order = sorted(range(len(contexts)), key=lambda place: -scores[place].score)
    named = [context.id for context, scored in zip(contexts, scores, strict=True) if scored.score >= threshold]
    best = contexts[order[0]].id
    reason = _explain(scores[order[0]], threshold, best)
    evidence = [{"context": context.id, **_evidence(scored)} for context, scored in zip(contexts, scores, strict=True)]
    is_scored = scores[order[0]].said is None
    return {
        "reason": reason if named or not is_scored else f"at most {reason}",
        "contexts": named,
        "together": [],
        "scores": evidence,
        **_name_call(scores[order[0]]),
    }


def _find_together(
    open_entries: Sequence[_Entry],
    by_id: Mapping[str, Sequence[Scored]],
    contexts: Sequence[_Entry],
    rules: Rules,
) -> Generator[Batch, list[Scored], dict[str, dict[str, object]]]:
    """By statement the fewest of its highest contexts whose best stretches support it as one text."""
    together: dict[str, dict[str, object]] = {}
    for size in range(2, min(_MOST_TOGETHER, len(contexts)) + 1):
        asked = []
        for entry in open_entries:
            scores = by_id[entry.id]
            places = sorted(sorted(range(len(contexts)), key=lambda at, of=scores: -of[at].score)[:size])  # type: ignore[misc]
            pair = Pair(document="\n".join(scores[place].text for place in places), claim=entry.text)
            if entry.id not in together and rules.fits(pair):
                asked.append((entry, places, pair))
        scored_pairs = yield Batch(pairs=[pair for _, _, pair in asked], whole=True)
        for (entry, places, _), scored in zip(asked, scored_pairs, strict=True):
            if scored.score >= rules.threshold:
                names = [contexts[place].id for place in places]
                reason = f"together {_explain(scored, rules.threshold, ' and '.join(names))}"
                found = {"together_score": round(scored.score, 6), **_name_call(scored)}
                together[entry.id] = {"reason": reason, "together": names, **found}
    return together


def _classify(data: Mapping[str, object], rules: Rules) -> Judging:
    answer, truth = _read_entries(data, "answer_statements"), _read_entries(data, "ground_truth_statements")
    sides = [(answer, truth, "FP", "the ground truth"), (truth, answer, "FN", "the answer")]
    asked = [(entry, other, label, name) for own, other, label, name in sides for entry in own]
    pairs = [Pair(document="\n".join(item.text for item in other), claim=entry.text) for entry, other, _, _ in asked]
    scores = yield Batch(pairs=pairs)
    return [
        {
            "id": entry.id,
            "reason": _explain(scored, rules.threshold, f"the statements of {name}"),
            "label": "TP" if scored.score >= rules.threshold else label,
            **_evidence(scored),
        }
        for (entry, _, label, name), scored in zip(asked, scores, strict=True)
    ]


def _rank(data: Mapping[str, object], rules: Rules) -> Judging:
    contexts, question, truth = _read_entries(data, "contexts"), str(data["question"]), str(data["ground_truth"])
    sentences = split_statements(truth) or [truth]
    claims = [f"{question} {sentence}".strip() for sentence in sentences]
    scores = yield Batch(pairs=[Pair(document=context.text, claim=claim) for context in contexts for claim in claims])
    verdicts: Verdicts = []
    for place, context in enumerate(contexts):
        own = scores[place * len(claims) : (place + 1) * len(claims)]
        best = max(range(len(claims)), key=lambda at: own[at].score)
        useful = own[best].score >= rules.threshold
        reason = f"{_explain(own[best], rules.threshold)}, for “{shorten(sentences[best], _SHOWN)}”"
        label = "useful" if useful else "not_useful"
        verdicts.append({"id": context.id, "reason": reason, "label": label, **_evidence(own[best])})
    return verdicts


_JUDGES: Final[Mapping[str, Callable[[Mapping[str, object], Rules], Judging]]] = {
    "attribute": _attribute,
    "classify": _classify,
    "rank": _rank,
}


JOIN: Final = "+"
_PLACES = re.compile(r"(\{document\}|\{claim\})")
_SCORE = re.compile(r"<score>\s*(yes|no)\b", re.IGNORECASE)
_WORD = re.compile(r"\W*(yes|no)\b", re.IGNORECASE)
_SHOWN_OF_REPLY: Final = 60


@dataclass(frozen=True, kw_only=True)
class Form:
    """How a pair is asked: messages and fields of the body with {document} and {claim}, and what a yes means."""

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
        """The messages about a pair."""
        return tuple(Message(role=item.role, content=_fill(item.content, pair)) for item in self.messages)

    def fill_body(self, pair: Mapping[str, BlockValue]) -> dict[str, Any]:
        """The fields about a pair that stand beside the messages."""
        return {name: _fill_deep(value, pair) for name, value in self.body.items()}

    def read(self, text: str) -> bool:
        """Whether a reply says that the claim is supported; raises UnusableReply for one that says neither."""
        said = text.rpartition("</think>")[2]
        match = _SCORE.search(said) or _WORD.match(said)
        if match is None:
            raise UnusableReply(f"the reply was neither yes nor no: {said.strip()[:_SHOWN_OF_REPLY]!r}")
        return (match[1].lower() == "yes") == (self.yes == "supported")


@dataclass(frozen=True, kw_only=True)
class FormPrompt(Prompt):
    """A form in the place of a step's prompt. A note behind it would make it another question than the trained one."""

    form: Form

    def render(self, data: Mapping[str, BlockValue], *, note: str = "") -> tuple[Message, ...]:
        """The form's messages about the pair in `data`."""
        return self.form.fill(data)


def find_form(judge: str) -> Form | None:
    """The form in a judge's name; None where it names none. Raises FatalJudgeError for one that is not known."""
    kind = judge.partition(":")[0]
    if JOIN not in kind:
        return None
    name = kind.partition(JOIN)[0]
    forms = _read_forms()
    if name not in forms:
        raise FatalJudgeError(f"{judge!r} names the form {name!r}; known: {', '.join(forms)}")
    return forms[name]


def list_forms() -> tuple[str, ...]:
    """The names of all forms."""
    return tuple(_read_forms())


@cache
def _read_forms() -> dict[str, Form]:
    table = tomllib.loads(files("evalhouse.tasks.asking").joinpath("forms.toml").read_text(encoding="utf-8"))
    return {name: _make_form(name, row) for name, row in table.items()}


def _make_form(name: str, row: Mapping[str, Any]) -> Form:
    messages = tuple(Message(**message) for message in row["messages"])
    return Form(name=name, **{**row, "messages": messages})


def _fill(text: str, pair: Mapping[str, BlockValue]) -> str:
    """One pass, so that a text that says {claim} is not filled in once more."""
    return "".join(str(pair[part[1:-1]]) if _PLACES.fullmatch(part) else part for part in _PLACES.split(text))


def _fill_deep(value: Any, pair: Mapping[str, BlockValue]) -> Any:  # noqa: ANN401  # any JSON
    if isinstance(value, str):
        return _fill(value, pair)
    if isinstance(value, list):
        return [_fill_deep(item, pair) for item in value]
    return {key: _fill_deep(item, pair) for key, item in value.items()} if isinstance(value, dict) else value
