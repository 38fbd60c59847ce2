"""Replies to rubrics and to the wish for questions, in the shape that was asked for, for the local endpoint's script.

The endpoint fills a schema without knowing what it means; a rubric's reply must also hold together.
"""

from __future__ import annotations

from typing import Any

from endpoint import Asked
from endpoint_replies import fill_schema


def fill_reply(asked: Asked, *, question: str = "", reason: str = "") -> dict[str, Any]:
    """The lowest rating of each criterion, true for each flag, and as many questions as were asked for.

    `question` is written that often, `reason` wherever a reason is wanted; both are the endpoint's own words if empty.
    """
    filled: dict[str, Any] = fill_schema(asked.body["response_format"]["json_schema"]["schema"])
    if "questions" in filled:
        count = int(asked.blocks["count"])
        filled |= {"noncommittal": False, "questions": [question or filled["questions"][0]] * count}
    for entry in (filled, *(value for value in filled.values() if isinstance(value, dict))):
        if "scores" in entry:
            entry["scores"] = [{"score": entry["scores"][0]["score"], "probability": 1.0}]
        if reason and "reason" in entry:
            entry["reason"] = reason
    return filled
