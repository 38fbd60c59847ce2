"""Citations: the marks in an answer that name its sources, the contexts they name, and the statements they belong to.

The form of a mark is a setting (`tasks/lexical/marks.py` has the built-in ones). A number is the rank of a context; an
id is one of the sample's context_ids; an address is an id as well, or the `url` or `source` beside a context's text.
Definitions of footnotes and a list of sources at the answer's end are not citations: they define marks. Code is
skipped. A mark that names several passages of one document names them all.
"""

import re
import unicodedata
from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, islice
from typing import Final
from urllib.parse import quote, unquote

import numpy as np
import orjson

from evalhouse.tasks.datasets.values import list_source_names
from evalhouse.tasks.lexical.marks import URL, WORDED_NUMBER, find_source_list
from evalhouse.tasks.lexical.match import rate_support, read_claim
from evalhouse.tasks.lexical.split import split_sentences
from evalhouse.tasks.lexical.texts import analyse_text
from evalhouse.tasks.settings.run import RunSettings, compile_patterns
from evalhouse.warehouse.rows.samples import StoredSample

_CODE: Final = re.compile(r"```.*?(?:```|\Z)|`[^`\n]+`", re.DOTALL)
_DEFINITION: Final = re.compile(r"^[ ]{0,3}\[\^?(?P<label>[\w.:/-]{1,40})\^?\]:[ \t]*(?P<body>\S.*)$", re.MULTILINE)
_NUMBER: Final = re.compile(r"\d+")
_RANGE: Final = re.compile(r"(?<!\d)(\d{1,4})\s{0,3}[-–—]\s{0,3}\^?(\d{1,4})")
_BETWEEN_IDS: Final = re.compile(r"[,;，；、]")
_LETTERS: Final = re.compile(r"[^\W\d]+")
_NO_SOURCE: Final = ("#", "mailto:", "tel:")  # what a link may lead to besides a source
_PASSAGE: Final = re.compile(r"([^#]*[^#/])#.|(.*\.[A-Za-z][A-Za-z0-9]{0,4})[:/|@].")
_ADDRESS: Final = re.compile(r"https?://\S+")
_PATH: Final = re.compile(r"/|\.[A-Za-z][A-Za-z0-9]{0,4}(?:$|[#:|@])")  # as in ids/owners.sql
_LONGER: Final = re.compile(r"[\w/?=&%#-]|\.\w")  # what follows the beginning of a longer address
_SAFE: Final = "%/:?#[]@!$&'()*+,;=~"  # what an address keeps when it is encoded
_IN_TEXT: Final = re.compile(URL)  # without the brackets or the full stop behind it
_MAX_RANGE: Final = 50
_MAX_ID: Final = 300
_MAX_BODY: Final = 2_000
MAX_CITATIONS: Final = 1_000
"""The limit for one answer. Seven characters can cite fifty contexts, and each citation is a row."""


@dataclass(frozen=True, kw_only=True)
class Citation:
    """One written mark, its place in the answer (characters from 0), and the ranks of the contexts it names.

    `text` is the part of it that belongs to the sentence. A mark with several numbers makes several citations at one
    place.
    """

    marker: str
    start: int
    end: int
    ranks: tuple[int, ...]
    text: str = ""


@dataclass(frozen=True, kw_only=True)
class CitedText:
    """An answer's citations in order, and the stretches of it that define footnotes or list sources."""

    citations: tuple[Citation, ...]
    hidden: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, kw_only=True)
class _Mark:
    """One match of a pattern."""

    match: re.Match[str]
    numbers: tuple[int, ...] = ()
    from_zero: bool = False
    name: str | None = None
    text: str = ""


