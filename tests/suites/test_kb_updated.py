"""Announce an update, and parse the events that any sender may have announced."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from cli_process import Place
from target_server import Canned, Sent, answer_json, serving

from evalhouse.flows.errors import SettingsError
from evalhouse.flows.preparing.suites import make_kb_source
from evalhouse.flows.server.api import PrefectApi
from evalhouse.flows.serving.flow_runs import WINDOW, fetch_updates, make_event, parse_update


@dataclass(kw_only=True)
class EventServer:
    """The parts of Prefect's event API that are used here, with pages and CSRF tokens."""

    url: str = ""
    events: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    asked: list[Any] = field(default_factory=list)
    requires_token: bool = False
    refusal: Canned | None = None
    page_size: int = 50

    def answer(self, sent: Sent) -> Canned:
        address, start = urlsplit(sent.path), 0
        if address.path.endswith("/csrf-token"):
            return answer_json({"token": "the token", "client": "c", "expiration": "2999-01-01T00:00:00Z"})
        if sent.method == "GET":
            start = int(parse_qs(address.query)["page-token"][0])
        elif self.requires_token and sent.headers.get("prefect-csrf-token") != "the token":
            return answer_json({"detail": "Missing CSRF token."}, status=403)
        elif address.path.endswith("/automations/filter"):
            match = {"prefect.resource.id": "knowledge-base.docs"}
            return answer_json([{"enabled": True, "trigger": {"match": match}}, {"enabled": True, "trigger": {}}])
        elif address.path.endswith("/events"):
            self.headers.append(sent.headers)
            self.events += sent.body if self.refusal is None else []  # type: ignore[operator]
            return self.refusal or Canned(status=204)
        else:
            self.asked.append(sent.body)
        end = start + self.page_size
        # The server names itself by an address that is not reachable from outside.
        more = f"http://inside:4200/api/events/filter/next?page-token={end}" if end < len(self.events) else None
        return answer_json({"events": self.events[start:end], "total": 0, "next_page": more})


@pytest.fixture
def server() -> Iterator[EventServer]:
    events = EventServer()
    with serving(events.answer) as http:
        events.url = f"{http.root_url}/api"
        yield events


@pytest.fixture
def place(server: EventServer, tmp_path: Path) -> Place:
    return Place(folder=tmp_path, variables={"PREFECT_HOME": str(tmp_path / "home"), "PREFECT_API_URL": server.url})


def test_an_update_that_no_suite_waits_for_is_announced_with_a_note(server: EventServer, place: Place) -> None:
    assert "no suite" not in place.call("kb-updated", "docs").stderr
    done = place.call("kb-updated", "doc")
    assert done.status == 0
    assert "no suite that is served waits for updates of 'doc'; did you mean docs?" in done.stderr
    assert len(server.events) == 2


def test_update_is_announced_as_prefect_requires(server: EventServer, place: Place) -> None:
    done = place.call("kb-updated", "docs", "--version", "2026-11-21", "--changed", "a.md#1", "--changed", "b.md#2")
    assert done.status == 0, done.stderr
    (event,) = server.events
    assert event["event"] == "knowledge-base.updated"
    assert event["resource"]["prefect.resource.id"] == "knowledge-base.docs"
    assert event["payload"] == {"version": "2026-11-21", "changed": ["a.md#1", "b.md#2"]}
    assert abs(datetime.now(UTC) - datetime.fromisoformat(event["occurred"])) < timedelta(minutes=5)
    assert event["id"] in done.stdout
    document = place.call("kb-updated", "docs", "--json").document
    bare = server.events[1]
    assert document == {"event_id": bare["id"], "knowledge_base": "docs", "version": None, "changed": []}
    assert bare["payload"] == {}


@pytest.mark.parametrize(
    ("variables", "header"),
    [
        ({"PREFECT_API_KEY": "pnu_1"}, "Bearer pnu_1"),
        ({"PREFECT_API_AUTH_STRING": "admin:päss"}, f"Basic {base64.b64encode('admin:päss'.encode()).decode()}"),
    ],
)
def test_server_gets_key_that_prefect_would_send(
    server: EventServer, place: Place, variables: dict[str, str], header: str
) -> None:
    done = place.with_variables(**variables).call("kb-updated", "docs")
    assert done.status == 0, done.stderr
    assert server.headers[0]["authorization"] == header


@pytest.mark.slow
def test_prefects_own_settings_apply_in_a_new_process(server: EventServer, place: Place) -> None:
    """Custom headers, and the token by which a server guards against foreign browsers."""
    server.requires_token = True
    own = place.with_variables(PREFECT_CLIENT_CUSTOM_HEADERS='{"Authorization": "Own 1"}')
    done = own.call_process("kb-updated", "docs")
    assert done.status == 0, done.stderr
    assert server.headers[0]["authorization"] == "Own 1"
    assert len(server.events) == 1


def test_server_and_key_of_prefects_profile_are_used(server: EventServer, place: Place) -> None:
    home = place.folder / "home"
    home.mkdir()
    profile = f'PREFECT_API_URL = "{server.url}"\nPREFECT_API_KEY = "pnu_2"\n'
    (home / "profiles.toml").write_text(f'active = "mine"\n[profiles.mine]\n{profile}')
    done = Place(folder=place.folder, variables={"PREFECT_HOME": str(home)}).call("kb-updated", "docs")
    assert done.status == 0, done.stderr
    assert server.headers[0]["authorization"] == "Bearer pnu_2"


