"""Citations: the marks in an answer by which it says where it has something from, and which contexts they name.

What a mark looks like is a setting (`tasks/settings/run.py`). A number is the rank of a context; an id is one of
the sample's context_ids; an address is an id as well, or the `url` or `source` that stood beside a context's text. The
definitions of footnotes and a list of sources at the answer's end are no citations: they say what marks stand for. Code
is not looked at. A mark that names several passages of one document names them all.

Whose citations they are says `tasks/measures/citations.py`.
"""

import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, islice
from typing import Any, Final

import numpy as np

from evalhouse.tasks.lexical.match import rate_support, read_claim
from evalhouse.tasks.lexical.split import split_sentences
from evalhouse.tasks.lexical.texts import analyse_text
from evalhouse.tasks.settings.run import RunSettings, compile_patterns
from evalhouse.warehouse.rows.samples import StoredSample

_CODE: Final = re.compile(r"```.*?(?:```|\Z)|`[^`\n]+`", re.DOTALL)
_DEFINITION: Final = re.compile(r"^[ ]{0,3}\[\^?(?P<label>[\w.:/-]{1,40})\^?\]:[ \t]*(?P<body>\S.*)$", re.MULTILINE)
_HEADING: Final = re.compile(
    r"^[ \t]*(?:#+[ \t]*)?(?:\*\*|__)?(?:sources?|references?|citations?|bibliography|works cited|footnotes?|links|"
    r"参考(?:文献|资料|来源|链接)?|(?:资料|信息)?来源|引用(?:来源|文献)?|出处|脚注)"
    r"[ \t]*+[:：]?+(?:\*\*|__)?[ \t]*+[:：]?+[ \t]*+$",
    re.IGNORECASE | re.MULTILINE,
)
_ENTRY: Final = re.compile(
    r"^[ \t]*(?:[-*•][ \t]+)?(?:\[\^?(?P<label>[\w.:/-]{1,40})\^?\]:?|(?P<number>\d{1,3})[.)、:])[ \t]*(?P<body>\S.*)$"
)
_NUMBER: Final = re.compile(r"\d+")
_RANGE: Final = re.compile(r"(?<!\d)(\d{1,4})\s{0,3}[-–—]\s{0,3}\^?(\d{1,4})")
_BETWEEN_IDS: Final = re.compile(r"[,;，；、]")
_ADDRESS: Final = re.compile(r"https?://\S+")
_LONGEST_RANGE: Final = 50
_LONGEST_ID: Final = 300
_LONGEST_BODY: Final = 2_000
MAX_CITATIONS: Final = 1_000
"""What is read of one answer. Seven characters can cite fifty contexts, and each citation is a row."""


@dataclass(frozen=True, kw_only=True)
class Citation:
    """One mark as it is written, where in the answer it stands (characters from 0), and the ranks of what it names.

    `text` is what of it belongs to the sentence. A mark with several numbers makes several citations at one place.
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
    """What a pattern found."""

    match: re.Match[str]
    numbers: tuple[int, ...] = ()
    from_zero: bool = False
    name: str | None = None
    text: str = ""


@dataclass(frozen=True, kw_only=True)
class Sources:
    """What a sample's marks can name. `names` has the ranks of each id and address, `definitions` the text of each
    footnote by its label."""

    n_contexts: int
    names: Mapping[str, tuple[int, ...]]
    first: int = 1
    definitions: Mapping[str, str] = field(default_factory=dict)

    def tells_apart(self, name: str) -> bool:
        """Return whether contexts have names of this kind, addresses or other ids: an unknown one then names none."""
        is_address = _ADDRESS.match(name) is not None
        return not name.isdigit() and any((_ADDRESS.match(known) is not None) == is_address for known in self.names)

    @cached_property
    def pattern(self) -> re.Pattern[str] | None:
        """Finds an id of the sample in brackets, whatever it looks like.

        The ids are foreign, and one may be a list of others. So the longest that a separator or a bracket follows is
        taken for good: to try all ways in which an answer can be read would take for ever.
        """
        names = (name for name in self.names if len(name) <= _LONGEST_ID and not _ADDRESS.match(name))
        ids = "|".join(map(re.escape, sorted(names, key=len, reverse=True)))
        one = rf"(?>(?:{ids})(?=\s*+[,;，；、]|[\]】]))"
        return re.compile(rf"[\[【](?P<id>{one}(?:\s*+[,;，；、]\s*+{one})*)[\]】](?!\()") if ids else None


def list_sources(sample: StoredSample, *, first: int) -> Sources:
    """What the marks of a sample's answer can name."""
    names: dict[str, tuple[int, ...]] = {}
    contexts = sample.contexts or []
    for rank, name in _list_names(sample, len(contexts)):
        if rank not in names.get(name, ()):
            names[name] = (*names.get(name, ()), rank)
    return Sources(n_contexts=len(contexts), names=names, first=first)


