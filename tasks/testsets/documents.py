"""Reading a knowledge base: a folder of documents, one document, or a table of passages with ids.

A kind of file is read by one reader, which makes a `Layout` of it; `passages` cuts that. What is wrong with the files
is collected, and the whole is refused with all of it.
"""

import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Literal

from evalhouse.tasks.datasets.encodings import check_known, find_mark, is_utf8, propose, weigh
from evalhouse.tasks.testsets.errors import Note, UnreadableFile, refuse, refuse_all
from evalhouse.tasks.testsets.layout import Layout
from evalhouse.tasks.testsets.markdown_text import read_markdown, read_plain
from evalhouse.tasks.testsets.passages import Document, Language, Passage, cut_document
from evalhouse.tasks.testsets.tables import read_passages
from evalhouse.warehouse.messages import list_names

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
_WORD_LOCK: Final = "~$"  # what Word puts beside a document while it is open


@dataclass(frozen=True, kw_only=True)
class DocumentFile:
    """A file that is read as a document."""

    path: Path
    document_id: str
    kind: Kind


def name_kind(path: Path) -> Kind | None:
    """What is made of a file by its ending; None for a kind that is not read."""
    return KINDS.get(path.suffix.lower())


def list_documents(folder: Path, note: Note) -> list[DocumentFile]:
    """The documents of a folder and the folders in it, by name; `note` is given a line on what is left out."""
    found: list[DocumentFile] = []
    hidden: list[str] = []
    unknown: Counter[str] = Counter()
    for path in _walk(folder, hidden):
        kind = name_kind(path)
        document_id = path.relative_to(folder).as_posix()
        if path.name.startswith((".", _WORD_LOCK)):
            hidden.append(document_id)
        elif kind is None:
            unknown[path.suffix.lower() or path.name] += 1
        else:
            found.append(DocumentFile(path=path, document_id=document_id, kind=kind))
    if hidden:
        note(f"left out as hidden or linked: {list_names(sorted(hidden), 5)}")
    if unknown:
        listed = [f"{ending} ({number:,})" for ending, number in unknown.most_common()]
        note(f"left out as not readable here: {list_names(listed, 8)}; read are {', '.join(KINDS)}")
    return sorted(found, key=lambda file: file.document_id)


def _walk(folder: Path, hidden: list[str]) -> Iterator[Path]:
    """All files below a folder; hidden folders, and folders that are links, are added to `hidden` instead."""
    for root, folders, files in os.walk(folder, onerror=_raise):
        here = Path(root)
        for name in list(folders):
            if name.startswith(".") or (here / name).is_symlink():
                folders.remove(name)
                hidden.append(f"{(here / name).relative_to(folder).as_posix()}/")
        yield from (here / name for name in files)


def _raise(error: OSError) -> None:
    raise error


def read_text(path: Path, encoding: str | None = None) -> str:
    """The text of a file with `\\n` at the ends of lines: in the encoding of its byte order mark, else UTF-8, else
    `encoding`, else what a page of HTML says of itself or its bytes are certain to be. Raises UnreadableFile."""
    data = path.read_bytes()
    try:
        text = data.decode(_find_encoding(data, encoding))
    except UnicodeDecodeError as error:
        raise UnreadableFile(f"not {error.encoding}: {error.reason}", _SAVE) from error
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")


_DECLARED = re.compile(rb"<meta[^<>]{0,200}charset=[\"']?([\w-]{1,40})", re.IGNORECASE)
_DECLARED_WITHIN: Final = 4096
_SAVE: Final = "save it as UTF-8, or name its encoding with --encoding"


def _find_encoding(data: bytes, named: str | None) -> str:
    mark = find_mark(data[:4])
    if mark is not None or is_utf8(data):
        return mark or "utf-8"
    lines = data.splitlines(keepends=True)
    declared = _DECLARED.search(data[:_DECLARED_WITHIN])
    said = declared[1].decode() if declared else ""
    found = named or (said if said and check_known(said) else weigh(lines))
    if found is None:
        number, line = next((number, line) for number, line in enumerate(lines, start=1) if not is_utf8(line))
        raise UnreadableFile(f"not UTF-8; line {number:,} reads {propose(line)}", _SAVE)
    return found


