"""The marks with which answers name their sources, as regular expressions.

A pattern finds one mark, and its named groups are what the mark cites: `rank`, the number of a context, several as in
`2, 3` or `1-3`; `rank0`, a number that counts from 0 in all runs; `id`, an id, a URL or the label of a footnote. If a
pattern has an id and a number, the number counts in samples whose contexts have no such ids. `text` is a part of the
mark that belongs to the sentence, as a link's words do. The first match in the answer counts, and of two patterns
that match at one place the earlier one.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

_AND: Final = r"(?:[,，、;；&|–—-]|(?i:and|und|et|y)\b|和|与|及)"
_NUMBERS: Final = rf"\d{{1,3}}(?:\s*+{_AND}\s*+\^?\d{{1,3}})*"
_URL: Final = r"https?://[^\s<>\[\]{}\"'“”‘’。，；：、（）【】「」《》|\\^`]*[\w/#=&%~+-]"
_WORD: Final = (
    r"(?i:docs?|documents?|(?:search\s)?results?|sources?|passages?|contexts?|ctx|chunks?|excerpts?|snippets?|refs?|"
    r"references?|cit(?:e|ation)s?|dokumente?|quellen?|documentos?|fuentes?|fontes?)|"
    r"文档|文献|(?:参考)?资料|来源|出处|段落|片段|引用|上下文|检索结果|[SDCP](?=\d)|#(?=\d)"
)
_SIGNS: Final = r"[\s:：._#=-]*+"
_LEAD: Final = rf"{_SIGNS}(?:(?i:no|nr|number|id)(?![A-Za-z]){_SIGNS})?"
_WORDED: Final = rf"(?:{_WORD}){_LEAD}"
WORDED_NUMBER: Final = re.compile(rf"(?P<word>{_WORD}){_LEAD}(?P<number>\d+)")
"""A context by its rank, or by an id of that form, such as `Source 3`."""
_FURTHER: Final = rf"(?:\s*+{_AND}\s*+{_WORDED}{_NUMBERS})*"
_WORDED_NUMBERS: Final = rf"(?P<id>{_WORDED}(?P<rank>{_NUMBERS}{_FURTHER}))"
_PAGE: Final = (
    r"(?:\s*+[,，;；:：]?\s*+(?:(?i:pp?|pages?|seiten?|s|lines?)\.?\s*+\d[\d\s–-]{0,9}+|第\s*+\d{1,4}\s*+页))?"
)
_ID: Final = r"[A-Za-z]\w*(?:[-:/#.]\w+)*"
BUILT_IN: Final = (
    # [[2]](https://…) and [words](https://…), whose words stay in the sentence unless they are a number.
    rf"\[\[(?P<rank>{_NUMBERS})\]\](?:\((?P<id>[^\s()]+)\))?",
    rf"(?<!!)\[(?:\^?(?P<rank>{_NUMBERS})\^?|(?P<text>[^\[\]\n]*))\]\(<?(?P<id>[^\s()<>]*(?:\([^\s()]*\)[^\s()<>]*)*)>?(?:\s+\"[^\"\n]*\")?\)",
    # Footnotes: [^1], [^note], Bing's [^1^].
    rf"\[\^(?P<id>(?P<rank>{_NUMBERS})|[\w.:/-]+)\^?\]",
    # 【4:0†report.pdf】: a place among search results, from 0, and a file's name; 【7†L3-L9】: a number and lines.
    r"【\d+:(?P<rank0>\d{1,3})†(?P<id>[^【】\n]*)】",
    rf"【(?P<rank>{_NUMBERS})(?:†[^【】\n]*)?】",
    # [1], [2, 3], [1-3], [2, p. 4] and <sup>1</sup>.
    rf"[\[［](?P<rank>{_NUMBERS}){_PAGE}[\]］]",
    rf"<(?:sup|cite|ref)>\[?(?P<rank>{_NUMBERS})\]?</(?:sup|cite|ref)>",
    # [doc 3], [Source: 2, p. 4], [doc1, doc2], [S1] and (Source 2); RAGFlow's [ID:0] and ##0$$, which count from 0.
    rf"[\[【［]{_WORDED_NUMBERS}{_PAGE}[\]】］]",
    rf"[(（](?![SDCP#]\d){_WORDED_NUMBERS}{_PAGE}[)）]",
    r"\[ID:\s?+(?P<rank0>\d{1,3}(?:\s*+,\s*+(?:ID:\s?+)?\d{1,3})*)\]",
    r"##(?P<rank0>\d{1,3})\$\$",
    # Anything in the form of an id: [handbook-12], [kb/fees.md#2].
    rf"[\[【](?=[^\[\]【】\n]{{0,200}}[-_:/#.])(?=[^\[\]【】\n]{{0,200}}\d)(?P<id>{_ID}(?:\s*[,;，；、]\s*{_ID})*)[\]】]",
    rf"<?(?P<text>(?P<id>{_URL}))>?",  # the sentence may state the address
)
IN_BRACKETS: Final = rf"[\[【［](?:{_WORDED}{_NUMBERS}{_FURTHER}|{_NUMBERS}|ID:\s?+\d{{1,3}}){_PAGE}[\]】］]"
"""A mark with ranks in brackets, without groups: part of other patterns."""

# --- a list of sources at an answer's end

_TITLE: Final = (
    r"^[ \t]*(?:#+[ \t]*)?(?:\*\*|__)?(?:sources?|references?|citations?|bibliography|works cited|footnotes?|links|"
    r"参考(?:文献|资料|来源|链接)?|(?:资料|信息)?来源|引用(?:来源|文献)?|出处|脚注)"
)
_HEADING: Final = re.compile(rf"{_TITLE}[ \t]*+[:：]?+(?:\*\*|__)?[ \t]*+[:：]?+[ \t]*+$", re.IGNORECASE | re.MULTILINE)
_IN_LINE: Final = re.compile(
    rf"{_TITLE}[ \t]*+[:：](?:\*\*|__)?[ \t]*+(?P<entries>\[[^\n]*+)$", re.IGNORECASE | re.MULTILINE
)
_ENTRY: Final = re.compile(
    r"^[ \t]*(?:[-*•][ \t]+)?(?:\[\^?(?P<label>[\w.:/-]{1,40})\^?\]:?|(?P<number>\d{1,3})[.)、:])[ \t]*(?P<body>\S.*)$"
)
_ENTRY_IN_LINE: Final = re.compile(r"\[\^?(?P<label>[\w.:/-]{1,40})\^?\](?!\():?[ \t]*(?P<body>[^\[\]\n]*)")
_ONLY_PAGE: Final = re.compile(rf"{_PAGE}[\W_]*")
_REFERENCE: Final = re.compile(r"https?://|\.[A-Za-z]{2,5}\b")


@dataclass(frozen=True, kw_only=True)
class SourceList:
    """The list of sources in a text, from `start` to `end`, and the text of each source by its label or number.

    `is_plain` where no entry has a label, an address or a file: it may be a part of what the text states.
    """

    start: int
    end: int
    sources: Mapping[str, str]
    is_plain: bool


def find_source_list(text: str) -> SourceList | None:
    """Return the first list below a heading such as `Sources:`, or in one line with it; None without one."""
    if line := _IN_LINE.search(text):
        entries = list(_ENTRY_IN_LINE.finditer(line["entries"]))
        labels = {entry["label"] for entry in entries}
        # One that the text above does not refer to is the citation itself.
        is_used = any(match["label"] in labels for match in _ENTRY_IN_LINE.finditer(text, 0, line.start()))
        are_named = not any(_ONLY_PAGE.fullmatch(entry["body"]) for entry in entries)
        if is_used and are_named and len(entries) == line["entries"].count("["):
            sources = {entry["label"]: entry["body"].strip(" ,;，；、") for entry in reversed(entries)}
            return SourceList(start=line.start(), end=line.end(), sources=sources, is_plain=False)
    # If the first heading has no entries behind it, no other one has.
    if (heading := _HEADING.search(text)) is None:
        return None
    found, name = dict[str, str](), ""
    are_plain, was_blank, end, place = True, False, heading.end(), heading.end()
    for line_of_text in text[heading.end() :].splitlines(keepends=True):
        place += len(line_of_text)
        if not line_of_text.strip():
            was_blank = True
            continue
        if entry := _ENTRY.match(line_of_text.rstrip("\r\n")):
            name = entry["label"] or entry["number"]
            found.setdefault(name, entry["body"])
            are_plain = are_plain and not entry["label"] and not _REFERENCE.search(entry["body"])
        elif was_blank or not found:
            break  # a new paragraph, and not the rest of an entry
        else:
            found[name] += f" {line_of_text.strip()}"
        was_blank, end = False, place
    return SourceList(start=heading.start(), end=end, sources=found, is_plain=are_plain) if found else None
