"""A Python function or a LangChain Runnable is asked as a service would be: failures are responses, limits hold, and
nothing hangs for ever."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import target_bots
from target_house import ask_once, pose

from evalhouse.tasks.settings.suite import TargetSettings
from evalhouse.tasks.targets.callables import InputShape
from evalhouse.tasks.targets.collection import make_target
from evalhouse.tasks.targets.protocol import Response, TargetError


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch, quick_backoff: None) -> Iterator[None]:
    monkeypatch.setattr(target_bots, "watch", target_bots.Watch())
    yield
    target_bots.watch.gate.set()  # lets threads end that a test left waiting


async def call(name: str, question: Any = "tides", /, *, kind: str = "callable", **settings: Any) -> Response:  # noqa: ANN401
    return await ask_once(question, **{kind: f"target_bots:{name}"}, **settings)


run = partial(call, kind="runnable")


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("answer", "About tides"),
        ("answer_async", "About tides"),
        ("answer_later", "About tides"),
        ("bot.ask", "bot: tides"),
        ("bot", "bot later: tides"),
        ("partial_answer", "s1: tides"),
        ("answer_with_anything", "tides () {}"),
    ],
)
async def test_any_function_of_a_question_is_accepted(name: str, answer: str) -> None:
    response = await call(name)
    assert (response.answer, response.error, response.attempts) == (answer, None, 1)
    assert response.latency_ms is not None


async def test_metadata_and_id_go_to_a_function_that_names_them() -> None:
    response = await call("answer_with_metadata", pose("tides", sample_id="q7", lang="en", top=3))
    assert (response.answer, response.contexts) == ("q7: tides", ("lang=en", "top=3"))


async def test_contexts_may_be_objects_and_documents() -> None:
    response = await call("answer_async")
    assert (response.contexts, response.context_ids) == (("one", "two"), ("a#1", ""))
    response = await call("answer_with_ids")
    assert (response.answer, response.contexts, response.context_ids) == ("tides", ("one", "two"), ("d1", "d2"))


@pytest.mark.parametrize(
    ("value", "contexts", "context_ids"),
    [
        (("Yes.", ["one"]), ("one",), None),
        (("Yes.", "one"), ("one",), None),
        (("Yes.", ()), (), None),
        (("Yes.", None), None, None),
        ({"answer": "Yes.", "contexts": [{"id": 7, "content": "one"}]}, ("one",), ("7",)),
        ({"answer": "Yes.", "contexts": ["one", "two"], "context_ids": ["a", "b"]}, ("one", "two"), ("a", "b")),
        ({"answer": None, "result": "Yes.", "documents": ["one"]}, ("one",), None),
        ({"text": "Yes."}, None, None),
    ],
)
async def test_what_is_returned_may_have_many_shapes(
    monkeypatch: pytest.MonkeyPatch, value: object, contexts: object, context_ids: object
) -> None:
    monkeypatch.setattr(target_bots, "returned", [value])
    response = await call("give")
    assert (response.answer, response.contexts, response.context_ids) == ("Yes.", contexts, context_ids)


async def test_half_a_character_is_replaced_as_browsers_show_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bots cut passages within an emoji."""
    value = {"answer": "half \ud800", "contexts": ["\udc00 one"], "context_ids": ["\ud83d\ude00"]}
    monkeypatch.setattr(target_bots, "returned", [value])
    response = await call("give")
    assert (response.answer, response.contexts, response.context_ids) == (
        "half \ufffd",
        ("\ufffd one",),
        ("\U0001f600",),
    )


@pytest.mark.parametrize("value", ["", {"answer": "", "contexts": []}])
async def test_an_empty_answer_is_an_answer(monkeypatch: pytest.MonkeyPatch, value: object) -> None:
    monkeypatch.setattr(target_bots, "returned", [value])
    response = await call("give")
    assert (response.answer, response.error) == ("", None)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (None, "the answer is null"),
        ((float("nan"), []), "the answer is null"),
        (float("nan"), "a number was returned: nan; allowed: a text"),
        (["Yes."], "a list was returned: ['Yes.']; allowed: a text, a mapping with answer and contexts, or a tuple"),
        (("Yes.",), "a tuple of 1 was returned"),
        ({"reply": "Yes."}, "the mapping that was returned has no answer; it has: reply; looked for: answer, output"),
        ({}, "the mapping that was returned has no answer; it has: (none)"),
        ({"answer": None}, "the answer is null: 'answer'"),
        ({"answer": "", "error": "busy"}, "the answer is empty, and error is 'busy'"),
        ({"answer": "\n", "success": False}, "the answer is empty, and success is false"),
        ({"answer": ["Yes."]}, "the answer is a list, not text: ['Yes.']"),
        (("Yes.", 3), "contexts are not a list but a number: 3"),
        (("Yes.", [{"score": 1}]), "context 1 has no text; it has: score"),
        ({"answer": "Yes.", "contexts": ["a"], "context_ids": ["1", "2"]}, "there are 2 context_ids for 1 contexts"),
    ],
)
async def test_what_cannot_be_read_is_a_failed_response(
    monkeypatch: pytest.MonkeyPatch, value: object, problem: str
) -> None:
    monkeypatch.setattr(target_bots, "returned", [value])
    response = await call("give")
    assert response.error is not None
    assert response.error.startswith(problem)
    assert (response.answer, response.latency_ms, response.attempts) == (None, None, 1)


