"""The lexical judge's word lists, and the splitting of a text into statements.

The words that the judge treats specially, English and Chinese, come from `words.yaml`: words without content,
negations, opposites, synonyms; and how an inflected English word is reduced to its stem.

A text is split into plain blocks of prose, these into sentences, and these into independent clauses; what asserts
nothing (questions, greetings, refusals, filler, orders to the judge) is left out. Clauses are cut only where both parts
have a verb, because a statement too many costs more agreement than a statement too long.

The lexical judge knows English and Chinese, by whose words, negations and sentence ends it splits and compares. Another
language is recognized by letters of another script, or by the function words and letters of a language in Latin
script. Names, numbers and other short texts are taken for English or Chinese.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import combinations
from pathlib import Path
from typing import Any, Final

import yaml

from evalhouse.tasks.lexical.marks import IN_BRACKETS, find_source_list

# Every value is a string, `no` and `on` too; the parser in C, where it is installed, takes a tenth of the time.
_LISTS: Mapping[str, Any] = yaml.load(
    Path(__file__).with_name("words.yaml").read_text(encoding="utf-8"), getattr(yaml, "CBaseLoader", yaml.BaseLoader)
)


# Not part of a comparison: soft hyphens, joiners, direction marks, and variants of the letter before.
_INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u180b-\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufe00-\ufe0f\ufeff]"
)
# As compatible forms `10²` would be `102`, and `2½` `21/2`.
_POWER = re.compile(r"(?<=[\d²³⁰-⁹])[²³¹⁰-⁹⁺⁻]+")
_BEFORE_FRACTION = re.compile(r"(?<=\d)(?=[¼-¾⅐-⅞])")


def unify_forms(text: str) -> str:
    """Return a text in the one form in which the lexical judge and the text metrics compare texts.

    It is NFKC, in which composed and decomposed letters, full-width forms and ligatures are equal, without invisible
    characters. An exponent after a digit stays what it is.

    >>> unify_forms("ﬁle １２\u200b½ of 10²")
    'file 12 1/2 of 10²'
    """
    if text.isascii():
        return text
    spaced = _BEFORE_FRACTION.sub(" ", _INVISIBLE.sub("", text))
    parts: list[str] = []
    end = 0
    for power in _POWER.finditer(spaced):
        parts += [unicodedata.normalize("NFKC", spaced[end : power.start()]), power[0]]
        end = power.end()
    return "".join([*parts, unicodedata.normalize("NFKC", spaced[end:])]).replace("\u2044", "/")


def read_words(name: str) -> list[str]:
    """Return the words of a list, in order."""
    words: list[str] = _LISTS[name].split()
    return words


def read_word_lists(name: str) -> dict[str, frozenset[str]]:
    """Return lists of words by their names."""
    return {key: frozenset(words.split()) for key, words in _LISTS[name].items()}


def _read_pairs(name: str) -> list[tuple[str, str]]:
    pairs = [pair.split() for pair in _LISTS[name].split(",")]
    return [(left, right) for left, right in pairs]


def read_numbers(name: str) -> dict[str, float]:
    """Return a mapping of words to numbers."""
    return {word: float(number) for word, number in _LISTS[name].items()}


def read_pattern(name: str) -> str:
    """Return a regular expression, whose lines are joined."""
    return "".join([line.strip() for line in _LISTS[name].splitlines()])


def read_patterns(name: str, sources: str = "") -> dict[str, str]:
    """Return several regular expressions by name, with a pattern in the place of `{sources}`."""
    return {
        key: "".join([line.strip() for line in text.splitlines()]).replace("{sources}", sources)
        for key, text in _LISTS[name].items()
    }


FUNCTION_WORDS = frozenset(read_words("function_words"))
DIRECTION_WORDS = frozenset(read_words("direction_words"))
NEGATIONS = frozenset(read_words("negations"))
CHINESE_STOP_CHARACTERS = frozenset(_LISTS["chinese_stop_characters"].strip())
CHINESE_STOP_WORDS = frozenset(read_words("chinese_stop_words"))
CHINESE_NEGATIONS = frozenset(read_words("chinese_negations"))
CHINESE_NOT_NEGATIONS = frozenset(read_words("chinese_not_negations"))
NEGATIVE_PREFIXES = tuple(read_words("negative_prefixes"))

_IRREGULAR_STEMS = dict(_read_pairs("irregular_forms"))
_UNCHANGED = frozenset(read_words("unchanged_words"))
_BRITISH = re.compile(r"is(e|ed|es|ing|ation|ations|er|ers)$")
_VOWELS = frozenset("aeiouy")


# By last letter the endings and the shortest stem each may leave; the longest ending wins.
_ENDINGS_BY_LAST: dict[str, list[tuple[str, int]]] = {}
for _shortest, _endings in _LISTS["endings"].items():
    for _ending in _endings.split():
        _ENDINGS_BY_LAST.setdefault(_ending[-1], []).append((_ending, int(_shortest)))
for _candidates in _ENDINGS_BY_LAST.values():
    _candidates.sort(key=lambda candidate: -len(candidate[0]))


@lru_cache(maxsize=32768)
def stem_word(word: str) -> str:
    """Return the stem of a lower-case word: without plural, tense and topic-keeping endings, British -ise as -ize."""
    if not word.isascii():
        return word
    base = _IRREGULAR_STEMS.get(word)
    if base is None:
        if len(word) < 4 or word in _UNCHANGED:
            return word
        if len(word) > 6:
            word = _BRITISH.sub(r"iz\1", word)
        if word.endswith("ies") and len(word) > 4:
            word = word[:-3] + "y"
        elif word.endswith(("sses", "shes", "ches", "xes", "zes")):
            word = word[:-2]
        elif word.endswith("s") and not word.endswith(("ss", "us", "is")):
            word = word[:-1]
        tense = next((ending for ending in ("ing", "ed") if word.endswith(ending)), "")
        stem = word.removesuffix(tense)
        if tense and len(stem) >= 3 and any(letter in _VOWELS for letter in stem):
            if word.endswith("ied"):
                word = word[:-3] + "y"
            elif stem[-1] == stem[-2] and stem[-1] not in "lsz":
                word = stem[:-1]
            else:
                word = stem
        base = _IRREGULAR_STEMS.get(word, word)
    for ending, shortest in _ENDINGS_BY_LAST.get(base[-1], ()):
        if base.endswith(ending) and len(base) - len(ending) >= shortest:
            base = base[: -len(ending)]
            break
    if len(base) > 4 and base[-1] == base[-2] and base[-1] in "lszt":
        base = base[:-1]
    if len(base) > 3 and base[-1] in "ey":
        base = base[:-1]
    return base


def _oppose(pairs: Iterable[tuple[str, str]], exclusive: str) -> dict[str, frozenset[str]]:
    """Return a two-way table of opposites: pairs, and each two words of a line of exclusive ones."""
    stems = [(stem_word(left), stem_word(right)) for left, right in pairs]
    table: dict[str, set[str]] = {}
    lines = [line.split() for line in _LISTS[exclusive].splitlines()]
    for left, right in [*stems, *(pair for line in lines for pair in combinations(map(stem_word, line), 2))]:
        table.setdefault(left, set()).add(right)
        table.setdefault(right, set()).add(left)
    return {word: frozenset(others) for word, others in table.items()}


ANTONYMS = _oppose(_read_pairs("antonyms"), "exclusive")
CHINESE_ANTONYMS = _oppose(_read_pairs("chinese_antonyms"), "chinese_exclusive")
# Stem to the other stems of its groups.
SYNONYMS: dict[str, frozenset[str]] = {}
for _line in _LISTS["synonyms"].splitlines():
    _group = frozenset(stem_word(word) for word in _line.split())
    for _stem in _group:
        SYNONYMS[_stem] = SYNONYMS.get(_stem, frozenset()) | _group - {_stem}
# Each form of a unit to the first names of its lines: `g` to `g`, `pounds` to `gbp|lb`.
UNITS: dict[str, str] = {}
for _name, *_forms in map(str.split, _LISTS["units"].splitlines()):
    for _form in _forms:
        UNITS[_form] = "|".join(sorted({*UNITS.get(_form, _name).split("|"), _name}))


_ABBREVIATIONS = frozenset(read_words("abbreviations"))
_CLOSING_ABBREVIATIONS = frozenset(read_words("closing_abbreviations"))
_SENTENCE_STARTS = frozenset(read_words("sentence_starts"))
_CLOSERS = r"\"'”’」』)）\]】》〉*_"
# A mark that names a source or a footnote, such as `[1, 2]`, `[Source 1]`, `[^note]` and `【3†source】`.
_MARK: Final = (
    r"(?:\[C?\d{1,3}+(?:(?:\s*+[,–-]\s*+|\s++)C?\d{1,3}+)*\](?!\()|\[\^[^\[\]\n]{1,60}+\](?!\()|【\d[^】]{0,200}+】"
    rf"|{IN_BRACKETS}(?!\())"
)
# The same after a sign of punctuation alone: elsewhere `²` is a power, and a linked number is one that is stated.
_RAISED = r"(?:[¹²³⁰-⁹]+|<sup>[^<>]{1,20}</sup>|\^\d{1,3}+\^|\[(?:\[\d{1,3}\]|\^?\d{1,3})\]\([^()\s]*+\))"
# A full stop of Latin text ends a sentence only before space, end, a closing mark or a Chinese character.
_BOUNDARY = re.compile(
    # Nothing else can begin a boundary: four times faster. A run of marks is looked at once, from its first mark.
    r"(?=[。！？!?….\n])(?:"
    rf"(?:(?<![。！？!?])[。！？!?]++|(?<!…)…++|(?<!\.)\.++)[{_CLOSERS}]*+(?:\s*+{_MARK}|{_RAISED})*"
    r"(?:(?=\s|$|[\u3400-\u9fff“「『（【])|(?<=[\])】>^])(?=[A-Z]))"
    rf"|(?:(?<![。！？])[。！？]++|(?<![!?])[!?]++(?=[A-Z])|(?<!…)…{{2,}}+)[{_CLOSERS}]*+"
    r"|\n+)"
)
_OPENERS = re.compile(r"^.*[^\w.]")
_LIST_NUMBER = re.compile(
    r"(?:(?:^|\n)\s*(?:[-*•]\s*)?(?:\d{1,3}|[A-Za-z]|[ivx]{1,4})|"
    r"[a-z]{3}[.!?:;]\s+\d{1,2}|[。！？：；]\s*\d{1,2})$"
)
_LATIN = re.compile(r"[A-Za-z]+")
_DOTTED = re.compile(r"(?:[A-Za-z]\.)+[A-Za-z]\Z")


def _is_inside(text: str, match: re.Match[str]) -> bool:
    """Return True if a boundary mark is inside a sentence: in a word, before a lower-case letter, in a quotation."""
    mark, start, end = match[0], match.start(), match.end()
    following = text[end : end + 24].lstrip(" \t\"'“”‘’([*_")
    if mark[0] in "！？" and mark[-1] in "”’」』" and "\u3400" <= text[end : end + 1] <= "\u9fff":
        return True  # a Chinese sentence continues after a quotation that ends in an exclamation or a question
    if mark[0] in "!?！？…" or mark[:2] == "..":
        return following[:1].islower()
    if mark[0] != "." or not following:
        return False
    # A single full stop, its closing marks included.
    before = text[max(0, start - 24) : start]
    word = _OPENERS.sub("", before.rsplit(maxsplit=1)[-1]) if before.strip() and not before[-1].isspace() else ""
    if (len(word) <= 4 and _LIST_NUMBER.search(before)) or following[0].islower():
        return True
    if text[end : end + 1] == "\n":
        return False
    bare = word.replace(".", "").lower()
    if _DOTTED.match(word):  # U.S., a.m., e.g.
        starts = _LATIN.match(following)
        return bare in {"eg", "ie"} or starts is None or starts[0] not in _SENTENCE_STARTS
    if bare == "no":
        return following[0].isdigit()
    if len(word) == 1 and word.isalpha() and word.isupper() and word != "I":  # an initial
        return True
    return bare in _ABBREVIATIONS and bare not in _CLOSING_ABBREVIATIONS


def split_sentences(text: str) -> list[str]:
    """Return the sentences of a text in order, trimmed, none empty; a line break always ends one."""
    sentences: list[str] = []
    start = 0
    for match in _BOUNDARY.finditer(text):
        if not _is_inside(text, match):
            sentences.append(text[start : match.end()].strip())
            start = match.end()
    sentences.append(text[start:].strip())
    return [sentence for sentence in sentences if sentence]


ITEM_MARK: Final = re.compile(r"\s*+(?:[-*+•>]|\d{1,3}[.)]|\[\^[^\[\]\n]++\]:)\s++")
"""The mark before an item of a list, or before the text of a footnote."""


def unwrap_lines(text: str) -> str:
    """Return a text, as long as before, with spaces in place of the line breaks within paragraphs.

    A line break stays beside an empty line, an item or a row of a table.
    """
    before, *lines = text.split("\n")
    parts = [before]
    for line in lines:
        stays = not before.strip() or not line.strip() or "|" in before or "|" in line or ITEM_MARK.match(line)
        parts += ["\n" if stays else " ", line]
        before = line
    return "".join(parts)


_ALTERNATIVES = re.compile(r"(?<!\s)\s++/\s+")
_FRACTION = re.compile(r"\d/\d")
_MAX_ALTERNATIVE = 80  # characters


def read_alternatives(text: str) -> list[str]:
    """Return the spellings of a short gold answer written `alias / alias` or `alias/alias`; else the text alone.

    A slash in a term or fraction (`TCP/IP`, `km/h`, `3/4 cup`), an address, a tag or a full sentence separates none.
    """
    if "/" not in text or any(mark in text.strip() for mark in ("://", "</", "\n")) or text.rstrip()[-1:] in "。！？!?":
        return [text]
    parts = _ALTERNATIVES.split(text)
    if len(parts) == 1:
        parts = text.split("/")
        if len(parts) == 2:
            # Two parts name the same thing if they share a word, or are short names one of which has a space.
            left, right = (part.lower().split() for part in parts)
            if not left or not right or _FRACTION.search(text):
                return [text]
            are_names = all(len(part.split()) <= 4 and not part.strip()[0].islower() for part in parts)
            if set(left).isdisjoint(right) and not (are_names and max(len(left), len(right)) > 1):
                return [text]
    parts = [part.strip() for part in parts if part.strip()]
    return parts if parts and all(len(part) <= _MAX_ALTERNATIVE for part in parts) else [text]


_BULLET = re.compile(
    r"^\s*(?:[-*+•●○▪‣·◦–—]\s+|[•●▪]|\(?(?:\d{1,3}|[a-zA-Z]|[ivx]{1,4})[.)]\s+"
    r"|[（(]?(?:\d{1,2}|[一二三四五六七八九十]{1,3})[)）、]\s*|[①-⑳]\s*)"
)
_HEADING = re.compile(r"^\s*#{1,6}\s+")
_QUOTE = re.compile(r"^\s*(?:>\s*)+")
_TABLE_RULE = re.compile(r"^\s*+(?:\|\s*+)?:?-{2,}+:?\s*+(?:\|\s*+:?-{2,}+:?\s*+)*\|?\s*+$")
_RULE = re.compile(r"^\s*(?:[-*_=]\s*){3,}$")
_FENCE = re.compile(r"^\s*(?:```|~~~)")
_LINK = re.compile(r"!?\[([^\]]{0,500}+)\]\((?:[^()\s]|\([^()]*\))*(?:\s+\"[^\"]*\")?\)")
_EMPHASIS = re.compile(
    r"(\*\*\*|\*\*|__|~~)(?=\S)(.{1,1000}?)(?<=\S)\1|(?<![\w*])\*(?=\S)([^*\n]+?)(?<=\S)\*(?![\w*])"
    r"|(?<!\w)_(?=\S)([^_\n]+?)(?<=\S)_(?!\w)"
)
_CODE = re.compile(r"`([^`\n]+)`")
_CITATION = re.compile(rf"(?:(?<!\s)\s++)?{_MARK}|(?<=[.!?,;:。！？，；：、)）\"”’]){_RAISED}")
_FOOTNOTE = re.compile(r"^ {0,3}\[\^[^\[\]\n]{1,60}+\]:\s*")  # the line with the text of one
_LEAD_END = re.compile(r"[:：]\s*$")
_SENTENCE_END = re.compile(r"[.!?。！？:：；;…]['\"”’」』)）]*$")
_HAN = re.compile(r"[\u3400-\u9fff]")
_WORDS = re.compile(r"[A-Za-z][\w'’-]*|\d[\d.,]*|[\u3400-\u9fff]")
_VERB = re.compile(
    rf"\b(?:{'|'.join(read_words('verbs'))}|[a-z]{{3,}}ed)\b|n't\b|'s\s+(?:a|an|the|not|been)\b", re.IGNORECASE
)
_MAX_FRAGMENT = 8  # words of a list item that may need its lead-in
_MAX_LEAD = 14  # words of a lead-in that is worth repeating
_WRAPPED = 60  # characters from which a line without a full stop is taken for a wrapped one


def has_verb(text: str) -> bool:
    """Return True if a piece of text may be a clause: it has a known verb form, or six Chinese characters."""
    return _VERB.search(text) is not None or len(_HAN.findall(text)) >= 6


def count_words(text: str) -> int:
    """Count Latin words and numbers, and each Chinese character as one."""
    return len(_WORDS.findall(text))


def strip_citations(text: str) -> str:
    """Return a text without the marks of citations and footnotes."""
    if text.isascii() and not any(opener in text for opener in ("[", "^", "<sup>")):
        return text
    return _CITATION.sub(lambda mark: " " if text[mark.end() : mark.end() + 1].isupper() else "", text)


def strip_markup(line: str) -> str:
    """Return one line without emphasis, links, code marks and citation marks."""
    line = strip_citations(line)
    if "](" in line:
        line = _LINK.sub(r"\1", line)
    if "*" in line or "_" in line or "~~" in line:
        line = _EMPHASIS.sub(lambda match: match[2] or match[3] or match[4], line)
    if "`" in line:
        line = _CODE.sub(r"\1", line)
    return " ".join(line.split())


def read_blocks(text: str) -> Iterator[str]:
    """Yield the blocks of a text in order: a table row and a code fence are blocks, headings and lead-ins are not."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    position = 0
    lead, paragraph = "", ""  # the latest line that ends in a colon, and the prose that is not complete yet
    while position < len(lines):
        line = lines[position]
        position += 1
        is_fence = _FENCE.match(line) is not None
        is_header = line.count("|") >= 2 and position < len(lines) and _TABLE_RULE.match(lines[position]) is not None
        if is_fence or is_header:
            if paragraph:
                yield paragraph
            paragraph = ""
            end = position
            if is_fence:
                while end < len(lines) and not _FENCE.match(lines[end]):
                    end += 1
                code = " ".join(code_line.strip() for code_line in lines[position:end] if code_line.strip())
                position = end + 1
                if code:
                    yield code
                continue
            while end < len(lines) and "|" in lines[end]:
                end += 1
            header, *rows = [
                [strip_markup(cell) for cell in row.strip().strip("|").split("|")]
                for row in lines[position - 1 : end]
                if not _TABLE_RULE.match(row)
            ]
            position = end
            for row in rows:  # `Name: Ann, Age: 3`
                named = zip(header, row, strict=False)
                cells = [f"{name}: {cell}" if name else cell for name, cell in named if cell]
                if cells:
                    yield ", ".join(cells)
            continue
        line = _QUOTE.sub("", line)
        footnote = _FOOTNOTE.match(line)
        if footnote:
            line = line[footnote.end() :]
            if not has_verb(line):
                continue  # it names a source
        heading = _HEADING.match(line)
        bullet = None if heading else _BULLET.match(line)
        plain = strip_markup(line[bullet.end() :] if bullet else line)
        is_rule = _RULE.match(line) is not None
        # A text that is wrapped at a fixed width continues in the next line.
        is_open = bool(paragraph) and not _SENTENCE_END.search(paragraph)
        continues = (
            is_open and bool(plain) and (plain[0].islower() or paragraph[-1] in ",，、" or len(paragraph) >= _WRAPPED)
        )
        if bullet or heading or footnote or is_rule or not continues:
            if paragraph:
                yield paragraph
            paragraph = ""
        if heading:
            lead = ""
        elif not plain or is_rule:
            continue
        elif _LEAD_END.search(plain):
            lead = _LEAD_END.sub("", plain)
            lead = lead if count_words(lead) <= _MAX_LEAD else ""
        elif bullet:
            is_whole = has_verb(plain) or _SENTENCE_END.search(plain) is not None
            needs_lead = lead and not is_whole and count_words(plain) <= _MAX_FRAGMENT
            paragraph = f"{lead}: {plain}" if needs_lead else plain
        else:
            joint = "" if not paragraph or _HAN.match(plain) else " "
            paragraph += joint + plain
            lead = ""
    if paragraph:
        yield paragraph


