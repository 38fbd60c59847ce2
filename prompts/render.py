r"""Writes the data of a request into the blocks of the wire shape.

The last message of a request holds the data and nothing else: one block per variable, each tag alone on its line, with
a nonce that no text could know. Lists have one item after the other, the id in front; a line after the first of an item
is indented, so that nothing but an id of ours ever stands in brackets at the start of a line:

    <question 1a2b3c4d>
    How long does the crossing take?
    </question 1a2b3c4d>
    <contexts 1a2b3c4d>
    [C1] Crossing: 40 minutes.
        In winter: 55 minutes.
    </contexts 1a2b3c4d>

Texts are neutralised first: everything that could pass for one of our marks is taken away. A text may hold tags of
blocks or ids of items, by chance or on purpose, also in full-width letters, in letters of another script that look the
same, or with invisible characters in between. Each of them gets one visible backslash behind its opening bracket
(`<\/question>`, `[\A2]`), as do the control tokens with which chat templates switch the speaker (`<|im_end|>`,
`[INST]`), because some self-hosted endpoints obey them inside a message. Some tokenizers begin with Unicode's NFKC, so
nothing may become a mark by that either. Every kind of line break becomes a plain one. Nothing else is changed.
`loader` puts the instructions and the worked examples in front.
"""

import copy
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

from evalhouse.prompts.errors import PromptError

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


def _collect_forms() -> dict[str, str]:
    """Every Latin letter, and every pair or more that has a sign of its own, -> the signs that NFKC takes for it."""
    forms: dict[str, str] = {}
    for first, end in _CHARACTERS["styled_letters"]:
        for code in range(first, end):
            folded = unicodedata.normalize("NFKC", chr(code))
            if folded.isascii() and folded.isalpha():
                forms[folded] = forms.get(folded, "") + chr(code)
    return forms


def _collect_variants(forms: _Spellings) -> dict[str, str]:
    """The same in lower case alone, with upper case and whatever else looks like the letter."""
    variants = {
        letter: letter + letter.upper() + _CHARACTERS["look_alikes"].get(letter, "") for letter in ascii_lowercase
    }
    for spelled, signs in forms.items():
        variants[spelled.lower()] = variants.get(spelled.lower(), "") + signs
    for place, letter in enumerate(ascii_lowercase):
        variants[letter] += "".join(chr(first + place) for first in _CHARACTERS["alphabets"]) + chr(0x249C + place)
    return variants


_FORMS = _collect_forms()
_VARIANTS = _collect_variants(_FORMS)
_ASCII_VARIANTS = {letter: letter + letter.upper() for letter in ascii_lowercase}
_ASCII_INVISIBLE = "\x00-\x08\x0e-\x1b\x7f"
# Of the closing brackets one is a letter of its own script.
_NO_LETTER = rf"(?:(?![^\W\d_])|(?=[{_ANGLE_CLOSE}]))"
_PUNCTUATION_FORMS: _Spellings = _CHARACTERS["punctuation_forms"]


def _spell(word: str, variants: _Spellings, unseen: str) -> str:
    """A pattern for a word, each letter in any of its variants; some pairs of letters have a sign of their own."""
    if not word:
        return ""
    heads = {word[:1]: variants.get(word[:1], word[:1])}
    heads |= {word[:length]: variants[word[:length]] for length in (2, 3) if word[:length] in variants}
    ways = [
        f"[{re.escape(signs)}]{unseen}{_spell(word[len(head) :], variants, unseen)}" for head, signs in heads.items()
    ]
    return ways[0] if len(ways) == 1 else f"(?:{'|'.join(ways)})"


