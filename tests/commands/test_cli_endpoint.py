"""Runs against an endpoint that refuses, breaks or is cut off: the messages, and that nothing is paid twice."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_house import place_at
from cli_process import Finished, Place, finish, in_terminal, wait_for
from endpoint import Endpoint, running_endpoint
from prompt_files import read_content, write_prompt

KEY = "sk-test-4f1c9a7be2"
WRONG_KEY = "sk-wrong-93ad71c0ee"
CONCURRENCY = 6
N_ROWS = 12


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with running_endpoint(expected_key=KEY, models=("judge", "embedder"), keep_bodies=True) as running:
        yield running


@pytest.fixture
def place(tmp_path: Path, prefect_home: Path, endpoint: Endpoint) -> Place:
    return place_at(tmp_path, prefect_home, endpoint.base_url, n_rows=N_ROWS, key=KEY)


def read_everything(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


def assert_stopped_early(finished: Finished, endpoint: Endpoint, message: str, step: str) -> None:
    assert finished.status in (2, 3), finished.stderr
    assert finished.seconds < 60
    text = [line for line in finished.stderr.splitlines() if not line.startswith("columns: ")]
    assert len(text) == 1, finished.stderr
    assert message in finished.stderr
    assert "Traceback" not in finished.stdout + finished.stderr
    assert "factual_f1" not in finished.stdout, "there is nothing to show a table of"
    if finished.status == 3:
        assert re.search(rf"^next: {step}", finished.stdout, re.MULTILINE), finished.stdout
    assert endpoint.stats.requests["/v1/chat/completions"] <= 2 * CONCURRENCY


@pytest.mark.slow  # some ten seconds
def test_a_wrong_key_and_an_unknown_model_stop_a_run_with_one_message(place: Place, endpoint: Endpoint) -> None:
    """Each in a separate warehouse."""
    options = ("berths.jsonl", "--concurrency", str(CONCURRENCY), "--warehouse")
    wrong = place.with_variables(OPENAI_API_KEY=WRONG_KEY)
    refused_end = wrong.call("run", *options, "refused.duckdb", "--judge", "openai:judge")
    assert_stopped_early(
        refused_end, endpoint, "OPENAI_API_KEY", r"evalhouse resume \S+ --warehouse \S+   \(first correct that; "
    )
    for option, judge, embeddings in (
        ("--judge", "openai:unknown", "hashing"),
        ("--embeddings", "openai:judge", "openai:absent"),
    ):
        chosen = ("--judge", judge, "--embeddings", embeddings, "--limit", "1")
        endpoint.reset()
        unknown_end = place.call("run", *options, f"{option[2:]}.duckdb", *chosen)
        step = rf"evalhouse run berths\.jsonl --warehouse \S+ {option} MODEL   \(a resumed run keeps "
        assert_stopped_early(unknown_end, endpoint, embeddings if option == "--embeddings" else judge, step)
        assert "evalhouse resume" not in unknown_end.stdout
    assert WRONG_KEY not in refused_end.stdout + refused_end.stderr
    assert WRONG_KEY.encode() not in read_everything(place.folder)


@pytest.mark.slow
def test_ctrl_c_then_kill_then_resume_pays_nothing_twice(place: Place, endpoint: Endpoint) -> None:
    endpoint.configure(latency=0.25)
    run = ("run", "berths.jsonl", "--judge", "openai:judge", "--concurrency", str(CONCURRENCY))
    with in_terminal(place, *run) as terminal:
        terminal.read_until(lambda: sum(endpoint.stats.requests.values()) >= 20)
        terminal.press(b"\x03")
        stopped = terminal.finish(timeout_s=30)
    assert stopped.status == 130
    assert stopped.seconds < 15, "open requests may end, and the rest is written"
    assert "Traceback" not in stopped.stdout
    resume = re.search(r"evalhouse resume (\S+)", stopped.stdout)
    assert resume is not None, stopped.stdout
    assert_progress_was_shown(stopped.stdout)
    assert endpoint.stats.duplicates_answered == 0

    endpoint.configure(latency=0.1)
    n_before = sum(endpoint.stats.requests.values())
    process = place.start("resume", resume[1])
    wait_for(lambda: sum(endpoint.stats.requests.values()) >= n_before + 30, process)
    process.send_signal(signal.SIGKILL)
    killed = finish(process)
    assert killed.status == -signal.SIGKILL
    n_duplicates = endpoint.stats.duplicates_answered
    assert n_duplicates == 0, "the resumed run asked again for stored replies"

    endpoint.configure(latency=0.0)
    finished = place.call("resume", resume[1], "--json")
    assert finished.status == 0, finished.stderr
    assert finished.document["run_id"] == resume[1]
    assert finished.document["status"] == "completed"
    # Replies that were on their way when the process died are lost.
    assert endpoint.stats.duplicates_answered <= CONCURRENCY
    assert place.read("select count(distinct sample_id) as n from scores where value is not null") == [{"n": N_ROWS}]
    assert place.read("select count(*) as n from runs") == [{"n": 1}]
    assert KEY.encode() not in read_everything(place.folder)


def assert_progress_was_shown(screen: str) -> None:
    assert "starting …" in screen
    # The terminal itself writes ^C where it is pressed.
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen).replace("^C", "")
    shown = [line for line in re.split(r"[\r\n]", plain) if f"/{N_ROWS} samples" in line or "calls," in line]
    assert all(len(line.rstrip()) <= 80 for line in shown), shown
    assert any(re.search(rf"\d+/{N_ROWS} samples .*\d:\d\d left", line) for line in shown), shown
    assert any(re.search(r"[1-9]\d* calls, \d+ reused, [\d.]+k tokens, \$\?", line) for line in shown), shown


@pytest.mark.slow
def test_faults_leave_a_reason_or_a_score_and_resume_repairs_them(place: Place, endpoint: Endpoint) -> None:
    content = read_content("extract", "zh")
    words = "港口的规矩：只拆分，不评论。"
    content["system"] += f"\n{words}\n"
    own = place.folder / "own_prompts"
    write_prompt(own, content)
    faults = {"truncated": 0.15, "missing_id": 0.1, "rate_limit": 0.05, "context_length_exceeded": 0.2}
    endpoint.configure(faults=faults, retry_after=0.1, seed=3)
    began = time.monotonic()
    faulty = place.call(
        "run", "berths.jsonl", "--judge", "openai:judge", "--attempts", "2", "--language", "zh", "--prompts", str(own)
    )
    assert time.monotonic() - began < 60
    assert faulty.status == 3, faulty.stderr
    assert "incomplete" in faulty.lines[0]
    assert "Traceback" not in faulty.stdout + faulty.stderr
    run_id = faulty.lines[0].split()[1]
    assert f"next: evalhouse resume {run_id}" in faulty.stdout
    reasons = place.read("select distinct unscored_reason as reason from scores where value is null")
    assert {"reason": "judge_failed"} in reasons
    assert place.read("select count(*) as n from scores where (value is null) = (unscored_reason is null)") == [
        {"n": 0}
    ]
    assert place.read("select count(distinct sample_id) as n from scores") == [{"n": N_ROWS}]
    shown = place.call("show", run_id)
    assert "judge_failed" in shown.stdout
    assert f"next: evalhouse resume {run_id}" in shown.stdout

    asked = [body["messages"][0]["content"] for body in endpoint.stats.bodies]
    assert any(words in instructions for instructions in asked), "the user's prompt is the one that was sent"

    endpoint.configure(faults={})
    repaired = place.call("resume", run_id, "--json", "--attempts", "4")
    assert repaired.status == 0, repaired.stderr
    assert repaired.document["calls"]["reused"] > 0
    assert place.read("select count(*) as n from scores where unscored_reason = 'judge_failed'") == [{"n": 0}]
    assert place.read("select status, language from runs") == [{"status": "completed", "language": "zh"}]
