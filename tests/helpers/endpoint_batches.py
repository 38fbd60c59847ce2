"""The local endpoint with batches: OpenAI's files and batches beside its completions, and a bill of what was asked.

Each line of a batch is answered as the same request would be that came by itself, with the same script and faults of
content; what may go wrong with a batch is told by `Trouble`. A batch is worked off the first time somebody looks after
`takes_s`. `paid` counts every request that was answered, however it came, by its texts.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import orjson
from aiohttp import web
from endpoint import CHAT, Endpoint
from endpoint_options import Chances, Options, Raw, make_error, refuse_request
from endpoint_replies import Asked, read_chat
from endpoint_wires import ANTHROPIC, Wire

Texts = tuple[str, ...]


@dataclass(kw_only=True)
class Trouble:
    """What goes wrong, once each in this order of batches: `fail` gives the errors of one that is not taken, `expire`
    the share of lines that is not asked, `refuse_lines` the status of lines by texts. Results come in any order, some
    twice, with an id that nobody knows."""

    fail: list[dict[str, Any]] = field(default_factory=list)
    expire: list[float] = field(default_factory=list)
    answer_line: Callable[[Asked], Raw | None] = lambda _: None
    lose_created: int = 0  # so many batches are made, and nobody is told
    unreachable: int = 0  # so many looks are answered 503
    disorder: bool = True


@dataclass(frozen=True, kw_only=True)
class Form:
    """How a provider's batches say what came of a line: of one that was answered, and of one that was left."""

    wire: Wire
    answer: Callable[[Raw], dict[str, Any]]
    leave: Callable[[str], dict[str, Any]]


def _answer_file(raw: Raw) -> dict[str, Any]:
    return {"response": {"status_code": raw.status, "request_id": "req_1", "body": raw.body}, "error": None}


def _leave_file(status: str) -> dict[str, Any]:
    return {"response": None, "error": {"code": f"batch_{status}", "message": "It could not be executed."}}


def _answer_message(raw: Raw) -> dict[str, Any]:
    said = {"type": "succeeded", "message": raw.body} if raw.status == 200 else {"type": "errored", "error": raw.body}
    return {"result": said}


def _leave_message(status: str) -> dict[str, Any]:
    return {"result": {"type": {"cancelled": "canceled"}.get(status, status)}}


FILES = Form(wire=Wire(path=CHAT), answer=_answer_file, leave=_leave_file)
MESSAGES = Form(wire=ANTHROPIC, answer=_answer_message, leave=_leave_message)


@dataclass(kw_only=True)
class Made:
    """A batch; `lines` are those of its file, `answered` and `failed` those of its results."""

    batch_id: str
    tag: str
    lines: list[dict[str, Any]]
    created_at: float
    status: str = "validating"
    expire: float = 0.0
    errors: list[dict[str, Any]] = field(default_factory=list)
    answered: list[bytes] = field(default_factory=list)
    failed: list[bytes] = field(default_factory=list)
    form: Form = FILES

    def show_messages(self, root_url: str) -> dict[str, Any]:
        """As Anthropic shows a batch."""
        done = self.status in ("completed", "expired", "cancelled")
        at = datetime.fromtimestamp(self.created_at, UTC).isoformat()
        left = {"succeeded": len(self.lines), "errored": 0, "canceled": 0, "expired": 0} if done else {}
        none = {"succeeded": 0, "errored": 0, "canceled": 0, "expired": 0}
        return {
            "id": self.batch_id, "type": "message_batch", "created_at": at, "expires_at": at, "archived_at": None,
            "ended_at": at if done else None, "cancel_initiated_at": None,
            "processing_status": "ended" if done else "in_progress",
            "request_counts": {"processing": 0 if done else len(self.lines), **(left or none)},
            "results_url": f"{root_url}/v1/messages/batches/{self.batch_id}/results" if done else None,
        }  # fmt: skip


