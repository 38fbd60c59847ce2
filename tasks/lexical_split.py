"""Splitting a text into statements: lines (lists, tables, headings, code) first, then sentences, then clauses that stand
on their own. What asserts nothing is left out: greetings, refusals, questions, filler, lead-ins. Sentence ends come from
`lexical_sentences`; the judge's extract is this.
"""

import re
from collections.abc import Iterator

from tasks.lexical_sentences import read_alternatives, split_sentences

_BULLET = re.compile(r"^\s*(?:[-*+•●○▪‣·◦–—]\s+|[•●▪]|\(?(?:\d{1,3}|[a-zA-Z]|[ivx]{1,4})[.)]\s+|[（(]?(?:\d{1,2}|[一二三四五六七八九十]{1,3})[)）、]\s*|[①-⑳]\s*)")
_HEADING = re.compile(r"^\s*#{1,6}\s+")
_QUOTE = re.compile(r"^\s*(?:>\s*)+")
_TABLE_RULE = re.compile(r"^\s*\|?\s*:?-{2,}:?\s*(?:\|\s*:?-{2,}:?\s*)*\|?\s*$")
_RULE = re.compile(r"^\s*(?:[-*_=]\s*){3,}$")
_FENCE = re.compile(r"^\s*(?:```|~~~)")
_LINK = re.compile(r"!?\[([^\]]*)\]\((?:[^()\s]|\([^()]*\))*(?:\s+\"[^\"]*\")?\)")
_EMPHASIS = re.compile(r"(\*\*\*|\*\*|__|~~)(?=\S)(.+?)(?<=\S)\1|(?<![\w*])\*(?=\S)([^*\n]+?)(?<=\S)\*(?![\w*])|(?<!\w)_(?=\S)([^_\n]+?)(?<=\S)_(?!\w)")
_CODE = re.compile(r"`([^`\n]+)`")
_CITATION = re.compile(r"\s*\[(?:\d{1,3}|C\d{1,3})(?:\s*[,-]\s*(?:\d{1,3}|C\d{1,3}))*\]|\s*【\d+[^】]*】")

_VERB = re.compile(
    r"\b(?:is|are|was|were|am|be|been|has|have|had|do|does|did|can|could|will|would|shall|should|may|might|must|"
    r"became|began|went|made|took|won|wrote|led|held|rose|fell|grew|sold|bought|built|gave|got|came|ran|said|saw|left|"
    r"lost|met|paid|sent|spent|stood|told|kept|knew|found|became|include|includes|contain|contains|need|needs|"
    r"use|uses|make|makes|provide|provides|become|becomes|[a-z]{3,}ed)\b|n't\b|'s\s+(?:a|an|the|not|been)\b",
    re.IGNORECASE,
)
_HAN = re.compile(r"[\u3400-\u9fff]")
_WORDS = re.compile(r"[A-Za-z][\w'’-]*|\d[\d.,]*|[\u3400-\u9fff]")

