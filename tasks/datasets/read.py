"""Reading a dataset: any of the formats, one batch of samples after the other, with the memory of one batch.

`stage_dataset` reads a dataset into a file beside the warehouse, or refuses it whole, before any model is asked.
`read_samples` yields batches until the first problem, then reads on only to find the others, and raises one
DatasetError about all of them at the end. `formats` reads raw rows, `rows` finds the fields in them and makes samples.
"""

import hashlib
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from types import MappingProxyType

import numpy as np
import orjson
import polars as pl

from evalhouse.tasks.datasets.conversations import TurnCutter, Which
from evalhouse.tasks.datasets.encodings import is_utf8, propose, weigh
from evalhouse.tasks.datasets.errors import Complain, DatasetError, Problems, ReadingStopped, name_row, refuse_dataset
from evalhouse.tasks.datasets.formats import DatasetSource, open_source
from evalhouse.tasks.datasets.rows import (
    Columns,
    ColumnUse,
    RawRow,
    SampleRow,
    normalise_row,
    read_given_id,
    suggest_columns,
)
from evalhouse.tasks.datasets.spans.read import Tally, guess_format, read_traces
from evalhouse.tasks.datasets.spans.store import open_stored
from evalhouse.tasks.settings.run import RunSettings, is_sample, is_traces
from evalhouse.tasks.settings.suite import TRACES, TraceWindow
from evalhouse.warehouse.messages import list_names, name_setting
from evalhouse.warehouse.rows.samples import Staging, dump_turns
from evalhouse.warehouse.sample_data import SAMPLE_PATH
from evalhouse.warehouse.store import Warehouse

__all__ = ["DatasetError", "DuplicateIds", "RepeatedId", "SampleRow", "read_samples"]

Source = str | Path | pl.DataFrame | DatasetSource
Open = Callable[[Source, str | None], DatasetSource]
"""Opens a dataset, with the encoding of its text where one was named."""
_NO_MAPPING: Mapping[str, str] = MappingProxyType({})
_MAX_TRACKED_IDS = 10_000  # repeated ids that are reported with both rows; of the others only the number


@dataclass(frozen=True, kw_only=True)
class StagedDataset:
    """A dataset that was read whole without a problem. `content_hash` changes when any sample does.

    `n_answered` is how many samples it brings an answer or contexts for, `n_continued` how many have earlier turns,
    `use` how its columns were read, and `notes` what else the user should know of it.
    """

    staging: Staging
    n_samples: int
    content_hash: str
    use: ColumnUse
    n_answered: int = 0
    n_continued: int = 0
    notes: tuple[str, ...] = ()


def stage_of(settings: RunSettings, source: "str | pl.DataFrame | DatasetSource | None" = None) -> StagedDataset:
    """Read the dataset of the settings, or another source in its place, into staging; raises DatasetError.

    With a trace format its rows are spans, and the samples are made of its traces; so are those of a warehouse.
    """
    tally = Tally()

    def open_as(source: Source, encoding: str | None) -> DatasetSource:
        if is_traces(settings.dataset) and source == TRACES:
            if encoding is not None:
                came = f"{name_setting('encoding', encoding)} for traces"
                raise refuse_dataset(came, allowed="text files", to_do="leave it out")
            return open_stored(Warehouse(settings.warehouse), settings.traces or TraceWindow(), tally)
        opened = open_source(source, encoding)
        return opened if settings.format is None else read_traces(opened, settings.format, tally)

    staged = stage_dataset(
        settings.dataset if source is None else source,
        mapping=settings.mapping,
        limit=settings.limit,
        encoding=settings.encoding,
        turns=settings.turns,
        open_as=open_as,
    )
    return replace(staged, notes=(tally.describe(),)) if tally.n_traces else staged


def stage_dataset(
    source: str | pl.DataFrame | DatasetSource,
    *,
    mapping: Mapping[str, str],
    limit: int | None,
    encoding: str | None = None,
    turns: Which = "all",
    open_as: Open = open_source,
) -> StagedDataset:
    """Read a dataset (`sample` is the one that ships with evalhouse) or a frame into staging; raises DatasetError.

    A text file that is not UTF-8 is read again in its encoding if that is certain; otherwise the error shows how a line
    reads in several.
    """
    source = resolve_source(source) if isinstance(source, str) else source
    stage = partial(_stage, source, mapping=mapping, limit=limit, turns=turns, open_as=open_as)
    try:
        return stage(encoding=encoding, was_named=encoding is not None)
    except DatasetError as error:
        if encoding is not None or not any(problem.kind == "not_utf8" for problem in error.problems):
            raise
        return stage(encoding=_find_encoding(source, error), was_named=False)


def resolve_source(source: str) -> str:
    """Return the path behind a dataset's name."""
    return str(SAMPLE_PATH) if is_sample(source) else source


