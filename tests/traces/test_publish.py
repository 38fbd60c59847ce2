"""`evalhouse publish`: scores of traces arrive where the traces are, in the form of each tool, with ids and reasons."""

from __future__ import annotations

import gzip
import importlib.util
import json
import socket
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from cli_process import Place
from receiving import TOKEN, serving
from trace_files import TRACE, make_bot_trace, make_request, number_trace, write_lines
from warehouse_runs import make_run
from webhook import Webhook, serve_webhook

from evalhouse.flows.publish import read_published, send_scores
from evalhouse.warehouse.rows.runs import find_run, insert_run
from evalhouse.warehouse.store import Warehouse

PROJECT = "9d1c7a52-0f1e-4b6e-8f0e-2d5f1f0c7a11"
RUN_ID = "5b8efff7-9803-4103-a269-b633813fc60c"
PAGE = "https://scores.example"
INVENTED = "The captain sells tickets for nine crowns."
VARIABLES: dict[str, dict[str, str]] = {
    "otlp": {"OTEL_EXPORTER_OTLP_HEADERS": f"authorization=Bearer%20{TOKEN}"},
    "langfuse": {"LANGFUSE_PUBLIC_KEY": "pk", "LANGFUSE_SECRET_KEY": "sk"},
    "langsmith": {"LANGSMITH_API_KEY": "lsk"},
}
ADDRESSES = {"otlp": "OTEL_EXPORTER_OTLP_ENDPOINT", "langfuse": "LANGFUSE_BASE_URL", "langsmith": "LANGSMITH_ENDPOINT"}
PATHS = {"otlp": "/v1/logs", "langfuse": "/api/public/scores", "langsmith": "/feedback"}
LABELS = {"otlp": "spans", "langfuse": "spans", "langsmith": "runs"}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, prefect_home: Path) -> Place:
    """Runs over two traces of OpenTelemetry, over a run of LangSmith, and over a file that is not of traces."""
    folder = tmp_path_factory.mktemp("publish")
    place = Place(folder=folder, variables={"PREFECT_HOME": str(prefect_home)})
    traces = [*make_bot_trace(), *make_bot_trace(trace=number_trace(2), answer=INVENTED, at_s=5.0)]
    write_lines(folder / "spans.jsonl", [make_request(traces)])
    run = {"id": RUN_ID, "trace_id": RUN_ID, "run_type": "chain", "start_time": "2026-03-14T12:00:00"}
    run |= {"session_id": PROJECT, "end_time": "2026-03-14T12:00:01", "inputs": {"question": "When?"}}
    made = {"answer": INVENTED, "context": [{"page_content": "The ferry leaves at noon."}]}
    write_lines(folder / "runs.jsonl", [{**run, "outputs": made}])
    for name, form in (("spans", "otel"), ("runs", "langsmith")):
        done = place.call("run", f"{name}.jsonl", "--format", form, "--judge", "lexical", "--label", name)
        assert done.status == 0, done.stderr
    insert_run(Warehouse(str(folder / "evalhouse.duckdb")), make_run("p", label="plain", dataset="plain.jsonl"))
    return place


def publish(place: Place, to: str, server: Webhook | None, *options: str, **variables: str) -> Any:  # noqa: ANN401  # Finished
    address = {ADDRESSES[to]: server.root_url} if server else {}
    called = place.with_variables(**{**VARIABLES[to], **address, **variables})
    return called.call("publish", LABELS[to], "--to", to, "--ui-url", PAGE, *options)


def read_scores(to: str, bodies: list[Any]) -> list[dict[str, Any]]:
    """Each score with id, trace, metric, value and words, however the tool spells them."""
    if to == "langfuse":
        names = ("id", "traceId", "name", "value", "comment")
        return [dict(zip("itmvw", (body[name] for name in names), strict=True)) for body in bodies]
    if to == "langsmith":
        names = ("id", "run_id", "key", "score", "comment")
        return [dict(zip("itmvw", (body[name] for name in names), strict=True)) for body in bodies]
    scores = []
    for body in bodies:
        for record in body["resourceLogs"][0]["scopeLogs"][0]["logRecords"]:
            assert record["eventName"] == "gen_ai.evaluation.result"
            assert len(record["spanId"]) == 16
            own = {pair["key"]: next(iter(pair["value"].values())) for pair in record["attributes"]}
            words = f"{own.get('gen_ai.evaluation.explanation')} {own['url.full']}"
            scores.append(
                {
                    "i": own["log.record.uid"],
                    "t": record["traceId"],
                    "m": own["gen_ai.evaluation.name"],
                    "v": own["gen_ai.evaluation.score.value"],
                    "w": words,
                }
            )
    return scores


