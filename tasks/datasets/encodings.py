"""In which encoding a text file is written, where that is certain; and a file of another one read as UTF-8.

A byte order mark says UTF-8 or UTF-16. Without one a file is UTF-8 if all of it can be read so; else its bytes can only
be weighed. Nearly any bytes are some text in every older encoding, so that what can be read proves nothing: a file is
taken for GB18030 or cp1252 only where its bytes come as they do in Chinese, or in the languages of which the code pages
of Western and Central Europe agree, and never where a neighbouring encoding gives another text. What is left is for
the person, who is shown what a line would read.
"""

import codecs
import io
import re
from collections.abc import Iterable, Iterator
from typing import BinaryIO, Final

_CHUNK: Final = 2**16
_WEIGHED = 2**22  # bytes beyond ASCII are sought in so much of a file
_MARKS: Final = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))
_CHINESE: Final = "gb18030"
_WESTERN: Final = "cp1252"
_PROPOSED: Final = (_WESTERN, _CHINESE, "cp1250", "cp1251", "big5", "shift_jis", "euc_kr")
# Pages in which other letters stand where cp1252 has its own; they agree on German, on é and on typographic quotes.
_NEIGHBOURS: Final = ("cp1250", "cp1254", "cp1257")
_BEYOND_ASCII: Final = bytes(range(0x80, 0x100))
_HIGH = re.compile(rb"[\x80-\xff]+")
# Bytes of the standard characters of GB2312, which all of running Chinese consists of: both of a pair are beyond ASCII.
_STANDARD_PAIRS = re.compile(rb"(?:[\xa1-\xa9\xb0-\xf7][\xa1-\xfe])+")
_KANA_OR_HANGUL = re.compile("[\u3040-\u30ff\uac00-\ud7af]")
# Among the commonest characters of Chinese; Korean or Japanese bytes read as Chinese seldom give one.
_COMMON = re.compile("[的是了在不有和中为以用可请我你您吗么这个。，？、]")
_LETTERS_IN_A_ROW = 2
_LEAST_CHINESE = 4
_LEAST_COMMON = 0.08


def find_mark(start: bytes) -> str | None:
    """The encoding that a byte order mark at the start of a file names."""
    return next((name for mark, name in _MARKS if start.startswith(mark)), None)


def is_utf8(line: bytes) -> bool:
    """Whether it can be read as UTF-8."""
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


def check_known(encoding: str) -> bool:
    """Whether Python knows an encoding of this name that makes text of bytes."""
    try:
        b"a".decode(encoding)
    except UnicodeDecodeError:
        return True
    except LookupError:
        return False
    return True


def weigh(lines: Iterable[bytes]) -> str | None:
    """The encoding of the lines of a file that is not UTF-8, where it is certain; None where it is not."""
    high = b"".join(_take_high(lines))
    if len(high) > _WEIGHED:
        high = high[:_WEIGHED].rstrip(_BEYOND_ASCII)  # not in the middle of a letter
    chinese, western = _is_chinese(high), _is_western(high)
    if chinese == western:
        return None
    return _CHINESE if chinese else _WESTERN


def _take_high(lines: Iterable[bytes]) -> Iterator[bytes]:
    """The lines with more than ASCII, as many as are weighed."""
    n_bytes = 0
    for line in lines:
        if _HIGH.search(line):
            yield line
            n_bytes += len(line)
        if n_bytes > _WEIGHED:
            return


def _is_chinese(data: bytes) -> bool:
    """Whether all that is beyond ASCII are pairs of standard Chinese characters, with the common ones among them."""
    if not all(_STANDARD_PAIRS.fullmatch(run) for run in _HIGH.findall(data)):
        return False
    text = "".join(letter for letter in data.decode(_CHINESE) if letter > "\x7f")
    if len(text) < _LEAST_CHINESE or _KANA_OR_HANGUL.search(text):
        return False
    return len(_COMMON.findall(text)) >= _LEAST_COMMON * len(text)


def _is_western(data: bytes) -> bool:
    """Whether it is text in cp1252, and the same text in the code pages beside it."""
    try:
        text = data.decode(_WESTERN)
        if any(data.decode(neighbour) != text for neighbour in _NEIGHBOURS):
            return False
    except UnicodeDecodeError:
        return False
    if any(len(run) > _LETTERS_IN_A_ROW for run in _HIGH.findall(data)):
        return False  # words of nothing but such letters: Cyrillic, Greek, Hebrew, or pairs of an Asian encoding
    # A quote or a sign inside a word is a letter of a DOS code page.
    return re.search(r"[^\W\d_][^\w\s'’\x00-\x7f–—-][^\W\d_]", text) is None


def propose(line: bytes) -> str:
    """What a line would read in the encodings it may be in, for a person to choose from."""
    readings: dict[str, str] = {}
    for name in _PROPOSED:
        try:
            text = line.decode(name)
        except UnicodeDecodeError:
            continue
        place = next((at for at, letter in enumerate(text) if letter > "\x7f"), 0)
        readings.setdefault(text[max(0, place - 12) : place + 12].strip(), name)
    return ", ".join(f"{reading!r} with --encoding {name}" for reading, name in readings.items())


class Utf8Bytes(io.RawIOBase):
    """The bytes of a file of another encoding as UTF-8. Raises UnicodeDecodeError where it is not in that encoding."""

    def __init__(self, opened: BinaryIO, encoding: str) -> None:
        self._opened = opened
        self._decoder = codecs.getincrementaldecoder(encoding)()
        self._left = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray) -> int:  # type: ignore[override]  # what io.BufferedReader hands over
        ended = False
        while not self._left and not ended:
            chunk = self._opened.read(_CHUNK)
            ended = not chunk
            self._left = self._decoder.decode(chunk, final=ended).removeprefix("\ufeff").encode()
        n = min(len(buffer), len(self._left))
        buffer[:n], self._left = self._left[:n], self._left[n:]
        return n