def _find_encoding(source: str | pl.DataFrame | DatasetSource, error: DatasetError) -> str:
    """Return the encoding of a text file that was refused as not UTF-8; raises that error again if none is certain."""
    file = open_source(source).file
    if file is None or file.encoding is not None:
        raise error
    with file.open() as opened:
        encoding = weigh(opened)
    if encoding is not None:
        return encoding
    with file.open() as opened:
        number, line = next((number, line) for number, line in enumerate(opened, start=1) if not is_utf8(line))
    readings = propose(line)
    hint = f"\nthe file may be in another encoding; line {number:,} reads {readings}" if readings else ""
    raise DatasetError(f"{error}{hint}", problems=error.problems, n_problems=error.n_problems)


def _stage(
    source: str | pl.DataFrame | DatasetSource,
    *,
    mapping: Mapping[str, str],
    limit: int | None,
    encoding: str | None,
    turns: Which,
    open_as: Open,
    was_named: bool,
) -> StagedDataset:
    staging = Staging()
    digest, n_answered, n_continued, use = hashlib.sha256(), 0, 0, ColumnUse()
    use.was_named = was_named
    try:
        for rows in read_samples(
            source, mapping=mapping, limit=limit, encoding=encoding, use=use, turns=turns, open_as=open_as
        ):
            staged = []
            for row in rows:
                metadata = orjson.dumps(row.metadata).decode() if row.metadata else None
                values = vars(row) | {"metadata": metadata, "conversation": dump_turns(row.conversation)}
                del values["row"]
                staged.append(values)
                n_answered += row.answer is not None or row.contexts is not None
                n_continued += row.conversation is not None
                digest.update(f"{row.sample_id}\n{row.input_hash}\n".encode())
            staging.add(staged)
    except BaseException:  # also on Ctrl-C the staged file goes
        staging.discard()
        raise
    return StagedDataset(
        staging=staging,
        n_samples=staging.n_rows,
        content_hash=digest.hexdigest()[:32],
        use=use,
        n_answered=n_answered,
        n_continued=n_continued,
    )


def read_samples(
    source: str | Path | pl.DataFrame | DatasetSource,
    *,
    mapping: Mapping[str, str] = _NO_MAPPING,
    limit: int | None = None,
    batch_size: int = 1000,
    encoding: str | None = None,
    use: ColumnUse | None = None,
    turns: Which = "all",
    open_as: Open = open_source,
) -> Iterator[list[SampleRow]]:
    """Read a dataset in batches of at most `batch_size` samples, only the first `limit` rows when one is given.

    A row that is a whole conversation becomes a sample for each of its `turns`, or for the last. `source` is a file,
    `FILE.duckdb#TABLE` or a Polars frame; `mapping` names columns as {ours: theirs}, and `use` counts how all columns
    were used. `open_as` opens what is not a dataset by itself. A DuckDB table must be read in one thread. Raises
    DatasetError: at once when there is no such dataset or field, else from the iterator, after the last batch or where
    nothing more can be read, with all problems in one message.
    """
    if batch_size < 1 or (limit is not None and limit < 1):
        raise ValueError(f"batch_size={batch_size} and limit={limit} must be at least 1")
    opened, columns = open_as(source, encoding), Columns(mapping, use)
    columns.use.encoding = opened.file.encoding if opened.file else None
    return _Reading(source=opened, columns=columns, limit=limit, batch_size=batch_size, turns=turns).read()


