"""`evalhouse publish`: the scores of a run over traces, sent to where the traces are.

OpenTelemetry gets an event `gen_ai.evaluation.result` for each score, Langfuse a score, LangSmith a feedback, each with
the reason and a link to the sample's page. The id of a score follows from run, sample and metric, so sending it again
changes nothing.
"""

import base64
import os
import re
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain, islice
from typing import Any, Final, cast
from urllib.parse import unquote, urlencode

import httpx

from evalhouse.flows.errors import SettingsError
from evalhouse.flows.results.run_facts import Cause, list_first, load_advice
from evalhouse.tasks.judge.protocol import parse_retry_after
from evalhouse.tasks.settings.suite import TRACES
from evalhouse.warehouse.messages import list_names, redact, shorten
from evalhouse.warehouse.rows.runs import RunRow
from evalhouse.warehouse.store import Warehouse

_SCORES: Final = uuid.UUID("b0a4f1c2-8f1e-5d5b-9c52-5a7f6d0e4c11")
"""The namespace of the ids of scores."""
# The statements that explain a metric, by column of the query, and how they are introduced.
_WRONG, _LEFT_OUT = ("wrong", "wrong"), ("left_out", "left out")
_UNSUPPORTED, _NOT_RETRIEVED = ("unsupported", "not in the contexts"), ("not_retrieved", "not in the contexts")
_AGAINST: Final[Mapping[str, Sequence[tuple[str, str]]]] = {
    "faithfulness": (_UNSUPPORTED,), "hallucination": (_UNSUPPORTED,), "context_recall": (_NOT_RETRIEVED,),
    "answer_correctness": (_WRONG, _LEFT_OUT), "factual_f1": (_WRONG, _LEFT_OUT), "factual_precision": (_WRONG,),
    "factual_recall": (_LEFT_OUT,),
}  # fmt: skip
_MAX_REASON: Final = 2000
_N_AT_ONCE: Final = 8
_N_TRIES: Final = 5
_MAX_WAIT_S: Final = 30.0


@dataclass(frozen=True, kw_only=True)
class PublishedScore:
    """One score of a sample: `trace_id` as the tracer has it, the outermost span's `span_id` and LangSmith's
    `project_id`, None if not recorded."""

    score_id: str
    run_id: str
    trace_id: str
    span_id: str | None
    project_id: str | None
    metric: str
    value: float
    reason: str | None
    link: str | None
    at: datetime

    @property
    def comment(self) -> str | None:
        """The reason and the link, for tools with one field for both."""
        return "\n".join(filter(None, (self.reason, self.link))) or None


@dataclass(frozen=True, kw_only=True)
class Receiver:
    """A tool that scores are sent to: `path` below its address, and `n_together` scores a request.

    `addresses` are the variables that may hold the address, `keys` the ones that must be set with it.
    """

    addresses: tuple[str, ...]
    path: str
    trace_ids: re.Pattern[str]
    write: Callable[[Sequence[PublishedScore]], object]
    keys: tuple[str, ...] = ()
    default: str | None = None
    n_together: int = 1


@dataclass(kw_only=True)
class Outcome:
    """The scores that arrived, and the reason of each request that did not."""

    n_sent: int = 0
    n_failed: int = 0
    problem: str | None = None


# --- the scores of a run


