"""The second reading of a judge's reply, for one that the strict reading refuses or cannot read in full.

Repaired are slips of writing: trailing commas, comments and Python literals; backslashes that were not doubled; JSON
text within a text; one wrapper too many or too few; labels in another case, with blanks, a full stop or Markdown around
them; numbers and yes or no as texts; half a surrogate pair. The result is JSON, which the strict reading checks as any
other reply: no repair brings a label, an id or an item that the question does not allow. A text with two readings is
refused, and so is one with a bracket, a comma or a quotation mark missing. Libraries guess in these places: json-repair
closes what is open and skips what does not fit, json5 drops the backslash of `\\d`.
"""

import html
import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final, TypeVar
from unicodedata import normalize

import orjson

from evalhouse.prompts import VERDICT_LISTS, join_texts
from evalhouse.tasks.asking.splitting import HEADING
from evalhouse.tasks.judge.protocol import MARKED_RATING, THOUGHT, Question, UnusableReply, ends_in_thoughts
from evalhouse.warehouse.messages import join_surrogates

T = TypeVar("T")
Schema = Mapping[str, Any]

_MAX_FALSE_STARTS = 100
_MAX_DEPTH = 32
_TOKEN = re.compile(
    r"""[\s\ufeff]*+(?P<comment>(?:(?:(?://|\#)[^\n]*+|/\*[^*]*+(?:\*(?!/)[^*]*+)*\*/)[\s\ufeff]*+)*)
    (?:(?P<text>"[^"\\]*+(?:\\.[^"\\]*+)*"|'[^'\\]*+(?:\\.[^'\\]*+)*')|(?P<mark>[][{}:,])
    |(?P<number>-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][-+]?\d+)?)(?![\w.])|(?P<word>[A-Za-z_]\w*))""",
    re.DOTALL | re.VERBOSE,
)
_JSON_WORDS: Final[Mapping[str, object]] = {"true": True, "false": False, "null": None}
_PYTHON_WORDS: Final[Mapping[str, object]] = {"True": True, "False": False, "None": None}
_ESCAPE = re.compile(r"(\\+)(u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|[A-Za-z]+|[^\\]?)", re.DOTALL)
_LONE = re.compile(r"""(?<!\\)(?:\\\\)*\\(?:[^"'\\/bfnrtu]|u(?![0-9a-fA-F]{4}))""")
_CODE_POINT = re.compile(r"u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}")
_CONTROLS: Final = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
# LaTeX commands whose first letter makes an escape of JSON. Without it the first ones are not words.
_COMMANDS = re.compile(r"nabla|notin|t(?:heta|imes|ext[a-z]*|ilde|riangle|frac)|r(?:ho|angle|ightarrow)")
_SHORT_COMMANDS = re.compile(r"n(?:e|eg|eq|i|ot|u)|right|t(?:an|anh|au|herefore|o|op)")
# In prose a bracket is rarely followed by a quotation mark.
_OPENS_OBJECT = re.compile(r"""\{\s*["'{\[]""")
_SURROGATE = re.compile("[\ud800-\udfff]")
_FENCE = re.compile(r"(```|~~~)[\w ]*\n")
_BLANKS = re.compile(r"[\s_-]+")
_MARKS = re.compile(r"[\W_]")
_CODED = re.compile(r"\\u([0-9a-fA-F]{4})")
# A line with a rating alone, or behind a word.
_RATING_LINE = re.compile(r"\A[ \t#*_>]*+\w{0,8}+[ \t:：*_]*+\[\[[^\[\]]*\]\][\s.*_]*+\Z")
_STATEMENT_LISTS = ("statements", "answer", "ground_truth")
_LABEL_CELL = 2
_YES_NO: Final = {"yes": True, "true": True, "是": True, "no": False, "false": False, "否": False}
_MARKDOWN = " \t\r\n*_`\"'“”‘’「」"
_NUMBER = re.compile(r"-?\d{1,9}(?:\.\d{1,9})?")
_SHARE = re.compile(r"(\d{1,9})\s*/\s*(\d{1,9})")


