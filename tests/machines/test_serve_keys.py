"""Access to the server of `evalhouse serve` by pages of other sites, other users of the machine, and with the key."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from browser import open_browser
from serve_house import ServeHouse, open_serve_house, start_prefect_server
from target_server import Canned, serving

from evalhouse.flows.server.environment import load_user_settings, make_lasting_key
from evalhouse.flows.server.local import LocalServer

SUITE, KB = "night", "the handbook"
EVIL = "http://evil.example"
STEP = "prefect.deployments.steps.run_shell_script"
# A page may send what no browser asks a server about first, and open WebSockets: both are tried as well.
SCRIPT = """
(async () => {{
  const seen = [];
  const ask = async (method, path, body, more) => {{
    try {{
      const answer = await fetch("{api}" + path, {{method, body: JSON.stringify(body), ...more}});
      seen.push(answer.status + " " + await answer.text());
    }} catch (error) {{ seen.push("refused by the browser"); }}
  }};
  const json = {{headers: {{"content-type": "application/json"}}}};
  await ask("POST", "/deployments/filter", {{}}, json);
  await ask("PATCH", "/deployments/{deployment}", {{"pull_steps": {steps}}}, json);
  const run = {{"state": {{"type": "SCHEDULED"}}}};
  await ask("POST", "/deployments/{deployment}/create_flow_run", run, json);
  await ask("POST", "/deployments/{deployment}/create_flow_run", run, {{mode: "no-cors"}});
  await new Promise(done => {{
    const socket = new WebSocket("{api}/events/in".replace("http", "ws"));
    socket.onopen = () => {{ seen.push("socket open"); done(); }};
    socket.onerror = () => {{ seen.push("socket refused"); done(); }};
  }});
  return seen;
}})()
"""


def ask(
    url: str, method: str = "GET", body: object = None, headers: Mapping[str, str] | None = None
) -> tuple[int, Mapping[str, str]]:
    """The status and the headers of an answer."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, method=method, data=data)
    for name, value in {"content-type": "application/json", **(headers or {})}.items():
        request.add_header(name, value)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.headers
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeHouse]:
    with open_serve_house(tmp_path_factory.mktemp("keys")) as house:
        house.serve(house.write_suite(SUITE, kb_name=KB))
        yield house


def find_deployment(house: ServeHouse) -> dict[str, Any]:
    (deployment,) = house.post("/deployments/filter", {})
    found: dict[str, Any] = deployment
    return found


def make_steps(house: ServeHouse) -> list[dict[str, Any]]:
    return [{STEP: {"script": f"touch {house.folder}/pwned"}}]


def assert_untouched(house: ServeHouse) -> None:
    assert not (house.folder / "pwned").exists()
    assert not find_deployment(house)["pull_steps"]
    assert house.post("/flow_runs/filter", {}) == []


@pytest.mark.slow
def test_without_the_key_nothing_is_read_or_changed(house: ServeHouse) -> None:
    deployment = f"{house.api_url}/deployments/{find_deployment(house)['id']}"
    runs = {"parameters": {"suite": str(house.folder / "evil.toml")}, "state": {"type": "SCHEDULED"}}
    for origin, status in (({}, 401), ({"origin": EVIL}, 403), ({"origin": "null"}, 403)):
        for method, url, body in (
            ("POST", f"{house.api_url}/deployments/filter", {}),
            ("PATCH", deployment, {"pull_steps": make_steps(house)}),
            ("POST", f"{deployment}/create_flow_run", runs),
            ("OPTIONS", deployment, None),
        ):
            seen, headers = ask(url, method, body, {**origin, "access-control-request-method": "PATCH"})
            assert seen == status, (method, url, origin)
            assert headers.get("access-control-allow-origin") is None
    assert_untouched(house)


@pytest.mark.slow
def test_the_server_answers_under_names_of_this_machine_alone(house: ServeHouse) -> None:
    health, port = f"{house.api_url}/health", house.port
    for host in ("evil.example", f"evil.example:{port}", f"127.0.0.1.evil.example:{port}", "[::1", ""):
        assert ask(health, headers={"host": host})[0] in (400, 403), host
    for host in (f"127.0.0.1:{port}", f"localhost:{port}", f"[::1]:{port}"):
        assert ask(health, headers={"host": host})[0] == 200, host
    for own in (f"http://127.0.0.1:{port}", f"http://localhost:{port}"):
        status, headers = ask(health, headers={"origin": own})
        assert (status, headers["access-control-allow-origin"]) == (200, own)


@pytest.mark.slow
def test_a_page_of_another_site_gets_nothing(house: ServeHouse) -> None:
    script = SCRIPT.format(
        api=house.api_url, deployment=find_deployment(house)["id"], steps=json.dumps(make_steps(house))
    )
    page_of_cats = Canned(headers={"Content-Type": "text/html"}, body=[b"<!doctype html><title>Cats</title>"])
    with open_browser() as browser, serving(page_of_cats) as site, browser.opened_page() as page:
        page.visit(site.url.replace("127.0.0.1", "localhost"))
        seen = page.evaluate(script)
    # What is sent without asking comes to an answer that the page cannot read.
    assert seen == ["refused by the browser"] * 3 + ["0 ", "socket refused"]
    assert_untouched(house)


