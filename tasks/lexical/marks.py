"""The marks with which answers name their sources, as regular expressions.

A pattern finds one mark, and its named groups are what the mark cites: `rank`, the number of a context, several as in
`2, 3` or `1-3`; `rank0`, a number that counts from 0 in all runs; `id`, an id, a URL or the label of a footnote. If a
pattern has an id and a number, the number counts in samples whose contexts have no such ids. `text` is a part of the
mark that belongs to the sentence, as a link's words do. The first match in the answer counts, and of two patterns
that match at one place the earlier one.
"""

import re
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
