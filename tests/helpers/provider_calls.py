"""Questions to a judge one at a time, to see the result of a provider's answer to each."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from live_runs import PROMPTS, lay_out_run, make_settings

from evalhouse.tasks.asking.verdicts import read_statements
from evalhouse.tasks.judge.protocol import Question

KEY = "sk-test-0123456789"
GOOD = ["It is red.", "Its number is 1."]


def make_question(number: int = 1, **changes: Any) -> Question:  # noqa: ANN401  # fields of Question
    data = {"question": f"Number {number}?", "text": f"It is red. Its number is {number}."}
    return Question(
        **{"step": "extract_answer", "sample_id": f"s{number}", "prompt": PROMPTS["extract"], "data": data, **changes}
    )


async def ask(folder: Path, *questions: Question, run_id: str = "run-1", **settings: Any) -> list[Any]:  # noqa: ANN401
    """Ask one after the other; a value or an error for each."""
    async with lay_out_run(folder, make_settings(**settings), run_id=run_id) as live_run:
        asked = (live_run.asker.ask(question, read_statements) for question in questions or (make_question(),))
        results = [(await asyncio.gather(one, return_exceptions=True))[0] for one in asked]
    return [result if isinstance(result, BaseException) else result.value for result in results]