def read_published(warehouse: Warehouse, run: RunRow, metrics: Sequence[str], link: str | None) -> list[PublishedScore]:
    """Read the scores of a run's samples in these metrics, the main ones for none; raises SettingsError for a run that
    did not judge traces."""
    if run.config.get("format") is None and run.dataset != TRACES:
        came = f"run {run.run_id} judged {run.dataset}, so its samples have no ids of traces"
        raise SettingsError(f'{came}; allowed: a run of dataset = "traces", or of an export with --format')
    unknown = [name for name in metrics if name not in run.metrics]
    if unknown:
        raise SettingsError(f"run {run.run_id} has no metric {unknown[0]!r}; it has: {list_names(run.metrics)}")
    chosen = list(metrics) or list_first(run.metrics, run.config)
    scores = []
    for row in warehouse.fetch_rows("publish/scores", run_id=run.run_id, metrics=chosen):
        reasons = [f"{words}: {' '.join(row[name])}" for name, words in _AGAINST.get(row["metric"], ()) if row[name]]
        if not reasons and row["cause"] not in (None, "not_judged", "fine"):
            advice = load_advice("zh" if run.language == "zh" else "en")[cast(Cause, row["cause"])]
            reasons = [advice.name, row["evidence"]] if row["evidence"] else [advice.name]
        sample_id = str(row["sample_id"])
        address = f"{link.rstrip('/')}/runs/{run.run_id}/sample?{urlencode({'id': sample_id})}" if link else None
        scores.append(
            PublishedScore(
                score_id=str(uuid.uuid5(_SCORES, f"{run.run_id}\n{sample_id}\n{row['metric']}")),
                run_id=run.run_id,
                trace_id=sample_id,
                span_id=row["span_id"],
                project_id=row["project_id"],
                metric=row["metric"],
                value=row["value"],
                reason=shorten("; ".join(reasons), _MAX_REASON) or None,
                link=address,
                at=run.started_at.replace(tzinfo=UTC),
            )
        )
    return scores


# --- the forms of the tools


def _write_otlp(scores: Sequence[PublishedScore]) -> object:
    """Return an ExportLogsServiceRequest with an event of OpenTelemetry's GenAI conventions for each score."""

    def write_record(score: PublishedScore) -> dict[str, object]:
        texts = {
            "gen_ai.evaluation.name": score.metric,
            "gen_ai.evaluation.explanation": score.reason,
            "log.record.uid": score.score_id,
            "evalhouse.run_id": score.run_id,
            "url.full": score.link,
        }
        attributes: list[object] = [
            {"key": name, "value": {"stringValue": text}} for name, text in texts.items() if text is not None
        ]
        attributes.append({"key": "gen_ai.evaluation.score.value", "value": {"doubleValue": score.value}})
        time_ns = str(int(score.at.timestamp() * 1e6) * 1000)
        span = {} if score.span_id is None else {"spanId": score.span_id}
        return {
            "timeUnixNano": time_ns, "observedTimeUnixNano": time_ns, "severityNumber": 9,
            "eventName": "gen_ai.evaluation.result", "traceId": score.trace_id, **span, "attributes": attributes,
        }  # fmt: skip

    resource = {"attributes": [{"key": "service.name", "value": {"stringValue": "evalhouse"}}]}
    records = {"scope": {"name": "evalhouse"}, "logRecords": [write_record(score) for score in scores]}
    return {"resourceLogs": [{"resource": resource, "scopeLogs": [records]}]}


def _write_langfuse(scores: Sequence[PublishedScore]) -> object:
    (score,) = scores
    return {
        "id": score.score_id, "traceId": score.trace_id, "name": score.metric, "value": score.value,
        "dataType": "NUMERIC", "comment": score.comment, "metadata": {"evalhouse_run": score.run_id},
    }  # fmt: skip


def _write_langsmith(scores: Sequence[PublishedScore]) -> object:
    (score,) = scores
    project = {} if score.project_id is None else {"session_id": score.project_id}
    return {
        **project, "id": score.score_id, "run_id": score.trace_id, "key": score.metric, "score": score.value,
        "comment": score.comment, "created_at": score.at.isoformat(),
        "feedback_source": {"type": "api", "metadata": {"evalhouse_run": score.run_id}},
    }  # fmt: skip


