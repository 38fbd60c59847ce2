"""A test set over two invented handbooks, new documents that say otherwise in other words, and a model that sees it.

`rewordings.yaml` has the facts. `rewordings_endpoint` is an endpoint whose judge knows which sentences are about one
fact, and its embeddings are by meaning: each line of `meanings` is one direction, every other word has a short one of
its own. So these embeddings know every synonym that the sentences need, which no real model does.
"""

from __future__ import annotations

import contextlib
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from endpoint import Endpoint, running_endpoint
from endpoint_replies import Asked, compose_reply
from numpy.typing import NDArray
from port_answers import PortAnswers, ask_for, read_contexts
from port_base import build_base as build_port
from port_base import find_statements, render_base
from port_handbook import find_attribute, find_entity

from evalhouse.tasks.testsets.documents import load_documents
from evalhouse.tasks.testsets.passages import find_language
from evalhouse.tasks.testsets.questions import (
    UNANSWERABLE,
    Manifest,
    SetQuestion,
    Span,
    TestSet,
    make_question_id,
    write_set,
)

_DATA = yaml.safe_load(Path(__file__).with_name("rewordings.yaml").read_text(encoding="utf-8"))
_MEANINGS = {word: number for number, line in enumerate(_DATA["meanings"]) for word in line.split()}
_DIMENSIONS, _OTHER_WORDS = 256, 0.3
_WORD = re.compile(r"[a-z0-9']+")


@dataclass(frozen=True, kw_only=True)
class Fact:
    """A fact of a document with its question; `new` are sentences that say otherwise, or say it for the first time."""

    question: str
    truth: str | None
    stated: str
    new: dict[str, str]

    def find(self, text: str) -> str | None:
        """Return the sentence of a text that is about this fact; None without any."""
        return next((sentence for sentence in (self.stated, *self.new.values()) if sentence and sentence in text), None)

    @property
    def language(self) -> str:
        return find_language(self.question)


FACTS = [
    Fact(question=one["question"], truth=one["truth"], stated=one["fact"],
         new={name: one[name] for name in ("paraphrase", "far")})
    for document in _DATA["documents"] for one in document["facts"]
]  # fmt: skip
OPEN = [
    Fact(question=one["question"], truth=None, stated="", new={"answer": one["text"]}) for one in _DATA["unanswerable"]
]
_BY_QUESTION = {fact.question: fact for fact in (*FACTS, *OPEN)}


def write_documents(folder: Path, facts: Sequence[Fact] = (), wording: str = "", *, with_others: bool = False) -> Path:
    """Write the handbooks; for each of `facts` a new document states it in this wording.

    `with_others` writes the documents of the port authority as well.
    """
    texts = {
        document["path"]: f"# {document['title']}\n\n"
        + "".join(f"## {one['heading']}\n\n{one['fact']}\n\n" for one in document["facts"])
        for document in _DATA["documents"]
    }
    for number, fact in enumerate(facts):
        title = "News" if fact.language == "en" else "通知"
        texts[f"{fact.language}/news-{number}.md"] = f"# {title} {number}\n\n{fact.new[wording]}\n"
    if with_others:
        texts |= {path: text for path, text in render_base(version=1).items() if path.endswith(".md")}
    for path, text in texts.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    return folder


def list_port_questions() -> Iterator[tuple[str, str, str]]:
    """Yield questions about other documents with their ground truths and the sentences that they rest on."""
    seen = set[str]()
    for one in find_statements(build_port(())):
        entity, attribute = find_entity(one.fact), None if one.fact.endswith(".steps") else find_attribute(one.fact)
        if attribute is not None and one.document.endswith(".md") and one.fact not in seen:
            seen.add(one.fact)
            yield ask_for(entity, attribute), attribute.state(entity, one.value), one.text


def write_rewordings_set(path: Path, folder: Path, *, n_others: int = 0) -> dict[str, Fact]:
    """Write the set over the documents of a folder; returns the facts by the ids of their questions.

    `n_others` questions about the port authority come with them, which no new document touches.
    """
    passages = [passage for document in load_documents(str(folder)) for passage in document.passages]
    available = (one for one in list_port_questions() if any(one[2] in passage.text for passage in passages))
    others = list(islice(available, n_others))
    questions = []
    for text, truth, stated in [*((fact.question, fact.truth, fact.stated) for fact in (*FACTS, *OPEN)), *others]:
        own = next((passage for passage in passages if stated and stated in passage.text), None)
        spans = ()
        if own is not None:
            start = own.start + own.text.index(stated)
            spans = (Span(document_id=own.document_id, passage_id=own.passage_id, text=stated, start=start),)
        questions.append(
            SetQuestion(
                id=make_question_id(text, ()), question=text, ground_truth=truth, spans=spans,
                reference_context_ids=tuple(span.document_id for span in spans), language=find_language(text),
                kind="fact" if truth else UNANSWERABLE,
            )
        )  # fmt: skip
    manifest = Manifest(
        source=str(folder),
        passages={passage.passage_id: passage.passage_hash for passage in passages},
        asked={"n": 1, "n_passages": len(passages), "kinds": {"fact": 1.0}, "seed": 0, "references": "documents"},
        judge="lexical",
    )
    test_set = TestSet(questions=tuple(questions), manifest=manifest)
    write_set(path, test_set.add_version(run_id=None, made_at="2026-01-01", changes=()))
    return {make_question_id(fact.question, ()): fact for fact in (*FACTS, *OPEN)}


