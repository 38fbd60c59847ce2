"""The errors of model providers as ours: what may pass, what never will, what stops the run.

Providers agree on HTTP statuses and on little else, so the status decides, then the code, and the words of a message
only where nothing better is there. Bodies differ as well: OpenAI nests message, code, type and param under `error`;
others put them at the top, into a list or a `detail`, send a text in their place, or a proxy's page of HTML. Whatever
text goes on from here has no key in it.
"""

import codecs
import re
from collections.abc import Iterator, Mapping
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
    """What a body says. One that is not JSON is its own message, a page of HTML without its tags."""
    try:
        body = orjson.loads(content.removeprefix(codecs.BOM_UTF8))
    except orjson.JSONDecodeError:
        return ErrorBody(message=_read_page(content.decode(errors="replace")))
    if isinstance(body, list) and body:
        body = body[0]
    return read_error_field(body.get("error", body) if isinstance(body, dict) else body)


def read_error_field(field: object) -> ErrorBody:
    """What stands under `error`, or in its place."""
    if not isinstance(field, Mapping):
        return ErrorBody(message=_write(field))
    code = field.get("code")
    return ErrorBody(
        message=_read_message(field),
        code=_write(code),
        kind=_write(field.get("type")),
        param=_write(field.get("param")),
        status=code if isinstance(code, int) and 400 <= code < 600 else None,
    )


def _read_message(field: Mapping[str, object]) -> str:
    message = _write(next((field[name] for name in ("message", "detail") if field.get(name)), field))
    metadata = field.get("metadata")
    passed_on = _write(metadata.get(_PASSED_ON)) if isinstance(metadata, Mapping) else ""
    return f"{message}: {passed_on}" if passed_on else message


def _write(value: object) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else orjson.dumps(value, default=str).decode()


def _read_page(text: str) -> str:
    """The words of a page of HTML, or a plain text as it is. Each letter is looked at once, however odd the page is."""
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


@dataclass(frozen=True, kw_only=True)
class _ProviderError:
    """An error with a status as it is looked at here; all but `text` in lower case. `kind` is its `type`."""

    status: int
    text: str
    lowered: str
    code: str
    kind: str
    param: str
    headers: Mapping[str, str]

    @property
    def is_page(self) -> bool:
        """Whether a page for people came, as from a proxy or a firewall and never from a model's endpoint."""
        return self.headers.get("content-type", "").lower().startswith("text/html")


def translate_error(
    error: Exception, *, name: str, endpoint: str, variables: Variables = OPENAI_VARIABLES
) -> JudgeError:
    """The error of any chat model as one of ours; `variables` are those that the endpoint and its key come from."""
    if isinstance(error, JudgeError):
        return error
    status = getattr(error, "status_code", None)
    if not isinstance(status, int):
        return _translate_unsent(error, endpoint=endpoint, variables=variables)
    text = shorten(redact(str(getattr(error, "message", None) or error))) or "(nothing more was said)"
    answer = _ProviderError(
        status=status,
        text=text,
        lowered=text.lower(),
        code=_read_field(error, "code"),
        kind=_read_field(error, "type"),
        param=_read_field(error, "param"),
        headers=_read_headers(error),
    )
    if _is_unpaid(answer):
        return FatalJudgeError(
            f"{endpoint} says the quota for {name} is used up (status {status}): {text}; add credit or raise it there"
        )
    if status == 500 and (option := _find_unsupported_by_server(answer)):
        return UnsupportedOption(text, options=[option])
    if status in _PASSING or (status >= 500 and status not in _WRONG_PLACE):
        return _translate_passing(answer)
    return _find_fatal(answer, name=name, endpoint=endpoint, variables=variables) or _translate_refusal(answer)


def _translate_unsent(error: Exception, *, endpoint: str, variables: Variables) -> JudgeError:
    """An error without a status: no connection, a connection that broke, or a reply that no client could read."""
    chain = list(_walk_causes(error))
    texts = [str(item) for item in chain if str(item)]
    text = shorten(redact(": ".join(dict.fromkeys(texts))))
    kinds = {kind.__name__ for item in chain for kind in type(item).__mro__}
    if kinds.intersection(_WRONG_CERTIFICATE):
        return FatalJudgeError(
            f"the certificate of {endpoint} is not trusted: {text}; "
            f"check {variables.address}, or name a file with the certificates to trust in SSL_CERT_FILE"
        )
    unreachable = not kinds.isdisjoint(("ConnectError", "ClientConnectorError"))
    return TransientJudgeError(f"{type(error).__name__}: {text}", unreachable=unreachable)