_REFUSAL = re.compile(
    r"\b(?:i|we)(?:'m| am|'re| are)?\s+(?:(?:really|truly|very|so)\s+)?(?:sorry|afraid|unable|not (?:able|sure|certain|aware)|not familiar)\b"
    r"|\b(?:i|we)\s+(?:do not|don't|did not|didn't|cannot|can't|could not|couldn't|can not|was unable|were unable)\s+"
    r"(?:\w+\s+){0,2}?(?:know|find|answer|have|provide|determine|tell|locate|help|assist|access|see|confirm|verify|recall|think)\b"
    r"|\bas an? (?:ai|artificial intelligence|language model|assistant)\b"
    r"|\b(?:no|not enough|insufficient|not any) (?:relevant |specific |sufficient |further )?(?:information|answer|details?|context|data|mention)\b.{0,60}"
    r"\b(?:available|provided|found|given|context|documents?|passages?|text|in the)\b"
    r"|\b(?:the |this )?(?:provided |given |retrieved |above )?(?:context|passages?|documents?|text|information|sources?|articles?)\s+(?:\w+\s+){0,2}?"
    r"(?:does not|doesn't|do not|don't|did not|didn't|cannot|lacks?)\b"
    r"|^(?:unknown|unanswerable|n/?a|none|no answer|not (?:known|specified|mentioned|provided|available)|no idea|idk|i have no idea)[.!]*$"
    r"|\bit is (?:not (?:clear|specified|mentioned|stated|possible to (?:say|tell|answer|determine))|unclear|impossible to (?:say|tell|answer|determine))\b",
    re.IGNORECASE,
)
_REFUSAL_ZH = re.compile(
    r"(?:抱歉|对不起|很遗憾|不好意思).{0,30}(?:无法|不能|没有|不知道|未能|不清楚|不了解|没法)|(?:^|，|,|我们?|目前|暂时|因此|所以)(?:无法|不能|未能|没法|没能)(?:准确|确定|直接|从中|在.{0,20}中)?(?:地)?(?:回答|找到|提供|确定|得知|判断|获取|确认|查到|给出)"
    r"|(?:我|本人)(?:也)?(?:并)?(?:不知道|不清楚|不了解|不确定|没有找到|没找到|没有相关)|^(?:不知道|不清楚|未知|不详|无|暂无|没有答案|不确定|不会)[。！!.]*$"
    r"|(?:没有|未|并未|暂无|缺乏|没).{0,12}(?:提到|提及|提供|说明|找到|包含|涉及|给出|相关信息|相关内容|相关资料|足够的?信息).{0,20}(?:信息|内容|资料|答案)?[。！]?$"
    r"|作为(?:一个|一名)?(?:AI|人工智能|语言模型|智能助手)"
)
_FILLER = re.compile(
    r"^(?:(?:hi|hello|hey|greetings|dear \w+|good (?:morning|afternoon|evening|question)|great question|thanks?(?: you)?|thank you|sure|certainly|of course|"
    r"absolutely|yes|no|ok(?:ay)?|right|well|sorry|please|welcome|bye|goodbye|cheers)\b(?:[\s,!.]+(?:there|all|everyone|so much|very much|for \w+(?: \w+){0,6}|thing|you|it))*[\s,!.]*)+$"
    r"|\b(?:i hope (?:this|that|it)|hope (?:this|that) helps|(?:please )?let me know|feel free to|(?:please )?don't hesitate|do not hesitate|happy to help|glad to (?:help|assist)"
    r"|i(?:'d| would) be (?:happy|glad)|if you (?:have|need|want) (?:any|more|further|additional)|is there anything else|how can i help|i'm here to help)\b"
    r"|^(?:sure|certainly|of course|okay|ok|absolutely)?[,!.\s]*(?:here(?: is|'s| are)|below (?:is|are)|the following (?:is|are)|following (?:is|are))\b[^.]*[:：.]?$"
    r"|^(?:in (?:summary|conclusion|short)|to summari[sz]e|overall|note|answer|example|summary|conclusion|references?|sources?)[\s:：,.]*$",
    re.IGNORECASE,
)
_FILLER_ZH = re.compile(
    r"^(?:(?:你好|您好|嗨|大家好|谢谢|感谢您?的?(?:提问|咨询|来信|支持)?|不客气|再见|好的|当然(?:可以)?|没问题|是的|不是|对的|嗯|很高兴为您(?:服务|解答)|亲)[，,！!。.~～呀啊哦\s]*)+$"
    r"|希望.{0,16}(?:帮助|有用|有所帮助|帮到)|如果?(?:您|你).{0,24}(?:随时|请告诉|请联系|继续(?:提问|问我))|(?:欢迎|请)随时|如有(?:其他|任何|更多|疑问).{0,30}$"
    r"|^(?:以下|下面|如下)(?:是|为|列出).{0,40}[:：]?$|^(?:总之|综上所述|总的来说|总结|答案?|参考资料|来源|注意?)[:：，,。]*$|很高兴(?:为|能|回答)"
)
_QUESTION_END = re.compile(r"(?:[?？]|吗[。]?|呢[。]?)[\"'”’」』)）]*$")
_LEAD_END = re.compile(r"[:：]\s*$")
_ADDRESS = re.compile(r"^(?:https?://|www\.)\S+$")

