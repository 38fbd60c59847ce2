"""A text without its layout: markdown marks, tables, lists, headings and code fences come to plain blocks of prose,
each of which `lexical_split` cuts into sentences. A list item that is only a fragment keeps the line that introduced
its list.
"""

import re
from collections.abc import Iterator

_BULLET = re.compile(
    r"^\s*(?:[-*+•●○▪‣·◦–—]\s+|[•●▪]|\(?(?:\d{1,3}|[a-zA-Z]|[ivx]{1,4})[.)]\s+"
    r"|[（(]?(?:\d{1,2}|[一二三四五六七八九十]{1,3})[)）、]\s*|[①-⑳]\s*)"
)
_HEADING = re.compile(r"^\s*#{1,6}\s+")
_QUOTE = re.compile(r"^\s*(?:>\s*)+")
_TABLE_RULE = re.compile(r"^\s*\|?\s*:?-{2,}:?\s*(?:\|\s*:?-{2,}:?\s*)*\|?\s*$")
_RULE = re.compile(r"^\s*(?:[-*_=]\s*){3,}$")
_FENCE = re.compile(r"^\s*(?:```|~~~)")
_LINK = re.compile(r"!?\[([^\]]*)\]\((?:[^()\s]|\([^()]*\))*(?:\s+\"[^\"]*\")?\)")
_EMPHASIS = re.compile(
    r"(\*\*\*|\*\*|__|~~)(?=\S)(.+?)(?<=\S)\1|(?<![\w*])\*(?=\S)([^*\n]+?)(?<=\S)\*(?![\w*])"
    r"|(?<!\w)_(?=\S)([^_\n]+?)(?<=\S)_(?!\w)"
)
_CODE = re.compile(r"`([^`\n]+)`")
_CITATION = re.compile(r"\s*\[(?:\d{1,3}|C\d{1,3})(?:\s*[,-]\s*(?:\d{1,3}|C\d{1,3}))*\](?!\()|\s*【\d+[^】]*】")
_LEAD_END = re.compile(r"[:：]\s*$")
_SENTENCE_END = re.compile(r"[.!?。！？:：；;…]['\"”’」』)）]*$")
_HAN = re.compile(r"[\u3400-\u9fff]")
_WORDS = re.compile(r"[A-Za-z][\w'’-]*|\d[\d.,]*|[\u3400-\u9fff]")
_VERB = re.compile(
    r"\b(?:is|are|was|were|am|be|been|has|have|had|do|does|did|can|could|will|would|shall|should|may|might|must|"
    r"became|began|went|made|took|won|wrote|led|held|rose|fell|grew|sold|bought|built|gave|got|came|ran|said|saw|left|"
    r"lost|met|paid|sent|spent|stood|told|kept|knew|found|become|becomes|include|includes|contain|contains|need|needs|"
    r"use|uses|make|makes|provide|provides|flow|flows|live|lives|work|works|cost|costs|show|shows|mean|means|give|gives|"
    r"allow|allows|require|requires|support|supports|help|helps|cause|causes|produce|produces|form|forms|take|takes|"
    r"[a-z]{3,}ed)\b|n't\b|'s\s+(?:a|an|the|not|been)\b",
    re.IGNORECASE,
)
_LONGEST_FRAGMENT = 8  # words of a list item that may need its lead-in
_LONGEST_LEAD = 14  # words of a lead-in that is worth repeating
_WRAPPED = 60  # characters from which a line without a full stop is taken for a wrapped one


def has_verb(text: str) -> bool:
    """Whether a piece of text may be a clause: a known verb form, or six Chinese characters."""
    return _VERB.search(text) is not None or len(_HAN.findall(text)) >= 6


def count_words(text: str) -> int:
    """Latin words and numbers, and each Chinese character as one."""
    return len(_WORDS.findall(text))


