"""A harbour's bot and the suite that asks it: documents, questions, and a place to call commands in."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cli_process import Place
from rag_bot import RagBot, start_rag_bot

from evalhouse.warehouse.store import Warehouse

DOCUMENTS = {
    "lock.txt": "The lock at Brankmouth is 7 metres deep. It opens at 6 in the morning.",
    "mayor.txt": "The mayor is Maud Tregarthen. She was elected in 2019.",
    "light.txt": "The lighthouse stands 42 metres tall.\n\nThe lighthouse was built in 1890.",
}
QUESTIONS: list[dict[str, Any]] = [
    {"id": "lock", "question": "How deep is the lock?", "ground_truth": "The lock is 7 metres deep.", "answer": "Old."},
    {"id": "mayor", "question": "Who is the mayor?", "ground_truth": "The mayor is Maud Tregarthen."},
    {"id": "light", "question": "How tall is the lighthouse?", "ground_truth": "The lighthouse is 42 metres tall."},
    {"id": "built", "question": "In which year was the lighthouse built?", "ground_truth": "It was built in 1890."},
]
N = len(QUESTIONS)
SUITE = """\
dataset = "harbour.jsonl"
judge = "lexical"
metrics = ["factual_f1", "faithfulness", "context_recall", "context_precision"]

[target]
url = "{url}"
contexts = "$.contexts[*].text"
context_ids = "$.contexts[*].id"
attempts = 1
concurrency = {concurrency}

[trigger]
knowledge_base = "harbour"
only_affected = true
"""


@dataclass(frozen=True, kw_only=True)
class Harbour:
    """A folder with the suite `harbour.toml`, and the bot that it asks."""

    place: Place
    bot: RagBot

    @property
    def warehouse(self) -> Warehouse:
        return Warehouse(str(self.place.folder / "evalhouse.duckdb"))

    def read(self, sql: str, **parameters: object) -> list[dict[str, Any]]:
        return self.warehouse.read_rows(sql, parameters)

    def change_document(self, name: str, text: str) -> None:
        (self.bot.folder / name).write_text(text, encoding="utf-8")

    def write_questions(self, rows: list[dict[str, Any]]) -> None:
        lines = "".join(f"{json.dumps(row)}\n" for row in rows)
        (self.place.folder / "harbour.jsonl").write_text(lines, encoding="utf-8")


def build_harbour(folder: Path, variables: dict[str, str], *, concurrency: int = 4, **options: Any) -> Harbour:  # noqa: ANN401
    """Make the folder and a running bot with these options; the caller stops the bot."""
    documents = folder / "documents"
    documents.mkdir(parents=True)
    for name, text in DOCUMENTS.items():
        (documents / name).write_text(text, encoding="utf-8")
    bot = start_rag_bot(documents, **options)
    (folder / "harbour.toml").write_text(SUITE.format(url=bot.url, concurrency=concurrency), encoding="utf-8")
    harbour = Harbour(place=Place(folder=folder, variables=variables), bot=bot)
    harbour.write_questions(QUESTIONS)
    return harbour