@dataclass(frozen=True, kw_only=True)
class Sources:
    """The sources that a sample's marks can name.

    `names` has the ranks of each id and address in one spelling (see `_fold`), `written` are the ids as they come,
    `texts` are the contexts' own, `definitions` has the text of each footnote by its label, and `cited` are the numbers
    in the answer's marks.
    """

    n_contexts: int
    names: Mapping[str, tuple[int, ...]]
    written: Collection[str] = ()
    texts: Sequence[str] = ()
    first: int = 1
    definitions: Mapping[str, str] = field(default_factory=dict)
    cited: Collection[int] = ()

    def has_names_like(self, name: str) -> bool:
        """Return True if contexts have names of this kind, addresses or other ids: an unknown one then names none.

        A word and a number, such as `doc3`, are like `doc-1` and not like `lamp.md#1`: there the number is a rank.
        """
        if name.isdigit():
            return False
        if worded := WORDED_NUMBER.match(name):
            return any(word == _read_word(worded) for word, _ in self.worded)
        is_address = _ADDRESS.match(name) is not None
        return any((_ADDRESS.match(known) is not None) == is_address for known in self.names)

    @cached_property
    def has_own_numbers(self) -> bool:
        """True if the answer numbers documents itself: its list has all numbers that it cites, and one of them is not
        the rank of a passage of the document behind it."""
        if not all(str(number) in self.definitions for number in self.cited):
            return False
        named = {number: _resolve_body(self.definitions[str(number)], self) for number in self.cited}
        return any(ranks and number + 1 - self.first not in ranks for number, ranks in named.items())

    @cached_property
    def worded(self) -> Mapping[tuple[str, int], Collection[int]]:
        """The ranks by word and number of ids that begin with these, such as `doc-3` or `source3.pdf`."""
        ranks: dict[tuple[str, int], dict[int, None]] = {}
        for name, of_name in self.names.items():
            if worded := WORDED_NUMBER.match(name):
                ranks.setdefault((_read_word(worded), int(worded["number"])), {}).update(dict.fromkeys(of_name))
        return ranks

    @cached_property
    def pattern(self) -> re.Pattern[str] | None:
        """The pattern that finds an id of the sample in brackets, of any form.

        The ids come from users, and one may be a list of others. So the longest that a separator or a bracket follows
        is taken for good: trying all ways in which an answer can be read would take for ever.
        """
        names = {name for name in (*self.names, *self.written) if len(name) <= _MAX_ID and not _ADDRESS.match(name)}
        names |= {unicodedata.normalize("NFD", name) for name in names}
        ids = "|".join(
            f"(?i:{re.escape(name)})" if _PATH.search(name) else re.escape(name)
            for name in sorted(names, key=lambda name: (-len(name), name))
        )
        one = rf"(?>(?:{ids})(?=\s*+[,;，；、]|[\]】]))"
        return re.compile(rf"[\[【](?P<id>{one}(?:\s*+[,;，；、]\s*+{one})*)[\]】](?!\()") if ids else None


def _read_word(worded: re.Match[str]) -> str:
    """Return the word before a number, without the plural's s."""
    word = worded["word"].lower()
    return word.removesuffix("s") or word


def list_sources(sample: StoredSample, settings: RunSettings) -> Sources:
    """Return the sources that the marks of a sample's answer can name.

    A target's contexts have the addresses that it returned, and not the ones that the dataset states beside its own.
    """
    n_contexts = len(sample.contexts or [])
    # A noise run judges the responses of a run that asked a target.
    if settings.is_asked or sample.context_sources is not None:
        beside: list[list[str]] = orjson.loads(sample.context_sources or "[]")
    else:
        beside = list_source_names(sample.metadata.get("contexts"))
    if len(beside) != n_contexts:
        beside = [[] for _ in range(n_contexts)]
    ids = sample.context_ids or []
    names: dict[str, tuple[int, ...]] = {}
    written: set[str] = set()
    for rank, given in enumerate(beside, start=1):
        texts = [name.strip() for name in (*ids[rank - 1 : rank], *given) if name and name.strip()]
        texts += filter(None, map(_find_document, texts))
        written.update(texts)
        for name in map(_fold, texts):
            if rank not in names.get(name, ()):
                names[name] = (*names.get(name, ()), rank)
    return Sources(
        n_contexts=n_contexts,
        names=names,
        written=written,
        texts=sample.contexts or (),
        first=settings.citations_from,
    )