def _list_names(sample: StoredSample, n_contexts: int) -> Iterator[tuple[int, str]]:
    """Ranks with the ids and addresses of their contexts."""
    beside = sample.metadata.get("contexts")
    members = beside if isinstance(beside, list) and len(beside) == n_contexts else [None] * n_contexts
    ids = sample.context_ids or []
    for rank, member in enumerate(members, start=1):
        given = [ids[rank - 1] if rank <= len(ids) else None, *_list_addresses(member)]
        yield from ((rank, _fold(name)) for name in given if isinstance(name, str) and name.strip())


def _list_addresses(member: object) -> list[Any]:
    """What a context's further members call it; LangChain's documents have them in their metadata."""
    if not isinstance(member, dict):
        return []
    return [member.get("url"), member.get("source"), *_list_addresses(member.get("metadata"))]


def _fold(name: str) -> str:
    """An id as it is; of an address what tells documents apart."""
    name = name.strip()
    if not _ADDRESS.match(name):
        return name
    host, slash, path = name.partition("://")[2].partition("#")[0].partition("/")
    path = re.sub(r"(?<=[?&])utm_[^&]*&?", "", path)
    return f"https://{host.lower().removeprefix('www.')}{slash}{path}".rstrip("/?&.")


def read_cited_text(sample: StoredSample, answer: str, settings: RunSettings) -> CitedText:
    """The citations of a sample's answer by the settings of its run."""
    sources = list_sources(sample, first=settings.citations_from)
    return find_citations(answer, sources, compile_patterns(settings.citations))


def strip_citations(sample: StoredSample, text: str, settings: RunSettings) -> str:
    """A statement of a sample's answer without marks, of which a judge could read what is meant to support it."""
    return strip_marks(text, list_sources(sample, first=settings.citations_from), compile_patterns(settings.citations))


def find_citations(answer: str, sources: Sources, patterns: Sequence[re.Pattern[str]]) -> CitedText:
    """The citations of an answer, in order; where there are more than MAX_CITATIONS, one more than these."""
    definitions, hidden = _read_definitions(answer)
    sources = replace(sources, definitions=definitions)
    closed = sorted([*hidden, *(match.span() for match in _CODE.finditer(answer))])
    begins, ends = [begin for begin, _ in closed], list(accumulate((end for _, end in closed), max))

    def is_open(mark: _Mark) -> bool:
        n_before = bisect_left(begins, mark.match.end())
        return not n_before or ends[n_before - 1] <= mark.match.start()

    marks = filter(is_open, _find_marks(answer, sources, patterns))
    citations = (citation for mark in marks for citation in _read(mark, sources))
    return CitedText(citations=tuple(islice(citations, MAX_CITATIONS + 1)), hidden=tuple(hidden))