def strip_markup(line: str) -> str:
    """One line without emphasis, links, code marks and citation marks."""
    if "](" in line:
        line = _LINK.sub(r"\1", line)
    if "*" in line or "_" in line or "~~" in line:
        line = _EMPHASIS.sub(lambda found: found[2] or found[3] or found[4], line)
    if "`" in line:
        line = _CODE.sub(r"\1", line)
    if "[" in line or "【" in line:
        line = _CITATION.sub("", line)
    return " ".join(line.split())


class _BlockReader:
    """Walks over the lines of a text; `_paragraph` is the prose not yet given out, `_lead` the latest `...:` line."""

    def __init__(self, text: str) -> None:
        self._lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        self._position = 0
        self._lead = ""
        self._paragraph = ""

    def read(self) -> Iterator[str]:
        while self._position < len(self._lines):
            line = self._lines[self._position]
            self._position += 1
            if _FENCE.match(line):
                yield from self._flush()
                yield from self._read_code()
            elif line.count("|") >= 2 and self._is_table_rule(self._position):
                yield from self._flush()
                yield from self._read_table()
            else:
                yield from self._read_line(_QUOTE.sub("", line))
        yield from self._flush()

    def _flush(self) -> Iterator[str]:
        if self._paragraph:
            yield self._paragraph
        self._paragraph = ""

    def _is_table_rule(self, position: int) -> bool:
        return position < len(self._lines) and _TABLE_RULE.match(self._lines[position]) is not None

    def _read_code(self) -> Iterator[str]:
        """A fenced block as one block on one line."""
        end = self._position
        while end < len(self._lines) and not _FENCE.match(self._lines[end]):
            end += 1
        code = " ".join(line.strip() for line in self._lines[self._position : end] if line.strip())
        self._position = end + 1
        if code:
            yield code

    def _read_table(self) -> Iterator[str]:
        """`Name: Ann; Age: 3` for each row under the header row."""
        end = self._position
        while end < len(self._lines) and "|" in self._lines[end]:
            end += 1
        header, *rows = [
            [strip_markup(cell) for cell in line.strip().strip("|").split("|")]
            for line in self._lines[self._position - 1 : end]
            if not _TABLE_RULE.match(line)
        ]
        self._position = end
        for row in rows:
            cells = [f"{name}: {cell}" if name else cell for name, cell in zip(header, row, strict=False) if cell]
            if cells:
                yield ", ".join(cells)

    def _read_line(self, line: str) -> Iterator[str]:
        heading = _HEADING.match(line)
        bullet = None if heading else _BULLET.match(line)
        plain = strip_markup(line[bullet.end() :] if bullet else line)
        if bullet or heading or not plain or _RULE.match(line) or not self._continues(plain):
            yield from self._flush()
        if heading:
            self._lead = ""
        elif not plain or _RULE.match(line):
            return
        elif _LEAD_END.search(plain):
            lead = _LEAD_END.sub("", plain)
            self._lead = lead if count_words(lead) <= _LONGEST_LEAD else ""
        elif bullet:
            self._paragraph = self._complete_item(plain)
        else:
            joint = "" if not self._paragraph or _HAN.match(plain) else " "
            self._paragraph += joint + plain
            self._lead = ""

    def _complete_item(self, item: str) -> str:
        whole = has_verb(item) or _SENTENCE_END.search(item) is not None
        if self._lead and not whole and count_words(item) <= _LONGEST_FRAGMENT:
            return f"{self._lead}: {item}"
        return item

    def _continues(self, line: str) -> bool:
        """Whether a line goes on with the sentence of the paragraph before it (text wrapped at a fixed width)."""
        if not self._paragraph or _SENTENCE_END.search(self._paragraph):
            return False
        return line[0].islower() or self._paragraph[-1] in ",，、" or len(self._paragraph) >= _WRAPPED


def read_blocks(text: str) -> Iterator[str]:
    """The blocks of a text in order; headings and lead-ins give none of their own, a table row and a code fence one."""
    return _BlockReader(text).read()
