"""A knowledge base: a folder of documents, one document, or a table of passages with ids.

Every document becomes Markdown, which `passages` cuts and test sets quote. Passages of a table are kept unchanged,
since a retriever returns their ids; the passages of one document make up its text, in the order of the rows. All
problems of a source are collected, and it is refused with all of them.
"""

import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Literal

from evalhouse.tasks.datasets.formats import (
    DatasetSource,
    check_known,
    find_encoding,
    find_mark,
    find_special,
    is_utf8,
    open_source,
    show_readings,
)
from evalhouse.tasks.datasets.limited import FileTooLarge, LimitedReader
from evalhouse.tasks.datasets.rows import ColumnPath
from evalhouse.tasks.datasets.values import (
    LISTED_PROBLEMS,
    MISSING,
    ProblemKind,
    Problems,
    ReadingStopped,
    advise,
    is_empty,
    name_row,
    read_id,
    read_text,
)
from evalhouse.tasks.testsets import TestsetError, UnreadableFile, refuse
from evalhouse.tasks.testsets.passages import Document, Language, Passage, cut_markdown, cut_plain, find_language
from evalhouse.warehouse.messages import is_readable_name, list_names

__all__ = ["Document", "Language", "Passage", "load_documents"]

Note = Callable[[str], None]
Kind = Literal["markdown", "plain", "html", "pdf", "word"]
KINDS: Final[dict[str, Kind]] = {
    ".md": "markdown",
    ".markdown": "markdown",
    ".txt": "plain",
    ".text": "plain",
    ".html": "html",
    ".htm": "html",
    ".xhtml": "html",
    ".pdf": "pdf",
    ".docx": "word",
}
_EXTRA: Final = ("bs4", "lxml", "mammoth", "markdownify", "pypdf")  # the packages of the extra `documents`
_WORD_LOCK: Final = "~$"  # the start of the name of the file that Word puts beside an open document
_ALLOWED: Final = (
    f"a folder of documents, a document ({', '.join(KINDS)}), or a table of passages "
    "(.jsonl, .json, .csv, .parquet, .xlsx, FILE.duckdb#TABLE)"
)
_DECLARED: Final = re.compile(rb"<meta[^<>]{0,200}charset=[\"']?([\w-]{1,40})", re.IGNORECASE)
_DECLARED_WITHIN: Final = 4096
_SAVE: Final = "save it as UTF-8, or name its encoding with --encoding"
_MAX_FILE: Final = 2**26  # bytes of a document
_SOFT_HYPHEN: Final = "\u00ad"  # where a word may be divided: not seen, and not in a quotation
_READ: Final = "evalhouse.tasks.testsets.readers:read_document"


@dataclass(frozen=True, kw_only=True)
class _File:
    """A file that is read as a document."""

    path: Path
    document_id: str
    kind: Kind


