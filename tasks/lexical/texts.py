"""The lexical judge's view of a text: sentences of tokens.

The key of an English word is its stem, of a number its value, so that `1.2 million`, `1,200,000` and `120万` are equal.
The unit of a number follows it (`€20` is `20 euros` is `20欧元`), and `>` or `<` goes before it for a lower or an upper
bound. Chinese is cut into overlapping pairs of characters, and the words that a negation governs are marked. Analysed
texts are cached, bounded by characters, because several requests look at one context.
"""

import re
import threading
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import takewhile
from typing import Final, Literal

from cachetools import LRUCache, cached

from evalhouse.tasks.lexical.split import (
    CHINESE_NEGATIONS,
    CHINESE_NOT_NEGATIONS,
    CHINESE_STOP_CHARACTERS,
    CHINESE_STOP_WORDS,
    DIRECTION_WORDS,
    FUNCTION_WORDS,
    NEGATIONS,
    UNITS,
    read_numbers,
    read_pattern,
    read_patterns,
    read_words,
    split_sentences,
    stem_word,
    strip_citations,
    unify_forms,
)

_SMALLEST = read_words("small_numbers")
_TENS = read_words("tens")
_ORDINALS = read_words("ordinals")
_MONTHS = read_words("months")
_SMALL = {word: value for value, word in enumerate(_SMALLEST)} | {word: 20 + 10 * i for i, word in enumerate(_TENS)}
_SCALES = read_numbers("scales")
_CHINESE_DIGITS = {digit: int(value) for digit, value in read_numbers("chinese_digits").items()}
_CHINESE_POWERS = {power: int(value) for power, value in read_numbers("chinese_powers").items()}
_CHINESE = "〇零一二两三四五六七八九十百千万亿"

_MONTH_NAME = (
    "jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|oct(?:ober)?|"
    "nov(?:ember)?|dec(?:ember)?"
)
_PARTS = ("half", "halve", "third", "quarter", *_ORDINALS[3:10])  # of a whole
_NUMBER_WORD = "|".join(sorted(_SMALLEST + _TENS, key=len, reverse=True))
# A number written in digits, with what belongs to it: the alternatives of the scanner after words.
DIGITS_PATTERN = (
    r"(?P<digit_month>(?<!\d)(?:1[0-2]|0?[1-9])(?=月)|(?<=(?<!\d)\d{4}[-/.])(?:1[0-2]|0?[1-9])(?=[-/.]\d\d?(?!\d)))"
    r"|(?P<of_hundred>(?<=百分之))?(?P<after_ordinal>(?<=第))?(?P<digits>\d+(?:,\d{3})+(?:\.\d+)?|(?:19|20)\d\d(?=\.(?:1[0-2]|0?[1-9])\.[0-3]?\d(?![\d.]))|\d+(?:\.\d+)*)"
    r"(?:(?P<ordinal>(?:st|nd|rd|th)\b)|\s?(?P<scale>(?i:hundred|thousand|million|billion|trillion|mn|bn)\b|k\b"
    r"|[十百千万]?亿|万亿|[百千]?万|(?:百|千)(?![克米瓦卡升伏帕])))?(?P<percent>\s?%|\s(?i:percent|per\scent)\b)?"
)
# A number or month written in English words; tried where a word of NUMBER_STARTS begins.
WORDS_PATTERN = re.compile(
    r"(?P<month>(?:january|february|april|june|july|august|september|october|november|december)\b"
    rf"|(?:{_MONTH_NAME})\b\.?(?=\s+\d)|(?<=\d\s)(?:{_MONTH_NAME})\b)"
    rf"|(?P<fraction>(?:{_NUMBER_WORD})[\s-](?:{'|'.join(_PARTS)})s?\b)"
    rf"|(?P<word_ordinal>(?:{'|'.join(_ORDINALS)})\b)"
    rf"|(?!one\b)(?P<words>(?:{_NUMBER_WORD})(?:[\s-](?:and\s)?(?:{_NUMBER_WORD}|hundred|thousand|million|billion))*\b)"
    r"(?P<percent>\s(?:percent|per\scent)\b)?",
    re.IGNORECASE,
)
NUMBER_STARTS = frozenset([*_SMALLEST, *_TENS, *_ORDINALS, *_MONTHS, *(month[:3] for month in _MONTHS), "sept"])
# A number inside a run of Chinese characters.
CHINESE_PATTERN = re.compile(
    r"(?P<chinese_ordinal>第[〇零一二两三四五六七八九十百千]+)"
    r"|(?P<chinese_fraction>(?!百)[一二两三四五六七八九十]+分之[一二两三四五六七八九十]+)"
    r"|(?P<chinese_month>(?:十[一二]?|[一二三四五六七八九])(?=月))"
    r"|(?P<chinese_percent>百分之[〇零一二两三四五六七八九十百点]+)"
    rf"|(?P<chinese>[〇零一二两三四五六七八九十][{_CHINESE}]+"
    r"|[二两三四五六七八九十](?=[个种类年月日次人位名家倍项条点层级天岁所座台辆部方大万亿千百成份周公元米克度斤升英美毫厘球场局票杯瓶袋箱盒套件本张支条只头棵篇页段轮届批组队双户间排根颗粒片块道门节]))"
)


