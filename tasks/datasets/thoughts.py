"""The thoughts of a model, which are not its answer or reply: reasoning models write them first.

Thoughts are between `<think>` and `</think>` or marks like these, in harmony's channels other than `final`, in parts of
a content, or in a member beside the answer; `join_thoughts` puts the latter into the form of the former, so that an
answer with its thoughts is one text. `split_thoughts` takes them out of a bot's answer, `split_reply` out of a judge's
reply. They differ because the texts do:

- An answer is prose that may talk about such marks: a mark within backticks does not count, an opening one begins its
  line or ends it, and a closing one without an opening ends its line or is directly followed by the answer. There may
  be several stretches.
- A reply is JSON that may quote marks of the text under test, in any place: only thoughts before it count.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import orjson

# Opening and closing marks, the opening ones as patterns.
_MARKS: Final = (
    *(
        (f"<{name}>", f"</{name}>")
        for name in (
            "think", "thinking", "thought", "thoughts", "reasoning", "seed:think", "reflection", "scratchpad",
        )
    ),
    (r"<details type=\"reasoning\"[^<>]*>", "</details>"),
    (r"\[THINK\]", "[/THINK]"),
    ("◁think▷", "◁/think▷"),
    (r"<\|begin_of_thought\|>", "<|end_of_thought|>"),
    (r"<\|START_THINKING\|>", "<|END_THINKING|>"),
)  # fmt: skip
_ALONE: Final = "|".join(re.escape(closing) for _, closing in _MARKS if closing != "</details>")
_BEGIN: Final = "|".join(f"(?P<mark{place}>{mark})" for place, (mark, _) in enumerate(_MARKS))
# What follows the closing mark of thoughts, and what comes before one with a space behind it.
_AFTER: Final = r"(?=\s*\n|\s*\Z|[^\s`.,;:!?)\]}<>…。，；：、！？）】」』》”’]|<[A-Za-z]|```)"
_ENDS: Final = r"(?:(?<=[.!?…。！？\n:;\"')*”’」』])|(?<=[.!?…。！？][ \t]))"
_FOLLOWED: Final = re.compile(_AFTER)
_BEGINS: Final = re.compile(_BEGIN, re.IGNORECASE)
_MARK_OR_CODE: Final = re.compile(
    r"(?P<code>^[ \t]*(?P<fence>```+|~~~+).*?(?:^[ \t]*(?P=fence)|\Z)|(?<!`)(?P<ticks>`++)[^`\n]+(?P=ticks)(?!`))"
    rf"|(?P<end>(?:{_ALONE}){_AFTER}|{_ENDS}(?:{_ALONE})(?=\s))|{_BEGIN}",
    re.IGNORECASE | re.MULTILINE | re.DOTALL,
)
_LINE_ENDS: Final = re.compile(r"[ \t]*(?:\n|\Z)")
# Harmony, with its special tokens and without them, as some servers leave the words of the channels in the text.
_CHANNEL: Final = re.compile(r"(?:<\|start\|>\w*)?<\|channel\|>(\w+)(?:[^<\n]*<\|(?:constrain|message)\|>)*")
_TOKEN: Final = re.compile(r"<\|(?:start|end|return|call|message)\|>(?:assistant)?")
_LEAKED: Final = re.compile(r"(analysis.*?assistantfinal)(.*)", re.DOTALL)
_MEMBERS: Final = ("reasoning_content", "reasoning", "thinking", "thoughts")
_PARTS: Final = ("thinking", "reasoning", "redacted_thinking", "thought")
_TEXTS: Final = ("text", "input_text", "output_text")


@dataclass(frozen=True, kw_only=True)
class Spoken:
    """An answer, and the thoughts that were left out of it, with their marks; None without any."""

    text: str
    thoughts: str | None = None

    @property
    def is_only_thoughts(self) -> bool:
        """Return True if there is nothing beside the thoughts, as where a model was cut off before it answered."""
        return self.thoughts is not None and not self.text.strip()


def split_thoughts(text: str) -> Spoken:
    """Return the answer of a text, and its thoughts. Thoughts that are not closed reach to the end of the text."""
    leaked = _LEAKED.fullmatch(text)
    if leaked:
        return Spoken(text=leaked[2].strip(), thoughts=leaked[1])
    answers: list[str] = []
    thoughts: list[str] = []
    for part, is_thought in _cut_channels(text) if _CHANNEL.match(text.lstrip()) else _cut_marks(text):
        (thoughts if is_thought else answers).append(part)
    thoughts = [part.strip() for part in thoughts if part.strip()]
    if not thoughts:
        return Spoken(text=text)
    return Spoken(text="\n\n".join(part.strip() for part in answers if part.strip()), thoughts="\n\n".join(thoughts))


def join_thoughts(thoughts: str | None, text: str) -> str:
    """Return a text with the thoughts before it, in marks if they have none; `split_thoughts` takes them out again."""
    if not thoughts or not thoughts.strip():
        return text
    joined = f"{thoughts}\n\n{text}"
    is_marked = split_thoughts(joined).text == text.strip()
    return joined if is_marked else f"<think>\n{thoughts.strip()}\n</think>\n\n{text}"


# What follows a closing mark alone before a reply, rather than the rest of a sentence that mentions it.
_BEFORE_REPLY: Final = ("", "\n", "\r", "{", "[", "`")
_MAX_CHARACTERS: Final = 100_000  # longer thoughts of a judge are cut


def split_reply(text: str, apart: str | None = None) -> Spoken:
    """Return a judge's reply without the thoughts before it; `apart` are thoughts that came in a separate field.

    Chat templates that begin the thoughts themselves leave the closing mark alone in the reply, and a reply that breaks
    off has the opening mark alone. Within the reply the same marks may be quoted; there they stay.
    """
    if _CHANNEL.match(text.lstrip()) or _LEAKED.fullmatch(text):
        spoken = split_thoughts(text)
        text, apart = spoken.text, "\n\n".join(part for part in (apart, spoken.thoughts) if part)

    def is_json(part: str) -> bool:
        try:
            orjson.loads(part)
        except orjson.JSONDecodeError:
            return False
        return True

    within, reply = "", text
    begin = _BEGINS.match(text.lstrip())
    begun = text.lstrip()[begin.end() :] if begin else text.lstrip()
    closing = _find_closing(begin) if begin else "</think>"
    before, mark, after = begun.partition(closing)
    if begin and not mark:
        within, reply = begun, ""
    elif mark and (begin or (after[:1] in _BEFORE_REPLY and not is_json(text))):
        if closing in after and not is_json(after):
            # A mark that the thoughts quote, or one more stretch of them.
            before, _, after = begun.rpartition(closing)
        if begin and _BEGINS.match(after.lstrip()):
            before, after = before + after, ""
        within, reply = before, after.strip()
    thoughts = "\n\n".join(part for part in ((apart or "").strip(), within.strip()) if part)
    return Spoken(text=reply, thoughts=thoughts[:_MAX_CHARACTERS] or None)


def find_thoughts(members: object) -> str | None:
    """Return the thoughts in an object beside an answer, or in the parts of its content; None without any.

    Some servers give the same thoughts under two names.
    """
    if not isinstance(members, Mapping):
        return None
    for name in _MEMBERS:
        if (thoughts := join_parts(members.get(name))).strip():
            return thoughts
    content = members.get("content")
    parts = [part for part in content if is_thought(part)] if isinstance(content, list) else []
    texts = [
        next((text for key in (*_MEMBERS, "text", "content") if (text := join_parts(part.get(key)))), "")
        for part in parts
    ]
    return "\n\n".join(text for text in texts if text.strip()) or None


def join_parts(content: object) -> str:
    """Return a text, or the joined texts of its parts, as some endpoints give it; "" for none."""
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, Mapping)]
        return "".join(part for part in parts if isinstance(part, str))
    return content if isinstance(content, str) else ""


def is_thought(part: object) -> bool:
    """Return True for a part of a content that holds thoughts."""
    return isinstance(part, Mapping) and (part.get("type") in _PARTS or part.get("thought") is True)


def read_parts(content: object) -> str | None:
    """Return the text of a content in parts, with its thoughts; None for what is not one, or has a part without text.

    A part is a text, or an object with a type.
    """
    if not isinstance(content, list) or not content:
        return None
    answers = [part for part in content if not is_thought(part)]
    texts = [part.get("text") if isinstance(part, Mapping) and part.get("type") in _TEXTS else part for part in answers]
    if not all(isinstance(text, str) for text in texts):
        return None
    is_typed = any(isinstance(part, Mapping) for part in content)
    return join_thoughts(find_thoughts({"content": content}), "".join(map(str, texts))) if is_typed else None


def _cut_channels(text: str) -> Iterator[tuple[str, bool]]:
    """Yield what each channel of harmony holds, and True for one that is not the answer's."""
    begins = [*_CHANNEL.finditer(text)]
    ends = [*(match.start() for match in begins[1:]), len(text)]
    for begin, end in zip(begins, ends, strict=True):
        if begin[1] == "final":
            yield _TOKEN.sub("", text[begin.end() : end]), False
        else:
            yield text[begin.start() : end], True