def _find_document(name: str) -> str | None:
    """Return the document of a passage, as `kb/faq.md` of `kb/faq.md#3`; None for an id of another form."""
    passage = None if _ADDRESS.match(name) else _PASSAGE.match(name)
    return None if passage is None else passage[1] or passage[2]


def _fold(name: str) -> str:
    """Return an id in one spelling, of an address the part that distinguishes documents.

    Links and browsers write `%C3%B6` or `&amp;` where a crawler stores `ö` and `&`. Capital letters count, but not in
    paths of files and hosts.
    """
    name = unicodedata.normalize("NFC", name.strip()).replace("&amp;", "&")
    if not _ADDRESS.match(name):
        name = unquote(name, errors="surrogateescape")
        return name.replace("\\", "/").removeprefix("./").lower() if _PATH.search(name) else name
    host, slash, path = name.partition("://")[2].partition("#")[0].partition("/")
    path = re.sub(r"(?<=[?&])utm_[^&]*&?", "", path)
    path = unicodedata.normalize("NFC", unquote(path, errors="surrogateescape"))
    return f"https://{host.lower().removeprefix('www.')}{slash}{path}".rstrip("/?&.")


def find_citations(answer: str, sources: Sources, patterns: Sequence[re.Pattern[str]]) -> CitedText:
    """Return the citations of an answer, in order; where there are more than MAX_CITATIONS, one more than these."""
    # Footnotes and a list of sources: their texts by label, and the stretches of the answer they are in.
    definitions = {match["label"]: match["body"][:_MAX_BODY] for match in _DEFINITION.finditer(answer)}
    hidden = [match.span() for match in _DEFINITION.finditer(answer)]
    listed = find_source_list(answer)
    hidden += [(listed.start, listed.end)] if listed else []
    closed = sorted([*hidden, *(match.span() for match in _CODE.finditer(answer))])
    begins, ends = [begin for begin, _ in closed], list(accumulate((end for _, end in closed), max))

    def is_open(match: re.Match[str]) -> bool:
        """Return whether a mark is neither in code nor among definitions."""
        n_before = bisect_left(begins, match.end())
        return not n_before or ends[n_before - 1] <= match.start()

    marks = [mark for mark in _find_marks(answer, sources, patterns) if is_open(mark.match)]
    cited = {number for mark in marks if not mark.from_zero for number in mark.numbers}
    if listed:
        # Markdown numbers any list: one that lacks a number is not what the numbers are from.
        is_numbering = {*map(str, cited)} <= listed.sources.keys() | definitions.keys()
        entries = {name: body[:_MAX_BODY] for name, body in listed.sources.items()}
        definitions = {
            name: body for name, body in entries.items() if is_numbering or _ADDRESS.search(body)
        } | definitions
    sources = replace(sources, definitions=definitions, cited=cited)
    citations: list[Citation] = []
    for mark in marks:
        match = mark.match
        citations += [
            Citation(marker=match[0], start=match.start(), end=match.end(), ranks=ranks, text=mark.text)
            for ranks in _resolve(mark, sources)
        ]
        if len(citations) > MAX_CITATIONS:
            break
    return CitedText(citations=tuple(citations[: MAX_CITATIONS + 1]), hidden=tuple(hidden))