__all__ = ["Document", "Language", "Passage", "read_documents"]

_ALLOWED: Final = (
    f"a folder of documents, a document ({', '.join(KINDS)}), or a table of passages "
    "(.jsonl, .json, .csv, .parquet, .xlsx, FILE.duckdb#TABLE)"
)


def _keep_quiet(_line: str) -> None:
    pass


def read_documents(source: str | Path, *, encoding: str | None = None, note: Note = _keep_quiet) -> list[Document]:
    """The documents of a knowledge base in the order of their names, or of a table's rows.

    `encoding` is for text that is not UTF-8. `note` is given a line for each thing that was left out. Raises
    TestsetError with all that is wrong with the source, or DatasetError where a table cannot be opened.
    """
    if encoding is not None and not check_known(encoding):
        allowed = "utf-8, utf-16, cp1252, gb18030, latin-1 and the others that Python knows"
        raise refuse(f"--encoding {encoding} is not known", allowed=allowed, to_do="name that of the files")
    path = Path(source).expanduser()
    if path.is_dir():
        return _read_folder(path, encoding, note)
    kind = name_kind(path)
    if not path.exists() and not any(mark in str(source) for mark in ("#", "://")):
        raise refuse(f"{source}: no such file or folder", allowed=_ALLOWED, to_do="check the path")
    if kind is None:
        return read_passages(source, encoding)
    file = DocumentFile(path=path, document_id=path.name, kind=kind)
    return _read_files(str(source), [file], encoding, note)


def _read_folder(folder: Path, encoding: str | None, note: Note) -> list[Document]:
    left_out: list[str] = []
    files = list_documents(folder, left_out.append)
    if not files:
        why = f"; {'; '.join(left_out)}" if left_out else ""
        raise refuse(f"{folder} has no documents{why}", allowed=_ALLOWED, to_do="name the folder that they lie in")
    for line in left_out:
        note(line)
    return _read_files(str(folder), files, encoding, note)


def _read_files(name: str, files: list[DocumentFile], encoding: str | None, note: Note) -> list[Document]:
    documents: list[Document] = []
    problems: list[str] = []
    empty: list[str] = []
    advice: dict[str, None] = {}
    n_passages = 0
    for file in files:
        try:
            layout = _read_layout(file, encoding, note)
        except UnreadableFile as error:
            problems.append(f"{file.document_id}: {error}")
            advice[error.to_do] = None
            continue
        except OSError as error:
            problems.append(f"{file.document_id}: {error.strerror or error}")
            advice["check that you may read it"] = None
            continue
        document = cut_document(file.document_id, layout, n_before=n_passages)
        n_passages += len(document.passages)
        documents.append(document)
        if not document.passages:
            empty.append(file.document_id)
    if problems:
        raise refuse_all(name, problems, list(advice))
    if empty:
        note(f"without any text: {list_names(empty, 5)}")
    if not n_passages:
        raise refuse(f"{name}: no text in it", allowed="documents with something to ask about", to_do="fill them in")
    return [document for document in documents if document.passages]


_PACKAGES: Final[dict[Kind, tuple[str, ...]]] = {"html": ("lxml",), "pdf": ("pypdf",), "word": ("docx", "lxml")}


def _read_layout(file: DocumentFile, encoding: str | None, note: Note) -> Layout:
    if any(find_spec(package) is None for package in _PACKAGES.get(file.kind, ())):
        raise UnreadableFile(f"reading {file.path.suffix} needs a package", 'pip install "evalhouse[documents]"')
    match file.kind:
        case "markdown":
            return read_markdown(read_text(file.path, encoding))
        case "plain":
            return read_plain(read_text(file.path, encoding))
        case "html":
            from evalhouse.tasks.testsets.web_text import read_html  # noqa: PLC0415  # comes with the extra

            return read_html(read_text(file.path, encoding))
        case "pdf":
            from evalhouse.tasks.testsets.pdf_text import read_pdf  # noqa: PLC0415

            return read_pdf(file.path, lambda line: note(f"{file.document_id}: {line}"))
        case "word":
            from evalhouse.tasks.testsets.word_text import read_word  # noqa: PLC0415

            return read_word(file.path)