def _walk_causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def _is_unpaid(answer: _ProviderError) -> bool:
    """Whether nothing goes on until somebody pays or raises a limit.

    DashScope gives the code of a used-up quota to a limit per minute ("allocated quota").
    """
    if answer.status >= 500 or "allocated quota" in answer.lowered:
        return False
    if _UNPAID_CODE.search(f"{answer.code} {answer.kind}"):
        return True
    return answer.status in (400, 403) and _UNPAID.search(answer.lowered) is not None


def _translate_passing(answer: _ProviderError) -> JudgeError:
    if answer.status == 429 and "request too large" in answer.lowered:
        return RefusedRequest(f"too long for the endpoint's limit of tokens a minute: {answer.text}", too_long=True)
    return TransientJudgeError(
        f"status {answer.status}: {answer.text}",
        retry_after_s=_read_retry_after(answer),
        rate_limited=answer.status in (425, 429),
    )


def _find_fatal(answer: _ProviderError, *, name: str, endpoint: str, variables: Variables) -> FatalJudgeError | None:
    """What stops the run, with what to do about it."""
    status, text = answer.status, answer.text
    is_key = status == 403 and not answer.is_page and not _is_filtered(answer) and not _LOGPROBS.search(answer.lowered)
    if status == 401 or is_key:
        return FatalJudgeError(
            f"{endpoint} refused the key for {name} (status {status}): {text}; check {variables.key}"
        )
    if status == 402:
        return FatalJudgeError(
            f"{endpoint} wants to be paid before {name} answers (status 402): {text}; add credit there"
        )
    if 300 <= status < 400:
        target = redact(urljoin(f"{endpoint}/chat/completions", answer.headers.get("location", "")))
        return FatalJudgeError(
            f"{endpoint} redirects to {target} (status {status}), which is not followed; "
            f"set {variables.address} to the address that answers itself"
        )
    if answer.code in _MODEL_CODES or _NO_MODEL.search(answer.lowered) or (status == 404 and "model" in answer.lowered):
        return FatalJudgeError(
            f"{endpoint} does not know {name} (status {status}): {text}; name a model that it has, "
            "`evalhouse doctor` asks for a list"
        )
    if status in _WRONG_PLACE:
        return FatalJudgeError(
            f"{endpoint} answers no chat requests (status {status}): {text}; check {variables.address}{variables.usual}"
        )
    return None


def _translate_refusal(answer: _ProviderError) -> JudgeError:
    """What is wrong with this one request."""
    too_long = answer.code in ("context_length_exceeded", "string_above_max_length", "exceed_context_size_error")
    if too_long or answer.status == 413 or _LENGTH.search(answer.lowered):
        return RefusedRequest(f"too long for the model: {answer.text}", too_long=True)
    if _is_filtered(answer):
        return RefusedRequest(f"content filter: {answer.text}")
    if answer.code in _MISFIT_CODES:
        return UnusableReply(f"the reply did not fit the schema: {answer.text}")
    unexplained = RefusedRequest(f"status {answer.status}: {answer.text}", unexplained=True)
    return _find_unsupported(answer) or unexplained


def _is_filtered(answer: _ProviderError) -> bool:
    coded = "content_filter" in answer.code or "content_policy" in answer.code
    return coded or _FILTER.search(answer.lowered) is not None


def _find_unsupported(answer: _ProviderError) -> UnsupportedOption | None:
    """Which of our options the endpoint does not take. It names it apart, or in words of its own."""
    named = _PARAMETERS.get(answer.param, answer.param)
    options = [
        option
        for option, pattern in _OPTIONS.items()
        if named.startswith(option) or (not named and pattern.search(answer.lowered))
    ]
    is_value = _VALUE.search(answer.lowered) is not None
    return UnsupportedOption(answer.text, options=options, is_value=is_value) if options else None


def _find_unsupported_by_server(answer: _ProviderError) -> str | None:
    """What a local server breaks over instead of refusing it."""
    if _SCHEMA_REFUSED.search(answer.lowered):
        return "response_format"  # llama.cpp said so until late 2024, and what was made of it then says so still
    return "system" if "system role" in answer.lowered else None  # a chat template that knows none


def _read_field(error: Exception, field: str) -> str:
    return str(getattr(error, field, None) or "").lower()


def _read_headers(error: Exception) -> Mapping[str, str]:
    return getattr(error, "headers", None) or getattr(getattr(error, "response", None), "headers", None) or {}


def _read_retry_after(answer: _ProviderError) -> float | None:
    """Seconds that the endpoint asks to wait, in a header or, as Gemini, Groq and Azure do, in words."""
    seconds = parse_retry_after(answer.headers)
    if seconds is not None:
        return seconds
    match = _WAIT.search(answer.lowered)
    if match is None:
        return None
    return sum(float(n) * _UNIT_S["ms" if unit == "ms" else unit[0]] for n, unit in _WAIT_PART.findall(match[1]))