def test_without_an_address_the_server_that_serve_started_last_gets_it(server: EventServer, tmp_path: Path) -> None:
    """README has the command beside `serve --with-server`, and it failed for its address."""
    (tmp_path / "evalhouse-server.env").write_text(
        f"PREFECT_API_URL={server.url}\nPREFECT_API_AUTH_STRING=admin:sesame\n", encoding="utf-8"
    )
    done = Place(folder=tmp_path, variables={"PREFECT_HOME": str(tmp_path)}).call("kb-updated", "docs")
    assert done.status == 0, done.stderr
    assert len(server.events) == 1
    assert server.headers[0]["authorization"].startswith("Basic ")


def test_missing_server_is_reported_with_a_way_to_start_one(tmp_path: Path) -> None:
    done = Place(folder=tmp_path, variables={"PREFECT_HOME": str(tmp_path)}).call("kb-updated", "docs")
    assert done.status == 2
    assert "evalhouse serve SUITE.toml --with-server" in done.stderr
    assert "PREFECT_API_URL" in done.stderr


def test_server_that_is_down_is_named_without_its_secrets(tmp_path: Path) -> None:
    variables = {"PREFECT_HOME": str(tmp_path), "PREFECT_API_URL": "http://user:secret@127.0.0.1:9/api"}
    done = Place(folder=tmp_path, variables=variables).call("kb-updated", "docs")
    assert done.status == 2
    assert "127.0.0.1:9" in done.stderr
    assert "secret" not in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("status", "answer", "message"),
    [
        (401, b'{"exception_message": "Unauthorized"}', "PREFECT_API_AUTH_STRING"),
        (422, b'{"detail": "no"}', 'status 422: {"detail": "no"}'),
        (200, b"<html>", "not Prefect's API"),
    ],
)
def test_refusal_is_reported_in_one_line(
    server: EventServer, place: Place, status: int, answer: bytes, message: str
) -> None:
    server.refusal = Canned(status=status, body=[answer])
    done = place.call("kb-updated", "docs")
    assert done.status == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "name", ["docs*", "do?cs", "[docs]", "!docs", "", " docs", "two  blanks", "tab\tbed", "x" * 201]
)
def test_name_that_a_trigger_would_read_as_a_pattern_is_refused(name: str) -> None:
    with pytest.raises(SettingsError, match="cannot name a knowledge base"):
        make_kb_source(name)


@pytest.mark.parametrize("name", ["docs", "team/handbook v2", "知识库", "a.b_c-d:e@f+g"])
def test_other_names_are_accepted(name: str) -> None:
    assert make_kb_source(name).name == name


def test_all_pages_are_read_oldest_first_and_each_update_once(server: EventServer) -> None:
    events = [make_event("docs", version=f"v{number}", changed=[]) for number in range(7)]
    server.events += [*events[3:], *events[:3], events[0]]
    server.page_size = 2
    api = PrefectApi({"PREFECT_API_URL": server.url})
    announced = fetch_updates(api, make_kb_source("docs"))
    assert [update.version for update in announced.updates] == [f"v{number}" for number in range(7)]
    (asked,) = server.asked
    assert asked["filter"]["resource"] == {"id": ["knowledge-base.docs"]}
    since = datetime.fromisoformat(asked["filter"]["occurred"]["since"])
    assert timedelta() <= datetime.now(UTC) - since - WINDOW < timedelta(minutes=5)


def test_older_events_are_not_requested(server: EventServer) -> None:
    api = PrefectApi({"PREFECT_API_URL": server.url})
    yesterday = datetime.now(UTC).replace(tzinfo=None) - timedelta(days=1)
    fetch_updates(api, make_kb_source("docs"), since=yesterday)
    assert server.asked[0]["filter"]["occurred"]["since"] == yesterday.replace(tzinfo=UTC).isoformat()


@pytest.mark.parametrize(
    ("payload", "version", "changed", "problem"),
    [
        ({}, None, (), None),
        ({"version": "v1", "changed": ["a", "b", "a"]}, "v1", ("a", "b"), None),
        ({"version": 7, "changed": "a"}, "7", ("a",), None),
        ({"version": "  ", "changed": []}, None, (), None),
        ({"version": ["v1"]}, None, (), "version is not a text"),
        ({"version": "v" * 2_000}, "v" * 1_000, (), "longer than"),
        ({"changed": {"a": 1}}, None, (), "not a list"),
        ({"changed": ["a", None, {"b": 1}, "", "c"]}, None, ("a", "c"), "3 of its 5 changed ids"),
        ("no object", None, (), None),
    ],
)
def test_payload_of_any_shape_is_an_update(
    payload: object, version: str | None, changed: tuple[str, ...], problem: str | None
) -> None:
    update, sentence = parse_update({**make_event("docs", version=None, changed=[]), "payload": payload})
    assert (update.version, update.changed) == (version, changed)
    assert (sentence is None) == (problem is None)
    assert (problem or "") in (sentence or "")


def test_times_are_kept_in_utc() -> None:
    event = make_event("docs", version=None, changed=[]) | {"occurred": "2026-11-21T04:00:00+01:00"}
    assert parse_update(event)[0].occurred_at == datetime(2026, 11, 21, 3)
    assert parse_update(event | {"occurred": "2026-11-21T03:00:00Z"})[0].occurred_at == datetime(2026, 11, 21, 3)
