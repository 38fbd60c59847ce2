"""The documents that a model was sent, as far as recorded prompts show it.

A retriever finds documents, and steps grade, cut, clean or replace them before a model is asked. Not every step is
recorded, but the prompts are. A text is looked for in them by its letters, without signs, tags and cases.
"""

import html
import re
from collections.abc import Collection, Iterable, Sequence
from itertools import pairwise
from os.path import commonprefix
from typing import Final

import orjson

from evalhouse.tasks.datasets.spans import Document, Placed, Span

_PIECE: Final = 20  # letters by which a prompt is known to have a text
_MIN_END: Final = 4  # letters of a document that a prompt that was cut ends with
_MIN_CUT: Final = 1_000  # letters; no tracer is set to record less of a text
_MAX_SEARCHED: Final = 10**8  # letters of all documents times their number, beyond which a trace takes seconds
_MADE_OF: Final = 0.8  # of a text's words, from which on it was made of the text that has them
_LOST: Final = 0.5  # of the words that one document has, in the prompts, below which it was not sent
_LONG: Final = 200  # letters of a document
_DROPPED: Final = 0.9  # of a document's words, where a step chose others
_ESCAPED: Final = re.compile(r"\\u([0-9a-fA-F]{4})|\\[nrt\"/\\]")  # in JSON
_MARKUP: Final = re.compile(r"</?[a-zA-Z][^<>]{0,500}>|(?<=\])\([^()\s]{1,500}\)")  # tags, and addresses in Markdown
_SIGNS: Final = re.compile(r"[\W_]+")


def keep_sent(
    found: Sequence[Document], tree: Sequence[Placed], question: str, answer: str, *, is_ranked: bool = True
) -> list[Document]:
    """Return the documents that the model was sent: of the found ones, and of what later steps made of them or added.

    Functions may write a document in another form. So a found one that no prompt has is left out only if a step chose
    others, if what was sent was made of it, or if most words that it alone has are missing too and no other call had
    it. All that were found are returned where no prompt has any document, unless a step dropped all and most of their
    words are missing, or where a tracer may have cut one. Where nothing is left out the order is that of the retriever;
    if several found them (not `is_ranked`), that of the prompts.
    """
    by_text = {_simplify(document.text or document.id or ""): document for document in found}
    names = list(by_text)
    calls = _list_reading(tree, answer)
    if _is_cut(calls, tree, question, names):
        return list(found)
    by_text |= _list_made(tree, names, question)
    if sum(map(len, by_text)) * len(by_text) > _MAX_SEARCHED:
        return list(found)
    search = _Search(by_text, question)
    places: dict[str, tuple[int, int]] = {}
    searched: list[str] = []
    for number, call in enumerate(calls):
        # An earlier answer may quote a document: it counts where nothing else has one.
        given = [str(turn["text"]) for turn in call.turns if turn.get("role") != "assistant"]
        replies = [str(turn["text"]) for turn in call.turns if turn.get("role") == "assistant"]
        for texts in ([call.beside, *given, call.question or ""], replies):
            prompt = "\n".join(map(_simplify, texts))
            inside = {name: (number, start) for name in by_text if (start := search.find(name, prompt)) >= 0}
            places = inside | places
            searched += texts
            if inside:
                break
    if places.keys() == {*names}:
        if is_ranked:
            return list(found)
        return sorted(found, key=lambda document: places[_simplify(document.text or document.id or "")])
    dropped = _list_dropped(tree, names, found)
    words = {name: _list_words(document.text or "") for name, document in by_text.items()}
    in_prompts = _list_words("\n".join(searched))
    if not places:
        asked = _list_words(question)
        is_known = any(searched) and dropped.issuperset(names)
        is_dropped = is_known and all(_share(words[name] - asked, in_prompts) < _LOST for name in names)
        return [] if is_dropped else list(found)
    made = [name for name in places if name not in names]

    # What a model wrote of a document may have reached the answer in a form that is not known, but no mere verdict.
    others = [item.span for item in tree if item.span.kind == "llm" and item.span not in calls]
    others = [call for call in others if call.answer is None or len(call.answer) >= _PIECE]
    beside = _simplify("\n".join(text for call in others for text in list_sent(call)))

    def is_left_out(name: str) -> bool:
        if name in places:
            return any(name in other for other in made)
        if any(_share(words[other], words[name]) >= _MADE_OF for other in made):
            return True
        own = words[name].difference(*(words[other] for other in names if other != name))
        if name in dropped:  # a long one has a piece left in any form
            return len(name) >= _LONG or min(_share(own, in_prompts), _share(words[name], in_prompts)) < _DROPPED
        return _share(own, in_prompts) < _LOST and search.find(name, beside) < 0

    left = [name for name in names if not is_left_out(name)]
    if not made and len(left) == len(names):
        return list(found)
    if all(name in places for name in left):
        return [by_text[name] for name in sorted([*left, *made], key=lambda name: places[name])]
    return [by_text[name] for name in [*left, *made]]


