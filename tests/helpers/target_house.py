"""Shared by the tests of targets: a folder of documents, and one question asked."""

from pathlib import Path
from typing import Any

from evalhouse.tasks.settings.suite import TargetSettings
from evalhouse.tasks.targets.collection import make_target
from evalhouse.tasks.targets.protocol import Response, TargetQuestion

DOCUMENTS = {
    "paris.txt": "Paris is the capital of France. It lies on the Seine.\n\nThe Eiffel Tower is 330 metres tall.\n",
    "wall.md": "长城全长超过两万公里。它始建于春秋时期。\n",
}
TALL = "How tall is the Eiffel Tower?"
TALL_ANSWER = "The Eiffel Tower is 330 metres tall."


def write_documents(folder: Path) -> Path:
    """A folder with documents for the bot."""
    documents = folder / "documents"
    documents.mkdir()
    for name, text in DOCUMENTS.items():
        (documents / name).write_text(text, encoding="utf-8")
    return documents


def pose(text: str = TALL, *, sample_id: str = "s1", **metadata: Any) -> TargetQuestion:  # noqa: ANN401
    """A question as a sample has it."""
    return TargetQuestion(sample_id=sample_id, question=text, metadata=metadata)


async def ask_once(question: TargetQuestion | str = TALL, /, **settings: Any) -> Response:  # noqa: ANN401
    """Ask one question to a new target."""
    target = make_target(TargetSettings(**settings))
    try:
        return await target.ask(question if isinstance(question, TargetQuestion) else pose(question))
    finally:
        await target.close()
