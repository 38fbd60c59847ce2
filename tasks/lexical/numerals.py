"""Numbers as values: digits with separators, scale words, percent, ordinals, months, number words and Chinese numerals
come to one key each, so that `1.2 million`, `1,200,000` and `120万` are equal. `lexical_text` finds numbers with the
patterns here and reads them with `read_number`.
"""

import re
from collections.abc import Callable
from functools import lru_cache

from evalhouse.tasks.lexical.words import read_words

_UNITS = read_words(
    """
    zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen
    eighteen nineteen
    """
)
_TENS = read_words("twenty thirty forty fifty sixty seventy eighty ninety")
_ORDINALS = read_words(
    """
    first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth thirteenth fourteenth fifteenth
    sixteenth seventeenth eighteenth nineteenth twentieth
    """
)
_MONTHS = read_words("january february march april may june july august september october november december")
_SMALL = {word: value for value, word in enumerate(_UNITS)} | {word: 20 + 10 * i for i, word in enumerate(_TENS)}
_SCALES = {
    "hundred": 100.0,
    "thousand": 1e3,
    "k": 1e3,
    "million": 1e6,
    "mn": 1e6,
    "billion": 1e9,
    "bn": 1e9,
    "trillion": 1e12,
    "十": 10.0,
    "百": 100.0,
    "千": 1e3,
    "万": 1e4,
    "百万": 1e6,
    "千万": 1e7,
    "亿": 1e8,
    "十亿": 1e9,
    "百亿": 1e10,
    "千亿": 1e11,
    "万亿": 1e12,
}
_CHINESE_DIGITS = {
    "〇": 0,
    "零": 0,
    "一": 1,
    "二": 2,
    "两": 2,
    "三": 3,
    "四": 4,
    "五": 5,
    "六": 6,
    "七": 7,
    "八": 8,
    "九": 9,
}
_CHINESE_POWERS = {"十": 10, "百": 100, "千": 1000}
_CHINESE = "〇零一二两三四五六七八九十百千万亿"

_MONTH_NAME = (
    "jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|oct(?:ober)?|"
    "nov(?:ember)?|dec(?:ember)?"
)
_NUMBER_WORD = "|".join(sorted(_UNITS + _TENS, key=len, reverse=True))
# A number written in digits, with what belongs to it: the alternatives of `lexical_text`'s scanner after words.
DIGITS_PATTERN = (
    r"(?P<digit_month>(?<!\d)(?:1[0-2]|0?[1-9])(?=月)|(?<=\b\d{4}[-/])(?:1[0-2]|0[1-9])(?=[-/]\d\d(?!\d)))"
    r"|(?P<of_hundred>(?<=百分之))?(?P<after_ordinal>(?<=第))?(?P<digits>\d+(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)*)"
    r"(?:(?P<ordinal>(?:st|nd|rd|th)\b)|\s?(?P<scale>(?i:hundred|thousand|million|billion|trillion|mn|bn)\b|k\b"
    r"|[十百千万]?亿|万亿|[百千]?万|[百千]))?(?P<percent>\s?%|\s(?i:percent|per\scent)\b)?"
)
# A number or month written in English words; tried where a word of NUMBER_STARTS begins.
WORDS_PATTERN = re.compile(
    r"(?P<month>(?:january|february|april|june|july|august|september|october|november|december)\b"
    rf"|(?:{_MONTH_NAME})\b\.?(?=\s+\d)|(?<=\d\s)(?:{_MONTH_NAME})\b)"
    rf"|(?P<word_ordinal>(?:{'|'.join(_ORDINALS)})\b)"
    rf"|(?P<words>(?:{_NUMBER_WORD})(?:[\s-](?:and\s)?(?:{_NUMBER_WORD}|hundred|thousand|million|billion))*\b)"
    r"(?P<percent>\s(?:percent|per\scent)\b)?",
    re.IGNORECASE,
)
NUMBER_STARTS = frozenset([*_UNITS, *_TENS, *_ORDINALS, *_MONTHS, *(month[:3] for month in _MONTHS), "sept"]) - {"one"}
# A number inside a run of Chinese characters.
CHINESE_PATTERN = re.compile(
    r"(?P<chinese_ordinal>第[〇零一二两三四五六七八九十百千]+)"
    r"|(?P<chinese_percent>百分之[〇零一二两三四五六七八九十百点]+)"
    rf"|(?P<chinese>[〇零一二两三四五六七八九十][{_CHINESE}]+"
    r"|[二两三四五六七八九十](?=[个种类年月日次人位名家倍项条点层级天岁所座台辆部方大万亿千百成]))"
)


def _show(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(round(value, 6))


def _read_chinese(text: str) -> float | None:
    """The value of a Chinese numeral; None when the characters are no well-formed number."""
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


def _read_words(text: str) -> float:
    total, section = 0.0, 0.0
    for word in re.split(r"[\s-]+", text.lower()):
        if word in _SMALL:
            section += _SMALL[word]
        elif word == "hundred":
            section *= 100
        elif word in _SCALES:
            total, section = total + section * _SCALES[word], 0.0
    return total + section


def _read_percent(text: str) -> str | None:
    """`百分之三点五` without its first three characters."""
    whole, _, tenths = text.partition("点")
    value = float(whole) if whole.isdigit() else _read_chinese(whole) if whole else None
    if value is None:
        return None
    decimals = "".join(str(_CHINESE_DIGITS.get(character, "")) for character in tenths)
    return f"#{_show(value + float(f'0.{decimals or 0}'))}%"


def _read_digits(text: str, scale: str, percent: bool) -> str:
    plain = text.replace(",", "")
    if plain.count(".") > 1 or len(plain) > 15:
        return f"#{plain}"  # a version or a long identifier: compared as it is written
    value = float(plain) * _SCALES.get(scale.lower(), 1.0)
    return f"#{_show(value)}%" if percent else f"#{_show(value)}"


def _read_month(text: str) -> str:
    start = text.lower()[:3]
    return f"#m{next(i for i, month in enumerate(_MONTHS, 1) if month.startswith(start))}"


def _read_ordinal(text: str) -> str:
    return f"#o{int(text)}" if text.isdigit() else f"#o{_ORDINALS.index(text.lower()) + 1}"


def _mark(prefix: str, value: float | None) -> str | None:
    return None if value is None else f"{prefix}{_show(value)}"


# How a number that stands alone, without scale or percent, is read, by the name of its group in the patterns above.
_READERS: dict[str, Callable[[str], str | None]] = {
    "digit_month": lambda text: f"#m{int(text)}",
    "month": _read_month,
    "ordinal": _read_ordinal,
    "word_ordinal": _read_ordinal,
    "chinese_ordinal": lambda text: _mark("#o", _read_chinese(text[1:])),
    "chinese_percent": lambda text: _read_percent(text[3:]),
    "chinese": lambda text: _mark("#", _read_chinese(text)),
}


@lru_cache(maxsize=16384)
def read_number(kind: str, text: str, scale: str = "", *, percent: bool = False) -> str | None:
    """The key of a number: `#30`, `#30%`, `3rd` as `#o3`, May as `#m5`; None when the text is no number after all.

    `kind` is the name of the group of a pattern above that matched, `text` what it matched.
    """
    if kind == "words":
        return f"#{_show(_read_words(text))}" + "%" * percent
    reader = _READERS.get(kind)
    return _read_digits(text, scale, percent) if reader is None else reader(text)
