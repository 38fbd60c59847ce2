"""Reading a dataset of any format, one batch of samples after the other, with the memory of one batch.

`stage_dataset` reads a dataset into a file beside the warehouse, or refuses it whole, before any model is asked.
`read_samples` yields batches until the first problem, then reads on only to find the others, and raises one
DatasetError about all of them at the end. `formats` reads raw rows, `rows` finds the fields in them and makes samples.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import partial
from itertools import chain, islice, pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import orjson
import polars as pl

from evalhouse.tasks.datasets.formats import DatasetSource, find_encoding, open_source, show_readings
from evalhouse.tasks.datasets.rows import (
    Columns,
    ColumnUse,
    RawRow,
    SampleRow,
    Thoughts,
    Turns,
    normalise_row,
    read_given_id,
    suggest_columns,
)
from evalhouse.tasks.datasets.values import (
    DatasetError,
    ProblemKind,
    Problems,
    ReadingStopped,
    is_absent,
    name_row,
    refuse_dataset,
)
from evalhouse.tasks.judge.protocol import LEXICAL
from evalhouse.tasks.settings.run import AUTO, RunSettings, is_sample, is_traces
from evalhouse.tasks.settings.suite import TRACES, TraceWindow
from evalhouse.warehouse.messages import join_surrogates, list_names, name_setting
from evalhouse.warehouse.rows.samples import PART_BYTES, Staging, dump_turns, find_turn
from evalhouse.warehouse.sample_data import SAMPLE_PATH
from evalhouse.warehouse.store import Warehouse, measure_bytes

__all__ = ["DatasetError", "SampleRow", "read_samples"]

Source = str | Path | pl.DataFrame | DatasetSource
Open = Callable[[Source, str | None], DatasetSource]
"""Opens a dataset, with the encoding of its text where one was named."""
_LOOKED_AHEAD: Final = 100  # rows by which it is known whether a column of texts holds conversations
_NO_MAPPING: Mapping[str, str] = MappingProxyType({})
_OPTIONS: Final = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS
_NOTHING: Final = ("NAType", "NaTType")  # what pandas has for a missing value beside NaN
_ALLOWED: Final = "texts, numbers, lists and dictionaries of these"


@dataclass(frozen=True, kw_only=True)
class StagedDataset:
    """A dataset that was read whole without a problem. `content_hash` changes when any sample does.

    `n_answered` is how many samples it brings an answer or contexts for, `n_continued` how many have earlier turns,
    `n_later` how many are later turns by their number, without the ones before, and `n_following` how many others have
    the conversation's id of such a row before them. `n_unheard` is how many come after a question that is only in their
    earlier turns and in no row, and `n_nameless` how many are later turns by their number and have no id of a
    conversation. `n_failed` traces ended with an error and were left out. `use` is how its columns were read, and
    `notes` what else the user should know about it.
    """

    staging: Staging
    n_samples: int
    content_hash: str
    use: ColumnUse
    n_answered: int = 0
    n_continued: int = 0
    n_later: int = 0
    n_following: int = 0
    n_unheard: int = 0
    n_nameless: int = 0
    n_failed: int = 0
    notes: tuple[str, ...] = ()

    def read_first(self) -> Iterator[str]:
        """Yield the texts of the first samples but for contexts, as many as show the language of the dataset."""
        for sample in islice((sample for part in self.staging.read_parts() for sample in part), MAX_LOOKED_AT):
            yield "\n".join([sample.question, sample.answer or "", *sample.accepted_answers])


def stage_of(settings: RunSettings, source: "str | pl.DataFrame | DatasetSource | None" = None) -> StagedDataset:
    """Read the dataset of the settings, or another source in its place, into staging; raises DatasetError.

    With a trace format its rows are spans, and the samples are made from traces, as are the traces of a warehouse.
    """
    source = settings.dataset if source is None else source
    stage = partial(
        stage_dataset,
        source,
        mapping=settings.mapping,
        limit=settings.limit,
        encoding=settings.encoding,
        turns=settings.turns,
        thoughts=settings.thoughts,
    )
    is_stored = is_traces(settings.dataset) and source == TRACES
    if settings.format is None and not is_stored:
        return stage()
    # Only for traces:
    from evalhouse.tasks.datasets.trace_rows import SpanNames  # noqa: PLC0415
    from evalhouse.tasks.datasets.traces import Tally, open_stored, read_traces  # noqa: PLC0415

    tally = Tally()
    given = {
        name: [span.strip() for span in settings.mapping[name].split(",") if span.strip()]
        for name in ("question", "answer", "contexts")
        if name in settings.mapping
    }
    names = SpanNames(**given)

    def open_traces(source: Source, encoding: str | None) -> DatasetSource:
        if not is_stored:
            opened = open_source(source, encoding)
            return opened if settings.format is None else read_traces(opened, settings.format, tally, names)
        if encoding is not None:
            came = f"{name_setting('encoding', encoding)} for traces"
            raise refuse_dataset(came, allowed="text files", to_do="leave it out")
        return open_stored(Warehouse(settings.warehouse), settings.traces or TraceWindow(), tally, names)

    # Documents of traces have their ids, so no column of theirs is left out.
    columns = {ours: theirs for ours, theirs in settings.mapping.items() if ours not in given and theirs}
    staged = stage(open_as=open_traces, mapping=columns)
    notes = (tally.describe(), tally.describe_contexts(), tally.describe_texts())
    return replace(staged, notes=notes, n_failed=tally.n_failed) if tally.n_traces else staged


MAX_LOOKED_AT: Final = 1_000
"""The samples whose language is found, the first ones of a dataset or a run."""


def settle_language(
    settings: RunSettings, source: "str | pl.DataFrame | DatasetSource | None" = None
) -> tuple[RunSettings, tuple[str, ...]]:
    """Return the settings with a language in place of `auto`, and a note about it; raises DatasetError.

    It is Chinese where more than half of the first samples are, and English otherwise, whose prompts judge texts of any
    language. All samples of a run are judged by prompts in one language.
    """
    if settings.language != AUTO:
        return settings, ()
    staged = stage_of(
        settings.model_copy(update={"limit": min(settings.limit or MAX_LOOKED_AT, MAX_LOOKED_AT)}), source
    )
    try:
        languages = count_languages(staged.read_first())
    finally:
        staged.staging.discard()
    n_chinese, n_samples = languages["Chinese"], languages.total()
    language = "zh" if 2 * n_chinese > n_samples else "en"
    first = "" if n_samples < MAX_LOOKED_AT else "first "
    mixed = "; all are judged by the same prompts" if 0 < n_chinese < n_samples else ""
    note = f"prompts in {language}: {n_chinese:,} of the {first}{n_samples:,} samples are in Chinese{mixed}"
    return settings.model_copy(update={"language": language}), (note,)


def count_unheard(before: int, n_first: int) -> int:
    """Return how many rows of a conversation come after a question that is not asked.

    The bits of `before` say how many questions the rows with earlier turns come after; the `n_first` rows without
    earlier turns are the questions in between.
    """
    for _ in range(n_first if before else 0):
        before |= before + 1  # sets the lowest bit that is not set
    return (before & ~(before << 1) & ~1).bit_count()


def count_languages(texts: Iterable[str]) -> Counter[str]:
    """Return the number of texts by language, by script and function words; English are also the uncertain ones."""
    from evalhouse.tasks.lexical.split import find_other_language, is_chinese  # noqa: PLC0415  # few runs count them

    return Counter(find_other_language(text) or ("Chinese" if is_chinese(text) else "English") for text in texts)


def describe_language(texts: Iterable[str], judge: str) -> Iterator[str]:
    """Yield a note where a model judges samples that are mostly in one language other than English and Chinese."""
    if judge == LEXICAL:
        return  # it gives no verdicts there, which the run reports
    languages = count_languages(texts)
    language, n_samples = max(languages.items(), key=lambda entry: entry[1], default=("", 0))
    if language in ("", "English", "Chinese") or 2 * n_samples <= languages.total():
        return
    yield (
        f"note: {n_samples:,} of {languages.total():,} samples are in {language}. The prompts are in English "
        "and ask for statements and reasons in the language of the texts. How far verdicts and recognized refusals "
        "(answer_rate, refusal_rate) agree with people was measured on English and Chinese texts only, so check some: "
        "`evalhouse review export`"
    )


def stage_dataset(
    source: str | pl.DataFrame | DatasetSource,
    *,
    mapping: Mapping[str, str],
    limit: int | None,
    encoding: str | None = None,
    turns: Turns = "all",
    thoughts: Thoughts = "apart",
    open_as: Open = open_source,
) -> StagedDataset:
    """Read a dataset (`sample` is the one that ships with evalhouse) or a frame into staging; raises DatasetError.

    A text file that is not UTF-8 is read again in its encoding if that is certain; otherwise the error shows how a line
    reads in several.
    """
    if isinstance(source, str) and is_sample(source):
        source = str(SAMPLE_PATH)

    def read(encoding: str | None) -> StagedDataset:
        staging = Staging()
        digest, n_answered, n_continued, n_later, n_following, use = hashlib.sha256(), 0, 0, 0, 0, ColumnUse()
        use.was_named = was_named
        begun: dict[str, int | None] = {}  # by conversation, the number of its first row without the turns before
        before: dict[str, int] = {}  # by conversation, how many questions its rows come after, as a set of bits
        n_first = Counter[str]()  # by conversation, its rows without earlier turns
        n_unheard, n_nameless = 0, 0
        try:
            for rows in read_samples(
                source,
                mapping=mapping,
                limit=limit,
                encoding=encoding,
                use=use,
                turns=turns,
                thoughts=thoughts,
                open_as=open_as,
            ):
                staged = []
                for row in rows:
                    metadata = orjson.dumps(row.metadata).decode() if row.metadata else None
                    values = vars(row) | {"metadata": metadata, "conversation": dump_turns(row.conversation)}
                    del values["row"]
                    staged.append(values)
                    n_answered += row.answer is not None or row.contexts is not None
                    n_continued += row.conversation is not None
                    name, turn = find_turn(row.metadata or {})
                    if row.conversation is None and name is not None:
                        is_later = turn is not None and turn > 1
                        n_later += is_later
                        # The number of the first row again is the beginning of another conversation.
                        n_following += not is_later and name in begun and (turn is None or turn != begun[name])
                        begun.setdefault(name, turn)
                    # Messages of a user in a row are one question.
                    roles = [earlier.role for earlier in row.conversation or ()]
                    n_in_row = sum(pair == ("user", "assistant") for pair in pairwise(roles))
                    if name is None:
                        n_unheard += n_in_row > 0
                        n_nameless += row.conversation is None and turn is not None and turn > 1
                    else:
                        n_first[name] += row.conversation is None
                        before[name] = before.get(name, 0) | (1 << n_in_row if row.conversation else 0)
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
            n_later=n_later,
            n_following=n_following,
            n_nameless=n_nameless,
            n_unheard=n_unheard + sum(count_unheard(of_talk, n_first[name]) for name, of_talk in before.items()),
        )

    was_named = encoding is not None
    try:
        return read(encoding)
    except DatasetError as error:
        file = open_source(source).file if any(problem.kind == "not_utf8" for problem in error.problems) else None
        if was_named or file is None or file.encoding is not None:
            raise
        with file.open() as lines:
            found = find_encoding(lines)
        if found is None:
            with file.open() as lines:
                readings = show_readings(lines)
            hint = f"\nthe file may be in another encoding; {readings}" if readings else ""
            raise DatasetError(f"{error}{hint}", problems=error.problems, n_problems=error.n_problems) from None
    return read(found)


def read_samples(
    source: str | Path | pl.DataFrame | DatasetSource,
    *,
    mapping: Mapping[str, str] = _NO_MAPPING,
    limit: int | None = None,
    batch_size: int = 1000,
    encoding: str | None = None,
    use: ColumnUse | None = None,
    turns: Turns = "all",
    thoughts: Thoughts = "apart",
    open_as: Open = open_source,
) -> Iterator[list[SampleRow]]:
    """Read a dataset in batches of at most `batch_size` samples, only the first `limit` rows when one is given.

    A row that is a whole conversation becomes a sample for each of its `turns`, or for the last. `source` is a file,
    `FILE.duckdb#TABLE` or a Polars frame; `mapping` names columns as {ours: theirs}, and `use` counts how all columns
    were used. `open_as` opens what is not a dataset by itself. A DuckDB table must be read in one thread. Raises
    DatasetError: at once when the dataset or a field does not exist, else from the iterator, after the last batch or
    where nothing more can be read, with all problems in one message.
    """
    if batch_size < 1 or (limit is not None and limit < 1):
        raise ValueError(f"batch_size={batch_size} and limit={limit} must be at least 1")
    opened, columns = open_as(source, encoding), Columns(mapping, use)
    columns.use.encoding = opened.file.encoding if opened.file else None
    problems = Problems(opened.name, opened.place)
    seen: dict[str, object] = {}  # the columns of the first batch, each with a value

    def read_rows() -> Iterator[RawRow]:
        """Yield the rows, of a conversation one for each turn."""
        if opened.leave_out is not None:
            yield from islice(opened.read(problems.add), limit)
            return
        rows = islice(opened.read(problems.add), limit)
        first: list[RawRow] = []
        stopped: ReadingStopped | None = None
        try:
            first.extend(islice(rows, _LOOKED_AHEAD))
        except ReadingStopped as error:  # what is wrong with the rows before comes first
            stopped = error
        # In a column with plain questions a list of messages is what a person typed, too.
        columns.plain = {name for name, question in map(find_question, first) if is_plain(question)}
        for row in chain(first, rows):
            name, question = find_question(row)
            if isinstance(question, str) and (name in columns.plain or is_plain(question)):
                yield row
                continue
            # Only for rows that may hold a list of messages.
            from evalhouse.tasks.datasets.conversations import cut_row  # noqa: PLC0415

            yield from cut_row(row, columns, turns, complain=problems.add, use=columns.use)
        if stopped is not None:
            raise stopped

    def find_question(row: RawRow) -> tuple[str, object]:
        path = columns.locate(row.values).get("question")
        return ("", None) if path is None else (path.name, path.find(row.values))

    def is_plain(question: object) -> bool:
        return isinstance(question, str) and question.lstrip()[:1] not in ("", "[", "{", '"')

    def check_mapped(missing: list[str]) -> None:
        if missing:
            mapped = ", ".join([name_setting("mapping", missing[0]), *missing[1:]])
            text = f"no column for {mapped}; columns: {list_names(list(seen))}"
            raise ReadingStopped(None, "columns", text)

    def check_columns(raw_rows: list[RawRow]) -> None:
        """Stop at the first rows where no later one can help: for a mapped column that a table does not have, or
        without a question."""
        for raw in raw_rows:
            for name, value in raw.values.items():
                if is_absent(seen.get(name)):
                    seen[name] = value
        if opened.tabular:
            check_mapped(columns.list_awaited(raw_rows[0].values))
        if not any("question" in columns.locate(raw.values) for raw in raw_rows):
            from evalhouse.tasks.datasets.traces import guess_format  # noqa: PLC0415  # only for this message

            names = list_names(columns.names["question"])
            text = f"no question column; columns: {list_names(list(seen))}; read as the question: {names}"
            form = guess_format(seen)
            traces = [f"are these traces? {name_setting('format', form)} reads them"] if form else []
            text = "; ".join([text, *traces, *suggest_columns(["question"], seen)])
            raise ReadingStopped(None, "columns", text)

    def read() -> Iterator[list[SampleRow]]:
        n_rows, nothing = 0, "no rows"
        of_row: list[str] = []  # what a row is left out for, where a format may leave rows out

        def note(row: int | None, kind: ProblemKind, text: str) -> None:
            of_row.append(text)

        complain = problems.add if opened.leave_out is None else note
        first_rows: dict[str, int] = {}  # of each id: the one thing whose memory grows with the file
        try:
            for raw_rows in _batch(read_rows(), batch_size):
                if not seen:
                    check_columns(raw_rows)
                samples = []
                for raw in raw_rows:
                    n_rows += 1
                    of_row.clear()
                    sample = normalise_row(raw, ordinal=n_rows, columns=columns, complain=complain, thoughts=thoughts)
                    if opened.leave_out is not None and of_row:
                        opened.leave_out(raw, of_row[0])
                        n_rows, nothing = n_rows - 1, f"no row can be read ({of_row[0]})"
                        continue
                    samples += [sample] if sample is not None else []
                    given_id = sample.given_id if sample else read_given_id(raw, columns)
                    if given_id in first_rows:
                        place = name_row(opened.place, first_rows[given_id])
                        problems.add(raw.row, "duplicate_id", f"id {given_id!r} is that of {place} already")
                    elif given_id is not None:
                        first_rows[given_id] = raw.row
                if not problems.n:
                    yield samples
            if n_rows == 0 and not problems.n:
                raise ReadingStopped(None, "no_rows", nothing)
            check_mapped(columns.list_awaited())
        except ReadingStopped as stopped:
            problem = stopped.problem
            problems.add(problem.row, problem.kind, problem.text)
        if problems.n:
            raise problems.make_error()

    return read()


def _batch(rows: Iterable[RawRow], size: int) -> Iterator[list[RawRow]]:
    """Yield lists of `size` rows, of fewer where their texts are long; the rows before a ReadingStopped come before
    it."""
    batch: list[RawRow] = []
    n_bytes = 0
    stopped: ReadingStopped | None = None
    try:
        for row in rows:
            batch.append(row)
            n_bytes += measure_bytes(row.values)
            if len(batch) == size or n_bytes >= PART_BYTES:
                yield batch
                batch, n_bytes = [], 0
    except ReadingStopped as error:
        stopped = error
    if batch:
        yield batch
    if stopped is not None:
        raise stopped


# --- samples of a Python program


def write_samples(samples: Any, folder: Path, mapping: Mapping[str, str]) -> Path:  # noqa: ANN401  # anything that a caller passes
    """Write dictionaries or a frame into a file of `folder` and return its path; raises DatasetError for anything else.

    A frame is written as Parquet. One with a column that no Arrow type holds, such as numbers beside texts, is written
    row by row like dictionaries: values of NumPy, pandas and LangChain become what JSON has. A column that is read as a
    field of the sample must be readable; any other one is metadata, and what JSON does not have is kept there as text.
    """
    index = getattr(getattr(samples, "index", None), "names", ())
    if index and all(name is not None and name not in samples.columns for name in index):
        samples = samples.reset_index()  # pandas, which writes a named index to Parquet as a column
    rows: object = samples
    if hasattr(samples, "__arrow_c_stream__"):
        names = list(map(str, samples.columns)) if hasattr(samples, "to_dict") else []
        if repeated := sorted({name for name in names if names.count(name) > 1}):
            to_do = "rename one of them"
            raise refuse_dataset(f"two columns are {list_names(repeated)}", allowed="each name once", to_do=to_do)
        try:
            path = folder / "samples.parquet"
            pl.DataFrame(samples).write_parquet(path)
            return path
        except (ValueError, TypeError, NotImplementedError, pl.exceptions.PolarsError):
            if not hasattr(samples, "to_dict"):
                raise
            rows = samples.to_dicts() if isinstance(samples, pl.DataFrame) else samples.to_dict("records")
    if isinstance(rows, Mapping) or not isinstance(rows, Iterable):
        raise DatasetError(
            f"samples is a {type(rows).__name__}; give a list of dictionaries, a frame, or the name of a dataset: "
            'evaluate([{"question": "…", "answer": "…"}])'
        )
    lines, columns = [], Columns(mapping)
    for place, sample in enumerate(rows):
        if not isinstance(sample, Mapping):
            raise DatasetError(f"samples[{place}] is a {type(sample).__name__}; each is a dictionary with a question")
        try:
            lines.append(orjson.dumps(dict(sample), default=_make_plain, option=_OPTIONS))
        except orjson.JSONEncodeError:
            lines.append(_write_by_column(place, sample, columns))
    if not lines:
        raise DatasetError("samples is empty; give at least one dictionary with a question")
    path = folder / "samples.jsonl"
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return path


def _write_by_column(place: int, sample: Mapping[Any, Any], columns: Columns) -> bytes:
    """Return a sample as JSON, with text for what JSON does not have in columns that are not read as a field."""
    written: dict[str, object] = {}
    for given, value in sample.items():
        name = join_surrogates(str(given))
        try:
            written[name] = orjson.Fragment(orjson.dumps(value, default=_make_plain, option=_OPTIONS))
        except orjson.JSONEncodeError as error:
            if columns.reads(name):
                came = f"samples[{place}]: column {name!r} holds a value that cannot be read: {error}"
                raise refuse_dataset(came, allowed=_ALLOWED, to_do="convert it to one of these") from None
            written[name] = join_surrogates(str(value))
    return orjson.dumps(written)


def _make_plain(value: Any) -> object:  # noqa: ANN401  # any value that JSON does not have
    """Return a value of NumPy, pandas, Polars or LangChain as JSON has it; raises TypeError for another one."""
    if type(value).__name__ in _NOTHING:
        return None
    if hasattr(value, "page_content"):
        return {name: getattr(value, name, None) for name in ("page_content", "id", "metadata")}
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, Mapping):
        return dict(value)
    for method in ("tolist", "to_list", "isoformat"):
        if hasattr(value, method):
            return getattr(value, method)()
    raise TypeError(f"Type is not JSON serializable: {type(value).__name__}")