class Unwritable(Exception):
    """An error whose text cannot be made."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize("name", ["break_down", "break_down_async"])
@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError("no index,\n key sk-1234567890abcdef"), "ValueError: no index, key [key]"),
        (KeyError(), "KeyError"),
        (StopIteration("over"), None),
        (SystemExit(3), "SystemExit: 3"),
        (FileNotFoundError(os.fsdecode(b"caf\xe9.md")), "FileNotFoundError: caf\ufffd.md"),
        (Unwritable(), "Unwritable"),
        (asyncio.CancelledError(), "CancelledError"),
    ],
)
async def test_an_exception_is_a_failed_response(
    monkeypatch: pytest.MonkeyPatch, name: str, error: BaseException, expected: str | None
) -> None:
    monkeypatch.setattr(target_bots, "failures", [error])
    response = await call(name)
    # Python itself makes another error of a StopIteration that leaves a coroutine.
    assert response.error == expected or (expected is None and "StopIteration" in str(response.error))
    assert response.attempts == 1
    if isinstance(error, ValueError):
        of_runnable = await run("failing")
        assert (of_runnable.error, of_runnable.attempts) == (expected, 1)


@pytest.mark.parametrize("name", ["break_down", "break_down_async"])
async def test_a_failed_connection_is_tried_again(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(target_bots, "failures", [ConnectionResetError("reset"), TimeoutError(), ValueError("at last")])
    response = await call(name)
    assert (response.error, response.attempts) == ("ValueError: at last", 3)


async def test_a_run_that_is_cancelled_is_not_taken_for_a_failure() -> None:
    target = make_target(TargetSettings(callable="target_bots:hang"))
    asked = asyncio.create_task(target.ask(pose()))
    await asyncio.sleep(0)
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked


@pytest.mark.parametrize(("kind", "name"), [("callable", "hang"), ("runnable", "hanging")])
async def test_a_coroutine_that_never_ends_is_given_up(kind: str, name: str) -> None:
    response = await call(name, kind=kind, timeout_s=0.05)
    assert response.error == "it did not return within 0.05 s; raise timeout_s if it may take longer"


async def test_a_thousand_questions_to_a_plain_function() -> None:
    target = make_target(TargetSettings(callable="target_bots:answer_watched", concurrency=6))
    responses = await asyncio.gather(*(target.ask(pose(f"q{n}")) for n in range(1000)))
    await target.close()
    assert [response.answer for response in responses] == [f"About q{n}" for n in range(1000)]
    assert (target_bots.watch.n, target_bots.watch.in_flight) == (1000, 0)
    assert target_bots.watch.most <= 6
    assert all(name.startswith("evalhouse-target-") for name in target_bots.watch.threads)
    assert len(target_bots.watch.threads) <= 6


async def test_coroutines_keep_to_the_limit_too() -> None:
    target = make_target(TargetSettings(callable="target_bots:answer_async", concurrency=7))
    await asyncio.gather(*(target.ask(pose()) for _ in range(40)))
    assert target_bots.watch.most == 7


async def test_hanging_calls_keep_their_places_and_block_no_others() -> None:
    target_bots.watch.gate.clear()
    target = make_target(TargetSettings(callable="target_bots:answer_watched", concurrency=2, timeout_s=0.1))
    responses = await asyncio.gather(*(target.ask(pose()) for _ in range(8)))
    errors = [response.error or "" for response in responses]
    assert sum(error.startswith("it did not return within 0.1 s") for error in errors) == 2
    assert sum(error.startswith("it was not called: all 2 calls at once that are allowed") for error in errors) == 6
    assert target_bots.watch.n == 2
    target_bots.watch.gate.set()
    async with asyncio.timeout(60):  # once they have returned, the others continue
        while (response := await target.ask(pose("tides"))).error:
            await asyncio.sleep(0)
    assert response.answer == "About tides"
    await target.close()


def test_a_call_that_hangs_does_not_keep_the_process(tmp_path: Path) -> None:
    (tmp_path / "stuck.py").write_text("import threading\ndef ask(question):\n    threading.Event().wait()\n")
    script = (
        "import asyncio\n"
        "from evalhouse.tasks.targets.collection import TargetQuestion, make_target\n"
        "from evalhouse.tasks.settings.suite import TargetSettings\n"
        "target = make_target(TargetSettings(callable='stuck:ask', timeout_s=0.05))\n"
        "question = TargetQuestion(sample_id='1', question='q', metadata={})\n"
        "print(asyncio.run(target.ask(question)).error)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,  # where the function's module is found
        env={"PYTHONPATH": str(Path(__file__).parents[2]), "PATH": ""},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert ended.stdout.startswith("it did not return within 0.05 s")


@pytest.mark.parametrize(
    ("kind", "name", "problem"),
    [
        ("callable", "no_such_module:ask", "cannot import 'no_such_module' for 'no_such_module:ask': No module named"),
        ("callable", "asked", "module 'target_bots' has no 'asked' (asked for by 'target_bots:asked')"),
        ("callable", "bot.asked", "module 'target_bots' has no 'bot.asked'"),
        ("callable", "number", "target_bots:number is a number, not a function"),
        ("callable", "texted", "not a function; it is a LangChain Runnable: name it with `runnable`"),
        ("callable", "answer_nothing", "target_bots:answer_nothing() -> str cannot be called (too many positional"),
        ("callable", "answer_two", "cannot be called (missing a required argument: 'other'): it is called with the"),
        ("callable", "answer_in_parts", "target_bots:answer_in_parts yields its answer in parts; write a function"),
        ("callable", "answer_in_parts_async", "yields its answer in parts"),
        ("runnable", "no_chain", "module 'target_bots' has no 'no_chain'"),
        ("runnable", "number", "target_bots:number is a number; a runnable has `ainvoke`, or is a function that"),
        ("runnable", "answer_nothing", "target_bots:answer_nothing() returned text, which has no `ainvoke`; return"),
        ("runnable", "make_chain_later", "target_bots:make_chain_later() returned coroutine, which has no `ainvoke`"),
        ("runnable", "fail_to_make", "fail_to_make() failed with LookupError: no index at ./index, key [key]"),
        ("runnable", "answer", "target_bots:answer() failed with TypeError"),
        ("runnable", "Retriever.invoke", "target_bots:Retriever.invoke() failed with TypeError"),
        ("runnable", "odd", "target_bots:odd takes left, right, and none of them is known to be the question (known"),
    ],
)  # fmt: skip
def test_what_cannot_be_asked_is_refused_beforehand(kind: str, name: str, problem: str) -> None:
    settings: Any = {kind: name if ":" in name else f"target_bots:{name}"}
    with pytest.raises(TargetError) as caught:
        make_target(TargetSettings(**settings))
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("raise RuntimeError('no index, key sk-1234567890abcdef')", "RuntimeError: no index, key [key]"),
        ("raise SystemExit(0)  # a script without __main__", "SystemExit: 0"),
    ],
)
def test_module_that_fails_on_import_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, problem: str
) -> None:
    monkeypatch.delitem(sys.modules, "broken_bot", raising=False)
    (tmp_path / "broken_bot.py").write_text(f"{code}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(TargetError) as caught:
        make_target(TargetSettings(callable="broken_bot:ask"))
    assert str(caught.value) == f"module 'broken_bot' of 'broken_bot:ask' broke on import: {problem}"


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("texted", "text tides"),  # a text, because its input is one
        ("model", "The model's answer."),  # a message
        ("make_model", "The model's answer."),  # a factory
        ("prompted", "The model's answer."),  # a prompt's only variable
        ("parsed", "The model's answer."),  # the usual chain, whose retriever takes a text
        ("make_chain", "The model's answer."),
        ("blocks", "<think>\nhm\n</think>\n\nIn blocks."),  # thoughts are taken out later
        ("agent", "heard tides"),
        ("anything", "str: tides"),
        ("any_object", "dict: {'question': 'tides'}"),
    ],
)
async def test_runnable_gets_the_question_in_its_input_shape(name: str, answer: str) -> None:
    response = await run(name)
    assert (response.answer, response.error, response.attempts) == (answer, None, 1)
    assert response.latency_ms is not None


async def test_retrieval_chain_returns_its_documents() -> None:
    response = await run("retrieving")
    assert (response.answer, response.contexts) == ("The model's answer.", ("on tides", "other"))
    assert response.context_ids == ("d1", "d2")


async def test_a_graph_is_given_the_question_alone_and_writes_the_others() -> None:
    """Its schema requires the whole state, as the metadata have it for no sample."""
    response = await run("make_graph")
    assert (response.answer, response.contexts, response.context_ids) == ("Read on tides.", ("on tides",), ("d1",))


def test_a_required_id_of_the_conversation_may_have_another_name_than_in_the_dataset() -> None:
    """Each question failed, though the id of the asking is known."""
    shape = InputShape(key="question", others=("session_id",))
    asked = replace(pose("tides", conversation_id="c1"), conversation_id="made")
    assert shape.fill(asked) == {"question": "tides", "session_id": "made"}
    assert shape.fill(replace(asked, metadata={"session_id": "s1"}))["session_id"] == "s1"


async def test_what_is_required_besides_the_question_comes_from_the_metadata() -> None:
    assert (await run("wanting", pose("tides", country="Peru"))).answer == "tides in Peru"
    response = await run("wanting", pose("tides", city="Lima"))
    assert response.error == "it requires country besides query, and this sample's metadata have none"
    assert response.attempts == 0
