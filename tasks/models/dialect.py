"""The differences between chat endpoints: the options that each takes, and its errors.

A request is written as OpenAI has it today. A refused option is left out from then on, or sent in another way where
there is one: `max_tokens` for `max_completion_tokens`, fewer alternatives for log-probabilities, the system message at
the head of the user's, and the form of the reply in steps from a schema that names the ids down to words alone.
"""

import codecs
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urljoin

import orjson

from evalhouse.tasks.judge.protocol import (
    NEW_RUN,
    NOT_TAKEN,
    FatalJudgeError,
    JudgeError,
    RefusedRequest,
    TransientJudgeError,
    UnsupportedOption,
    UnsupportedParameter,
    UnusableReply,
    parse_retry_after,
)
from evalhouse.tasks.models.providers import OPENAI_VARIABLES, Variables
from evalhouse.warehouse.messages import join_surrogates, name_setting, redact, shorten, write_error

# --- options

# The forms of a reply in the order in which they are given up.
_IDS, _SCHEMA, _OBJECT, _WORDS = "ids", "schema", "json_object", "words"
FORMS: Final = (_IDS, _SCHEMA, _OBJECT, _WORDS)
_IN_WORDS: Final = {
    _IDS: "a schema that names the ids",
    _SCHEMA: "the schema of a prompt",
    _OBJECT: "json_object",
    _WORDS: "words alone",
}
# OpenAI gives twenty alternatives, most others that give any at least five.
_FEWER_LOGPROBS: Final = 5
_LOGPROBS: Final = ("logprobs", "top_logprobs")
_MAX_TOKENS: Final = ("max_completion_tokens", "max_tokens")  # the name for models that think, and the one before


@dataclass(kw_only=True)
class Dialect:
    """The requests that one endpoint takes, learned from its refusals and remembered for the run.

    `forms` are the forms of a reply that it may support, from FORMS and in their order. `max_tokens` is its name for
    the limit of a reply; `needs_temperature` states what for, if a run cannot do without one. Requests that were in
    flight when an option was refused are refused as well; they are written again, and change nothing more.
    """

    forms: Sequence[str] = FORMS
    max_tokens: str = _MAX_TOKENS[0]
    needs_temperature: str | None = None
    dropped: list[UnsupportedParameter] = field(default_factory=list)
    _left_out: set[str] = field(default_factory=set)
    _top_logprobs: int | None = None
    _merges_system: bool = False

    def write(self, payload: Mapping[str, object]) -> dict[str, object]:
        """Return a request as this endpoint takes it."""
        written = {name: value for name, value in payload.items() if name not in self._left_out}
        if "max_tokens" in written:
            written[self.max_tokens] = written.pop("max_tokens")
        if self._top_logprobs is not None and "top_logprobs" in written:
            written["top_logprobs"] = self._top_logprobs
        if self._merges_system:
            messages: Sequence[Mapping[str, str]] = payload["messages"]  # type: ignore[assignment]  # a chat's
            system = [message["content"] for message in messages if message["role"] == "system"]
            first, *others = [message for message in messages if message["role"] != "system"]
            head = "\n\n".join([*system, first["content"]])
            written["messages"] = [{"role": "user", "content": head}, *others]
        return written

    def note_refusal(self, error: UnsupportedOption, sent: Mapping[str, object]) -> JudgeError:
        """Learn from a refusal, and return UnsupportedOption if the request is to be sent again without the option.

        Returns FatalJudgeError if the run needs the option or its value, and RefusedRequest if no option that was sent
        is named, so that its name only happens to be in the message.
        """
        words, is_value = str(error), error.is_value
        messages = sent.get("messages")
        has_system = isinstance(messages, list) and any(message["role"] == "system" for message in messages)
        limit = next((name for name in _MAX_TOKENS if name in sent), None)
        for option in error.options:
            if option == "system" and has_system:
                self._merges_system = True
                return self._drop("system", words, instead="its words at the head of the user's")
            if option == "max_tokens" and limit == _MAX_TOKENS[0]:
                self.max_tokens = _MAX_TOKENS[1]
                return self._drop(limit, words, instead=_MAX_TOKENS[1])
            if option == "max_tokens" and limit:
                self._left_out.add("max_tokens")
                return self._drop(limit, words)
            if option not in sent:
                continue
            if option == "response_format":
                form = sent[option]
                refused = _IDS if "maxItems" in str(form) else _SCHEMA
                if isinstance(form, Mapping) and form.get("type") == "json_object":
                    refused = _OBJECT
                # The next simpler form, unless another request has led there already.
                later = FORMS[FORMS.index(refused) + 1 :]
                self.forms = [form for form in self.forms if form in later] or [_WORDS]
                instead = _IN_WORDS[self.forms[0]]
                return self._drop(_IN_WORDS[refused], words, instead=instead, field_name="response_format")
            n_asked = sent.get("top_logprobs")
            if option in _LOGPROBS and is_value and isinstance(n_asked, int) and n_asked > _FEWER_LOGPROBS:
                self._top_logprobs = _FEWER_LOGPROBS
                return self._drop(f"top_logprobs={n_asked}", words, instead=f"top_logprobs={_FEWER_LOGPROBS}")
            if option in _LOGPROBS:
                self._left_out |= set(_LOGPROBS)
                return self._drop("logprobs", words)
            if option == "temperature" and self.needs_temperature:
                return FatalJudgeError(
                    f"the endpoint does not take temperature ({words}), and {self.needs_temperature}"
                )
            if option == "reasoning_effort" and is_value:
                return FatalJudgeError(
                    f"the endpoint does not take {name_setting('reasoning_effort', str(sent[option]))}: {words}; "
                    f"{NEW_RUN}, or with none at all"
                )
            self._left_out.add(option)
            return self._drop(option, words)
        return RefusedRequest(f"refused: {error}", unexplained=True)

    def _drop(self, option: str, words: str, *, instead: str | None = None, field_name: str = "") -> UnsupportedOption:
        if all(dropped.option != option for dropped in self.dropped):
            self.dropped.append(UnsupportedParameter(option=option, instead=instead, words=words))
        named = f"{field_name} ({option})" if field_name else option
        return UnsupportedOption(f"{NOT_TAKEN}{named}: {words}", options=(option,))


