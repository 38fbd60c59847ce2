"""`evalhouse publish`: the scores of a run over traces, sent to where the traces are.

OpenTelemetry gets an event `gen_ai.evaluation.result` for each score, Langfuse a score, LangSmith a feedback, each with
the reason and a link to the sample's page. The id of a score follows from run, sample and metric, so sending it again
changes nothing.
"""

import asyncio
import base64
import os
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC
from typing import Any, Final, cast
from urllib.parse import unquote, urlencode

import httpx

from evalhouse.flows.errors import SettingsError
from evalhouse.flows.results.run_facts import Cause, list_first, load_advice
from evalhouse.tasks.judge.protocol import parse_retry_after
from evalhouse.tasks.settings.suite import TRACES, is_web_address
from evalhouse.warehouse.messages import hide_credentials, list_names, note_secret, redact, shorten
from evalhouse.warehouse.rows.runs import RunRow
from evalhouse.warehouse.store import Warehouse

Score = Mapping[str, Any]
"""A row of `publish/scores` with its `score_id`, `reason`, `link`, and `comment`, which is both of these."""
_SCORES: Final = uuid.UUID("b0a4f1c2-8f1e-5d5b-9c52-5a7f6d0e4c11")  # the namespace of their ids
# The statements that explain a metric, by column of the query, and how they are introduced.
_WRONG, _LEFT_OUT = ("wrong", "wrong"), ("left_out", "left out")
_UNSUPPORTED, _NOT_RETRIEVED = ("unsupported", "not in the contexts"), ("not_retrieved", "not in the contexts")
_AGAINST: Final[Mapping[str, Sequence[tuple[str, str]]]] = {
    "faithfulness": (_UNSUPPORTED,), "hallucination": (_UNSUPPORTED,), "context_recall": (_NOT_RETRIEVED,),
    "answer_correctness": (_WRONG, _LEFT_OUT), "factual_f1": (_WRONG, _LEFT_OUT), "factual_precision": (_WRONG,),
    "factual_recall": (_LEFT_OUT,),
}  # fmt: skip
# The ids of traces, as each tool makes them.
_OF_ONE_QUESTION: Final = re.compile(r"/\d+\Z")  # after the id of a trace that has several
_OTEL_ID, _ANY_ID = re.compile("[0-9a-f]{32}"), re.compile(r"\S+")
_UUID = re.compile("[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_REJECTED = re.compile(r'"rejectedLogRecords":\s*+"?[1-9]')
_MAX_REASON: Final = 2000
_N_AT_ONCE: Final = 8
_N_TRIES: Final = 5
_MAX_WAIT_S: Final = 30.0
_READ_S: Final = 30.0  # for a part of an answer
_ANSWER_S: Final = 60.0  # for all of it
_MAX_ANSWER: Final = 2**16  # bytes that are read of one


@dataclass(frozen=True, kw_only=True)
class Receiver:
    """A tool that scores are sent to: `path` below its address, and `n_together` scores a request.

    `addresses` are the variables that may hold the address, `keys` the ones that must be set with it.
    """

    addresses: tuple[str, ...]
    path: str
    trace_ids: re.Pattern[str]
    write: Callable[[RunRow, Sequence[Score]], object]
    keys: tuple[str, ...] = ()
    default: str | None = None
    n_together: int = 1


def read_published(warehouse: Warehouse, run: RunRow, metrics: Sequence[str], ui_url: str | None) -> list[Score]:
    """Read the scores of a run's samples in these metrics, the main ones for none; raises SettingsError for a run that
    did not judge traces."""
    if run.config.get("format") is None and run.dataset != TRACES:
        came = f"run {run.run_id} judged {run.dataset}, so its samples have no ids of traces"
        raise SettingsError(f'{came}; allowed: a run of dataset = "traces", or of an export with --format')
    if ui_url is not None and not is_web_address(ui_url):
        raise SettingsError(f"--ui-url {ui_url!r} is not an address; give one that begins with http:// or https://")
    if unknown := [name for name in metrics if name not in run.metrics]:
        raise SettingsError(f"run {run.run_id} has no metric {unknown[0]!r}; it has: {list_names(run.metrics)}")
    advice = load_advice("zh" if run.language == "zh" else "en")
    scores: list[Score] = []
    chosen = list(metrics) or list_first(run.metrics, run.config)
    for row in warehouse.fetch_rows("publish/scores", run_id=run.run_id, metrics=chosen):
        reasons = [f"{words}: {' '.join(row[name])}" for name, words in _AGAINST.get(row["metric"], ()) if row[name]]
        if not reasons and row["cause"] not in (None, "not_judged", "fine"):
            reasons = [advice[cast(Cause, row["cause"])].name, *filter(None, [row["evidence"]])]
        reason = shorten("; ".join(reasons), _MAX_REASON) or None
        query = urlencode({"id": row["sample_id"]})
        link = f"{ui_url.rstrip('/')}/runs/{run.run_id}/sample?{query}" if ui_url else None
        score_id = str(uuid.uuid5(_SCORES, f"{run.run_id}\n{row['sample_id']}\n{row['metric']}"))
        comment = "\n".join(filter(None, (reason, link))) or None
        trace_id = _OF_ONE_QUESTION.sub("", row["sample_id"])
        scores.append(
            {**row, "trace_id": trace_id, "score_id": score_id, "reason": reason, "link": link, "comment": comment}
        )
    return scores


# --- the tools


def _write_otlp(run: RunRow, scores: Sequence[Score]) -> object:
    """Return an ExportLogsServiceRequest with an event of OpenTelemetry's GenAI conventions for each score."""
    time_ns = str(int(run.started_at.replace(tzinfo=UTC).timestamp() * 1e6) * 1000)
    records: list[object] = []
    for score in scores:
        texts = {
            "gen_ai.evaluation.name": score["metric"],
            "gen_ai.evaluation.explanation": score["reason"],
            "log.record.uid": score["score_id"],
            "evalhouse.run_id": run.run_id,
            "url.full": score["link"],
        }
        pairs: list[object] = [{"key": key, "value": {"stringValue": text}} for key, text in texts.items() if text]
        pairs.append({"key": "gen_ai.evaluation.score.value", "value": {"doubleValue": score["value"]}})
        record = {"eventName": "gen_ai.evaluation.result", "traceId": score["trace_id"], "attributes": pairs}
        span = {"spanId": score["span_id"]} if score["span_id"] else {}
        records.append({"timeUnixNano": time_ns, "observedTimeUnixNano": time_ns, **record, **span})
    resource = {"attributes": [{"key": "service.name", "value": {"stringValue": "evalhouse"}}]}
    scopes = [{"scope": {"name": "evalhouse"}, "logRecords": records}]
    return {"resourceLogs": [{"resource": resource, "scopeLogs": scopes}]}


def _write_langfuse(run: RunRow, scores: Sequence[Score]) -> object:
    (score,) = scores
    return {
        "id": score["score_id"], "traceId": score["trace_id"], "name": score["metric"], "value": score["value"],
        "dataType": "NUMERIC", "comment": score["comment"], "metadata": {"evalhouse_run": run.run_id},
    }  # fmt: skip


def _write_langsmith(run: RunRow, scores: Sequence[Score]) -> object:
    (score,) = scores
    project = {"session_id": score["project_id"]} if score["project_id"] else {}
    return {
        **project, "id": score["score_id"], "run_id": score["trace_id"], "key": score["metric"],
        "score": score["value"], "comment": score["comment"],
        "feedback_source": {"type": "api", "metadata": {"evalhouse_run": run.run_id}},
    }  # fmt: skip


RECEIVERS: Final[Mapping[str, Receiver]] = {
    "otlp": Receiver(
        addresses=("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"), path="/v1/logs",
        trace_ids=_OTEL_ID, n_together=100, write=_write_otlp,
    ),
    "langfuse": Receiver(
        addresses=("LANGFUSE_BASE_URL", "LANGFUSE_HOST"), keys=("LANGFUSE_PUBLIC_KEY", "LANGFUSE_SECRET_KEY"),
        default="https://cloud.langfuse.com", path="/api/public/scores", trace_ids=_ANY_ID,
        write=_write_langfuse,
    ),
    "langsmith": Receiver(
        addresses=("LANGSMITH_ENDPOINT",), keys=("LANGSMITH_API_KEY",), default="https://api.smith.langchain.com",
        path="/feedback", trace_ids=_UUID, write=_write_langsmith,
    ),
}  # fmt: skip


# --- sending


def find_address(name: str) -> str:
    """Return the address that scores are sent to; raises SettingsError if no variable holds one."""
    receiver = RECEIVERS[name]
    variable = next((variable for variable in receiver.addresses if os.environ.get(variable)), None)
    address = receiver.default if variable is None else os.environ[variable]
    if address is None or not address.startswith(("http://", "https://")):
        came = f"{variable} is {address!r}" if variable else f"the address of {name} is not known"
        raise SettingsError(
            f"{came}; set {' or '.join(receiver.addresses)} to one that begins with http:// or https://"
        )
    is_whole = variable == "OTEL_EXPORTER_OTLP_LOGS_ENDPOINT"
    return address if is_whole else f"{address.rstrip('/')}{receiver.path}"


def read_headers(name: str) -> dict[str, str]:
    """Return the headers with the keys of the environment; raises SettingsError for one that is missing."""
    keys = [os.environ.get(variable, "") for variable in RECEIVERS[name].keys]
    if not all(keys):
        raise SettingsError(f"{name} needs keys: set {' and '.join(RECEIVERS[name].keys)}")
    if name == "langfuse":
        return {"authorization": f"Basic {base64.b64encode(':'.join(keys).encode()).decode()}"}
    if name == "langsmith":
        return {"x-api-key": keys[0]}
    text = os.environ.get("OTEL_EXPORTER_OTLP_LOGS_HEADERS") or os.environ.get("OTEL_EXPORTER_OTLP_HEADERS", "")
    pairs = (pair.partition("=") for pair in text.split(",") if "=" in pair)
    return {key.strip().lower(): unquote(value.strip()) for key, _, value in pairs}


def send_scores(name: str, run: RunRow, scores: Sequence[Score], report: Callable[[int], None]) -> list[str]:
    """Send scores, several requests at a time, and return a problem for each score that did not arrive.

    A request that meets a busy or broken server is sent again; `report` gets the number of scores that were tried.
    Raises SettingsError if the server refuses the key or cannot be reached, or if the address or a key cannot be sent.
    """
    return asyncio.run(_send_all(name, run, scores, report))


async def _send_all(name: str, run: RunRow, scores: Sequence[Score], report: Callable[[int], None]) -> list[str]:
    receiver, address = RECEIVERS[name], find_address(name)
    variables = receiver.keys or ("OTEL_EXPORTER_OTLP_HEADERS",)
    headers = read_headers(name)
    for value in headers.values():  # an answer may repeat it
        note_secret(value.rpartition(" ")[2])
    try:
        # A packed answer could unpack to gigabytes.
        client = httpx.AsyncClient(headers={**headers, "accept-encoding": "identity"}, timeout=_READ_S)
    except UnicodeEncodeError:
        raise SettingsError(
            f"{list_names(variables)} cannot be sent: a header holds ASCII characters only; correct it"
        ) from None
    waiting = iter(
        [scores[start : start + receiver.n_together] for start in range(0, len(scores), receiver.n_together)]
    )
    n_tried, n_in_row, problems = 0, 0, list[str]()

    async def send(part: Sequence[Score]) -> None:
        nonlocal n_tried, n_in_row
        problem: str | None
        if n_in_row > _N_AT_ONCE:  # each of a tool that hangs would take minutes
            problem = f"not sent after {n_in_row} requests in a row that did not arrive"
        else:
            problem = await _send(client, name, address, receiver.write(run, part), is_first=n_tried == 0)
            n_in_row = n_in_row + 1 if problem else 0
        n_tried += len(part)
        problems.extend([problem] * len(part) if problem else [])
        report(n_tried)

    async def send_waiting() -> None:
        for part in waiting:
            await send(part)

    async with client:
        # The first by itself: a wrong key or address ends the command before the others are sent.
        await send(next(waiting))
        senders = [asyncio.create_task(send_waiting()) for _ in range(_N_AT_ONCE)]
        try:
            await asyncio.gather(*senders)
        finally:
            for sender in senders:
                sender.cancel()
    return problems


async def _send(client: httpx.AsyncClient, name: str, address: str, body: object, *, is_first: bool) -> str | None:
    """Send one request, and return why it failed; None when it arrived. After the first one the address is right."""
    problem, shown = "", hide_credentials(address)
    for n_tries in range(_N_TRIES):
        wait_s = 2.0**n_tries / 2
        try:
            answer, text = await _request(client, "POST", address, body)
            if name == "langsmith" and answer.status_code == 409:  # the feedback is there: write it again
                answer, text = await _request(client, "PATCH", f"{address}/{cast(dict[str, str], body)['id']}", body)
        except TimeoutError:
            problem = f"{shown} did not complete its answer within {_ANSWER_S:g} s"
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            problem = f"{shown} cannot be reached ({type(error).__name__}: {redact(str(error))})"
            if is_first and isinstance(error, httpx.ConnectError | httpx.UnsupportedProtocol | httpx.InvalidURL):
                raise SettingsError(f"{problem}; check {' and '.join(RECEIVERS[name].addresses)}") from None
        else:
            words = shorten(redact(" ".join(text.split())), 300) or answer.reason_phrase
            problem = f"{name} answered with status {answer.status_code}: {words}"
            if answer.status_code in (401, 403):
                variables = RECEIVERS[name].keys or ("OTEL_EXPORTER_OTLP_HEADERS",)
                raise SettingsError(f"{problem}; check {' and '.join(variables)}")
            if answer.is_success and answer.headers.get("content-type", "").startswith("text/html"):
                # A page of a login, or of the application behind it, takes any request.
                return f"{shown} answered with a page; check {' and '.join(RECEIVERS[name].addresses)}"
            if answer.is_success:  # OTLP states in the answer which events it did not take
                return problem if name == "otlp" and _REJECTED.search(text) else None
            if answer.status_code not in (408, 425, 429) and answer.status_code < 500:
                return problem
            wait_s = parse_retry_after(answer.headers) or wait_s
        if n_tries + 1 < _N_TRIES:
            await asyncio.sleep(min(wait_s, _MAX_WAIT_S))
    return problem


async def _request(client: httpx.AsyncClient, method: str, address: str, body: object) -> tuple[httpx.Response, str]:
    """Send one request, and return its answer with the beginning of its text, in UTF-8, not the charset it names."""
    async with asyncio.timeout(_ANSWER_S), client.stream(method, address, json=body) as answer:
        content = bytearray()
        async for chunk in answer.aiter_raw():
            content += chunk
            if len(content) >= _MAX_ANSWER:
                break
        return answer, content[:_MAX_ANSWER].decode(errors="replace")
