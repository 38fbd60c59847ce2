"""Attacks on `evalhouse ui`: through what is judged, through addresses, and from other sites; each a row of a table."""

from __future__ import annotations

import contextlib
import html
import json
import re
import socket
import unicodedata
from collections import defaultdict
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import quote

import duckdb
import pytest
from browser import open_browser
from cli_process import call_here
from fastapi.routing import APIRoute
from history_nights import Size, write_nights
from starlette.testclient import TestClient
from ui_house import PORT, TOKEN, make_client, serve_ui

from evalhouse.flows.ui import documents, judge, pair, runs, samples, sql, variants
from evalhouse.warehouse.store import Warehouse

OWN = f"http://127.0.0.1:{PORT}"
# Ends of every context of a text, and what it could begin then; marks that turn text round; controls.
HOSTILE = (
    "</script></textarea></title><!--<evil-tag onclick=pwn() style=x>\"'><img src=x onerror=pwn()>`${pwn()}`{{7*7}}"
    "[x](javascript:pwn()) \u202etxet\u2066 \x00\x1b[31m\x85\u2028\ufeff a/../b?c#d%2e%2e%00 &lt;evil-tag&gt; 🦊"
)
# Columns whose texts anyone may have written: datasets, models, people, and the settings of a run.
POISONED = (
    "question", "answer", "ground_truth", "reason", "text", "suite", "label", "dataset", "judge", "kb_name",
    "kb_version", "model", "error", "detail", "problem", "reply", "thoughts", "sample_id", "metric", "rubric",
    "criterion", "reviewer", "note", "unscored_reason", "embeddings", "cluster", "prompt",
)  # fmt: skip
POISONED_LISTS = ("contexts", "context_ids", "reference_context_ids", "tags", "metrics", "kb_changed")
# TP, FP and FN are our own words, and columns of that name elsewhere hold what people wrote.
OURS = {("classifications", "label"), ("outcomes", "reason"), ("reviews", "label"), ("prompts", "prompt")}
# What is looked at in a browser.
SEEN = (
    "/", "/runs", "/runs/{run}", "/runs/{run}/samples", "/runs/{run}/sample?id={sample}", "/runs/{run}/documents",
    "/compare?base=previous&candidate=latest", "/compare?runs=previous,latest",
    "/sql?q=select+question,+answer,+contexts+from+samples+limit+3",
)  # fmt: skip
STRANGE = (
    "../../../etc/passwd", "..%2f..%2fetc%2fpasswd", "%2e%2e/%2e%2e/app.py", "%252e%252e%252f", "\\..\\..\\app.py",
    "%00", "a%00.css", "%0d%0aSet-Cookie:%20evil=1", "%0aX-Evil:1", "%ff%fe", "%ed%a0%80", "🦊", "a b", "%3Fx=1",
    "%23x", "%25", "%u2215", "'%20or%201=1--", "%22%3E%3Cevil-tag%3E", "%E2%80%AEtxet", "javascript:pwn()",
    "//evil.example/", "-1", "1e999", "NaN", "99999999999999999999", "[]", "{{7*7}}", "x" * 10_000,
)  # fmt: skip
# Each takes one of these in the place of {}.
FORMS = (
    "/{}", "/runs/{}", "/runs/{run}/{}", "/runs/{run}/samples?text={}", "/runs/{run}/samples?sort={}&metric={}",
    "/runs/{run}/samples?page={}", "/runs/{run}/samples?cause={}&label={}&language={}&tag={}&from={}&to={}",
    "/runs/{run}/samples.csv?text={}", "/runs/{run}/sample?id={}", "/runs/{run}/documents?id={}", "/series/{}",
    "/series?name={}", "/compare?base={}&candidate={}", "/compare?runs={run},{}",
    "/compare?runs=previous,latest&column={}", "/assets/{}", "/sql?q={}", "/costs?series={}", "/judge?run={}",
    "/?{}={}",
)  # fmt: skip


