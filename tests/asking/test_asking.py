"""One question in, one usable reply out: repeats, retries, budget, stopping, and a row for every request."""

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from live_runs import ScriptedJudge, lay_out_run, make_settings, read_calls
from provider_calls import make_question

from evalhouse.tasks.asking.asker import LAST_CHANCE, Asker
from evalhouse.tasks.asking.verdicts import read_statements
from evalhouse.tasks.judge.protocol import (
    EndpointDown,
    FatalJudgeError,
    JudgeFailed,
    Question,
    RefusedRequest,
    RunCancelled,
    TransientJudgeError,
    UnsupportedOption,
)

GOOD = '{"statements": ["It is red."]}'


def say_in_turn(*replies: str | Exception) -> Callable[[Question], str | Exception]:
    """These one after the other, the last for ever."""
    turns = list(replies)
    return lambda question: turns.pop(0) if len(turns) > 1 else turns[0]


async def ask_all(
    folder: Path,
    judge: ScriptedJudge,
    questions: Sequence[Question],
    **settings: Any,  # noqa: ANN401
) -> list[Any]:
    """Ask all at once; a value or an error for each."""
    async with lay_out_run(folder, make_settings(**settings), judge=judge) as live_run:
        asked = [live_run.asker.ask(question, read_statements) for question in questions]
        results = await asyncio.gather(*asked, return_exceptions=True)
    return [result if isinstance(result, BaseException) else result.value for result in results]


@pytest.mark.parametrize("good_at", [None, 19])
async def test_step_whose_first_replies_are_all_unusable_stops_the_run(tmp_path: Path, good_at: int | None) -> None:
    """One usable reply among the first 20 is enough to continue; another step's does not count."""
    monster = "No. " * 100 + "Key sk-abcdefghijklmnopqrstuvwxyz0123456789"
    places = iter(range(1000))
    classify = make_question(0, step="classify")

    def reply(question: Question) -> str:
        return GOOD if question.step == "classify" or next(places) == good_at else monster

    judge = ScriptedJudge(reply)
    questions = [classify, *(make_question(number) for number in range(1, 31))]
    results = await ask_all(tmp_path, judge, questions, attempts=2, concurrency=1)
    assert results[0] == ["It is red."]
    stopped = [result for result in results if isinstance(result, FatalJudgeError)]
    if good_at is not None:
        assert not stopped
        return
    assert len(judge.asked) == 21
    assert len(stopped) > 15
    message = str(stopped[0])
    assert message.startswith("none of the first 20 replies of scripted to extract_answer could be used")
    for part in ("no complete JSON object", "No. No. No.", "…", "--judge extract=MODEL", "--prompts"):
        assert part in message
    assert "sk-abc" not in message


async def test_step_with_a_reply_on_record_is_not_stopped(tmp_path: Path) -> None:
    await ask_all(tmp_path, ScriptedJudge(say_in_turn(GOOD)), [make_question(1)])
    async with lay_out_run(tmp_path, make_settings(attempts=1), judge=ScriptedJudge(say_in_turn("No."))) as live_run:
        assert (await live_run.asker.ask(make_question(1), read_statements)).value == ["It is red."]
        for number in range(2, 30):
            with pytest.raises(JudgeFailed):
                await live_run.asker.ask(make_question(number), read_statements)


async def test_equal_questions_at_once_are_one_request(tmp_path: Path) -> None:
    judge = ScriptedJudge(say_in_turn(GOOD), latency_s=0.02)
    questions = [make_question(1, sample_id=f"s{number}") for number in range(5)]
    assert await ask_all(tmp_path, judge, questions) == [["It is red."]] * 5
    assert len(judge.asked) == 1
    calls = read_calls(tmp_path)
    paid = [call for call in calls if call["status"] == "ok"]
    reused = [call for call in calls if call["status"] == "cached"]
    assert len(paid) == 1
    assert {call["reused_call_id"] for call in reused} == {paid[0]["call_id"]}
    assert sorted(call["sample_id"] for call in calls) == ["s0", "s1", "s2", "s3", "s4"]
    assert all(call["request"] is None and call["cost_usd"] is None for call in reused)