def _read_definitions(answer: str) -> tuple[dict[str, str], list[tuple[int, int]]]:
    """What footnotes and a list of sources stand for, by label, and the stretches of the answer they are in."""
    found = {match["label"]: match["body"][:_LONGEST_BODY] for match in _DEFINITION.finditer(answer)}
    hidden = [match.span() for match in _DEFINITION.finditer(answer)]
    # What has no entries behind its first heading has none behind any other.
    if heading := _HEADING.search(answer):
        lines = answer[heading.end() :].splitlines()
        entries = [entry for line in lines if line.strip() and (entry := _ENTRY.match(line))]
        for entry in entries:
            found.setdefault(entry["label"] or entry["number"], entry["body"][:_LONGEST_BODY])
        if entries:
            hidden.append((heading.start(), len(answer)))
    return found, hidden


def _find_marks(text: str, sources: Sources, patterns: Sequence[re.Pattern[str]]) -> list[_Mark]:
    """What the patterns find, in order; what overlaps with something found before it is left out."""
    own = [sources.pattern] if sources.pattern else []
    found = [
        (match.start(), place, match)
        for place, pattern in enumerate([*own, *patterns])
        for match in pattern.finditer(text)
    ]
    marks: list[_Mark] = []
    for _, _, match in sorted(found, key=lambda item: item[:2]):
        mark = _read_mark(match, sources)
        if mark is not None and (not marks or match.start() >= marks[-1].match.end()):
            marks.append(mark)
    return marks


def _read_mark(match: re.Match[str], sources: Sources) -> _Mark | None:
    """A mark; None for what cannot be one, as the interval [0, 1] where ranks count from 1."""
    groups = match.groupdict()
    rank, rank0, name = groups.get("rank"), groups.get("rank0"), groups.get("id")
    numbers = _expand(rank0 or rank or "")
    if len(numbers) > 1 and min(numbers) < sources.first and rank0 is None:
        return None
    if not numbers and not (name and name.strip()):
        return None
    return _Mark(
        match=match, numbers=numbers, from_zero=rank0 is not None, name=name or None, text=groups.get("text") or ""
    )


def _expand(text: str) -> tuple[int, ...]:
    """`1-3, 5` as 1, 2, 3, 5."""

    def write_out(match: re.Match[str]) -> str:
        first, last = int(match[1]), int(match[2])
        return ",".join(map(str, range(first, last + 1))) if first <= last < first + _LONGEST_RANGE else match[0]

    return tuple(dict.fromkeys(int(number) for number in _NUMBER.findall(_RANGE.sub(write_out, text))))


def _read(mark: _Mark, sources: Sources) -> Iterator[Citation]:
    """The citations that a mark makes: one for each number or id in it."""
    match, name = mark.match, mark.name
    cited = [] if name is None else _resolve_names(name, sources)
    if mark.numbers and not any(cited) and (name is None or mark.from_zero or not sources.tells_apart(name)):
        cited = [_resolve_number(number, mark, sources) for number in mark.numbers]
    for ranks in cited:
        yield Citation(marker=match[0], start=match.start(), end=match.end(), ranks=ranks, text=mark.text)


def _resolve_names(name: str, sources: Sources) -> list[tuple[int, ...]]:
    """The ranks of an id or an address, or of each in a list of them; what is not known names nothing."""
    whole = _resolve_name(name, sources)
    return [whole] if whole else [_resolve_name(part, sources) for part in _BETWEEN_IDS.split(name) if part.strip()]


def _resolve_name(name: str, sources: Sources) -> tuple[int, ...]:
    if ranks := sources.names.get(_fold(name), ()):
        return ranks
    body = sources.definitions.get(name.strip())
    return _resolve_body(body, sources) if body is not None else ()


def _resolve_body(body: str, sources: Sources) -> tuple[int, ...]:
    """The ranks of what the text of a footnote names: an address or an id that stands in it."""
    for word in (*_ADDRESS.findall(body), body, *body.split()):
        if ranks := sources.names.get(_fold(word.strip("<>()[]\"',;")), ()):
            return ranks
    return ()