@pytest.fixture(scope="module")
def poisoned(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A warehouse in which every text that anyone could write is hostile."""
    path = tmp_path_factory.mktemp("hostile") / "w.duckdb"
    write_nights(path, Size(nights=3, samples=4, metrics=15))
    with duckdb.connect(str(path)) as con:
        found = con.execute(
            "select table_name, column_name, data_type from duckdb_columns() join duckdb_tables() using (table_name) "
            "where data_type like 'VARCHAR%'"
        ).fetchall()
        for table, column, kind in found:
            if kind == "VARCHAR" and column in POISONED and (table, column) not in OURS:
                con.execute(f"update {table} set {column} = {column} || $text", {"text": HOSTILE})
            elif kind == "VARCHAR[]" and column in POISONED_LISTS:
                con.execute(f"update {table} set {column} = [x || $text for x in {column}]", {"text": HOSTILE})
        con.execute("update runs set href = 'javascript:pwn()//' || run_id, label = 'l' || $text", {"text": HOSTILE})
        con.execute("update llm_calls set request = json_object('messages', [$text])", {"text": HOSTILE})
        con.execute("update samples set metadata = json_object($text, $text)", {"text": HOSTILE})
    return str(path)


@pytest.fixture(scope="module")
def client(poisoned: str) -> TestClient:
    return make_client(poisoned)


@pytest.fixture(scope="module")
def run_id(poisoned: str) -> str:
    return str(Warehouse(poisoned).read("select max(run_id) from runs where kind = 'evaluation'").item())


class Page(HTMLParser):
    """A page as a browser reads it: its links, the texts of its scripts, and what should not be there."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.data: list[str] = []
        self.faults: list[str] = []
        self._is_data = self._is_field = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag in ("evil-tag", "base", "iframe", "object", "embed"):
            self.faults.append(f"<{tag}>")
        self.faults += [f"{name} of {tag}" for name in given if name.startswith("on") or name == "style"]
        # What a form sends back is as it was.
        self._check_signs("".join(value or "" for name, value in attrs if name != "value"))
        for name in ("href", "src", "action", "formaction"):
            if (address := given.get(name)) is not None:
                self.links.append(address)
                if not re.match(r"[/#?]|https?://", address) or address.startswith("//"):
                    self.faults.append(f"{name}={address[:40]}")
        self._is_data = tag == "script" and "src" not in given
        self._is_field = tag == "textarea"  # as the value of a field: what a form sends back is as it was
        if self._is_data and given.get("type") != "application/json":
            self.faults.append(f"a script in the page of type {given.get('type')}")

    def _check_signs(self, text: str) -> None:
        self.faults += sorted({f"{ord(sign):#x} in a text" for sign in text if is_control(sign)})

    def handle_data(self, data: str) -> None:
        if self._is_data:
            self.data.append(data)
        elif not self._is_field:
            self._check_signs(data)

    def handle_endtag(self, tag: str) -> None:
        self._is_data = self._is_field = False


def is_control(sign: str) -> bool:
    """Return whether it is a control character or turns text round."""
    return sign not in "\n\t" and (unicodedata.category(sign) == "Cc" or sign in "\u202a\u202b\u202d\u202e\u2066\u2067")


def check_headers(headers: object) -> None:
    text = {name.lower(): value for name, value in dict(headers).items()}  # type: ignore[call-overload]
    assert "default-src 'none'" in text["content-security-policy"]
    assert "unsafe" not in text["content-security-policy"]
    assert text["cross-origin-resource-policy"] == "same-origin"
    assert text["x-content-type-options"] == "nosniff"
    assert text["referrer-policy"] == "no-referrer"
    assert not [name for name in text if "evil" in name or name == "set-cookie"]


def find_kind(address: str) -> str:
    """Return what addresses of one kind of page share: the path without the run."""
    return re.sub(r"\d{8}-[^/]*", "RUN", address.partition("?")[0])


def test_nothing_that_is_judged_becomes_part_of_a_page(client: TestClient) -> None:
    waiting, seen, faults = ["/"], set[str](), []
    while waiting:
        address = waiting.pop(0)
        if (kind := find_kind(address)) in seen:
            continue
        seen.add(kind)
        answer = client.get(address)
        assert answer.status_code in (200, 303, 400, 404), (address, answer.text)  # a form's address alone is not whole
        check_headers(answer.headers)
        waiting += [answer.headers["location"]] if answer.status_code == 303 else []
        if answer.headers.get("content-type", "").startswith("text/html"):
            page = Page(answer.text)
            faults += [(address[:80], fault) for fault in page.faults]
            assert all(json.loads(data) is not None for data in page.data)
            waiting += [link.partition("#")[0] for link in page.links if link.startswith("/")]
    assert faults == []
    assert {"/runs/RUN", "/runs/RUN/samples", "/compare"} <= seen


@pytest.mark.parametrize("every", [28, pytest.param(7, marks=pytest.mark.slow)])
def test_any_text_in_an_address_is_answered_with_a_page(client: TestClient, run_id: str, every: int) -> None:
    for place, form in enumerate(FORMS):
        for strange in STRANGE[place % every :: every]:  # by default each form gets others of them
            answer = client.get(form.replace("{run}", run_id).replace("{}", strange))
            at = (form, strange[:60])
            assert answer.status_code in (200, 303, 307, 400, 404, 405, 422), (at, answer.text)
            check_headers(answer.headers)
            assert answer.headers.get("location", "/")[:2] != "//", at
            assert "root:" not in answer.text, at
            if answer.headers.get("content-type", "").startswith("text/html"):
                assert Page(answer.text).faults == [], at


def test_number_of_any_size_is_answered_with_a_page(client: TestClient, run_id: str) -> None:
    given = {"run": run_id, "base": "previous", "candidate": "latest", "name": "x", "id": "x", "show": "all"}
    tried = set[str]()
    for route in (
        route for page in (documents, judge, pair, runs, samples, sql, variants) for route in page.router.routes
    ):
        assert isinstance(route, APIRoute)
        if "GET" not in route.methods:
            continue
        path = route.path.format_map(defaultdict(lambda: "x", given))
        for parameter in route.dependant.query_params:
            if parameter.field_info.annotation is int or parameter.name == "page":
                tried.add(f"{route.path} {parameter.name}")
                for number in ("9" * 30, "1000000", "-1", "1e5"):
                    answer = client.get(path, params={**given, parameter.name: number})
                    assert answer.status_code in (200, 400, 404), (path, parameter.name, number)
    assert {"/runs/{run}/documents page", "/compare/samples page", "/runs page"} <= tried


FROM_OTHERS = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}
OPENED = {"sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}


REQUESTS = (
    ({"sec-fetch-site": "same-origin", "sec-fetch-mode": "cors"}, 200),
    ({"sec-fetch-site": "none", **OPENED}, 200),
    ({"sec-fetch-site": "cross-site", **OPENED}, 200),  # a link
    ({**FROM_OTHERS, "sec-fetch-dest": "script"}, 403),
    ({**FROM_OTHERS, "sec-fetch-dest": "image"}, 403),
    ({**FROM_OTHERS, "sec-fetch-site": "same-site", "sec-fetch-dest": "empty"}, 403),  # another port of localhost
    ({**FROM_OTHERS, "sec-fetch-mode": "cors", "origin": "http://evil.example"}, 403),
    ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "iframe"}, 403),
    ({"host": f"LOCALHOST:{PORT}"}, 200),
    ({"host": f"127.8.9.1:{PORT}"}, 200),
    ({"host": f"0.0.0.0:{PORT}"}, 421),
    ({"host": f"[::]:{PORT}"}, 421),
    ({"host": f"[::1%eth0]:{PORT}"}, 200),
    ({"host": f"2130706433:{PORT}"}, 421),
    ({"host": f"localhost.evil.example:{PORT}"}, 421),
    ({"host": f"evil.example:{PORT}#@localhost:{PORT}"}, 421),
    ({"host": "localhost"}, 421),
    ({"host": "[::1]"}, 421),
    ({"host": f"127.0.0.1:{PORT}", "x-forwarded-host": "evil.example"}, 200),
)


