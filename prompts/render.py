r"""Rendering the data of a request into blocks, and the errors of prompts.

    PromptError         a prompt file is invalid, or a prompt got other data than it declares
    PromptProblem       one problem of one prompt file

The last message of a request has the data and nothing else: one block per variable, each tag alone on its line, with a
nonce that no text could know. Lists have one item after the other, the id in front; a line after the first of an item
is indented, so that only ids of items are in brackets at the start of a line:

    <question 1a2b3c4d>
    How long does the crossing take?
    </question 1a2b3c4d>
    <contexts 1a2b3c4d>
    [C1] Crossing: 40 minutes.
        In winter: 55 minutes.
    </contexts 1a2b3c4d>

Texts are neutralised first: everything that could pass for one of our marks is disabled. A text may have tags of
blocks or ids of items, by chance or on purpose, also in full-width letters, in letters of another script that look the
same, or with invisible characters in between. Each of them gets one visible backslash behind its opening bracket
(`<\/question>`, `[\A2]`), as do the control tokens with which chat templates switch the speaker (`<|im_end|>`,
`[INST]`), because some self-hosted endpoints obey them inside a message. Some tokenizers begin with Unicode's NFKC, so
nothing may become a mark by that either. Every kind of line break becomes a plain one. Nothing else is changed.
`loader` puts the instructions and the worked examples in front.
"""

import hashlib
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from string import ascii_letters, ascii_lowercase
from typing import Any, Final, Literal

import yaml


@dataclass(frozen=True)
class PromptProblem:
    """One problem of a prompt file: its place, the value found and the values allowed.

    `file` is added by the reader of the file.
    """

    key: str
    message: str
    file: str = ""

    def __str__(self) -> str:
        return f"{self.file}: {self.key}: {self.message}" if self.key else f"{self.file}: {self.message}"


class PromptError(Exception):
    """A prompt file is invalid, or a prompt got other data than it declares.

    `problems` has all problems of the files, each a line of the message; it is empty if the data are wrong.
    """

    def __init__(self, message: str = "", *, problems: Sequence[PromptProblem] = ()) -> None:
        super().__init__(message or "\n".join(map(str, problems)))
        self.problems = tuple(problems)


_CHARACTERS: Mapping[str, Any] = yaml.load(
    Path(__file__).with_name("look_alikes.yaml").read_text(encoding="utf-8"),
    getattr(yaml, "CSafeLoader", yaml.SafeLoader),
)
_INVISIBLE: str = _CHARACTERS["invisible"]
_ANGLE_OPEN: str = _CHARACTERS["angle_open"]
_ANGLE_CLOSE: str = _CHARACTERS["angle_close"]
_SQUARE_OPEN: str = _CHARACTERS["square_open"]
_SQUARE_CLOSE: str = _CHARACTERS["square_close"]
_SLASH: str = _CHARACTERS["slash"]
_UNDERSCORE: str = _CHARACTERS["underscore"]
_Spellings = Mapping[str, str]


_FORMS: dict[str, str] = {}
"""The signs that NFKC takes for a Latin letter, or for a group of letters with a separate sign."""
for _code in (code for first, end in _CHARACTERS["styled_letters"] for code in range(first, end)):
    _folded = unicodedata.normalize("NFKC", chr(_code))
    if _folded.isascii() and _folded.isalpha():
        _FORMS[_folded] = _FORMS.get(_folded, "") + chr(_code)
_VARIANTS = {letter: letter + letter.upper() + _CHARACTERS["look_alikes"].get(letter, "") for letter in ascii_lowercase}
"""The same for lower case, with upper case and everything that looks like the letter."""
for _spelled, _signs in _FORMS.items():
    _VARIANTS[_spelled.lower()] = _VARIANTS.get(_spelled.lower(), "") + _signs
for _place, _letter in enumerate(ascii_lowercase):
    _VARIANTS[_letter] += "".join(chr(first + _place) for first in _CHARACTERS["alphabets"]) + chr(0x249C + _place)
_ASCII_VARIANTS = {letter: letter + letter.upper() for letter in ascii_lowercase}
_ASCII_INVISIBLE = "\x00-\x08\x0e-\x1b\x7f"
# One of the closing brackets is a letter in its script.
_NO_LETTER = rf"(?:(?![^\W\d_])|(?=[{_ANGLE_CLOSE}]))"
_PUNCTUATION_FORMS: _Spellings = _CHARACTERS["punctuation_forms"]