RECEIVERS: Final[Mapping[str, Receiver]] = {
    "otlp": Receiver(
        addresses=("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"), path="/v1/logs",
        trace_ids=re.compile("[0-9a-f]{32}"), n_together=100, write=_write_otlp,
    ),
    "langfuse": Receiver(
        addresses=("LANGFUSE_BASE_URL", "LANGFUSE_HOST"), keys=("LANGFUSE_PUBLIC_KEY", "LANGFUSE_SECRET_KEY"),
        default="https://cloud.langfuse.com", path="/api/public/scores", trace_ids=re.compile(r"\S+"),
        write=_write_langfuse,
    ),
    "langsmith": Receiver(
        addresses=("LANGSMITH_ENDPOINT",), keys=("LANGSMITH_API_KEY",), default="https://api.smith.langchain.com",
        path="/feedback", trace_ids=re.compile("[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"), write=_write_langsmith,
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
    missing = [variable for variable in RECEIVERS[name].keys if not os.environ.get(variable)]
    if missing:
        raise SettingsError(f"{name} needs keys: set {' and '.join(missing)}")
    if name == "langfuse":
        pair = f"{os.environ['LANGFUSE_PUBLIC_KEY']}:{os.environ['LANGFUSE_SECRET_KEY']}"
        return {"authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}
    if name == "langsmith":
        return {"x-api-key": os.environ["LANGSMITH_API_KEY"]}
    text = os.environ.get("OTEL_EXPORTER_OTLP_LOGS_HEADERS") or os.environ.get("OTEL_EXPORTER_OTLP_HEADERS", "")
    pairs = (pair.partition("=") for pair in text.split(",") if "=" in pair)
    return {key.strip().lower(): unquote(value.strip()) for key, _, value in pairs}


def split_requests(name: str, scores: Sequence[PublishedScore]) -> Iterator[tuple[int, Any]]:
    """Yield the body of each request, with the number of its scores."""
    receiver = RECEIVERS[name]
    for start in range(0, len(scores), receiver.n_together):
        part = scores[start : start + receiver.n_together]
        yield len(part), receiver.write(part)


def send_scores(name: str, scores: Sequence[PublishedScore], report: Callable[[int], None]) -> Outcome:
    """Send scores, several requests at a time; `report` gets the number that was sent so far.

    A request that meets a busy or broken server is sent again. Raises SettingsError if the server refuses the key or
    cannot be reached at the first request; other requests that fail are counted.
    """
    address, headers, outcome = find_address(name), read_headers(name), Outcome()
    with httpx.Client(headers=headers, timeout=30.0) as client, ThreadPoolExecutor(_N_AT_ONCE) as pool:

        def send(request: tuple[int, object]) -> tuple[int, str | None]:
            return request[0], _send(client, name, address, request[1])

        requests = split_requests(name, scores)
        # The first by itself: a wrong key or address ends the command before the others are sent.
        for first in islice(requests, 1):
            for n_scores, problem in chain([send(first)], pool.map(send, requests)):
                outcome.n_sent += 0 if problem else n_scores
                outcome.n_failed += n_scores if problem else 0
                outcome.problem = outcome.problem or problem
                report(outcome.n_sent + outcome.n_failed)
    return outcome


def _send(client: httpx.Client, name: str, address: str, body: object) -> str | None:
    """Send one request, and return why it failed; None when it arrived."""
    problem = ""
    for n_tries in range(_N_TRIES):
        wait_s = min(2.0**n_tries / 2, _MAX_WAIT_S)
        try:
            answer = client.post(address, json=body)
            if name == "langsmith" and answer.status_code == 409:  # the feedback is there: write it again
                answer = client.patch(f"{address}/{cast(dict[str, str], body)['id']}", json=body)
        except httpx.HTTPError as error:
            problem = f"{address} cannot be reached ({type(error).__name__}: {error})"
            if isinstance(error, httpx.ConnectError | httpx.UnsupportedProtocol):
                raise SettingsError(f"{problem}; check {' and '.join(RECEIVERS[name].addresses)}") from None
        else:
            words = shorten(redact(" ".join(answer.text.split())), 300) or answer.reason_phrase
            problem = f"{name} answered with status {answer.status_code}: {words}"
            if answer.status_code in (401, 403):
                variables = RECEIVERS[name].keys or ("OTEL_EXPORTER_OTLP_HEADERS",)
                raise SettingsError(f"{problem}; check {' and '.join(variables)}")
            if answer.is_success:
                has_json = answer.headers.get("content-type", "").startswith("application/json")
                partial = answer.json().get("partialSuccess") if has_json and name == "otlp" else None
                n_rejected = int(partial.get("rejectedLogRecords") or 0) if partial else 0
                return f"{name} rejected {n_rejected} events: {words}" if n_rejected else None
            if answer.status_code not in (408, 425, 429) and answer.status_code < 500:
                return problem
            wait_s = min(parse_retry_after(answer.headers) or wait_s, _MAX_WAIT_S)
        if n_tries + 1 < _N_TRIES:
            time.sleep(wait_s)
    return problem