def test_requests_of_other_pages_are_not_answered(client: TestClient) -> None:
    for headers, status in REQUESTS:
        for address in ("/runs", "/assets/ui.css"):
            answer = client.get(address, headers=headers)
            assert answer.status_code == status, headers
            check_headers(answer.headers)
            assert "access-control-allow-origin" not in answer.headers
            is_asset = status == 200 and address == "/assets/ui.css"
            kept = "public, max-age=31536000, immutable" if is_asset else "no-store"
            assert answer.headers.get("cache-control", "no-store") == kept


def test_nothing_is_sent_from_elsewhere(client: TestClient) -> None:
    origins = (None, "null", "http://evil.example", "http://127.0.0.1:1", f"https://evil@127.0.0.1:{PORT}")
    assert client.post("/", headers={"origin": OWN}).status_code == 405
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "EVIL"):
        for origin in origins:
            headers = {"content-type": "text/plain"} | ({"origin": origin} if origin else {})
            for address in ("/", "/runs", "/assets/ui.css"):
                assert client.request(method, address, headers=headers).status_code == 403, (method, origin)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "none.duckdb")


def test_the_token_goes_from_the_address_into_a_cookie_of_this_site_alone(path: str) -> None:
    client = make_client(path, token=TOKEN)
    let_in = client.get(f"{OWN}//evil.example/?q=a%26b&token={TOKEN}")
    assert let_in.status_code == 303
    assert let_in.headers["location"] == "/evil.example/?q=a%26b"
    cookie = let_in.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert client.get("/assets/ui.css").status_code == 200