def _spell(word: str, variants: _Spellings, unseen: str) -> str:
    """Return a pattern for a word, each letter in any of its variants; some pairs of letters have a separate sign."""
    if not word:
        return ""
    heads = {word[:1]: variants.get(word[:1], word[:1])}
    heads |= {word[:length]: variants[word[:length]] for length in (2, 3) if word[:length] in variants}
    ways = [
        f"[{re.escape(signs)}]{unseen}{_spell(word[len(head) :], variants, unseen)}" for head, signs in heads.items()
    ]
    return ways[0] if len(ways) == 1 else f"(?:{'|'.join(ways)})"


def _make_token_forms(forms: _Spellings, punctuation: _Spellings) -> dict[str, str]:
    """Return for every character of a token the signs that NFKC takes for it; upper and lower case differ here."""
    plain = {char: char + forms.get(char, "") for char in ascii_letters}
    marks = {mark: mark + punctuation.get(mark, "") for mark in _PUNCTUATION_FORMS}
    return {**{spelling: signs for spelling, signs in forms.items() if len(spelling) > 1}, **plain, **marks}


_ASCII_TOKEN_FORMS = _make_token_forms({}, {})
_TOKEN_FORMS = _make_token_forms(_FORMS, _PUNCTUATION_FORMS)
_ASCII_UNSEEN = bytes([*range(0x09), *range(0x0E, 0x1C), 0x7F])
_UNSEEN = re.compile(f"[{_INVISIBLE}]")
_BRACKETS = re.compile(f"[{_ANGLE_OPEN}{_SQUARE_OPEN}]")


class _Marks:
    """Patterns for the opening brackets of marks: `tags` of blocks and control tokens, `words` in square brackets.

    An opening tag counts when its name is glued to the bracket, or when at most a code is between the name and a
    closing bracket: `if guess < answer` is code and not a tag. Tokens count in `forms` alone: a look-alike means
    nothing to a template.
    """

    def __init__(self, names: Iterable[str], *, variants: _Spellings, forms: _Spellings, invisible: str) -> None:
        # Quantifiers are possessive (`*+`): a text made to keep the pattern busy costs no more than its length.
        unseen, gap = f"[{invisible}]*+", f"[\\s{invisible}]*+"
        spelled = []
        for name in sorted(names, key=len, reverse=True):
            words = (_spell(word, variants, unseen) for word in name.split("_"))
            spelled.append(f"[{_UNDERSCORE}\\s{invisible}]*+".join(words))
        slashes = f"(?:[{_SLASH}]{gap})"
        tag = (
            f"(?:(?P<glued>{gap}{slashes}++|{unseen}(?!\\s))|{gap})(?:{'|'.join(spelled)}){_NO_LETTER}"
            f"(?(glued)|{gap}[0-9A-Za-z]*+{gap}[{_ANGLE_CLOSE}])"
        )
        # A look at the first letter spares most brackets of HTML and of formulas the long way.
        initials = "".join(signs for spelling, signs in variants.items() for name in names if name.startswith(spelling))
        first = f"(?={gap}{slashes}*+[{initials}])"
        # Control tokens: `<|…|>`, `<<SYS>>`, and single ones such as `</s>`.
        bar, close, slash = forms["|"], forms[">"], f"(?:(?:{_spell('/', forms, unseen)}))?"
        named = f"{unseen}[{bar}][^\\s{bar}{forms['<']}{close}]{{1,40}}+[{bar}]{unseen}[{close}]"
        opening, system = (f"(?:{_spell(word, forms, unseen)})" for word in ("<", "SYS>>"))
        single = "|".join(_spell(token, forms, unseen) for token in _CHARACTERS["tokens"])
        tokens = f"{named}|{unseen}(?:{opening})?{slash}{system}|{unseen}{slash}(?:{single})"
        self.tags = re.compile(f"[{_ANGLE_OPEN}](?={first}{tag}|{tokens})")
        control = "|".join(_spell(f"{word}]", forms, unseen) for word in _CHARACTERS["control_words"])
        self.words = re.compile(f"[{re.escape(forms['['])}](?={unseen}(?:{_spell('/', forms, unseen)})?(?:{control}))")


