"""The settings of the application under test, and values that a setting names and does not hold.

Secrets are not stored: a setting holds `${NAME}` for a variable of the environment, `${secret:NAME}` for a Secret block
and `${variable:NAME}` for a variable of the Prefect server, and the value is filled in when a target is made. All
that can be checked without sending a request is refused here, so that the message names the suite's line.
"""

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

import orjson
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from evalhouse.warehouse.messages import cut, note_secret, suggest

NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|(?:secret|variable):[A-Za-z0-9_][A-Za-z0-9_-]*")
NAMED: Final = re.compile(rf"\$\{{({NAME.pattern})\}}")
"""The form in which a text names one; the group is the name."""
# Our Prefect server may just be starting.
_PATIENCE_S = 60.0
_PAUSE_S = 0.5
_REHEARSING: ContextVar[bool] = ContextVar("rehearsing", default=False)


class NamedValueError(Exception):
    """Prefect does not give a value; the message states which one and why, and no value."""


def describe_name(name: str) -> str:
    """Return the words for a named value, and for the place where it is set."""
    kind, _, rest = name.rpartition(":")
    return {"secret": f"Prefect's Secret block {rest!r}", "variable": f"Prefect's variable {rest!r}"}.get(
        kind, f"the environment's {rest}"
    )


def read_named(name: str) -> str | None:
    """Return the value; None if it is missing or empty. Raises NamedValueError if Prefect cannot be asked."""
    kind, _, rest = name.rpartition(":")
    if not kind:
        return os.environ.get(name) or None
    # Prefect is imported only for a value that it has.
    import httpx  # noqa: PLC0415
    from prefect.client.orchestration import get_client  # noqa: PLC0415
    from prefect.exceptions import ObjectNotFound, PrefectException  # noqa: PLC0415
    from prefect.settings import get_current_settings  # noqa: PLC0415

    if get_current_settings().api.url is None:
        raise NamedValueError("no Prefect server is configured that could have it; set PREFECT_API_URL")
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            with get_client(sync_client=True) as client:
                if kind == "variable":
                    variable = client.read_variable_by_name(rest)
                    return None if variable is None or variable.value is None else str(variable.value) or None
                secret = str(client.read_block_document_by_name(rest, "secret").data["value"])
                note_secret(secret)
                return secret or None
        except ObjectNotFound:
            return None
        except httpx.ConnectError as error:
            if time.monotonic() > deadline:
                raise NamedValueError(f"Prefect's server does not answer: {error}") from None
            time.sleep(_PAUSE_S)
        except (httpx.HTTPError, PrefectException) as error:
            raise NamedValueError(f"Prefect's server does not give it: {type(error).__name__}") from None


def fill_variable(name: str) -> None:
    """Replace `${secret:NAME}` or `${variable:NAME}` in an environment variable by its value: for keys, which all
    clients read from there. Raises NamedValueError.

    A variable of the environment that names another one is left alone: a shell does that.
    """
    match = NAMED.fullmatch(os.environ.get(name, "").strip())
    if match is None or ":" not in match[1] or _REHEARSING.get():
        return
    wanted = f"{name} requires {describe_name(match[1])}"
    try:
        value = read_named(match[1])
    except NamedValueError as error:
        raise NamedValueError(f"{wanted}: {error}") from None
    if value is None:
        raise NamedValueError(f"{wanted}, which is not set; set it")
    note_secret(value)
    os.environ[name] = value


@contextmanager
def nothing_looked_up() -> Iterator[None]:
    """Leave variables alone within this block, in which nothing is sent."""
    token = _REHEARSING.set(True)
    try:
        yield
    finally:
        _REHEARSING.reset(token)


Stream = Literal["sse", "jsonl", "text"]
History = Literal["dataset", "own"]
Method = Literal["GET", "POST", "PUT", "PATCH"]
_KINDS = ("url", "callable", "runnable")
_Positive = Annotated[float, Field(gt=0)]

