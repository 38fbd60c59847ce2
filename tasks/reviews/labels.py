"""The labels that people give: the lines of a CSV or JSON Lines file that holds some, and how they come into `reviews`.

A CSV file may have gone through a spreadsheet, which chooses its own delimiter and leaves a byte order mark. Every line
is checked before any is written, and nothing is ever overwritten. A line says which verdict it means by `export_id` and
`item_hash`, as an export wrote them, or by `run_id`, `sample_id`, `step` and `statement_id` or `context_rank`, for
labels made elsewhere. Stratum and probability come from the record of the export and never from the file.
"""

import csv
import hashlib
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import orjson

from evalhouse.warehouse.rows.reviews import Review, add_reviews
from evalhouse.warehouse.rows.runs import now_utc
from evalhouse.warehouse.steps import REVIEWED_PROMPTS, collect_labels
from evalhouse.warehouse.store import Warehouse

_LINES = (".jsonl", ".ndjson", ".json")
_TABLES = (".csv", ".tsv", ".txt")
_DELIMITERS = (",", ";", "\t")
_LARGEST_CELL = 2**31 - 1
"""All contexts of a sample stand in one cell; Python's own limit is 131,072 characters."""
_MOST_PROBLEMS: Final = 40


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of a file; empty values are left out, all others are texts without blanks around them."""

    place: str
    values: Mapping[str, str]

    def get(self, name: str) -> str | None:
        """A value, None where the line has none."""
        return self.values.get(name)


@dataclass(frozen=True, kw_only=True)
class LabelFile:
    """A file's lines, the problems found while reading them, and a hash of its bytes."""

    name: str
    digest: str
    lines: tuple[Line, ...]
    problems: tuple[str, ...]


def read_label_file(path: Path) -> LabelFile:
    """Read a file; raises ReviewError when it is not a file of labels, OSError when it cannot be read."""
    content = path.read_bytes()
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ReviewError(f"{path} is not UTF-8 (byte {error.start}); save it as CSV UTF-8") from None
    start = text.lstrip()[:200]
    if start.startswith("<"):
        raise ReviewError(f"{path} is the page itself; import the .jsonl file that its Download button writes")
    if not start:
        raise ReviewError(f"{path} is empty")
    suffix = path.suffix.lower()
    is_lines = suffix in _LINES or (suffix not in _TABLES and start.startswith("{"))
    lines: list[Line] = []
    problems: list[str] = []
    # Not splitlines: a text may hold other separators, which JSON leaves as they are.
    for number, row in read_objects(text.split("\n")) if is_lines else _read_table(text, path):
        place = f"{path} line {number}"
        if isinstance(row, str):
            problems.append(f"{place}: {row}")
        else:
            lines.append(Line(place=place, values=_clean(row)))
    digest = hashlib.sha256(content).hexdigest()
    return LabelFile(name=str(path), digest=digest, lines=tuple(lines), problems=tuple(problems))


def read_objects(lines: Iterable[str | bytes]) -> Iterator[tuple[int, dict[str, Any] | str]]:
    """The objects of JSON Lines by line number, or what is wrong with a line; empty lines are passed over."""
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            value = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            yield number, f"is not valid JSON ({error})"
            continue
        yield number, value if isinstance(value, dict) else "is not a JSON object"


def _read_table(text: str, path: Path) -> Iterator[tuple[int, dict[str, Any] | str]]:
    header = text.lstrip().split("\n", 1)[0]
    delimiter = max(_DELIMITERS, key=header.count)
    limit = csv.field_size_limit(_LARGEST_CELL)
    try:
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
        names = [name.strip() for name in next(reader)]
        if "label" not in names:
            raise ReviewError(f"{path} has no column label; it has {', '.join(names)}")
        begins = reader.line_num + 1
        for cells in reader:
            number, begins = begins, reader.line_num + 1
            if len(cells) > len(names):
                yield number, f"has {len(cells)} cells, but there are {len(names)} columns"
            elif cells:
                yield number, dict(zip(names, cells, strict=False))
    except csv.Error as error:
        raise ReviewError(f"{path} is not valid CSV ({error})") from None
    finally:
        csv.field_size_limit(limit)


def _clean(row: Mapping[str, Any]) -> dict[str, str]:
    texts = {
        name: str(value).strip() for name, value in row.items() if value is not None and not isinstance(value, bool)
    }
    return {name: text for name, text in texts.items() if text}


class ReviewError(Exception):
    """An export or import that cannot be done; says why, and what to do."""


def list_problems(opening: str, problems: Sequence[str]) -> ReviewError:
    """All problems in one error, each on a line of its own; of very many the first ones and how many there are."""
    more = len(problems) - _MOST_PROBLEMS
    shown = [*problems[:_MOST_PROBLEMS], *([f"and {more} more"] if more > 0 else [])]
    return ReviewError("\n".join([opening, *(f"  {problem}" for problem in shown)]))


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A label and what giving it says."""

    label: str
    meaning: str


def list_choices(step: str, source: str | None) -> tuple[Choice, Choice]:
    """The labels of a step, the one that says yes first; in `classify` they depend on the statement's text."""
    by_letter = collect_labels(step)
    labels = by_letter["G"] if source == "ground_truth" and step == "classify" else next(iter(by_letter.values()))
    yes, no = (Choice(label=label, meaning=meaning) for label, meaning in labels.items())
    return (yes, no)


