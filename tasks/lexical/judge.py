"""The built-in `lexical` judge: verdicts from words, numbers and names alone.

It answers the questions that a chat model is asked, in the same reply shapes, deterministically, offline, in English
and Chinese. Statements come from `split`; the support of a text, the usefulness of contexts and the short reason come
from `match`.

Where test sets are made and checked it is a stand-in with no understanding of meaning: it writes cloze questions
(a sentence of a passage with one word left out) and questions that name a heading, and its ground truths are sentences
of the passage. It answers a question with the sentence that fits its gap, and takes a changed sentence for the new
ground truth.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise, zip_longest
from typing import Any

import orjson

from evalhouse.prompts import CONVERSATION, Item
from evalhouse.tasks.judge.protocol import (
    ModelReply,
    ModelRequest,
    Question,
    hash_canonical,
    plain_data,
    require_prompt,
)
from evalhouse.tasks.lexical.match import Support, compare_statements, explain_support, rate_contexts, score_contexts
from evalhouse.tasks.lexical.split import (
    ITEM_MARK,
    asserts_something,
    split_sentences,
    split_statements,
    unwrap_lines,
)
from evalhouse.tasks.lexical.texts import analyse_text
from evalhouse.warehouse.steps import LEXICAL_TASKS, REPLY_VERSIONS

LEXICAL_VERSION = "5"  # part of every request's key: raise it whenever any verdict may come out differently

# Shares of a text's content words: from which on two texts are about the same, and one is heeded in the other.
_SAME_SUBJECT, _HEEDED = 0.5, 0.3
_NOTHING = Support(score=0.0, evidence=None)
_TIE_WITHIN = 0.05
_NO_MEASURE = "by words alone, a stand-in: with neither a ground truth nor contexts there is nothing to measure them by"
_SCORE = re.compile(r"score ([01]\.\d\d): ")

# --- the data of a request


@dataclass(frozen=True, kw_only=True)
class _Turn:
    """An earlier turn; `statements` is its text without the questions in it."""

    id: str
    role: str
    statements: str


def _read_text(data: Mapping[str, object], name: str) -> str:
    value = data.get(name, "")
    if not isinstance(value, str):
        raise TypeError(f"{name} is {type(value).__name__}; the lexical judge expects a string there")
    return value


def _read_items(data: Mapping[str, object], name: str) -> list[Item]:
    value = data.get(name, ())
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise TypeError(f"{name} is {type(value).__name__}; the lexical judge expects a list of {{id, text}} there")
    entries: list[Item] = []
    for item in value:
        if (
            not isinstance(item, Mapping)
            or not isinstance(item.get("id"), str)
            or not isinstance(item.get("text"), str)
        ):
            raise TypeError(f"an item of {name} is {item!r:.80}; the lexical judge expects {{id, text}} with strings")
        entries.append(Item(id=item["id"], text=item["text"]))
    return entries


def _read_turns(data: Mapping[str, object]) -> list[_Turn]:
    turns = []
    for entry in _read_items(data, CONVERSATION):
        role, _, text = entry.text.partition(": ")
        statements = [sentence for sentence in split_sentences(text) if not sentence.rstrip().endswith(("?", "？"))]
        turns.append(_Turn(id=entry.id, role=role, statements=" ".join(statements)))
    return turns


# --- verdicts


def _classify(data: Mapping[str, object]) -> list[dict[str, Any]]:
    """Return a verdict on every statement: TP, or FP of the answer and FN of the ground truth."""
    answer, truth = _read_items(data, "answer_statements"), _read_items(data, "ground_truth_statements")
    compared = compare_statements(
        _read_text(data, "question"), [entry.text for entry in answer], [entry.text for entry in truth]
    )
    judged = [(entry, support, "FP") for entry, support in zip(answer, compared.answer, strict=True)]
    judged += [(entry, support, "FN") for entry, support in zip(truth, compared.ground_truth, strict=True)]
    return [
        {"id": entry.id, "reason": explain_support(support), "label": "TP" if support.supported else label}
        for entry, support, label in judged
    ]


def _attribute(data: Mapping[str, object]) -> list[dict[str, Any]]:
    """Return for every statement the contexts and turns that support it."""
    question, contexts = _read_text(data, "question"), _read_items(data, "contexts")
    entries = _read_items(data, "answer_statements") + _read_items(data, "ground_truth_statements")
    texts = [entry.text for entry in entries]
    scored = score_contexts(texts, [context.text for context in contexts], question)
    turns = _read_turns(data)
    # Scored separately, so that earlier turns change nothing about the contexts.
    in_turns = score_contexts(texts, [turn.statements for turn in turns], question) if turns else [[] for _ in entries]
    ids = [*(context.id for context in contexts), *(turn.id for turn in turns)]
    verdicts: list[dict[str, Any]] = []
    for entry, of_contexts, of_turns in zip(entries, scored, in_turns, strict=True):
        supports = [*of_contexts, *of_turns]
        best = max(supports, key=lambda support: support.score, default=_NOTHING)
        supporting = [text_id for text_id, support in zip(ids, supports, strict=True) if support.supported]
        verdicts.append({"id": entry.id, "reason": explain_support(best), "contexts": supporting, "together": []})
    return verdicts


def _rank(data: Mapping[str, object]) -> list[dict[str, Any]]:
    """Return for every context whether it is useful."""
    contexts = _read_items(data, "contexts")
    texts = [context.text for context in contexts]
    rated = rate_contexts(_read_text(data, "question"), _read_text(data, "ground_truth"), texts)
    verdicts: list[dict[str, Any]] = []
    for context, relevance in zip(contexts, rated, strict=True):
        shares = f"{relevance.question_share:.0%} of the question"
        if relevance.ground_truth_share is not None:
            shares = f"{relevance.ground_truth_share:.0%} of the ground truth and {shares}"
        reason = f"score {relevance.score:.2f}: holds {shares}"
        verdicts.append({"id": context.id, "reason": reason, "label": "useful" if relevance.useful else "not_useful"})
    return verdicts


def read_score(reason: str) -> float | None:
    """Return the score that a reason of this judge begins with; None where it begins with none."""
    match = _SCORE.match(reason)
    return float(match[1]) if match else None


def _compare_with_turns(data: Mapping[str, object]) -> dict[str, object]:
    """Return the earlier turns that contradict each statement, and the points of the user that the answer heeds.

    A contradiction is a different number, name or negation; a point is any statement of the user.
    """
    question, statements = _read_text(data, "question"), _read_items(data, "answer_statements")
    turns = _read_turns(data)
    answered = [turn for turn in turns if turn.role == "assistant"]
    scored = score_contexts([entry.text for entry in statements], [turn.statements for turn in answered], question)
    judged = []
    for entry, supports in zip(statements, scored, strict=True):
        against: list[int] = []
        for place, support in enumerate(supports):
            evidence = support.evidence
            if not support.supported and evidence is not None and evidence.cover >= _SAME_SUBJECT:
                against += [place] if evidence.is_contradicted or evidence.rivals else []
        decisive = supports[against[0]] if against else max(supports, key=lambda one: one.score, default=_NOTHING)
        named = [answered[place].id for place in against]
        judged.append({"id": entry.id, "reason": explain_support(decisive), "turns": named})
    points = [(turn.id, point) for turn in turns if turn.role == "user" for point in split_statements(turn.statements)]
    found = score_contexts([point for _, point in points], [_read_text(data, "answer")]) if points else []
    heeded = [
        {
            "id": turn_id,
            "reason": explain_support(support),
            "point": point,
            "heeded": support.evidence is not None and support.evidence.cover >= _HEEDED,
        }
        for (turn_id, point), (support,) in zip(points, found, strict=True)
    ]
    return {"statements": judged, "points": heeded}


def _prefer(data: Mapping[str, object]) -> dict[str, object]:
    """Prefer the answer that agrees better, in words alone, with the ground truth, or without one with the contexts."""
    question, truth = _read_text(data, "question"), split_statements(_read_text(data, "ground_truth"))
    contexts = [context.text for context in _read_items(data, "contexts")]

    def mean(values: Sequence[float]) -> float:
        return sum(values) / len(values) if values else 0.0

    scores: list[float] = []
    for place in ("first", "second"):
        answer, score = split_statements(_read_text(data, f"{place}_answer")), 0.0
        if truth:  # F1 of how far the statements of either text are in the other
            compared = compare_statements(question, answer, truth)
            precision = mean([support.score for support in compared.answer])
            recall = mean([support.score for support in compared.ground_truth])
            score = 2 * precision * recall / (precision + recall) if precision and recall else 0.0
        elif contexts:
            scored = score_contexts(answer, contexts, question)
            score = mean([max(support.score for support in supports) for supports in scored])
        scores.append(score)
    first, second = scores
    verdict = "tie" if abs(first - second) < _TIE_WITHIN else "first" if first > second else "second"
    by = "F1 with the ground truth" if truth else "support by the contexts"
    reason = f"by words alone, a stand-in: {by}, first {first:.2f}, second {second:.2f}"
    return {"preference": {"reason": reason if truth or contexts else _NO_MEASURE, "verdict": verdict}}


# --- questions of test sets

BLANK = "____"
_HAN = re.compile(r"[\u3400-\u9fff]")
_QUOTED = re.compile(r"[“「]([^“”「」]++)[”」]")
_DIGITS = re.compile(r"(?<![^\W_])\d[\d.,:]*+(?![A-Za-z])")
_CODE = re.compile(r"^```.*?(?:^```|\Z)", re.DOTALL | re.MULTILINE)
_RECOGNISED = 0.5  # share of a sentence's words that a changed version of it still has
_MIN_WORDS = 3
_MIN_SHARED = 3  # words of content that two sentences about one subject have in common
_MAX_STEPS = 6
_TOPICS = {
    "en": ("the complaints procedure", "the emergency contact", "the insurance", "the founding year"),
    "zh": ("投诉流程", "紧急联系人", "保险", "成立年份"),
}
_QUESTIONS = {
    "en": {
        "cloze": "Which word or number is missing here: “{}”?",
        "heading": "What does the section “{}” say?",
        "steps": "What has to be done according to the section “{}”?",
        "both": "What do the sections “{}” and “{}” say?",
        "differ": "How does what “{}” says differ from what “{}” says?",
        "topic": "What does the section “{}” say about {}?",
    },
    "zh": {
        "cloze": "这句话里缺了哪个词或数字：“{}”？",
        "heading": "“{}”一节说了什么？",
        "steps": "按“{}”一节，应当怎么做？",
        "both": "“{}”和“{}”两节说了什么？",
        "differ": "“{}”所说的和“{}”所说的有什么不同？",
        "topic": "“{}”一节关于{}说了什么？",
    },
}


@dataclass(frozen=True, kw_only=True)
class Source:
    """A passage of a request: its headings in one line, its sentences, and its language by its letters."""

    id: str
    heading: str
    sentences: tuple[str, ...]
    language: str

    def write(self, name: str, *values: str) -> str:
        """Return a question in the passage's language."""
        return _QUESTIONS[self.language][name].format(*values)

    def join(self, sentences: Sequence[str]) -> str:
        """Return sentences as one text in the passage's language."""
        return ("" if self.language == "zh" else " ").join(sentences)

    def quote(self, *sentences: str) -> list[dict[str, str]]:
        """Return sentences of the passage as quotes."""
        return [{"id": self.id, "quote": sentence} for sentence in sentences]


