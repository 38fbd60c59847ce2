"""The errors of model providers as ours: what may pass, what never will, what stops the run.

Providers agree on HTTP statuses and on little else, so the status decides, then the code, and the words of a message
only where nothing better is there. Whatever text goes on from here has no key in it.
"""

import os
import re
from collections.abc import Iterator, Mapping

from tasks.judge_errors import FatalJudgeError, JudgeError, RefusedRequest, TransientJudgeError, UnsupportedOption
from tasks.rate_headers import read_rate_limits

_KEY_LIKE = re.compile(r"\b(?:sk|pk|rk)-[\w*.\-]{4,}|[Bb]earer\s+\S+|(?<=://)[^\s/@]+@")
_KEY_VARIABLES = ("OPENAI_API_KEY", "AZURE_OPENAI_API_KEY", "DASHSCOPE_API_KEY", "ANTHROPIC_API_KEY")
_LENGTH = re.compile(r"maximum context length|context (?:length|window)|(?:prompt|input) is too long")
_FILTER = re.compile(r"content[ _](?:filter|policy|management)|inappropriate content|data[ _]inspection|moderation")
_SCHEMA = re.compile(r"response[ _]format|json[ _]schema|structured output|guided decoding")
_TEMPERATURE = re.compile(
    r"temperature.{0,80}(?:unsupported|not supported|does not support|deprecated|default|must be)"
    r"|(?:unsupported|not support).{0,80}temperature"
)
_SEED = re.compile(r"\bseed\b")
_NO_MODEL = re.compile(
    r"model.{0,120}(?:not found|does not exist|not exist|is not a valid|unknown)|(?:invalid|unknown|not a valid) model"
)
_PASSING = (408, 409, 425, 429)


def translate_error(error: Exception, *, name: str, endpoint: str) -> JudgeError:
    """The error of any chat model as one of ours."""
    if isinstance(error, JudgeError):
        return error
    status = getattr(error, "status_code", None)
    if not isinstance(status, int):
        return _translate_unsent(error)
    text = shorten(redact(str(getattr(error, "message", None) or error)))
    if status in _PASSING or status >= 500:
        return _translate_passing(error, status, text, name=name, endpoint=endpoint)
    return _translate_lasting(error, status, text, name=name, endpoint=endpoint)


def redact(text: str) -> str:
    """Take everything that is a key, or looks like one, out of a text."""
    for variable in _KEY_VARIABLES:
        key = os.environ.get(variable, "")
        if len(key) >= 8:
            text = text.replace(key, "[key]")
    return _KEY_LIKE.sub("[key]", text)


def shorten(text: str, limit: int = 400) -> str:
    """A text on one line, cut where it is longer than a message should be."""
    flat = " ".join(text.split())
    return flat if len(flat) <= limit else f"{flat[:limit]} …"


def _translate_unsent(error: Exception) -> JudgeError:
    """An error without a status: no connection, a connection that broke, or a reply that no client could read."""
    chain = list(_walk_causes(error))
    told = [str(item) for item in chain if str(item)]
    text = shorten(redact(": ".join(dict.fromkeys(told))))
    unreachable = any(type(item).__name__ in ("ConnectError", "ClientConnectorError") for item in chain)
    return TransientJudgeError(f"{type(error).__name__}: {text}", unreachable=unreachable)


def _walk_causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def _translate_passing(error: Exception, status: int, text: str, *, name: str, endpoint: str) -> JudgeError:
    retry_after_s = _read_retry_after(error)
    if status == 429 and _read_field(error, "code") == "insufficient_quota" and "allocated quota" not in text.lower():
        return FatalJudgeError(f"{endpoint} says the quota for {name} is used up: {text}")
    return TransientJudgeError(
        f"status {status}: {text}",
        retry_after_s=retry_after_s,
        rate_limited=status in (425, 429),
        limits=read_rate_limits(_read_headers(error)),
    )


def _translate_lasting(error: Exception, status: int, text: str, *, name: str, endpoint: str) -> JudgeError:
    code, lowered = _read_field(error, "code"), text.lower()
    filtered = "content_filter" in code or "content_policy" in code or _FILTER.search(lowered)
    if status == 401 or (status == 403 and not filtered):
        return FatalJudgeError(f"{endpoint} refused the key for {name} (status {status}): {text}; check OPENAI_API_KEY")
    if status == 402:
        return FatalJudgeError(f"{endpoint} wants to be paid before {name} answers (status 402): {text}")
    if status == 404 or code == "model_not_found" or _NO_MODEL.search(lowered):
        return FatalJudgeError(f"{endpoint} does not know {name} (status {status}): {text}")
    if code in ("context_length_exceeded", "string_above_max_length") or status == 413 or _LENGTH.search(lowered):
        return RefusedRequest(f"too long for the model: {text}")
    if filtered:
        return RefusedRequest(f"content filter: {text}")
    return _find_unsupported(error, lowered, text) or RefusedRequest(f"status {status}: {text}")


def _find_unsupported(error: Exception, lowered: str, text: str) -> UnsupportedOption | None:
    """Which of our options the endpoint does not take. It names it apart, or in words of its own."""
    named = _read_field(error, "param")
    for option, pattern in (("temperature", _TEMPERATURE), ("response_format", _SCHEMA), ("seed", _SEED)):
        if named.startswith(option) or (not named and pattern.search(lowered)):
            return UnsupportedOption(f"the endpoint does not take {option}: {text}", option=option)
    return None


def _read_field(error: Exception, field: str) -> str:
    return str(getattr(error, field, None) or "").lower()


def _read_headers(error: Exception) -> Mapping[str, str]:
    return getattr(error, "headers", None) or getattr(getattr(error, "response", None), "headers", None) or {}


def _read_retry_after(error: Exception) -> float | None:
    """Seconds that the endpoint asks to wait. The date form is rare among providers and is read as not given."""
    headers = _read_headers(error)
    for header, scale in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            return max(0.0, float(headers[header]) * scale)
        except (KeyError, ValueError):
            continue
    return None
