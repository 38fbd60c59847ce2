"""Verdicts from scores of pairs: a text and a claim go in, and how far the text supports the claim comes out.

What a chat model is asked in one request is taken apart here and put together again as its reply:

- attribute: each statement against each context. Where no context supports it alone, and the prompt asks for contexts
  that do so together, the best stretches of the two to four highest contexts are judged as one text, as far as the
  model reads that many tokens.
- classify: each statement against all statements of the other side as one text.
- rank: each context against each sentence of the ground truth behind the question, without which a sentence such as
  "At 22:40" claims nothing. Useful is a context that supports any of them.

Each verdict says in its reason what decided it: "0.831 ≥ 0.5 in words 120–480 of C2".
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from evalhouse.tasks.lexical.split import split_statements
from evalhouse.tasks.messages import shorten

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

    `text` is that window; `first` and `last` say where it stands, in `unit`s of the document counted from 1.
    """

    score: float
    text: str
    first: int
    last: int
    unit: str = "words"

    @property
    def place(self) -> str:
        """As reasons say it."""
        return f"{self.unit} {self.first}–{self.last}"


class Scorer(Protocol):
    """Whatever scores pairs."""

    @property
    def threshold(self) -> float:
        """From which score on a claim counts as supported."""

    def score(self, pairs: Sequence[Pair], *, whole: bool = False) -> list[Scored]:
        """A score for each pair; `whole` takes a document that fits as one window."""

    def fits(self, pair: Pair) -> bool:
        """Whether the model reads the whole document at once."""


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


def judge_pairs(prompt: str, data: Mapping[str, object], scorer: Scorer, *, joint: bool) -> dict[str, object]:
    """The reply to the request named `prompt` about its wire data; `joint` where it asks for support together."""
    verdicts = _JUDGES[prompt](data, scorer, joint)
    return {"threshold": scorer.threshold, "verdicts": verdicts}


def read_score(reason: str) -> float | None:
    """The score that a reason begins with; None where it begins with none."""
    match = _REASON.match(reason)
    return float(match[1]) if match else None


def _read_entries(data: Mapping[str, object], *names: str) -> list[_Entry]:
    lists = [data.get(name) or () for name in names]
    return [_Entry(id=item["id"], text=item["text"]) for items in lists for item in items]  # type: ignore[attr-defined]


def _explain(scored: Scored, threshold: float, of: str = "") -> str:
    # Rounded down, so that a score never looks as if it were on the other side of the threshold.
    shown = math.floor(scored.score * 1000) / 1000
    sign = "≥" if scored.score >= threshold else "<"
    return f"{shown:.3f} {sign} {threshold:g} in {scored.place}{of and f' of {of}'}"


def _evidence(scored: Scored) -> dict[str, object]:
    return {"score": round(scored.score, 6), scored.unit: [scored.first, scored.last]}


def _attribute(data: Mapping[str, object], scorer: Scorer, joint: bool) -> list[dict[str, object]]:
    statements = _read_entries(data, "answer_statements", "ground_truth_statements")
    contexts = _read_entries(data, "contexts")
    pairs = [Pair(document=context.text, claim=entry.text) for entry in statements for context in contexts]
    scores, n = scorer.score(pairs), len(contexts)
    by_id = {entry.id: scores[place * n : (place + 1) * n] for place, entry in enumerate(statements)}
    verdicts = {entry.id: _name_supporting(by_id[entry.id], contexts, scorer.threshold) for entry in statements}
    unsupported = [entry for entry in statements if not verdicts[entry.id]["contexts"]]
    if joint and n > 1:
        for entry_id, together in _find_together(unsupported, by_id, contexts, scorer).items():
            verdicts[entry_id] |= together
    return [{"id": entry.id, **verdicts[entry.id]} for entry in statements]


