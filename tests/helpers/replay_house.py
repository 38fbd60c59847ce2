"""A bot that can be given contexts, with regressions planted between two nights, question by question: what a replay
has to find out is known of each."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from cli_process import Place

from evalhouse.warehouse.store import Warehouse

BOT = '''\
"""The plant of a question holds from the second night on; random answers depend on `seed`."""

import json
import random
from collections import Counter
from pathlib import Path

asked = Counter()


def ask(question, sample_id, contexts=None, context_ids=None):
    state = json.loads(Path("state.json").read_text())
    number, plant = int(sample_id.partition("-")[2]), state["plants"][sample_id] if state["night"] > 1 else "nothing"
    with Path("asked.txt").open("a") as log:
        log.write(f"{sample_id} {contexts is not None}\\n")
    found = retrieve(number, plant) if contexts is None else dict(zip(context_ids, contexts))
    answer = next((text for text in found.values() if text.startswith(f"Berth {number} ")), "I do not know.")
    asked[question] += 1
    if plant.startswith("worse"):
        answer = "Please look at the harbour's own pages."
    elif plant.startswith("random"):
        drawn = random.Random(f"{question} {state['seed']} {asked[question]}").random()
        answer = answer if drawn < 0.5 else "I do not know."
    return {"answer": answer, "contexts": [{"id": name, "text": text} for name, text in found.items()]}


def retrieve(number, plant):
    right = {f"berths.md#{number}": f"Berth {number} takes ships of {number * 7} metres."}
    other = [{f"rules.md#{place}": f"Rule {place} asks every ship for paper {place}."} for place in range(1, 6)]
    if plant == "dropped":
        return other[2] | other[0] | other[1]
    if plant == "misled":
        return {f"news.md#{number}": f"Berth {number} takes no guests on Sundays."} | right | other[0]
    if plant == "edited":
        return {f"berths.md#{number}": f"Berth {number} takes no guests on Sundays."} | other[0] | other[1]
    if plant.endswith("and others"):
        return right | other[3] | other[4]
    return right | other[0] | other[1]
'''
PLANTS: Final = {
    "dropped": "retrieval", "misled": "retrieval", "edited": "retrieval", "worse": "generation",
    "worse and others": "generation", "random": "noise", "random and others": "noise",
}  # fmt: skip
"""The cause by the plant of a question."""
SUITE = """\
dataset = "berths.jsonl"
judge = "lexical"
metrics = ["factual_f1", "context_recall"]

[target]
callable = "harbour_bot:ask"
"""


@dataclass(frozen=True, kw_only=True)
class Harbour:
    """Two nights of a bot with so many questions of each plant; `plants` by sample."""

    place: Place
    plants: dict[str, str]

    def call(self, *arguments: str, status: int = 0) -> Any:  # noqa: ANN401  # JSON
        finished = self.place.call(*arguments, "--json")
        assert finished.status == status, finished.stderr
        return finished.document

    def set_night(self, night: int, seed: int) -> None:
        state = {"night": night, "seed": seed, "plants": self.plants}
        (self.place.folder / "state.json").write_text(json.dumps(state))

    def list_asked(self) -> list[str]:
        """The samples that the bot was asked about with contexts since the last call."""
        log = self.place.folder / "asked.txt"
        lines = log.read_text().splitlines() if log.exists() else []
        log.write_text("")
        return [name for name, given in map(str.split, lines) if given == "True"]

    def read(self, sql: str) -> list[dict[str, Any]]:
        return Warehouse(str(self.place.folder / "evalhouse.duckdb")).read_rows(sql)

    def find_document(self, sample_id: str) -> list[str]:
        """The document that a replay is to name."""
        number = sample_id.partition("-")[2]
        return {
            "dropped": [f"berths.md#{number} (dropped)"],
            "misled": [f"news.md#{number} (added)"],
            "edited": [f"berths.md#{number} (changed)"],
        }.get(self.plants[sample_id], [])


def build_harbour(folder: Path, prefect_home: Path, *, n_each: int) -> Harbour:
    """The folder of a suite after two nights, and before anything is replayed."""
    folder.mkdir()
    planted = [plant for plant in PLANTS for _ in range(n_each)]
    plants = {f"berth-{number}": plant for number, plant in enumerate([*planted, *["nothing"] * n_each], start=1)}
    rows = [
        {"id": name, "question": f"Which ships does berth {number} take?",
         "ground_truth": f"Berth {number} takes ships of {number * 7} metres."}
        for number, name in enumerate(plants, start=1)
    ]  # fmt: skip
    (folder / "berths.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (folder / "harbour_bot.py").write_text(BOT)
    (folder / "harbour.toml").write_text(SUITE)
    harbour = Harbour(place=Place(folder=folder, variables={"PREFECT_HOME": str(prefect_home)}), plants=plants)
    for night in (1, 2):
        harbour.set_night(night, seed=night)
        harbour.call("run", "harbour.toml")
    harbour.set_night(2, seed=3)
    harbour.list_asked()
    return harbour