@pytest.mark.parametrize("to", PATHS)
def test_scores_arrive_with_reason_and_link_and_the_same_ids_each_time(place: Place, to: str) -> None:
    with serve_webhook(200) as server:
        done = publish(place, to, server)
        assert (done.status, done.stderr) == (0, "")
        assert {posted.path for posted in server.requests} == {PATHS[to]}
        first = read_scores(to, server.bodies)
        again = publish(place, to, server)
        assert again.stdout == done.stdout
        repeated = read_scores(to, server.bodies)[len(first) :]
    assert sorted(map(json.dumps, repeated)) == sorted(map(json.dumps, first))
    assert len({score["i"] for score in first}) == len(first)
    invented = [score for score in first if score["v"] == 0.0 and score["m"] == "faithfulness"]
    assert len(invented) == 1
    assert f"not in the contexts: {INVENTED}" in invented[0]["w"]
    assert f"{PAGE}/runs/" in invented[0]["w"]
    assert invented[0]["w"].endswith(f"/sample?id={invented[0]['t']}")
    if to != "langsmith":
        assert {score["t"] for score in first} == {TRACE, number_trace(2)}
        assert [score["v"] for score in first if score["t"] == TRACE and score["m"] == "faithfulness"] == [1.0]


@contextmanager
def serve_bytes(answer: Callable[[socket.socket], object]) -> Iterator[str]:
    """A server that reads the beginning of each request and lets `answer` send anything; yields its address."""

    def serve() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listening.accept()
                threading.Thread(target=handle, args=(connection,), daemon=True).start()

    def handle(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.recv(2**16)
            answer(connection)
            connection.shutdown(socket.SHUT_WR)
            connection.recv(2**20)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


def make_answer(status: str, body: bytes, *headers: str) -> Callable[[socket.socket], object]:
    lines = [f"HTTP/1.1 {status}", *headers, f"content-length: {len(body)}", "", ""]
    return lambda connection: connection.sendall("\r\n".join(lines).encode() + body)


def send_without_end(*first: bytes, again: bytes) -> Callable[[socket.socket], object]:
    def send(connection: socket.socket) -> None:
        connection.sendall(b"".join(first))
        while True:
            connection.sendall(again)
            time.sleep(0.02)

    return send


ENDLESS = b"HTTP/1.1 200 OK\r\ncontent-length: 999999999\r\n\r\n"
BOMB = gzip.compress(bytes(2**26))
KEY = "a1B2c3D4e5F6g7H8"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        *((make_answer("400 Bad", b"ab\xff z=", f"content-type: text/plain; charset={name}"), "status 400: ab")
          for name in ("hex", "undefined", "utf-16")),
        (make_answer("400 Bad", BOMB, "content-encoding: gzip"), "status 400"),
        (make_answer("307 Moved", b"", "location: http://127.0.0.1:9/"), "status 307"),
        (make_answer("400 Bad", f"the key {KEY} is odd".encode()), "status 400: the key [key] is odd"),
        (make_answer("200 OK", b"<html>Log in", "content-type: text/html"), "a page; check OTEL_EXPORTER"),
        (make_answer("-1 Odd", b""), "cannot be reached (RemoteProtocolError"),
        (send_without_end(ENDLESS, again=b" "), "did not complete its answer within 0.5 s"),
        (send_without_end(again=b""), "did not complete its answer"),
    ],
)  # fmt: skip
def test_an_odd_answer_is_a_problem_and_no_crash(
    place: Place, monkeypatch: pytest.MonkeyPatch, answer: Callable[[socket.socket], object], words: str
) -> None:
    warehouse = Warehouse(str(place.folder / "evalhouse.duckdb"))
    run = find_run(warehouse, "spans")
    scores = read_published(warehouse, run, ["faithfulness"], None)
    monkeypatch.setattr("evalhouse.flows.publish._N_TRIES", 1)
    monkeypatch.setattr("evalhouse.flows.publish._ANSWER_S", 0.5)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", f"x-team={KEY}")
    with serve_bytes(answer) as address:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)
        tracemalloc.start()
        problems = send_scores("otlp", run, scores, lambda _: None)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert len(problems) == len(scores)
    assert words in problems[0]
    assert peak < 2**25