@pytest.mark.slow
def test_prefects_own_pages_ask_for_the_key_and_work_with_it(house: ServeHouse) -> None:
    with open_browser() as browser, browser.opened_page() as page:
        page.visit(f"http://localhost:{house.port}")
        page.wait_for("document.querySelector('input[type=password]')")
        page.evaluate("document.querySelector('input[type=password]').focus()")
        page.type(str(house.auth))
        page.press("Enter")
        page.visit(f"http://localhost:{house.port}/deployments")
        page.wait_for(f"document.body.innerText.includes({SUITE!r})")


@pytest.mark.slow
def test_commands_of_the_same_user_find_the_key_and_no_other_suite_is_run(house: ServeHouse) -> None:
    place = house.place.with_variables(PREFECT_API_URL=f"http://localhost:{house.port}/api/")
    done = place.call_process("kb-updated", KB, "--version", "v1")
    assert done.status == 0, done.stderr
    (run,) = house.wait_for_runs(SUITE, 1)
    assert run["kb_version"] == "v1"

    other = house.folder / "other.toml"
    other.write_text('dataset = "sample"\njudge = "other:make"\nwarehouse = "other.duckdb"\n')
    (house.folder / "other.py").write_text("open('imported', 'w')")
    body = {"parameters": {"suite": str(other), "trigger": "manual"}, "state": {"type": "SCHEDULED"}}
    created = house.post(f"/deployments/{find_deployment(house)['id']}/create_flow_run", body)
    house.wait_until(lambda: house.list_flow_runs(SUITE)[-1]["id"] == created["id"])
    house.wait_until(lambda: house.list_flow_runs(SUITE)[-1]["end_time"])
    ended = house.list_flow_runs(SUITE)[-1]
    assert ended["state_type"] == "FAILED"
    own = house.folder / f"{SUITE}.toml"
    assert ended["state"]["message"] == (
        f"other.toml: this deployment runs the suite {own}, not {other}; another suite needs another deployment"
    ).removeprefix("other.toml: ")
    assert not (house.folder / "imported").exists()
    assert not (house.folder / "other.duckdb").exists()


@pytest.mark.slow
def test_the_key_is_shown_once_and_kept_for_its_user_alone(house: ServeHouse) -> None:
    access = house.folder / "prefect" / "evalhouse-server.env"
    assert access.stat().st_mode & 0o777 == 0o600
    assert f"its key        {house.auth} is what the browser asks for" in house.output
    assert str(house.auth) not in (house.folder / "prefect" / "evalhouse-serve.log").read_text(encoding="utf-8")
    first = house.auth
    house.stop()
    house.serve(house.folder / f"{SUITE}.toml")
    assert house.auth == first
    assert str(first) not in house.output
    assert f"its key        kept in {access}" in house.output


@pytest.mark.slow
def test_a_server_of_the_users_own_without_a_key_is_noted(tmp_path: Path) -> None:
    with open_serve_house(tmp_path) as house, start_prefect_server(house, requires_key=False):
        house.serve(house.write_suite(SUITE, kb_name=KB), with_server=False)
        assert "note           it requires no key" in house.output
        done = house.client.call_process("doctor")
        assert (done.status, "answers, and it requires no key" in done.stdout) == (0, True)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty Prefect home, and no setting of Prefect's."""
    for name in load_user_settings():
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", ["PREFECT_SERVER_API_AUTH_STRING", "PREFECT_API_AUTH_STRING"])
def test_a_key_that_the_user_has_set_is_taken_and_not_kept(
    home: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "admin:sesame")
    key, note = make_lasting_key(4200)
    assert key == "admin:sesame"
    assert "sesame" not in note
    assert list(home.iterdir()) == []


def test_the_kept_key_goes_to_its_own_server_alone(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key, _ = make_lasting_key(4200)
    for url, sent in {
        "http://127.0.0.1:4200/api": key,
        "http://localhost:4200/api/": key,
        "http://127.0.0.1:4201/api": None,
        "https://127.0.0.1:4200/api": None,
        "http://evil.example:4200/api": None,
        "http://127.0.0.1@evil.example:4200/api": None,
    }.items():
        monkeypatch.setenv("PREFECT_API_URL", url)
        assert load_user_settings().get("PREFECT_API_AUTH_STRING") == sent, url
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:4200/api")
    for name in ("PREFECT_API_AUTH_STRING", "PREFECT_API_KEY"):
        with monkeypatch.context() as own:
            own.setenv(name, "own")
            assert load_user_settings().get("PREFECT_API_AUTH_STRING") != key


@pytest.mark.slow
def test_the_server_of_one_run_is_guarded_as_well(home: Path) -> None:
    server = LocalServer.start()
    try:
        server.wait_until_ready()
        assert ask(f"{server.api_url}/deployments/filter", "POST", {})[0] == 401
        for headers in ({"host": "evil.example"}, {"origin": EVIL}):
            status, answered = ask(f"{server.api_url}/health", headers=headers)
            assert (status, answered.get("access-control-allow-origin")) == (403, None)
    finally:
        server.stop()
