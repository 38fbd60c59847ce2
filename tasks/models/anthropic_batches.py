"""Anthropic's message batches: requests are sent in one piece, and results come as lines once all of them are over.

What a request is on its wire, and what an answer says, LangChain's package knows, as for requests that go by
themselves. So both are had from the judge itself, whose model then speaks to a client that reaches no network: it notes
what would have been sent, or answers with what has come by batch. A batch bears no tag of ours: one whose creation was
not answered is known by when it was made and by what is in it.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Mapping
from contextlib import AbstractContextManager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import anthropic
import httpx2
import orjson
from anthropic.types.messages import MessageBatch, MessageBatchIndividualResponse
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import BaseMessage

from evalhouse.tasks.judge.errors import FatalJudgeError, JudgeError
from evalhouse.tasks.judge.protocol import (
    BatchLimits,
    BatchLine,
    BatchState,
    ModelReply,
    ModelRequest,
    describe_lost,
    translated,
)
from evalhouse.warehouse.names import name_setting

T = TypeVar("T")
Invoke = Callable[[list[BaseMessage], Mapping[str, Any]], Awaitable[BaseMessage]]

# It takes 256 MB, which are made and held in one piece here.
LIMITS: Final = BatchLimits(requests=100_000, size=100_000_000)
_PATH: Final = "/v1/messages/batches"
_TRANSFER_S = 600.0
# Between its clock and ours.
_CREATED_BEFORE_S = 60.0
_STATUSES: Final = {
    "invalid_request_error": 400, "authentication_error": 401, "billing_error": 402, "permission_error": 403,
    "not_found_error": 404, "request_too_large": 413, "rate_limit_error": 429, "api_error": 500, "timeout_error": 504,
    "overloaded_error": 529,
}  # fmt: skip


@dataclass(kw_only=True)
class _Slip:
    """One exchange on paper: the answer to give, or else what was `written`."""

    answer: tuple[int, bytes] | None = None
    written: bytes = b""


_SLIP: ContextVar[_Slip | None] = ContextVar("_SLIP", default=None)


def make_invoke(chat: BaseChatModel, *, key: str, address: str) -> Invoke:
    """How a judge's model is asked: over the network, or on paper as long as a slip lies there."""
    paper = httpx2.Client(transport=httpx2.MockTransport(_exchange))
    client = anthropic.Anthropic(api_key=key, base_url=address, max_retries=0, http_client=paper)
    # In the place where the model would keep the client for blocking calls, which are never made otherwise.
    chat.__dict__["_client"] = client

    async def invoke(messages: list[BaseMessage], options: Mapping[str, Any]) -> BaseMessage:
        if _SLIP.get() is None:
            return await chat.ainvoke(messages, **options)
        return chat.invoke(messages, **options)

    return invoke


def _exchange(request: httpx2.Request) -> httpx2.Response:
    slip = _SLIP.get()
    assert slip is not None
    if slip.answer is None:
        slip.written = request.content
        raise httpx2.ConnectError("written, and not sent")
    status, body = slip.answer
    return httpx2.Response(status, content=body, headers={"content-type": "application/json"})


