"""OpenAI's batches, and its list of models: the requests that OpenAI's own client sends."""

from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import openai
import orjson
from openai.types import Batch

from evalhouse.tasks.asking.batches import BatchLimits, BatchLine, BatchState, describe_lost
from evalhouse.tasks.judge.protocol import FatalJudgeError, JudgeError, ModelReply, ModelRequest, choose_timeout
from evalhouse.tasks.models.dialect import translate_error
from evalhouse.tasks.models.openai_api import parse_answer, parse_completion, write_body
from evalhouse.tasks.models.providers import Access, find_access
from evalhouse.tasks.settings.run import RunSettings
from evalhouse.warehouse.messages import name_setting, shorten

_BATCH_PATH: Final = "/v1/chat/completions"
_BATCH_OVER = ("completed", "failed", "expired", "cancelled")
_BATCH_TAG = "evalhouse_batch"
_TRANSFER_S = 600.0
# The codes of lines for requests that were in the file and never asked.
_NOT_ASKED = ("batch_expired", "batch_cancelled")
# OpenAI limits the tokens of a model that wait in all batches together.
_TOO_MUCH = ("token_limit_exceeded", "request_limit_exceeded")
_CREATED_BEFORE_S = 3600


def _make_client(access: Access, settings: RunSettings) -> openai.AsyncOpenAI:
    """Return a client for requests that no judge sends."""
    return openai.AsyncOpenAI(
        api_key=access.key.get_secret_value(),
        base_url=access.endpoint,
        default_headers=access.headers,
        max_retries=0,
        timeout=choose_timeout(settings.timeout_s, ""),
    )


async def list_models(settings: RunSettings) -> list[str]:
    """Return the models that an OpenAI-compatible endpoint lists; raises JudgeError."""
    access = find_access()
    client = _make_client(access, settings)
    try:
        return [model.id for model in (await client.models.list()).data]
    except openai.OpenAIError as error:
        raise translate_error(error, name=settings.judge, endpoint=access.endpoint) from None
    finally:
        await client.close()