def _resolve_number(number: int, mark: _Mark, sources: Sources) -> tuple[int, ...]:
    """The rank that a number is; of a number whose footnote has an address, or is an id, what that names."""
    body = sources.definitions.get(str(number))
    if body is not None and not mark.from_zero:
        ranks = _resolve_body(body, sources)
        addresses = _ADDRESS.findall(body)
        if ranks or any(map(sources.tells_apart, addresses)):
            return ranks
    rank = number + 1 if mark.from_zero else number + 1 - sources.first
    return (rank,) if 1 <= rank <= sources.n_contexts else ()


def strip_marks(text: str, sources: Sources, patterns: Sequence[re.Pattern[str]]) -> str:
    """A text without its marks; of a link the words stay."""
    spans = [(mark.match.start(), mark.match.end(), mark.text) for mark in _find_marks(text, sources, patterns)]
    return remove_spans(text, spans)[0].strip() if spans else text


def remove_spans(text: str, spans: Sequence[tuple[int, int, str]]) -> tuple[str, list[int]]:
    """A text with others in place of some stretches of it, in order, and where in the new text each of these ends.

    Blanks before a stretch that goes altogether go with it.
    """
    new, ends, begin = "", [], 0
    for start, end, instead in spans:
        kept = text[begin:start]
        new += kept + instead if instead else kept.rstrip(" \t")
        ends.append(len(new))
        begin = end
    return new + text[begin:], ends


_NEAR: Final = 0.1  # the least a piece has to have of a statement that was split from it
_BACK: Final = 0.1  # what it costs to go back in the answer
_SKIP: Final = 0.05  # what it costs to pass a piece over
_MORE: Final = 0.4  # the least share of a further piece's words that a statement has beside those of its own piece
_TOLD: Final = 0.8  # and the least share that it has at all
_LONGEST_OPENING: Final = 1_000  # characters of a line without a letter, behind which a mark may still open it
_MOST_PIECES: Final = 2_000  # of an answer; the way from each to each is weighed
_MOST_PAIRS: Final = 500_000  # of pieces and statements, each of which takes some microseconds


@dataclass(frozen=True, kw_only=True)
class _Piece:
    """What an answer says up to its next marks. `sentence` is the place of its sentence, `ordinals` are those of the
    marks among the answer's citations."""

    text: str
    sentence: int
    ordinals: tuple[int, ...]


def place_citations(answer: str, cited: CitedText, statements: Mapping[str, str]) -> dict[int, list[str]] | None:
    """By citation, its place among the answer's from 0, the ids of the statements it belongs to, in their order.

    None for an answer of too many sentences, or of too many for so many statements, to be compared each with each.
    """
    if not cited.citations:
        return {}
    pieces = list(islice(_read_pieces(answer, cited), _MOST_PIECES + 1))
    if len(pieces) > _MOST_PIECES or len(pieces) * len(statements) > _MOST_PAIRS:
        return None
    placed: dict[int, list[str]] = {ordinal: [] for ordinal in range(len(cited.citations))}
    keys = [analyse_text(piece.text).keys for piece in pieces]
    found = find_pieces(list(statements.values()), [piece.text for piece in pieces])
    for (statement_id, text), place in zip(statements.items(), found, strict=True):
        if place is not None:
            for ordinal in _pick_marks(analyse_text(text).keys, pieces, keys, place):
                placed[ordinal].append(statement_id)
    return placed


def find_pieces(
    statements: Sequence[str], pieces: Sequence[str], *, back: float = _BACK, skip: float = _SKIP
) -> list[int | None]:
    """The place of the piece that each statement was split from; None where its own has nothing of it."""
    if not pieces or not statements:
        return [None] * len(statements)
    told = [analyse_text(piece) for piece in pieces]
    rates = np.array([[rate_support(read_claim(one), text) for text in told] for one in map(analyse_text, statements)])
    places = np.arange(len(pieces))
    steps = places[None, :] - places[:, None]
    costs = np.where(steps < 0, back, skip * np.maximum(steps - 1, 0))
    sums, ways = rates[0] - skip * places, []
    for of_statement in rates[1:]:
        reached = sums[:, None] - costs
        ways.append(reached.argmax(axis=0))
        sums = reached.max(axis=0) + of_statement
    path = [int((sums - skip * places[::-1]).argmax())]
    for way in reversed(ways):
        path.append(int(way[path[-1]]))
    return [
        place if of_statement[place] >= _NEAR else None
        for of_statement, place in zip(rates, reversed(path), strict=True)
    ]