def _read_sources(data: Mapping[str, object]) -> list[Source]:
    """Return the passages of a request, which have their headings in the first line if there is more than one line."""
    sources = []
    for entry in _read_items(data, "contexts"):
        heading, line_break, body = entry.text.partition("\n")
        text = unwrap_lines(_CODE.sub("\n", body if line_break else entry.text))
        sentences = tuple(
            sentence
            for sentence in (ITEM_MARK.sub("", found, count=1) for found in split_sentences(text))
            if asserts_something(sentence) and "|" not in sentence and len(analyse_text(sentence).keys) >= _MIN_WORDS
        )
        heading = heading if line_break else ""
        language = "zh" if _HAN.search("".join(sentences) or heading) else "en"
        sources.append(Source(id=entry.id, heading=heading, sentences=sentences, language=language))
    return sources


def write_questions(kind: str, sources: Sequence[Source]) -> Iterator[dict[str, object]]:
    """Yield questions of a kind, each with ground truth, quotes and turns."""

    def make(question: str, truth: str, quotes: Sequence[Mapping[str, str]], *turns: str) -> dict[str, object]:
        return {"question": question, "ground_truth": truth, "quotes": list(quotes), "turns": list(turns)}

    def find_gap(sentence: str) -> str | None:
        """Return the first number, or the longest word of content that the sentence has once as spelled here."""
        if kind == "number":
            digits = _DIGITS.search(sentence)
            return digits[0].rstrip(".,:") if digits else None
        words = [token.surface for part in analyse_text(sentence).sentences for token in part.tokens]
        once = [word for word in words if len(word) > 1 and sentence.count(word) == 1]
        return max(once, key=len, default=None)

    for source, following in zip_longest(sources, sources[1:]):
        heading, sentences = source.heading, source.sentences
        match kind:
            case "fact" | "number":
                for sentence in sentences:
                    if gap := find_gap(sentence):
                        asked = source.write("cloze", sentence.replace(gap, BLANK, 1))
                        yield make(asked, sentence, source.quote(sentence))
            case "conversational":
                for before, sentence in pairwise(sentences):
                    gap = find_gap(sentence)
                    if heading and gap:
                        asked = source.write("cloze", sentence.replace(gap, BLANK, 1))
                        yield make(asked, sentence, source.quote(sentence), source.write("heading", heading), before)
            case "procedure":
                steps = sentences[:_MAX_STEPS]
                if heading and len(steps) > 1:
                    yield make(source.write("steps", heading), source.join(steps), source.quote(*steps))
            case "several" | "comparison":
                other = following
                if other is None or not heading or other.heading in ("", heading):
                    continue
                # The two sentences with most words in common; sections without such a pair have different subjects.
                pairs = [(one, second) for one in sentences for second in other.sentences]
                shared = [len(analyse_text(one).keys & analyse_text(second).keys) for one, second in pairs]
                if max(shared, default=0) >= _MIN_SHARED:
                    one, second = pairs[shared.index(max(shared))]
                    asked = source.write("both" if kind == "several" else "differ", heading, other.heading)
                    yield make(asked, source.join((one, second)), [*source.quote(one), *other.quote(second)])
            case "unanswerable":
                for topic in _TOPICS[source.language] if heading else ():
                    yield make(source.write("topic", heading, topic), "", [])
            case _:
                raise ValueError(f"the lexical judge writes no questions of the kind {kind!r}")