class _Reading:
    """One pass over a dataset, and its problems so far."""

    def __init__(
        self, *, source: DatasetSource, columns: Columns, limit: int | None, batch_size: int, turns: Which
    ) -> None:
        self._turns = turns
        self._source = source
        self._columns = columns
        self._limit = limit
        self._batch_size = batch_size
        self._problems = Problems(source.name, source.place)
        self._ids = DuplicateIds()
        self._seen: dict[str, None] = {}  # the columns of the first batch
        self._n_rows = 0

    def read(self) -> Iterator[list[SampleRow]]:
        """Yield the samples in batches; raises DatasetError at the end if there was any problem."""
        try:
            rows = self._read_rows(self._problems.add, self._columns.use)
            for raw_rows in _batch(rows, self._batch_size):
                if not self._seen:
                    self._check_columns(raw_rows)
                samples = self._normalise(raw_rows)
                if not self._problems:
                    yield samples
            self._check_whole()
        except ReadingStopped as stopped:
            problem = stopped.problem
            self._problems.add(problem.row, problem.kind, problem.text)
        if self._problems:
            raise self._problems.make_error()

    def _read_rows(self, complain: Complain, use: ColumnUse) -> Iterator[RawRow]:
        """Return the rows, of a conversation one for each turn."""
        cutter = TurnCutter(
            columns=self._columns, which=self._turns, tabular=self._source.tabular, complain=complain, use=use
        )
        return cutter.cut(islice(self._source.read(complain), self._limit))

    def _normalise(self, raw_rows: list[RawRow]) -> list[SampleRow]:
        samples = []
        for raw in raw_rows:
            self._n_rows += 1
            sample = normalise_row(
                raw,
                ordinal=self._n_rows,
                columns=self._columns,
                complain=self._problems.add,
                tabular=self._source.tabular,
            )
            if sample is not None:
                samples.append(sample)
            given_id = sample.given_id if sample else read_given_id(raw, self._columns)
            if given_id is not None:
                self._ids.add(given_id)
        return samples

    def _check_columns(self, raw_rows: list[RawRow]) -> None:
        """Stop at once where no later row can help: no question, or a mapped column that a table does not have."""
        self._seen = {name: None for raw in raw_rows for name in raw.values}
        if self._source.tabular:
            self._check_mapped(self._columns.list_awaited(raw_rows[0].values))
        if not any("question" in self._columns.locate(raw.values) for raw in raw_rows):
            names = list_names(self._columns.names_of("question"))
            text = f"no question column; columns: {list_names(list(self._seen))}; read as the question: {names}"
            form = guess_format(self._seen)
            traces = [f"are these traces? {name_setting('format', form)} reads them"] if form else []
            text = "; ".join([text, *traces, *suggest_columns(["question"], list(self._seen))])
            raise ReadingStopped(None, "columns", text)

    def _check_whole(self) -> None:
        """Check what only the whole dataset shows: rows at all, each mapped column, each id once."""
        if self._n_rows == 0 and not self._problems:
            raise ReadingStopped(None, "no_rows", "no rows")
        self._check_mapped(self._columns.list_awaited())

        def read_given_ids() -> Iterator[GivenId]:
            # The first reading reported all problems.
            for raw in self._read_rows(lambda _row, _kind, _text: None, ColumnUse()):
                given_id = read_given_id(raw, self._columns)
                if given_id is not None:
                    yield GivenId(row=raw.row, given_id=given_id)

        for repeated in self._ids.find_repeated(read_given_ids):
            text = f"id {repeated.given_id!r} is that of {name_row(self._source.place, repeated.first_row)} already"
            self._problems.add(repeated.row, "duplicate_id", text)
        self._problems.count_unlisted(self._ids.n_untracked)

    def _check_mapped(self, missing: list[str]) -> None:
        if missing:
            mapped = ", ".join([name_setting("mapping", missing[0]), *missing[1:]])
            text = f"no column for {mapped}; columns: {list_names(list(self._seen))}"
            raise ReadingStopped(None, "columns", text)


def _batch(rows: Iterable[RawRow], size: int) -> Iterator[list[RawRow]]:
    """Yield lists of `size` rows; the rows before a ReadingStopped come before it."""
    batch: list[RawRow] = []
    stopped: ReadingStopped | None = None
    try:
        for row in rows:
            batch.append(row)
            if len(batch) == size:
                yield batch
                batch = []
    except ReadingStopped as error:
        stopped = error
    if batch:
        yield batch
    if stopped is not None:
        raise stopped


# --- ids


@dataclass(frozen=True, kw_only=True)
class GivenId:
    """An id as a row gives it."""

    row: int
    given_id: str


@dataclass(frozen=True, kw_only=True)
class RepeatedId:
    """A row whose id an earlier row has."""

    row: int
    first_row: int
    given_id: str


class DuplicateIds:
    """Finds ids that several rows have, with eight bytes of memory a row.

    `add` stores a hash of each id. Hashes that came twice are only candidates: `find_repeated` reads the ids once more
    and compares those of the candidates as texts, so two ids that share a hash are not confused.
    """

    def __init__(self, hash_id: Callable[[str], int] = hash) -> None:
        self._hash_id = hash_id
        self._hashes = array("q")
        self.n_untracked = 0  # repetitions that `find_repeated` counted by their hashes and did not report

    def add(self, given_id: str) -> None:
        self._hashes.append(self._hash_id(given_id))

    def find_repeated(self, read_again: Callable[[], Iterable[GivenId]]) -> Iterator[RepeatedId]:
        """Yield every row whose id came before. Calls `read_again` only when there is a candidate.

        Of more than `_MAX_TRACKED_IDS` candidates the first ones are tracked, so that a file full of repetitions needs
        no more memory than another; `n_untracked` counts the rest.
        """
        ordered = pl.Series(np.frombuffer(self._hashes, dtype=np.int64)).sort()
        repeated = ordered.filter(ordered == ordered.shift()).unique().sort()
        candidates = array("q", repeated.to_arrow().buffers()[1].to_pybytes())
        if not candidates:
            return
        first_rows: dict[str, int] = {}
        n_passed_over = 0
        for row in read_again():
            hashed = self._hash_id(row.given_id)
            place = bisect_left(candidates, hashed)
            if place == len(candidates) or candidates[place] != hashed:
                continue
            first_row = first_rows.get(row.given_id)
            if first_row is not None:
                yield RepeatedId(row=row.row, first_row=first_row, given_id=row.given_id)
            elif len(first_rows) < _MAX_TRACKED_IDS:
                first_rows[row.given_id] = row.row
            else:
                n_passed_over += 1
        self.n_untracked = max(0, n_passed_over - max(0, len(candidates) - len(first_rows)))
