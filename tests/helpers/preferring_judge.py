"""A judge that prefers by a rule of the test, for `--judge preferring_judge:make`: `settings` says which, `asked` keeps
the last message of each request. It shares no code with the project: blocks are read as a stranger reads them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult

Blocks = dict[str, str]
_BLOCK = re.compile(r"^<(?P<name>[a-z_]+) (?P<code>[0-9a-f]{8})>\n(?P<body>.*?)^</(?P=name) (?P=code)>$", re.S | re.M)
asked: list[str] = []


def prefer_truth(blocks: Blocks) -> str:
    """Prefer the answer that contains the ground truth."""
    truth = blocks["ground_truth"].strip()
    first, second = (truth in blocks[name] for name in ("first_answer", "second_answer"))
    return "tie" if first == second else "first" if first else "second"


settings: dict[str, Any] = {"rule": prefer_truth, "criterion": "preference"}


def use(rule: Callable[[Blocks], str], criterion: str = "preference") -> list[str]:
    """Prefer by this rule from now on; returns what will be asked."""
    settings.update(rule=rule, criterion=criterion)
    asked.clear()
    return asked


def read(content: str) -> Blocks:
    return {found["name"]: found["body"] for found in _BLOCK.finditer(content)}


class PreferringModel(BaseChatModel):
    """Replies as its rule says; a rule that raises breaks the model."""

    model_name: str = "preferring-1"

    @property
    def _llm_type(self) -> str:
        return "preferring"

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:  # noqa: ANN401
        content = str(messages[-1].content)
        asked.append(content)
        verdict = settings["rule"](read(content))
        reply = {settings["criterion"]: {"reason": f"The rule says {verdict}.", "verdict": verdict}}
        return ChatResult(generations=[ChatGeneration(message=AIMessage(content=json.dumps(reply)))])


def make() -> PreferringModel:
    return PreferringModel()