def answer_question(question: str, sources: Sequence[Source]) -> dict[str, Any]:
    """Return the sentence that a cloze question was made from, or the sections that a question names.

    Any other question is answered by the first sentence that has all its words of content, and more.
    """

    def make(reason: str, text: str = "", used: Sequence[str] = ()) -> dict[str, Any]:
        return {"reason": reason, "basis": "contexts" if used else "none", "answer": text, "used": list(used)}

    quoted = _QUOTED.findall(question)
    if not quoted:
        asked = analyse_text(question).keys
        for source in sources:
            for sentence in source.sentences:
                if asked and asked < analyse_text(sentence).keys:
                    return make("a sentence has all words of the question", sentence, [source.id])
        return make("no sentence has all words of the question")
    cloze = next((text for text in quoted if BLANK in text), None)
    if cloze is not None:
        before, _, after = cloze.partition(BLANK)
        for source in sources:
            for sentence in source.sentences:
                if sentence.startswith(before) and sentence.endswith(after) and len(sentence) > len(before + after):
                    return make("a sentence fits the gap", sentence, [source.id])
        return make("no sentence fits the gap")
    named = [source for source in sources if source.heading and source.heading in quoted]
    if {source.heading for source in named} != set(quoted):
        return make("not all sections it names are there")
    text = named[0].join([sentence for source in named for sentence in source.sentences])
    if not text:
        return make("the sections it names have no sentence")
    if any(topic in question and topic not in text for topics in _TOPICS.values() for topic in topics):
        return make("the sections it names do not mention its topic")
    return make("the sections it names are there", text, [source.id for source in named])


