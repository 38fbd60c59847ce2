"""Any LangChain Runnable is a target, asked by its input schema."""

from typing import Any

import pytest
import target_bots
from target_house import ask_once, pose

from evalhouse.tasks.settings.suite import TargetSettings
from evalhouse.tasks.targets.collection import make_target
from evalhouse.tasks.targets.protocol import Response, TargetError


async def run(name: str, question: Any = "tides", /, **settings: Any) -> Response:  # noqa: ANN401
    return await ask_once(question, runnable=f"target_bots:{name}", **settings)


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


async def test_what_is_required_besides_the_question_comes_from_the_metadata() -> None:
    assert (await run("wanting", pose("tides", country="Peru"))).answer == "tides in Peru"
    response = await run("wanting", pose("tides", city="Lima"))
    assert response.error == "it requires country besides query, and this sample's metadata have none"
    assert response.attempts == 0


async def test_an_exception_is_a_failed_response(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target_bots, "failures", [ValueError("no index, key sk-1234567890abcdef")])
    response = await run("failing")
    assert (response.error, response.attempts) == ("ValueError: no index, key [key]", 1)


async def test_a_runnable_that_never_ends_is_given_up() -> None:
    response = await run("hanging", timeout_s=0.05)
    assert response.error == "it did not return within 0.05 s; raise timeout_s if it may take longer"


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("no_chain", "module 'target_bots' has no 'no_chain'"),
        ("number", "target_bots:number is a number; a runnable has `ainvoke`, or is a function that makes one"),
        ("answer_nothing", "target_bots:answer_nothing() returned text, which has no `ainvoke`; return a LangChain"),
        ("make_chain_later", "target_bots:make_chain_later() returned coroutine, which has no `ainvoke`"),
        ("fail_to_make", "target_bots:fail_to_make() failed with LookupError: no index at ./index, key [key]"),
        ("answer", "target_bots:answer() failed with TypeError"),
        ("Retriever.invoke", "target_bots:Retriever.invoke() failed with TypeError"),
        ("odd", "target_bots:odd takes left, right, and none of them is known to be the question (known: question,"),
    ],
)
def test_what_cannot_be_asked_is_refused_beforehand(name: str, problem: str) -> None:
    with pytest.raises(TargetError) as caught:
        make_target(TargetSettings(runnable=f"target_bots:{name}"))
    assert problem in str(caught.value)