_LETTER = re.compile(r"[^\W_]")
_QUESTION_END = re.compile(r"(?:[?？]|吗[。]?|呢[。]?)[\"'”’」』)）]*$")
# A statement about a question: words before a quotation that ends in a question mark.
_QUOTED_QUESTION = re.compile(r"\w\W+\w+\W*[\s：:，,][\"“「『][^\"“”「」『』]+[?？][\"”」』]$")
_ADDRESS = re.compile(r"^(?:https?://|www\.)\S+$")


def _compile_silences(name: str) -> dict[tuple[str, ...], re.Pattern[str]]:
    """Return the patterns of English, each by the words of which a text must have one before it is searched."""
    patterns = read_patterns(name, sources=read_pattern("sources"))
    return {tuple(words.split("|")): re.compile(pattern, re.IGNORECASE) for words, pattern in patterns.items()}


_SILENT = _compile_silences("silences")
_REFUSES = _compile_silences("refusals")
_PATTERNS_ZH = read_patterns("chinese_silences", sources=read_pattern("chinese_sources"))
_REFUSES_ZH = re.compile(_PATTERNS_ZH["refusals"], re.IGNORECASE)
_SILENT_ZH = re.compile(f"{_PATTERNS_ZH['fillers']}|{_PATTERNS_ZH['orders']}", re.IGNORECASE)
_REFERS = re.compile(read_pattern("referrals"), re.IGNORECASE)
_PARTS = read_patterns("corrections")
_CORRECTS = re.compile(
    rf"^{_PARTS['agreement']}(?:{_PARTS['apology']}(?:(?:{_PARTS['fault']}){_PARTS['end']}|[\s,.:;!–—-]+"
    rf"(?:i\smeant\s(?:to\ssay\s)?|(?:that\s)?{_PARTS['wrong']}{_PARTS['end']}))|{_PARTS['wrong']}{_PARTS['end']})",
    re.IGNORECASE,
)
# The end of an apology that corrects nothing: `I'm sorry for the confusion, but I can only answer …`.
_UNABLE = re.compile(
    r"^but\b.*\b(?:(?:i|we)\b.*\b(?:can|could|able|answer|help|know)|information|assist)\b", re.IGNORECASE
)
_REPLACED = re.compile(r"(?:,\s(?:and\s)?not\s|[，,]\s*(?:而)?不是)[^,，;；]{1,40}$")  # `not 800` of a correction
_CORRECTS_ZH = re.compile(read_pattern("chinese_corrections"))


