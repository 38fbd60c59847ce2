"""One collection by itself: how a target is asked, stopped and believed, with the warehouse and without Prefect."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import target_bots
from live_runs import ScriptedJudge, judge_samples, lay_out_run, make_sample, make_settings, read_detail, read_outcomes
from target_server import Answer, Canned, answer_json, serving
from warehouse_runs import make_run

from evalhouse.tasks.datasets.read import stage_dataset
from evalhouse.tasks.datasets.rows import hash_inputs
from evalhouse.tasks.judge.protocol import FatalJudgeError, RunCancelled
from evalhouse.tasks.load import load_responses
from evalhouse.tasks.pipeline.live_run import LiveRun
from evalhouse.tasks.settings.suite import TargetSettings
from evalhouse.tasks.targets.collection import Collection, make_target, stage_responses
from evalhouse.tasks.targets.protocol import FirstQuestions, Response, Target, TargetError, TargetQuestion
from evalhouse.warehouse.errors import WarehouseError
from evalhouse.warehouse.mover import Mover
from evalhouse.warehouse.rows.calls import fetch_responses
from evalhouse.warehouse.rows.runs import insert_run
from evalhouse.warehouse.rows.samples import StoredSample, fetch_samples_between

SIZE = 4


def answer(**changes: Any) -> Response:  # noqa: ANN401  # fields of Response
    response = Response(
        answer="Yes.", contexts=("One.",), context_ids=("a#1",), latency_ms=5.0, attempts=1, error=None
    )  # fmt: skip
    return replace(response, **changes)


FAILED = answer(answer=None, contexts=None, context_ids=None, latency_ms=None, error="status 500")


class ScriptedTarget:
    """Says what `says` makes of a question; `asked` are the ids in the order of asking."""

    name = "scripted"
    takes_contexts = takes_conversation = True
    names_conversation = False

    def __init__(self, says: Callable[[TargetQuestion], Response] | None = None) -> None:
        self.says = says or (lambda _: answer())
        self.asked: list[str] = []
        self.in_flight = self.most_in_flight = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.is_closed = False

    async def ask(self, question: TargetQuestion) -> Response:
        self.asked.append(question.sample_id)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            await asyncio.sleep(0)
            await self.gate.wait()
            return self.says(question)
        finally:
            self.in_flight -= 1

    async def close(self) -> None:
        self.is_closed = True


class FullDisk(Mover):
    """A record on a disk that takes nothing more."""

    def keep(self, row: Any) -> None:  # noqa: ANN401
        raise OSError(28, "No space left on device")


def make_questions(n: int) -> list[StoredSample]:
    return [make_sample(number, answer="Brought.", contexts=None) for number in range(1, n + 1)]


@asynccontextmanager
async def collecting(
    folder: Path,
    target: Target,
    n: int,
    *,
    record: type[Mover] = Mover,
    **changes: Any,  # noqa: ANN401  # fields of Collection
) -> AsyncIterator[tuple[LiveRun, Collection]]:
    """A live run with a collection over so many questions."""
    samples = make_questions(n)
    async with lay_out_run(folder, make_settings(shard_size=SIZE), judge=ScriptedJudge(lambda _: "{}")) as live_run:
        values: dict[str, Any] = {
            "run_id": live_run.run_id, "warehouse": live_run.warehouse, "target": target, "known": None,
            "record": record(live_run.warehouse, "responses"), "numbers": range(-(-n // SIZE)), "n_samples": n,
            "read_samples": lambda first, last: samples[first - 1 : last], "concurrency": 2,
        }  # fmt: skip
        collection = Collection(**{**values, **changes})
        live_run.collection = collection
        try:
            yield live_run, collection
        finally:
            collection.record.close()


async def collect(live_run: LiveRun, collection: Collection, number: int = 0, size: int = SIZE) -> None:
    await collection.collect(live_run.asker.stop_sign, number, size=size)


def count_responses(live_run: LiveRun) -> dict[str, Any]:
    return live_run.warehouse.fetch_row("responses/counts", run_id=live_run.run_id)


async def collect_all(live_run: LiveRun, collection: Collection) -> None:
    for number in collection.numbers:
        await collect(live_run, collection, number)
    collection.record.flush()


async def test_every_sample_is_asked_about_once_and_few_at_a_time(tmp_path: Path) -> None:
    target = ScriptedTarget()
    async with collecting(tmp_path, target, 10) as (live_run, collection):
        await asyncio.gather(*(collect(live_run, collection, number) for number in collection.numbers))
        assert sorted(target.asked) == sorted(f"s{n}" for n in range(1, 11))
        assert target.most_in_flight == 2, "over all shards together"
        assert (collection.n_asked, collection.n_failed, collection.n_to_ask) == (10, 0, 10)
    assert target.is_closed


async def test_a_resumed_collection_asks_for_what_failed_or_never_came(tmp_path: Path) -> None:
    first = ScriptedTarget(lambda question: FAILED if question.sample_id == "s2" else answer())
    async with collecting(tmp_path, first, 6) as (live_run, collection):
        await collect(live_run, collection)
    second = ScriptedTarget()
    async with collecting(tmp_path, second, 6, is_resumed=True) as (live_run, collection):
        await collect_all(live_run, collection)
        assert second.asked == ["s2", "s5", "s6"]
        assert count_responses(live_run)["n_ok"] == 6
        assert collection.n_to_ask == 3


async def test_error_of_the_target_stops_the_run(tmp_path: Path) -> None:
    def refuse(_: TargetQuestion) -> Response:
        raise TargetError("the environment variable BOT_TOKEN is not set")

    target = ScriptedTarget(refuse)
    async with collecting(tmp_path, target, 8, concurrency=1) as (live_run, collection):
        with pytest.raises(FatalJudgeError, match="BOT_TOKEN"):
            await collect(live_run, collection)
        assert target.asked == ["s1"]
        with pytest.raises(FatalJudgeError, match="BOT_TOKEN"):
            await collect(live_run, collection, 1)
        assert target.asked == ["s1"]


@contextmanager
def placing(bot: Answer | str) -> Iterator[dict[str, Any]]:
    """Yield the address of a bot while it runs: `silent` takes questions and does not answer."""
    if not isinstance(bot, str):
        with serving(bot) as server:
            yield {"url": server.url}
    elif ":" in bot:
        yield {"callable": bot}
    else:
        with socket.socket() as place:
            place.bind(("127.0.0.1", 0))
            if bot == "silent":
                place.listen(64)
            yield {"url": f"http://127.0.0.1:{place.getsockname()[1]}/ask"}


@pytest.mark.parametrize(
    ("bot", "problem", "n_asked"),
    [
        *(
            (Canned(status=status, body=[b"q%d" % status]), f"5 times status {status}: q{status}", 5)
            for status in (401, 404)
        ),
        (answer_json({"reply": "Yes."}), "5 times status 200, but answer = '$.answer' matches nothing", 5),
        (Canned(body=[b"<html>Log in"]), "5 times status 200, but the body is not valid JSON", 5),
        (Canned(status=302, headers={"Location": "http://elsewhere.test/"}), "5 times status 302: it redirects", 5),
        (Canned(status=503), "20 times status 503: ", 20),
        (Canned(broken=True, headers={"Content-Length": "9"}), "20 times the connection broke", 20),
        ("silent", "20 times no whole response within 0.05 s", 20),
        ("target_bots:break_down", "5 times KeyError: 'lang'", 5),
        ("target_bots:hang", "20 times it did not return within 0.05 s", 20),
        ("missing", "5 times no connection to http://127.0.0.1", 5),
    ],
)
async def test_first_questions_that_all_fail_end_the_asking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bot: Answer | str, problem: str, n_asked: int
) -> None:
    monkeypatch.setattr("evalhouse.tasks.judge.protocol._BACKOFF_FIRST_S", 0.001)
    monkeypatch.setattr(target_bots, "failures", [KeyError("lang")])
    timeout_s = 0.05 if bot in ("silent", "target_bots:hang") else 60
    with placing(bot) as place:
        target = make_target(TargetSettings(**place, attempts=1, concurrency=2, timeout_s=timeout_s))
        async with collecting(tmp_path, target, 40, first=FirstQuestions()) as (live_run, collection):
            with pytest.raises(FatalJudgeError, match=re.escape(problem)) as stopped:
                await collect(live_run, collection, size=40)
            collection.record.flush()
            counts = count_responses(live_run)
    assert str(stopped.value).startswith(f"none of the first {n_asked} questions was answered, so the others were not")
    assert n_asked <= counts["n_failed"] <= n_asked + 1, "what was in flight may end as well"


def fail(error: str, *, lasts: bool = False) -> Response:
    return replace(FAILED, error=error, lasts=lasts)


REFUSED, BUSY = fail("status 401: no", lasts=True), fail("status 503: busy")


@pytest.mark.parametrize(
    ("responses", "problem"),
    [
        (
            [REFUSED, fail("status 404: b", lasts=True)] * 4 + [REFUSED],
            "none of the first 9 questions was answered, so the others were not asked: 5 times status 401: no; "
            "4 times status 404: b; fix",
        ),
        ([REFUSED] * 4 + [BUSY] * 16, "16 times status 503: busy; 4 times status 401"),
        ([fail(f"Key{n}: it", lasts=True) for n in range(20)], "1 times Key2: it; and 17 other kinds of failure;"),
        ([*([REFUSED] * 4), answer(), *([REFUSED] * 40)], None),
        ([answer(answer=""), *([BUSY] * 40)], None),
        ([BUSY] * 19, None),
    ],
)
def test_failures_count_by_what_they_have_in_common_until_the_first_answer(
    responses: list[Response], problem: str | None
) -> None:
    first = FirstQuestions()
    for response in responses[:-1]:
        first.note(response)
    with nullcontext() if problem is None else pytest.raises(TargetError, match=re.escape(problem)):
        first.note(responses[-1])


async def test_a_resumed_run_asks_the_others_before_those_that_failed(tmp_path: Path) -> None:
    """Else the same first failures would stop it again and again."""
    lost = {f"s{n}" for n in range(1, 7)}

    def say(question: TargetQuestion) -> Response:
        return fail("status 422: too odd", lasts=True) if question.sample_id in lost else answer()

    async with collecting(tmp_path, ScriptedTarget(say), 10, first=FirstQuestions()) as (live_run, collection):
        with pytest.raises(FatalJudgeError, match="none of the first 5 questions"):
            await collect(live_run, collection, size=10)
    for has_answers in (False, True):
        second = ScriptedTarget(say)  # the second time one that has answered
        options = {"is_resumed": True, "first": FirstQuestions(), "has_answers": has_answers}
        async with collecting(tmp_path, second, 10, **options) as (live_run, collection):
            await collect(live_run, collection, size=10)
            collection.record.flush()
            assert count_responses(live_run)["n_ok"] == 4
        assert has_answers or second.asked[:4] == ["s7", "s8", "s9", "s10"]
    assert set(second.asked) == lost, "asked again, and nothing stopped, for the run has answers"


async def test_a_warehouse_that_takes_no_responses_stops_the_run(tmp_path: Path) -> None:
    target = ScriptedTarget()
    async with collecting(tmp_path, target, 8, concurrency=1) as (live_run, collection):
        collection.record.failure = WarehouseError("no space left")
        for number in (0, 1):
            with pytest.raises(FatalJudgeError, match="responses cannot be taken into the warehouse: no space left"):
                await collect(live_run, collection, number)
        assert target.asked == ["s1"], "and its response is on disk"
        collection.record.flush()
        assert count_responses(live_run)["n_ok"] == 1


@pytest.mark.parametrize("answers", [True, False])
async def test_what_is_in_flight_when_the_run_is_stopped_may_still_come_and_cannot_hold_up_the_end(
    tmp_path: Path, answers: bool
) -> None:
    target = ScriptedTarget()
    target.gate.clear()
    async with collecting(tmp_path, target, 4) as (live_run, collection):
        asking = asyncio.create_task(collect(live_run, collection))
        while target.in_flight < 2:
            await asyncio.sleep(0)
        live_run.stop(RunCancelled("stopped by SIGINT"), drain_s=30.0 if answers else 0.0)
        if answers:
            target.gate.set()
        with pytest.raises(RunCancelled):
            await asking
        collection.record.flush()
        assert (target.asked, target.in_flight) == (["s1", "s2"], 0), "nothing more is asked"
        assert count_responses(live_run)["n_ok"] == (2 if answers else 0), "what was paid for is kept"


async def test_a_full_disk_is_reported_and_ends_the_asking(tmp_path: Path) -> None:
    """All other questions were asked, and no answer to them could be kept."""
    target = ScriptedTarget()
    async with collecting(tmp_path, target, 20, record=FullDisk) as (live_run, collection):
        with pytest.raises(FatalJudgeError, match=r"No space left on device.*evalhouse resume"):
            await collect(live_run, collection)
    assert len(target.asked) <= 2, "no answer to a question in flight can be kept either"


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        (answer(), ("Yes.", ["One."], ["a#1"])),
        (answer(answer=" \n"), ("", ["One."], ["a#1"])),
        (answer(contexts=(), context_ids=None), ("Yes.", [], None)),
        (answer(contexts=("One.", "Two."), context_ids=("", "")), ("Yes.", ["One.", "Two."], None)),
        (answer(contexts=("One.", "Two."), context_ids=("", "b")), ("Yes.", ["One.", "Two."], ["", "b"])),
        (answer(contexts=None, context_ids=None), ("Yes.", None, None)),
        (FAILED, (None, None, None)),
    ],
)
async def test_a_response_is_read_as_a_datasets_row_is(
    tmp_path: Path, response: Response, expected: tuple[Any, Any, Any]
) -> None:
    async with collecting(tmp_path, ScriptedTarget(lambda _: response), 1) as (live_run, collection):
        await collect_all(live_run, collection)
        staging = stage_responses(collection, SIZE)
        (sample,) = staging.read_between(1, 1)
        staging.discard()
    assert (sample.answer, sample.contexts, sample.context_ids) == expected
    question = make_questions(1)[0]
    assert (sample.question, sample.ground_truth, sample.sample_id) == (question.question, question.ground_truth, "s1")
    assert sample.input_hash == hash_inputs(
        question=question.question, answer=expected[0], ground_truth=question.ground_truth, contexts=expected[1],
        context_ids=expected[2], reference_context_ids=None,
    )  # fmt: skip


async def test_the_same_content_has_the_same_hash_whether_it_was_brought_or_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "brought.jsonl"
    path.write_text('{"question": "Is it?", "answer": "Yes.", "contexts": [{"text": "One.", "id": "a#1"}]}\n')
    staged = stage_dataset(str(path), mapping={}, limit=None)
    (brought,) = staged.staging.read_between(1, 1)
    async with collecting(
        tmp_path, ScriptedTarget(), 1, read_samples=staged.staging.read_between
    ) as (live_run, collection):  # fmt: skip
        await collect_all(live_run, collection)
        asked = stage_responses(collection, SIZE)
        assert asked.read_between(1, 1) == [brought]
        asked.discard()
    staged.staging.discard()
    assert staged.n_answered == 1


async def test_loading_renews_what_came_since(tmp_path: Path) -> None:
    """A run that had been loaded: the response came, and its process died before it was taken in."""
    async with collecting(tmp_path, ScriptedTarget(lambda _: FAILED), 3) as (live_run, collection):
        insert_run(live_run.warehouse, make_run(live_run.run_id))
        live_run.staged = stage_samples(tmp_path, 3)
        collection.read_samples = live_run.staged.staging.read_between
        await collect_all(live_run, collection)
        load_responses(live_run, collection)
        live_run.staged.staging.discard()
        assert [sample.answer for sample in fetch_samples_between(live_run.warehouse, live_run.run_id, 1, 3)] == [
            None
        ] * 3
        live_run.staged = None
        collection.record.keep(
            {"run_id": live_run.run_id, "sample_id": "q2", "status": "ok", "answer": "Yes.", "contexts": ["One."]}
        )
        collection.record.flush()
        collection.read_samples = lambda first, last: fetch_samples_between(
            live_run.warehouse, live_run.run_id, first, last
        )
        load_responses(live_run, collection)
        renewed = fetch_samples_between(live_run.warehouse, live_run.run_id, 1, 3)
        assert [(sample.sample_id, sample.answer) for sample in renewed] == [("q1", None), ("q2", "Yes."), ("q3", None)]
        assert [sample.target_error for sample in renewed] == ["status 500", None, "status 500"]


def stage_samples(folder: Path, n: int) -> Any:  # noqa: ANN401  # a StagedDataset
    path = folder / "questions.jsonl"
    path.write_text("".join(f'{{"id": "q{number}", "question": "Is it {number}?"}}\n' for number in range(1, n + 1)))
    return stage_dataset(str(path), mapping={}, limit=None)


async def test_a_sample_without_a_response_is_unscored_for_that(tmp_path: Path) -> None:
    """Missing texts of the sample itself are reported first: a resume cannot fix that."""
    lost = make_sample(1, answer=None, contexts=None, target_error="status 500")
    bare = replace(lost, ordinal=2, sample_id="s2", ground_truth=None)
    silent = replace(lost, ordinal=3, sample_id="s3", target_error=None)
    async with lay_out_run(tmp_path, judge=ScriptedJudge(lambda _: '{"statements": ["It is."]}')) as live_run:
        works = await judge_samples(live_run, [lost, bare, silent])
    reasons = [read_outcomes(work) for work in works]
    asked = ("extract_answer", "attribute_answer", "attribute_ground_truth", "rank", "similarity", "classify")
    assert {step: reasons[0][step] for step in asked} == dict.fromkeys(asked, "target_failed")
    assert reasons[0]["extract_ground_truth"] is None
    assert read_detail(works[0], "classify") == "status 500"
    assert (reasons[1]["rank"], reasons[1]["extract_ground_truth"]) == ("no_ground_truth", "no_ground_truth")
    assert (reasons[2]["extract_answer"], reasons[2]["rank"]) == ("no_answer", "no_contexts")


GIVEN = TargetQuestion(
    sample_id="s1", question="Q?", metadata={}, contexts=("one", 'two "2"'), context_ids=("a#1", "b#2")
)
ANSWERED = answer(contexts=None, context_ids=None)


@pytest.mark.parametrize(
    ("returned", "is_held_to"),
    [
        (ANSWERED, True),
        (answer(contexts=("one",), context_ids=None), True),  # it used a part
        (answer(contexts=(' two  "2"\n',), context_ids=None), True),  # white space is nothing
        (answer(contexts=("One, in other words.",), context_ids=("a#1",)), True),  # the same by its id
        (answer(contexts=("three",), context_ids=None), False),
        (answer(contexts=("one", "three"), context_ids=("a#1", "c#3")), False),
    ],
)
async def test_what_was_given_is_what_an_answer_rests_on(tmp_path: Path, returned: Response, is_held_to: bool) -> None:
    """A response with other contexts is not an answer from these."""
    async with collecting(tmp_path, ScriptedTarget(lambda _: returned), 1, pose=lambda _: GIVEN) as (live_run, asking):
        await asking.collect(live_run.asker.stop_sign, 0, size=SIZE)
        await asking.finish()
        (row,) = live_run.warehouse.read_rows("select status, answer, contexts, context_ids, error from responses")
    if is_held_to:
        assert (row["status"], row["answer"]) == ("ok", "Yes.")
        assert (row["contexts"], row["context_ids"]) == (["one", 'two "2"'], ["a#1", "b#2"])
    else:
        assert (row["status"], row["answer"], row["contexts"]) == ("failed", None, None)
        assert "it was given 2 contexts and answers from others, such as 'three'" in row["error"]


async def test_thoughts_are_kept_beside_the_answer_and_judged_on_request(tmp_path: Path) -> None:
    texts = {"s1": "<think>hm</think>\nYes.", "s2": "<think>cut off", "s3": "No."}
    target = ScriptedTarget(lambda question: answer(answer=texts[question.sample_id]))
    async with collecting(tmp_path / "a", target, 3) as (live_run, collection):
        await collect_all(live_run, collection)
        stored = fetch_responses(live_run.warehouse, live_run.run_id, list(texts))
        assert {name: (response.answer, response.thoughts) for name, response in stored.items()} == {
            "s1": ("Yes.", "<think>hm</think>"), "s2": (None, "<think>cut off"), "s3": ("No.", None),
        }  # fmt: skip
        assert "nothing but the bot's thoughts" in str(stored["s2"].error)
        known = SimpleNamespace(find=lambda _: {name: stored[name] for name in ("s1", "s3")})
        staged = stage_responses(collection, SIZE)
        assert [sample.answer for sample in staged.read_between(1, 3)] == ["Yes.", None, "No."]
        staged.discard()
    async with collecting(tmp_path / "b", target, 3, known=known, judge_thoughts=True) as (live_run, collection):
        await collect_all(live_run, collection)
        judged = fetch_responses(live_run.warehouse, live_run.run_id, list(texts))
        assert {name: (response.answer, response.thoughts) for name, response in judged.items()} == {
            "s1": ("<think>hm</think>\n\nYes.", None), "s2": ("<think>cut off", None), "s3": ("No.", None),
        }  # fmt: skip