def _compile_tags(names: Iterable[str], *, variants: _Spellings, forms: _Spellings, invisible: str) -> re.Pattern[str]:
    """The opening bracket of whatever resembles a tag of these blocks, or is a control token of a chat template.

    An opening tag counts when its name is glued to the bracket, or when no more than a code stands between the name
    and a closing bracket: `if guess < answer` is code and no tag. Tokens count in `forms` alone: what only looks like
    one means nothing to a template.
    """
    # Quantifiers are possessive (`*+`): a text made to keep the pattern busy costs no more than its length.
    unseen, gap = f"[{invisible}]*+", f"[\\s{invisible}]*+"
    spelled = []
    for name in sorted(names, key=len, reverse=True):
        words = (_spell(word, variants, unseen) for word in name.split("_"))
        spelled.append(f"[{_UNDERSCORE}\\s{invisible}]*+".join(words))
    slashes = f"(?:[{_SLASH}]{gap})"
    any_name = "|".join(spelled)
    tag = (
        f"(?:(?P<glued>{gap}{slashes}++|{unseen}(?!\\s))|{gap})(?:{any_name}){_NO_LETTER}"
        f"(?(glued)|{gap}[0-9A-Za-z]*+{gap}[{_ANGLE_CLOSE}])"
    )
    # A look at the first letter spares most brackets of HTML and of formulas the long way.
    initials = "".join(signs for spelling, signs in variants.items() for name in names if name.startswith(spelling))
    first = f"(?={gap}{slashes}*+[{initials}])"
    return re.compile(f"[{_ANGLE_OPEN}](?={first}{tag}|{_spell_tokens(forms, unseen)})")


def _spell_tokens(forms: _Spellings, unseen: str) -> str:
    """A pattern for what stands behind the `<` of a control token."""

    def spell(*tokens: str) -> str:
        return "(?:" + "|".join(_spell(token, forms, unseen) for token in tokens) + ")"

    bar, close, slash = forms["|"], forms[">"], f"(?:{spell('/')})?"
    named = f"{unseen}[{bar}][^\\s{bar}{forms['<']}{close}]{{1,40}}+[{bar}]{unseen}[{close}]"
    instructions = f"{unseen}(?:{spell('<')})?{slash}{spell('SYS>>')}"
    return f"{named}|{instructions}|{unseen}{slash}{spell(*_CHARACTERS['tokens'])}"


def _make_token_forms(forms: _Spellings, punctuation: _Spellings) -> dict[str, str]:
    """Every character of a token, and what NFKC takes for it; upper and lower case are not the same here."""
    plain = {char: char + forms.get(char, "") for char in ascii_letters}
    marks = {mark: mark + punctuation.get(mark, "") for mark in _PUNCTUATION_FORMS}
    return {**{spelling: signs for spelling, signs in forms.items() if len(spelling) > 1}, **plain, **marks}


def _compile_ids(prefixes: Iterable[str]) -> re.Pattern[str]:
    """The opening bracket of whatever resembles an id at the start of a line, also behind a bullet or quote marks."""
    letter = "".join(_VARIANTS[prefix.lower()] for prefix in prefixes)
    gap = f"[\\s{_INVISIBLE}]*+"
    # The fillers are invisible, but letters to `re`. The two alternatives share no character.
    lead = "\n(?:[^\\w\n]|[_\u115f\u1160\u3164\uffa0])*"
    return re.compile(
        f"{lead}[{_SQUARE_OPEN}](?={gap}[{letter}](?:{gap}[{_CHARACTERS['digit']}])+{gap}[{_SQUARE_CLOSE}])"
    )


def _compile_control_words(forms: _Spellings, invisible: str) -> re.Pattern[str]:
    """The opening bracket of a control token in square brackets."""
    unseen = f"[{invisible}]*+"
    words = "|".join(_spell(f"{word}]", forms, unseen) for word in _CHARACTERS["control_words"])
    return re.compile(f"[{re.escape(forms['['])}](?={unseen}(?:{_spell('/', forms, unseen)})?(?:{words}))")


_ASCII_TOKEN_FORMS = _make_token_forms({}, {})
_TOKEN_FORMS = _make_token_forms(_FORMS, _PUNCTUATION_FORMS)
_ASCII_UNSEEN = bytes([*range(0x09), *range(0x0E, 0x1C), 0x7F])
_UNSEEN = re.compile(f"[{_INVISIBLE}]")
_BRACKETS = re.compile(f"[{_ANGLE_OPEN}{_SQUARE_OPEN}]")


