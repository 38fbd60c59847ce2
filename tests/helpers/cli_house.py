"""A small dataset with every kind of trouble in its texts, and the warehouse that two runs over it have filled."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cli_process import Finished, Place
from filelock import FileLock
from rows import derive_all

from evalhouse.warehouse.store import Warehouse

# Text that a terminal must not get unescaped: colours, a bell, a title, a one-byte sequence, text turned around.
HOSTILE = "\x1b[31mred\x1b[0m \x07 \x1b]0;title\x07 \x9b1m \u202eesrever"
MARKUP = "[bold]loud[/bold] [/red] [link=http://x]x[/link]"
HOSTILE_ID = "odd [red] $(touch pwned)"

ROWS: list[dict[str, Any]] = [
    {"id": "tide-1", "question": "When is high tide at Brankmouth?",
     "bot_reply": "High tide at Brankmouth is at 6 in the morning. The harbour is closed on Mondays.",
     "ground_truth": "High tide at Brankmouth is at 6 in the morning.",
     "contexts": ["The tables say that high tide at Brankmouth is at 6 in the morning.", "Gulls nest on the pier."],
     "harbour": "Brankmouth"},
    {"id": HOSTILE_ID, "question": f"What does {MARKUP} mean? {HOSTILE}",
     "bot_reply": f"It means {MARKUP}. {HOSTILE} The lamp is green.", "ground_truth": f"The lamp is green. {MARKUP}",
     "contexts": [f"The lamp is green. {MARKUP} {HOSTILE}"]},
    {"id": "zh-1", "question": "灯塔有多高？",
     "bot_reply": "灯塔高四十二米，建于一八九〇年，至今仍由守塔人每晚点亮，照亮整个海湾和附近的渔村。",
     "ground_truth": "灯塔高四十二米。", "contexts": ["这座灯塔高四十二米，位于海湾的北端。"]},
    {"id": "silent-1", "question": "Who keeps the light?", "ground_truth": "Maud Tregarthen keeps the light."},
    {"id": "left-out", "question": "Is this row beyond the limit?", "ground_truth": "Yes, it is."},
]  # fmt: skip
N_JUDGED = 4

ECHO_METRIC = """\
-- metric: answer_length
-- version: 3
-- needs: -
-- parameter: per = 1
-- One row per sample of the run: characters of the answer over `per`; NULL without an answer.
select run_samples.run_id, run_samples.sample_id, length(samples.answer) / $per as value,
       case when samples.answer is null then 'no_answer' end as unscored_reason
from run_samples
join samples using (sample_id, input_hash)
where run_samples.run_id = $run_id
"""


@dataclass(frozen=True, kw_only=True)
class House:
    """A place with a warehouse, and how the two runs that filled it ended: `first` with --json, `second` without."""

    place: Place
    first: Finished
    second: Finished

    @property
    def run_id(self) -> str:
        """The first run's."""
        return str(self.first.document["run_id"])

    @property
    def path(self) -> Path:
        return self.place.folder / "evalhouse.duckdb"


def write_dataset(folder: Path, rows: list[dict[str, Any]], name: str = "harbour.jsonl") -> Path:
    path = folder / name
    path.write_text("".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows), encoding="utf-8")
    return path


def place_at(folder: Path, prefect_home: Path, base_url: str, *, n_rows: int = 0, key: str = "sk-test") -> Place:
    """A folder whose commands ask the endpoint there, with as many rows in `berths.jsonl`, if any."""
    if n_rows:
        write_dataset(folder, make_rows(n_rows), "berths.jsonl")
    variables = {"PREFECT_HOME": str(prefect_home), "OPENAI_BASE_URL": base_url, "OPENAI_API_KEY": key}
    return Place(folder=folder, variables=variables)


def write_metric(folder: Path) -> Path:
    own = folder / "own_metrics"
    own.mkdir(exist_ok=True)
    (own / "answer_length.sql").write_text(ECHO_METRIC, encoding="utf-8")
    return own


def copy_house(folder: Path, prefect_home: Path) -> House:
    """A copy of the session's one house in this folder, where there must be nothing."""
    template = prefect_home.parent / "house"
    report = template.with_suffix(".json")
    with FileLock(template.with_suffix(".lock")):
        if not report.exists():
            template.mkdir()
            built = _build_house(template, prefect_home)
            report.write_text(json.dumps([asdict(built.first), asdict(built.second)]), encoding="utf-8")
    shutil.copytree(template, folder)
    message = report.read_text(encoding="utf-8").replace(str(template), str(folder))
    first, second = (Finished(**ended) for ended in json.loads(message))
    return House(place=_make_place(folder, prefect_home), first=first, second=second)


def _make_place(folder: Path, prefect_home: Path) -> Place:
    return Place(folder=folder, variables={"PREFECT_HOME": str(prefect_home)})


def _build_house(folder: Path, prefect_home: Path) -> House:
    """Two equal runs in a fresh folder, as a newcomer without a key would make them."""
    place = _make_place(folder, prefect_home)
    write_dataset(folder, ROWS)
    dataset = ("harbour.jsonl", "--map", "answer=bot_reply", "--limit", str(N_JUDGED))
    named = ("--label", "first night", "--href", "https://example.org/c/1", "--tag", "a", "--tag", "b")
    first = place.call("run", *dataset, "--json", *named)
    second = place.call("run", *dataset)
    return House(place=place, first=first, second=second)


def make_rows(number: int, *, first: int = 1) -> list[dict[str, Any]]:
    """Samples about ships and berths, no two of which share a text."""
    return [
        {
            "id": f"berth-{place}",
            "question": f"Which ship lies at berth {place}?",
            "answer": f"Ship number {place * 7} lies at berth {place}. It came on day {place}.",
            "ground_truth": f"Ship number {place * 7} lies at berth {place}.",
            "contexts": [f"The list says that ship number {place * 7} lies at berth {place}.",
                         f"Shop {place} sells ropes."],
        }
        for place in range(first, first + number)
    ]  # fmt: skip


def store_all(path: Path | str) -> None:
    """Derive means, causes and costs of all runs of a warehouse."""
    with Warehouse(str(path)).writing() as connection:
        derive_all(connection)


def copy_stored_house(folder: Path, prefect_home: Path) -> House:
    """A copy of the house in this folder, where there must be nothing; what is stored is computed once a session."""
    house = copy_house(folder, prefect_home)
    template = prefect_home.parent / "stored.duckdb"
    with FileLock(template.with_suffix(".lock")):
        if not template.exists():
            store_all(house.path)
            shutil.copy(house.path, template)
    shutil.copy(template, house.path)
    return house