# --- errors

# So much of an error is read; a message quotes a few hundred characters of it.
MAX_ERROR_BYTES = 64 * 1024
# OpenRouter's own words are always the same; the words of the provider behind it are in this member.
_PASSED_ON = "raw"
# Pages of proxies.
_HEADINGS = [re.compile(rf"<{tag}[^<>]*>([^<>]+)", re.IGNORECASE) for tag in ("h1", "title")]
_TAG = re.compile(r"<[^<>]*>")


@dataclass(frozen=True, kw_only=True)
class ErrorBody:
    """The error in a body, "" for what is missing. `kind` is OpenAI's `type`, `status` a status within the body."""

    message: str
    code: str = ""
    kind: str = ""
    param: str = ""
    status: int | None = None


class StatusError(Exception):
    """The endpoint answered with an error. The fields are named as in the errors of `openai`."""

    def __init__(self, status_code: int, headers: Mapping[str, str], body_error: ErrorBody) -> None:
        self.status_code = status_code
        self.headers = headers
        self.message = body_error.message
        self.code = body_error.code
        self.type = body_error.kind
        self.param = body_error.param
        super().__init__(self.message)


def parse_error_body(content: bytes) -> ErrorBody:
    """Return the error in a body. A text that is not JSON is its own message, an HTML page its heading."""
    try:
        body = orjson.loads(content.removeprefix(codecs.BOM_UTF8))
    except orjson.JSONDecodeError:
        text = content.decode(errors="replace")
        if text.lstrip().startswith("<"):
            heading = next((match for tag in _HEADINGS if (match := tag.search(text))), None)
            text = " ".join((heading[1] if heading else _TAG.sub(" ", text)).split())
        return ErrorBody(message=text)
    if isinstance(body, list) and body:
        body = body[0]
    return parse_error(body.get("error", body) if isinstance(body, dict) else body)


def parse_error(field: object) -> ErrorBody:
    """Return the error in the member `error` of a body, or in its place."""

    def write(value: object) -> str:
        return "" if value is None else value if isinstance(value, str) else orjson.dumps(value, default=str).decode()

    if not isinstance(field, Mapping):
        return ErrorBody(message=write(field))
    code = field.get("code")
    message = write(next((field[name] for name in ("message", "detail") if field.get(name)), field))
    metadata = field.get("metadata")
    passed_on = write(metadata.get(_PASSED_ON)) if isinstance(metadata, Mapping) else ""
    return ErrorBody(
        message=f"{message}: {passed_on}" if passed_on else message,
        code=write(code),
        kind=write(field.get("type")),
        param=write(field.get("param")),
        status=code if isinstance(code, int) and 400 <= code < 600 else None,
    )


