"""What the body of a provider's error tells, whatever its shape.

OpenAI nests message, code, type and param under `error`; others put them at the top, into a list or a `detail`, send a
text in their place, or a proxy's page of HTML. What is to be done about it is decided in `provider_errors`.
"""

import codecs
import re
from collections.abc import Mapping
from dataclasses import dataclass

import orjson

_UNSEEN = re.compile(r"<(script|style|head)\b.*?</\1\s*>|<!--.*?-->", re.IGNORECASE | re.DOTALL)
_TAG = re.compile(r"<[^>]*>")
# OpenRouter's own words are always the same, and those of the provider behind it stand here.
_PASSED_ON = "raw"


@dataclass(frozen=True, kw_only=True)
class ErrorBody:
    """What was told; "" where nothing was. `kind` is what OpenAI calls `type`, `status` a status within the body."""

    message: str
    code: str = ""
    kind: str = ""
    param: str = ""
    status: int | None = None


def read_error_body(content: bytes) -> ErrorBody:
    """What a body tells. One that is no JSON is its own message, a page of HTML without its tags."""
    try:
        body = orjson.loads(content.removeprefix(codecs.BOM_UTF8))
    except orjson.JSONDecodeError:
        return ErrorBody(message=_read_page(content.decode(errors="replace")))
    if isinstance(body, list) and body:
        body = body[0]
    return read_told_error(body.get("error", body) if isinstance(body, dict) else body)


def read_told_error(told: object) -> ErrorBody:
    """What stands under `error`, or in its place."""
    if not isinstance(told, Mapping):
        return ErrorBody(message=_write(told))
    code = told.get("code")
    return ErrorBody(
        message=_read_message(told),
        code=_write(code),
        kind=_write(told.get("type")),
        param=_write(told.get("param")),
        status=code if isinstance(code, int) and 400 <= code < 600 else None,
    )


def _read_message(told: Mapping[str, object]) -> str:
    message = _write(next((told[name] for name in ("message", "detail") if told.get(name)), told))
    metadata = told.get("metadata")
    passed_on = _write(metadata.get(_PASSED_ON)) if isinstance(metadata, Mapping) else ""
    return f"{message}: {passed_on}" if passed_on else message


def _write(value: object) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else orjson.dumps(value, default=str).decode()


def _read_page(text: str) -> str:
    """The words of a page of HTML, or a plain text as it is."""
    if not text.lstrip().startswith("<"):
        return text
    return " ".join(_TAG.sub(" ", _UNSEEN.sub(" ", text)).split())
