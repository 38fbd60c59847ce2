"""The encoding of a text file where it is certain, and a file of another encoding read as UTF-8."""

import codecs
import io
import re
from collections.abc import Iterable
from typing import BinaryIO, Final

from evalhouse.warehouse.messages import name_setting

_CHUNK: Final = 2**16
_SAMPLED: Final = 2**22  # bytes of lines with more than ASCII that the encoding is found by
_MARKS: Final = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))
_CHINESE: Final = "gb18030"
_WESTERN: Final = "cp1252"
# They agree on German, on é and on typographic quotes; French and Polish read differently in each.
_NEIGHBOURS: Final = ("cp1250", "cp1254", "cp1257")
_PROPOSED: Final = (_WESTERN, _CHINESE, "cp1250", "cp1251", "big5", "shift_jis", "euc_kr")
_HIGH: Final = re.compile(rb"[\x80-\xff]+")
# What DOS code pages have as letters, the Windows ones have as these signs.
_WITHIN_WORD: Final = re.compile(r"[^\W\d_][„“”‚†‡‰‹›«»•][^\W\d_]")


def find_mark(start: bytes) -> str | None:
    """Return the encoding that a byte order mark at the start of a file names."""
    return next((name for mark, name in _MARKS if start.startswith(mark)), None)


def is_utf8(line: bytes) -> bool:
    """Return True if the bytes are valid UTF-8."""
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


def check_known(encoding: str) -> bool:
    """Return True if Python has an encoding of this name that decodes bytes to text."""
    try:
        b"a".decode(encoding)
    except UnicodeDecodeError:
        return True
    except LookupError:
        return False
    return True


def weigh(lines: Iterable[bytes]) -> str | None:
    """Return the encoding of the lines of a file that is not UTF-8, where it is certain; None otherwise.

    charset-normalizer names an encoding for nearly any bytes, and in a short file often a wrong one: a French question
    in cp1252 is cp1250 to it, a Japanese one in Shift JIS is Korean. So its answer counts for Chinese alone; cp1252 is
    certain where all code pages that may be confused with it give the same text. Otherwise the user chooses between the
    readings of a line.
    """
    from charset_normalizer import from_bytes  # noqa: PLC0415  # few files are not UTF-8

    data = bytearray()
    for line in lines:
        if _HIGH.search(line):
            data += line
        if len(data) > _SAMPLED:
            break
    match = from_bytes(bytes(data)).best()
    if match is None:
        return None
    candidates = set(match.could_be_from_charset)
    if {_CHINESE, "gbk"} <= candidates:
        return _CHINESE
    try:
        texts = {bytes(data).decode(name) for name in (_WESTERN, *_NEIGHBOURS)}
    except UnicodeDecodeError:
        return None
    return _WESTERN if len(texts) == 1 and not _WITHIN_WORD.search(texts.pop()) else None


def propose(line: bytes) -> str:
    """Return how a line reads in the encodings it may be in, for the user to choose from."""
    readings: dict[str, str] = {}
    for name in _PROPOSED:
        try:
            text = line.decode(name)
        except UnicodeDecodeError:
            continue
        place = next((at for at, letter in enumerate(text) if letter > "\x7f"), 0)
        readings.setdefault(text[max(0, place - 12) : place + 12].strip(), name)
    return ", ".join(f"{reading!r} with {name_setting('encoding', name)}" for reading, name in readings.items())


class Utf8Bytes(io.RawIOBase):
    """The bytes of a file of another encoding as UTF-8. Raises UnicodeDecodeError where the file is not in it."""

    def __init__(self, opened: BinaryIO, encoding: str) -> None:
        self._opened = opened
        self._decoder = codecs.getincrementaldecoder(encoding)()
        self._decoded = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray) -> int:  # type: ignore[override]  # what io.BufferedReader passes
        ended = False
        while not self._decoded and not ended:
            chunk = self._opened.read(_CHUNK)
            ended = not chunk
            self._decoded = self._decoder.decode(chunk, final=ended).removeprefix("\ufeff").encode()
        n = min(len(buffer), len(self._decoded))
        buffer[:n], self._decoded = self._decoded[:n], self._decoded[n:]
        return n
