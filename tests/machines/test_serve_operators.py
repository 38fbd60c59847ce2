"""Changes of operators in Prefect stay over restarts of `evalhouse serve`, which reports it; changed and left out
suite files are followed, and old flow runs and events are deleted."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from serve_house import ServeHouse, open_serve_house
from webhook import Webhook, serve_webhook

from evalhouse.flows.preparing.suites import load_suite
from evalhouse.flows.server.api import PrefectApi
from evalhouse.flows.serving.deployments import _UNSERVED, _describe

NIGHTLY, NOON, YEARLY = "0 3 * * *", "0 12 * * *", "0 0 1 1 *"


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeHouse]:
    with open_serve_house(tmp_path_factory.mktemp("operators")) as house:
        yield house


@pytest.fixture
def webhook() -> Iterator[Webhook]:
    with serve_webhook() as served:
        yield served


def read(house: ServeHouse, suite: str) -> dict[str, Any]:
    found: dict[str, Any] = house.api.get(f"/deployments/name/evaluate-suite/{suite}")
    return found


def list_schedules(house: ServeHouse, suite: str) -> list[tuple[str, bool]]:
    return [(row["schedule"]["cron"], row["active"]) for row in read(house, suite)["schedules"]]


def open_database(house: ServeHouse) -> closing[sqlite3.Connection]:
    return closing(sqlite3.connect(Path(house.place.variables["PREFECT_HOME"]) / "prefect.db", timeout=60))


def count(house: ServeHouse, what: str) -> int:
    with open_database(house) as database:
        return int(database.execute(f"select count(*) from {what}").fetchone()[0])


def make_old(house: ServeHouse) -> str:
    """Let all flow runs and events of the house be of forty days ago, and return that time."""
    then = f"{datetime.now(UTC) - timedelta(days=40):%Y-%m-%d %H:%M:%S.%f}"
    with open_database(house) as database, database:
        for change in ("flow_run set end_time", "events set occurred", "event_resources set occurred"):
            assert database.execute(f"update {change} = ?", (then,)).rowcount > 0, change
    return then


@pytest.mark.slow
def test_state_of_operators_stays_and_files_are_followed(house: ServeHouse, webhook: Webhook) -> None:
    names = ("paused", "off", "moved", "plain", "dropped")
    suites = {name: house.write_suite(name, cron=NIGHTLY, kb_name=name) for name in names}
    with suites["off"].open("a", encoding="utf-8") as file:
        file.write(f'[notify]\nwebhook = "{webhook.url}"\n')
    house.serve(*suites.values())
    api = house.api
    api.post(f"/deployments/{read(house, 'paused')['id']}/pause_deployment", {})
    row = read(house, "off")
    api.patch(f"/deployments/{row['id']}/schedules/{row['schedules'][0]['id']}", {"active": False})
    row = read(house, "moved")
    moved = {"schedule": {"cron": "30 5 * * *", "timezone": "UTC"}}
    api.patch(f"/deployments/{row['id']}/schedules/{row['schedules'][0]['id']}", moved)
    automations = api.get(f"/automations/related-to/prefect.deployment.{row['id']}")
    ids = {automation["name"]: automation["id"] for automation in automations}
    api.patch(f"/automations/{ids['moved: moved was updated']}", {"enabled": False})
    api.delete(f"/automations/{ids['moved: its process is silent']}")
    noon = {"schedule": {"cron": NOON, "timezone": "UTC"}, "active": False}
    for name in ("plain", "dropped"):
        api.post(f"/deployments/{read(house, name)['id']}/schedules", [noon])
    api.post(f"/deployments/{read(house, 'plain')['id']}/create_flow_run", {"state": {"type": "COMPLETED"}})
    house.stop()
    then = make_old(house)

    house.serve(*(suites[name] for name in names if name != "dropped"))
    house.wait_until(lambda: "deleted from Prefect's history: plain 1 flow run older than 30d" in house.output)
    for table in ("events", "event_resources"):
        house.wait_until(lambda: count(house, f"{table} where occurred <= '{then}'") == 0)  # noqa: B023
    assert read(house, "paused")["paused"]
    assert list_schedules(house, "off") == [(NIGHTLY, False)]
    assert list_schedules(house, "moved") == [("30 5 * * *", True)]
    assert sorted(list_schedules(house, "plain")) == [(NOON, False), (NIGHTLY, True)]
    automations = house.api.get(f"/automations/related-to/prefect.deployment.{read(house, 'moved')['id']}")
    assert {automation["name"]: automation["enabled"] for automation in automations} == {
        "moved: moved was updated": False, "moved: its process is silent": True,
    }  # fmt: skip
    for line in (
        "the deployment is paused, and that stays so",
        "the schedule is switched off, and that stays so",
        f"the schedule is 30 5 * * * in UTC, not {NIGHTLY} in UTC as in the file, and that stays so",
        f"the schedule {NOON} in UTC is switched off, and that stays so",
        "the automation 'moved: moved was updated' is disabled, and that stays so",
        "the automation 'moved: its process is silent' was missing and has been made",
        "on schedule    30 5 * * * in UTC: next ",
    ):
        assert line in house.output
    # A changed file is served in its new form; one that cannot be served is reported.
    house.write_suite("plain", cron=YEARLY)
    as_served = suites["off"].read_text(encoding="utf-8")
    suites["off"].write_text("judge = 3\n", encoding="utf-8")
    house.api.delete(f"/deployments/{read(house, 'paused')['id']}")
    # The one that no process serves any more is paused.
    lines = (
        "paused: its deployment was deleted in Prefect, so it does not run any more",
        "dropped: no process serves this suite any more",
        "plain: its changed file is served",
    )
    house.wait_until(lambda: all(line in house.output for line in (*lines, "off: the changed file is not served")))
    house.wait_until(lambda: bool(webhook.bodies))
    (posted,) = webhook.bodies
    assert (posted["suite"], posted["status"], posted["run_id"]) == ("off", "failed", None)
    assert posted["problem"].startswith(
        "off: the changed file is not served, and schedule and trigger stay as they were"
    )
    assert read(house, "dropped")["paused"]
    assert sorted(list_schedules(house, "plain")) == [(YEARLY, True), (NOON, False)]
    suites["off"].write_text(as_served, encoding="utf-8")
    house.wait_until(lambda: "off: its file and what is served are equal again" in house.output)
    house.stop()

    suites["off"] = house.write_suite("off", cron=YEARLY, kb_name="off")
    house.serve(suites["off"], suites["dropped"])
    assert list_schedules(house, "off") == [(YEARLY, False)]  # the file's time, and the operator's switch
    assert not read(house, "dropped")["paused"]
    assert sorted(list_schedules(house, "dropped")) == [(NOON, False), (NIGHTLY, True)]
    house.stop()
    assert Path(house.printed[-1]).read_text(encoding="utf-8").count("the schedule is switched off") == 1


PLACE = "Suite /s.toml, served by evalhouse on {}. Its file has no schedule."


@pytest.mark.parametrize(
    ("description", "before", "expected"),
    [
        (None, (), []),
        (PLACE.format("here in /home"), ("s: its process is silent",), []),
        ("A person's words.", (), ["the automation 's: its process is silent' was missing and has been made"]),
        (PLACE.format("there in /home"), ("s: its process is silent",), ["it was served on there in /home before"]),
        (PLACE.format("there in /home") + f" {_UNSERVED}", ("s: its process is silent",), []),
    ],
)
def test_what_a_registration_replaces_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, description: str | None, before: Sequence[str], expected: list[str]
) -> None:
    class Api(PrefectApi):
        def __init__(self) -> None:
            pass

        def get(self, path: str) -> Any:  # noqa: ANN401
            if path.startswith("/automations"):
                return [{"name": "s: its process is silent", "enabled": True}]
            return {"schedules": [], "paused": False}

    monkeypatch.setattr("evalhouse.flows.serving.deployments._find_place", lambda: "here in /home")
    (tmp_path / "s.toml").write_text('dataset = "sample"\n', encoding="utf-8")
    found = None if description is None else {"description": description}
    changes = _describe(Api(), load_suite(tmp_path / "s.toml"), "d1", found, before).changes
    assert [change.partition(";")[0] for change in changes] == expected