def match_questions(questions: Sequence[Item], sources: Sequence[Source]) -> list[dict[str, object]]:
    """Return for each question that passages answer, each alone or all together, the ids of these passages."""
    answered: list[dict[str, object]] = []
    for question in questions:
        used = {source.id: None for source in sources if answer_question(question.text, [source])["used"]}
        if not used:
            used = dict.fromkeys(answer_question(question.text, sources)["used"])
        if used:
            reason = "passages have its words"
            answered.append({"reason": reason, "question": question.id, "contexts": list(used)})
    return answered


def renew_question(question: str, truth: str, sources: Sequence[Source]) -> dict[str, object]:
    """Return whether each sentence of a ground truth is still in the passages, and what is in its place."""

    def make(reason: object, verdict: str, renewed: object = "", quotes: Sequence[object] = ()) -> dict[str, object]:
        return {"reason": reason, "verdict": verdict, "ground_truth": renewed, "quotes": list(quotes)}

    if not truth.strip():  # the passages may answer now what they did not answer before
        answer = answer_question(question, sources)
        if answer["basis"] != "contexts":
            return make(answer["reason"], "still_true")
        quotes = [
            quote
            for source in sources
            for sentence in source.sentences
            if sentence in str(answer["answer"])
            for quote in source.quote(sentence)
        ]
        return make(answer["reason"], "changed", answer["answer"], quotes)
    expected = split_sentences(truth)
    texts = ["\n".join(source.sentences) for source in sources]
    supports = score_contexts(expected, texts, question) if texts else [[] for _ in expected]
    places: list[tuple[Source, str]] = []
    for sentence in expected:
        keys, best, best_share = analyse_text(sentence).keys, None, -1.0
        for source in sources:
            for other in source.sentences:
                share = len(keys & analyse_text(other).keys) / len(keys) if keys else 0.0
                if share > best_share:
                    best, best_share = (source, other), share
        if best is None or best_share < _RECOGNISED:
            return make("not every sentence is found again", "void")
        places.append(best)
    if not places:
        return make("not every sentence is found again", "void")
    quotes = [quote for source, sentence in places for quote in source.quote(sentence)]
    if all(any(support.supported for support in of_sentence) for of_sentence in supports):
        return make("every sentence is supported", "still_true", truth, quotes)
    renewed = places[0][0].join([sentence for _, sentence in places])
    return make("a sentence now says otherwise", "changed", renewed, quotes)