def load_documents(
    source: str | Path, *, encoding: str | None = None, note: Note = lambda _line: None
) -> list[Document]:
    """Return the documents of a knowledge base in the order of their names, or of a table's rows.

    `encoding` is for text that is not UTF-8. `note` gets a line for each kind of file that was left out. Raises
    TestsetError with all problems of the source, or DatasetError for a table that cannot be opened.
    """
    if encoding is not None and not check_known(encoding):
        allowed = "utf-8, utf-16, cp1252, gb18030, latin-1 and the others that Python knows"
        raise refuse(f"--encoding {encoding} is not known", allowed=allowed, to_do="name that of the files")
    path = Path(source).expanduser()
    if path.is_dir():

        def raise_error(error: OSError) -> None:
            raise error

        # Also of the folders in it; hidden and linked ones are left out.
        files: list[_File] = []
        hidden: list[str] = []
        unknown: Counter[str] = Counter()
        for root, folders, names in os.walk(path, onerror=raise_error):
            here = Path(root)
            for name in list(folders):
                if name.startswith(".") or (here / name).is_symlink():
                    folders.remove(name)
                    hidden.append(f"{(here / name).relative_to(path).as_posix()}/")
            for file in (here / name for name in names):
                kind = KINDS.get(file.suffix.lower())
                document_id = file.relative_to(path).as_posix()
                if file.name.startswith((".", _WORD_LOCK)):
                    hidden.append(document_id)
                elif kind is None:
                    unknown[file.suffix.lower() or file.name] += 1
                else:
                    files.append(_File(path=file, document_id=document_id, kind=kind))
        left_out: list[str] = []
        if hidden:
            left_out.append(f"left out as hidden or linked: {list_names(sorted(hidden), 5)}")
        if unknown:
            suffixes = [f"{suffix} ({number:,})" for suffix, number in unknown.most_common()]
            left_out.append(f"left out as not readable here: {list_names(suffixes, 8)}; read are {', '.join(KINDS)}")
        if not files:
            why = f"; {'; '.join(left_out)}" if left_out else ""
            raise refuse(f"{path} has no documents{why}", allowed=_ALLOWED, to_do="name the folder that they are in")
        for line in left_out:
            note(line)
        files.sort(key=lambda one: one.document_id)
        return _load_files(str(path), files, encoding, note, folder=path.resolve())
    kind = KINDS.get(path.suffix.lower())
    if not path.exists() and not any(mark in str(source) for mark in ("#", "://")):
        raise refuse(f"{source}: no such file or folder", allowed=_ALLOWED, to_do="check the path")
    if kind is not None:
        return _load_files(str(source), [_File(path=path, document_id=path.name, kind=kind)], encoding, note)
    opened = open_source(source, encoding)
    problems = Problems(opened.name, opened.place)
    table = _read_table(opened, problems)
    if "not_utf8" in problems.kinds and encoding is None and opened.file is not None and opened.file.encoding is None:
        with opened.file.open() as lines:
            found = find_encoding(lines)
        if found is not None:
            problems = Problems(opened.name, opened.place)
            table = _read_table(open_source(source, found), problems)
    if problems.n:
        raise _refuse_all(
            opened.name,
            problems.n,
            problems.list_lines(),
            [_ADVICE.get(kind) or advise(kind) for kind in problems.kinds],
        )
    documents = []
    n_before = 0
    for document_id, rows in table.items():
        start, passages = 0, []
        for ordinal, (passage_id, title, text) in enumerate(rows, start=n_before + 1):
            passages.append(
                Passage(
                    passage_id=passage_id,
                    document_id=document_id,
                    ordinal=ordinal,
                    headings=(title,) if title else (),
                    text=text,
                    start=start,
                    language=find_language(text),
                )
            )
            start += len(text) + len(_BETWEEN)
        n_before += len(passages)
        whole = _BETWEEN.join(passage.text for passage in passages)
        documents.append(Document(document_id=document_id, text=whole, passages=tuple(passages)))
    return documents


def _load_files(
    name: str, files: list[_File], encoding: str | None, note: Note, *, folder: Path | None = None
) -> list[Document]:
    documents: list[Document] = []
    problems: list[str] = []
    empty: list[str] = []
    advice: dict[str, None] = {}
    n_passages = 0
    texts: list[tuple[_File, str]] = []
    with LimitedReader() as reader:
        for file in files:
            if not is_readable_name(file.document_id):
                problems.append(f"{os.fsencode(file.document_id)!r}: this name is not UTF-8")
                advice["rename the file"] = None
                continue
            try:
                texts.append((file, _load_document(file, folder, encoding, note, reader)))
            except UnreadableFile as error:
                problems.append(f"{file.document_id}: {error}")
                advice[error.to_do] = None
            except FileTooLarge as error:
                problems.append(f"{file.document_id}: cannot be read: {error}")
                advice["save a document that is too large in several, or as Markdown or plain text"] = None
            except OSError as error:
                problems.append(f"{file.document_id}: {error.strerror or error}")
                advice["check that you may read it"] = None
    for file, text in texts:
        cut = cut_plain if file.kind == "plain" else cut_markdown
        document = cut(file.document_id, text, n_before=n_passages)
        n_passages += len(document.passages)
        documents.append(document)
        if not document.passages:
            empty.append(file.document_id)
    if problems:
        raise _refuse_all(name, len(problems), problems[:LISTED_PROBLEMS], list(advice))
    if empty:
        note(f"without any text: {list_names(empty, 5)}")
    if not n_passages:
        raise refuse(f"{name}: no text in it", allowed="documents with something to ask about", to_do="fill them in")
    return [document for document in documents if document.passages]


def _refuse_all(name: str, n: int, listed: Sequence[str], advice: Sequence[str]) -> TestsetError:
    """Return the error for all `n` problems of a source: each on a line, then what to do about them."""
    lines = [f"{name}: {n:,} problem{'' if n == 1 else 's'}; nothing was read", *(f"  {line}" for line in listed)]
    if n > len(listed):
        lines.append(f"  and {n - len(listed):,} more")
    return TestsetError("\n".join([*lines, *(f"to do: {text}" for text in advice)]))