class Neutraliser:
    """Neutralises texts for the marks of one set of block names and id prefixes."""

    def __init__(self, *, names: Iterable[str], prefixes: Iterable[str]) -> None:
        self._names = tuple(names)
        self._ascii_marks = _Marks(
            self._names, variants=_ASCII_VARIANTS, forms=_ASCII_TOKEN_FORMS, invisible=_ASCII_INVISIBLE
        )
        # The opening bracket of anything that resembles an id at the start of a line, also behind a bullet or quotes.
        # The fillers are invisible, but letters to `re`. The two alternatives of `lead` share no character.
        letter = "".join(_VARIANTS[prefix.lower()] for prefix in prefixes)
        gap = f"[\\s{_INVISIBLE}]*+"
        lead = "\n(?:[^\\w\n]|[_\u115f\u1160\u3164\uffa0])*"
        self._ids = re.compile(
            f"{lead}[{_SQUARE_OPEN}](?={gap}[{letter}](?:{gap}[{_CHARACTERS['digit']}])+{gap}[{_SQUARE_CLOSE}])"
        )

    @cached_property
    def _marks(self) -> _Marks:
        # Takes a quarter of a second to compile; neither a start without a judge nor plain ASCII needs it.
        return _Marks(self._names, variants=_VARIANTS, forms=_TOKEN_FORMS, invisible=_INVISIBLE)

    def neutralise_lines(self, text: str) -> list[str]:
        r"""Split a text into lines that have nothing like a tag, an id at their start, or a control token.

        A line ends where `str.splitlines` ends one (`\r`, `\x0b`, `\x85`, U+2028, …); a line break at the very end
        starts no further line. Half a surrogate pair, which no endpoint can be sent, becomes U+FFFD.
        """
        # Most texts have no bracket at all, which is far cheaper to find out than with the patterns.
        if text.isascii():
            if "<" not in text and "[" not in text:
                return text.splitlines()
            marks = self._ascii_marks
        else:
            try:
                text.encode()
            except UnicodeEncodeError:
                text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
            if not _BRACKETS.search(text):
                return text.splitlines()
            marks = self._marks
        lines = marks.tags.sub(r"\g<0>\\", text).splitlines()
        # Every line gets a break in front, the first one too, so that the pattern can begin with a plain character,
        # for which `re` has a fast search; `^` has none.
        text = self._ids.sub(r"\g<0>\\", "\n" + "\n".join(lines))
        return marks.words.sub(r"\g<0>\\", text).split("\n")[1:] if lines else lines


def fold_text(text: str) -> str:
    """Return a text in lower case and in NFKC's form without invisible characters, to look something up in it."""
    if text.isascii():  # the same in a tenth of the time
        return text.encode().translate(None, _ASCII_UNSEEN).decode().lower()
    return _UNSEEN.sub("", unicodedata.normalize("NFKC", text)).lower()


CONVERSATION: Final = "conversation"
TURN_PREFIX: Final = "T"
"""The first letter of the ids of turns."""
_CONVERSATION_WORDS: Final = Path(__file__).with_name("conversation.yaml")
_FALLBACK_LANGUAGE: Final = "en"
BlockKind = Literal["text", "items"]


@dataclass(frozen=True, kw_only=True)
class Block:
    """The content of a block: a text, or items whose ids begin with `prefix` (empty for a text).

    The name and the prefix of a block that `is_apart` are marks only in requests with that block: the texts of other
    requests, and with them their stored replies, stay the same as before there was such a block.
    """

    kind: BlockKind
    prefix: str = ""
    is_apart: bool = False


# All blocks, in the order in which they are written.
BLOCKS: dict[str, Block] = {
    "question": Block(kind="text"),
    "answer": Block(kind="text"),
    "ground_truth": Block(kind="text"),
    "contexts": Block(kind="items", prefix="C"),
    "answer_statements": Block(kind="items", prefix="A"),
    "ground_truth_statements": Block(kind="items", prefix="G"),
    "text": Block(kind="text"),
    "count": Block(kind="text"),
    "question_kind": Block(kind="text"),
    "conversation": Block(kind="text"),
    "old_contexts": Block(kind="items", prefix="O"),
    "contexts_role": Block(kind="text"),
    "schema": Block(kind="text"),
    "expected_sql": Block(kind="text"),
    "sql": Block(kind="text"),
    "first_answer": Block(kind="text", is_apart=True),
    "second_answer": Block(kind="text", is_apart=True),
    "questions": Block(kind="items", prefix="Q", is_apart=True),
}
INDENT = "    "


@dataclass(frozen=True, kw_only=True)
class Item:
    """One text of a list with the short id that the judge answers by: A1, G1, C1 and so on."""

    id: str
    text: str


BlockValue = str | Sequence[Item]


def list_texts(value: BlockValue) -> list[str]:
    """Return the texts of a block, one or as many as it has items."""
    return [value] if isinstance(value, str) else [item.text for item in value]