_LENGTH = re.compile(
    r"maximum (?:context|model) length|context (?:length|window|size)|(?:prompt|input) is too long|request too large"
    r"|input token count|reduce the length|range of input length|must have less than \d+ tokens"
)
_LENGTH_CODES = ("context_length_exceeded", "string_above_max_length", "exceed_context_size_error")
_FILTER = re.compile(r"content[ _](?:filter|policy|management)|inappropriate content|data[ _]inspection|moderation")
_SCHEMA_OPTION = re.compile(
    r"response[ _](?:format|schema|json)|json[ _]schema|structured output|guided decoding|output_?(?:config|format)"
    r"|responsejsonschema"
)
_SCHEMA_REFUSED = re.compile(r"(?:response[ _]format|json[ _]schema).{0,80}(?:must|not supported|unsupported|unknown)")
_TEMPERATURE = re.compile(
    r"temperature.{0,80}(?:unsupported|not supported|does not support|deprecated|default|must be)"
    r"|(?:unsupported|not support).{0,80}temperature"
)
_LOGPROB = re.compile(r"log_?prob")
# Our options by the words for them; the first that was sent is the one that is meant.
_OPTIONS = {
    "temperature": _TEMPERATURE,
    "response_format": _SCHEMA_OPTION,
    "seed": re.compile(r"\bseed\b"),
    "top_logprobs": re.compile(r"top_?log_?prob"),
    "logprobs": _LOGPROB,
    "max_tokens": re.compile(r"max_(?:completion_|output_)?tokens"),
    "reasoning_effort": re.compile(r"reasoning[_. ]?effort|thinking"),
    "system": re.compile(r"system role|developer instruction|\[0\]\.role|'system'"),
}
# OpenAI's other names for parameters that it does not take.
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
# A quota that is used up has a separate code; the words alone are also used for limits that pass within a minute.
_UNPAID_CODE = re.compile(
    r"insufficient_(?:user_)?quota|exceeded_current_quota|billing|insufficient_(?:balance|credit|fund)|arrear"
)
_UNPAID = re.compile(
    r"billing (?:hard )?limit|billing details|insufficient (?:account )?(?:balance|credit|funds)|in arrears"
    r"|account is in good standing|credit balance is too low"
)
# The model's reply did not fit the schema, which the next one may; Groq sends this with status 400.
_MISFIT_CODES = ("json_validate_failed",)
_PASSING = (408, 409, 425, 429, 499)
# Errors that stop the run, by status or by the words: the problem, and how to fix it.
_FATAL: Mapping[int | str, tuple[str, str]] = {
    "quota": ("says the quota for {name} is used up", "add credit or raise it there"),
    "redirect": (
        "redirects to {target}",
        "which is not followed; set {address} to the address that answers itself",
    ),
    "model": ("does not know {name}", f"{NEW_RUN} model; `evalhouse doctor` lists the models that it has"),
    401: ("refused the key for {name}", "check {key}"),
    402: ("requires payment before {name} answers", "add credit there"),
    404: ("answers no chat requests", "check {address}{usual}"),
}
_SAME_AS = {403: 401, 405: 404, 501: 404}
_UNIT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_UNIT = r"ms|[smhd](?:ec(?:ond)?s?|in(?:ute)?s?|(?:ou)?rs?|ays?)?(?![a-z])"
_WAIT = re.compile(rf"(?:try again in|retry in|retry after|wait) ((?:\d+(?:\.\d+)?\s?(?:{_UNIT})\s?)+)")
_WAIT_PART = re.compile(rf"(\d+(?:\.\d+)?)\s?({_UNIT})")


