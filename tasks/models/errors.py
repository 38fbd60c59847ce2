"""The errors of model providers as ours: what may pass, what never will, what stops the run.

Providers agree on HTTP statuses and on little else, so the status decides, then the code, and the words of a message
only where nothing better is there. Bodies differ as well: OpenAI nests message, code, type and param under `error`;
others put them at the top, into a list or a `detail`, send a text in their place, or a proxy's page of HTML. Whatever
text goes on from here has no key in it.
"""

import codecs
import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urljoin

import orjson

from evalhouse.tasks.judge.errors import (
    FatalJudgeError,
    JudgeError,
    RefusedRequest,
    TransientJudgeError,
    UnsupportedOption,
    UnusableReply,
    parse_retry_after,
)
from evalhouse.warehouse.messages import redact, shorten

# So much of an error is read; what is said of it has a few hundred characters.
MOST_ERROR_BYTES = 64 * 1024
_UNSEEN = ("script", "style", "head")
# OpenRouter's own words are always the same, and those of the provider behind it stand here.
_PASSED_ON = "raw"


@dataclass(frozen=True, kw_only=True)
class ErrorBody:
    """What a body says, "" for nothing. `kind` is what OpenAI calls `type`, `status` a status within the body."""

    message: str
    code: str = ""
    kind: str = ""
    param: str = ""
    status: int | None = None


def read_error_body(content: bytes) -> ErrorBody:
    """Return what a body says. One that is not JSON is its own message, a page of HTML without its tags."""
    try:
        body = orjson.loads(content.removeprefix(codecs.BOM_UTF8))
    except orjson.JSONDecodeError:
        return ErrorBody(message=_read_page(content.decode(errors="replace")))
    if isinstance(body, list) and body:
        body = body[0]
    return read_error_field(body.get("error", body) if isinstance(body, dict) else body)


def read_error_field(field: object) -> ErrorBody:
    """Return what is under `error`, or in its place."""
    if not isinstance(field, Mapping):
        return ErrorBody(message=_write(field))
    code = field.get("code")
    message = _write(next((field[name] for name in ("message", "detail") if field.get(name)), field))
    metadata = field.get("metadata")
    passed_on = _write(metadata.get(_PASSED_ON)) if isinstance(metadata, Mapping) else ""
    return ErrorBody(
        message=f"{message}: {passed_on}" if passed_on else message,
        code=_write(code),
        kind=_write(field.get("type")),
        param=_write(field.get("param")),
        status=code if isinstance(code, int) and 400 <= code < 600 else None,
    )


def _write(value: object) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else orjson.dumps(value, default=str).decode()


def _read_page(text: str) -> str:
    """Return the words of a page of HTML, or a plain text as it is, in one pass over its letters."""
    if not text.lstrip().startswith("<"):
        return text
    words: list[str] = []
    ends_with = ""
    for piece in text.split("<")[1:]:
        tag, _, after = piece.partition(">")
        name = "".join(tag[:8].lower().split()[:1])
        if not ends_with:
            ends_with = "--" if tag.startswith("!--") else f"/{name}" if name in _UNSEEN else ""
            words += [] if ends_with else [after]
        if ends_with == "--" and "-->" in piece:
            ends_with = ""
            words.append(piece.rpartition("-->")[2])
        elif ends_with and name == ends_with:
            ends_with = ""
            words.append(after)
    return " ".join(" ".join(words).split())


@dataclass(frozen=True, kw_only=True)
class Variables:
    """The variables of the environment that a message says to look at, and what an address usually looks like."""

    key: str
    address: str
    usual: str = ""


OPENAI_VARIABLES = Variables(key="OPENAI_API_KEY", address="OPENAI_BASE_URL", usual=", which usually ends in /v1")


