"""What the lexical judge does where test sets are made and kept true: a stand-in that has no sense of meaning.

It writes cloze questions (a sentence of a passage with one word left out) and questions that name a heading; its ground
truths are sentences of the passage. It answers a question with the sentence that fits its gap, and takes a
changed sentence for the new ground truth. Everything it says is deterministic.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise, product

from evalhouse.tasks.lexical.match import score_contexts
from evalhouse.tasks.lexical.split import asserts_something, split_sentences
from evalhouse.tasks.lexical.texts import analyse_text

BLANK = "____"
_HAN = re.compile(r"[\u3400-\u9fff]")
_QUOTED = re.compile(r"[“「]([^“”「」]++)[”」]")
_DIGITS = re.compile(r"\d[\d.,:]*+")
# Of a changed sentence so much is left.
_RECOGNISED = 0.5
_LEAST_WORDS = 3
_MOST_STEPS = 6
_TOPICS = {
    "en": ("the complaints procedure", "the emergency contact", "the insurance", "the founding year"),
    "zh": ("投诉流程", "紧急联系人", "保险", "成立年份"),
}
_WORDS = {
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
    """A passage as it is put to a judge: its headings in one line, and its sentences."""

    id: str
    heading: str
    sentences: tuple[str, ...]

    @property
    def language(self) -> str:
        """By its letters."""
        return "zh" if _HAN.search("".join(self.sentences) or self.heading) else "en"

    def word(self, name: str, *values: str) -> str:
        """A question in the passage's language."""
        return _WORDS[self.language][name].format(*values)

    def quote(self, *sentences: str) -> list[dict[str, str]]:
        """Sentences of it as quotes."""
        return [{"id": self.id, "quote": sentence} for sentence in sentences]


def read_source(passage_id: str, text: str) -> Source:
    """A passage whose headings stand in its first line, where it has more than one."""
    heading, line_break, body = text.partition("\n")
    sentences = [
        sentence
        for sentence in split_sentences(body if line_break else text)
        if asserts_something(sentence) and len(analyse_text(sentence).keys) >= _LEAST_WORDS
    ]
    return Source(id=passage_id, heading=heading if line_break else "", sentences=tuple(sentences))


def write_questions(kind: str, count: int, sources: Sequence[Source]) -> list[dict[str, object]]:
    """Up to `count` questions of a kind, each with ground truth, quotes and turns, as a reply has them."""
    return list(islice(_WRITERS[kind](sources), count))


def _write(
    question: str, truth: str, quotes: Sequence[Mapping[str, str]], turns: Sequence[str] = ()
) -> dict[str, object]:
    return {"question": question, "ground_truth": truth, "quotes": list(quotes), "turns": list(turns)}


def _write_clozes(sources: Sequence[Source], *, numbers: bool = False) -> Iterator[dict[str, object]]:
    for source in sources:
        for sentence in source.sentences:
            left_out = _pick_number(sentence) if numbers else _pick_word(sentence)
            if left_out:
                asked = source.word("cloze", sentence.replace(left_out, BLANK, 1))
                yield _write(asked, sentence, source.quote(sentence))


def _write_numbers(sources: Sequence[Source]) -> Iterator[dict[str, object]]:
    return _write_clozes(sources, numbers=True)


def _pick_number(sentence: str) -> str | None:
    found = _DIGITS.search(sentence)
    return found[0].rstrip(".,:") if found else None


def _pick_word(sentence: str) -> str | None:
    """The longest word of content that stands in the sentence once as it is."""
    tokens = [token.surface for part in analyse_text(sentence).sentences for token in part.tokens]
    once = [word for word in tokens if len(word) > 1 and sentence.count(word) == 1]
    return max(once, key=len, default=None)


def _write_steps(sources: Sequence[Source]) -> Iterator[dict[str, object]]:
    for source in sources:
        steps = source.sentences[:_MOST_STEPS]
        if source.heading and len(steps) > 1:
            yield _write(source.word("steps", source.heading), _join(source, steps), source.quote(*steps))


def _join(source: Source, sentences: Sequence[str]) -> str:
    return ("" if source.language == "zh" else " ").join(sentences)


def _write_pairs(sources: Sequence[Source], *, word: str = "both") -> Iterator[dict[str, object]]:
    for one, other in pairwise(sources):
        if one.heading and other.heading and one.heading != other.heading and one.sentences and other.sentences:
            first, second = one.sentences[0], other.sentences[0]
            asked = one.word(word, one.heading, other.heading)
            yield _write(asked, _join(one, (first, second)), [*one.quote(first), *other.quote(second)])


def _write_differences(sources: Sequence[Source]) -> Iterator[dict[str, object]]:
    return _write_pairs(sources, word="differ")