def embed(text: str) -> NDArray[np.float32]:
    """Return the sum of the directions of a text's meanings and, much shorter, of its other words."""
    text = text.lower()
    words = {*_WORD.findall(text), *(word for word in _MEANINGS if not word.isascii() and word in text)}
    vector = np.zeros(_DIMENSIONS)
    for word in sorted(words):
        number = _MEANINGS.get(word)
        seed, length = (zlib.crc32(word.encode()), _OTHER_WORDS) if number is None else (number, 1.0)
        vector += length * np.random.default_rng(seed).standard_normal(_DIMENSIONS)
    return vector.astype(np.float32)


@contextlib.contextmanager
def rewordings_endpoint(**options: Any) -> Iterator[tuple[Endpoint, RewordingAnswers]]:  # noqa: ANN401
    """An endpoint with these answers and embeddings; `options` go to `running_endpoint`."""
    answers = RewordingAnswers()
    script = {"embeddings": answers.embed, **options.pop("script", {})}
    with running_endpoint(compose=answers.compose, script=script, **options) as endpoint:
        yield endpoint, answers


@dataclass
class RewordingAnswers:
    """Replies to requests about these facts; the ones about the port authority's handbook come from `PortAnswers`.

    `matched` are the pairs of a question and a new sentence that the judge was asked about together.
    """

    matched: set[tuple[str, str]] = field(default_factory=set)
    port: PortAnswers = field(default_factory=PortAnswers)

    def compose(self, asked: Asked) -> dict[str, Any] | str:
        """The reply to a request."""
        blocks, contexts = asked.blocks, read_contexts(asked)
        fact = _BY_QUESTION.get(blocks.get("question", "").strip())
        if asked.kind == "match_questions":
            reply: Any = self.port.compose(asked)
            for key, text in asked.items("questions").items():
                if own := _BY_QUESTION.get(text):
                    found = {name: own.find(context) for name, context in contexts.items()}
                    whole = "\n".join(contexts.values())
                    self.matched |= {(text, sentence) for sentence in own.new.values() if sentence in whole}
                    if used := [name for name, sentence in found.items() if sentence]:
                        reply["answered"].append({"reason": "It is about it.", "question": key, "contexts": used})
            return reply
        if fact is None:
            return self.port.compose(asked)
        sentences = {name: sentence for name, text in contexts.items() if (sentence := fact.find(text))}
        new = {name: sentence for name, sentence in sentences.items() if sentence != fact.stated}
        name, sentence = next(iter({**new, **sentences}.items()), ("", ""))
        quotes = [{"id": name, "quote": sentence}]
        match asked.kind:
            case "answer_question":
                basis = {"basis": "contexts" if sentences else "none", "used": [name] if sentences else []}
                return {"reason": "By what they say.", "answer": sentence, **basis}
            case "renew_question":
                verdict = "changed" if new else "still_true"
                quotes = quotes if sentences else []
                return {"reason": "By what they say.", "verdict": verdict, "ground_truth": sentence, "quotes": quotes}
            case "classify":
                sides = {side: read_contexts(asked, side) for side in ("answer_statements", "ground_truth_statements")}
                same = len({self._tell(fact, text) for side in sides.values() for text in side.values()}) == 1
                labels = {"answer_statements": "FP", "ground_truth_statements": "FN"}
                return {
                    side: [{"id": key, "reason": "Compared.", "label": "TP" if same else labels[side]} for key in texts]
                    for side, texts in sides.items()
                }
            case "attribute":
                statements = read_contexts(asked, "answer_statements") | read_contexts(asked, "ground_truth_statements")
                return {
                    "verdicts": [
                        {"id": key, "reason": "Compared.", "together": [], "contexts": [
                            c for c, text in contexts.items() if fact.find(text) == self._tell(fact, statement)
                        ]} for key, statement in statements.items()
                    ]
                }  # fmt: skip
        return compose_reply(asked)

    def embed(self, asked: Asked) -> dict[str, Any]:
        """The reply to a request for embeddings."""
        data = [
            {"object": "embedding", "index": place, "embedding": embed(text).tolist()}
            for place, text in enumerate(asked.texts)
        ]
        usage = {"prompt_tokens": len(data), "total_tokens": len(data)}
        return {"object": "list", "model": asked.model, "usage": usage, "data": data}

    @staticmethod
    def _tell(fact: Fact, text: str) -> str | None:
        """Return the sentence that a statement repeats; the ground truth is the stated fact in other words."""
        return fact.stated if text == fact.truth else fact.find(text)
