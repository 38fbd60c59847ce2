"""PDF files made by hand, of lines in English or Chinese: with an outline, a password, or pages that have no text."""

from collections.abc import Sequence
from pathlib import Path

from pypdf import PdfWriter
from pypdf.generic import ArrayObject, DictionaryObject, NameObject, NumberObject, StreamObject, TextStringObject


def make_stream(data: bytes) -> StreamObject:
    stream = StreamObject()
    stream.set_data(data)
    return stream


def make_font(writer: PdfWriter, letters: set[str]) -> DictionaryObject:
    """A font whose codes are UTF-16, with the map for it, as Chinese fonts have one."""
    mapped = "\n".join(f"<{ord(letter):04x}> <{ord(letter):04x}>" for letter in sorted(letters))
    cmap = (
        "/CIDInit /ProcSet findresource begin 12 dict begin begincmap /CMapName /X def\n"
        "1 begincodespacerange <0000> <FFFF> endcodespacerange\n"
        f"{len(letters)} beginbfchar\n{mapped}\nendbfchar\nendcmap end end"
    )
    system = {"/Registry": TextStringObject("Adobe"), "/Ordering": TextStringObject("Identity")}
    below = {
        "/Type": NameObject("/Font"),
        "/Subtype": NameObject("/CIDFontType0"),
        "/BaseFont": NameObject("/Made"),
        "/CIDSystemInfo": make_dictionary({**system, "/Supplement": NumberObject(0)}),
        "/DW": NumberObject(500),
    }
    return make_dictionary(
        {
            "/Type": NameObject("/Font"),
            "/Subtype": NameObject("/Type0"),
            "/BaseFont": NameObject("/Made"),
            "/Encoding": NameObject("/Identity-H"),
            "/DescendantFonts": ArrayObject([writer._add_object(make_dictionary(below))]),
            "/ToUnicode": writer._add_object(make_stream(cmap.encode())),
        }
    )


def make_dictionary(members: dict[str, object]) -> DictionaryObject:
    return DictionaryObject({NameObject(name): value for name, value in members.items()})


def write_pdf(
    path: Path,
    pages: Sequence[Sequence[str]],
    *,
    outline: Sequence[tuple[str, int, int]] = (),
    password: str | None = None,
) -> Path:
    """A PDF with these lines on its pages; `outline` has titles with their page and level, both from 1."""
    writer = PdfWriter()
    letters = {letter for lines in pages for line in lines for letter in line}
    font = writer._add_object(make_font(writer, letters))
    for lines in pages:
        page = writer.add_blank_page(595, 842)
        page[NameObject("/Resources")] = make_dictionary({"/Font": make_dictionary({"/F1": font})})
        shown = "".join(f"<{line.encode('utf-16-be').hex()}> Tj T*\n" for line in lines)
        content = make_stream(f"BT /F1 10 Tf 14 TL 50 800 Td\n{shown}ET".encode())
        page[NameObject("/Contents")] = writer._add_object(content)
    above = {}
    for title, page_number, level in outline:
        above[level] = writer.add_outline_item(title=title, page_number=page_number - 1, parent=above.get(level - 1))
    if password is not None:
        writer.encrypt(password, algorithm="AES-256")
    writer.write(path)
    return path