def _load_document(file: _File, folder: Path | None, encoding: str | None, note: Note, reader: LimitedReader) -> str:
    """Return a document as Markdown, or a plain text unchanged; one of a `folder` is in it also if it is a link.

    Raises UnreadableFile, FileTooLarge, or OSError.
    """
    if kind := find_special(file.path):
        raise UnreadableFile(f"is {kind}, not a file", "remove it, or save its content to a file")
    target = file.path.resolve()
    if folder is not None and not target.is_relative_to(folder):
        raise UnreadableFile(f"a link to {target}, out of the folder", "copy what it links to into the folder")
    if file.path.stat().st_size > _MAX_FILE:
        raise UnreadableFile(f"more than {_MAX_FILE // 2**20} MiB", "save a document that is too large in several")
    if file.kind in ("markdown", "plain"):
        return _load_text(file.path, encoding)
    if any(find_spec(package) is None for package in _EXTRA):
        raise UnreadableFile(f"reading {file.path.suffix} needs a package", 'pip install "evalhouse[documents]"')
    text = _load_text(file.path, encoding) if file.kind == "html" else ""
    markdown: str
    markdown, *notes = reader.read(_READ, file.path, file.kind, text)
    for line in notes:
        note(f"{file.document_id}: {line}")
    return markdown


def _load_text(path: Path, encoding: str | None) -> str:
    r"""Return the text of a file with `\n` at the ends of lines.

    The encoding is that of the byte order mark, else UTF-8 if it fits, else the given one, else the one that a page
    declares or that the bytes are certain to have. Raises UnreadableFile.
    """
    data = path.read_bytes()
    found = find_mark(data[:4]) or ("utf-8" if is_utf8(data) else encoding)
    if found is None:
        lines = data.splitlines(keepends=True)
        match = _DECLARED.search(data[:_DECLARED_WITHIN])
        declared = match[1].decode() if match else ""
        found = declared if declared and check_known(declared) else find_encoding(lines)
        if found is None:
            raise UnreadableFile(f"not UTF-8; {show_readings(lines)}", _SAVE)
    try:
        text = data.decode(found)
    except UnicodeDecodeError as error:
        raise UnreadableFile(f"not {error.encoding}: {error.reason}", _SAVE) from error
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n").replace(_SOFT_HYPHEN, "")


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
    "document and title may be given beside them",
    "not_text": "the text of a passage is not empty; remove the row or fill it in",
    "duplicate_id": "an id names one passage; make the ids differ",
    "no_rows": "a table of passages has at least one row; was it written to the end?",
}
_BETWEEN: Final = "\n\n"  # passages, in the text of their document


def _read_table(source: DatasetSource, problems: Problems) -> dict[str, list[tuple[str, str | None, str]]]:
    """Return the ids, titles and texts of the passages in a table by document, and add its problems."""
    documents: dict[str, list[tuple[str, str | None, str]]] = {}
    first_rows: dict[str, int] = {}  # by id
    try:
        for raw in source.read(problems.add):
            n_before = problems.n
            complain = partial(problems.add, raw.row)
            values: dict[Column, object] = {}
            for column, paths in _PATHS.items():
                found = (path.find(raw.values) for path in paths)
                values[column] = next((value for value in found if value is not MISSING), MISSING)
            for column in ("id", "text"):
                if values[column] is MISSING:
                    complain("columns", f"no {column}; columns: {list_names(list(raw.values), 8)}")
                elif is_empty(values[column]):
                    complain("ids" if column == "id" else "not_text", f"{column} is empty")
            passage_id, text = read_id(values["id"], "id", complain), read_text(values["text"], "text", complain)
            document_id = read_id(values["document"], "document", complain)
            title = read_text(values["title"], "title", complain)
            if passage_id is None or text is None or problems.n > n_before:
                continue
            first = first_rows.setdefault(passage_id, raw.row)
            if first != raw.row:
                complain("duplicate_id", f"id {passage_id!r} is that of {name_row(source.place, first)} already")
                continue
            documents.setdefault(document_id or passage_id, []).append((passage_id, title, text))
    except ReadingStopped as stopped:
        problems.add(stopped.problem.row, stopped.problem.kind, stopped.problem.text)
    if not documents and not problems.n:
        problems.add(None, "no_rows", "no rows")
    return documents