@pytest.mark.parametrize("n_taken", [1, 20])
def test_a_tool_that_ends_or_hangs_in_the_middle_is_not_asked_for_each_score(
    place: Place, monkeypatch: pytest.MonkeyPatch, n_taken: int
) -> None:
    """A tool that hung took hours, and one that restarted was reported as a wrong address."""
    warehouse = Warehouse(str(place.folder / "evalhouse.duckdb"))
    run = find_run(warehouse, "spans")
    scores = read_published(warehouse, run, ["faithfulness"], None) * 30
    asked = list[object]()

    async def request(_: object, __: str, address: str, body: object) -> tuple[httpx.Response, str]:
        asked.append(body)
        if len(asked) > n_taken:
            raise httpx.ConnectError(f"{address} refused it")
        return httpx.Response(200), ""

    monkeypatch.setattr("evalhouse.flows.publish._N_TRIES", 1)
    monkeypatch.setattr("evalhouse.flows.publish._request", request)
    for variable, value in {**VARIABLES["langfuse"], ADDRESSES["langfuse"]: "http://127.0.0.1:9"}.items():
        monkeypatch.setenv(variable, value)
    problems = send_scores("langfuse", run, scores, lambda _: None)
    assert len(problems) == len(scores) - n_taken
    assert n_taken < len(asked) < n_taken + 20
    assert ("refused it" in problems[0], "not sent after" in problems[-1]) == (True, True)


def test_dry_run_shows_the_request_and_sends_nothing(place: Place) -> None:
    with serve_webhook(200) as server:
        shown = publish(place, "langfuse", server, "--dry-run")
        document = publish(place, "langfuse", server, "--dry-run", "--json", "--metrics", "faithfulness").document
        assert server.requests == []
    assert f"would send {2} scores of run" in shown.stdout
    assert '"dataType": "NUMERIC"' in shown.stdout
    assert (document["scores"], document["sent"]) == ({"faithfulness": 2}, 0)
    assert document["first_request"]["traceId"] == TRACE


@pytest.mark.parametrize(
    ("statuses", "status", "words"),
    [
        ((503, 429, 200), 0, "sent"),
        ((200, 400), 3, "1 score did not arrive: langfuse answered with status 400"),
        ((401,), 2, "status 401: Unauthorized; check LANGFUSE_PUBLIC_KEY and LANGFUSE_SECRET_KEY"),
    ],
)
def test_a_server_that_refuses_is_named_with_what_to_do(
    place: Place, statuses: tuple[int, ...], status: int, words: str
) -> None:
    with serve_webhook(*statuses) as server:
        done = publish(place, "langfuse", server)
    assert done.status == status
    assert words in done.stdout + done.stderr
    assert ("sent 1 of 2 scores of run" in done.stdout) is (status == 3)


def test_feedback_that_is_there_is_written_again(place: Place) -> None:
    with serve_webhook(409, 200) as server:
        assert publish(place, "langsmith", server, "--metrics", "faithfulness").status == 0
        (posted, patched) = server.requests
    assert (patched.method, patched.path) == ("PATCH", f"/feedback/{posted.body['id']}")
    assert patched.body == posted.body


