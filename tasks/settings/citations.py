"""How an answer cites: regular expressions, those that are built in and those of a suite's own.

A pattern finds one mark and says by named groups what it cites: `rank`, the number of a context, several as in `2, 3`
or `1-3`; `rank0`, a number that counts from 0 whatever the run says; `id`, an id, a URL or the label of a footnote.
Where a pattern has an id and a number, the number counts in samples whose contexts have no ids. `text` is a part of the
mark that belongs to the sentence, as a link's words do. What is found first in the answer counts, and of two patterns
that find something at one place the earlier one.
"""

import re
from collections.abc import Sequence
from functools import cache
from typing import Final

_NUMBERS: Final = r"\d{1,3}(?:\s*(?:[,，、;；&–—-]|and|和)\s*\^?\d{1,3})*"
_URL: Final = r"https?://[^\s<>\[\]{}\"'“”‘’。，；：、（）【】「」《》|\\^`]*[\w/#=&%~+-]"
_WORD: Final = (
    r"(?i:docs?|documents?|sources?|passages?|contexts?|chunks?|refs?|references?)|文档|文献|来源|资料|段落|片段"
)
_ID: Final = r"[A-Za-z]\w*(?:[-:/#.]\w+)*"
BUILT_IN: Final = (
    # [[2]](https://…) and [words](https://…), whose words stay in the sentence unless they are a number.
    rf"\[\[(?P<rank>{_NUMBERS})\]\](?:\((?P<id>[^\s()]+)\))?",
    rf"(?<!!)\[(?:\^?(?P<rank>{_NUMBERS})\^?|(?P<text>[^\[\]\n]*))\]\(<?(?P<id>[^\s()<>]*(?:\([^\s()]*\)[^\s()<>]*)*)>?(?:\s+\"[^\"\n]*\")?\)",
    # Footnotes: [^1], [^note], Bing's [^1^].
    rf"\[\^(?P<id>(?P<rank>{_NUMBERS})|[\w.:/-]+)\^?\]",
    # 【4:0†report.pdf】: a place among what a search found, from 0, and a file's name; 【7†L3-L9】: a number and lines.
    r"【\d+:(?P<rank0>\d{1,3})†(?P<id>[^【】\n]*)】",
    rf"【(?P<rank>{_NUMBERS})(?:†[^【】\n]*)?】",
    # [1], [2, 3], [1-3] and <sup>1</sup>.
    rf"\[(?P<rank>{_NUMBERS})\]",
    rf"<sup>\[?(?P<rank>{_NUMBERS})\]?</sup>",
    # [doc 3] and [source: 2], then whatever has the form of an id: [handbook-12], [kb/fees.md#2].
    rf"[\[【](?P<id>(?:{_WORD})[\s:：._#-]*(?P<rank>{_NUMBERS}))[\]】]",
    rf"[\[【](?=[^\[\]【】\n]{{0,200}}[-_:/#.])(?=[^\[\]【】\n]{{0,200}}\d)(?P<id>{_ID}(?:\s*[,;，；、]\s*{_ID})*)[\]】]",
    rf"<?(?P<text>(?P<id>{_URL}))>?",  # it may be what the sentence says
)
GROUPS: Final = ("rank", "rank0", "id", "text")
_CITING: Final = frozenset(GROUPS[:3])


@cache
def compile_patterns(patterns: tuple[str, ...]) -> Sequence[re.Pattern[str]]:
    """The patterns, the built-in ones where there are none; raises ValueError that says what is wrong with one."""
    return [_compile(pattern) for pattern in patterns or BUILT_IN]


def _compile(pattern: str) -> re.Pattern[str]:
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise ValueError(
            f"{pattern!r} is not a regular expression: {error}; a backslash is written as it is in '…'"
        ) from None
    names = compiled.groupindex.keys()
    if not names & _CITING:
        raise ValueError(f"{pattern!r} names nothing that is cited; write (?P<rank>\\d+) or (?P<id>…) into it")
    if unknown := sorted(names - set(GROUPS)):
        raise ValueError(f"{pattern!r} has a group {unknown[0]!r}; allowed are {', '.join(GROUPS)}")
    if compiled.fullmatch(""):
        raise ValueError(f"{pattern!r} is found where nothing stands; write what a mark begins with into it")
    return compiled
