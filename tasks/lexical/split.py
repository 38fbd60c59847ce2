"""Splitting a text into statements, the judge's extract: blocks (`lexical_blocks`), sentences (`lexical_sentences`),
then clauses that stand on their own; what asserts nothing (`lexical_silence`) is left out. Clauses are cut only
where both parts have a verb, because a statement too many costs more agreement than a statement too long.
"""

import re
from collections.abc import Iterator

from evalhouse.tasks.lexical.blocks import count_words, has_verb, read_blocks
from evalhouse.tasks.lexical.sentences import read_alternatives, split_sentences
from evalhouse.tasks.lexical.silence import asserts_something

_HAN = re.compile(r"[\u3400-\u9fff]")
_NUMBERING = re.compile(r"^[（(]?\d{1,2}(?:[.)]\s+|[)）、]\s*)(?=\S)")
_SEMICOLON = re.compile(r"\s*[;；]\s*")
_SOURCES = r"(?:context|documents?|passages?|information|text|sources?)"
_CONNECTIVE = re.compile(
    r"^(?:however|therefore|moreover|furthermore|in addition|additionally|also|besides|thus|hence|consequently|"
    r"as a result|nevertheless|nonetheless|meanwhile|for (?:example|instance)|finally|lastly|overall|"
    r"in (?:summary|conclusion|short)|to summari[sz]e|(?:based on|according to) (?:the )?(?:provided |given )?"
    rf"{_SOURCES}|and|but|so|sure|certainly|of course)\s*[,，!.]\s*",
    re.IGNORECASE,
)
_CONNECTIVE_ZH = re.compile(
    r"^(?:因此|所以|然而|但是|不过|此外|另外|同时|而且|并且|总之|综上所述|总的来说|例如|比如|最后|首先|其次|好的|当然|"
    r"(?:根据|基于)(?:以上|上述|提供的|给定的|所提供的)?(?:上下文|信息|资料|内容|文档|材料))[，,：:]\s*|^(?:但是|但|而且|并且|不过|然而)(?=[\u3400-\u9fff]{2})"
)
# A clause boundary: a comma and a conjunction before a new subject.
_CLAUSE = re.compile(
    r",\s+(?:and|but|while|whereas|yet|so)\s+(?=(?:it|he|she|they|we|you|i|this|that|these|those|there|the|a|an|its|"
    r"his|her|their|[A-Z][\w'-]*)\b)"
)
_CLAUSE_ZH = re.compile(
    r"[，,]\s*(?=(?:但是|但|而且|并且|同时|此外|另外|然而|不过|后者|前者|其中|[二三四五]是|其[二三]|第[二三四五六]|另一[类种个方]))"
)
_SHARED_SUBJECT = re.compile(
    r"^(?P<subject>(?:[\w'’.()-]+\s+){1,7}?)(?P<verb>is|are|was|were|has|have|had|can|will)\s+(?P<first>[^,;]+?),?\s+"
    r"and\s+(?P=verb)\s+(?P<second>[^;]+)$"
)
_SHORTEST_CLAUSE = 3  # words on each side of a cut
_SHORTEST_CLAUSE_ZH = 6  # characters
_BRACKETS = {"(": ")", "[": "]", "{": "}", "（": "）", "【": "】", "「": "」", "《": "》", "“": "”"}


def _is_balanced(text: str) -> bool:
    """Whether every bracket and quotation that opens in a piece also closes in it."""
    return text.count('"') % 2 == 0 and all(text.count(a) == text.count(b) for a, b in _BRACKETS.items())


def _split_clauses(sentence: str) -> Iterator[str]:
    for part in _split_semicolons(sentence):
        shared = _SHARED_SUBJECT.match(part)
        if shared is not None and not has_verb(shared["subject"]):
            yield f"{shared['subject']}{shared['verb']} {shared['first']}"
            yield f"{shared['subject']}{shared['verb']} {shared['second']}"
        else:
            yield from _split_coordinated(part)


def _split_semicolons(sentence: str) -> list[str]:
    parts = [part for part in _SEMICOLON.split(sentence) if part]
    if len(parts) < 2 or not all(_is_balanced(part) for part in parts):
        return [sentence]
    return parts if _HAN.search(sentence) or all(has_verb(part) for part in parts) else [sentence]


def _split_coordinated(part: str) -> Iterator[str]:
    """Cut at conjunctions where what stands on both sides is a clause of its own."""
    chinese = _HAN.search(part) is not None
    shortest = _SHORTEST_CLAUSE_ZH if chinese else _SHORTEST_CLAUSE
    start = 0
    for found in (_CLAUSE_ZH if chinese else _CLAUSE).finditer(part):
        left, right = part[start : found.start()], part[found.end() :]
        if min(count_words(left), count_words(right)) < shortest or not _is_balanced(left):
            continue
        if chinese or (has_verb(left) and has_verb(" ".join(right.split()[:6]))):
            yield left
            start = found.end()
    yield part[start:]


def _trim(clause: str) -> str:
    """A clause without its list number, leading connective and hanging punctuation; capitalised as it was."""
    bare = _NUMBERING.sub("", clause.strip())
    trimmed = _CONNECTIVE.sub("", _CONNECTIVE_ZH.sub("", bare, count=1), count=1).strip().strip(",，;；").strip()
    return trimmed[:1].upper() + trimmed[1:] if bare[:1].isupper() else trimmed


def split_statements(text: str) -> list[str]:
    """The statements of a text in order, none twice; empty when the text asserts nothing.

    Several spellings of one gold answer (`alias / alias`) stay one statement. An answer that is one name or number is a
    statement too: with the question it says something.
    """
    if len(read_alternatives(text)) > 1:
        return [" ".join(text.split())]
    statements: dict[str, None] = {}
    for block in read_blocks(text):
        for sentence in split_sentences(block):
            if not asserts_something(sentence):
                continue
            for clause in _split_clauses(sentence):
                statement = _trim(clause)
                if statement == sentence or (statement and asserts_something(statement)):
                    statements.setdefault(statement)
    return list(statements)