def _write_follow_ups(sources: Sequence[Source]) -> Iterator[dict[str, object]]:
    for source in sources:
        for before, sentence in pairwise(source.sentences):
            left_out = _pick_word(sentence)
            if source.heading and left_out:
                asked = source.word("cloze", sentence.replace(left_out, BLANK, 1))
                turns = [source.word("heading", source.heading), before]
                yield _write(asked, sentence, source.quote(sentence), turns)


def _write_unanswerable(sources: Sequence[Source]) -> Iterator[dict[str, object]]:
    for source, place in product(sources, range(len(_TOPICS["en"]))):
        if source.heading:
            yield _write(source.word("topic", source.heading, _TOPICS[source.language][place]), "", [])


_WRITERS: Mapping[str, Callable[[Sequence[Source]], Iterator[dict[str, object]]]] = {
    "fact": _write_clozes,
    "number": _write_numbers,
    "procedure": _write_steps,
    "several": _write_pairs,
    "comparison": _write_differences,
    "conversational": _write_follow_ups,
    "unanswerable": _write_unanswerable,
}


def answer_question(question: str, sources: Sequence[Source]) -> dict[str, object]:
    """The sentence that a cloze question was made from, or the sections that a question names; for any other question
    the first sentence that has all its words of content, and others beside them."""
    quoted = _QUOTED.findall(question)
    if not quoted:
        asked = analyse_text(question).keys
        for passage in sources:
            for candidate in passage.sentences:
                if asked and asked < analyse_text(candidate).keys:
                    return _answer("a sentence has all words of the question", "contexts", candidate, [passage.id])
        return _answer("no sentence has all words of the question", "none", "")
    cloze = next((text for text in quoted if BLANK in text), None)
    if cloze is None:
        # What the named sections say, unless the question is about a topic that none of their words are of
        named = [source for source in sources if source.heading and source.heading in quoted]
        if not quoted or {source.heading for source in named} != set(quoted):
            return _answer("not all sections it names are there", "none", "")
        text = _join(named[0], [sentence for source in named for sentence in source.sentences])
        if any(topic in question and topic not in text for topics in _TOPICS.values() for topic in topics):
            return _answer("the sections it names do not mention its topic", "none", "")
        return _answer("the sections it names are there", "contexts", text, [source.id for source in named])
    before, _, after = cloze.partition(BLANK)
    for source in sources:
        for sentence in source.sentences:
            if sentence.startswith(before) and sentence.endswith(after) and len(sentence) > len(before) + len(after):
                return _answer("a sentence fits the gap", "contexts", sentence, [source.id])
    return _answer("no sentence fits the gap", "none", "")


def _answer(reason: str, basis: str, text: str, used: Sequence[str] = ()) -> dict[str, object]:
    return {"reason": reason, "basis": basis, "answer": text, "used": list(used)}


def _share(text: str, sentence: str) -> float:
    """How much of a text's words a sentence has, in whatever order."""
    wanted = analyse_text(text).keys
    return len(wanted & analyse_text(sentence).keys) / len(wanted) if wanted else 0.0


def renew_question(question: str, truth: str, sources: Sequence[Source]) -> dict[str, object]:
    """Whether each sentence of a ground truth still stands in the passages, and what stands there in its place."""
    if not truth.strip():
        # Whether the passages answer a question now that they did not answer before
        said = answer_question(question, sources)
        if said["basis"] != "contexts":
            return {"reason": said["reason"], "verdict": "still_true", "ground_truth": "", "quotes": []}
        quotes = [
            quote
            for source in sources
            for sentence in source.sentences
            if sentence in str(said["answer"])
            for quote in source.quote(sentence)
        ]
        return {"reason": said["reason"], "verdict": "changed", "ground_truth": said["answer"], "quotes": quotes}
    wanted = split_sentences(truth)
    texts = ["\n".join(source.sentences) for source in sources]
    supports = score_contexts(wanted, texts, question) if texts else [[] for _ in wanted]
    found = [_find_place(sentence, sources) for sentence in wanted]
    if not wanted or any(place is None for place in found):
        return {"reason": "not every sentence is found again", "verdict": "void", "ground_truth": "", "quotes": []}
    places = [place for place in found if place is not None]
    quotes = [quote for source, sentence in places for quote in source.quote(sentence)]
    if all(any(support.supported for support in of_one) for of_one in supports):
        return {"reason": "every sentence is borne out", "verdict": "still_true", "ground_truth": truth,
                "quotes": quotes}  # fmt: skip
    renewed = _join(places[0][0], [sentence for _, sentence in places])
    return {"reason": "a sentence now says otherwise", "verdict": "changed", "ground_truth": renewed, "quotes": quotes}


def _find_place(sentence: str, sources: Sequence[Source]) -> tuple[Source, str] | None:
    pairs = ((source, other) for source in sources for other in source.sentences)
    best = max(pairs, key=lambda pair: _share(sentence, pair[1]), default=None)
    return best if best is not None and _share(sentence, best[1]) >= _RECOGNISED else None
