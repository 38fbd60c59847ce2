"""Recorded judgements beside people's labels, through the statistics of `review agreement`.

    python tests/benchmarks/recorded_agreement.py DATA/openqa_nq301_correctness DATA/mtrag_human …

Each folder holds `dev.jsonl` and a README.md that says how many rows and labels it has; what it states is printed
beside what is found here, or a note that it states none. Rows that share a `group` are one cluster.
The labels are brought to two: supported is what people accept (correct, factual, fully supported, rated 3 or 4 of 4).
"""

import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson
import polars as pl

from evalhouse.flows.results.output import make_table, print_line, print_table, write_interval, write_number
from evalhouse.tasks.comparing.agreement import Measure, measure_judge, measure_people

Row = Mapping[str, Any]
Labels = tuple[str, bool | None, list[bool]]
_SCHEMA = {
    "run_id": pl.String, "sample_id": pl.String, "step": pl.String, "statement_id": pl.String, "context_rank": pl.Int64,
    "judge_label": pl.String, "label": pl.String, "reviewer": pl.String, "weight": pl.Float64,
}  # fmt: skip


def read_openqa(row: Row, _: Path) -> Iterator[Labels]:
    """Two annotators, and a third where they differ. The first word of a judge's reply is its verdict."""
    votes = [vote == "Yes" for vote in row["annotators"][:2]]
    yield "annotators", None, votes
    for judge, text in row["llm_judges"].items():
        word = re.match(r"\W*(yes|no)\b", text or "", re.IGNORECASE)
        yield judge, word and word[1].lower() == "yes", [row["label"] == "correct"]


def read_mtrag(row: Row, _: Path) -> Iterator[Labels]:
    """Three annotators, 1 to 4; `rl_f` and `rb_llm` are recorded judges from 0 to 1, taken as yes from 0.5."""
    for dimension in ("faithfulness", "appropriateness", "completeness"):
        yield f"annotators, {dimension}", None, [score >= 3 for score in row["scores"][dimension]]
    for judge, dimension in (("rl_f", "faithfulness"), ("rb_llm", "completeness")):
        score = row["judges"].get(judge)
        yield judge, None if score is None else score >= 0.5, [one >= 3 for one in row["scores"][dimension]]


def read_wice(row: Row, folder: Path) -> Iterator[Labels]:
    """The recorded models' last answer, against the crowd's label if the claim is in the set beside it."""
    gold = _read_wice_labels(folder.parent / "wice_support")
    answer = re.findall(r"<answer>\s*(\w+)\s*</answer>", row["output"])
    if row["statement"] in gold:
        yield row["model"], answer[-1] == "supported" if answer else None, [gold[row["statement"]] == "supported"]


def read_factool(row: Row, _: Path) -> Iterator[Labels]:
    """GPT-4's verdict on the whole answer, against the project's own."""
    if row["human_factuality"] is not None:
        yield "gpt-4 with search", row["response_verdict"], [row["human_factuality"]]


READERS: Mapping[str, Callable[[Row, Path], Iterator[Labels]]] = {
    "openqa_nq301_correctness": read_openqa, "mtrag_human": read_mtrag, "wice_llm_outputs": read_wice,
    "factool_llm_outputs_zh": read_factool,
}  # fmt: skip


def _read_rows(folder: Path) -> list[Row]:
    return [orjson.loads(line) for line in (folder / "dev.jsonl").read_bytes().splitlines()]


def _read_wice_labels(folder: Path) -> dict[str, str]:
    if folder not in _gold:
        _gold[folder] = {row["statement"]: row["label"] for row in _read_rows(folder)}
    return _gold[folder]


_gold: dict[Path, dict[str, str]] = {}


def read_frames(folder: Path) -> tuple[dict[str, pl.DataFrame], Counter[str]]:
    """Return for each judge and group of annotators a frame for `review agreement`; and replies without a verdict."""
    rows: dict[str, list[dict[str, object]]] = {}
    unread: Counter[str] = Counter()
    for place, row in enumerate(_read_rows(folder)):
        for judge, verdict, people in READERS[folder.name](row, folder):
            if verdict is None and not judge.startswith("annotators"):
                unread[judge] += 1
                continue
            rows.setdefault(judge, []).extend(
                {
                    "run_id": judge,
                    "sample_id": row["group"],
                    "step": "attribute",
                    "statement_id": str(place),
                    "judge_label": _word(bool(verdict)),
                    "label": _word(one),
                    "reviewer": f"person {number}",
                    "weight": 1.0,
                }
                for number, one in enumerate(people, start=1)
            )
    return {judge: pl.DataFrame(found, schema=_SCHEMA) for judge, found in rows.items()}, unread


def _word(is_accepted: bool) -> str:
    return "supported" if is_accepted else "unsupported"


def show(folder: Path) -> None:
    """Print what the README states, what is found, and the agreement."""
    rows = _read_rows(folder)
    readme = (folder / "README.md").read_text(encoding="utf-8")
    stated = dict(re.findall(r"^- (rows|label counts|human labels): (.*)$", readme, re.MULTILINE))
    groups = len({row["group"] for row in rows})
    counts = dict(Counter(row["label"] for row in rows)) if "label" in rows[0] else {"-": len(rows)}
    print_line(f"\n{folder.name}", bold=True)
    print_line(f"README: {stated['human labels']}")
    found = {"rows": f"dev {len(rows)} ({groups} groups)", "label counts": orjson.dumps(counts).decode()}
    print_table(
        make_table(
            ["", "README", "here", "same"],
            [[name, stated[name], here, _strip(stated[name]) == _strip(here)] for name, here in found.items()],
        )
    )
    names = re.findall(r"kappa|alpha|accuracy|agreement", readme, re.IGNORECASE)
    print_line("README states no agreement figure" if not names else f"README speaks of {', '.join(names)}")
    frames, unread = read_frames(folder)
    print_table(
        make_table(["", "#labels", "accuracy", "balanced", "κ", "α", "mind"], list(_list_cells(frames, unread)))
    )


def _strip(text: str) -> str:
    return "".join(sorted(re.sub(r"\s", "", text)))


def _list_cells(frames: Mapping[str, pl.DataFrame], unread: Counter[str]) -> Iterator[Sequence[object]]:
    for judge, frame in frames.items():
        if judge.startswith("annotators"):
            people = measure_people(frame, "attribute")
            kappa = people.pairs[0].agreement.kappa if len(people.pairs) == 1 else None
            shown = [_write(people.agreeing), None, kappa and _write(kappa), _write(people.alpha)]
            yield [judge, people.n_labels, *shown, "; ".join(people.notes) or None]
            continue
        found = measure_judge(frame, "attribute")
        shown = [_write(one) for one in (found.accuracy, found.balanced_accuracy, found.kappa, found.alpha)]
        notes = [*found.notes, *([f"{unread[judge]} replies hold no verdict"] if unread[judge] else [])]
        yield [f"{judge} against people", found.n_labels, *shown, "; ".join(notes) or None]


def _write(measure: Measure) -> str:
    if measure.value is None:
        return "–"
    return f"{write_number(measure.value)} ({write_interval(measure.ci_low, measure.ci_high)})"


def main() -> None:
    folders = [Path(name) for name in sys.argv[1:]]
    unknown = [folder.name for folder in folders if folder.name not in READERS]
    if unknown or not folders:
        sys.exit(f"give folders of {', '.join(READERS)}; got {', '.join(unknown) or 'none'}")
    for folder in folders:
        show(folder)


if __name__ == "__main__":
    main()