def _cut_marks(text: str) -> Iterator[tuple[str, bool]]:
    """Yield the stretches of a text, and True where it is thoughts."""
    start = at = 0
    while match := _MARK_OR_CODE.search(text, at):
        at = match.end()
        if match["code"] is not None:
            continue
        if match["end"] is not None:  # a chat template wrote the opening mark itself
            yield text[start:at], True
            start = at
            continue
        before = text[max(start, text.rfind("\n", 0, match.start()) + 1) : match.start()]
        if before.strip() and not _LINE_ENDS.match(text, at):
            continue
        yield text[start : match.start()], False
        start, at = match.start(), _find_end(text, match)
        yield text[start:at], True
        start = at
    yield text[start:], False


def _find_closing(begin: re.Match[str]) -> str:
    """Return the closing mark of an opening one."""
    return next(closing for place, (_, closing) in enumerate(_MARKS) if begin[f"mark{place}"] is not None)


def _find_end(text: str, begin: re.Match[str]) -> int:
    """Return where thoughts end: behind the closing mark that an answer follows, else behind the first one.

    Thoughts may quote the mark; a later stretch of thoughts has a separate one.
    """
    closing = re.compile(re.escape(_find_closing(begin)), re.IGNORECASE)
    first = closing.search(text, begin.end())
    if first is None:
        return len(text)
    following = _BEGINS.search(text, first.end())
    closes = closing.finditer(text, begin.end(), following.start() if following else len(text))
    ending = (match.end() for match in closes if text[match.start() - 1] != "`" and _FOLLOWED.match(text, match.end()))
    return next(ending, first.end())