def _find_marks(text: str, sources: Sources, patterns: Sequence[re.Pattern[str]]) -> list[_Mark]:
    """Return the matches of the patterns, in order; one that overlaps with an earlier one is left out."""
    by_id = [sources.pattern] if sources.pattern else []
    matches = [
        (match.start(), place, match)
        for place, pattern in enumerate([*by_id, *patterns])
        for match in pattern.finditer(text)
    ]
    marks: list[_Mark] = []
    for _, _, match in sorted(matches, key=lambda item: item[:2]):
        groups = match.groupdict()
        rank, rank0, name = groups.get("rank"), groups.get("rank0"), groups.get("id")
        name = None if name is None or name.startswith(_NO_SOURCE) else name
        # Of `1-3, 5` these are 1, 2, 3, 5, and of `1-doc3` 1, 2, 3.
        given, written, begin = _LETTERS.sub("", rank0 or rank or ""), "", 0
        for interval in _RANGE.finditer(given):
            low, high = int(interval[1]), int(interval[2])
            if low <= high < low + _MAX_RANGE:
                written += given[begin : interval.start()] + ",".join(map(str, range(low, high + 1)))
                begin = interval.end()
        numbers = tuple(dict.fromkeys(int(number) for number in _NUMBER.findall(written + given[begin:])))
        if len(numbers) > 1 and min(numbers) < sources.first and rank0 is None:
            continue  # an interval such as [0, 1] where ranks count from 1
        if not numbers and not (name and name.strip()):
            continue
        if numbers and name and (worded := WORDED_NUMBER.match(name)):
            # `(Doc. 45)` and `[P1]` may be content: of a document, or where a number is not a rank.
            are_ranks = all(0 <= number - sources.first < sources.n_contexts for number in numbers)
            are_ids = any((_read_word(worded), number) in sources.worded for number in numbers)
            is_weak = match[0][0] in "(（" or len(worded["word"]) == 1
            # A context may begin with its label, as it did in the prompt.
            if is_weak and (not (are_ranks or are_ids) or any(one.find(match[0]) > 0 for one in sources.texts)):
                continue
        if not marks or match.start() >= marks[-1].match.end():
            marks.append(
                _Mark(
                    match=match, numbers=numbers, from_zero=rank0 is not None, name=name or None,
                    text=groups.get("text") or "",
                )
            )  # fmt: skip
    return marks


def _resolve(mark: _Mark, sources: Sources) -> list[tuple[int, ...]]:
    """Return the ranks of each number or id in a mark; an unknown one names nothing.

    An address in the text of contexts names these. Where no context has an address for a name, any other address is a
    statement of the answer.
    """
    name, cited = mark.name, list[tuple[int, ...]]()
    if name is not None:
        if whole := _resolve_name(name, sources):
            return [whole]
        if mark.numbers and (worded := WORDED_NUMBER.match(name)):
            word = _read_word(worded)
            cited = [tuple(sources.worded.get((word, number), ())) for number in mark.numbers]
        else:
            cited = [_resolve_name(part, sources) for part in _BETWEEN_IDS.split(name) if part.strip()]
        if not mark.numbers and _ADDRESS.match(name):
            spellings = {name, unquote(name), quote(name, safe=_SAFE)}
            holding = tuple(
                rank
                for rank, text in enumerate(sources.texts, start=1)
                if any(_has_address(text, spelling) for spelling in spellings)
            )
            if holding or not sources.has_names_like(name):
                return [holding] if holding else []
    if not mark.numbers or any(cited) or (name is not None and not mark.from_zero and sources.has_names_like(name)):
        return cited
    cited = []
    for number in mark.numbers:
        if (name is None or not mark.from_zero) and (ranks := sources.names.get(str(number))):
            cited.append(ranks)
            continue
        rank = number + 1 if mark.from_zero else number + 1 - sources.first
        own: tuple[int, ...] = (rank,) if 1 <= rank <= sources.n_contexts else ()
        body = "" if mark.from_zero else sources.definitions.get(str(number), "")
        is_foreign = any(map(sources.has_names_like, _IN_TEXT.findall(body)))
        # A number whose footnote has an address, or is an id, names that; a rank only one of a document's passages.
        if ranks := _resolve_body(body, sources):
            own = own if rank in ranks and not sources.has_own_numbers else ranks
        elif is_foreign or (sources.has_own_numbers and not mark.from_zero):
            own = ()
        cited.append(own)
    return cited


def _has_address(text: str, address: str) -> bool:
    """Return whether a text has an address, and not only a longer one that begins so."""
    address = address.rstrip("/")
    place = text.find(address)
    while place >= 0:
        place += len(address)
        if not _LONGER.match(text[place : place + 3].removeprefix("/")):
            return True
        place = text.find(address, place)
    return False


