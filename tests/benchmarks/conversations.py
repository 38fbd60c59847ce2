"""Metrics of answers in conversations beside what people say of them, by turn and pooled.

    python tests/benchmarks/conversations.py DATA/mtrag_human [WAREHOUSE]

The folder holds `dev.jsonl`: rows with `conversation`, `scores` (a list of ratings by dimension) and `judges` (recorded
scores by judge). All is judged with the lexical judge, once in its conversation and once as if each question came
alone; the warehouse (a temporary one where none is named) keeps both runs. Printed is Spearman's rank correlation with
the mean of the people's ratings.
"""

import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from evalhouse.flows.results.output import make_table, print_line, print_table
from evalhouse.tasks.comparing.agreement import weigh_spearman
from evalhouse.warehouse.store import Warehouse

Row = Mapping[str, Any]
METRICS = ("faithfulness", "factual_f1", "answer_correctness", "turn_consistency", "context_retention")
DIMENSIONS = ("faithfulness", "appropriateness", "completeness")
JUDGES = ("rl_f", "rb_llm", "RougeL", "Bert-KPrec")
_FEWEST = 10
_ROLES = {"agent": "assistant"}


def count_turn(row: Row) -> int:
    """The number of the user's question, from 1."""
    return 1 + sum(turn["role"] == "user" for turn in row["conversation"])


PARTS: Mapping[str, Callable[[int], bool]] = {
    "all": lambda turn: True,
    "turn 1": lambda turn: turn == 1,
    "2 to 3": lambda turn: turn in (2, 3),
    "4 to 6": lambda turn: turn in (4, 5, 6),
    "from 7": lambda turn: turn > 6,
}


def write_samples(rows: Sequence[Row], path: Path, *, with_conversation: bool) -> Path:
    """The rows as a dataset; the rows of a conversation are one group."""
    kept = ("id", "question", "answer", "ground_truth", "contexts")
    lines = []
    for row in rows:
        turns = [{**turn, "role": _ROLES.get(turn["role"], turn["role"])} for turn in row["conversation"]]
        more = {"conversation_id": row["group"], "turn": count_turn(row)}
        lines.append(
            {**{name: row[name] for name in kept}, **more, "conversation": turns if with_conversation else None}
        )
    path.write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines))
    return path


def judge(dataset: Path, warehouse: str) -> dict[str, dict[str, float | None]]:
    """Scores by metric and sample."""
    command = ["evalhouse", "run", str(dataset), "--judge", "lexical", "--metrics", ",".join(METRICS), "--json"]
    finished = subprocess.run([*command, "--warehouse", warehouse], check=True, stdout=subprocess.PIPE)
    run_id = orjson.loads(finished.stdout)["run_id"]
    query = "select metric, sample_id, value from scores where run_id = $run_id"
    scores: dict[str, dict[str, float | None]] = {}
    for row in Warehouse(warehouse).read_rows(query, {"run_id": run_id}):
        scores.setdefault(str(row["metric"]), {})[str(row["sample_id"])] = row["value"]
    return scores


def correlate(rows: Sequence[Row], score: Callable[[Row], float | None], dimension: str) -> str:
    """Spearman's correlation and how many rows it is of; a dash where these are few."""
    pairs = [(value, float(np.mean(row["scores"][dimension]))) for row in rows if (value := score(row)) is not None]
    if len(pairs) < _FEWEST or len({value for value, _ in pairs}) == 1:
        return "–"
    firsts, seconds = ([pair[side] for pair in pairs] for side in (0, 1))
    (value,) = weigh_spearman(firsts, seconds)(np.ones((1, len(pairs))))
    return f"{value:.2f} ({len(pairs)})"


def main(folder: Path, warehouse: str) -> None:
    """Judge both ways and print a table for each dimension."""
    rows = [orjson.loads(line) for line in (folder / "dev.jsonl").read_bytes().splitlines()]
    scorers: dict[str, Callable[[Row], float | None]] = {}
    for what, with_conversation in (("in conversation", True), ("alone", False)):
        path = write_samples(
            rows, folder_of(warehouse) / f"{what.replace(' ', '-')}.jsonl", with_conversation=with_conversation
        )
        for metric, scores in judge(path, warehouse).items():
            if any(value is not None for value in scores.values()):
                scorers[f"{metric}, {what}"] = lambda row, scores=scores: scores.get(row["id"])  # type: ignore[misc]
    for name in JUDGES:
        scorers[f"recorded: {name}"] = lambda row, name=name: row["judges"].get(name)  # type: ignore[misc]
    for dimension in DIMENSIONS:
        print_line(
            f"\n{dimension}: correlation with the mean rating of {len(rows[0]['scores'][dimension])} people (rows)"
        )
        table = [
            [
                name,
                *(
                    correlate([row for row in rows if fits(count_turn(row))], score, dimension)
                    for fits in PARTS.values()
                ),
            ]
            for name, score in scorers.items()
        ]
        print_table(make_table(["score", *(f"#{part}" for part in PARTS)], table))


def folder_of(warehouse: str) -> Path:
    """The folder of the datasets, beside the warehouse."""
    return Path(warehouse).parent


if __name__ == "__main__":
    if len(sys.argv) > 2:
        main(Path(sys.argv[1]), sys.argv[2])
    else:
        with tempfile.TemporaryDirectory() as scratch:
            main(Path(sys.argv[1]), f"{scratch}/w.duckdb")
