"""Notifications: the ends that are posted, the message, and webhooks that fail."""

from __future__ import annotations

import contextlib
import logging
import re
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rows import derive_all
from warehouse_processes import make_warehouse
from warehouse_runs import make_run
from webhook import Webhook, serve_webhook

from evalhouse.flows.preparing.request import BY_HAND, Trigger
from evalhouse.flows.serving.notify import (
    NotifyError,
    _write_failures,
    find_webhook,
    notify_of_break,
    notify_of_crash,
    notify_of_end,
)
from evalhouse.tasks.judge.protocol import NEW_RUN
from evalhouse.tasks.settings.suite import Notify
from evalhouse.warehouse.rows.runs import RunRow, find_run, insert_run
from evalhouse.warehouse.store import Warehouse


def make_failed(kind: str, metric: str, limit: float, value: float, detail: str) -> dict[str, Any]:
    """A check that failed, with an interval of a fifth of what was found."""
    interval = {"ci_low": value * 0.8, "ci_high": value * 1.2, "noise_floor": None}
    found = {"value": value, "beyond": abs(value - limit), "outcome": "failed", "detail": detail}
    return {"kind": kind, "metric": metric, "limit": limit, **interval, **found}


GATE: dict[str, Any] = {
    "outcome": "failed",
    "undecided": "pass",
    "counts": {"failed": 2, "undecided": 0, "passed": 1},
    "run": {},
    "against": None,
    "baseline": {"against": None, "run_ids": [], "accepted": None},
    "few_scored": ["60 of 100 traces ended with an error"],
    "checks": [
        make_failed("min", "factual_f1", 0.8, 0.5, "the whole interval is beyond the limit"),
        make_failed("trend", "faithfulness", 0.01, 0.05, "a significant drop"),
        {"kind": "min", "metric": "mrr", "limit": 0.1, "outcome": "passed"},
    ],
}


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evalhouse.flows.serving.notify._PAUSES_S", (0.0, 0.0))


@pytest.fixture
def webhook(monkeypatch: pytest.MonkeyPatch) -> Iterator[Webhook]:
    with serve_webhook() as served:
        monkeypatch.setenv("HOOK", served.url)
        yield served


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Warehouse:
    """Two nights of one suite: factual_f1 goes from 1 to 0.5, faithfulness is scored in the second alone."""
    store = make_warehouse(tmp_path_factory.mktemp("nights"))
    add_night(store, "night-1", 0, {"factual_f1": [1.0, 1.0]})
    add_night(store, "night-2", 60, {"factual_f1": [0.5, 0.5], "faithfulness": [0.25, None]})
    return store


def add_night(store: Warehouse, run_id: str, minute: int, scores: dict[str, list[float | None]]) -> None:
    metrics = ("factual_f1", "faithfulness")
    insert_run(store, make_run(run_id, minute=minute, suite="s", status="completed", metrics=metrics, n_samples=2))
    rows = [
        [run_id, f"q{n}", metric, value, "1", None if value is not None else "judge_failed"]
        for metric, values in scores.items()
        for n, value in enumerate(values)
    ]
    with store.writing(patience_s=1.0) as connection:
        connection.execute(
            "insert into run_samples (run_id, sample_id, ordinal, input_hash) "
            "select ?, 'q' || n, n, 'same' from range(2) as numbers (n)",
            [run_id],
        )
        connection.executemany(
            "insert into scores (run_id, sample_id, metric, value, metric_version, unscored_reason) "
            "values (?, ?, ?, ?, ?, ?)",
            rows,
        )
        derive_all(connection, ["scores"])


def make_ended(**columns: object) -> RunRow:
    return make_run(
        "night-2",
        minute=60,
        **{"suite": "s", "status": "completed", "n_samples": 2, "metrics": ("factual_f1", "faithfulness"), **columns},
    )


def make_notify(*on: str, **more: str) -> Notify:
    return Notify.model_validate({"webhook": "${HOOK}", "on": on, **more}, strict=False)