@pytest.mark.parametrize(
    ("arguments", "variables", "words"),
    [
        (["plain", "--to", "otlp"], {}, 'judged plain.jsonl, so its samples have no ids of traces; allowed: a run of'),
        (["spans", "--to", "langsmith"], {}, f"its ids, such as '{TRACE}', are not ids of langsmith"),
        (["spans", "--to", "otlp"], {}, "the address of otlp is not known; set OTEL_EXPORTER_OTLP_LOGS_ENDPOINT or"),
        (["spans", "--to", "langfuse"], {}, "langfuse needs keys: set LANGFUSE_PUBLIC_KEY and LANGFUSE_SECRET_KEY"),
        (["spans", "--to", "otlp", "--metrics", "bleus"], {}, "has no metric 'bleus'; it has: "),
        (["spans", "--to", "otlp"], {"EVALHOUSE_UI_URL": "ui:4210"}, "--ui-url 'ui:4210' is not an address"),
        (["runs", "--to", "langsmith"], {"LANGSMITH_API_KEY": "k", "LANGSMITH_ENDPOINT": "http://u:pass@127.0.0.1:9"},
         "Error: http://127.0.0.1:9/feedback cannot be reached"),
        (["runs", "--to", "langsmith"], {"LANGSMITH_API_KEY": "ké", "LANGSMITH_ENDPOINT": "http://127.0.0.1:9"},
         "LANGSMITH_API_KEY cannot be sent: a header holds ASCII characters only"),
        *((["spans", "--to", "otlp"], {"OTEL_EXPORTER_OTLP_ENDPOINT": address}, "cannot be reached (InvalidURL: ")
          for address in ("http://[::1", "http://a\nb")),
    ],
)  # fmt: skip
def test_what_cannot_be_sent_is_refused(
    place: Place, arguments: list[str], variables: dict[str, str], words: str
) -> None:
    done = place.with_variables(**variables).call("publish", *arguments)
    assert done.status == 2
    assert words in done.stderr


def test_events_are_those_of_otlp_and_our_own_receiver_takes_them(place: Place, tmp_path: Path) -> None:
    with serving(tmp_path / "received.duckdb") as house:
        address = f"http://127.0.0.1:{house.port}"
        done = publish(place, "otlp", None, OTEL_EXPORTER_OTLP_ENDPOINT=address)
        assert done.status == 0, done.stderr
    rows = Warehouse(str(tmp_path / "received.duckdb")).read_rows("select * from span_events")
    assert {row["name"] for row in rows} == {"gen_ai.evaluation.result"}
    assert {row["trace_id"] for row in rows} == {TRACE, number_trace(2)}


@pytest.mark.skipif(importlib.util.find_spec("langsmith") is None, reason="not installed: langsmith")
def test_feedback_has_the_form_of_langsmiths_own_client(place: Place) -> None:
    from langsmith import Client  # noqa: PLC0415

    with serve_webhook(200) as server:
        assert publish(place, "langsmith", server, "--metrics", "faithfulness").status == 0
        (ours,) = server.bodies
    with serve_webhook(200) as server:
        client = Client(api_url=server.root_url, api_key="lsk", auto_batch_tracing=False)
        client.create_feedback(
            RUN_ID, "faithfulness", score=0.0, comment="why", feedback_id=ours["id"], session_id=PROJECT
        )
        theirs = next(posted.body for posted in server.requests if posted.path == "/feedback")
    assert ours.keys() - theirs.keys() == set()
    assert all(type(ours[name]) is type(theirs[name]) for name in ours)
    assert ours["session_id"] == theirs["session_id"] == PROJECT
    assert ours["feedback_source"]["type"] == theirs["feedback_source"]["type"]


@pytest.mark.skipif(importlib.util.find_spec("langfuse") is None, reason="not installed: langfuse")
def test_score_has_the_form_of_langfuses_own_client(place: Place) -> None:
    from langfuse import Langfuse  # noqa: PLC0415

    with serve_webhook(200) as server:
        assert publish(place, "langfuse", server, "--metrics", "faithfulness").status == 0
        ours = server.bodies[0]
    with serve_webhook(200) as server:
        client = Langfuse(public_key="pk", secret_key="sk", base_url=server.root_url)
        given = {"score_id": ours["id"], "data_type": "NUMERIC", "comment": "why", "metadata": {"run": "r"}}
        client.create_score(name="faithfulness", value=0.0, trace_id=TRACE, **given)
        client.flush()
        theirs = next(posted.body for posted in server.requests if posted.path == "/api/public/scores")
    theirs = theirs[0] if isinstance(theirs, list) else theirs
    assert ours.keys() - theirs.keys() == set()