def test_a_missing_warehouse_is_reported_at_the_start(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    finished = call_here(capsys, "ui", "--no-browser", "--warehouse", path)
    assert finished.status == 2
    assert "`evalhouse run` makes one" in finished.stderr


def test_a_warehouse_that_goes_away_is_reported_and_looked_for_again(path: str) -> None:
    answer = make_client(path).get("/")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
    assert "no warehouse at" in answer.text
    assert re.search(r'<meta http-equiv="refresh" content="2">', answer.text)


def test_no_token_is_guessed_or_passed_on(poisoned: str) -> None:
    client = make_client(poisoned, token=TOKEN)
    for wrong in ("", TOKEN[:-1], TOKEN + "a", TOKEN.upper(), "é" * 16, "\x00", "x" * 10_000):
        assert client.get("/runs", params={"token": wrong}).status_code == 401
        assert client.get("/runs", headers={"authorization": f"Bearer {wrong}".encode("latin-1")}).status_code == 401
    for other in (
        {},
        {"authorization": f"Basic {TOKEN}"},
        {"cookie": f"evalhouse_ui_{PORT}=é".encode()},
        {"cookie": f"evalhouse_ui_{PORT + 1}={TOKEN}; evalhouse_ui={TOKEN}"},
    ):
        for address in ("/runs", "/assets/ui.css"):
            assert client.get(address, headers=other).status_code == 401
    bearer = {"authorization": f"Bearer {TOKEN}"}
    assert make_client(poisoned, token=TOKEN).get("/assets/ui.css", headers=bearer).status_code == 200
    assert client.get("/live").status_code == 401
    for address in ("/%5Cevil.example/", "//evil.example/", "/%2F%2Fevil.example", "/%0d%0aX-Evil:1", "/a%3Fb"):
        answer = client.get(address, params={"token": TOKEN})
        assert answer.status_code == 303
        assert re.match(r"/(?![/\\])", answer.headers["location"])
        assert TOKEN not in answer.headers["location"]
        assert "x-evil" not in answer.headers


def test_who_comes_by_a_link_of_another_site_opens_the_page_from_here(poisoned: str) -> None:
    client, linked = make_client(poisoned, token=TOKEN), {"sec-fetch-site": "cross-site", **OPENED}
    answer = client.get("/runs?a=%22%3E%3Cevil-tag%3E", params={"token": TOKEN}, headers=linked)
    assert (answer.status_code, "evil-tag" in answer.text, TOKEN in answer.text) == (200, False, False)
    check_headers({name: value for name, value in answer.headers.items() if name != "set-cookie"})
    stranger = make_client(poisoned, token=TOKEN)
    assert 'url=/runs"' in stranger.get("/runs", headers=linked).text
    assert stranger.get("/runs", headers={"sec-fetch-site": "same-origin", **OPENED}).status_code == 401


def test_a_query_in_a_link_of_another_site_is_shown_and_not_run(poisoned: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evalhouse.flows.ui.sql.answer_apart", lambda *_, **__: pytest.fail("the query has run"))
    linked = {"sec-fetch-site": "cross-site", **OPENED}
    shown = make_client(poisoned).get("/sql?q=from+runs", headers=linked)
    assert "from runs</textarea>" in shown.text
    assert "it has not run. Read it, and press Run." in shown.text
    # A strict cookie comes with the second request alone.
    client = make_client(poisoned, token=TOKEN)
    match = re.search(r'url=([^"]+)"', client.get("/sql?q=from+runs", headers=linked).text)
    assert match
    client.get("/", params={"token": TOKEN})
    again = client.get(html.unescape(match[1]), headers={"sec-fetch-site": "same-origin", **OPENED})
    assert "it has not run" in again.text


def test_a_bug_of_ours_shows_nothing_of_itself(poisoned: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evalhouse.flows.ui.runs.find_runs", lambda *_, **__: {}["secret <evil-tag>"])
    client = TestClient(make_client(poisoned).app, base_url=OWN, raise_server_exceptions=False)
    answer = client.get("/runs")
    assert (answer.status_code, "secret" in answer.text, "KeyError" in answer.text) == (500, False, True)
    check_headers(answer.headers)


RAW = (
    b"GET /runs?q=" + b"x" * 200_000 + b" HTTP/1.1\r\nHost: {host}\r\n\r\n",
    b"GET /runs HTTP/1.1\r\nHost: {host}\r\nX: " + b"y" * 200_000 + b"\r\n\r\n",
    b"GET /runs HTTP/1.1\r\nHost: {host}\r\nHost: evil.example\r\n\r\n",
    b"GET /runs HTTP/1.1\r\n\r\n",
    b"GET http://evil.example/runs HTTP/1.1\r\nHost: evil.example\r\n\r\n",
    b"GET /\x00 HTTP/1.1\r\nHost: {host}\r\n\r\n",
    b"GET /runs HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: YQ==\r\n"
    b"Sec-WebSocket-Version: 13\r\nOrigin: http://evil.example\r\nSec-Fetch-Site: cross-site\r\n\r\n",
    b"\xff\xfe\r\n\r\n",
)


def ask_raw(address: str, text: bytes) -> bytes:
    host = address.removeprefix("http://")
    with socket.create_connection(host.split(":"), timeout=10) as connection, contextlib.suppress(ConnectionError):
        connection.sendall(text.replace(b"{host}", host.encode()))
        return connection.recv(65536)
    return b""


@pytest.mark.slow
def test_a_real_browser_runs_nothing_of_it_and_the_server_survives_the_rest(poisoned: str, run_id: str) -> None:
    sample = quote(str(Warehouse(poisoned).read("select min(sample_id) from run_samples").item()))
    with serve_ui(poisoned, token=TOKEN) as address, open_browser() as browser:
        for text in RAW:
            status = ask_raw(address, text).partition(b"\r\n")[0]
            assert status == b"" or b" 4" in status, (text[:60], status)
        page = browser.open_page()
        page.show_as()
        # By a link on another site, with the token and then without.
        for query in (f"?token={TOKEN}", ""):
            page.visit(f"data:text/html,<a href='{address}/runs{query}'>")
            page.evaluate("document.querySelector('a').click()")
            page.wait_for("document.querySelector('h1')?.textContent === 'Runs'")
            assert page.evaluate("location.search + document.cookie") == ""
        for form in SEEN:
            page.visit(address + form.format(run=run_id, sample=sample))
            page.wait_for("document.readyState === 'complete'")
            assert page.evaluate("document.querySelector('evil-tag') === null")
            shown = page.evaluate("document.body.innerText")
            assert len(shown) > 50
            assert {sign for sign in shown if is_control(sign)} == set(), form
        # What is run would call what is not there. The page on the way has no icon, and the browser asks for one.
        assert [problem for problem in page.problems if "status of 404" not in problem] == []
