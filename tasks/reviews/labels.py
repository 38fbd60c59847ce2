"""The labels that people give: read from a CSV or JSON Lines file, checked, and written into `reviews`.

A CSV file may have gone through a spreadsheet, which chooses its own delimiter and leaves a byte order mark. Every line
is checked before any is written, and nothing is ever overwritten. A line names its verdict by `export_id` and
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

from evalhouse.tasks.datasets.formats import find_special
from evalhouse.warehouse.rows.reviews import Review, add_reviews
from evalhouse.warehouse.rows.runs import now_utc
from evalhouse.warehouse.steps import REVIEWED_PROMPTS, collect_labels
from evalhouse.warehouse.store import Warehouse

_LINES = (".jsonl", ".ndjson", ".json")
_TABLES = (".csv", ".tsv", ".txt")
_DELIMITERS = (",", ";", "\t")
_MAX_BYTES = 2**30
_MAX_CELL = 2**31 - 1
"""All contexts of a sample are in one cell; Python's own limit is 131,072 characters."""
_MAX_PROBLEMS: Final = 40


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of a file; empty values are left out, all others are texts without blanks around them."""

    place: str
    values: Mapping[str, str]

    def get(self, name: str) -> str | None:
        """Return a value, None if the line has none."""
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
    if path.exists() and (kind := find_special(path)):
        raise ReviewError(f"{path} is {kind}, not a file of labels")
    if path.exists() and (size := path.stat().st_size) > _MAX_BYTES:
        raise ReviewError(f"{path} has {size:,} bytes, and a file of labels has at most {_MAX_BYTES:,}; split it")
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
    # Not splitlines: a text may hold other separators, which JSON leaves unchanged.
    for number, row in read_objects(text.split("\n")) if is_lines else _read_table(text, path):
        place = f"{path} line {number}"
        if isinstance(row, str):
            problems.append(f"{place}: {row}")
        else:
            texts = {name: str(value).strip() for name, value in row.items() if not isinstance(value, bool | None)}
            lines.append(Line(place=place, values={name: value for name, value in texts.items() if value}))
    digest = hashlib.sha256(content).hexdigest()
    return LabelFile(name=str(path), digest=digest, lines=tuple(lines), problems=tuple(problems))


def read_objects(lines: Iterable[str | bytes]) -> Iterator[tuple[int, dict[str, Any] | str]]:
    """Yield the objects of JSON Lines by line number, or what is wrong with a line; empty lines are skipped."""
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
    limit = csv.field_size_limit(_MAX_CELL)
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


class ReviewError(Exception):
    """An export or import that cannot be done; states why, and what to do."""


def list_problems(opening: str, problems: Sequence[str]) -> ReviewError:
    """Return all problems in one error, each on a line; of very many the first ones and their number."""
    more = len(problems) - _MAX_PROBLEMS
    shown = [*problems[:_MAX_PROBLEMS], *([f"and {more} more"] if more > 0 else [])]
    return ReviewError("\n".join([opening, *(f"  {problem}" for problem in shown)]))


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A label and its meaning."""

    label: str
    meaning: str


def list_choices(step: str, source: str | None) -> tuple[Choice, Choice]:
    """Return the labels of a step, yes first; in `classify` they depend on the statement's text."""
    by_letter = collect_labels(step)
    labels = by_letter["G"] if source == "ground_truth" and step == "classify" else next(iter(by_letter.values()))
    yes, no = (Choice(label=label, meaning=meaning) for label, meaning in labels.items())
    return (yes, no)


def list_labels(step: str, source: str | None) -> tuple[str, str]:
    """Return the names of the labels of a step."""
    yes, no = list_choices(step, source)
    return (yes.label, no.label)


def find_label(step: str, source: str | None, word: str) -> str | None:
    """Return the label that a word means, in any case and with or without blanks; None for any other word."""
    folded = "_".join(word.casefold().replace("-", " ").replace("_", " ").split())
    return next((label for label in list_labels(step, source) if label.casefold() == folded), None)


_VERDICT = ("run_id", "sample_id", "step", "statement_id", "context_rank")
_OF_RECORD = (*_VERDICT, "probability", "stratum", "item_hash", "question_hash", "judge_label", "export_id")
_MAX_NAME, _MAX_NOTE = 100, 2000
_FUTURE = timedelta(days=1)  # clocks go wrong by hours and time zones, not by more
_HOW = "name it by export_id and item_hash, or by run_id, sample_id, step and statement_id (in step rank: context_rank)"


class LineError(Exception):
    """A problem of one line."""


@dataclass(frozen=True, kw_only=True)
class Imported:
    """The result of an import: `read` are the labels in the files, of which `new` were not recorded yet."""

    n_unlabelled: int
    read: tuple[Review, ...]
    new: tuple[Review, ...]

    @property
    def n_known(self) -> int:
        """The labels that were recorded already."""
        return len(self.read) - len(self.new)


@dataclass(frozen=True, kw_only=True)
class _Record:
    """The warehouse's rows on the verdicts that the files name."""

    picks: Mapping[tuple[str, str], Mapping[str, Any]]
    verdicts: Mapping[tuple[str | None, ...], Mapping[str, Any]]
    exports: frozenset[str]
    runs: frozenset[str]