def _resolve_name(name: str, sources: Sources) -> tuple[int, ...]:
    if ranks := sources.names.get(_fold(name), ()):
        return ranks
    body = None if name.strip().isdigit() else sources.definitions.get(name.strip())
    return _resolve_body(body, sources) if body is not None else ()


def _resolve_body(body: str, sources: Sources) -> tuple[int, ...]:
    """Return the ranks that the text of a footnote names by an address or an id in it."""
    for word in (*_IN_TEXT.findall(body), body, *body.split()):
        if ranks := sources.names.get(_fold(word.strip("<>()[]\"',;")), ()):
            return ranks
    return ()


def strip_citations(sample: StoredSample, text: str, settings: RunSettings) -> str:
    """Return a text of a sample's answer without its marks, which would name its support to a judge.

    Of a link the words stay.
    """
    sources = list_sources(sample, settings)
    patterns = compile_patterns(settings.citations)
    spans = [(mark.match.start(), mark.match.end(), mark.text) for mark in _find_marks(text, sources, patterns)]
    return remove_spans(text, spans)[0].strip() if spans else text


def remove_spans(text: str, spans: Sequence[tuple[int, int, str]]) -> tuple[str, list[int]]:
    """Replace stretches of a text by others, in order; return the new text and the end of each replacement in it.

    Blanks before a stretch that is removed altogether are removed too.
    """
    new, ends, begin = "", [], 0
    for start, end, instead in spans:
        kept = text[begin:start]
        new += kept + instead if instead else kept.rstrip(" \t")
        ends.append(len(new))
        begin = end
    return new + text[begin:], ends


_MIN_SUPPORT: Final = 0.1  # that a piece has for a statement that was split from it
_BACK: Final = 0.1  # the cost of going back in the answer
_SKIP: Final = 0.05  # the cost of passing a piece over
_MIN_NEW: Final = 0.4  # share of a further piece's words that a statement has and its first piece lacks
_MIN_SHARED: Final = 0.8  # share of a further piece's words that a statement has at all
_MAX_OPENING: Final = 1_000  # characters of a line without a letter, behind which a mark may still open it
_MAX_PIECES: Final = 2_000  # of an answer; the way from each to each is weighed
_MAX_PAIRS: Final = 500_000  # of pieces and statements, each of which takes some microseconds


@dataclass(frozen=True, kw_only=True)
class _Piece:
    """The text of an answer up to its next marks.

    `sentence` is the number of its sentence, `ordinals` are the places of the marks among the answer's citations.
    """

    text: str
    sentence: int
    ordinals: tuple[int, ...]


def place_citations(answer: str, cited: CitedText, statements: Mapping[str, str]) -> dict[int, list[str]] | None:
    """Return by citation, its place among the answer's from 0, the ids of the statements it belongs to, in order.

    A citation belongs to the statements that were split from its piece of the answer, and to others of its sentence
    that repeat the piece. None for an answer of too many sentences, or of too many for so many statements, to be
    compared each with each.
    """
    if not cited.citations:
        return {}
    pieces = list(islice(_read_pieces(answer, cited), _MAX_PIECES + 1))
    if len(pieces) > _MAX_PIECES or len(pieces) * len(statements) > _MAX_PAIRS:
        return None
    placed: dict[int, list[str]] = {ordinal: [] for ordinal in range(len(cited.citations))}
    keys = [analyse_text(piece.text).keys for piece in pieces]
    found = find_pieces(list(statements.values()), [piece.text for piece in pieces])
    for (statement_id, text), place in zip(statements.items(), found, strict=True):
        if place is None:
            continue
        words = analyse_text(text).keys
        for other, piece in enumerate(pieces):
            n_new, n_shared, n = len((words - keys[place]) & keys[other]), len(words & keys[other]), len(keys[other])
            is_repeated = n_new >= _MIN_NEW * n and n_shared >= _MIN_SHARED * n and n_new > 0
            if other == place or (piece.sentence == pieces[place].sentence and is_repeated):
                for ordinal in piece.ordinals:
                    placed[ordinal].append(statement_id)
    return placed