def _finds(patterns: Mapping[tuple[str, ...], re.Pattern[str]], sentence: str) -> bool:
    lower = sentence.lower()
    return any(
        pattern.search(sentence) is not None
        for words, pattern in patterns.items()
        if any(word in lower for word in words)
    )


def _refuses(sentence: str) -> bool:
    """Return True if a sentence only states that it has no answer."""
    plain = sentence.replace("’", "'").strip()
    return _REFUSES_ZH.search(plain) is not None if _HAN.search(plain) else _finds(_REFUSES, plain)


def asserts_something(sentence: str) -> bool:
    """Return True if a sentence states anything at all."""
    if not _LETTER.search(sentence) or _ADDRESS.match(sentence):
        return False
    if (_QUESTION_END.search(sentence) and not _QUOTED_QUESTION.search(sentence)) or _LEAD_END.search(sentence):
        return False
    plain = sentence.replace("’", "'").strip()
    is_filler = _SILENT_ZH.search(plain) is not None if _HAN.search(plain) else _finds(_SILENT, plain)
    return not (is_filler or _refuses(sentence))


_NUMBERING = re.compile(r"^[（(]?\d{1,2}(?:[.)]\s+|[)）、]\s*)(?=\S)")
_SEMICOLON = re.compile(r"(?:(?<!\s)\s++)?[;；]\s*")
_CONNECTIVE = re.compile(read_pattern("connective"), re.IGNORECASE)
_CONNECTIVE_ZH = re.compile(read_pattern("chinese_connective"))
# A clause boundary: a comma and a conjunction before a new subject.
_CLAUSE = re.compile(
    r",\s+(?:and|but|while|whereas|yet|so)\s+(?=(?:it|he|she|they|we|you|i|this|that|these|those|there|the|a|an|its|"
    r"his|her|their|[A-Z][\w'-]*)\b)"
)
_CLAUSE_ZH = re.compile(
    r"[，,]\s*(?=(?:但是|但|而且|并且|同时|此外|另外|然而|不过|后者|前者|其中|[二三四五]是|其[二三]|第[二三四五六]|另一[类种个方]))"
)
_SHARED_SUBJECT = re.compile(
    r"^(?P<subject>(?:[\w'’.()-]+\s+){1,7}?)(?P<verb>is|are|was|were|has|have|had|can|will)\s+(?P<first>[^,;]+?),?\s+"
    r"and\s+(?P=verb)\s+(?P<second>[^;]+)$"
)
_MIN_CLAUSE = 3  # words on each side of a cut
_MIN_CLAUSE_ZH = 6  # characters
_BRACKETS = {"(": ")", "[": "]", "{": "}", "（": "）", "【": "】", "「": "」", "《": "》", "“": "”"}


