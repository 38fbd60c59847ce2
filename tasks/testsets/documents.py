"""Reading a knowledge base: a folder of documents, one document, or a table of passages with ids.

A kind of file is read by one reader, which makes a `Layout` of it; `passages` cuts that. What is wrong with the files
is collected, and the whole is refused with all of it.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import Final

from evalhouse.tasks.datasets.encodings import check_known
from evalhouse.tasks.testsets.errors import refuse, refuse_all
from evalhouse.tasks.testsets.files import KINDS, DocumentFile, Kind, Note, UnreadableFile, list_documents, name_kind
from evalhouse.tasks.testsets.files import read_text as read_file_text
from evalhouse.tasks.testsets.layout import Layout
from evalhouse.tasks.testsets.markdown_text import read_markdown, read_plain
from evalhouse.tasks.testsets.passages import Document, Language, Passage, cut_document
from evalhouse.tasks.testsets.tables import read_passages
from evalhouse.warehouse.messages import list_names

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
            return read_markdown(read_file_text(file.path, encoding))
        case "plain":
            return read_plain(read_file_text(file.path, encoding))
        case "html":
            from evalhouse.tasks.testsets.web_text import read_html  # noqa: PLC0415  # comes with the extra

            return read_html(read_file_text(file.path, encoding))
        case "pdf":
            from evalhouse.tasks.testsets.pdf_text import read_pdf  # noqa: PLC0415

            return read_pdf(file.path, lambda line: note(f"{file.document_id}: {line}"))
        case "word":
            from evalhouse.tasks.testsets.word_text import read_word  # noqa: PLC0415

            return read_word(file.path)
