"""The marks with which answers name their sources, as regular expressions.

A pattern finds one mark, and its named groups are what the mark cites: `rank`, the number of a context, several as in
`2, 3` or `1-3`; `rank0`, a number that counts from 0 in all runs; `id`, an id, a URL or the label of a footnote. If a
pattern has an id and a number, the number counts in samples whose contexts have no such ids. `text` is a part of the
mark that belongs to the sentence, as a link's words do. The first match in the answer counts, and of two patterns
that match at one place the earlier one.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

_AND: Final = r"(?:[,，、;；&|–—-]|(?i:and|und|et|y)\b|和|与|及)"
_NUMBERS: Final = rf"\d{{1,3}}(?:\s*+{_AND}\s*+\^?\d{{1,3}})*"
_IN_URL: Final = r"[^\s<>\[\]{}()\"'“”‘’。，；：、（）【】「」《》|\\^`]"
# With the brackets of a title, as in `…/Rock_(music)`, and without the one that closes the sentence's.
URL: Final = rf"https?://(?:{_IN_URL}|\({_IN_URL}*\))*(?:[\w/#=&%~+-]|\({_IN_URL}*\))"
_WORD: Final = (
    r"(?i:docs?|documents?|(?:search\s)?results?|sources?|passages?|contexts?|ctx|chunks?|excerpts?|snippets?|refs?|"
    r"references?|cit(?:e|ation)s?|dokumente?|quellen?|documentos?|fuentes?|fontes?|fonti|bronn?en|bron)|"
    r"文档|文献|(?:参考)?资料|来源|出处|段落|片段|引用|上下文|检索结果|"
    r"文檔|文獻|文件|(?:參考)?資料|來源|出處|檢索結果|出典|출처|[SDCP](?=\d)|#(?=\d)"
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
    rf"<?(?P<text>(?P<id>{URL}))>?",  # the sentence may state the address
)
IN_BRACKETS: Final = rf"[\[【［](?:{_WORDED}{_NUMBERS}{_FURTHER}|{_NUMBERS}|ID:\s?+\d{{1,3}}){_PAGE}[\]】］]"
"""A mark with ranks in brackets, without groups: part of other patterns."""

# --- a list of sources at an answer's end

_TITLE: Final = (
    r"^[ \t]*(?:#+[ \t]*)?(?:\*\*|__)?(?:sources?|references?|citations?|bibliography|works cited|footnotes?|links|"
    r"quellen(?:angaben|verzeichnis)?|literaturverzeichnis|fußnoten|références|bibliographie|"
    r"fuentes?|referencias|bibliografía|fontes?|referências|bibliografia|fonti|riferimenti|bronn?en|referenties|"
    r"źródła|источники|المصادر|المراجع|출처|참고\s?(?:문헌|자료)|出典|参照(?:元|文献)?|"
    r"参考(?:文献|资料|来源|链接)?|(?:资料|信息)?来源|引用(?:来源|文献)?|出处|脚注|"
    r"參考(?:文獻|資料|來源|連結)?|(?:資料|資訊)?來源|引用(?:來源|文獻)|出處|腳註)"
)
_HEADING: Final = re.compile(rf"{_TITLE}[ \t]*+[:：]?+(?:\*\*|__)?[ \t]*+[:：]?+[ \t]*+$", re.IGNORECASE | re.MULTILINE)
_IN_LINE: Final = re.compile(
    rf"{_TITLE}[ \t]*+[:：](?:\*\*|__)?[ \t]*+(?P<entries>\[[^\n]*+)$", re.IGNORECASE | re.MULTILINE
)
_ENTRY: Final = re.compile(
    r"^[ \t]*(?:[-*•][ \t]+)?(?:\[\^?(?P<label>[\w.:/-]{1,40})\^?\]:?|(?P<number>\d{1,3})[.)、:])[ \t]*(?P<body>\S.*)$"
)
_ENTRY_IN_LINE: Final = re.compile(r"\[\^?(?P<label>[\w.:/-]{1,40})\^?\](?!\():?[ \t]*(?P<body>[^\[\]\n]*)")
_LABEL: Final = re.compile(r"\d+|[\w.:/-]+")
_ONLY_PAGE: Final = re.compile(rf"{_PAGE}[\W_]*")
_FILE: Final = re.compile(rf"(?:https?://\S+|\[[^\[\]]+\]\(\S+\)|[^\s/]\S*\.[A-Za-z]{{2,5}}(?:#\S*)?){_PAGE}")
_MARKED: Final = re.compile(rf"{IN_BRACKETS}|\[\^[\w.:/-]{{1,40}}\^?\]|<sup>\[?\d{{1,3}}\]?</sup>|【\d{{1,3}}】")


@dataclass(frozen=True, kw_only=True)
class SourceList:
    """The list of sources in a text, from `start` to `end`, and the text of each source by its label or number.

    `is_cited` where the text above cites one of them, or all are files and addresses: else the list may be what the
    text is to state, such as links.
    """

    start: int
    end: int
    sources: Mapping[str, str]
    is_cited: bool


def find_source_list(text: str) -> SourceList | None:
    """Return the first list below a heading such as `Sources:`, or in one line with it; None without one."""
    if line := _IN_LINE.search(text):
        entries = list(_ENTRY_IN_LINE.finditer(line["entries"]))
        # One that the text above does not cite is the citation itself.
        is_cited = _cites(text[: line.start()], {entry["label"] for entry in entries})
        are_named = not any(_ONLY_PAGE.fullmatch(entry["body"]) for entry in entries)
        if is_cited and are_named and len(entries) == line["entries"].count("["):
            sources = {entry["label"]: entry["body"].strip(" ,;，；、") for entry in reversed(entries)}
            return SourceList(start=line.start(), end=line.end(), sources=sources, is_cited=True)
    # If the first heading has no entries behind it, no other one has.
    if (heading := _HEADING.search(text)) is None:
        return None
    found, name = dict[str, str](), ""
    was_blank, end, place = False, heading.end(), heading.end()
    for line_of_text in text[heading.end() :].splitlines(keepends=True):
        place += len(line_of_text)
        if not line_of_text.strip():
            was_blank = True
            continue
        if entry := _ENTRY.match(line_of_text.rstrip("\r\n")):
            name = entry["label"] or entry["number"]
            found.setdefault(name, entry["body"])
        elif was_blank or not found:
            break  # a new paragraph, and not the rest of an entry
        else:
            found[name] += f" {line_of_text.strip()}"
        was_blank, end = False, place
    if not found:
        return None
    are_files = all(_FILE.fullmatch(body.strip(" .,;。；，")) for body in found.values())
    is_cited = are_files or _cites(text[: heading.start()], found)
    return SourceList(start=heading.start(), end=end, sources=found, is_cited=is_cited)


def _cites(text: str, labels: Collection[str]) -> bool:
    """Return whether a text has a mark with one of these labels."""
    marks = (match[0] for match in _MARKED.finditer(text))
    return any(part in labels for mark in marks for part in _LABEL.findall(mark))