def _is_balanced(text: str) -> bool:
    """Return True if every bracket and quotation that opens in a piece also closes in it."""
    return text.count('"') % 2 == 0 and all(text.count(a) == text.count(b) for a, b in _BRACKETS.items())


def _split_clauses(sentence: str) -> list[str]:
    """Return the clauses of a sentence, cut at semicolons, a shared subject and conjunctions."""
    is_chinese = _HAN.search(sentence) is not None
    parts = [part for part in _SEMICOLON.split(sentence) if part]
    if not all(_is_balanced(part) and (is_chinese or has_verb(part)) for part in parts):
        parts = [sentence]
    clauses: list[str] = []
    for part in parts if len(parts) > 1 else [sentence]:
        shared = _SHARED_SUBJECT.match(part)
        if shared is not None and not has_verb(shared["subject"]):
            clauses += [f"{shared['subject']}{shared['verb']} {shared[name]}" for name in ("first", "second")]
            continue
        # Cut at conjunctions where both sides are independent clauses.
        chinese = _HAN.search(part) is not None
        min_words = _MIN_CLAUSE_ZH if chinese else _MIN_CLAUSE
        start = 0
        for match in (_CLAUSE_ZH if chinese else _CLAUSE).finditer(part):
            left, right = part[start : match.start()], part[match.end() :]
            if min(count_words(left), count_words(right)) < min_words or not _is_balanced(left):
                continue
            if chinese or (has_verb(left) and has_verb(" ".join(right.split()[:6]))):
                clauses.append(left)
                start = match.end()
        clauses.append(part[start:])
    return clauses


