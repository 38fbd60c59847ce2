"""Replies in a model's place where nothing is asked, so that the steps that rest on replies have some and what a run
would take can be counted.

What the lexical judge can judge gets its verdicts, anything else the reply of the prompt's first worked example.
Reasons are those of the worked examples, one after the other: so long is what the prompt asks for. How finely a model
splits a text is its own affair; here a text has the statements that the lexical judge finds.
"""

from collections.abc import Mapping
from functools import lru_cache
from itertools import cycle, islice
from typing import Any

import orjson

from evalhouse.prompts import Prompt
from evalhouse.tasks.judge.protocol import Question, hash_canonical, plain_data, require_prompt
from evalhouse.tasks.lexical.judge import judge_lexically
from evalhouse.warehouse.steps import LEXICAL_PROMPTS

# For prompts without worked examples, which are users' own.
_REASON = "It says the same as the other one, in other words."
_QUESTION = "When was it built, and by whom?"


def make_stand_in(question: Question) -> str:
    """A usable reply to a question for the judge, as JSON; equal questions get equal ones."""
    prompt = require_prompt(question)
    if prompt.name in LEXICAL_PROMPTS:
        reply = judge_lexically(prompt.name, plain_data(question.data))
    elif prompt.rubric is not None:
        reply = _rate(prompt)
    else:
        reply = _write_questions(question, prompt)
    return orjson.dumps(_put_in_reasons(reply, prompt)).decode()


def _rate(prompt: Prompt) -> dict[str, Any]:
    """A rating of every criterion: the worked example's, else the least there is."""
    assert prompt.rubric is not None
    examples = _read_replies(prompt.opening)
    if examples:
        return dict(examples[0])
    forms = {"flag": lambda _: {"verdict": False}, "rating": lambda one: {"rating": one.min}}
    spread = {"spread": lambda one: {"scores": [{"score": one.min, "probability": 1}]}}
    return {
        name: {"reason": _REASON, **(forms | spread)[one.kind](one)} for name, one in prompt.rubric.criteria.items()
    }


def _write_questions(question: Question, prompt: Prompt) -> dict[str, Any]:
    """As many questions as were asked for, and different ones for each answer, as a model's would be."""
    examples = _read_replies(prompt.opening)
    texts = examples[0]["questions"] if examples and examples[0].get("questions") else [_QUESTION]
    mark = hash_canonical(plain_data(question.data))[:4]
    asked = islice(cycle(texts), int(str(question.data["count"])))
    numbered = [f"{text} {mark} {number}" for number, text in enumerate(asked)]
    return {"reason": _REASON, "noncommittal": False, "questions": numbered}


def _put_in_reasons(reply: dict[str, Any], prompt: Prompt) -> dict[str, Any]:
    reasons = cycle(_collect_reasons(prompt.opening) or [_REASON])
    if "verdicts" in reply:
        return {"verdicts": [verdict | {"reason": next(reasons)} for verdict in reply["verdicts"]]}
    return reply


@lru_cache(maxsize=64)
def _read_replies(opening: tuple[Any, ...]) -> tuple[Mapping[str, Any], ...]:
    """The replies of the worked examples."""
    return tuple(orjson.loads(message.content) for message in opening if message.role == "ai")


@lru_cache(maxsize=64)
def _collect_reasons(opening: tuple[Any, ...]) -> tuple[str, ...]:
    verdicts = [verdict for reply in _read_replies(opening) for verdict in reply.get("verdicts", ())]
    return tuple(verdict["reason"] for verdict in verdicts)