class Neutraliser:
    """Neutralises texts for the marks of one set of block names and id prefixes."""

    def __init__(self, *, names: Iterable[str], prefixes: Iterable[str]) -> None:
        self._names = tuple(names)
        self._ascii_tags = _compile_tags(
            self._names, variants=_ASCII_VARIANTS, forms=_ASCII_TOKEN_FORMS, invisible=_ASCII_INVISIBLE
        )
        self._ascii_words = _compile_control_words(_ASCII_TOKEN_FORMS, _ASCII_INVISIBLE)
        self._ids = _compile_ids(prefixes)

    @cached_property
    def _tags(self) -> re.Pattern[str]:
        # Takes a quarter of a second to compile; a start without a judge needs it as little as plain ASCII does.
        return _compile_tags(self._names, variants=_VARIANTS, forms=_TOKEN_FORMS, invisible=_INVISIBLE)

    @cached_property
    def _words(self) -> re.Pattern[str]:
        return _compile_control_words(_TOKEN_FORMS, _INVISIBLE)

    def also_for(self, prefixes: Iterable[str]) -> "Neutraliser":
        """The same for ids of other prefixes."""
        other = copy.copy(self)
        other._ids = _compile_ids(prefixes)
        return other

    def neutralise_lines(self, text: str) -> list[str]:
        r"""Split a text into lines that hold nothing like a tag, an id at their start, or a control token.

        A line ends at whatever `str.splitlines` ends one at (`\r`, `\x0b`, `\x85`, U+2028, …); a line break at the very
        end starts no further line. Half a surrogate pair, which no endpoint can be sent, becomes U+FFFD.
        """
        # Most texts have no bracket at all, and to see that costs far less than the patterns behind it.
        if text.isascii():
            if "<" in text or "[" in text:
                return self._neutralise(text, self._ascii_tags, self._ascii_words)
            return text.splitlines()
        text = _fix_surrogates(text)
        return self._neutralise(text, self._tags, self._words) if _BRACKETS.search(text) else text.splitlines()

    def _neutralise(self, text: str, tags: re.Pattern[str], words: re.Pattern[str]) -> list[str]:
        lines = tags.sub(r"\g<0>\\", text).splitlines()
        # Every line gets a break in front, the first one too, so that the pattern can begin with a plain character,
        # for which `re` has a fast search; `^` has none.
        text = self._ids.sub(r"\g<0>\\", "\n" + "\n".join(lines))
        return words.sub(r"\g<0>\\", text).split("\n")[1:] if lines else lines


def fold_text(text: str) -> str:
    """A text in lower case and in NFKC's form, without what nobody sees; for looking something up in it."""
    if text.isascii():  # the same in a tenth of the time
        return text.encode().translate(None, _ASCII_UNSEEN).decode().lower()
    return _UNSEEN.sub("", unicodedata.normalize("NFKC", text)).lower()


def _fix_surrogates(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


CONVERSATION: Final = "conversation"
TURN_PREFIX: Final = "T"
"""How the ids of turns begin."""
_CONVERSATION_WORDS: Final = Path(__file__).with_name("conversation.yaml")
_FALLBACK_LANGUAGE: Final = "en"
BlockKind = Literal["text", "items"]


@dataclass(frozen=True, kw_only=True)
class Block:
    """What a block of one name holds: a text, or items whose ids begin with `prefix` (empty for a text).

    The name of one that `stands_apart` is a mark in the requests that have it and in no others, whose texts, and with
    them their replies on record, stay as they were before there was such a block.
    """

    kind: BlockKind
    prefix: str = ""
    stands_apart: bool = False


# All blocks there are, in the order in which they are written.
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
    "first_answer": Block(kind="text", stands_apart=True),
    "second_answer": Block(kind="text", stands_apart=True),
}
INDENT = "    "


@dataclass(frozen=True, kw_only=True)
class Item:
    """One text of a list with the short id under which the judge answers for it: A1, G1, C1 and so on."""

    id: str
    text: str


BlockValue = str | Sequence[Item]


def list_texts(value: BlockValue) -> list[str]:
    """The texts of a block, one or as many as it has items."""
    return [value] if isinstance(value, str) else [item.text for item in value]


@dataclass(frozen=True, kw_only=True)
class Message:
    """One message of a chat request."""

    role: Literal["system", "human", "ai"]
    content: str


_ID = re.compile(r"[A-Z][1-9][0-9]*", re.ASCII)
_PREFIXES = [block.prefix for block in BLOCKS.values() if block.prefix]
_TURNS = Block(kind="items", prefix=TURN_PREFIX)


