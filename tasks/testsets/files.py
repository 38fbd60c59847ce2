"""Which files of a folder are documents, and the text of one in whatever encoding it is.

Hidden files, and files of kinds that nobody here can read, are left out; what was left out is said once.
"""

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from evalhouse.tasks.datasets.encodings import check_known, find_mark, is_utf8, propose, weigh
from evalhouse.warehouse.messages import list_names

Kind = Literal["markdown", "plain", "html", "pdf", "word"]
Note = Callable[[str], None]

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


class UnreadableFile(Exception):
    """A file cannot be read; the message says why, without its name, and what to do."""

    def __init__(self, why: str, to_do: str) -> None:
        super().__init__(why)
        self.to_do = to_do


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