def translate_error(
    error: Exception, *, name: str, endpoint: str, variables: Variables = OPENAI_VARIABLES
) -> JudgeError:
    """Return the error of any chat model as a JudgeError: fatal, transient, or a refusal of this one request.

    Providers agree on HTTP statuses and on little else, so the status decides, then the code, and the words of a
    message only where nothing better is available. `variables` hold endpoint and key.
    """
    if isinstance(error, JudgeError):
        return error
    status = getattr(error, "status_code", None)
    if not isinstance(status, int):
        # No connection, one that broke, or a reply that no client could read.
        chain: list[BaseException] = []
        cause: BaseException | None = error
        while cause is not None:
            chain.append(cause)
            cause = cause.__cause__
        text = shorten(redact(": ".join(filter(None, dict.fromkeys(map(write_error, chain))))))
        kinds = {kind.__name__ for item in chain for kind in type(item).__mro__}
        if kinds & {"ClientConnectorCertificateError", "SSLCertVerificationError"}:
            return FatalJudgeError(
                f"the certificate of {endpoint} is not trusted: {text}; "
                f"check {variables.address}, or name a file with the certificates to trust in SSL_CERT_FILE"
            )
        unreachable = not kinds.isdisjoint(("ConnectError", "ClientConnectorError"))
        return TransientJudgeError(f"{type(error).__name__}: {text}", unreachable=unreachable)
    text = (
        shorten(redact(join_surrogates(str(getattr(error, "message", None) or write_error(error))))) or "(no message)"
    )
    words = text.lower()
    code, kind, param = (str(getattr(error, field, None) or "").lower() for field in ("code", "type", "param"))
    headers: Mapping[str, str] = (
        getattr(error, "headers", None) or getattr(getattr(error, "response", None), "headers", None) or {}
    )

    # Errors that local servers send with status 500 in place of a refusal: llama.cpp and its descendants for schemas,
    # chat templates without a system role.
    if status == 500 and (_SCHEMA_REFUSED.search(words) or "system role" in words):
        return UnsupportedOption(text, options=["response_format" if _SCHEMA_REFUSED.search(words) else "system"])

    # DashScope gives the code of a used-up quota to a limit per minute ("allocated quota").
    names_quota = _UNPAID_CODE.search(f"{code} {kind}") or (status in (400, 403) and _UNPAID.search(words))
    is_unpaid = bool(names_quota) and status < 500 and "allocated quota" not in words
    known_status = _SAME_AS.get(status, status)
    if not is_unpaid and (status in _PASSING or (status >= 500 and known_status not in _FATAL)):
        if status == 429 and "request too large" in words:
            return RefusedRequest(f"too long for the endpoint's limit of tokens a minute: {text}", too_long=True)
        wait_s = parse_retry_after(headers)
        if wait_s is None and (match := _WAIT.search(words)):  # as Gemini, Groq and Azure write it
            parts = _WAIT_PART.findall(match[1])
            wait_s = sum(float(number) * _UNIT_S["ms" if unit == "ms" else unit[0]] for number, unit in parts)
        return TransientJudgeError(f"status {status}: {text}", retry_after_s=wait_s, rate_limited=status in (425, 429))

    # Errors that stop the run. A page of HTML comes from a proxy or a firewall, not from the model's server.
    is_filtered = bool("content_filter" in code or "content_policy" in code or _FILTER.search(words))
    is_page = headers.get("content-type", "").lower().startswith("text/html")
    is_other_403 = status == 403 and (is_page or is_filtered or _LOGPROB.search(words))
    fatal: int | str | None = None if is_other_403 else known_status
    if is_unpaid:
        fatal = "quota"
    elif 300 <= status < 400:
        fatal = "redirect"
    elif fatal not in (401, 402) and (
        code in _MODEL_CODES or _NO_MODEL.search(words) or (status == 404 and "model" in words)
    ):
        fatal = "model"
    if fatal is not None and fatal in _FATAL:
        problem, advice = _FATAL[fatal]
        values = {
            "name": name,
            "target": redact(urljoin(f"{endpoint}/chat/completions", headers.get("location", ""))),
            "key": variables.key,
            "address": variables.address,
            "usual": variables.usual,
        }
        return FatalJudgeError(
            f"{endpoint} {problem.format(**values)} (status {status}): {text}; {advice.format(**values)}"
        )

    # What is wrong with this one request.
    if code in _LENGTH_CODES or status == 413 or _LENGTH.search(words):
        return RefusedRequest(f"too long for the model: {text}", too_long=True)
    if is_filtered:
        return RefusedRequest(f"content filter: {text}")
    if code in _MISFIT_CODES:
        return UnusableReply(f"the reply did not fit the schema: {text}")
    # The endpoint names the option in a separate field, or in its message.
    named = _PARAMETERS.get(param, param)
    options = [
        option
        for option, pattern in _OPTIONS.items()
        if named.startswith(option) or (not named and pattern.search(words))
    ]
    if options:
        return UnsupportedOption(text, options=options, is_value=_VALUE.search(words) is not None)
    return RefusedRequest(f"status {status}: {text}", unexplained=True)