@cache
def _make_neutraliser(apart: frozenset[str], *, has_turns: bool) -> Neutraliser:
    """The one for the blocks of all requests and those `apart`; beside turns nothing may pass for the id of one, while
    elsewhere [T1] is a text like any other."""
    if has_turns:
        return _make_neutraliser(apart, has_turns=False).also_for([*_PREFIXES, TURN_PREFIX])
    names = [name for name, block in BLOCKS.items() if name in apart or not block.stands_apart]
    return Neutraliser(names=names, prefixes=_PREFIXES)


_NEUTRALISER = _make_neutraliser(frozenset(), has_turns=False)


def render_blocks(variables: Sequence[str], data: Mapping[str, BlockValue]) -> str:
    """The text of a message that holds `data`, whose keys are exactly `variables` (names out of BLOCKS, in its order).

    Equal data gives an equal text. A `conversation` is a text, or items: its turns. PromptError: a block is missing,
    one too many or of the wrong kind, an id is malformed or comes twice.
    """
    if data.keys() != set(variables):
        missing = ", ".join(sorted(set(variables) - data.keys())) or "none"
        extra = ", ".join(sorted(data.keys() - set(variables))) or "none"
        raise PromptError(
            f"wrong blocks: missing {missing}; not declared {extra}; the prompt takes exactly {', '.join(variables)}"
        )
    apart = frozenset([name for name in variables if BLOCKS[name].stands_apart])
    neutraliser = _make_neutraliser(apart, has_turns=not isinstance(data.get(CONVERSATION, ""), str))
    bodies = [_render_body(name, data[name], neutraliser) for name in variables]
    nonce = derive_nonce("\n".join(bodies))
    parts = [f"<{name} {nonce}>\n{body}</{name} {nonce}>" for name, body in zip(variables, bodies, strict=True)]
    return "\n".join(parts)


def _render_body(name: str, value: BlockValue, neutraliser: Neutraliser) -> str:
    """The lines between the tags, each with its line break; nothing at all for an empty text or list."""
    block = _TURNS if name == CONVERSATION and not isinstance(value, str) else BLOCKS[name]
    if isinstance(value, str):
        if block.kind == "items":
            raise PromptError(f"block '{name}' is a text; it must be a list of items with ids like {block.prefix}1")
        return "".join([line + "\n" for line in neutraliser.neutralise_lines(value)])
    if block.kind == "text":
        raise PromptError(f"block '{name}' is {type(value).__name__}; it must be a text")
    # Ids are the one thing written unchanged, and each must be answerable on its own
    ids = [item.id for item in value]
    for item_id in ids:
        if not _ID.fullmatch(item_id) or item_id[0] != block.prefix:
            raise PromptError(
                f"block '{name}' has the id {item_id!r}; ids there are {block.prefix}1, {block.prefix}2, …"
            )
    if len(set(ids)) != len(ids):
        twice = ", ".join(sorted({item_id for item_id in ids if ids.count(item_id) > 1}))
        raise PromptError(f"block '{name}' has more than one item with the id {twice}; each id stands once")
    return "".join([_render_item(item, neutraliser) for item in value])


def _render_item(item: Item, neutraliser: Neutraliser) -> str:
    lines = neutraliser.neutralise_lines(item.text)
    return f"[{item.id}] " + f"\n{INDENT}".join(lines) + "\n"


def derive_nonce(body: str) -> str:
    """Eight hex digits that follow from the data and occur nowhere in it, in no other dress either."""
    content, plain = body.encode(), fold_text(body)
    nonce = hashlib.sha256(content).hexdigest()[:8]
    counter = 0
    while nonce in body or nonce in plain:
        counter += 1
        nonce = hashlib.sha256(b"%d\n" % counter + content).hexdigest()[:8]
    return nonce


def describe_conversation(name: str, language: str) -> str:
    """What a prompt of this name says of the block, in its language where it is known and in English otherwise."""
    words = _load_words()
    of_language = words.get(language, words[_FALLBACK_LANGUAGE])
    return f"{of_language['all'].strip()}\n{of_language.get(name, of_language['rubric']).strip()}"


@cache
def _load_words() -> Mapping[str, Mapping[str, str]]:
    words: Mapping[str, Mapping[str, str]] = yaml.load(
        _CONVERSATION_WORDS.read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    )
    return words