class OpenAIBatches:
    """Batches of chat completions: a file of requests is uploaded, and the answers come as two further files.

    The first of these has the answers, the second the requests that were refused or not asked in time. Requests and
    answers have the shapes that the judge sends and reads by itself.
    """

    limits = BatchLimits(requests=50_000, size=200_000_000)

    def __init__(self, name: str, access: Access, settings: RunSettings, translate: Callable[..., JudgeError]) -> None:
        """Make batches of the judge `name`, whose `translate` makes a JudgeError of any other error."""
        self._client = _make_client(access, settings)
        self._name, self._endpoint, self._translate = name, access.endpoint, translate

    def write_line(self, custom_id: str, request: ModelRequest) -> bytes:
        """Return a request as a line of a batch's file."""
        body = orjson.Fragment(write_body(request.payload))
        return orjson.dumps({"custom_id": custom_id, "method": "POST", "url": _BATCH_PATH, "body": body}) + b"\n"

    def read_line(self, line: BatchLine, request: ModelRequest) -> ModelReply:
        """Return the reply in a line of the results; raises as the judge's `reply` does."""
        try:
            return parse_completion(parse_answer(line.status or 500, line.body, {}), sent=request.payload)
        except JudgeError:
            raise
        except Exception as error:  # no completion, as in `reply`
            raise self._translate(error, sent=request.payload) from None

    async def create(self, file: Path, tag: str) -> BatchState:
        """Upload the file and make a batch of it."""
        with self._translated(), file.open("rb") as opened:
            upload = (f"{tag}.jsonl", opened, "application/jsonl")
            uploaded = await self._client.files.create(file=upload, purpose="batch", timeout=_TRANSFER_S)
            created = await self._client.batches.create(
                completion_window="24h", endpoint=_BATCH_PATH, input_file_id=uploaded.id, metadata={_BATCH_TAG: tag}
            )
        return self._describe(created)

    async def find(self, tag: str, *, since: float, custom_ids: Collection[str]) -> BatchState | None:
        """Return the batch with this tag, searching the newest ones back to `since`."""
        with self._translated():
            async for batch in self._client.batches.list(limit=100):
                if (batch.metadata or {}).get(_BATCH_TAG) == tag:
                    return self._describe(batch)
                if batch.created_at < since - _CREATED_BEFORE_S:
                    break
        return None

    async def look(self, provider_id: str) -> BatchState:
        """Return the state of a batch; one that the endpoint no longer has is over."""
        with self._translated(exists=True), suppress(openai.NotFoundError):
            return self._describe(await self._client.batches.retrieve(provider_id))
        return describe_lost(provider_id)

    async def fetch(self, provider_id: str) -> AsyncIterator[BatchLine]:
        """Yield the lines of both files; a file that is gone has none, and an invalid line counts as not asked."""
        with self._translated(exists=True), suppress(openai.NotFoundError):
            batch = await self._client.batches.retrieve(provider_id)
            for file_id in filter(None, (batch.output_file_id, batch.error_file_id)):
                content = self._client.files.with_streaming_response.content(file_id, timeout=_TRANSFER_S)
                async with content as response:
                    async for text in response.iter_lines():
                        try:
                            row: Any = orjson.loads(text)
                            custom_id, answer, error = str(row["custom_id"]), row.get("response"), row.get("error")
                        except (orjson.JSONDecodeError, LookupError, AttributeError, TypeError):
                            continue
                        code = error.get("code") if isinstance(error, dict) else None
                        if isinstance(answer, dict):
                            status, body = answer.get("status_code"), orjson.dumps(answer.get("body"))
                            status = status if isinstance(status, int) else 500
                            yield BatchLine(custom_id=custom_id, status=status, body=body)
                        elif code in _NOT_ASKED:
                            yield BatchLine(custom_id=custom_id, status=None)
                        else:
                            yield BatchLine(custom_id=custom_id, status=500, body=orjson.dumps({"error": error}))

    async def cancel(self, provider_id: str) -> None:
        """End a batch soon; one that is over stays unchanged."""
        with self._translated(), suppress(openai.BadRequestError, openai.ConflictError, openai.NotFoundError):
            await self._client.batches.cancel(provider_id)

    async def close(self) -> None:
        """Close the client."""
        await self._client.close()

    @contextmanager
    def _translated(self, *, exists: bool = False) -> Iterator[None]:
        """Raise the client's errors as ours.

        For a batch that `exists`, this includes a download that breaks off and an answer that only a proxy can have
        given, which the client raises as errors of its transport and of the answer's shape.
        """
        try:
            yield
        except openai.NotFoundError as error:
            raise FatalJudgeError(
                f"{self._endpoint} has no batches for {self._name} (status 404): {shorten(error.message)}; "
                f"leave {name_setting('batch')} out, or check OPENAI_BASE_URL"
            ) from None
        except Exception as error:  # of the client, or of the transport and the shape of the answer, see above
            if not (exists or isinstance(error, openai.OpenAIError)):
                raise
            raise translate_error(error, name=self._name, endpoint=self._endpoint) from None

    def _describe(self, batch: Batch) -> BatchState:
        counts = batch.request_counts
        problem, is_too_much = None, False
        if batch.status == "failed":
            errors = (batch.errors.data if batch.errors else None) or []
            reasons = "; ".join(dict.fromkeys(error.message or error.code or "" for error in errors))
            is_too_much = any(error.code in _TOO_MUCH for error in errors)
            problem = FatalJudgeError(
                f"{self._endpoint} did not take the batch {batch.id}: {shorten(reasons or 'no reason given')}"
            )
        return BatchState(
            provider_id=batch.id,
            status=batch.status,
            is_over=batch.status in _BATCH_OVER,
            n_done=(counts.completed or 0) + (counts.failed or 0) if counts else 0,
            problem=problem,
            is_too_much=is_too_much,
        )
