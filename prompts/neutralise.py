r"""Takes away from a text under test everything that could pass for a mark of our own.

A rendered message has two kinds of marks: tags of blocks (`<question 1a2b3c4d>`) and ids of items at the start of a
line (`[A1] `). A text may hold the like, by chance or on purpose, also in full-width letters, in letters of another
script that look the same, or with invisible characters in between. Each of them gets one visible backslash behind its
opening bracket (`<\/question>`, `[\A2]`), as do the control tokens with which chat templates switch the speaker
(`<|im_end|>`, `[INST]`), because some self-hosted endpoints obey them inside a message. Every kind of line break
becomes a plain one. Nothing else is changed. The neighbour is `render.py`, which calls this for every text.
"""

import re
import unicodedata
from collections.abc import Iterable, Mapping
from functools import cached_property
from string import ascii_lowercase

# Invisible or combining: may stand between two letters without a reader seeing a difference.
_INVISIBLE = (
    "\x00-\x08\x0e-\x1b\x7f\u00ad\u0300-\u036f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e"
    "\u2060-\u206f\u20d0-\u20ff\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb\U0001d173-\U0001d17a"
    "\U000e0000-\U000e0fff"
)
# With the forms for vertical writing.
_ANGLE_OPEN = "<＜‹〈⟨《﹤˂❮❰⟪≺\u2329\ufe3d\ufe3f"
_ANGLE_CLOSE = ">＞›〉⟩》﹥˃❯❱⟫≻\u232a\ufe3e\ufe40"
_SQUARE_OPEN = r"\[［【〔⁅⟦〚❲﹝〖\u2997\ufe17\ufe39\ufe3b\ufe47"
_SQUARE_CLOSE = r"\]］】〕⁆⟧〛❳﹞〗\u2998\ufe18\ufe3a\ufe3c\ufe48"
_SLASH = "/／⁄∕╱⧸⟋"
_UNDERSCORE = r"_＿﹍﹎﹏‿\-‐‑‒–—−－﹣"

# Letters of other scripts that are drawn like Latin ones; NFKC does not fold these.
_LOOK_ALIKES = {
    "a": "аАɑαΑ",
    "c": "сСϲϹᴄ",
    "d": "ԁᴅ",
    "e": "еЕεΕᴇ",
    "g": "ɡԍɢԌ",
    "h": "һНΗʜ",
    "i": "іІιΙıɪ",
    "k": "кКκΚ",
    "m": "мМΜᴍ",
    "n": "пոΝɴ",
    "o": "оОοΟօᴏ",
    "q": "ԛԚ",
    "r": "гᴦʀ",
    "s": "ѕЅꜱ",
    "t": "тТτΤᴛ",
    "u": "υսᴜ",
    "w": "ԝԜᴡ",
    "x": "хХχΧ",
}
# Where Unicode keeps its full-width, mathematical, circled, super- and subscript letters.
_STYLED_LETTERS = (
    (0x1D2C, 0x1DC0),
    (0x2070, 0x20A0),
    (0x2100, 0x2150),
    (0x2460, 0x2500),
    (0xFF21, 0xFF5B),
    (0x1D400, 0x1D800),
    (0x1F110, 0x1F18A),
)


def _collect_variants() -> dict[str, str]:
    """Every Latin letter -> all characters that are it in another dress, itself in both cases first."""
    variants = {letter: letter + letter.upper() + _LOOK_ALIKES.get(letter, "") for letter in ascii_lowercase}
    for first, end in _STYLED_LETTERS:
        for code in range(first, end):
            folded = unicodedata.normalize("NFKC", chr(code)).strip("()").lower()
            if folded in variants:
                variants[folded] += chr(code)
    return variants


_VARIANTS = _collect_variants()
_ASCII_VARIANTS = {letter: letter + letter.upper() for letter in _VARIANTS}
_ASCII_INVISIBLE = "\x00-\x08\x0e-\x1b\x7f"
_NO_LETTER = r"(?![^\W\d_])"