# A mark of a template, and a variable of the environment in a header.
MARK = re.compile(r"\{\{\s*+([^{}\s]*+(?:\s++[^{}\s]++)*?)\s*+\}\}")
VARIABLE = re.compile(r"\$\{([^{}]*)\}")
METADATA = "metadata."
GIVEN_MARKS = ("contexts", "context_ids")
"""Lists that a request holds only if the application is given the contexts to answer from."""
CONVERSATION = "conversation"
"""The list of messages before the question; an item of a list that is this mark is replaced by all of them."""
_LISTS = (*GIVEN_MARKS, CONVERSATION)
_MARKS = ("question", "sample_id", *_LISTS)
_MARKS_SHOWN = (
    "{{question}}", "{{sample_id}}", "{{metadata.NAME}}", "{{conversation}}", "{{contexts}}", "{{context_ids}}",
)  # fmt: skip
_OBJECT = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_SECRET_HEADERS = ("authorization", "proxy-authorization", "cookie")
_SECRET_ENDS = ("key", "token", "secret", "password")


class TargetSettings(BaseModel):
    """One application: exactly one of `url`, `callable` and `runnable`.

    `body` is a JSON template and `url` may hold the same marks: `{{question}}`, `{{sample_id}}` and `{{metadata.NAME}}`
    stand for the sample's; a text that is a mark alone keeps the value's type. `{{contexts}}` and `{{context_ids}}` are
    lists that the body holds if the application should answer from given contexts, `{{conversation}}` is the list of
    messages before the question. `answer`, `contexts` and `context_ids` are JSONPath (RFC 9535) into the response.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    url: str | None = Field(default=None, description="address of an HTTP endpoint")
    callable: str | None = Field(default=None, description="module:function, sync or async, from question to response")
    runnable: str | None = Field(default=None, description="module:name of a LangChain Runnable, or of its factory")
    method: Method = "POST"
    headers: dict[str, str] = {}
    body: Any = Field(default=None, description='JSON template; without one {"question": …} is sent')
    answer: str = Field(default="$.answer", description="JSONPath of the answer")
    contexts: str | None = Field(default="$.contexts", description="JSONPath of the list of contexts, or of each")
    context_ids: str | None = Field(default=None, description="JSONPath of the contexts' ids, as contexts")
    stream: Stream | None = Field(default=None, description="how a streaming response is framed")
    timeout_s: _Positive = Field(default=60.0, description="seconds one response may take, all of it")
    attempts: int = Field(default=3, ge=1, le=50, description="times one question is asked before it has failed")
    concurrency: int = Field(default=4, ge=1, le=1024, description="questions in flight at once")
    rpm: int | None = Field(default=None, ge=1, description="questions per minute")
    history: History = Field(
        default="dataset",
        description="whose answers the earlier turns of a conversation hold",
    )
    stop_early: bool = Field(default=True, description="end the asking when the first questions all fail")
    repeats: int = Field(default=0, ge=0, le=20, description="further times a share of the questions is asked")
    repeat_share: float = Field(default=0.1, gt=0, le=1, description="share of the questions that is asked again")

    @field_validator("url")
    @classmethod
    def check_url(cls, url: str | None) -> str | None:
        if url is None:
            return None
        where = MARK.sub("mark", url)
        try:
            parts = urlsplit(where)
            is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
            has_user = parts.username is not None or parts.password is not None
        except ValueError:  # a port that is not a number, half a bracket
            is_address, has_user = False, False
        head = re.match(r"[^:]+://[^/?#]*", url)
        if not is_address:
            problem: str | None = f"{cut(url, 120)!r} is not an address; write it like http://localhost:8000/ask"
        elif has_user:
            problem = (
                "a user and a password in the address would be kept on record; "
                'send them as a header, Authorization = "Basic ${NAME}", with the environment\'s value'
            )
        elif any(character.isspace() for character in where):
            problem = f"{cut(url, 120)!r} has white space in it; write it as %20"
        elif head and MARK.search(head[0]):
            problem = "the host of the address may not contain a mark"
        else:
            problem = _find_text_problem(url)
        if problem:
            raise PydanticCustomError("target_url", "{problem}", {"problem": problem})
        return url

    @field_validator("callable", "runnable")
    @classmethod
    def check_object(cls, name: str | None) -> str | None:
        if name is not None and not _OBJECT.fullmatch(name):
            raise PydanticCustomError("target_object", "write it as module:name, like bots.search:ask")
        return name

    @field_validator("headers")
    @classmethod
    def check_headers(cls, headers: dict[str, str]) -> dict[str, str]:
        for name, value in headers.items():
            variables = VARIABLE.findall(value)
            wrong = [variable for variable in variables if not NAME.fullmatch(variable)]
            problem = None
            if not _HEADER_NAME.fullmatch(name):
                problem = f"{name!r} is not the name of a header"
            elif wrong:
                problem = (
                    f"header {name}: ${{{wrong[0]}}} names no variable of the environment; write it like "
                    "${BOT_TOKEN}, or ${secret:bot-token} for a Secret block of Prefect"
                )
            elif MARK.search(value):
                allowed = "a header may hold ${NAME} from the environment"
                problem = f"header {name}: marks belong into body and url; {allowed}"
            elif any(character in value for character in "\r\n\0"):
                problem = f"header {name} has a line break in it"
            elif not variables and is_secret_header(name):
                problem = (
                    f"header {name}: its value would be kept on record; write ${{NAME}} for a variable of the "
                    "environment and set that"
                )
            if problem:
                raise PydanticCustomError("target_header", "{problem}", {"problem": problem})
        return headers

    @field_validator("body")
    @classmethod
    def check_body(cls, body: Any) -> Any:  # noqa: ANN401  # any JSON
        """Return the template as data; one that is a text is parsed as JSON."""
        if isinstance(body, str):
            try:
                body = orjson.loads(body)
            except orjson.JSONDecodeError as error:
                raise PydanticCustomError(
                    "target_body",
                    "a body that is text has to be JSON, with its marks within quotes, like {example}; {reason}",
                    {"example": '\'{"query": "{{question}}"}\'', "reason": str(error)},
                ) from None
        for text in find_texts(body):
            if problem := _find_text_problem(text):
                raise PydanticCustomError("target_body", "{problem}", {"problem": problem})
        return body

    @model_validator(mode="after")
    def check_kind(self) -> "TargetSettings":
        given = [name for name in _KINDS if getattr(self, name) is not None]
        if len(given) != 1:
            came = " and ".join(given) or "none of them"
            raise PydanticCustomError("target_kind", f"give exactly one of url, callable and runnable; got {came}")
        unused: tuple[str, ...] = ()
        if self.url is None:
            unused = ("method", "headers", "body", "answer", "contexts", "context_ids", "stream")
        elif self.stream == "text":
            unused = ("answer", "context_ids")
        fields = type(self).model_fields
        if names := [name for name in unused if getattr(self, name) != fields[name].get_default()]:
            raise PydanticCustomError(
                "target_unused",
                "{names} would not be used with {reason}; leave it out",
                {"names": ", ".join(names), "reason": "stream = 'text'" if self.url is not None else given[0]},
            )
        # Every request holds its question.
        holds_question = self.url is None or (self.body is None and self.method != "GET")
        if not holds_question:
            texts = (str(self.url), *find_texts(self.body))
            holds_question = any("question" in MARK.findall(text) for text in texts)
        if not holds_question:
            raise PydanticCustomError(
                "target_question",
                "no request would hold its question; put the mark for it, {mark}, into {where}",
                {"mark": "{{question}}", "where": "the url" if self.body is None else "the body"},
            )
        return self


def find_texts(template: object) -> Iterator[str]:
    """Yield every text of a JSON template, names of members too."""
    if isinstance(template, str):
        yield template
    elif isinstance(template, dict):
        for name, member in template.items():
            yield from find_texts(name)
            yield from find_texts(member)
    elif isinstance(template, list):
        for item in template:
            yield from find_texts(item)


def is_secret_header(name: str) -> bool:
    """Return True if the value of a header of this name is usually a secret."""
    words = re.split(r"[-_]", name.lower())
    return name.lower() in _SECRET_HEADERS or words[-1] in _SECRET_ENDS or name.lower().endswith("apikey")


def _find_text_problem(text: str) -> str | None:
    """Return what is wrong with the marks of a template."""
    for name in MARK.findall(text):
        if name in _LISTS and not MARK.fullmatch(text):
            mark = f"{{{{{name}}}}}"
            return f"the mark {mark} is a list; let it stand alone as a member of body, like {name} = '{mark}'"
        if name not in _MARKS and not name.removeprefix(METADATA).strip() == name[len(METADATA) :] != "":
            return f"unknown mark {{{{{name}}}}}; {suggest(f'{{{{{name}}}}}', _MARKS_SHOWN)}"
    if any(NAME.fullmatch(name) for name in VARIABLE.findall(text)):
        return (
            f"{cut(text, 120)!r} names a variable of the environment, and those go into headers alone, "
            "where they are kept off the record"
        )
    return None