def _show(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(round(value, 6))


def _read_chinese(text: str) -> float | None:
    """Return the value of a Chinese numeral; None when the characters are not a well-formed number."""
    if all(character in _CHINESE_DIGITS for character in text):
        return float("".join(str(_CHINESE_DIGITS[character]) for character in text)) if len(text) != 2 else None
    total, section, digit = 0, 0, 0
    for character in text:
        if character in _CHINESE_DIGITS:
            digit = _CHINESE_DIGITS[character]
        elif character in _CHINESE_POWERS:
            section += (digit or 1) * _CHINESE_POWERS[character]
            digit = 0
        else:
            section += digit
            total = (total + section) * (10_000 if character == "万" else 100_000_000)
            section, digit = 0, 0
    return float(total + section + digit) or None


@lru_cache(maxsize=16384)
def read_number(kind: str, text: str, scale: str = "", *, percent: bool = False) -> str | None:
    """Return the key of a number: `#30`, `#30%`, `3rd` as `#o3`, May as `#m5`; None when the text is not a number.

    `kind` is the name of the group of a pattern above that matched, `text` what it matched. Only numbers in digits have
    a scale, and only these and numbers in English words a percent sign beside them.
    """
    match kind:
        case "words":
            total, section = 0.0, 0.0
            for word in re.split(r"[\s-]+", text.lower()):
                if word in _SMALL:
                    section += _SMALL[word]
                elif word == "hundred":
                    section *= 100
                elif word in _SCALES:
                    total, section = total + section * _SCALES[word], 0.0
            return f"#{_show(total + section)}" + "%" * percent
        case "digit_month":
            return f"#m{int(text)}"
        case "month":
            start = text.lower()[:3]
            return f"#m{next(i for i, month in enumerate(_MONTHS, 1) if month.startswith(start))}"
        case "ordinal" | "word_ordinal":
            return f"#o{int(text)}" if text.isdigit() else f"#o{_ORDINALS.index(text.lower()) + 1}"
        case "fraction":  # `two thirds` is `#2/3`
            share, whole = re.split(r"[\s-]", text.lower(), maxsplit=1)
            part = whole.removesuffix("s")
            parts = {"half": 2, "halve": 2, "third": 3, "quarter": 4}
            return f"#{_SMALL[share]}/{parts.get(part) or _ORDINALS.index(part) + 1}"
        case "chinese_fraction":  # `三分之二` is `#2/3`
            divisor, dividend = (_read_chinese(number) for number in text.split("分之"))
            return None if divisor is None or dividend is None else f"#{_show(dividend)}/{_show(divisor)}"
        case "chinese_percent":  # `百分之三点五`
            units, _, tenths = text[3:].partition("点")
            value = float(units) if units.isdigit() else _read_chinese(units) if units else None
            decimals = "".join(str(_CHINESE_DIGITS.get(character, "")) for character in tenths)
            return None if value is None else f"#{_show(value + float(f'0.{decimals or 0}'))}%"
        case "chinese_ordinal" | "chinese_month" | "chinese":
            value = _read_chinese(text[1:] if kind == "chinese_ordinal" else text)
            mark = {"chinese_ordinal": "#o", "chinese_month": "#m"}.get(kind, "#")
            return None if value is None else f"{mark}{_show(value)}"
        case _:
            plain = text.replace(",", "")
            if plain.count(".") > 1 or len(plain) > 15:
                return f"#{plain}"  # a version or a long identifier: compared as text
            value = float(plain) * _SCALES.get(scale.lower(), 1.0)
            return f"#{_show(value)}%" if percent else f"#{_show(value)}"


TokenKind = Literal["word", "name", "number", "unit", "bound", "chinese", "direction", "negation"]

CONTENT_WEIGHT = 0.4  # tokens from this weight on count as content words
_PUNCTUATION = str.maketrans("‘’‛′“”„‐‑‒–—−，；：（）", "''''\"\"\"------,;:()")
_ACCENTED = re.compile(r"([A-Za-z])[\u0300-\u036f]+")
_HAN = r"\u3007\u3040-\u30ff\u3400-\u9fff"
_TAIL = r"(?:(?:\.[A-Za-z])+\.|[#+]+(?!\w)|\d+[A-Za-z\d]*)?(?:'[a-z]{1,2}\b)?"  # of U.S., C#, GPT4, it's
_SIGNS = r"(?P<bound>[<>](?=\s?[$€£¥]?[\d\u3007\u4e00-\u9fff]|\s[A-Za-z]))|(?P<sign>[$€£¥]|°\s?[CF]?)"
_SCANNER = re.compile(rf"(?P<latin>[^\W\d_{_HAN}]+{_TAIL})|(?P<han>[{_HAN}]+)|{_SIGNS}|{DIGITS_PATTERN}")
_LATIN = re.compile(rf"[A-Za-z]+{_TAIL}")
_DIGIT = re.compile(r"\d")
_ASCII_SCANNER = re.compile(rf"(?P<latin>[A-Za-z]+{_TAIL})|{_SIGNS}|{DIGITS_PATTERN}")
_NUMBER_KINDS = (
    "digits", "digit_month", "month", "words", "word_ordinal", "fraction", "chinese_fraction", "chinese",
    "chinese_ordinal", "chinese_month", "chinese_percent",
)  # fmt: skip
# As written: looking a word up is faster than lowering every word.
_NUMBER_STARTS = frozenset([form for word in NUMBER_STARTS for form in (word, word.capitalize(), word.upper())])
_STOP_WORDS = re.compile("|".join(sorted(CHINESE_STOP_WORDS, key=len, reverse=True)))
_MAY_NEGATE = re.compile(f"[{''.join({word[0] for word in CHINESE_NEGATIONS})}]")
_CUTS = re.compile(
    "|".join(
        f"(?P<{name}>{'|'.join(sorted(words, key=len, reverse=True))})"
        for name, words in (
            ("kept", CHINESE_NOT_NEGATIONS),
            ("negation", CHINESE_NEGATIONS),
            ("stop", CHINESE_STOP_WORDS),
        )
    )
)
# An answer `No`, which is more than a negation.
_NO = frozenset({"No", "no", "NO"})
_AFTER_NO = frozenset({"", ",", ".", "!", ";"})
_NEGATION_REACH, _CHINESE_REACH = 5, 10  # words, or pairs of characters, after a negation that it may govern
_BESIDE = frozenset({"", " ", "-"})  # between a number and its unit
_CHINESE_UNITS = re.compile("|".join(sorted([u for u in UNITS if not u.isascii()], key=len, reverse=True)))
_DATE_MARKS = frozenset("年月日号")
_CODES = frozenset(read_words("currency_codes"))
_BEFORE_DIGITS = re.compile(r"\s?\d")
_COUNTS = re.compile(rf"[\d{_CHINESE}]")
_FIRST_HAN = re.compile(f"[{_HAN}]")
_BOUND_WORDS = {
    True: [word.replace("_", " ") for word in read_words("bound_words")],
    False: read_words("chinese_bound_words"),
}


def _compile_bounds(name: str, start: str) -> re.Pattern[str]:
    """Return a pattern of a bound in words before a number, or after one."""
    parts = read_patterns(name)
    return re.compile(
        rf"{start}(?:(?P<most>{parts['most']})|(?P<least>{parts['least']}))(?P<number>{parts['number']})"
        rf"|(?P<counted>{parts['counted']})(?:(?P<most_after>{parts['most_after']})|{parts['least_after']})",
        re.IGNORECASE,
    )


_BOUNDS = {True: _compile_bounds("bounds", r"\b"), False: _compile_bounds("chinese_bounds", "")}


@dataclass(frozen=True, kw_only=True, slots=True)
class Token:
    """One unit of comparison: `key` is compared, `surface` is shown, `weight` its share of the content (0 to 1.5)."""

    key: str
    surface: str
    kind: TokenKind
    weight: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Sentence:
    """The tokens of one sentence that count, in order, and the keys among them that a negation governs.

    `denials` has for each negation what it may govern, the nearest first; `weights` are by key in the order of first
    appearance, `total` is the weight of all tokens.
    """

    text: str
    tokens: tuple[Token, ...]
    denials: tuple[tuple[str, ...], ...]
    negated: frozenset[str]
    keys: frozenset[str]
    weights: dict[str, float]
    total: float


def normalise(text: str) -> str:
    """Return one spelling of full-width forms, quotes, dashes and accents, without citation marks such as `[3]`."""
    text = strip_citations(text)
    if text.isascii():
        return text
    text = unify_forms(text).translate(_PUNCTUATION)
    if text.isascii():
        return text
    decomposed = _ACCENTED.sub(r"\1", unicodedata.normalize("NFD", text))
    return unicodedata.normalize("NFC", decomposed)


@lru_cache(maxsize=32768)
def _read_latin(surface: str, starts: bool) -> Token | None:
    """Return the token of a Latin word; at the start of a sentence (`starts`) a capital means little."""
    if "." in surface:  # U.S., e.g.
        surface = surface.replace(".", "")
    if "'" in surface:
        head, _, tail = surface.partition("'")
        if tail == "t" and head.endswith("n"):
            return Token(key="n't", surface=surface, kind="negation", weight=0.0)
        surface = head if len(head) > 1 else head + tail
    lower = surface.lower()
    kind: TokenKind = "word"
    weight = 0.5 if len(lower) == 1 else 1.0
    if lower in NEGATIONS:
        return Token(key=lower, surface=surface, kind="negation", weight=0.0)
    if lower in DIRECTION_WORDS:
        kind, weight = "direction", 0.4
    elif lower in FUNCTION_WORDS and not (1 < len(lower) < 4 and surface.isupper()):
        return None
    elif lower[-1] in "#+" or not surface.isalpha():
        return Token(key=lower, surface=surface, kind="name", weight=1.0)
    elif surface[0].isupper() and not (starts and surface[1:].islower()):
        kind, weight = "name", 1.0
    return Token(key=stem_word(lower), surface=surface, kind=kind, weight=weight)


@lru_cache(maxsize=32768)
def _read_pair(pair: str) -> Token:
    """Return the token of two neighbouring Chinese characters, or of a single one: less for each stop character."""
    stops = sum(character in CHINESE_STOP_CHARACTERS for character in pair)
    weight = (0.5, 0.15, 0.05)[stops] if len(pair) == 2 else (0.5, 0.05)[stops]
    return Token(key=pair, surface=pair, kind="chinese", weight=weight)


@lru_cache(maxsize=4096)
def _read_unit(form: str) -> tuple[Token, ...]:
    """Return the token of a unit, whose key has all meanings of the form (`@gbp|lb` for pounds), else none."""
    meanings = UNITS.get(form) or UNITS.get(form.lower() if len(form) > 1 else "")
    return (Token(key=f"@{meanings}", surface=form, kind="unit", weight=0.5),) if meanings else ()


def _read_han(run: str, number: str = "") -> list[Token]:
    """Return the tokens of a Chinese run: its numbers with their units, and the character pairs between them.

    `number` is the key of a number right before the run.
    """
    tokens: list[Token] = []
    start = 0
    for match in (*CHINESE_PATTERN.finditer(run), None):
        part = run[start : match.start() if match else len(run)]
        if number and part:
            is_day = part[0] in "日号" or (number[:2] == "#m" if part[0] == "月" else len(number) == len("#2024"))
            unit = _CHINESE_UNITS.match(part)
            if part[0] in _DATE_MARKS and is_day:
                part = part[1:]  # `2024年5月3日` is `2024-05-03`
            elif unit is not None:
                tokens += _read_unit(unit[0])
                part = part[unit.end() :]
        tokens += _read_plain_han(part)
        if match is not None:
            tokens += _read_found_number(match)
            start = match.end()
            number = tokens[-1].key if tokens and tokens[-1].kind == "number" else ""
    return tokens


def _read_plain_han(run: str) -> list[Token]:
    """Return overlapping character pairs; words of the frame are cut out, and a negation is a separate token."""
    if _MAY_NEGATE.search(run) is None:
        return [token for part in _STOP_WORDS.split(run) for token in _read_pairs(part)]
    tokens: list[Token] = []
    start = 0
    for match in _CUTS.finditer(run):
        if match.lastgroup == "kept":
            continue
        tokens += _read_pairs(run[start : match.start()])
        if match.lastgroup == "negation":
            tokens.append(Token(key=match[0], surface=match[0], kind="negation", weight=0.0))
        start = match.end()
    return tokens + _read_pairs(run[start:])


def _read_pairs(part: str) -> list[Token]:
    if len(part) == 1:
        return [_read_pair(part)]
    return [_read_pair(part[position : position + 2]) for position in range(len(part) - 1)]


def _read_found_number(match: re.Match[str]) -> list[Token]:
    kind, groups = match.lastgroup, match.groupdict()
    if kind not in _NUMBER_KINDS:  # an ordinal's ending, a scale or a percent sign came last
        kind = next(kind for kind in _NUMBER_KINDS if groups.get(kind))
    text = groups[kind]
    if text.isdigit() and (groups.get("ordinal") or groups.get("after_ordinal") is not None):
        kind = "ordinal"
    percent = bool(groups.get("percent")) or groups.get("of_hundred") is not None
    key = read_number(kind, text, groups.get("scale") or "", percent=percent)
    if key is not None:
        return [Token(key=key, surface=match[0].strip(), kind="number", weight=0.7 if key[1] in "om" else 1.5)]
    return _read_plain_han(text) if kind.startswith("chinese") else []


def _read_tokens(sentence: str) -> list[Token]:
    """Return the tokens of a normalised sentence; most sentences of plain words take a short way to the same result."""
    if sentence.isascii() and _DIGIT.search(sentence) is None:
        words = _LATIN.findall(sentence)
        if words and words[0] not in _NO and _NUMBER_STARTS.isdisjoint(words):
            tokens = [_read_latin(words[0], True), *[_read_latin(word, False) for word in words[1:]]]
            return [token for token in tokens if token is not None]
    return _scan_tokens(sentence)


def _scan_tokens(sentence: str) -> list[Token]:
    """Return the tokens of a sentence with numbers, units, bounds or Chinese."""
    is_english = sentence.isascii() or _FIRST_HAN.search(sentence) is None
    if is_english or _COUNTS.search(sentence) is not None:
        lower = sentence.lower()
        if any(word in lower for word in _BOUND_WORDS[is_english]):

            def mark(match: re.Match[str]) -> str:
                sign = "<" if match["most"] or match["most_after"] else ">"
                return f" {sign}{match['number'] or match['counted']}"

            # A sign in place of the words for a bound.
            sentence = _BOUNDS[is_english].sub(mark, sentence)
    tokens: list[Token] = []
    sign: tuple[Token, ...] = ()  # of the amount that follows
    starts, end = True, 0
    for match in (_ASCII_SCANNER if sentence.isascii() else _SCANNER).finditer(sentence):
        if match.start() < end:
            continue
        kind, surface, number = match.lastgroup, match[0], ""
        if tokens and tokens[-1].kind == "number" and sentence[end : match.start()] in _BESIDE:
            number = tokens[-1].key
        end = match.end()
        if kind == "latin":
            words = WORDS_PATTERN.match(sentence, match.start()) if surface in _NUMBER_STARTS else None
            if words is not None:
                end = words.end()
                tokens += _read_found_number(words)
            elif surface in _CODES and _BEFORE_DIGITS.match(sentence, end):
                sign = _read_unit(surface)
            elif unit := _read_unit(surface.rstrip(".")) if number else ():
                tokens += unit
            elif starts and surface in _NO and sentence[end : end + 1] in _AFTER_NO:  # an answer `No`
                tokens.append(Token(key="no", surface=surface, kind="direction", weight=0.4))
                tokens.append(Token(key=surface, surface=surface, kind="negation", weight=0.0))
            elif (token := _read_latin(surface, starts)) is not None:
                tokens.append(token)
        elif kind == "han":
            tokens += _read_han(surface, number)
        elif kind == "bound":
            tokens.append(Token(key=surface, surface=surface, kind="bound", weight=0.3))
        elif kind == "sign":
            sign = _read_unit(surface.replace(" ", ""))
            if number:
                tokens += sign
                sign = ()
        else:
            tokens += [*_read_found_number(match), *sign]
            sign = ()
        starts = False
    # An ordinal beside a month is the number of the day: `the 15th of January`.
    if not any(token.key[:2] == "#o" for token in tokens):
        return tokens
    for place, token in enumerate(tokens):
        if token.key[:2] == "#o" and any(other.key[:2] == "#m" for other in tokens[max(0, place - 1) : place + 2]):
            tokens[place] = replace(token, key=f"#{token.key[2:]}", weight=1.5)
    return tokens


_LONGER = stem_word("longer")  # what is no longer so
_CLAUSE_ENDS = re.compile(read_pattern("clause_ends"), re.IGNORECASE)


def split_clauses(sentence: str) -> list[str]:
    """Return the clauses of a normalised sentence, none empty."""
    return [part for part in _CLAUSE_ENDS.split(sentence) if part.strip()]


def read_sentence(text: str) -> Sentence:
    """Return a normalised sentence with its tokens, weights and negations."""
    tokens = _read_tokens(text)
    denials: list[tuple[str, ...]] = []
    if any(token.kind == "negation" for token in tokens):
        parts = split_clauses(text)
        # For each negation the keys after it in its clause that it may govern.
        for clause in [tokens] if len(parts) == 1 else [_read_tokens(part) for part in parts]:
            for place, token in enumerate(clause):
                if token.kind == "negation":
                    governed = takewhile(
                        lambda other: other.kind != "negation" or other.key == "nor", clause[place + 1 :]
                    )
                    after = [other.key for other in governed if other.weight >= 0.15 and other.key != _LONGER]
                    reach = _CHINESE_REACH if after and not after[0].isascii() else _NEGATION_REACH
                    denials.append(tuple(after[:reach]))
        denials = [keys for keys in denials if keys]
        others = [token for token in tokens if token.kind != "negation"]
        tokens = others or [replace(token, kind="direction", weight=0.4) for token in tokens]
    weights = {token.key: token.weight for token in tokens}
    return Sentence(
        text=text,
        tokens=tuple(tokens),
        denials=tuple(denials),
        negated=frozenset([key for keys in denials for key in keys]),
        keys=frozenset(weights),
        weights=weights,
        total=sum([token.weight for token in tokens]),
    )


_ALPHANUMERIC = re.compile(r"[a-z0-9]+")
_LETTERS = re.compile(r"[A-Za-z]+")
_ACRONYM = re.compile(r"(?<![A-Za-z])[A-Z]{2,}(?![A-Za-z])")


@dataclass(frozen=True, kw_only=True, slots=True)
class Runs:
    """The keys of the runs of neighbouring numbers (a date) and names, and of each key of a longer name its acronym.

    Words that carry no content do not end a run.
    """

    numbers: tuple[frozenset[str], ...]
    names: tuple[frozenset[str], ...]
    acronyms: dict[str, str]


def _read_runs(sentences: Sequence[Sentence], kind: TokenKind) -> list[list[Token]]:
    """Return the longest stretches of neighbouring tokens of one kind."""
    runs: list[list[Token]] = []
    for sentence in sentences:
        previous: TokenKind | None = None
        for token in sentence.tokens:
            if token.kind == kind:
                if previous != kind:
                    runs.append([])
                runs[-1].append(token)
            previous = token.kind
    return runs


@dataclass(frozen=True, kw_only=True, slots=True)
class Spellings:
    """The words of a text in the forms in which near matches look for them.

    `stems_by_start` has the words by their first three letters, `squeezed` the plain letters and digits of the text
    in one lower-case string, for words written apart or together, `acronyms` the words in capitals, in lower case, and
    `initials` the first letters of all Latin words, and of the capitalised ones alone: `|acotm|AM|`.
    """

    stems_by_start: dict[str, list[str]]
    squeezed: str
    acronyms: frozenset[str]
    initials: str


@dataclass(frozen=True, kw_only=True)
class AnalysedText:
    """A text and its sentences; sentences without any token are left out. Made by `make_text`.

    `places` has each key's sentences as a bit mask, `weights` the keys' weights in the order of first appearance.
    """

    text: str
    sentences: tuple[Sentence, ...]
    places: dict[str, int]
    keys: frozenset[str]
    weights: dict[str, float]
    surfaces: dict[str, str]
    # Near matches found so far, key to closeness: filled and read by `match`.
    near: dict[str, float] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def names(self) -> frozenset[str]:
        return frozenset([t.key for sentence in self.sentences for t in sentence.tokens if t.kind == "name"])

    @cached_property
    def runs(self) -> Runs:
        names = _read_runs(self.sentences, "name")
        acronyms: dict[str, str] = {}
        for run in names:
            if len(run) > 1:
                acronyms |= dict.fromkeys([t.key for t in run], "".join([t.surface[0] for t in run]).lower())
        return Runs(
            numbers=tuple([frozenset([t.key for t in run]) for run in _read_runs(self.sentences, "number")]),
            names=tuple([frozenset([t.key for t in run]) for run in names]),
            acronyms=acronyms,
        )

    @cached_property
    def spellings(self) -> Spellings:
        starts: dict[str, list[str]] = {}
        for key in self.places:
            if len(key) > 3 and key[0] != "#":
                starts.setdefault(key[:3], []).append(key)
        plain = normalise(self.text)
        words = _LETTERS.findall(self.text)
        every = "".join([word[0] for word in words]).lower()
        capitals = "".join([word[0] for word in words if word[0].isupper()]).lower()
        return Spellings(
            stems_by_start=starts,
            squeezed="".join(_ALPHANUMERIC.findall(plain.lower())),
            acronyms=frozenset([word.lower() for word in _ACRONYM.findall(plain)]),
            initials=f"|{every}|{capitals}|",
        )


def make_text(text: str, sentences: tuple[Sentence, ...]) -> AnalysedText:
    """Return a text of sentences that were read already."""
    places: dict[str, int] = {}
    weights: dict[str, float] = {}
    for position, sentence in enumerate(sentences):
        weights |= sentence.weights
        bit = 1 << position
        for key in sentence.keys:
            places[key] = places.get(key, 0) | bit
    return AnalysedText(
        text=text,
        sentences=sentences,
        places=places,
        keys=frozenset(places),
        weights=weights,
        surfaces={token.key: token.surface for sentence in sentences for token in sentence.tokens},
    )


def join_texts(texts: Sequence[AnalysedText]) -> AnalysedText:
    """Return several analysed texts as one, without analysing again."""
    if len(texts) == 1:
        return texts[0]
    return make_text("\n".join(text.text for text in texts), tuple([s for text in texts for s in text.sentences]))


MAX_CHARACTERS: Final = 500_000
"""The limit for the latest analysed texts, which are kept: an analysed character takes about 100 bytes."""


@cached(LRUCache(maxsize=MAX_CHARACTERS, getsizeof=lambda analysed: len(analysed.text)), lock=threading.Lock())
def analyse_text(text: str) -> AnalysedText:
    """Return the sentences and tokens of a text; the same text again costs a look-up."""
    sentences = [read_sentence(normalise(sentence)) for sentence in split_sentences(text)]
    return make_text(text, tuple([sentence for sentence in sentences if sentence.tokens]))