def _compile_tags(names: Iterable[str], *, variants: Mapping[str, str], invisible: str) -> re.Pattern[str]:
    """The opening bracket of whatever resembles a tag of these blocks, or is a control token of a chat template.

    An opening tag counts when its name is glued to the bracket, or when no more than a code stands between the name
    and a closing bracket: `if guess < answer` is code and no tag.
    """
    # Quantifiers are possessive (`*+`): a text made to keep the pattern busy costs no more than its length.
    unseen, gap = f"[{invisible}]*+", f"[\\s{invisible}]*+"
    spelled = []
    for name in sorted(names, key=len, reverse=True):
        words = ("".join(f"[{variants[char]}]{unseen}" for char in word) for word in name.split("_"))
        spelled.append(f"[{_UNDERSCORE}\\s{invisible}]*+".join(words))
    glued = f"{gap}[{_SLASH}]{gap}|{unseen}(?!\\s)"
    any_name = "|".join(spelled)
    tag = f"(?:(?P<glued>{glued})|{gap})(?:{any_name}){_NO_LETTER}(?(glued)|{gap}[0-9A-Za-z]*+{gap}[{_ANGLE_CLOSE}])"
    token = (
        r"[|｜][^\s|｜<>]{1,40}+[|｜]>|<?/?SYS>>|/?(?:s|bos|eos|think|tool_call|tool_response)>"
        r"|(?:start|end)_of_turn>"
    )
    # A look at the first letter spares most brackets of HTML and of formulas the long way.
    initials = "".join(variants[name[0]] for name in names)
    first = f"(?={gap}[{_SLASH}]?{gap}[{initials}])"
    return re.compile(f"[{_ANGLE_OPEN}](?={first}{tag}|{token})")


def _compile_ids(prefixes: Iterable[str]) -> re.Pattern[str]:
    """The opening bracket of whatever resembles an id at the start of a line, also behind a bullet or quote marks."""
    letter = "".join(_VARIANTS[prefix.lower()] for prefix in prefixes)
    gap = f"[\\s{_INVISIBLE}]*+"
    # The fillers are invisible, but letters to `re`. The two alternatives share no character.
    lead = "\n(?:[^\\w\n]|[_\u115f\u1160\u3164\uffa0])*"
    return re.compile(f"{lead}[{_SQUARE_OPEN}](?={gap}[{letter}](?:{gap}\\d)++{gap}[{_SQUARE_CLOSE}])")


_CONTROL_WORDS = re.compile(r"\[(?=/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_(?:CALLS|RESULTS|CONTENT))\])")
_BRACKETS = re.compile(f"[{_ANGLE_OPEN}{_SQUARE_OPEN}]")


class Neutraliser:
    """Neutralises texts for the marks of one set of block names and id prefixes."""

    def __init__(self, *, names: Iterable[str], prefixes: Iterable[str]) -> None:
        self._names = tuple(names)
        self._ascii_tags = _compile_tags(self._names, variants=_ASCII_VARIANTS, invisible=_ASCII_INVISIBLE)
        self._ids = _compile_ids(prefixes)

    @cached_property
    def _tags(self) -> re.Pattern[str]:
        # Takes some 30 ms to compile, and a start without a judge needs it as little as a text of plain ASCII does.
        return _compile_tags(self._names, variants=_VARIANTS, invisible=_INVISIBLE)

    def neutralise_lines(self, text: str) -> list[str]:
        r"""Split a text into lines that hold nothing like a tag, an id at their start, or a control token.

        A line ends at whatever `str.splitlines` ends one at (`\r`, `\x0b`, `\x85`, U+2028, …); a line break at the very
        end starts no further line. Half a surrogate pair, which no endpoint can be sent, becomes U+FFFD.
        """
        # Most texts have no bracket at all, and to see that costs far less than the patterns behind it.
        if text.isascii():
            return self._neutralise(text, self._ascii_tags) if "<" in text or "[" in text else text.splitlines()
        text = _mend_surrogates(text)
        return self._neutralise(text, self._tags) if _BRACKETS.search(text) else text.splitlines()

    def _neutralise(self, text: str, tags: re.Pattern[str]) -> list[str]:
        lines = tags.sub(r"\g<0>\\", text).splitlines()
        # Every line gets a break in front, the first one too, so that the pattern can begin with a plain character,
        # for which `re` has a fast search; `^` has none.
        text = self._ids.sub(r"\g<0>\\", "\n" + "\n".join(lines))
        return _CONTROL_WORDS.sub(r"\g<0>\\", text).split("\n")[1:] if lines else lines


def _mend_surrogates(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
