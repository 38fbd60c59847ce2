"""The record of calls during a run: what was asked before, and every new call kept before its reply is used.

Looking up is done by `finder`, keeping by the warehouse's mover.
"""

import time
import uuid
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol

from evalhouse.tasks.asking.finder import ReplyFinder
from evalhouse.tasks.judge.errors import FatalJudgeError
from evalhouse.warehouse.mover import Mover, Segment
from evalhouse.warehouse.rows.calls import RecordedReply, make_request_key
from evalhouse.warehouse.store import Warehouse


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Which Prefect runs a call belongs to."""

    flow_run_id: str | None = None
    task_run_id: str | None = None


_NO_ORIGIN = Origin()
ORIGIN: ContextVar[Origin] = ContextVar("ORIGIN", default=_NO_ORIGIN)


@dataclass(frozen=True, kw_only=True)
class Call:
    """One row of `llm_calls` in the making."""

    step: str
    sample_id: str | None
    prompt: str | None
    prompt_hash: str | None
    judge: str
    model: str | None
    request_hash: str
    status: str
    attempt: int
    request: str | None = None
    reply: str | None = None
    logprobs: str | None = None
    error: str | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    cost_usd: float | None = None
    latency_ms: float | None = None
    reused_call_id: str | None = None
    started_at: float = 0.0


class Record(Protocol):
    """What the call path needs of a record; the dry run has one that keeps nothing."""

    async def find(self, request_hash: str) -> RecordedReply | None:
        """The reply on record for a request, or None."""

    def keep(self, call: Call) -> str:
        """Put a call on record and return its id."""

    def close(self) -> None:
        """Bring what was kept to its place."""


class CallRecord:
    """Looks up and keeps calls for one run. Use inside its event loop; `close` before the process ends."""

    def __init__(self, warehouse: Warehouse, run_id: str, *, fresh: bool = False) -> None:
        self._run_id = run_id
        self._finder = ReplyFinder(warehouse, only_run=run_id if fresh else None)
        self._unmoved: dict[str, RecordedReply] = {}
        self.n_lost = 0  # replies that came and could not be kept
        self._mover = Mover(warehouse, "llm_calls", moved=self._forget)

    async def find(self, request_hash: str) -> RecordedReply | None:
        """The reply on record for a request, or None; raises WarehouseError when the warehouse cannot be read."""
        return self._unmoved.get(request_hash) or await self._finder.find(request_hash)

    def keep(self, call: Call) -> str:
        """Put a call on disk and return its id; raises FatalJudgeError when the disk does not take it."""
        call_id = uuid.uuid4().hex
        origin = ORIGIN.get()
        row: dict[str, object] = {
            "call_id": call_id,
            "run_id": self._run_id,
            "sample_id": call.sample_id,
            "step": call.step,
            "prompt": call.prompt,
            "prompt_hash": call.prompt_hash,
            "judge": call.judge,
            "model": call.model,
            "request_hash": call.request_hash,
            "request_key": make_request_key(call.request_hash),
            "request": call.request,
            "reply": call.reply,
            "logprobs": call.logprobs,
            "status": call.status,
            "error": call.error,
            "attempts": call.attempt,
            "prompt_tokens": call.prompt_tokens,
            "cached_tokens": call.cached_tokens,
            "completion_tokens": call.completion_tokens,
            "cost_usd": call.cost_usd,
            "latency_ms": call.latency_ms,
            "reused_call_id": call.reused_call_id,
            "flow_run_id": origin.flow_run_id,
            "task_run_id": origin.task_run_id,
            "started_at": int((call.started_at or time.time()) * 1e6),
        }
        try:
            self._mover.keep(row)
        except OSError as error:
            self.n_lost += call.reply is not None
            raise FatalJudgeError(
                f"cannot keep a reply on disk beside the warehouse ({error.strerror or error}); "
                "make room and go on with `evalhouse resume`"
            ) from None
        if call.status == "ok" and call.reply is not None:
            self._finder.expect(call.request_hash)
            self._unmoved[call.request_hash] = RecordedReply(call_id=call_id, reply=call.reply, logprobs=call.logprobs)
        if self._mover.failure is not None:  # only now: what was paid for is on disk whatever becomes of the run
            raise FatalJudgeError(f"replies cannot be taken into the warehouse: {self._mover.failure}")
        return call_id

    def close(self) -> None:
        """Move everything into the warehouse; raises WarehouseBusy when the file stays locked (nothing is lost)."""
        self._mover.close()

    def _forget(self, segment: Segment) -> None:
        for row in segment.rows:
            if row["status"] == "ok":
                self._unmoved.pop(str(row["request_hash"]), None)