def read_again(text: str, read: Callable[[str], T], question: Question) -> tuple[T, str] | None:
    """Return what `read` makes of a repaired reply, and the repairs with commas between; None where none helps."""
    repaired = _repair_reply(text, question)
    if repaired is None:
        return None
    try:
        return read(orjson.dumps(repaired.value).decode()), ",".join(sorted(repaired.kinds))
    except (UnusableReply, orjson.JSONEncodeError):
        return None


def may_quote_data(text: str, question: Question) -> bool:
    """Return whether a finished reply in the question's data may be read in place of the judge's own.

    An answer can hold one, and a judge that is not fooled by it may quote it, before its own verdict or after it; their
    order shows nothing. So where the data name a key of the reply, a reply with words around its JSON may have one
    object only, and not one that the data have. A rating in marks that the data have too counts alone on the last line.
    """
    plain, data, properties = _take_out(text), join_texts(question.data), _list_properties(question)
    found = [one for one in _find_values(plain, data) if _has_key(one.value, properties)]
    if not found and (ratings := MARKED_RATING.findall(plain)):
        return ratings[-1] in MARKED_RATING.findall(data) and _RATING_LINE.search(plain.rpartition("\n")[2]) is None
    if not _names_key(data, properties) or any(one.is_whole for one in found):
        return False
    try:
        start = plain.index("{")
        value, end = json.JSONDecoder(strict=False).raw_decode(plain, start)
    except (ValueError, RecursionError):
        return True
    letters = _keep_letters(data)
    is_quoted = all(
        _keep_letters(json.dumps(part, ensure_ascii=False)) in letters for part in _list_verdicts(value) or [value]
    )
    return not _has_key(value, properties) or "{" in plain[end:] or is_quoted


def _take_out(text: str) -> str:
    """Return a reply without the thoughts before it and the fence around it."""
    plain = text.rpartition(THOUGHT)[2].strip()
    fence = _FENCE.match(plain)
    if fence is not None and plain.endswith(fence[1]):
        plain = plain[fence.end() :].removesuffix(fence[1]).strip()
    return plain


def _list_properties(question: Question) -> Collection[str]:
    """Return the keys by which a reply is known."""
    assert question.prompt is not None
    return {*question.prompt.reply_schema.get("properties", {}), *VERDICT_LISTS}


def _has_key(value: object, properties: Collection[str]) -> bool:
    return isinstance(value, dict) and not value.keys().isdisjoint(properties)


def _names_key(data: str, properties: Collection[str]) -> bool:
    """Return whether a text has a key as JSON has it, in any quotation marks or escapes, before or behind the word."""
    names = "|".join(map(re.escape, properties))
    mark = "[\"'`“”‘’„«»:{}]"
    named = re.compile(rf"\b(?:{names})\b[\s\\]{{0,4}}{mark}|{mark}[\s\\]{{0,4}}(?:{names})\b", re.IGNORECASE)
    return named.search(_decode(data)) is not None


def _decode(text: str) -> str:
    """Return a text with the characters that escapes of JSON and HTML stand for."""
    decoded = _CODED.sub(lambda coded: chr(int(coded[1], 16)), text) if "\\u" in text else text
    return normalize("NFKC", html.unescape(decoded) if "&" in decoded else decoded)


def _list_verdicts(value: object) -> list[object]:
    """Return the objects in a reply's object: its verdicts, or the grades of its criteria."""
    entries = list(value.values()) if isinstance(value, dict) else []
    parts = [part for entry in entries for part in (entry if isinstance(entry, list) else [entry])]
    return [part for part in parts if isinstance(part, dict)]


def _keep_letters(text: str) -> str:
    """Return the letters and digits of a text alone, in which a quotation in any marks is found."""
    return _MARKS.sub("", _decode(text)).casefold()


@dataclass(frozen=True, kw_only=True)
class _Found:
    """A value in a reply, whether it `is_whole`, the reply with nothing around it, and the repairs of reading it."""

    value: object
    kinds: set[str]
    is_whole: bool = False


