"""Attacks on `evalhouse ui`: through what is judged, through addresses, and from other sites; each a row of a table."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator
from html.parser import HTMLParser

import duckdb
import pytest
from history_nights import Size, write_nights
from starlette.testclient import TestClient
from ui_house import PORT, make_client

from evalhouse.warehouse.engine.connection import serving_reads
from evalhouse.warehouse.location import parse_location
from evalhouse.warehouse.store import Warehouse

OWN = f"http://127.0.0.1:{PORT}"
# Ends of everything a text can stand in, and what it could begin then; marks that turn text round; controls.
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
    "/series?name={}", "/compare?base={}&candidate={}", "/assets/{}", "/sql?q={}", "/costs?series={}", "/judge?run={}",
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
def client(poisoned: str) -> Iterator[TestClient]:
    with serving_reads(parse_location(poisoned)):
        yield make_client(poisoned)


@pytest.fixture(scope="module")
def run_id(poisoned: str) -> str:
    return str(Warehouse(poisoned).read("select max(run_id) from runs").item())


class Page(HTMLParser):
    """What a browser would make of a page: its links, the texts of its scripts, and what should not be there."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.data: list[str] = []
        self.faults: list[str] = []
        self._is_data = False
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
        if self._is_data and given.get("type") != "application/json":
            self.faults.append(f"a script in the page of type {given.get('type')}")

    def _check_signs(self, text: str) -> None:
        self.faults += sorted({f"{ord(sign):#x} in a text" for sign in text if is_control(sign)})

    def handle_data(self, data: str) -> None:
        self._check_signs(data)
        if self._is_data:
            self.data.append(data)

    def handle_endtag(self, tag: str) -> None:
        self._is_data = False


def is_control(sign: str) -> bool:
    """Whether it is a control character or turns text round."""
    return sign not in "\n\t" and (unicodedata.category(sign) == "Cc" or sign in "\u202a\u202b\u202d\u202e\u2066\u2067")


def check_headers(headers: object) -> None:
    text = {name.lower(): value for name, value in dict(headers).items()}  # type: ignore[call-overload]
    assert "default-src 'none'" in text["content-security-policy"]
    assert text["x-content-type-options"] == "nosniff"
    assert text["referrer-policy"] == "no-referrer"
    assert not [name for name in text if "evil" in name or name == "set-cookie"]


def find_kind(address: str) -> str:
    """What addresses of one kind of page share: the path without the run."""
    return re.sub(r"\d{8}-[^/]*", "RUN", address.partition("?")[0])


def test_nothing_that_is_judged_becomes_part_of_a_page(client: TestClient) -> None:
    waiting, seen, faults = ["/"], dict[str, set[str]](), []
    while waiting:
        address = waiting.pop(0)
        of_kind = seen.setdefault(find_kind(address), set())
        if address in of_kind or len(of_kind) == 3:
            continue
        of_kind.add(address)
        answer = client.get(address)
        assert answer.status_code in (200, 303, 404), (address, answer.text)
        check_headers(answer.headers)
        waiting += [answer.headers["location"]] if answer.status_code == 303 else []
        if answer.headers.get("content-type", "").startswith("text/html"):
            page = Page(answer.text)
            faults += [(address[:80], fault) for fault in page.faults]
            assert all(json.loads(data) is not None for data in page.data)
            waiting += [link.partition("#")[0] for link in page.links if link.startswith("/")]
    assert faults == []
    assert {"/runs/RUN", "/runs/RUN/samples", "/compare"} <= seen.keys()


@pytest.mark.parametrize("form", FORMS)
def test_whatever_stands_in_an_address_is_answered_with_a_page(client: TestClient, run_id: str, form: str) -> None:
    for strange in STRANGE:
        answer = client.get(form.replace("{run}", run_id).replace("{}", strange))
        assert answer.status_code in (200, 303, 307, 400, 404, 405, 422), (strange[:60], answer.text)
        check_headers(answer.headers)
        assert answer.headers.get("location", "/")[:2] != "//"
        assert "root:" not in answer.text
        if answer.headers.get("content-type", "").startswith("text/html"):
            assert Page(answer.text).faults == [], strange[:60]
