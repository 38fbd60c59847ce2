"""Where a sentence ends, in English, Chinese and mixed text: full stops of abbreviations, initials, decimals, versions,
list numbers and addresses end nothing; Chinese punctuation ends a sentence together with its closing quotes.
`lexical_text` looks for evidence sentence by sentence, `lexical_split` makes statements of sentences.
"""

import re

from evalhouse.tasks.lexical.words import read_words

_ABBREVIATIONS = frozenset(
    read_words(
        """
        mr mrs ms dr prof rev hon st jr sr gen col sgt capt lt cmdr gov sen rep pres vs etc eg ie cf ca approx no nos
        vol vols fig figs eq eqs sec ch pp ed eds al inc ltd co corp dept univ est jan feb mar apr jun jul aug sep sept
        oct nov dec mon tue tues wed thu thur thurs fri sat sun ave blvd rd mt ft lb oz min max avg vers ver art resp
        viz
        """
    )
)
# These may well be the last word of a sentence, so what follows decides.
_MAY_END = frozenset(read_words("etc inc ltd co corp jr sr al no ed sec min max est sun sat art ch ft lb oz"))
# A capitalised word after `U.S.` or `a.m.` that is likely to begin a sentence.
_SENTENCE_STARTS = frozenset(
    read_words(
        """
        The A An It He She They We I You This That These Those In On At But However There His Her Its Their As For From
        After Before When While If By
        """
    )
)
_CLOSERS = r"\"'”’」』)）\]】》〉*_"
# A full stop of Latin text ends a sentence only before space, end, a closing mark or a Chinese character.
_BOUNDARY = re.compile(
    r"(?=[。！？!?….\n])(?:"  # nothing else can begin a boundary: four times faster
    rf"(?:[。！？!?]+|…+|\.+)[{_CLOSERS}]*(?:\s*\[\d+\])*(?=\s|$|[\u3400-\u9fff“「『（【])"
    rf"|(?:[。！？]+|[!?]+(?=[A-Z])|…{{2,}})[{_CLOSERS}]*"
    r"|\n+)"
)
_OPENERS = re.compile(r"^.*[^\w.]")
_LIST_NUMBER = re.compile(
    r"(?:(?:^|\n)\s*(?:[-*•]\s*)?(?:\d{1,3}|[A-Za-z]|[ivx]{1,4})|"
    r"[a-z]{3}[.!?:;]\s+\d{1,2}|[。！？：；]\s*\d{1,2})$"
)
_LATIN = re.compile(r"[A-Za-z]+")
_DOTTED = re.compile(r"(?:[A-Za-z]\.)+[A-Za-z]\Z")


def _next_word(text: str, position: int) -> str:
    return text[position : position + 24].lstrip(" \t\"'“”‘’([*_")


def _last_word(before: str) -> str:
    return _OPENERS.sub("", before.rsplit(maxsplit=1)[-1]) if before.strip() and not before[-1].isspace() else ""


def _ends_sentence(text: str, start: int, end: int) -> bool:
    """Whether the single full stop at `start` (its closing marks included up to `end`) ends a sentence."""
    following = _next_word(text, end)
    if not following:
        return True
    before = text[max(0, start - 24) : start]
    word = _last_word(before)
    if (len(word) <= 4 and _LIST_NUMBER.search(before)) or following[0].islower():
        return False
    return text[end : end + 1] == "\n" or not _is_abbreviation(word, following)


def _is_abbreviation(word: str, following: str) -> bool:
    """Whether the full stop after a word belongs to the word, judged by what follows."""
    bare = word.replace(".", "").lower()
    if _DOTTED.match(word):  # U.S., a.m., e.g.
        starts = _LATIN.match(following)
        return bare in {"eg", "ie"} or starts is None or starts[0] not in _SENTENCE_STARTS
    if bare == "no":
        return following[0].isdigit()
    if len(word) == 1 and word.isalpha() and word.isupper() and word != "I":  # an initial
        return True
    return bare in _ABBREVIATIONS and bare not in _MAY_END


def _goes_on(text: str, position: int) -> bool:
    """Whether a Chinese sentence goes on right after a quotation that ends in an exclamation or a question."""
    return "\u3400" <= text[position : position + 1] <= "\u9fff"


def split_sentences(text: str) -> list[str]:
    """The sentences of a text in order, trimmed, none empty; a line break always ends one."""
    sentences: list[str] = []
    start = 0
    for found in _BOUNDARY.finditer(text):
        mark = found[0]
        if mark[0] == "." and mark[1:2] != "." and not _ends_sentence(text, found.start(), found.end()):
            continue
        if mark[0] in "！？" and mark[-1] in "”’」』" and _goes_on(text, found.end()):
            continue
        if mark[:2] == ".." and _next_word(text, found.end())[:1].islower():
            continue
        if mark[0] in "!?！？…" and _next_word(text, found.end())[:1].islower():
            continue
        piece = text[start : found.end()].strip()
        if piece:
            sentences.append(piece)
        start = found.end()
    piece = text[start:].strip()
    if piece:
        sentences.append(piece)
    return sentences


_ALTERNATIVES = re.compile(r"\s+/\s+")
_FRACTION = re.compile(r"\d/\d")
_LONGEST_ALTERNATIVE = 80  # characters


def _are_aliases(parts: list[str]) -> bool:
    """Whether two parts name the same thing: they share a word, or both are short names one of which has a space."""
    words = [part.lower().split() for part in parts]
    if not all(words) or _FRACTION.search("/".join(parts)):
        return False
    names = all(len(part.split()) <= 4 and not part.strip()[0].islower() for part in parts)
    return not set(words[0]).isdisjoint(words[1]) or (names and max(map(len, words)) > 1)


def read_alternatives(text: str) -> list[str]:
    """The spellings of a short gold answer written `alias / alias` or `alias/alias`; the text alone when it is none.

    A slash inside a term or fraction (`TCP/IP`, `km/h`, `3/4 cup`), an address or a full sentence makes none.
    """
    if "/" not in text or "://" in text or text.rstrip()[-1:] in set("。！？!?") or "\n" in text.strip():
        return [text]
    parts = _ALTERNATIVES.split(text)
    if len(parts) == 1:
        parts = text.split("/")
        if len(parts) == 2 and not _are_aliases(parts):
            return [text]
    parts = [part.strip() for part in parts if part.strip()]
    return parts if parts and all(len(part) <= _LONGEST_ALTERNATIVE for part in parts) else [text]