def find_sent(texts: Collection[str], tree: Sequence[Placed], question: str, answer: str) -> set[str]:
    """Return the texts that a model was sent for the answer."""
    by_text = {_simplify(text): text for text in texts}
    prompt = _simplify("\n".join(text for call in _list_reading(tree, answer) for text in list_sent(call)))
    search = _Search(by_text, question)
    return {text for name, text in by_text.items() if search.find(name, prompt) >= 0}


def list_sent(call: Span) -> list[str]:
    """Return the texts that a model was sent."""
    return [call.beside, *(str(turn["text"]) for turn in call.turns), call.question or ""]


def _list_reading(tree: Sequence[Placed], answer: str) -> list[Span]:
    """Return the calls that wrote the answer, and those whose texts these were sent, in order of time.

    The summary of a part and a draft are sent to a later call, the verdict of a grader is not. Code may have changed
    the answer: then the calls count of which it has most. Where no call wrote it, as far as is known, all calls do that
    work for no filter.
    """
    items = [item for item in tree if item.span.kind == "llm"]
    calls = sorted((item.span for item in items), key=lambda call: call.started_at or 0.0)
    written = {
        call.span_id: _simplify(
            call.answer or orjson.dumps([item.get("arguments") for item in call.tool_calls]).decode()
        )
        for call in calls
    }
    answered = _simplify(answer)
    reading = [
        call
        for call in calls
        if (text := written[call.span_id])
        and (text == answered or (min(len(text), len(answered)) >= _PIECE and (text in answered or answered in text)))
    ]
    if not reading:
        pieces = [answered[start : start + _PIECE] for start in range(0, len(answered) - _PIECE + 1, _PIECE)]
        n_answered = {call.span_id: sum(piece in written[call.span_id] for piece in pieces) for call in calls}
        most = max(n_answered.values(), default=0)
        reading = [call for call in calls if most and n_answered[call.span_id] == most]
    if not reading:
        steps = [item.span for item in tree if item.span.kept is not None]
        # A lone document that a step kept reads as its answer.
        filters = {span.span_id for span in steps if span.answer in (None, *(item.text for item in span.kept or ()))}
        working = [item.span for item in items if filters.isdisjoint(outer.span_id for outer in item.around)]
        reading = working or calls
    sent = {call.span_id: _simplify("\n".join(list_sent(call))) for call in calls}
    for call in reading:  # which grows
        for other in calls:
            beginning = written[other.span_id][: 2 * _PIECE]
            if len(beginning) >= _PIECE and beginning in sent[call.span_id] and other not in reading:
                reading.append(other)
    return sorted(reading, key=lambda call: call.started_at or 0.0)


def _is_cut(calls: Sequence[Span], tree: Sequence[Placed], question: str, names: Sequence[str]) -> bool:
    """Return True if a tracer may have cut what a model was sent: the longest text of the trace ends in a document, or
    a call has as many attributes as are kept of one."""
    if any(call.is_cut for call in calls):
        return True
    recorded = (text for item in tree for text in (*list_sent(item.span), item.span.answer or ""))
    longest = max(map(len, recorded), default=0)
    for text in (text for call in calls for text in list_sent(call)):
        is_round = len(text) % 100 == 0 or (len(text) + 1) % 128 <= 1  # as limits are: 4,095, 8,192, 10,000
        if (
            not is_round
            or len(text) < max(longest, _MIN_CUT)
            or (question and text.rstrip().endswith(question.strip()))
        ):
            continue
        end = _simplify(text)[-_PIECE:]
        for name in names:
            is_inside = end in name and not name.endswith(end)
            if is_inside or any(end.endswith(name[:n]) for n in range(_MIN_END, min(_PIECE, len(name)))):
                return True
    return False