def test_the_message_has_the_run_its_means_their_change_and_the_gate(store: Warehouse, webhook: Webhook) -> None:
    run = make_ended(trigger="event", kb_name="handbook", kb_version="v7", href="https://example.org/c/1", label="x")
    notify_of_end(make_notify("gate_failed"), store, run, None, GATE)
    (posted,) = webhook.requests
    assert (posted.method, posted.headers["content-type"]) == ("POST", "application/json; charset=utf-8")
    body = posted.body
    text = body.pop("text")
    assert body.pop("headline")["sentence"] == "Nothing is clearly better or worse than in the run before"
    assert body == {
        "suite": "s",
        "run_id": "night-2",
        "status": "completed",
        "problem": None,
        "gate": {name: GATE[name] for name in ("outcome", "undecided", "counts", "baseline", "checks", "few_scored")},
        "trigger": "event",
        "kb_name": "handbook",
        "kb_version": "v7",
        "label": "x",
        "href": "https://example.org/c/1",
        "testset": None,
        "variants": None,
        "n_samples": 2,
        "previous_run_id": "night-1",
        "next": "evalhouse compare night-1 night-2",
        "metrics": {
            "factual_f1": {"mean": 0.5, "n_scored": 2, "n_unscored": 0, "change": -0.5, "n_shared": 2},
            "faithfulness": {"mean": 0.25, "n_scored": 1, "n_unscored": 1, "change": None, "n_shared": None},
        },
    }
    assert text.splitlines() == [
        "❌ Nothing is clearly better or worse than in the run before.",
        "Of the 2 samples in both runs 0 have another answer and 0 other contexts.",
        "s completed (run night-2), because handbook was updated to v7",
        "gate failed: 2 failed, 0 undecided, 1 passed",
        "factual_f1: mean at least 0.800: found 0.500 (0.400 to 0.600), beyond the limit by 0.300: "
        "the whole interval is beyond the limit",
        "faithfulness: fall over nights at most 0.010: found 0.050 (0.040 to 0.060), beyond the limit by 0.040: "
        "a significant drop",
        "60 of 100 traces ended with an error",
        "https://example.org/c/1",
        "next: evalhouse compare night-1 night-2",
    ]


def test_each_failed_slice_is_named() -> None:
    """The finding of one customer read as another one of the whole."""
    common = {"kind": "max_drop", "metric": "factual_f1", "limit": 0.02, "value": 0.5, "n": 9, "outcome": "failed",
              "ci_low": None, "ci_high": None, "noise_floor": None, "beyond": None, "detail": "worse"}  # fmt: skip
    slices = [(None, None), ("customer", "Ann"), ("customer", "Ann"), ("customer", None)]
    checks = [{**common, "by_column": column, "by_value": value} for column, value in slices]
    (line,) = _write_failures(checks)
    named = [part.partition(": found")[0] for part in line.split("; ")]
    drop = "drop at most 0.020"
    assert named == [f"factual_f1: {drop}", f"factual_f1 (customer Ann): {drop}", drop,
                     f"factual_f1 (customer missing): {drop}"]  # fmt: skip


def test_no_metric_is_named_twice_in_the_text(store: Warehouse, webhook: Webhook) -> None:
    lowest, trend, _ = GATE["checks"]
    gate = {**GATE, "checks": [lowest, {**trend, "metric": "factual_f1"}]}
    notify_of_end(make_notify("gate_failed"), store, make_ended(), None, gate)
    text = webhook.bodies[0]["text"]
    assert [text.count(name) for name in ("factual_f1", "faithfulness", "fall over nights at most 0.010")] == [1, 1, 1]
    assert "\nfaithfulness 0.250\n" in text