def find_pieces(statements: Sequence[str], pieces: Sequence[str]) -> list[int | None]:
    """Return the place of the piece that each statement was split from; None where that piece does not support it.

    Statements come in the order of the text, so the cheapest way through the pieces is searched (as in Viterbi's
    algorithm): each statement brings its support, steps back and skipped pieces cost.
    """
    if not pieces or not statements:
        return [None] * len(statements)
    texts = [analyse_text(piece) for piece in pieces]
    claims = [analyse_text(statement) for statement in statements]
    rates = np.array([[rate_support(read_claim(claim), text) for text in texts] for claim in claims])
    places = np.arange(len(pieces))
    steps = places[None, :] - places[:, None]
    costs = np.where(steps < 0, _BACK, _SKIP * np.maximum(steps - 1, 0))
    sums, ways = rates[0] - _SKIP * places, []
    for of_statement in rates[1:]:
        reached = sums[:, None] - costs
        ways.append(reached.argmax(axis=0))
        sums = reached.max(axis=0) + of_statement
    path = [int((sums - _SKIP * places[::-1]).argmax())]
    for way in reversed(ways):
        path.append(int(way[path[-1]]))
    return [
        place if of_statement[place] >= _MIN_SUPPORT else None
        for of_statement, place in zip(rates, reversed(path), strict=True)
    ]


def _read_pieces(answer: str, cited: CitedText) -> Iterator[_Piece]:
    """Yield the answer's pieces in order, without the marks that close them."""
    spans = {(citation.start, citation.end, citation.text): None for citation in cited.citations}
    hidden = {(*span, ""): None for span in cited.hidden}
    order = sorted([*spans, *hidden])
    text, ends = remove_spans(answer, order)
    places = dict(zip(order, ends, strict=True))
    marks = [places[citation.start, citation.end, citation.text] for citation in cited.citations]
    bounds: list[tuple[int, int]] = []  # of sentences that have a letter
    begin = 0
    for sentence in split_sentences(text):
        start = text.index(sentence, begin)
        begin = start + len(sentence)
        if _has_letters(sentence):
            bounds.append((start, begin))
        if len(bounds) > _MAX_PIECES:
            break
    if not bounds:
        return
    closed: dict[int, list[int]] = {place: [] for place in range(len(bounds))}
    for ordinal, mark in enumerate(marks):
        # A mark closes the last sentence that begins before it, unless it opens a line with a sentence behind it.
        owner = max((place for place, (start, _) in enumerate(bounds) if start < mark), default=0)
        line_start, line_end = text.rfind("\n", 0, mark) + 1, text.find("\n", mark)
        after = owner + 1 if bounds[owner][0] < mark else owner
        opens = not _has_letters(text[max(line_start, mark - _MAX_OPENING) : mark])
        if opens and after < len(bounds) and (line_end < 0 or bounds[after][0] < line_end):
            owner = after
        closed[owner].append(ordinal)
    for place, (start, end) in enumerate(bounds):
        # A sentence's pieces, each with the marks that close it; what follows the last marks belongs to them as well.
        closing: dict[int, list[int]] = {}
        last = seen = start
        has_text = False  # between these two
        for ordinal in closed[place]:
            stop = min(max(marks[ordinal], start), end)
            has_text, seen = has_text or _has_letters(text[seen:stop]), stop
            # A full stop between two marks makes no piece.
            if not closing or has_text:
                last, has_text = stop, False
            closing.setdefault(last, []).append(ordinal)
        stops = [start, *list(closing)[:-1], end]
        for number, ordinals in enumerate(closing.values() or [[]]):
            yield _Piece(text=text[stops[number] : stops[number + 1]], sentence=place, ordinals=tuple(ordinals))


def _has_letters(text: str) -> bool:
    return any(character.isalnum() for character in text)