_LENGTH = re.compile(
    r"maximum (?:context|model) length|context (?:length|window|size)|(?:prompt|input) is too long|request too large"
    r"|input token count|reduce the length|range of input length|must have less than \d+ tokens"
)
_FILTER = re.compile(r"content[ _](?:filter|policy|management)|inappropriate content|data[ _]inspection|moderation")
_SCHEMA = re.compile(
    r"response[ _](?:format|schema|json)|json[ _]schema|structured output|guided decoding|output_?(?:config|format)"
    r"|responsejsonschema"
)
_SCHEMA_REFUSED = re.compile(r"(?:response[ _]format|json[ _]schema).{0,80}(?:must|not supported|unsupported|unknown)")
_TEMPERATURE = re.compile(
    r"temperature.{0,80}(?:unsupported|not supported|does not support|deprecated|default|must be)"
    r"|(?:unsupported|not support).{0,80}temperature"
)
_LOGPROBS = re.compile(r"log_?prob")
_SYSTEM = re.compile(r"system role|developer instruction|\[0\]\.role|'system'")
# Our options by the words for them; the first that was sent is the one that is meant.
_OPTIONS = {
    "temperature": _TEMPERATURE,
    "response_format": _SCHEMA,
    "seed": re.compile(r"\bseed\b"),
    "top_logprobs": re.compile(r"top_?log_?prob"),
    "logprobs": _LOGPROBS,
    "max_tokens": re.compile(r"max_(?:completion_|output_)?tokens"),
    "reasoning_effort": re.compile(r"reasoning[_. ]?effort|thinking"),
    "system": _SYSTEM,
}
# OpenAI names what it does not take by other names as well.
_PARAMETERS = {
    "max_completion_tokens": "max_tokens",
    "reasoning.effort": "reasoning_effort",
    "messages[0].role": "system",
    "response_format.type": "response_format",
}
_VALUE = re.compile(
    r"(?:supported|allowed|valid) values|(?:must|should) be (?:one of|between|at most|less|in)|input should be"
    r"|expected one of|greater than|at most"
)
_MODEL_CODES = ("model_not_found", "modelnotfound", "deploymentnotfound")
_NO_MODEL = re.compile(
    r"model.{0,120}(?:not found|does not exist|not exist|is not a valid|unknown)|model identifier is invalid"
    r"|(?:invalid|unknown|not a valid) model"
)
# A quota that is used up has a code of its own; the words alone are also used for limits that pass within a minute.
_UNPAID_CODE = re.compile(
    r"insufficient_(?:user_)?quota|exceeded_current_quota|billing|insufficient_(?:balance|credit|fund)|arrear"
)
_UNPAID = re.compile(
    r"billing (?:hard )?limit|billing details|insufficient (?:account )?(?:balance|credit|funds)|in arrears"
    r"|account is in good standing|credit balance is too low"
)
# The model's reply did not fit the schema, which the next one may; Groq says so with status 400.
_MISFIT_CODES = ("json_validate_failed",)
# No answer can come from an address that says one of these to a request for a completion.
_WRONG_PLACE = (404, 405, 501)
_PASSING = (408, 409, 425, 429, 499)
_WRONG_CERTIFICATE = ("ClientConnectorCertificateError", "SSLCertVerificationError")
_UNIT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_UNIT = r"ms|[smhd](?:ec(?:ond)?s?|in(?:ute)?s?|(?:ou)?rs?|ays?)?(?![a-z])"
_WAIT = re.compile(rf"(?:try again in|retry in|retry after|wait) ((?:\d+(?:\.\d+)?\s?(?:{_UNIT})\s?)+)")
_WAIT_PART = re.compile(rf"(\d+(?:\.\d+)?)\s?({_UNIT})")