@pytest.mark.parametrize(
    ("on", "status", "gate", "expected"),
    [
        (("completed",), "completed", None, True),
        (("failed",), "completed", None, False),
        (("gate_failed",), "completed", GATE, True),
        (("gate_failed",), "incomplete", GATE, True),
        (("completed", "incomplete", "failed", "gate_failed"), "cancelled", None, False),
    ],
)
def test_only_chosen_ends_are_posted(
    *, store: Warehouse, webhook: Webhook, on: tuple[str, ...], status: str, gate: dict[str, Any] | None, expected: bool
) -> None:
    notify_of_end(make_notify(*on), store, make_ended(status=status), None, gate)
    assert len(webhook.requests) == expected


def test_run_that_never_began_is_posted_as_failed(webhook: Webhook) -> None:
    notify, trigger = make_notify("failed"), Trigger(kind="schedule")
    notify_of_break(notify, "s", trigger, "q.jsonl: there is no such file\n" + "x" * 500)
    (body,) = webhook.bodies
    assert (body["run_id"], body["status"], body["trigger"], body["metrics"]) == (None, "failed", "schedule", {})
    first, second = body["text"].splitlines()
    assert first == "❌ s failed, on schedule"
    assert second.startswith("q.jsonl: there is no such file xxx")
    assert len(second) < 310
    notify_of_break(make_notify("completed"), "s", trigger, "")
    assert len(webhook.requests) == 1


@pytest.mark.parametrize("run", [make_run("r", suite="s", trigger="schedule", status="failed"), None])
def test_a_crash_is_posted_with_what_happens_to_the_run(tmp_path: Path, webhook: Webhook, run: RunRow | None) -> None:
    store, problem = make_warehouse(tmp_path), "stopped by SIGTERM: it is resumed"
    assert notify_of_crash(make_notify("failed"), "s", store, run, problem) == problem
    assert notify_of_crash(make_notify("completed", "gate_failed"), "s", store, run, "") == ""
    (body,) = webhook.bodies
    assert (body["run_id"], body["status"], body["next"]) == (run and "r", "crashed", None)
    named = " (run r)" if run else ""
    assert body["text"] == f"❌ s crashed{named}, on schedule\nstopped by SIGTERM: it is resumed"


@pytest.mark.parametrize(
    ("problem", "command"),
    [
        ("the model 'gpt-9' does not exist" + f"; {NEW_RUN} model", "evalhouse run SUITE.toml --judge MODEL"),
        ("the bot is away", "evalhouse resume r"),
    ],
)
def test_the_next_command_is_one_that_helps(tmp_path: Path, webhook: Webhook, problem: str, command: str) -> None:
    run = make_run("r", suite="s", status="failed", problem=problem)
    notify_of_end(make_notify("failed"), make_warehouse(tmp_path), run, problem, None)
    (body,) = webhook.bodies
    assert body["next"] == command
    assert body["text"].endswith(f"next: {command}")


TEXT = (
    "⚠️ No result yet: no sample was judged.\ns incomplete (run r), started by hand\n<!channel> & co\n"
    "next: evalhouse resume r"
)