def _list_made(tree: Sequence[Placed], names: Sequence[str], question: str) -> dict[str, Document]:
    """Return by text the documents that chains and tools returned, without the found ones.

    A text in a list may be anything, such as a question: it counts if it is a part of a found one, or has one in it.
    What a model wrote counts as a part of a found one alone, unless it copied that from its own prompt, as an answer
    may; and a text of several found ones only with an id or with metadata.
    """
    spans = [item.span for item in tree]
    calls = [span for span in spans if span.kind == "llm" and len(_simplify(span.answer or "")) >= _PIECE]
    written = [(_simplify(call.answer or ""), _simplify("\n".join(list_sent(call)))) for call in calls]
    listed = [many or () for span in spans for many in (span.kept, span.passed_on, span.returned)]
    documents = {document.text: document for many in reversed(listed) for document in reversed(many) if document.text}
    asked = _simplify(question)
    made: dict[str, Document] = {}
    for document in documents.values():
        text = _simplify(document.text or "")
        if len(text) < _PIECE or text in names or text in made or text in asked:
            continue
        is_part = any(text in name for name in names)
        n_within = sum(name in text for name in names)
        is_own = any(own in text and text not in prompt for own, prompt in written)
        is_document = not document.is_plain and (n_within < 2 or document.id or document.metadata)
        if is_part or (not is_own and (is_document or n_within == 1)):
            made[text] = document
    return made


def _list_dropped(tree: Sequence[Placed], names: Sequence[str], found: Sequence[Document]) -> set[str]:
    """Return the found documents that a step did not choose, of the ones that it was given."""
    by_id = {document.id: _simplify(document.text or document.id) for document in found if document.id}

    def name_all(documents: Iterable[Document]) -> set[str]:
        # Of a printed node the id is known.
        return {_simplify(item.text) if item.text else by_id.get(item.id or "", "") for item in documents}

    dropped: set[str] = set()
    for span in (item.span for item in tree):
        if span.kept is not None and span.given and (kept := name_all(span.kept)) <= {*names}:
            dropped |= name_all(span.given) - kept
    return dropped


class _Search:
    """Finds documents in prompts by pieces that no other one has, and the question neither: from the beginning and from
    ever further on, as a prompt may cut a document, chunks overlap, and several may begin with one heading."""

    def __init__(self, documents: Collection[str], question: str) -> None:
        self._everything = "\n".join([*documents, _simplify(question)])
        self._pieces: dict[str, dict[str, int]] = {}
        n_shared = dict.fromkeys(documents, 0)
        for before, after in pairwise(sorted(documents)):
            n_alike = len(commonprefix([before, after]))  # noqa: RUF071  # of texts
            n_shared |= {text: max(n_shared[text], n_alike) for text in (before, after)}
        for text in documents:
            last = len(text) - _PIECE
            starts = [
                0,
                max(0, n_shared[text] - _PIECE // 2),
                *(_PIECE << n for n in range(len(text).bit_length())),
                last,
            ]
            self._pieces[text] = {text[start : start + _PIECE]: start for start in starts if 0 <= start <= last}

    def find(self, document: str, prompt: str) -> int:
        """Return the place of a document's beginning in a prompt, -1 if the document is not there."""
        if document and (start := prompt.find(document)) >= 0:
            return start
        for piece, offset in self._pieces[document].items():
            start = prompt.find(piece)
            if start >= 0 and self._everything.count(piece) == 1:
                return max(0, start - offset)
        return -1


def _clean(text: str) -> str:
    """Return a text without JSON's escapes, entities, tags and addresses of links."""
    text = _ESCAPED.sub(lambda match: chr(int(match[1], 16)) if match[1] else " ", text)
    return _MARKUP.sub(" ", html.unescape(text)).lower()


def _simplify(text: str) -> str:
    """Return a text's letters and digits, small, so that it is found in a prompt that has it as JSON or on one line."""
    return _SIGNS.sub("", _clean(text))


def _list_words(text: str) -> set[str]:
    return {word for word in _SIGNS.split(_clean(text)) if word}


def _share(words: set[str], others: set[str]) -> float:
    return len(words & others) / len(words) if words else 1.0