def _repair_reply(text: str, question: Question) -> _Found | None:
    """Return the object that was asked for; None where the reply takes no repair, or more than one reading."""
    if question.prompt is None or not text.strip() or ends_in_thoughts(text):
        return None
    if not question.prompt.reply_schema:  # of a judge that reads no prompt
        return None
    plain, material = _take_out(text), join_texts(question.data)
    ids = [item.id for block in question.data.values() if not isinstance(block, str) for item in block]
    labels = {label for of_prefix in question.prompt.labels.values() for label in of_prefix}
    fitter = _Fitter(ids=_map_choices(ids), labels=_map_choices(labels))
    fitting: list[_Found] = []
    for found in _find_values(plain, material):
        fitter.kinds = found.kinds
        fitted = fitter.fit_object(found.value, question.prompt.reply_schema, is_bare=found.is_whole)
        if fitted is not None:
            fitting.append(replace(found, value=fitted))
    if len(fitting) != 1 or not fitting[0].kinds:
        return None
    if "wrapper" in fitting[0].kinds:  # what is within another object may be a quotation
        letters, verdicts = _keep_letters(material), _list_verdicts(fitting[0].value)
        is_quoted = any(_keep_letters(json.dumps(verdict, ensure_ascii=False)) in letters for verdict in verdicts)
        if is_quoted or _names_key(material, _list_properties(question)):
            return None
    return fitting[0]


def _find_values(text: str, material: str) -> list[_Found]:
    """Return the value that is the whole text, else the objects in it; none where one of them cannot be read.

    The objects within that one may be some of its items, and the others would be lost.
    """
    reader = _Reader(text=text, material=material)
    try:
        value = reader.read_value(reader.take_token())
        if not text[reader.place :].strip():
            return [_Found(value=value, kinds=reader.kinds, is_whole=True)]
    except ValueError:
        pass
    found: list[_Found] = []
    place, n_false_starts = text.find("{"), 0
    while place != -1:
        reader = _Reader(text=text, material=material, place=place)
        try:
            found.append(_Found(value=reader.read_value(reader.take_token()), kinds=reader.kinds))
            place = text.find("{", reader.place)
        except ValueError:
            n_false_starts += 1
            if _OPENS_OBJECT.match(text, place) or n_false_starts > _MAX_FALSE_STARTS:
                return []
            place = text.find("{", place + 1)
    return found