class AnthropicBatches:
    """Message batches at `client`'s address; `reply` is how the judge asks, `translate` makes its errors ours."""

    limits = LIMITS

    def __init__(
        self,
        client: anthropic.AsyncAnthropic,
        *,
        reply: Callable[[ModelRequest], Coroutine[Any, Any, ModelReply]],
        translate: Callable[[Exception], JudgeError],
    ) -> None:
        self._client, self._reply, self._translate = client, reply, translate

    def write_line(self, custom_id: str, request: ModelRequest) -> bytes:
        """A request as it stands in a batch."""
        slip = _Slip()
        try:
            self._exchange(slip, request)
        except JudgeError:
            if not slip.written:
                raise
        return orjson.dumps({"custom_id": custom_id, "params": orjson.Fragment(slip.written)}) + b"\n"

    def read_line(self, line: BatchLine, request: ModelRequest) -> ModelReply:
        """The reply in a line of the results."""
        return self._exchange(_Slip(answer=(line.status or 500, line.body)), request)

    def _exchange(self, slip: _Slip, request: ModelRequest) -> ModelReply:
        token = _SLIP.set(slip)
        try:
            return _finish_at_once(self._reply(request))
        finally:
            _SLIP.reset(token)

    async def create(self, file: Path, tag: str) -> BatchState:
        """Send all requests in one piece."""
        requests = [orjson.Fragment(line) for line in file.read_bytes().splitlines()]
        body = orjson.dumps({"requests": requests})
        with self._translated():
            created = await self._client.post(
                _PATH,
                cast_to=MessageBatch,
                content=body,
                options={"timeout": _TRANSFER_S, "headers": {"Content-Type": "application/json"}},
            )
        return _describe(created)

    async def find(self, tag: str, *, since: float, custom_ids: Collection[str]) -> BatchState | None:
        """A batch that was made since then, of as many requests; of one that is over their ids must be ours as well."""
        with self._translated():
            async for batch in self._client.messages.batches.list(limit=100):
                if batch.created_at.timestamp() < since - _CREATED_BEFORE_S:
                    break
                if _count(batch) == len(custom_ids) and await self._may_be(batch, custom_ids):
                    return _describe(batch)
        return None

    async def _may_be(self, batch: MessageBatch, custom_ids: Collection[str]) -> bool:
        if batch.results_url is None:
            return True
        async for line in self.fetch(batch.id):
            return line.custom_id in custom_ids
        return False

    async def look(self, provider_id: str) -> BatchState:
        """How far a batch is; one that is no longer there is over."""
        with self._translated(), suppress(anthropic.NotFoundError):
            return _describe(await self._client.messages.batches.retrieve(provider_id))
        return describe_lost(provider_id)

    async def fetch(self, provider_id: str) -> AsyncIterator[BatchLine]:
        """The results; those of a batch whose results were deleted are none."""
        with self._translated(), suppress(anthropic.NotFoundError):
            batch = await self._client.messages.batches.retrieve(provider_id)
            if batch.results_url is None:
                return
            async for result in await self._client.messages.batches.results(provider_id, timeout=_TRANSFER_S):
                yield _read_result(result)

    async def cancel(self, provider_id: str) -> None:
        """End a batch soon; one that is over already stays as it is."""
        with (
            self._translated(),
            suppress(anthropic.BadRequestError, anthropic.ConflictError, anthropic.NotFoundError),
        ):
            await self._client.messages.batches.cancel(provider_id)

    def _translated(self) -> AbstractContextManager[None]:
        return translated(anthropic.AnthropicError, self._translate_error)

    def _translate_error(self, error: Exception) -> JudgeError:
        if isinstance(error, anthropic.NotFoundError):
            return FatalJudgeError(
                f"{self._client.base_url} has no message batches (status 404); leave {name_setting('batch')} out, or "
                "check "
                "ANTHROPIC_BASE_URL"
            )
        return self._translate(error)

    async def close(self) -> None:
        """Close the client."""
        await self._client.close()


def _finish_at_once(waiting: Coroutine[Any, Any, T]) -> T:
    """What a coroutine returns that waits for nothing."""
    try:
        waiting.send(None)
    except StopIteration as ended:
        return cast(T, ended.value)
    waiting.close()
    raise RuntimeError("a model that answers on paper has waited for something")


def _count(batch: MessageBatch) -> int:
    counts = batch.request_counts
    return counts.processing + counts.succeeded + counts.errored + counts.canceled + counts.expired


def _describe(batch: MessageBatch) -> BatchState:
    return BatchState(
        provider_id=batch.id,
        status=batch.processing_status,
        is_over=batch.processing_status == "ended",
        n_done=_count(batch) - batch.request_counts.processing,
    )


def _read_result(line: MessageBatchIndividualResponse) -> BatchLine:
    result = line.result
    if result.type == "succeeded":
        return BatchLine(custom_id=line.custom_id, status=200, body=result.message.model_dump_json().encode())
    if result.type == "errored":
        status = _STATUSES.get(result.error.error.type, 500)
        return BatchLine(custom_id=line.custom_id, status=status, body=result.error.model_dump_json().encode())
    return BatchLine(custom_id=line.custom_id, status=None)