def split_statements(text: str) -> list[str]:
    """Return the statements of a text in order, none twice; empty when the text asserts nothing.

    Several spellings of one gold answer (`alias / alias`) are one statement. An answer that is one name or number is a
    statement too: together with the question it states something. A list of sources behind a text states nothing.
    """
    if len(read_alternatives(text)) > 1:
        return [" ".join(text.split())]
    listed = find_source_list(text)
    if listed and listed.is_cited and any(map(str.isalnum, text[: listed.start])):
        text = f"{text[: listed.start]}\n{text[listed.end :]}"
    statements: dict[str, None] = {}
    sentences = []
    for sentence in (sentence for block in read_blocks(text) for sentence in split_sentences(block)):
        # `I am sorry, I was wrong: it is 900` states that it is 900.
        correction = (_CORRECTS_ZH if _HAN.search(sentence) else _CORRECTS).search(sentence.replace("’", "'"))
        stated = sentence if correction is None else _REPLACED.sub("", sentence[correction.end() :])
        sentences += [] if not stated else [sentence if _UNABLE.search(stated) else stated]
    silent = [sentence for sentence in sentences if not asserts_something(sentence)]
    refused = any(_refuses(sentence) for sentence in silent)
    for sentence in sentences:
        clauses = _split_clauses(sentence)
        if sentence in silent and not (refused and len(clauses) > 1 and any(_refuses(clause) for clause in clauses)):
            continue  # unless one clause refuses and others state something: `It weighs 5 kg, but I can't say why.`
        for clause in clauses:
            # A clause without its list number, leading connective and trailing punctuation; capitalised as before.
            bare = _NUMBERING.sub("", clause.strip())
            trimmed = (
                _CONNECTIVE.sub("", _CONNECTIVE_ZH.sub("", bare, count=1), count=1).strip().strip(",，;；").strip()
            )
            statement = trimmed[:1].upper() + trimmed[1:] if bare[:1].isupper() else trimmed
            if refused and _REFERS.search(statement):
                continue
            if statement == sentence or (statement and asserts_something(statement)):
                statements.setdefault(statement)
    return list(statements)


