"""An application that can be given the contexts to answer from: where its requests hold them, and where not."""

from dataclasses import replace
from typing import Any

import pytest
from target_house import ask_once, pose
from target_server import answer_json, serving

from evalhouse.tasks.settings.suite import TargetSettings
from evalhouse.tasks.targets.collection import make_target

GOOD = answer_json({"answer": "Yes."})
QUESTION = pose("tides")
GIVEN = replace(QUESTION, contexts=("one", 'two "2"'), context_ids=("a#1", "b#2"))
BODY: dict[str, Any] = {
    "query": "{{question}}", "contexts": "{{contexts}}", "more": {"ids": "{{context_ids}}", "list": ["{{contexts}}"]},
}  # fmt: skip


async def test_a_request_holds_contexts_where_they_are_given_and_nothing_else_elsewhere() -> None:
    with serving(GOOD, GOOD, GOOD) as server:
        for question in (GIVEN, QUESTION, replace(GIVEN, contexts=(), context_ids=None)):
            await ask_once(question, url=server.url, body=BODY)
    texts = ["one", 'two "2"']
    assert [sent.body for sent in server.requests] == [
        {"query": "tides", "contexts": texts, "more": {"ids": ["a#1", "b#2"], "list": [texts]}},
        {"query": "tides", "more": {"list": []}},
        {"query": "tides", "contexts": [], "more": {"list": [[]]}},
    ]


async def test_a_function_and_a_runnable_get_them_where_they_name_them() -> None:
    function = {"callable": "target_bots:answer_from"}
    assert (await ask_once(GIVEN, **function)).answer == "tides from ['one', 'two \"2\"'] of ['a#1', 'b#2']"
    assert (await ask_once(QUESTION, **function)).answer == "tides from None of None"
    runnable = {"runnable": "target_bots:answering_from"}
    assert (await ask_once(GIVEN, **runnable)).answer == "tides from ['one', 'two \"2\"']"
    assert (await ask_once(QUESTION, **runnable)).answer == "tides from None"


@pytest.mark.parametrize(
    ("settings", "takes"),
    [
        ({"url": "http://bot.example/ask"}, False),
        ({"url": "http://bot.example/ask", "body": BODY}, True),
        ({"callable": "target_bots:answer"}, False),
        ({"callable": "target_bots:answer_from"}, True),
        ({"runnable": "target_bots:texted"}, False),
        ({"runnable": "target_bots:answering_from"}, True),
    ],
)
async def test_a_target_says_whether_it_takes_contexts(settings: dict[str, Any], takes: bool) -> None:
    target = make_target(TargetSettings(**settings))
    assert target.takes_contexts == takes
    await target.close()


@pytest.mark.parametrize("text", ["answer from {{contexts}}", "{{context_ids}} and more"])
def test_a_list_within_a_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"the mark \{\{context\w+\}\} is a list; let it stand alone"):
        TargetSettings(url="http://bot.example", body={"q": "{{question}}", "prompt": text})
    with pytest.raises(ValueError, match="is a list; let it stand alone"):
        TargetSettings(url="http://bot.example/?q={{question}}&c={{contexts}}")