def _name_supporting(scores: Sequence[Scored], contexts: Sequence[_Entry], threshold: float) -> dict[str, object]:
    order = sorted(range(len(contexts)), key=lambda place: -scores[place].score)
    named = [context.id for context, scored in zip(contexts, scores, strict=True) if scored.score >= threshold]
    best = contexts[order[0]].id
    reason = _explain(scores[order[0]], threshold, best)
    evidence = [{"context": context.id, **_evidence(scored)} for context, scored in zip(contexts, scores, strict=True)]
    return {"reason": reason if named else f"at most {reason}", "contexts": named, "together": [], "scores": evidence}


def _find_together(
    open_entries: Sequence[_Entry],
    by_id: Mapping[str, Sequence[Scored]],
    contexts: Sequence[_Entry],
    scorer: Scorer,
) -> dict[str, dict[str, object]]:
    """By statement the fewest of its highest contexts whose best stretches support it as one text."""
    together: dict[str, dict[str, object]] = {}
    for size in range(2, min(_MOST_TOGETHER, len(contexts)) + 1):
        asked = []
        for entry in open_entries:
            scores = by_id[entry.id]
            places = sorted(sorted(range(len(contexts)), key=lambda at, of=scores: -of[at].score)[:size])  # type: ignore[misc]
            pair = Pair(document="\n".join(scores[place].text for place in places), claim=entry.text)
            if entry.id not in together and scorer.fits(pair):
                asked.append((entry, places, pair))
        scored_pairs = scorer.score([pair for _, _, pair in asked], whole=True)
        for (entry, places, _), scored in zip(asked, scored_pairs, strict=True):
            if scored.score >= scorer.threshold:
                names = [contexts[place].id for place in places]
                reason = f"together {_explain(scored, scorer.threshold, ' and '.join(names))}"
                together[entry.id] = {"reason": reason, "together": names, "together_score": round(scored.score, 6)}
    return together


def _classify(data: Mapping[str, object], scorer: Scorer, joint: bool) -> list[dict[str, object]]:
    answer, truth = _read_entries(data, "answer_statements"), _read_entries(data, "ground_truth_statements")
    sides = [(answer, truth, "FP", "the ground truth"), (truth, answer, "FN", "the answer")]
    asked = [(entry, other, label, name) for own, other, label, name in sides for entry in own]
    pairs = [Pair(document="\n".join(item.text for item in other), claim=entry.text) for entry, other, _, _ in asked]
    return [
        {
            "id": entry.id,
            "reason": _explain(scored, scorer.threshold, f"the statements of {name}"),
            "label": "TP" if scored.score >= scorer.threshold else label,
            **_evidence(scored),
        }
        for (entry, _, label, name), scored in zip(asked, scorer.score(pairs), strict=True)
    ]


def _rank(data: Mapping[str, object], scorer: Scorer, joint: bool) -> list[dict[str, object]]:
    contexts, question, truth = _read_entries(data, "contexts"), str(data["question"]), str(data["ground_truth"])
    sentences = split_statements(truth) or [truth]
    claims = [f"{question} {sentence}".strip() for sentence in sentences]
    scores = scorer.score([Pair(document=context.text, claim=claim) for context in contexts for claim in claims])
    verdicts: list[dict[str, object]] = []
    for place, context in enumerate(contexts):
        own = scores[place * len(claims) : (place + 1) * len(claims)]
        best = max(range(len(claims)), key=lambda at: own[at].score)
        useful = own[best].score >= scorer.threshold
        reason = f"{_explain(own[best], scorer.threshold)}, for “{shorten(sentences[best], _SHOWN)}”"
        label = "useful" if useful else "not_useful"
        verdicts.append({"id": context.id, "reason": reason, "label": label, **_evidence(own[best])})
    return verdicts


_JUDGES: Final[Mapping[str, Callable[[Mapping[str, object], Scorer, bool], list[dict[str, object]]]]] = {
    "attribute": _attribute,
    "classify": _classify,
    "rank": _rank,
}