async def test_equal_questions_at_once_fail_together(tmp_path: Path) -> None:
    judge = ScriptedJudge(say_in_turn(RefusedRequest("content filter")), latency_s=0.02)
    results = await ask_all(tmp_path, judge, [make_question()] * 4)
    assert [str(result) for result in results] == ["content filter"] * 4
    assert all(isinstance(result, JudgeFailed) for result in results)
    assert len(judge.asked) == 1


async def test_equal_question_is_asked_when_the_first_is_cancelled(tmp_path: Path) -> None:
    judge = ScriptedJudge(say_in_turn(GOOD), latency_s=0.2)
    async with lay_out_run(tmp_path, judge=judge) as live_run:
        first, second = (asyncio.create_task(live_run.asker.ask(make_question(), read_statements)) for _ in range(2))
        while not judge.asked:
            await asyncio.sleep(0.001)
        first.cancel()
        assert (await second).value == ["It is red."]
    assert [call["status"] for call in read_calls(tmp_path)] == ["error", "ok"]
    assert "cancelled" in read_calls(tmp_path)[0]["error"]


async def test_an_unusable_reply_is_asked_again_with_a_note_and_both_are_on_record(tmp_path: Path) -> None:
    judge = ScriptedJudge(say_in_turn("prose only", '{"statements": ["cut', GOOD))
    assert await ask_all(tmp_path, judge, [make_question()]) == [["It is red."]]
    assert [bool(question.note) for question in judge.asked] == [False, True, True]
    assert "prose" not in judge.asked[1].note
    calls = read_calls(tmp_path)
    assert [(call["status"], call["attempts"], call["reply"]) for call in calls] == [
        ("error", 1, "prose only"),
        ("error", 2, '{"statements": ["cut'),
        ("ok", 3, GOOD),
    ]
    assert len({call["request_hash"] for call in calls}) == 1
    assert all(call["prompt_tokens"] == 100 for call in calls)


@pytest.mark.usefixtures("quick_backoff")
@pytest.mark.parametrize(("last_chance", "kind"), [(False, EndpointDown), (True, JudgeFailed)])
async def test_transport_errors_alone_are_for_prefect_to_try_again_until_the_last_chance(
    tmp_path: Path, last_chance: bool, kind: type[Exception]
) -> None:
    LAST_CHANCE.set(last_chance)
    judge = ScriptedJudge(say_in_turn(TransientJudgeError("status 503: busy")))
    results = await ask_all(tmp_path, judge, [make_question(), make_question()], attempts=2)
    LAST_CHANCE.set(True)
    assert [type(result) for result in results] == [kind, kind]
    assert "given up after 2 attempts; the last: status 503: busy" in str(results[0])
    assert len(judge.asked) == 2


@pytest.mark.usefixtures("quick_backoff")
async def test_an_endpoint_that_was_never_reached_stops_the_run_with_one_message(tmp_path: Path) -> None:
    judge = ScriptedJudge(say_in_turn(TransientJudgeError("connection refused", unreachable=True)))
    results = await ask_all(tmp_path, judge, [make_question(number) for number in range(4)], attempts=2)
    assert {type(result) for result in results} == {FatalJudgeError}
    assert {str(result) for result in results} == {"scripted cannot be reached: connection refused"}


@pytest.mark.usefixtures("quick_backoff")
async def test_an_endpoint_that_goes_away_later_fails_questions_and_not_the_run(tmp_path: Path) -> None:
    judge = ScriptedJudge(say_in_turn(GOOD, TransientJudgeError("connection refused", unreachable=True)))
    async with lay_out_run(tmp_path, make_settings(attempts=2), judge=judge) as live_run:
        await live_run.asker.ask(make_question(1), read_statements)
        with pytest.raises(JudgeFailed, match="connection refused"):
            await live_run.asker.ask(make_question(2), read_statements)
        live_run.asker.raise_if_stopped()


