"""Measure the agreement of a judge's preferences with people's, on labelled sets of pairs.

    python tests/benchmarks/preferences.py DATA/ragchecker_pairs … [--judge lexical] [--warehouse FILE]

Each folder holds `dev.jsonl` with `question`, `answer_a`, `answer_b` and the people's `preference` a | b | tie; a
`ground_truth` where one is known, `group` where pairs belong together, and under `annotators` a list `overall` where
several people gave their own preference, from -2 (a) to 2 (b). It asks as `evalhouse prefer FILE --columns
answer_a,answer_b` does, in both orders, and nothing that the warehouse has already.
"""

import argparse
import contextlib
import io
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from evalhouse.flows.cli import evalhouse
from evalhouse.flows.results.output import make_table, print_line, print_table, write_interval
from evalhouse.tasks.comparing.paired import measure_mean, number_groups

Row = Mapping[str, Any]
_SIDES = {"base": "a", "candidate": "b", "tie": "tie"}


def ask(path: Path, judge: str, warehouse: str) -> Any:  # noqa: ANN401  # the command's document
    """Return the command's result for a set."""
    written = io.StringIO()
    arguments = ("prefer", str(path), "--columns", "answer_a,answer_b", "--judge", judge, "--warehouse", warehouse)
    with contextlib.redirect_stdout(written):
        evalhouse.main(args=[*arguments, "--json"], standalone_mode=False)
    return orjson.loads(written.getvalue())


def join(rows: Sequence[Row], document: Any) -> list[dict[str, Any]]:  # noqa: ANN401  # as above
    """Each labelled pair that the judge has a preference for, with both."""
    found = {sample["sample_id"]: sample for sample in document["samples"] if sample["winner"] is not None}
    return [
        {"sample_id": str(row["id"]), "cluster": row.get("group"), "people": row["preference"],
         "judge": _SIDES[found[row["id"]]["winner"]], "annotators": list_annotators(row)}
        for row in rows
        if row["id"] in found
    ]  # fmt: skip


def list_annotators(row: Row) -> list[str]:
    """Return the preference of each person, as one of the three labels."""
    given = (row.get("annotators") or {}).get("overall", ())
    return ["tie" if value == 0 else "b" if value > 0 else "a" for value in given]


def measure(rows: Sequence[Row], name: str, agrees: Callable[[Row], float]) -> list[object]:
    """A line of the table: the mean of what `agrees` says of each row, with its interval."""
    values = np.array([agrees(row) for row in rows], dtype=np.float64)
    found = measure_mean(values, number_groups(rows))
    return [name, len(rows), found.value, write_interval(found.ci_low, found.ci_high)]


def agree(one: str, other: str) -> float:
    """1 for the same label."""
    return float(one == other)


def take_side(one: str, people: str) -> float:
    """1 for the side that people prefer, half for a tie."""
    return 0.5 if one == "tie" else float(one == people)


def print_set(folder: Path, judge: str, warehouse: str) -> None:
    """The figures of one set."""
    rows = [orjson.loads(line) for line in (folder / "dev.jsonl").read_bytes().splitlines()]
    document = ask(folder / "dev.jsonl", judge, warehouse)
    joined = join(rows, document)
    decided = [row for row in joined if row["people"] != "tie"]
    undecided = [row for row in joined if row["people"] == "tie"]
    sure = [row for row in decided if row["judge"] != "tie"]
    several = [row for row in joined if len(row["annotators"]) > 1]
    lines = [
        measure(joined, "the same of a, b, tie", lambda row: agree(row["judge"], row["people"])),
        measure(decided, "people prefer one: its side, a tie half", lambda row: take_side(row["judge"], row["people"])),
        measure(sure, "people and judge prefer one: the same", lambda row: agree(row["judge"], row["people"])),
        measure(undecided, "people have a tie: the judge too", lambda row: agree(row["judge"], "tie")),
        measure(several, "two people: the same of a, b, tie", lambda row: agree(*row["annotators"][:2])),
    ]  # fmt: skip
    place = document["position"]
    print_table(make_table(["agreement", "#pairs", "#share", "95 % interval"], lines, title=f"{folder.name}, {judge}"))
    print_line(
        f"orders agree on {place['agreement']['value']:.3f}, the order decided {place['order_decided']['value']:.3f}, "
        f"points of the first place {place['first_place']['value']:.3f}; {document['n_identical']} pairs are the same"
    )


def main() -> None:
    """The figures of each set that is named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--judge", default="lexical")
    parser.add_argument("--warehouse")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        for folder in options.folders:
            print_set(folder, options.judge, options.warehouse or f"{scratch}/preferences.duckdb")


if __name__ == "__main__":
    main()