class BatchEndpoint(Endpoint):
    """The endpoint with batches that take `takes_s` seconds; None takes until they are cancelled."""

    def __init__(self, options: Options, *, takes_s: float | None = 0.2, trouble: Trouble | None = None) -> None:
        super().__init__(options)
        self.takes_s = takes_s
        self.trouble = trouble or Trouble()
        self.files: dict[str, bytes] = {}
        self.batches: dict[str, Made] = {}
        self.paid: Counter[Texts] = Counter()
        self._dice = random.Random(options.seed)

    @property
    def paid_twice(self) -> list[Texts]:
        """What was answered more than once."""
        return [texts for texts, number in self.paid.items() if number > 1]

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        match (request.method, *request.path.strip("/").split("/")[1:]):
            case ("POST", "files"):
                answer = await self._take_file(request)
            case ("GET", "files", file_id, "content"):
                found = self.files.get(file_id)
                answer = web.Response(body=found) if found is not None else self._send(make_error(404, "No such File"))
            case ("POST", "batches"):
                answer = self._create(orjson.loads(await request.content.read()))
            case ("GET", "batches"):
                data = [self._show(batch) for batch in reversed(self.batches.values())]
                answer = self._send(Raw(body={"object": "list", "data": data, "has_more": False}))
            case ("GET", "batches", batch_id):
                answer = self._look(batch_id)
            case ("POST", "batches", batch_id, "cancel"):
                answer = self._cancel(batch_id)
            case ("POST", "messages", "batches"):
                body = orjson.loads(await request.content.read())
                answer = self._make([{**line, "body": line["params"]} for line in body["requests"]], "", MESSAGES)
            case ("GET", "messages", "batches"):
                data = [batch.show_messages(self.root_url) for batch in reversed(self.batches.values())]
                ends = {"first_id": None, "last_id": None, "has_more": False}
                answer = self._send(Raw(body={"data": data, **ends}))
            case ("GET", "messages", "batches", batch_id):
                answer = self._look(batch_id)
            case ("GET", "messages", "batches", batch_id, "results"):
                made = self.batches[batch_id]
                lines = [line for line in (*made.answered, *made.failed) if line]
                answer = web.Response(body=b"\n".join(lines) + b"\n", content_type="application/x-jsonl")
            case ("POST", "messages", "batches", batch_id, "cancel"):
                answer = self._cancel(batch_id)
            case _:
                return await super()._handle(request)
        return answer

    async def _answer(self, request: web.BaseRequest, asked: Asked, *rest: Any, **more: Any) -> web.StreamResponse:  # noqa: ANN401
        response = await super()._answer(request, asked, *rest, **more)
        self.paid[tuple(asked.texts)] += response.status == 200
        return response

    async def _take_file(self, request: web.BaseRequest) -> web.Response:
        content = await request.content.read()
        boundary = b"--" + request.headers["Content-Type"].partition("boundary=")[2].strip('"').encode()
        parts = [part.partition(b"\r\n\r\n") for part in content.split(boundary)[1:-1]]
        (file,) = [body.removesuffix(b"\r\n") for head, _, body in parts if b'name="file"' in head]
        assert any(body.strip() == b"batch" for head, _, body in parts if b'name="purpose"' in head)
        file_id = f"file-{len(self.files) + 1}"
        self.files[file_id] = file
        shown = {"id": file_id, "object": "file", "bytes": len(file), "created_at": int(time.time()), "filename": "f"}
        return self._send(Raw(body={**shown, "purpose": "batch", "status": "processed"}))

    def _create(self, body: dict[str, Any]) -> web.Response:
        lines = [orjson.loads(line) for line in self.files[body["input_file_id"]].splitlines()]
        assert body["endpoint"] == CHAT
        return self._make(lines, body["metadata"]["evalhouse_batch"], FILES)

    def _make(self, lines: list[dict[str, Any]], tag: str, form: Form) -> web.Response:
        assert len({line["custom_id"] for line in lines}) == len(lines)
        made = Made(batch_id=f"batch_{len(self.batches) + 1}", tag=tag, lines=lines, created_at=time.time(), form=form)
        if self.trouble.fail:
            made.errors = [self.trouble.fail.pop(0)]
            made.status = "failed"
        elif self.trouble.expire:
            made.expire = self.trouble.expire.pop(0)
        self.batches[made.batch_id] = made
        if self.trouble.lose_created:
            self.trouble.lose_created -= 1
            return self._send(make_error(502, "Bad gateway"))
        return self._send(Raw(body=self._show(made)))

    def _look(self, batch_id: str) -> web.Response:
        if self.trouble.unreachable:
            self.trouble.unreachable -= 1
            return self._send(make_error(503, "The server is overloaded"))
        if (made := self.batches.get(batch_id)) is None:
            return self._send(make_error(404, f"No batch found with id '{batch_id}'."))
        self._work(made)
        return self._send(Raw(body=self._show(made)))

    def _cancel(self, batch_id: str) -> web.Response:
        made = self.batches[batch_id]
        if made.status in ("validating", "in_progress"):
            self._work_off(made, self._dice.randrange(len(made.lines)), "cancelled")
        return self._send(Raw(body=self._show(made)))

    def _work(self, made: Made) -> None:
        if made.status not in ("validating", "in_progress"):
            return
        made.status = "in_progress"
        if self.takes_s is not None and time.time() - made.created_at >= self.takes_s:
            n_asked = round(len(made.lines) * (1 - made.expire))
            self._work_off(made, n_asked, "expired" if n_asked < len(made.lines) else "completed")

    def _work_off(self, made: Made, n_asked: int, status: str) -> None:
        for line in made.lines[:n_asked]:
            answer = self._answer_line(made.form, line)
            row = made.form.answer(answer)
            listed = made.answered if answer.status == 200 else made.failed
            listed.append(orjson.dumps({"custom_id": line["custom_id"], **row}))
        for line in made.lines[n_asked:]:
            made.failed.append(orjson.dumps({"custom_id": line["custom_id"], **made.form.leave(status)}))
        if self.trouble.disorder and made.answered:
            stranger = orjson.loads(made.answered[0]) | {"custom_id": "nobody"}
            made.answered += [*made.answered[: len(made.answered) // 3], orjson.dumps(stranger)]
            self._dice.shuffle(made.answered)
        for kind in ("answered", "failed"):
            self.files[f"file-{made.batch_id}-{kind}"] = b"\n".join(getattr(made, kind)) + b"\n"
        made.status = status

    def _answer_line(self, form: Form, line: dict[str, Any]) -> Raw:
        content = orjson.dumps(line["body"])
        chances: Chances = self._count_arrival(CHAT, hashlib.sha256(content).digest())
        asked = read_chat(form.wire.read(line["body"], ""))
        self.stats.kinds[asked.kind] += 1
        if refused := self.trouble.answer_line(asked) or refuse_request(self.options, asked):
            return form.wire.dress(refused)
        canned = self._take_canned(asked)
        fault = self._choose_fault(asked, canned, chances.fault)
        assert not canned or isinstance(canned, str | dict)
        answer = self._make_answer(asked, canned, fault, chances.ordinal)  # type: ignore[arg-type]  # asserted
        self.paid[tuple(asked.texts)] += 1
        return form.wire.dress(answer)

    def _show(self, made: Made) -> dict[str, Any]:
        if made.form is MESSAGES:
            return made.show_messages(self.root_url)
        done = made.status in ("completed", "expired", "cancelled")
        shown = {
            "id": made.batch_id, "object": "batch", "endpoint": CHAT, "completion_window": "24h",
            "input_file_id": "file-1", "created_at": int(made.created_at), "status": made.status,
            "metadata": {"evalhouse_batch": made.tag}, "errors": {"object": "list", "data": made.errors},
            "request_counts": {
                "total": len(made.lines), "completed": len(made.answered), "failed": len(made.failed),
            },
        }  # fmt: skip
        for name, kind in (("output_file_id", "answered"), ("error_file_id", "failed")):
            shown[name] = f"file-{made.batch_id}-{kind}" if done and getattr(made, kind) else None
        return shown


@contextlib.contextmanager
def batch_endpoint(
    *,
    takes_s: float | None = 0.2,
    trouble: Trouble | None = None,
    **options: Any,  # noqa: ANN401  # Options checks them
) -> Iterator[BatchEndpoint]:
    endpoint = BatchEndpoint(Options(**options), takes_s=takes_s, trouble=trouble)
    endpoint.start()
    try:
        yield endpoint
    finally:
        endpoint.stop()


if __name__ == "__main__":
    with batch_endpoint(takes_s=3.0) as running:
        print(running.base_url, flush=True)
        asyncio.run(asyncio.sleep(3600))
