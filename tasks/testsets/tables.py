"""A table of passages that somebody else cut, with their ids: any format that a dataset may have.

Such passages stay as they are, since the ids are those that a retriever returns. The passages of a document make up its
text, in the order of the rows.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from evalhouse.tasks.datasets.encodings import weigh
from evalhouse.tasks.datasets.errors import ProblemKind, ReadingStopped, advise
from evalhouse.tasks.datasets.formats import DatasetSource, open_source
from evalhouse.tasks.datasets.rows import ColumnPath, RawRow
from evalhouse.tasks.datasets.values import MISSING, is_empty, read_id, read_text
from evalhouse.tasks.testsets.errors import refuse_all
from evalhouse.tasks.testsets.passages import Document, Passage, find_language
from evalhouse.warehouse.messages import list_names

Column = Literal["id", "text", "document", "title"]
NAMES: Final[Mapping[Column, tuple[str, ...]]] = {
    "id": ("id", "passage_id", "context_id", "metadata.id"),
    "text": ("text", "content", "page_content"),
    "document": ("document", "document_id", "source", "metadata.source"),
    "title": ("title", "metadata.title"),
}
_PATHS: Final = {column: [ColumnPath(name) for name in names] for column, names in NAMES.items()}
_ADVICE: Final[Mapping[ProblemKind, str]] = {
    "not_an_object": 'every row is a JSON object such as {"id": "p1", "text": "…"}; wrap or remove the others',
    "columns": f"a passage has an id ({', '.join(NAMES['id'])}) and a text ({', '.join(NAMES['text'])}); "
    "document and title may stand beside them",
    "not_text": "the text of a passage is not empty; remove the row or fill it in",
    "duplicate_id": "an id names one passage; make the ids differ",
    "no_rows": "a table of passages has at least one row; was it written to the end?",
}
_BETWEEN: Final = "\n\n"  # passages, in the text of their document


@dataclass(frozen=True, kw_only=True, slots=True)
class _Row:
    passage_id: str
    document_id: str
    title: str | None
    text: str


@dataclass(kw_only=True)
class _Table:
    """What is known of a table so far."""

    name: str
    place: str
    problems: list[str] = field(default_factory=list)
    kinds: dict[ProblemKind, None] = field(default_factory=dict)
    row_of: dict[str, int] = field(default_factory=dict)  # the row of each id

    def complain(self, row: int | None, kind: ProblemKind, text: str) -> None:
        self.problems.append(text if row is None else f"{self.place} {row:,}: {text}")
        self.kinds[kind] = None


def read_passages(source: str | Path, encoding: str | None = None) -> list[Document]:
    """The documents of a table of passages. Raises TestsetError, or DatasetError where no table can be opened."""
    opened = open_source(source, encoding)
    table, rows = _read_all(opened)
    if "not_utf8" in table.kinds and encoding is None and opened.file is not None and opened.file.encoding is None:
        with opened.file.open() as lines:
            found = weigh(lines)
        if found is not None:
            table, rows = _read_all(open_source(source, found))
    if table.problems:
        raise refuse_all(table.name, table.problems, [_ADVICE.get(kind) or advise(kind) for kind in table.kinds])
    return list(_make_documents(rows))


def _read_all(source: DatasetSource) -> tuple[_Table, list[_Row]]:
    table = _Table(name=source.name, place=source.place)
    rows: list[_Row] = []
    try:
        for raw in source.read(table.complain):
            row = _read_row(raw, table)
            if row is not None:
                rows.append(row)
    except ReadingStopped as stopped:
        table.complain(stopped.problem.row, stopped.problem.kind, stopped.problem.text)
    if not rows and not table.problems:
        table.complain(None, "no_rows", "no rows")
    return table, rows


def _read_row(raw: RawRow, table: _Table) -> _Row | None:
    n_before = len(table.problems)

    def say(kind: ProblemKind, text: str) -> None:
        table.complain(raw.row, kind, text)

    values = {column: _find(column, raw.values) for column in NAMES}
    for column in ("id", "text"):
        if values[column] is MISSING:
            say("columns", f"no {column}; columns: {list_names(list(raw.values), 8)}")
        elif is_empty(values[column]):
            say("ids" if column == "id" else "not_text", f"{column} is empty")
    passage_id, text = read_id(values["id"], "id", say), read_text(values["text"], "text", say)
    document_id, title = read_id(values["document"], "document", say), read_text(values["title"], "title", say)
    if passage_id is None or text is None or len(table.problems) > n_before:
        return None
    first = table.row_of.setdefault(passage_id, raw.row)
    if first != raw.row:
        say("duplicate_id", f"id {passage_id!r} is that of {table.place} {first:,} already")
        return None
    return _Row(passage_id=passage_id, document_id=document_id or passage_id, title=title, text=text)


def _find(column: Column, row: Mapping[str, object]) -> object:
    values = (path.find(row) for path in _PATHS[column])
    return next((value for value in values if value is not MISSING), MISSING)


def _make_documents(rows: list[_Row]) -> Iterator[Document]:
    by_document: dict[str, list[_Row]] = {}
    for row in rows:
        by_document.setdefault(row.document_id, []).append(row)
    n_before = 0
    for document_id, members in by_document.items():
        start, passages = 0, []
        for ordinal, row in enumerate(members, start=n_before + 1):
            passages.append(
                Passage(
                    passage_id=row.passage_id,
                    document_id=document_id,
                    ordinal=ordinal,
                    headings=(row.title,) if row.title else (),
                    text=row.text,
                    start=start,
                    language=find_language(row.text),
                )
            )
            start += len(row.text) + len(_BETWEEN)
        n_before += len(passages)
        text = _BETWEEN.join(row.text for row in members)
        yield Document(document_id=document_id, text=text, passages=tuple(passages))