def _read_pieces(answer: str, cited: CitedText) -> Iterator[_Piece]:
    """The answer's pieces in order, without the marks that close them."""
    spans = {(one.start, one.end, one.text): None for one in cited.citations}
    hidden = {(*span, ""): None for span in cited.hidden}
    order = sorted([*spans, *hidden])
    text, ends = remove_spans(answer, order)
    places = dict(zip(order, ends, strict=True))
    marks = [places[one.start, one.end, one.text] for one in cited.citations]
    bounds = list(islice(_find_bounds(text), _MOST_PIECES + 1))
    closed: dict[int, list[int]] = {place: [] for place in range(len(bounds))}
    for ordinal, mark in enumerate(marks):
        if bounds:
            closed[_find_owner(text, bounds, mark)].append(ordinal)
    for place, (start, end) in enumerate(bounds):
        for piece, ordinals in _cut(text, start, end, closed[place], marks):
            yield _Piece(text=piece, sentence=place, ordinals=ordinals)


def _find_bounds(text: str) -> Iterator[tuple[int, int]]:
    begin = 0
    for sentence in split_sentences(text):
        start = text.index(sentence, begin)
        begin = start + len(sentence)
        if _says_something(sentence):
            yield start, begin


def _find_owner(text: str, bounds: Sequence[tuple[int, int]], mark: int) -> int:
    """The sentence that a mark closes: the last that begins before it, unless it opens a line with one of its own."""
    before = max((place for place, (start, _) in enumerate(bounds) if start < mark), default=0)
    line_start, line_end = text.rfind("\n", 0, mark) + 1, text.find("\n", mark)
    after = before + 1 if bounds[before][0] < mark else before
    opens = not _says_something(text[max(line_start, mark - _LONGEST_OPENING) : mark])
    has_own = after < len(bounds) and (line_end < 0 or bounds[after][0] < line_end)
    return after if opens and has_own else before


def _cut(
    text: str, start: int, end: int, ordinals: Sequence[int], marks: Sequence[int]
) -> Iterator[tuple[str, tuple[int, ...]]]:
    """A sentence's pieces, each with the marks that close it; what follows the last marks belongs to them as well."""
    closing: dict[int, list[int]] = {}
    last = seen = start
    has_said = False  # between these two
    for ordinal in ordinals:
        stop = min(max(marks[ordinal], start), end)
        has_said, seen = has_said or _says_something(text[seen:stop]), stop
        # A full stop between two marks makes no piece.
        if not closing or has_said:
            last, has_said = stop, False
        closing.setdefault(last, []).append(ordinal)
    stops = [start, *list(closing)[:-1], end]
    for place, closed in enumerate(closing.values() or [[]]):
        yield text[stops[place] : stops[place + 1]], tuple(closed)


def _says_something(text: str) -> bool:
    return any(character.isalnum() for character in text)


def _pick_marks(said: Set[str], pieces: Sequence[_Piece], keys: Sequence[Set[str]], place: int) -> Iterator[int]:
    """The citations of the piece that a statement was split from, and of others of its sentence that it tells too."""
    left = said - keys[place]
    for other, piece in enumerate(pieces):
        brings, has = len(left & keys[other]), len(said & keys[other])
        is_told = brings >= _MORE * len(keys[other]) and has >= _TOLD * len(keys[other]) and brings > 0
        if other == place or (piece.sentence == pieces[place].sentence and is_told):
            yield from piece.ordinals
