"""Secrets of this process are not stored, in any spelling and from any source."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import orjson
import pytest
from endpoint import Raw, running_endpoint
from live_runs import judge_samples, lay_out_run, make_sample, make_settings, point_to

from evalhouse.tasks.judge.protocol import JudgeFailed
from evalhouse.tasks.settings.suite import Notify
from evalhouse.warehouse import messages
from evalhouse.warehouse.messages import hide_in, hide_secrets, note_environment, note_secret, redact
from evalhouse.warehouse.store import Warehouse, build_frame

KEY = 'Zq7/"odd&ü-key+0123456789='
SPELLINGS = {
    "plain": KEY,
    "JSON": orjson.dumps(KEY).decode()[1:-1],
    "JSON in ASCII": json.dumps(KEY)[1:-1],
    "JSON with slashes escaped": json.dumps(KEY)[1:-1].replace("/", "\\/"),
    "an address": quote(KEY, safe=""),
    "a page": "Zq7/&quot;odd&amp;ü-key+0123456789=",
    "base64": base64.b64encode(KEY.encode()).decode(),
    **{
        f"base64 of a text, {len(before) % 3}, {encode.__name__}": encode(
            f"{before}{KEY} and ¿?~~ more".encode()
        ).decode()
        for before in ("bot", "bots", "robot")
        for encode in (base64.b64encode, base64.urlsafe_b64encode)
    },
    "Python": repr(KEY),
}


@pytest.fixture(autouse=True)
def _forget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "noted", set())


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_secret_is_hidden_in_every_spelling(spelling: str) -> None:
    note_secret(KEY)
    hidden = hide_secrets(f"so it is {SPELLINGS[spelling]} and no other")
    assert "0123456789" not in hidden
    assert "MDEyMzQ1" not in hidden
    assert "EyMzQ1" not in hidden
    assert "AxMjM0NT" not in hidden
    assert hidden.startswith("so it is ")
    assert hidden.endswith(" and no other")


def test_letters_that_json_need_not_escape_hide_nothing() -> None:
    note_secret("sk-plain-0123456789")
    spelt = '{"statements": ["\\u0073k-plain-\\u0030123456789 is \\u0022it\\u0022"]}'
    assert orjson.loads(hide_secrets(spelt)) == {"statements": ['[key] is "it"']}
    assert hide_secrets('"\\u0061 word"') == '"\\u0061 word"'  # nothing else is touched


@pytest.mark.parametrize(
    ("name", "value", "hidden"),
    [
        ("OPENAI_API_KEY", "sk-1234567", True),
        ("ANTHROPIC_API_KEY", "letters-and-no-number", True),
        ("AWS_SECRET_ACCESS_KEY", "abcdefgh1jklmnop", True),
        ("BOT_TOKEN", "t0ken-of-bot", True),
        ("PGPASSWORD", "hunter2hunter2", True),
        ("PREFECT_SERVER_API_AUTH_STRING", "admin:pass1234", True),
        ("OPENAI_API_KEY", "ollama", False),
        ("OPENAI_API_KEY", "not-needed", False),
        ("OPENAI_BASE_URL", "http://localhost:8000/v1", False),
        ("HOME", "/home/person1234", False),
        ("BOT_TOKEN", "half a \udcff character 1", False),
    ],
)
def test_secrets_of_the_environment_are_known_by_their_names(name: str, value: str, hidden: bool) -> None:
    note_environment({name: value})
    assert (hide_secrets(f"It is {value}.") != f"It is {value}.") is hidden


def test_of_two_secrets_one_within_the_other_nothing_is_left() -> None:
    note_secret("abcd-1234")
    note_secret("abcd-1234-efgh-5678")
    assert hide_secrets("abcd-1234-efgh-5678, abcd-1234") == "[key], [key]"


def test_a_suites_webhook_is_a_secret_by_address_and_by_variable() -> None:
    Notify(webhook="${HOOK_ADDRESS}").note_secrets({"HOOK_ADDRESS": "https://hooks.example/T0/B0/x1"})
    Notify(webhook="https://hooks.example/${HOOK_PART}").note_secrets({"HOOK_PART": "T00000000"})
    assert (
        hide_secrets("https://hooks.example/T0/B0/x1 https://hooks.example/T00000000 T00000000") == "[key] [key] [key]"
    )


def test_rows_are_made_without_secrets() -> None:
    note_secret(KEY)
    row = {"run_id": "r", "sample_id": "s", "answer": f"It is {KEY}.", "contexts": ["none", KEY], "status": "ok"}
    frame = build_frame("responses", [row])
    assert frame["answer"].to_list() == ["It is [key]."]
    assert frame["contexts"].to_list() == [["none", "[key]"]]
    assert hide_in(3.0) == 3.0
    assert hide_in(None) is None


def read_everything(folder: Path) -> bytes:
    """All texts of all tables, and all files beside the warehouse."""
    warehouse = Warehouse(str(folder / "w.duckdb"))
    tables = warehouse.read_rows("select table_name from duckdb_tables() where not internal")
    texts = [str(warehouse.read_rows(f'select * from "{row["table_name"]}"')) for row in tables]
    files = [path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.suffix != ".duckdb"]
    return "\n".join(texts).encode() + b"\n".join(files)


@pytest.mark.usefixtures("quick_backoff")
@pytest.mark.parametrize("how", ["reply", "refusal", "error", "unreadable", "label"])
async def test_key_that_the_endpoint_repeats_is_not_stored(tmp_path: Path, how: str) -> None:
    key = "Kw-leak-me-0123456789"
    answers: dict[str, Any] = {
        "reply": orjson.dumps({"statements": [f"The key is {key}.", "It is red."]}).decode(),
        "refusal": {"role": "assistant", "refusal": f"not with {key}", "content": None},
        "error": Raw(status=400, body={"error": {"message": f"bad request of {key}"}}),
        "unreadable": f"I was sent {key} and cannot help",
        "label": orjson.dumps({"verdicts": [{"id": f"A1 {key}", "label": key, "reason": key}]}).decode(),
    }
    if how == "refusal":
        answers["refusal"] = Raw(body={"choices": [{"message": answers["refusal"], "finish_reason": "stop"}]})
    script = dict.fromkeys(("extract", "rank", "classify", "attribute"), lambda _: answers[how])
    with running_endpoint(script=script) as endpoint:
        point_to(endpoint.base_url, key)
        async with lay_out_run(tmp_path, make_settings(attempts=2)) as live_run:
            works = await judge_samples(live_run, [make_sample()])
            assert key.encode() not in read_everything(tmp_path)  # in the journal as little
        rows = [build_frame("statements", [{"run_id": "r", **row}]) for row in works[0].rows["statements"]]
        details = [str(row["detail"]) for row in works[0].rows["outcomes"]]
    everything = read_everything(tmp_path)
    assert b"[key]" in everything
    assert key.encode() not in everything
    assert key not in str(rows) + str(details if how != "reply" else "")


def test_errors_and_messages_hide_them_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_VENDOR_API_KEY", "vendor-key-0123456789")
    assert redact("it was vendor-key-0123456789") == "it was [key]"
    assert str(JudgeFailed("it was vendor-key-0123456789")) == "it was [key]"
