"""OpenAI's batches: a file of requests is uploaded, a batch is made of it, and its answers come as two further files.

The first of these has what was answered, the second what was refused and what was not asked in time. Requests and
answers have the shapes that the judge sends and reads by itself.
"""

from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any, Final

import openai
import orjson
from openai.types import Batch

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
from evalhouse.tasks.models.errors import translate_error
from evalhouse.warehouse.messages import shorten
from evalhouse.warehouse.names import name_setting

LIMITS: Final = BatchLimits(requests=50_000, size=200_000_000)
_PATH: Final = "/v1/chat/completions"
_OVER = ("completed", "failed", "expired", "cancelled")
_TAG = "evalhouse_batch"
_TRANSFER_S = 600.0
# What was in the file and was never asked: these are the codes of lines that stand for it.
_NOT_ASKED = ("batch_expired", "batch_cancelled")
# OpenAI allows so many tokens of a model to wait in all batches together.
_TOO_MUCH = ("token_limit_exceeded", "request_limit_exceeded")
_CREATED_BEFORE_S = 3600

Shape = Callable[[Mapping[str, object]], Mapping[str, object]]
Read = Callable[[int, bytes, ModelRequest], ModelReply]


class OpenAIBatches:
    """Batches of chat completions at `client`'s endpoint; `shape` is a request on the wire, `read` reads an answer."""

    limits = LIMITS

    def __init__(self, client: openai.AsyncOpenAI, *, name: str, endpoint: str, shape: Shape, read: Read) -> None:
        self._client, self._name, self._endpoint, self._shape, self._read = client, name, endpoint, shape, read

    def write_line(self, custom_id: str, request: ModelRequest) -> bytes:
        """A request as it stands in a batch's file."""
        body = self._shape(request.payload)
        return orjson.dumps({"custom_id": custom_id, "method": "POST", "url": _PATH, "body": body}) + b"\n"

    def read_line(self, line: BatchLine, request: ModelRequest) -> ModelReply:
        """The reply in a line of the results."""
        return self._read(line.status or 500, line.body, request)

    async def create(self, file: Path, tag: str) -> BatchState:
        """Upload the file and make a batch of it."""
        with self._translated(), file.open("rb") as opened:
            upload = (f"{tag}.jsonl", opened, "application/jsonl")
            uploaded = await self._client.files.create(file=upload, purpose="batch", timeout=_TRANSFER_S)
            created = await self._client.batches.create(
                completion_window="24h", endpoint=_PATH, input_file_id=uploaded.id, metadata={_TAG: tag}
            )
        return self._describe(created)

    async def find(self, tag: str, *, since: float, custom_ids: Collection[str]) -> BatchState | None:
        """The batch with this tag; the newest are looked through, and no further than those made before it."""
        with self._translated():
            async for batch in self._client.batches.list(limit=100):
                if (batch.metadata or {}).get(_TAG) == tag:
                    return self._describe(batch)
                if batch.created_at < since - _CREATED_BEFORE_S:
                    break
        return None

    async def look(self, provider_id: str) -> BatchState:
        """How far a batch is; one that the endpoint no longer has is over."""
        with self._translated(), suppress(openai.NotFoundError):
            return self._describe(await self._client.batches.retrieve(provider_id))
        return describe_lost(provider_id)

    async def fetch(self, provider_id: str) -> AsyncIterator[BatchLine]:
        """The lines of both files; a file that is gone has none."""
        with self._translated(), suppress(openai.NotFoundError):
            batch = await self._client.batches.retrieve(provider_id)
            for file_id in filter(None, (batch.output_file_id, batch.error_file_id)):
                content = self._client.files.with_streaming_response.content(file_id, timeout=_TRANSFER_S)
                async with content as response:
                    async for text in response.iter_lines():
                        if (line := _read_result(text)) is not None:
                            yield line

    async def cancel(self, provider_id: str) -> None:
        """End a batch soon; one that is over already stays as it is."""
        with self._translated(), suppress(openai.BadRequestError, openai.ConflictError, openai.NotFoundError):
            await self._client.batches.cancel(provider_id)

    async def close(self) -> None:
        """Close the client."""
        await self._client.close()

    def _translated(self) -> AbstractContextManager[None]:
        return translated(openai.OpenAIError, self._translate)

    def _translate(self, error: Exception) -> JudgeError:
        if isinstance(error, openai.NotFoundError):
            return FatalJudgeError(
                f"{self._endpoint} has no batches for {self._name} (status 404): {shorten(error.message)}; "
                f"leave {name_setting('batch')} out, or check OPENAI_BASE_URL"
            )
        return translate_error(error, name=self._name, endpoint=self._endpoint)

    def _describe(self, batch: Batch) -> BatchState:
        counts = batch.request_counts
        problem, is_too_much = None, False
        if batch.status == "failed":
            errors = (batch.errors.data if batch.errors else None) or []
            said = "; ".join(dict.fromkeys(error.message or error.code or "" for error in errors)) or "no reason given"
            is_too_much = any(error.code in _TOO_MUCH for error in errors)
            problem = FatalJudgeError(f"{self._endpoint} did not take the batch {batch.id}: {shorten(said)}")
        return BatchState(
            provider_id=batch.id,
            status=batch.status,
            is_over=batch.status in _OVER,
            n_done=counts.completed + counts.failed if counts else 0,
            problem=problem,
            is_too_much=is_too_much,
        )


def _read_result(text: str) -> BatchLine | None:
    """A line of either file; None for one that cannot be read, whose request then counts as not asked."""
    try:
        row: Any = orjson.loads(text)
        custom_id, response, error = row["custom_id"], row.get("response"), row.get("error")
    except (orjson.JSONDecodeError, LookupError, AttributeError, TypeError):
        return None
    if isinstance(response, dict):
        status = response.get("status_code")
        return BatchLine(
            custom_id=str(custom_id),
            status=status if isinstance(status, int) else 500,
            body=orjson.dumps(response.get("body")),
        )
    code = error.get("code") if isinstance(error, dict) else None
    if code in _NOT_ASKED:
        return BatchLine(custom_id=str(custom_id), status=None)
    return BatchLine(custom_id=str(custom_id), status=500, body=orjson.dumps({"error": error}))