@pytest.mark.usefixtures("quick_backoff")
async def test_rate_limits_are_waited_out_and_use_up_no_attempt(tmp_path: Path) -> None:
    limited = [TransientJudgeError("status 429", retry_after_s=0.02, rate_limited=True) for _ in range(4)]
    judge = ScriptedJudge(say_in_turn(*limited, GOOD))
    async with lay_out_run(tmp_path, make_settings(attempts=1), judge=judge) as live_run:
        live_run.asker.limit.note_refused = lambda slot, retry_after_s: None  # type: ignore[method-assign]  # no pause
        assert (await live_run.asker.ask(make_question(), read_statements)).value == ["It is red."]
    assert [call["attempts"] for call in read_calls(tmp_path)] == [1, 2, 3, 4, 5]


async def test_an_option_that_is_not_taken_costs_no_attempt_but_not_for_ever(tmp_path: Path) -> None:
    no_schema = UnsupportedOption("no response_format", options=["response_format"])
    assert await ask_all(tmp_path / "a", ScriptedJudge(say_in_turn(no_schema, GOOD)), [make_question()], attempts=1)
    (error,) = await ask_all(tmp_path / "b", ScriptedJudge(say_in_turn(no_schema)), [make_question()], attempts=2)
    assert isinstance(error, JudgeFailed)


async def test_a_budget_without_a_price_is_refused_before_anything_is_asked(tmp_path: Path) -> None:
    async with lay_out_run(tmp_path, judge=ScriptedJudge(say_in_turn(GOOD))) as live_run:
        with pytest.raises(FatalJudgeError, match="a price for 'scripted-1'"):
            Asker(
                judge=live_run.asker.judge,
                record=live_run.asker.record,
                limit=live_run.asker.limit,
                attempts=1,
                price=None,
                budget_usd=1.0,
            )


async def test_stop_sends_nothing_new_and_ends_all_waits(tmp_path: Path) -> None:
    """Two of twenty questions are in flight, some wait for a slot and one for its next attempt."""
    judge = ScriptedJudge(lambda q: TransientJudgeError("busy") if q.sample_id == "s0" else GOOD, latency_s=0.15)
    async with lay_out_run(tmp_path, make_settings(concurrency=3), judge=judge) as live_run:
        tasks = [asyncio.create_task(live_run.asker.ask(make_question(n), read_statements)) for n in range(20)]
        await asyncio.sleep(0.2)
        sent = len(judge.asked)
        started = time.monotonic()
        live_run.stop(RunCancelled("stopped by SIGINT"), drain_s=1.0)
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert time.monotonic() - started < 1.0
        with pytest.raises(RunCancelled):
            await live_run.asker.ask(make_question(99), read_statements)
    assert len(judge.asked) == sent
    errors = [result for result in results if isinstance(result, BaseException)]
    assert {(type(error), str(error)) for error in errors} == {(RunCancelled, "stopped by SIGINT")}
    # Replies to requests in flight came in, and are recorded for a resumed run.
    assert [call["status"] for call in read_calls(tmp_path)].count("ok") == 20 - len(errors)


async def test_a_full_disk_stops_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(28, "No space left on device")

    judge = ScriptedJudge(say_in_turn(GOOD))
    async with lay_out_run(tmp_path, make_settings(concurrency=1), judge=judge) as live_run:
        monkeypatch.setattr("evalhouse.warehouse.mover.os.write", refuse)
        asked = [live_run.asker.ask(make_question(number), read_statements) for number in range(10)]
        results = await asyncio.gather(*asked, return_exceptions=True)
        monkeypatch.undo()
    assert {type(result) for result in results} == {FatalJudgeError}
    assert "No space left on device" in str(results[0])
    assert len(judge.asked) == 1
