"""How the application under test is asked: the `[target]` of a suite, strict and typed.

Secrets are no part of it: a header holds `${NAME}`, and the environment's value goes in when a request is made.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

Stream = Literal["sse", "jsonl", "text"]
Method = Literal["GET", "POST", "PUT", "PATCH"]
_KINDS = ("url", "callable", "runnable")
_Positive = Annotated[float, Field(gt=0)]


class TargetSettings(BaseModel):
    """One application: exactly one of `url`, `callable` and `runnable`.

    `body` is a JSON template and `url` may hold the same marks: `{{question}}`, `{{sample_id}}` and `{{metadata.NAME}}`
    stand for the sample's; a text that is a mark alone keeps the value's type. `answer`, `contexts` and `context_ids`
    are JSONPath (RFC 9535) into the response.
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

    @model_validator(mode="after")
    def _check_kind(self) -> "TargetSettings":
        given = [name for name in _KINDS if getattr(self, name) is not None]
        if len(given) != 1:
            came = " and ".join(given) or "none of them"
            raise PydanticCustomError("target_kind", f"give exactly one of url, callable and runnable; got {came}")
        return self