def list_labels(step: str, source: str | None) -> tuple[str, str]:
    """Their names alone."""
    yes, no = list_choices(step, source)
    return (yes.label, no.label)


def find_label(step: str, source: str | None, word: str) -> str | None:
    """The label a person means by a word, whatever its case and whether it has blanks; None for another word."""
    folded = "_".join(word.casefold().replace("-", " ").replace("_", " ").split())
    return next((label for label in list_labels(step, source) if label.casefold() == folded), None)


_VERDICT = ("run_id", "sample_id", "step", "statement_id", "context_rank")
_OF_RECORD = (*_VERDICT, "probability", "stratum", "item_hash", "question_hash", "judge_label", "export_id")
_LONGEST_NAME, _LONGEST_NOTE = 100, 2000
_FUTURE = timedelta(days=1)  # clocks go wrong by hours and time zones, not by more
_HOW = "name it by export_id and item_hash, or by run_id, sample_id, step and statement_id (in step rank: context_rank)"


class LineError(Exception):
    """What is wrong with one line."""


@dataclass(frozen=True, kw_only=True)
class Imported:
    """How an import went: `read` are the labels in the files, of which `new` were not on record."""

    n_unlabelled: int
    read: tuple[Review, ...]
    new: tuple[Review, ...]

    @property
    def n_known(self) -> int:
        """Labels that were on record already."""
        return len(self.read) - len(self.new)


@dataclass(frozen=True, kw_only=True)
class _Record:
    """What the warehouse knows of the verdicts that the files name."""

    picks: Mapping[tuple[str, str], Mapping[str, Any]]
    verdicts: Mapping[tuple[str | None, ...], Mapping[str, Any]]
    exports: frozenset[str]
    runs: frozenset[str]


def import_reviews(warehouse: Warehouse, files: Sequence[LabelFile], reviewer: str | None) -> Imported:
    """Take labels in; `reviewer` is whose they are where a line does not say.

    Raises ReviewError with every problem of every file, and writes nothing then.
    """
    labelled = {file.name: [line for line in file.lines if line.get("label")] for file in files}
    record = _read_record(warehouse, [line for lines in labelled.values() for line in lines])
    now = now_utc()
    problems = [problem for file in files for problem in file.problems]
    reviews: dict[str, list[Review]] = {}
    for file in files:
        reviews[file.digest], of_file = _read_file(labelled[file.name], record, reviewer, now)
        problems += of_file
    if problems:
        n = len(problems)
        raise list_problems(f"nothing was imported: {n} problem{'s' * (n > 1)}", problems)
    return Imported(
        n_unlabelled=sum(len(file.lines) for file in files) - sum(map(len, labelled.values())),
        read=tuple(review for of_file in reviews.values() for review in of_file),
        new=tuple(add_reviews(warehouse, reviews)),
    )


def take_label(warehouse: Warehouse, values: Mapping[str, str]) -> Review:
    """Take in one label as it is given; `values` are those of a line of a file. What the person has said last of the
    verdict adds nothing.

    With `export_id` and `item_hash` it is the answer to that draw, else the person has chosen the verdict, and it has
    no probability, whatever was drawn. Raises ReviewError.
    """
    line = Line(place="the label", values=values)
    picks = warehouse.fetch_rows("reviews/picks", export_ids=[values["export_id"]]) if _is_pick(line) else []
    items = []
    if not picks:
        named = {"run_id": values.get("run_id", ""), "sample_id": values.get("sample_id", "")}
        items = warehouse.fetch_rows("reviews/sample_items", **named)
    now = now_utc()
    try:
        review = _read_review(line, _collect_record(picks, items), None, now)
        check_person(review.reviewer, review.note)
    except LineError as error:
        raise ReviewError(f"the label was not taken: {error}") from None
    add_reviews(warehouse, {f"{review.item_hash} {review.reviewer} {now.isoformat()}": [review]})
    return review


def check_person(reviewer: str, note: str | None) -> None:
    """Raises LineError for a name or a note that nobody means."""
    if not reviewer.isprintable() or len(reviewer) > _LONGEST_NAME:
        raise LineError(f"reviewer is {reviewer!r}; a name has at most {_LONGEST_NAME} printable letters")
    if len(note or "") > _LONGEST_NOTE:
        raise LineError(f"the note has {len(note or '')} letters; it may have {_LONGEST_NOTE}")