# Letters by script, and the name under which a person knows it.
_SCRIPTS: Final = {
    "Russian or another language in Cyrillic script": re.compile("[\u0400-\u052f]"),
    "Greek": re.compile("[\u0370-\u03ff\u1f00-\u1fff]"),
    "Armenian": re.compile("[\u0531-\u0587]"),
    "Hebrew": re.compile("[\u05d0-\u05ea]"),
    "Arabic or another language in Arabic script": re.compile("[\u0620-\u064a\u066e-\u06d3\u0750-\u077f]"),
    "Hindi or another language in Devanagari": re.compile("[\u0900-\u0963]"),
    "a language of South Asia": re.compile("[\u0980-\u0dff]"),
    "Thai": re.compile("[\u0e01-\u0e4e]"),
    "a language in Lao, Tibetan, Burmese or Khmer script": re.compile("[\u0e80-\u109f\u1780-\u17ff]"),
    "Georgian": re.compile("[\u10a0-\u10ff\u1c90-\u1cbf]"),
    "Amharic or another language in Ethiopic script": re.compile("[\u1200-\u137f]"),
    "Korean": re.compile("[\u1100-\u11ff\uac00-\ud7af]"),
}
_KANA = re.compile("[\u3041-\u3096\u30a1-\u30fa\uff66-\uff9d]")
_HAN = re.compile("[\u3400-\u9fff]")
_LATIN_WORD = re.compile("[A-Za-z\u00aa-\u024f\u1e00-\u1eff]+")
_ENGLISH = "English"
_MAX_LETTERS = 5_000  # of a longer text the beginning is looked at
_MIN_LETTERS = 8  # of a script; fewer may be a name
_KANA_SHARE = 0.2  # of Japanese at least, where Chinese may quote a name
_MIN_WORDS = 3  # different function words of a language
_RARE = b"\xc9\x40"  # where the rare characters of Big5 begin
_LEAD = 1.5  # times as many as English has
# Two different words with such letters are as good as one function word, as in `Kahire Mısır'ın başkentidir`.
_LETTERS: Final = {
    "Turkish": re.compile("[ığşİĞŞ]"),
    "Vietnamese": re.compile("[đĐơƠưƯạ-ỹẠ-Ỹ]"),
    "Polish": re.compile("[łąęśńźż]"),
    "Czech": re.compile("[ěřůťň]"),
    "Hungarian": re.compile("[őű]"),
    "Romanian": re.compile("[țșăţş]"),
}