def translate_error(
    error: Exception, *, name: str, endpoint: str, variables: Variables = OPENAI_VARIABLES
) -> JudgeError:
    """Return the error of any chat model as one of ours: fatal, transient, or a refusal of this one request.

    `variables` are those that the endpoint and its key come from.
    """
    if isinstance(error, JudgeError):
        return error
    status = getattr(error, "status_code", None)
    if not isinstance(status, int):
        return _translate_unsent(error, endpoint=endpoint, variables=variables)
    text = shorten(redact(str(getattr(error, "message", None) or error))) or "(nothing more was said)"
    words = text.lower()
    code, kind, param = (str(getattr(error, field, None) or "").lower() for field in ("code", "type", "param"))
    headers: Mapping[str, str] = (
        getattr(error, "headers", None) or getattr(getattr(error, "response", None), "headers", None) or {}
    )

    # DashScope gives the code of a used-up quota to a limit per minute ("allocated quota").
    is_unpaid = _UNPAID_CODE.search(f"{code} {kind}") or (status in (400, 403) and _UNPAID.search(words))
    if is_unpaid and status < 500 and "allocated quota" not in words:
        return FatalJudgeError(
            f"{endpoint} says the quota for {name} is used up (status {status}): {text}; add credit or raise it there"
        )

    # What a local server breaks over instead of refusing it: llama.cpp said so of schemas until late 2024, and what
    # was made of it still does; a chat template may have no system role.
    if status == 500 and _SCHEMA_REFUSED.search(words):
        return UnsupportedOption(text, options=["response_format"])
    if status == 500 and "system role" in words:
        return UnsupportedOption(text, options=["system"])

    if status in _PASSING or (status >= 500 and status not in _WRONG_PLACE):
        if status == 429 and "request too large" in words:
            return RefusedRequest(f"too long for the endpoint's limit of tokens a minute: {text}", too_long=True)
        wait_s = parse_retry_after(headers)
        if wait_s is None and (match := _WAIT.search(words)):  # as Gemini, Groq and Azure write it
            parts = _WAIT_PART.findall(match[1])
            wait_s = sum(float(number) * _UNIT_S["ms" if unit == "ms" else unit[0]] for number, unit in parts)
        return TransientJudgeError(f"status {status}: {text}", retry_after_s=wait_s, rate_limited=status in (425, 429))

    # What stops the run, with what to do about it. A page of HTML comes from a proxy or a firewall.
    is_filtered = bool("content_filter" in code or "content_policy" in code or _FILTER.search(words))
    is_page = headers.get("content-type", "").lower().startswith("text/html")
    if status == 401 or (status == 403 and not is_page and not is_filtered and not _LOGPROBS.search(words)):
        return FatalJudgeError(
            f"{endpoint} refused the key for {name} (status {status}): {text}; check {variables.key}"
        )
    if status == 402:
        return FatalJudgeError(
            f"{endpoint} requires payment before {name} answers (status 402): {text}; add credit there"
        )
    if 300 <= status < 400:
        target = redact(urljoin(f"{endpoint}/chat/completions", headers.get("location", "")))
        return FatalJudgeError(
            f"{endpoint} redirects to {target} (status {status}), which is not followed; "
            f"set {variables.address} to the address that answers itself"
        )
    if code in _MODEL_CODES or _NO_MODEL.search(words) or (status == 404 and "model" in words):
        return FatalJudgeError(
            f"{endpoint} does not know {name} (status {status}): {text}; name a model that it has, "
            "`evalhouse doctor` asks for a list"
        )
    if status in _WRONG_PLACE:
        return FatalJudgeError(
            f"{endpoint} answers no chat requests (status {status}): {text}; check {variables.address}{variables.usual}"
        )

    # What is wrong with this one request.
    too_long = code in ("context_length_exceeded", "string_above_max_length", "exceed_context_size_error")
    if too_long or status == 413 or _LENGTH.search(words):
        return RefusedRequest(f"too long for the model: {text}", too_long=True)
    if is_filtered:
        return RefusedRequest(f"content filter: {text}")
    if code in _MISFIT_CODES:
        return UnusableReply(f"the reply did not fit the schema: {text}")
    # The endpoint names the option apart, or in its message.
    named = _PARAMETERS.get(param, param)
    options = [
        option
        for option, pattern in _OPTIONS.items()
        if named.startswith(option) or (not named and pattern.search(words))
    ]
    if options:
        return UnsupportedOption(text, options=options, is_value=_VALUE.search(words) is not None)
    return RefusedRequest(f"status {status}: {text}", unexplained=True)


def _translate_unsent(error: Exception, *, endpoint: str, variables: Variables) -> JudgeError:
    """Return an error without a status: no connection, one that broke, or a reply that no client could read."""
    chain: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None:
        chain.append(cause)
        cause = cause.__cause__
    text = shorten(redact(": ".join(dict.fromkeys(str(item) for item in chain if str(item)))))
    kinds = {kind.__name__ for item in chain for kind in type(item).__mro__}
    if kinds.intersection(_WRONG_CERTIFICATE):
        return FatalJudgeError(
            f"the certificate of {endpoint} is not trusted: {text}; "
            f"check {variables.address}, or name a file with the certificates to trust in SSL_CERT_FILE"
        )
    unreachable = not kinds.isdisjoint(("ConnectError", "ClientConnectorError"))
    return TransientJudgeError(f"{type(error).__name__}: {text}", unreachable=unreachable)