def join_texts(data: Mapping[str, BlockValue]) -> str:
    """Return all texts of the blocks, with line breaks between them."""
    return "\n".join(text for value in data.values() for text in list_texts(value))


@dataclass(frozen=True, kw_only=True)
class Message:
    """One message of a chat request."""

    role: Literal["system", "human", "ai"]
    content: str


_ID = re.compile(r"[A-Z][1-9][0-9]*", re.ASCII)
_TURNS = Block(kind="items", prefix=TURN_PREFIX)


@cache
def _make_neutraliser(apart: frozenset[str], *, has_turns: bool) -> Neutraliser:
    """Return the neutraliser for the blocks of all requests and the ones `apart`.

    With turns, ids of turns are marks too; without them [T1] is a text like any other.
    """
    blocks = {name: block for name, block in BLOCKS.items() if name in apart or not block.is_apart}
    prefixes = [block.prefix for block in blocks.values() if block.prefix]
    return Neutraliser(names=list(blocks), prefixes=[*prefixes, TURN_PREFIX] if has_turns else prefixes)


def render_blocks(variables: Sequence[str], data: Mapping[str, BlockValue]) -> str:
    """Return the text of a message with `data`, whose keys are exactly `variables` (names in BLOCKS, in its order).

    Equal data gives an equal text. A `conversation` is a text, or items: its turns. PromptError: a block is missing,
    one too many or of the wrong kind, an id is malformed or given twice.
    """
    if data.keys() != set(variables):
        missing = ", ".join(sorted(set(variables) - data.keys())) or "none"
        extra = ", ".join(sorted(data.keys() - set(variables))) or "none"
        raise PromptError(
            f"wrong blocks: missing {missing}; not declared {extra}; the prompt takes exactly {', '.join(variables)}"
        )
    apart = frozenset([name for name in variables if BLOCKS[name].is_apart])
    neutraliser = _make_neutraliser(apart, has_turns=not isinstance(data.get(CONVERSATION, ""), str))
    bodies = [_render_body(name, data[name], neutraliser) for name in variables]
    nonce = derive_nonce("\n".join(bodies))
    parts = [f"<{name} {nonce}>\n{body}</{name} {nonce}>" for name, body in zip(variables, bodies, strict=True)]
    return "\n".join(parts)


def _render_body(name: str, value: BlockValue, neutraliser: Neutraliser) -> str:
    """Return the lines between the tags, each with its line break; nothing for an empty text or list."""
    block = _TURNS if name == CONVERSATION and not isinstance(value, str) else BLOCKS[name]
    if isinstance(value, str):
        if block.kind == "items":
            raise PromptError(f"block '{name}' is a text; it must be a list of items with ids like {block.prefix}1")
        return "".join([line + "\n" for line in neutraliser.neutralise_lines(value)])
    if block.kind == "text":
        raise PromptError(f"block '{name}' is {type(value).__name__}; it must be a text")
    # Ids are written unchanged, and a verdict is about exactly one of them.
    ids = [item.id for item in value]
    for item_id in ids:
        if not _ID.fullmatch(item_id) or item_id[0] != block.prefix:
            raise PromptError(
                f"block '{name}' has the id {item_id!r}; ids there are {block.prefix}1, {block.prefix}2, …"
            )
    if len(set(ids)) != len(ids):
        twice = ", ".join(sorted({item_id for item_id in ids if ids.count(item_id) > 1}))
        raise PromptError(f"block '{name}' has more than one item with the id {twice}; each id is unique")
    lines = [f"\n{INDENT}".join(neutraliser.neutralise_lines(item.text)) for item in value]
    return "".join([f"[{item.id}] {text}\n" for item, text in zip(value, lines, strict=True)])


def derive_nonce(body: str) -> str:
    """Return eight hex digits that follow from the data and do not occur in it in any spelling."""
    content, plain = body.encode(), fold_text(body)
    nonce = hashlib.sha256(content).hexdigest()[:8]
    counter = 0
    while nonce in body or nonce in plain:
        counter += 1
        nonce = hashlib.sha256(b"%d\n" % counter + content).hexdigest()[:8]
    return nonce


@cache
def describe_conversation(name: str, language: str) -> str:
    """Return the words about the block in a prompt of this name, in its language if known and in English otherwise."""
    texts: Mapping[str, Mapping[str, str]] = yaml.load(
        _CONVERSATION_WORDS.read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    )
    of_language = texts.get(language, texts[_FALLBACK_LANGUAGE])
    return f"{of_language['all'].strip()}\n{of_language.get(name, of_language['rubric']).strip()}"