@dataclass(kw_only=True)
class _Reader:
    """Reads one value of a text from a `place` on; raises ValueError for what is neither JSON nor a Python literal."""

    text: str
    material: str
    place: int = 0
    kinds: set[str] = field(default_factory=set)

    @cached_property
    def shows_lone(self) -> bool:
        """True for a text with backslashes that make no escape."""
        return _LONE.search(self.text) is not None

    @cached_property
    def quoted(self) -> Collection[str]:
        """The words of the material that begin with backslashes."""
        return {match[0] for match in _ESCAPE.finditer(self.material)}

    def take_token(self) -> re.Match[str]:
        """Return the next token and move behind it."""
        token = _TOKEN.match(self.text, self.place)
        if token is None:
            raise ValueError(f"no token at {self.place}")
        if token["comment"]:
            self.kinds.add("comment")
        self.place = token.end()
        return token

    def read_value(self, token: re.Match[str], depth: int = 0) -> object:
        """Return the value that begins with this token."""
        if depth > _MAX_DEPTH:
            raise ValueError("nested too deep")
        if token["text"] is not None:
            return self._read_text(token["text"])
        if token["number"] is not None:
            return json.loads(token["number"])
        if token["word"] in _JSON_WORDS:
            return _JSON_WORDS[token["word"]]
        if token["word"] in _PYTHON_WORDS:
            self.kinds.add("python")
            return _PYTHON_WORDS[token["word"]]
        if token["mark"] not in ("[", "{"):
            raise ValueError(f"{token[0]!r} does not begin a value")
        closing = "]" if token["mark"] == "[" else "}"
        entries: list[Any] = []
        while (token := self.take_token())["mark"] != closing:
            if closing == "]":
                entries.append(self.read_value(token, depth + 1))
            elif token["text"] is None or self.take_token()["mark"] != ":":
                raise ValueError(f"{token[0]!r} is not a key")
            else:
                entries.append((self._read_text(token["text"]), self.read_value(self.take_token(), depth + 1)))
            separator = self.take_token()["mark"]
            if separator == closing:
                break
            if separator != ",":
                raise ValueError("a comma is missing")
        else:
            if entries:  # the bracket came behind a comma
                self.kinds.add("comma")
        if closing == "]":
            return entries
        if len(dict(entries)) < len(entries):
            raise ValueError("a key came twice")
        return dict(entries)

    def _read_text(self, literal: str) -> str:
        """Return the content of a text in quotation marks."""
        if literal[0] == "'":
            self.kinds.add("python")
        text = _ESCAPE.sub(self._read_escape, literal[1:-1])
        if _SURROGATE.search(text):
            text = join_surrogates(text)
            if "\ufffd" in text:
                self.kinds.add("surrogate")
        return text

    def _read_escape(self, match: re.Match[str]) -> str:
        """Return what backslashes and the word or the character behind them stand for.

        By JSON's rules, unless the material has them as written and not what they stand for by these rules. Without
        such proof a backslash is one where it makes no escape, where it would make a backspace or a form feed, and
        where it begins a command of LaTeX: a short one, which may be a line break before a word, only in a reply with
        backslashes that make no escape.
        """
        written, slashes, rest = match[0], match[1], match[2]
        pairs, sign = "\\" * (len(slashes) // 2), rest[:1]
        if len(slashes) % 2 == 0:
            is_lone, meant = False, pairs + rest
        elif sign == '"':
            return pairs + rest
        elif _CODE_POINT.fullmatch(rest):
            is_lone, meant = sign == "x", pairs + chr(int(rest[1:], 16))  # Python writes \xa0
        elif sign in _CONTROLS:
            is_lone = sign in "bf" or _COMMANDS.fullmatch(rest) is not None
            is_lone = is_lone or (self.shows_lone and _SHORT_COMMANDS.fullmatch(rest) is not None)
            meant = pairs + _CONTROLS[sign] + rest[1:]
        elif sign in ("/", "'"):
            is_lone, meant = False, pairs + rest
            if sign == "'" and "python" not in self.kinds:
                self.kinds.add("backslash")
        else:
            is_lone, meant = True, f"{pairs}\\{rest}"
        if (is_lone or self._is_quoted(written)) and (meant == written or not self._is_quoted(meant)):
            self.kinds.add("backslash")
            return written
        return meant

    def _is_quoted(self, words: str) -> bool:
        """Return whether the material has these words, with as many backslashes before them."""
        return words in self.quoted if words.startswith("\\") else words in self.material


def _map_choices(choices: Iterable[str]) -> dict[str, str]:
    """Return choices by their plain form; choices that share one are left out."""
    by_form: dict[str, set[str]] = {}
    for choice in choices:
        by_form.setdefault(_make_plain(choice), set()).add(choice)
    return {form: named.pop() for form, named in by_form.items() if len(named) == 1}


def _make_plain(text: str) -> str:
    """Return a label or a number without case, blanks, brackets, Markdown and the marks at the end of a sentence."""
    bare = normalize("NFKC", text).strip(_MARKDOWN + "[]()").rstrip(_MARKDOWN + ".,;:!。[]()")
    return _BLANKS.sub("_", bare.casefold())


@dataclass(kw_only=True)
class _Fitter:
    """Gives a value the shape of a schema. A value of another shape stays, and the strict reading refuses it.

    `ids` and `labels` of the question are listed by their plain form.
    """

    ids: Mapping[str, str]
    labels: Mapping[str, str]
    kinds: set[str] = field(default_factory=set)

    def fit_object(self, value: object, schema: Schema, *, is_bare: bool) -> dict[str, Any] | None:
        """Return the object that a schema asks for, None for anything else.

        It may be in one object or list more, as a text of JSON, or with `is_bare` lack the only key.
        """
        properties: Mapping[str, Schema] = schema["properties"]
        value = self._read_json(value)
        if isinstance(value, list) and len(value) == 1 and _has_keys(value[0], properties):
            value = value[0]
            self.kinds.add("wrapper")
        if _has_keys(value, properties):
            assert isinstance(value, dict)
            names_ids = "id" in properties
            return {
                name: self._fit(inner, properties[name], name, names_ids=names_ids) if name in properties else inner
                for name, inner in value.items()
            }
        if is_bare and len(properties) == 1:
            ((name, part),) = properties.items()
            inner = part["items"] if part["type"] == "array" else part
            entries = value if isinstance(value, list) and part["type"] == "array" else [value]
            if entries and all(_is_alike(entry, inner) for entry in entries):
                self.kinds.add("wrapper")
                return {name: self._fit(value, part, name)}
        if not isinstance(value, dict):
            return None
        within = [self._read_json(inner) for inner in value.values()]
        fitting = [inner for inner in within if _has_keys(inner, properties)]
        if len(fitting) != 1:
            return None
        self.kinds.add("wrapper")
        return self.fit_object(fitting[0], schema, is_bare=False)

    def _fit(self, value: object, schema: Schema, name: str, *, names_ids: bool = False) -> object:
        kind = schema["type"]
        if kind == "object":
            fitted = self.fit_object(value, schema, is_bare=False)
            return value if fitted is None else fitted
        if kind == "array":
            return self._fit_list(self._read_json(value), schema["items"], name, names_ids=names_ids)
        if kind == "boolean":
            return self._choose(value, _YES_NO, "yes_no")
        if kind in ("integer", "number"):
            return self._fit_number(value, schema)
        if isinstance(value, dict) and len(value) == 1 and name == "":  # a text in a list
            (inner,) = value.values()
            if isinstance(inner, str):
                self.kinds.add("wrapper")
                return inner
        choices = self.ids if name == "id" else self.labels if name == "label" else _map_choices(schema.get("enum", ()))
        return self._choose(value, choices, "label") if choices else value

    def _fit_list(self, value: object, inner: Schema, name: str, *, names_ids: bool) -> object:
        if isinstance(value, dict) and _is_alike(value, inner):
            self.kinds.add("wrapper")
            value = [value]
        if not isinstance(value, list):
            return value
        if inner["type"] == "array":  # rows: an id, its evidence, its label, the contexts that support it
            for row in value:
                if isinstance(row, list) and len(row) > _LABEL_CELL:
                    row[_LABEL_CELL] = self._choose(row[_LABEL_CELL], self.labels, "label")
            return value
        if name in _STATEMENT_LISTS and inner["type"] == "string":
            texts = [entry for entry in value if not (isinstance(entry, str) and HEADING.search(entry))]
            if 0 < len(texts) < len(value):
                self.kinds.add("heading")
                value = texts
        return [self._fit(entry, inner, "id" if names_ids and inner["type"] == "string" else "") for entry in value]

    def _fit_number(self, value: object, schema: Schema) -> object:
        """Return the number in a text: `7`, `[[7]]`, and `7/10` on a scale that ends with 10."""
        if not isinstance(value, str):
            return value
        plain = _make_plain(value).replace("_", "")
        share = _SHARE.fullmatch(plain)
        if share is not None and int(share[2]) == max(schema.get("enum", [None])):
            plain = share[1]
        if _NUMBER.fullmatch(plain) is None:
            return value
        self.kinds.add("number")
        number = float(plain)
        return int(number) if number == int(number) else number

    def _choose(self, value: object, choices: Mapping[str, T], kind: str) -> object:
        """Return the choice that a text is, written otherwise, or the value."""
        if not isinstance(value, str) or value in choices.values():
            return value
        chosen = choices.get(_make_plain(value))
        if chosen is None:
            return value
        self.kinds.add(kind)
        return chosen

    def _read_json(self, value: object) -> object:
        """Return the object or list in a text of JSON, or the value."""
        if not isinstance(value, str) or value.strip()[:1] not in ("{", "["):
            return value
        try:
            inner = orjson.loads(value)
        except orjson.JSONDecodeError:
            return value
        self.kinds.add("encoding")
        return inner


def _has_keys(value: object, properties: Mapping[str, Schema]) -> bool:
    return isinstance(value, dict) and not properties.keys().isdisjoint(value)


def _is_alike(value: object, schema: Schema) -> bool:
    """Return whether a value is of a schema's type, and an object has all that it requires."""
    if schema["type"] == "object":
        return isinstance(value, dict) and value.keys() >= set(schema["required"])
    return isinstance(value, str if schema["type"] == "string" else list)