@pytest.mark.parametrize(
    ("form", "shape"),
    [
        ("slack", {"text": TEXT.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")}),
        ("dingtalk", {"msgtype": "text", "text": {"content": TEXT}}),
        ("feishu", {"msg_type": "text", "content": {"text": TEXT}}),
    ],
)
def test_chat_programs_get_their_own_message(
    tmp_path: Path, webhook: Webhook, form: str, shape: dict[str, Any]
) -> None:
    store = make_warehouse(tmp_path)
    run = make_run("r", suite="s", status="incomplete", metrics=())
    notify_of_end(make_notify("incomplete", format=form), store, run, "<!channel> & co", None)
    assert webhook.bodies == [shape]


@pytest.mark.parametrize(
    ("statuses", "n_tries", "expected"),
    [
        ((503, 200), 2, ""),
        ((500,), 3, "s: the notification was not delivered: the webhook did not take it in 3 tries: status 500.\n"),
        ((404,), 1, "s: the notification was not delivered: the webhook refused it with status 404.\n"),
        ((302,), 1, "s: the notification was not delivered: the webhook refused it with status 302.\n"),
    ],
)
def test_temporary_failures_are_retried_and_the_last_one_is_reported(
    *,
    store: Warehouse,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    statuses: tuple[int, ...],
    n_tries: int,
    expected: str,
) -> None:
    with serve_webhook(*statuses) as webhook:
        monkeypatch.setenv("HOOK", webhook.url)
        notify_of_end(make_notify("completed"), store, make_ended(), None, None)
    assert len(webhook.requests) == n_tries
    written = capsys.readouterr()
    assert (written.out, written.err) == ("", expected)
    stored = find_run(store, make_ended().run_id).notify_problem
    assert stored == (expected.removeprefix("s: the notification was not delivered: ").removesuffix(".\n") or None)


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        (None, "HOOK is not set."),
        ("ftp://hush/x", "the webhook is not an address that begins with https:// or http://."),
        ("http://127.0.0.1:1/hush", "the webhook did not take it in 3 tries: [Errno 111] Connection refused."),
        ("http://127.0.0.1:1/hush here", "the webhook is not an address that begins with https:// or http://."),
    ],
)
def test_unusable_address_is_reported_without_being_shown(
    store: Warehouse,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    address: str | None,
    expected: str,
) -> None:
    monkeypatch.delenv("HOOK", raising=False)
    if address is not None:
        monkeypatch.setenv("HOOK", address)
    notify_of_end(make_notify("completed"), store, make_ended(), None, None)
    error = capsys.readouterr().err
    assert error == f"s: the notification was not delivered: {expected}\n"
    assert "hush" not in error


def test_a_webhook_that_answers_byte_by_byte_holds_no_run(
    store: Warehouse, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("evalhouse.flows.serving.notify._TIMEOUT_S", 0.3)

    def drip(listener: socket.socket) -> None:
        for _ in range(3):
            client, _ = listener.accept()
            with client, contextlib.suppress(OSError):  # the notification gives up
                for _ in range(200):
                    client.sendall(b"H")
                    time.sleep(0.05)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=drip, args=(listener,), daemon=True).start()
        monkeypatch.setenv("HOOK", f"http://127.0.0.1:{listener.getsockname()[1]}/hush")
        notify_of_end(make_notify("completed"), store, make_ended(), None, None)
    late = "it did not complete its answer within 0.3 s"
    assert capsys.readouterr().err.endswith(f"the webhook did not take it in 3 tries: {late}.\n")


def test_variables_stand_anywhere_in_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    notify = Notify(webhook="https://${HOST}/services/${TOKEN}")
    with pytest.raises(NotifyError, match=r"^HOST and TOKEN are not set$"):
        find_webhook(notify)
    monkeypatch.setenv("HOST", "hooks.example")
    monkeypatch.setenv("TOKEN", "t0 ")
    assert find_webhook(notify) == "https://hooks.example/services/t0"


def test_a_webhook_that_is_down_at_night_is_in_the_logs_of_serve_and_of_prefect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("prefect.context.FlowRunContext", SimpleNamespace(get=object))
    monkeypatch.setattr("prefect.logging.get_run_logger", lambda: logging.getLogger("prefect.flow_runs"))
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path))
    log = tmp_path / "evalhouse-serve.log"
    log.write_text("before\n", encoding="utf-8")
    notify_of_break(Notify(webhook="${NO_HOOK}"), "nightly", BY_HAND, "broken")
    line = "nightly: the notification was not delivered: NO_HOOK is not set"
    assert re.fullmatch(rf"before\n\d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d run: {line}\n", log.read_text(encoding="utf-8"))
    assert line in caplog.text


def test_a_crash_that_no_webhook_takes_is_in_the_line_about_it_and_with_the_run(
    store: Warehouse, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("HOOK", raising=False)
    line = notify_of_crash(make_notify("failed"), "s", store, make_ended(status="failed"), "it had crashed")
    assert line == "it had crashed; the notification was not delivered: HOOK is not set"
    assert find_run(store, make_ended().run_id).notify_problem == "HOOK is not set"
    assert capsys.readouterr().err == "", "the process that serves prints the line with its time"