def _read_record(warehouse: Warehouse, lines: Sequence[Line]) -> _Record:
    exports = {export for line in lines if (export := line.get("export_id")) and line.get("item_hash")}
    runs = {run for line in lines if not _is_pick(line) and (run := line.get("run_id"))}
    verdicts = [row for run in sorted(runs) for row in warehouse.fetch_rows("reviews/verdicts", run_id=run)]
    return _collect_record(warehouse.fetch_rows("reviews/picks", export_ids=sorted(exports)), verdicts)


def _collect_record(picks: Sequence[Mapping[str, Any]], verdicts: Sequence[Mapping[str, Any]]) -> _Record:
    return _Record(
        picks={(row["export_id"], row["item_hash"]): row for row in picks},
        verdicts={tuple(_to_text(row[name]) for name in _VERDICT): row for row in verdicts},
        exports=frozenset(row["export_id"] for row in picks),
        runs=frozenset(row["run_id"] for row in verdicts),
    )


def _read_file(
    lines: Sequence[Line], record: _Record, reviewer: str | None, now: datetime
) -> tuple[list[Review], list[str]]:
    reviews: list[Review] = []
    problems: list[str] = []
    first: dict[tuple[str, str], Line] = {}
    for line in lines:
        try:
            review = _read_review(line, record, reviewer, now)
        except LineError as error:
            problems.append(f"{line.place}: {error}")
            continue
        other = first.setdefault((review.item_hash, review.reviewer), line)
        if other is not line:
            problems.append(f"{line.place}: {review.reviewer!r} has labelled this in {other.place} already; keep one")
        reviews.append(review)
    return reviews, problems


def _read_review(line: Line, record: _Record, reviewer: str | None, now: datetime) -> Review:
    row = _find_verdict(line, record)
    reviewed_at = read_time(line, now)
    reviewer_name = line.get("reviewer") or reviewer
    if not reviewer_name:
        raise LineError("says no reviewer; fill in the column, or give --reviewer NAME")
    return Review(
        **{name: row[name] for name in _OF_RECORD},
        label=_read_label(line, "label", row),
        reviewer=reviewer_name,
        reviewed_at=reviewed_at or now,
        first_label=_read_label(line, "first_label", row) if line.get("first_label") else None,
        note=line.get("note"),
        imported_at=now,
        is_timed=reviewed_at is not None,
    )


def _is_pick(line: Line) -> bool:
    return bool(line.get("export_id") and line.get("item_hash"))


def _find_verdict(line: Line, record: _Record) -> Mapping[str, Any]:
    export, item_hash = line.get("export_id"), line.get("item_hash")
    if export and item_hash:
        if export not in record.exports:
            raise LineError(f"export {export} is not on record in this warehouse; was it made from another one?")
        pick = record.picks.get((export, item_hash))
        if pick is None:
            raise LineError(f"item {item_hash[:12]}… is not one of export {export}; leave item_hash as it was written")
        return pick
    return _find_by_name(line, record)


def _find_by_name(line: Line, record: _Record) -> Mapping[str, Any]:
    key = {name: line.get(name) for name in _VERDICT}
    step = key["step"]
    if step is not None and step not in REVIEWED_PROMPTS:
        raise LineError(f"step is {step!r}; it must be one of {', '.join(REVIEWED_PROMPTS)}")
    place = "context_rank" if step == "rank" else "statement_id"
    if not all(key[name] for name in ("run_id", "sample_id", "step", place)):
        raise LineError(f"does not say which verdict it means; {_HOW}")
    if key["run_id"] not in record.runs:
        raise LineError(f"run {key['run_id']} is not on record in this warehouse, or has no verdict to review")
    # The other of the two is no part of the name, whatever a spreadsheet has put there.
    key["statement_id" if step == "rank" else "context_rank"] = None
    row = record.verdicts.get(tuple(key.values()))
    if row is None:
        raise LineError(f"run {key['run_id']} has no verdict of {step} on {key[place]} of sample {key['sample_id']!r}")
    item_hash = line.get("item_hash")
    if item_hash and item_hash != row["item_hash"]:
        raise LineError("what was labelled is not what the run has there: item_hash is another one")
    return row


def _read_label(line: Line, name: str, row: Mapping[str, Any]) -> str:
    word = line.get(name) or ""
    source = "answer" if (row["statement_id"] or "").startswith("A") else "ground_truth"
    label = find_label(row["step"], source, word)
    if label is None:
        about = f"{row['step']} on {row['statement_id'] or row['context_rank']}"
        raise LineError(f"{name} is {word!r}; for {about} it must be {' or '.join(list_labels(row['step'], source))}")
    return label


def read_time(line: Line, now: datetime) -> datetime | None:
    """When the label was given, UTC; None when the line does not say. Raises LineError."""
    text = line.get("reviewed_at")
    if text is None:
        return None
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise LineError(f"reviewed_at is {text!r}; write it like 2026-01-31T14:05:00Z, or leave it empty") from None
    if time.tzinfo is not None:
        time = time.astimezone(UTC).replace(tzinfo=None)
    if time > now + _FUTURE:
        raise LineError(f"reviewed_at is {text}, which is in the future")
    return time


def _to_text(value: object) -> str | None:
    return None if value is None else str(value)