def import_reviews(warehouse: Warehouse, files: Sequence[LabelFile], reviewer: str | None) -> Imported:
    """Import labels; `reviewer` is the reviewer of lines that name none.

    Raises ReviewError with every problem of every file, and writes nothing then.
    """
    labelled = {file.name: [line for line in file.lines if line.get("label")] for file in files}
    lines = [line for of_file in labelled.values() for line in of_file]
    exports = {export for line in lines if (export := line.get("export_id")) and line.get("item_hash")}
    runs = {run for line in lines if not _is_pick(line) and (run := line.get("run_id"))}
    verdicts = [row for run in sorted(runs) for row in warehouse.fetch_rows("reviews/verdicts", run_id=run)]
    record = _collect_record(warehouse.fetch_rows("reviews/picks", export_ids=sorted(exports)), verdicts)
    now = now_utc()
    problems = [problem for file in files for problem in file.problems]
    reviews: dict[str, list[Review]] = {}
    for file in files:
        first: dict[tuple[str, str], Line] = {}
        of_file = reviews.setdefault(file.digest, [])
        for line in labelled[file.name]:
            try:
                review = _read_review(line, record, reviewer, now)
            except LineError as error:
                problems.append(f"{line.place}: {error}")
                continue
            other = first.setdefault((review.item_hash, review.reviewer), line)
            if other is not line:
                problems.append(
                    f"{line.place}: {review.reviewer!r} has labelled this in {other.place} already; keep one"
                )
            of_file.append(review)
    if problems:
        n = len(problems)
        raise list_problems(f"nothing was imported: {n} problem{'s' * (n > 1)}", problems)
    return Imported(
        n_unlabelled=sum(len(file.lines) for file in files) - sum(map(len, labelled.values())),
        read=tuple(review for of_file in reviews.values() for review in of_file),
        new=tuple(add_reviews(warehouse, reviews)),
    )


def take_label(warehouse: Warehouse, values: Mapping[str, str]) -> Review:
    """Import one label; `values` are as in a line of a file. Repeating the last label adds nothing.

    With `export_id` and `item_hash` it is the answer to that draw; otherwise the reviewer has chosen the verdict, and
    the label has no probability, even if the verdict was drawn. Raises ReviewError.
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
    """Raise LineError for a name or a note that cannot be meant."""
    if not reviewer.isprintable() or len(reviewer) > _MAX_NAME:
        raise LineError(f"reviewer is {reviewer!r}; a name has at most {_MAX_NAME} printable letters")
    if len(note or "") > _MAX_NOTE:
        raise LineError(f"the note has {len(note or '')} letters; it may have {_MAX_NOTE}")


def _collect_record(picks: Sequence[Mapping[str, Any]], verdicts: Sequence[Mapping[str, Any]]) -> _Record:
    return _Record(
        picks={(row["export_id"], row["item_hash"]): row for row in picks},
        verdicts={tuple(None if row[name] is None else str(row[name]) for name in _VERDICT): row for row in verdicts},
        exports=frozenset(row["export_id"] for row in picks),
        runs=frozenset(row["run_id"] for row in verdicts),
    )


def _read_review(line: Line, record: _Record, reviewer: str | None, now: datetime) -> Review:
    row = _find_verdict(line, record)
    reviewed_at = read_time(line, now)
    reviewer_name = line.get("reviewer") or reviewer
    if not reviewer_name:
        raise LineError("has no reviewer; fill in the column, or give --reviewer NAME")
    source = "answer" if (row["statement_id"] or "").startswith("A") else "ground_truth"
    labels: dict[str, str | None] = {}
    for name in ("label", "first_label"):
        word = line.get(name)
        labels[name] = find_label(row["step"], source, word or "") if word or name == "label" else None
        if labels[name] is None and (word or name == "label"):
            about = f"{row['step']} on {row['statement_id'] or row['context_rank']}"
            allowed = " or ".join(list_labels(row["step"], source))
            raise LineError(f"{name} is {word or ''!r}; for {about} it must be {allowed}")
    return Review(
        **{name: row[name] for name in _OF_RECORD},
        label=str(labels["label"]),
        reviewer=reviewer_name,
        reviewed_at=reviewed_at or now,
        first_label=labels["first_label"],
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
            raise LineError(f"export {export} is not in this warehouse; was it made from another one?")
        pick = record.picks.get((export, item_hash))
        if pick is None:
            raise LineError(f"item {item_hash[:12]}… is not one of export {export}; leave item_hash unchanged")
        return pick
    key = {name: line.get(name) for name in _VERDICT}
    step = key["step"]
    if step is not None and step not in REVIEWED_PROMPTS:
        raise LineError(f"step is {step!r}; it must be one of {', '.join(REVIEWED_PROMPTS)}")
    place = "context_rank" if step == "rank" else "statement_id"
    if not all(key[name] for name in ("run_id", "sample_id", "step", place)):
        raise LineError(f"does not name its verdict; {_HOW}")
    if key["run_id"] not in record.runs:
        raise LineError(f"run {key['run_id']} is not in this warehouse, or has no verdict to review")
    # The other of the two is not part of the name, even if a spreadsheet has filled it in.
    key["statement_id" if step == "rank" else "context_rank"] = None
    row = record.verdicts.get(tuple(key.values()))
    if row is None:
        raise LineError(f"run {key['run_id']} has no verdict of {step} on {key[place]} of sample {key['sample_id']!r}")
    item_hash = line.get("item_hash")
    if item_hash and item_hash != row["item_hash"]:
        raise LineError("the labelled text is not the run's: item_hash differs")
    return row


def read_time(line: Line, now: datetime) -> datetime | None:
    """Return when the label was given, UTC; None if the line has no time. Raises LineError."""
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
