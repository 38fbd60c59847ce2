"""Who may see the pages of `evalhouse ui`, and what a browser may do with them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from ui_house import PORT, TOKEN, make_client

STRANGE = f"evalhouse_ui_{PORT}=é".encode()
OWN = f"http://127.0.0.1:{PORT}"


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "none.duckdb")


def test_only_names_of_this_machine_are_answered(path: str) -> None:
    client = make_client(path)
    for host in (f"127.0.0.1:{PORT}", f"localhost:{PORT}", f"[::1]:{PORT}"):
        assert client.get("/assets/ui.css", headers={"host": host}).status_code == 200, host
    for host in ("evil.example", f"evil.example:{PORT}", "127.0.0.1", "127.0.0.1:1", "", f"127.0.0.1.evil:{PORT}"):
        answer = client.get("/", headers={"host": host})
        assert (answer.status_code, "evalhouse ui at" in answer.text) == (421, True), host


def test_with_a_token_only_who_has_it_is_let_in(path: str) -> None:
    client = make_client(path, token=TOKEN)
    for headers in (
        {},
        {"authorization": "Bearer wrong"},
        {"authorization": f"Basic {TOKEN}"},
        {"cookie": STRANGE},
    ):
        assert client.get("/assets/ui.css", headers=headers).status_code == 401
    assert client.get("/assets/ui.css?token=wrong").status_code == 401
    assert client.get("/assets/ui.css", headers={"authorization": f"Bearer {TOKEN}"}).status_code == 200


def test_the_token_goes_from_the_address_into_a_cookie_of_this_site_alone(path: str) -> None:
    client = make_client(path, token=TOKEN)
    let_in = client.get(f"{OWN}//evil.example/?q=a%26b&token={TOKEN}")
    assert let_in.status_code == 303
    assert let_in.headers["location"] == "/evil.example/?q=a%26b"
    cookie = let_in.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert client.get("/assets/ui.css").status_code == 200


def test_requests_of_another_site_are_refused(path: str) -> None:
    client = make_client(path)
    for headers in (
        {},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:1"},
        {"origin": OWN, "sec-fetch-site": "cross-site"},
    ):
        assert client.post("/", headers=headers).status_code == 403, headers  # type: ignore[arg-type]
    assert client.post("/", headers={"origin": OWN}).status_code == 405


def test_every_response_restricts_the_browser(path: str) -> None:
    for address in ("/", "/nowhere", "/assets/ui.css"):
        headers = make_client(path).get(address).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cross-origin-resource-policy"] == "same-origin"
        is_asset = address == "/assets/ui.css"
        assert headers["cache-control"] == ("public, max-age=31536000, immutable" if is_asset else "no-store")


def test_a_warehouse_that_is_not_there_yet_is_reported_and_looked_for_again(path: str) -> None:
    answer = make_client(path).get("/")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
    assert "there is no warehouse at" in answer.text
    assert re.search(r'<meta http-equiv="refresh" content="2">', answer.text)
