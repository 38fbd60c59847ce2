"""The time at which a run for updates is due: after quiet, after the longest wait, never twice for one update."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from flow_run_list import Api, make_flow_run, make_served, make_update
from kept_open import kept_open
from prefect.server.events.schemas.automations import EventTrigger
from prefect.server.events.schemas.events import ReceivedEvent
from warehouse_processes import make_warehouse
from warehouse_runs import make_run

from evalhouse.flows.preparing.request import Trigger, Update
from evalhouse.flows.preparing.suites import KnowledgeBase
from evalhouse.flows.serving import backlog as updates
from evalhouse.flows.serving.backlog import catch_up, find_unanswered, put_answered, queue_left
from evalhouse.flows.serving.deployments import _watch_heartbeats
from evalhouse.flows.serving.flow_runs import ServedSuite
from evalhouse.flows.shards import report_suspended
from evalhouse.warehouse.rows.runs import insert_run
from evalhouse.warehouse.store import Warehouse

START = datetime(2026, 3, 1, 12)
WAITS = KnowledgeBase(knowledge_base="docs", debounce_s=60, max_wait_s=300)


@pytest.fixture
def warehouse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Warehouse]:
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "home"))
    with kept_open(tmp_path):
        yield make_warehouse(tmp_path)


@pytest.fixture
def suite(warehouse: Warehouse) -> ServedSuite:
    return make_served(warehouse, kb_name="docs")


def make_waits(debounce_s: float) -> KnowledgeBase:
    return KnowledgeBase(knowledge_base="docs", debounce_s=debounce_s)


def test_updates_that_lost_their_flow_run_get_one(suite: ServedSuite) -> None:
    api = Api()
    api.events = [make_update("e1", datetime(2026, 2, 1)), make_update("e2", datetime(2026, 2, 2))]
    assert catch_up(api, suite, WAITS) == "nightly: updates of docs without a run: 2; one is queued"
    assert [one["parameters"] for one in api.created] == [{"trigger": "event", "event": "e2"}]
    assert catch_up(api, suite, WAITS) is None  # it waits


def test_updates_wait_while_a_person_has_disabled_their_trigger(suite: ServedSuite) -> None:
    api = Api()
    api.events = [make_update("e1", datetime(2026, 2, 1))]
    api.automations = [{"name": "nightly: docs was updated", "enabled": False}]
    assert catch_up(api, suite, WAITS) is None
    assert catch_up(api, suite, WAITS, trigger_is_new=True) is None
    queue_left(api, suite, find_unanswered(api, suite).updates, WAITS)
    assert api.created == []
    api.automations[0]["enabled"] = True
    assert catch_up(api, suite, WAITS) is not None


def test_updates_whose_flow_run_failed_are_not_tried_for_ever(suite: ServedSuite) -> None:
    tried = make_flow_run("f1", "FAILED", parameters={"trigger": "event"}, start_time="2026-02-03T00:00:00+00:00")
    api = Api(tried)
    api.events = [make_update("e1", datetime(2026, 2, 1))]
    assert catch_up(api, suite, WAITS) is None
    assert catch_up(api, suite, WAITS, trigger_is_new=True) is not None


def test_fresh_updates_are_left_to_their_trigger_or_wait_for_quiet(suite: ServedSuite) -> None:
    api, now = Api(), datetime.now(UTC).replace(tzinfo=None)
    api.events = [make_update("e1", now)]
    assert catch_up(api, suite, make_waits(600)) is None
    assert catch_up(api, suite, make_waits(600), trigger_is_new=True) is not None
    due = datetime.fromisoformat(api.created[0]["state"]["state_details"]["scheduled_time"])
    assert (due.replace(tzinfo=None) - now).total_seconds() == pytest.approx(600, abs=1)


@dataclass(kw_only=True)
class Afternoon:
    """A stream of updates, the trigger that waits for quiet, and runs that take a while, in time that is only counted.

    `offsets` are when updates come, in seconds from the start; `runs` when each run began and what it answered."""

    suite: ServedSuite
    warehouse: Warehouse
    offsets: Sequence[float]
    run_s: float
    monkeypatch: pytest.MonkeyPatch
    api: Api = field(default_factory=Api)
    runs: dict[float, list[str]] = field(default_factory=dict)
    _end_s: float | None = None

    def pass_until(self, end_s: int) -> None:
        for now_s in range(0, end_s, 10):
            self._set_clock(now_s)
            self._announce(now_s)
            if now_s % 20 == 0:  # as often as a process that serves looks
                catch_up(self.api, self.suite, WAITS)
            self._work(now_s)

    def _set_clock(self, now_s: float) -> None:
        now = (START + timedelta(seconds=now_s)).replace(tzinfo=UTC)

        class Clock(datetime):
            @classmethod
            def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
                assert tz is UTC
                return now

        self.monkeypatch.setattr(updates, "datetime", Clock)

    def _announce(self, now_s: float) -> None:
        """Updates come, and the trigger fires for each that no other has followed."""
        for number, offset in enumerate(self.offsets):
            quiet = offset + WAITS.debounce_s
            if offset == now_s:
                self.api.events.append(make_update(f"e{number}", START + timedelta(seconds=offset)))
            if quiet == now_s and not any(offset < other < quiet for other in self.offsets):
                self.api.flow_runs.append(make_flow_run(f"t{number}", "SCHEDULED", parameters={"trigger": "event"}))

    def _work(self, now_s: float) -> None:
        """End the running run; the next one begins and answers all updates so far."""
        if self._end_s is not None and now_s < self._end_s:
            return
        for flow_run in self.api.flow_runs:
            if flow_run["state_type"] == "RUNNING":
                flow_run["state_type"], self._end_s = "COMPLETED", None
                if left := self._find_unanswered():
                    queue_left(self.api, self.suite, left, WAITS)
        for flow_run in self.api.flow_runs:
            if flow_run["state_type"] == "SCHEDULED" and self._end_s is None:
                start = (START + timedelta(seconds=now_s)).replace(tzinfo=UTC)
                flow_run["start_time"], flow_run["state_type"] = start.isoformat(), "COMPLETED"
                if answered := self._find_unanswered():
                    flow_run["state_type"], self._end_s = "RUNNING", now_s + self.run_s
                    self._answer(now_s, answered)

    def _answer(self, now_s: float, answered: tuple[Update, ...]) -> None:
        self.runs[now_s] = [update.event_id for update in answered]
        run_id = f"r{now_s}"
        insert_run(self.warehouse, make_run(run_id=run_id, suite="nightly", trigger="event"))
        put_answered(self.warehouse, Trigger(kind="event", kb_name="docs", updates=answered), run_id)

    def _find_unanswered(self) -> tuple[Update, ...]:
        return find_unanswered(self.api, self.suite).updates


@pytest.mark.parametrize(
    ("offsets", "starts"),
    [
        # The end of the stream is answered when it is quiet.
        pytest.param(range(0, 720, 30), [300, 640, 750], id="without a pause"),
        pytest.param(range(0, 150, 30), [180], id="a burst shorter than the longest wait"),
        pytest.param([0, 30, 60, 200, 400], [120, 260, 460], id="pauses that are long enough"),
        pytest.param([0, 30, 120, 150], [90, 210], id="updates during a run"),
    ],
)
def test_a_stream_makes_the_runs_it_should(
    suite: ServedSuite,
    warehouse: Warehouse,
    monkeypatch: pytest.MonkeyPatch,
    offsets: Sequence[float],
    starts: Sequence[float],
) -> None:
    afternoon = Afternoon(suite=suite, warehouse=warehouse, offsets=offsets, run_s=100, monkeypatch=monkeypatch)
    afternoon.pass_until(int(max(offsets)) + 80)
    answered = [event_id for event_ids in afternoon.runs.values() for event_id in event_ids]
    assert answered == [f"e{number}" for number in range(len(offsets))], "none is lost, and none is answered twice"
    assert list(afternoon.runs) == starts


def test_a_stream_whose_runs_fail_is_tried_once_in_a_longest_wait(suite: ServedSuite) -> None:
    now = datetime.now(UTC).replace(tzinfo=None)
    api, waits = Api(), KnowledgeBase(knowledge_base="docs", debounce_s=60, max_wait_s=600)
    api.events = [make_update(f"e{ago}", now - timedelta(seconds=ago)) for ago in range(700, 0, -50)]
    line = catch_up(api, suite, waits)
    assert line == "nightly: updates of docs that have waited for 600 s while more came: 14; a run is queued"
    api.flow_runs[0]["state_type"] = "FAILED"
    for ago_s, is_tried in ((300, False), (601, True)):
        api.flow_runs[0]["start_time"] = (datetime.now(UTC) - timedelta(seconds=ago_s)).isoformat()
        assert (catch_up(api, suite, waits) == line) == is_tried


@pytest.mark.parametrize(
    ("debounce_s", "max_total_wait_s"), [(60, 1_800), (180, 1_800), (600, 6_000), (86_400, 604_800)]
)
def test_default_wait_is_ten_times_the_quiet_and_at_least_half_an_hour(
    debounce_s: float, max_total_wait_s: float
) -> None:
    assert make_waits(debounce_s).max_total_wait_s == max_total_wait_s


def test_event_of_a_suspended_flow_run_ends_the_wait_for_its_next_heartbeat(monkeypatch: pytest.MonkeyPatch) -> None:
    posted: list[Any] = []

    class Posting(Api):
        def post(self, path: str, body: Any) -> Any:  # noqa: ANN401
            posted.append(body)

    api, (flow_run_id, deployment_id) = Posting(), (uuid4(), uuid4())
    monkeypatch.setattr("evalhouse.flows.server.api.find_api", lambda _: api)
    report_suspended(flow_run_id, deployment_id)
    _watch_heartbeats(api, "nightly", str(deployment_id), ())
    [event], automation = posted
    trigger = EventTrigger.model_validate(automation["trigger"])
    received = ReceivedEvent.model_validate(event | {"received": event["occurred"]})
    assert (trigger.covers(received), trigger.expects(received.event)) == (True, True)
    assert not trigger.starts_after(received.event), "no wait begins with it"
    assert received.resource.id == f"prefect.flow-run.{flow_run_id}", "for which the wait was"