_SEMICOLON = re.compile(r"\s*[;；]\s*")
_CONNECTIVE = re.compile(
    r"^(?:however|therefore|moreover|furthermore|in addition|additionally|also|besides|thus|hence|consequently|as a result|nevertheless|nonetheless|meanwhile|"
    r"for (?:example|instance)|finally|lastly|overall|in (?:summary|conclusion|short)|to summari[sz]e|based on (?:the )?(?:provided |given )?(?:context|documents?|passages?|information)|"
    r"according to (?:the )?(?:provided |given )?(?:context|documents?|passages?|information)|and|but|so|sure|certainly|of course)\s*[,，!.]\s*",
    re.IGNORECASE,
)
_CONNECTIVE_ZH = re.compile(
    r"^(?:因此|所以|然而|但是|不过|此外|另外|同时|而且|并且|总之|综上所述|总的来说|例如|比如|最后|首先|其次|好的|当然|(?:根据|基于)(?:以上|上述|提供的|给定的|所提供的)?(?:上下文|信息|资料|内容|文档|材料))[，,：:]\s*"
)
# A clause boundary: a conjunction before a new subject with a verb of its own.
_CLAUSE = re.compile(
    r",?\s+(?:and|but|while|whereas|yet|so)\s+(?=(?:it|he|she|they|we|you|i|this|that|these|those|there|the|a|an|its|his|her|their|[A-Z][\w'-]*)\b)"
)
_CLAUSE_ZH = re.compile(r"[，,]\s*(?=(?:但是|但|而且|并且|同时|此外|另外|然而|不过|后者|前者|其中|二是|三是|四是|五是|其二|其三|第[二三四五六]|另一[类种个方])(?![是的]?$))")
_SHARED_SUBJECT = re.compile(
    r"^(?P<subject>(?:[\w'’.()-]+\s+){1,7}?)(?P<verb>is|are|was|were|has|have|had|can|will)\s+(?P<first>[^,;]+?),?\s+and\s+(?P=verb)\s+(?P<second>[^;]+)$"
)


def _strip_markup(line: str) -> str:
    if "](" in line:
        line = _LINK.sub(r"\1", line)
    if "*" in line or "_" in line or "~~" in line:
        line = _EMPHASIS.sub(lambda found: found[2] or found[3] or found[4], line)
    if "`" in line:
        line = _CODE.sub(r"\1", line)
    if "[" in line or "【" in line:
        line = _CITATION.sub("", line)
    return re.sub(r"\s+", " ", line).strip()


def _has_verb(text: str) -> bool:
    return _VERB.search(text) is not None or len(_HAN.findall(text)) >= 6


def _n_words(text: str) -> int:
    return len(_WORDS.findall(text))


def _table_statements(rows: list[list[str]]) -> Iterator[str]:
    """`Name: Ann; Age: 3` for each row under a header row; a table of one row gives its cells."""
    if len(rows) == 1:
        yield " | ".join(cell for cell in rows[0] if cell)
        return
    header, *body = rows
    for row in body:
        cells = [f"{name}: {cell}" if name else cell for name, cell in zip(header, row, strict=False) if cell]
        if cells:
            yield "; ".join(cells)


def _cells(line: str) -> list[str]:
    return [_strip_markup(cell) for cell in line.strip().strip("|").split("|")]