# --- the judge

_ANSWERED = (
    "extract", "classify", "attribute", "rank", "fused", "extract_both", "turns", "write_question", "answer_question",
    "match_questions", "renew_question", "preference",
)  # fmt: skip


def judge_lexically(prompt: str, data: Mapping[str, object]) -> dict[str, object]:
    """Return the reply to the request named `prompt` about its wire data; raises ValueError for any other prompt."""
    match prompt:
        case "extract":
            return {"statements": split_statements(_read_text(data, "text"))}
        case "extract_both":
            return {source: split_statements(_read_text(data, source)) for source in ("answer", "ground_truth")}
        case "classify":
            return {"verdicts": _classify(data)}
        case "attribute":
            return {"verdicts": _attribute(data)}
        case "rank":
            return {"verdicts": _rank(data)}
        case "fused":
            # The verdicts of the three steps in one reply; the statements of one side never support the other's.
            sides = ("answer_statements", "ground_truth_statements")
            support: dict[str, str] = {}
            for side in sides:
                for verdict in _attribute({**data, **{other: [] for other in sides if other != side}}):
                    support[verdict["id"]] = f"{' '.join(verdict['contexts']) or 'none'}: {verdict['reason']}"
            labels = [*_classify(data), *_rank(data)]
            rows = [[one["id"], one["reason"], one["label"], support.get(one["id"])] for one in labels]
            return {"verdicts": [[cell for cell in row if cell is not None] for row in rows]}
        case "turns":
            return _compare_with_turns(data)
        case "preference":
            return _prefer(data)
        case "write_question":
            questions = write_questions(_read_text(data, "question_kind"), _read_sources(data))
            count = int(_read_text(data, "count"))
            return {"reason": "cloze-like questions, a stand-in", "questions": list(islice(questions, count))}
        case "answer_question":
            return answer_question(_read_text(data, "question"), _read_sources(data))
        case "match_questions":
            return {"answered": match_questions(_read_items(data, "questions"), _read_sources(data))}
        case "renew_question":
            return renew_question(_read_text(data, "question"), _read_text(data, "ground_truth"), _read_sources(data))
    raise ValueError(f"the lexical judge cannot answer the prompt '{prompt}'; it answers: {', '.join(_ANSWERED)}")


class LexicalJudge:
    """Gives verdicts by the rules of this room. Prompt texts play no part in them."""

    name = "lexical"
    model = f"lexical-{LEXICAL_VERSION}"
    endpoint = None
    tasks = LEXICAL_TASKS

    def prepare(self, question: Question) -> ModelRequest:
        """Return the question's data under the version of the rules, without its `note`, which is for models."""
        name = require_prompt(question).name
        payload: dict[str, object] = {"model": self.model, "prompt": name, "data": plain_data(question.data)}
        keyed = [payload, REPLY_VERSIONS.get(name, 1), question.number, question.only]
        return ModelRequest(request_hash=hash_canonical(keyed), payload=payload)

    async def reply(self, request: ModelRequest) -> ModelReply:
        """Decide at once; there is nothing to wait for."""
        data = request.payload["data"]
        assert isinstance(data, dict)
        verdicts = judge_lexically(str(request.payload["prompt"]), data)
        return ModelReply(text=orjson.dumps(verdicts).decode(), model=self.model)

    async def close(self) -> None:
        """Close nothing: nothing is open."""