@lru_cache(maxsize=4096)  # asked for by several steps of a sample
def find_other_language(text: str) -> str | None:
    """Return the name of a text's language or script where it is neither English nor Chinese; None otherwise.

    >>> find_other_language("Was ist die Hauptstadt von Ägypten?")
    'German'
    >>> find_other_language("Rio de la Plata, Łódź and Müller") is None
    True
    """
    text = text[:_MAX_LETTERS]
    words = _LATIN_WORD.findall(text)
    if not text.isascii():
        counts = Counter({name: len(letters.findall(text)) for name, letters in _SCRIPTS.items()})
        n_kana, n_han = len(_KANA.findall(text)), len(_HAN.findall(text))
        (script, n_letters), *_ = counts.most_common(1)
        if n_letters >= _MIN_LETTERS and n_letters > n_han + n_kana + sum(map(len, words)):
            return script
        if n_kana >= _MIN_LETTERS and n_kana > _KANA_SHARE * (n_kana + n_han):
            return "Japanese"
        if n_han * 2 > len(words):  # a Chinese word has about two characters
            return None
    different = {word.casefold() for word in words}
    found = {language: len(different & listed) for language, listed in _FUNCTION_WORDS.items()}
    for language, letters in _LETTERS.items():
        found[language] += sum(letters.search(word) is not None for word in different)
    n_english = found.pop(_ENGLISH)
    language, n_words = max(found.items(), key=lambda entry: entry[1])
    return language if n_words >= _MIN_WORDS and n_words > _LEAD * n_english else None


@lru_cache(maxsize=4096)  # as above
def is_traditional(text: str) -> bool:
    """Return whether a text is in Chinese and has more traditional characters than simplified ones.

    GB 2312 lacks the first, and Big5 the second. The second half of Big5 are rare ones, which both scripts may share.
    """
    if not is_chinese(text):
        return False
    letters = "".join(set(_HAN.findall(text[:_MAX_LETTERS])))
    simplified, traditional = (set(letters.encode(name, "ignore").decode(name)) for name in ("gb2312", "big5"))
    only_traditional = [letter for letter in traditional - simplified if letter.encode("big5") < _RARE]
    return len(only_traditional) > len(simplified - traditional)


def is_chinese(text: str) -> bool:
    """Return whether a text in no other language has more Chinese words, of two characters each, than Latin ones."""
    return len(_HAN.findall(text)) > 2 * len(_LATIN_WORD.findall(text))


_FUNCTION_WORDS = read_word_lists("languages")