def _read_blocks(text: str) -> Iterator[str]:
    """The prose of a text, one block a time: paragraphs, list items (with their lead-in when they are fragments), rows."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    position, lead, paragraph = 0, "", ""
    while position < len(lines):
        line = lines[position]
        position += 1
        if _FENCE.match(line):
            end = next((i for i in range(position, len(lines)) if _FENCE.match(lines[i])), len(lines))
            code = " ".join(part.strip() for part in lines[position:end] if part.strip())
            position = end + 1
            yield from (block for block in (paragraph, code) if block)
            paragraph = ""
            continue
        if line.count("|") >= 2 and (position < len(lines) and _TABLE_RULE.match(lines[position])):
            end = position
            while end < len(lines) and "|" in lines[end]:
                end += 1
            if paragraph:
                yield paragraph
                paragraph = ""
            yield from _table_statements([_cells(row) for row in lines[position - 1 : end] if not _TABLE_RULE.match(row)])
            position = end
            continue
        line = _QUOTE.sub("", line)
        plain = _strip_markup(_HEADING.sub("", line))
        bullet = _BULLET.match(line)
        if not plain or _RULE.match(line) or _HEADING.match(line) or bullet or not _continues(paragraph, plain):
            if paragraph:
                yield paragraph
            paragraph = ""
        if not plain or _RULE.match(line) or _HEADING.match(line):
            lead = "" if _HEADING.match(line) else lead
            continue
        if bullet:
            item = _strip_markup(line[bullet.end() :])
            paragraph = f"{lead}: {item}" if lead and item and not _has_verb(item) and _n_words(item) <= 8 else item
            if _LEAD_END.search(item):
                paragraph = ""
            continue
        if _LEAD_END.search(plain):
            lead = _LEAD_END.sub("", plain) if _n_words(plain) <= 14 else ""
            lead = "" if _FILLER.search(lead) or _FILLER_ZH.search(lead) else lead
            continue
        paragraph = f"{paragraph} {plain}".strip() if not _HAN.search(plain[:1]) else paragraph + plain
        if not bullet and not lines[position - 1].startswith((" ", "\t")):
            lead = "" if paragraph else lead
    if paragraph:
        yield paragraph


def _continues(paragraph: str, line: str) -> bool:
    """Whether a line goes on with the sentence of the paragraph before it (text wrapped at a fixed width)."""
    if not paragraph or re.search(r"[.!?。！？:：；;]['\"”’)）]*$", paragraph):
        return False
    return line[0].islower() or paragraph[-1] in ",，、" or len(paragraph) >= 60


def _split_clauses(sentence: str) -> Iterator[str]:
    for part in _split_semicolons(sentence):
        shared = _SHARED_SUBJECT.match(part)
        if shared is not None and not _VERB.search(shared["subject"]):
            yield f"{shared['subject']}{shared['verb']} {shared['first']}"
            yield f"{shared['subject']}{shared['verb']} {shared['second']}"
            continue
        yield from _split_coordinated(part)


def _split_semicolons(sentence: str) -> list[str]:
    parts = [part for part in _SEMICOLON.split(sentence) if part]
    if len(parts) < 2 or _depth_at_semicolon(sentence):
        return [sentence]
    if _HAN.search(sentence) or all(_has_verb(part) for part in parts):
        return parts
    return [sentence]


def _depth_at_semicolon(sentence: str) -> bool:
    """Whether some semicolon stands inside brackets or quotes."""
    depth = 0
    for character in sentence:
        depth += (character in "([{（【「《“") - (character in ")]}）】」》”")
        if character in ";；" and depth > 0:
            return True
    return False


def _split_coordinated(part: str) -> Iterator[str]:
    """Cut at conjunctions where what stands on both sides is a clause with a verb and three words or more."""
    pattern = _CLAUSE_ZH if _HAN.search(part) else _CLAUSE
    start = 0
    for found in pattern.finditer(part):
        left, right = part[start : found.start()], part[found.end() :]
        if min(_n_words(left), _n_words(right)) < (6 if pattern is _CLAUSE_ZH else 3):
            continue
        if pattern is _CLAUSE and not ("," in found[0] and _has_verb(left) and _verb_near_start(right)):
            continue
        if left.count("(") != left.count(")") or left.count('"') % 2 or left.count("“") != left.count("”") or left.count("（") != left.count("）"):
            continue
        yield left
        start = found.end()
    yield part[start:]


def _verb_near_start(clause: str) -> bool:
    return _VERB.search(" ".join(clause.split()[:6])) is not None


def asserts_something(sentence: str) -> bool:
    """Whether a sentence states anything: no question, greeting, refusal, filler, bare address or lead-in."""
    if not re.search(r"[^\W_]", sentence) or _ADDRESS.match(sentence):
        return False
    if _QUESTION_END.search(sentence) or _LEAD_END.search(sentence):
        return False
    patterns = (_REFUSAL_ZH, _FILLER_ZH) if _HAN.search(sentence) else (_REFUSAL, _FILLER)
    plain = sentence.replace("’", "'").strip()
    return not any(pattern.search(plain) for pattern in patterns)


def _trim(clause: str) -> str:
    for pattern in (_CONNECTIVE, _CONNECTIVE_ZH):
        clause = pattern.sub("", clause, count=1)
    return clause.strip().strip(",，;；").strip()


def split_statements(text: str, question: str = "") -> list[str]:
    """The statements of a text in order, none twice; empty when the text asserts nothing."""
    if len(read_alternatives(text)) > 1:
        return [" ".join(text.split())]  # spellings of one gold answer
    statements: dict[str, None] = {}
    for block in _read_blocks(text):
        for sentence in split_sentences(block):
            if not asserts_something(sentence):
                continue
            for clause in _split_clauses(sentence):
                statement = _trim(clause)
                if statement == sentence or (statement and asserts_something(statement)):
                    statements.setdefault(statement)
    return list(statements)
