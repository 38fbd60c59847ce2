"""HTML, PDF and Word: what of a file is text, under which headings, and what is refused with the other problems."""

import importlib.util
import resource
import zipfile
from collections.abc import Sequence
from pathlib import Path

import docx
import pypdf
import pytest
from docx.opc.packuri import PackURI
from docx.opc.part import Part
from docx.oxml import parse_xml
from docx.oxml.ns import nsdecls
from pypdf import PdfWriter
from pypdf.generic import ArrayObject, DictionaryObject, NameObject, NumberObject, StreamObject, TextStringObject

from evalhouse.tasks.testsets import TestsetError
from evalhouse.tasks.testsets import documents as documents_module
from evalhouse.tasks.testsets.documents import Document, Passage, load_documents


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


PAGE = """<!DOCTYPE html><html><head><title>Shop</title><style>p {}</style></head><body>
<nav><a href=/>Home</a></nav><h1>Returns</h1><h2>Sending goods <em>back</em></h2>
<p>Goods may be<br>sent back within <b>30</b>
days.</p>loose text &amp; more
<ul><li>one <ul><li>inner</ul></li><li><p>two</p><p>two more</p></li></ul><ol><li>first<li>second</ol>
<table><caption>Fees</caption><tr><th>Land<th>Fee</tr><tr><td>DE</td><td><p>free</p> of charge</td></tr></table>
<pre>a = 1
  b = 2</pre>
<table><tr><td><h3>Layout</h3><p>In a layout table.</p></td></tr></table>
<script>evil()</script><p>before<!-- hidden -->after</p><p hidden>hidden</p><footer>Imprint</footer></body></html>"""


def read(source: Path, notes: list[str] | None = None) -> list[Passage]:
    documents: list[Document] = load_documents(source, note=(notes if notes is not None else []).append)
    for document in documents:
        for passage in document.passages:
            assert document.text[passage.start : passage.start + len(passage.text)] == passage.text
    return [passage for document in documents for passage in document.passages]


def test_cells_over_a_thousand_columns_stay_one_cell_each(tmp_path: Path) -> None:
    """Browsers limit them; written out, 40 KB of such a page become a million cells."""
    cells = "<td colspan=1000 rowspan=65000>It opens at nine.</td>" * 3
    (tmp_path / "page.html").write_text(f"<h1>Shop</h1><table><tr>{cells}</tr></table>", encoding="utf-8")
    (passage,) = read(tmp_path)
    assert passage.text.count("It opens at nine.") == 3
    assert len(passage.text) < 200


def test_a_page_is_read_without_what_surrounds_its_text(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(PAGE, encoding="utf-8")
    first, second = read(tmp_path)
    assert first.headings == ("Returns", "Sending goods back")
    assert first.passage_id == "page.html#returns/sending-goods-back"
    assert first.text.split("\n\n") == [
        "Goods may be\nsent back within 30\ndays.",
        "loose text & more",
        "- one\n  - inner\n- two",
        "  two more",
        "1. first\n2. second",
        "Fees",
        "| Land | Fee |\n| --- | --- |\n| DE | free of charge |",
        "```\na = 1\n  b = 2\n```",
    ]
    assert (second.headings[-1], second.text) == ("Layout", "In a layout table.\n\nbeforeafter")


@pytest.mark.parametrize(
    ("html", "headings", "text"),
    [
        ("<title>Leave</title><body><p>Words</p>", ("Leave",), "Words"),
        ("<p>Menu<main><h1>年假</h1><p>二十四天</main><p>Imprint", ("年假",), "二十四天"),
        ('<div role="navigation">x</div><article><h2>A</h2>Words</article>', ("A",), "Words"),
        ("<h1></h1><ul><p>x</ul></ol></td>y", (), "x\n\ny"),
        (
            '<?xml version="1.0" encoding="big5"?><html><body><p>Words of *XHTML*</p></body></html>',
            (),
            "Words of *XHTML*",
        ),
        ("Words only", (), "Words only"),
    ],
)
def test_a_page_may_be_anything(tmp_path: Path, html: str, headings: tuple[str, ...], text: str) -> None:
    (tmp_path / "page.htm").write_text(html, encoding="utf-8")
    (passage,) = read(tmp_path)
    assert (passage.headings, passage.text) == (headings, text)


def test_page_nested_too_deeply_is_named(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text("<div>" * 2000 + "deep", encoding="utf-8")
    with pytest.raises(TestsetError, match=r"page\.html: its elements are nested too deeply"):
        read(tmp_path)


def test_a_page_may_declare_its_encoding(tmp_path: Path) -> None:
    page = '<html><head><meta charset="big5"></head><body><h1>退貨</h1><p>三十天之內可以退貨。</p></body></html>'
    (tmp_path / "page.html").write_bytes(page.encode("big5"))
    (passage,) = read(tmp_path)
    assert (passage.headings, passage.text, passage.language) == (("退貨",), "三十天之內可以退貨。", "zh")


LEAVE = [
    ["Handbook, page 1", "1. Returns", "Goods may be sent back within thirty days of delivery, and the cus-",
     "tomer pays the postage unless the goods were faulty when they", "arrived.", "• one form", "• two passports",
     "A long line that is not at its end at the foot of this page but"],
    ["Handbook, page 2", "runs on at the head of the next one.", "年假",
     "新员工每年有二十四天年假，可以在系统中申请，病假",
     "须在当天上午九点之前报告。"],
    ["Handbook, page 3", "The end."],
]  # fmt: skip


def test_a_pdf_is_read_by_its_outline(tmp_path: Path) -> None:
    path = write_pdf(tmp_path / "leave.pdf", LEAVE, outline=[("Returns", 1, 1), ("年假", 2, 2)])
    first, second = read(path)
    assert (first.passage_id, first.headings) == ("leave.pdf#returns", ("Returns",))
    assert first.text.split("\n\n") == [
        "Goods may be sent back within thirty days of delivery, and the customer pays the postage unless the goods "
        "were faulty when they arrived.",
        "- one form\n- two passports",
        "A long line that is not at its end at the foot of this page but runs on at the head of the next one.",
    ]
    assert second.headings == ("Returns", "年假")
    assert second.text == "新员工每年有二十四天年假，可以在系统中申请，病假须在当天上午九点之前报告。\n\nThe end."


def test_a_pdf_without_an_outline_is_read_by_its_pages(tmp_path: Path) -> None:
    passages = read(write_pdf(tmp_path / "leave.pdf", LEAVE))
    assert [passage.passage_id.split("#")[1] for passage in passages] == ["page-1", "page-2", "page-3"]
    assert all(passage.headings == () for passage in passages)
    assert passages[0].text.endswith("the head of the next one.")  # the page on which it begins
    # A page more before it moves the words, and leaves them the same.
    later = read(write_pdf(tmp_path / "later.pdf", [["Handbook, page 0", "A cover."], *LEAVE]))
    assert [passage.passage_hash for passage in later[1:]] == [passage.passage_hash for passage in passages]


@pytest.mark.parametrize(
    ("pages", "text"),
    [
        ([["A kick\u00adoff is on\u00adcall, and the cus\u00ad", "tomer is on\u00ad", "call."]],
         "A kick-off is on-call, and the customer is on-call."),
        ([["Tightly they scoped it, and all their work is tightly-", "scoped in the pre- and post-",
           "war years, by all of us that were there and also knew COVID-", "19 only."]],
         "Tightly they scoped it, and all their work is tightly-scoped in the pre- and postwar years, by all of us "
         "that were there and also knew COVID-19 only."),
        ([["Handbook", "Goods may be sent back within thirty days of", "Page 1 of 2"],
          ["Handbook", "delivery by post.", "Page 2 of 2"]],
         "Goods may be sent back within thirty days of delivery by post."),
        ([["Goods may be sent back within thirty days of", "11/25/26, 11:42 PM The shop", "file:///tmp/shop.html 1/2"],
          ["delivery by post.", "11/25/26, 11:42 PM The shop", "file:///tmp/shop.html 2/2"]],
         "Goods may be sent back within thirty days of delivery by post."),
        ([["退货须在收到之后的三十天之内寄回，", "- 1 -"], ["运费由客户承担。", "第 2 页，共 2 页"]],
         "退货须在收到之后的三十天之内寄回，运费由客户承担。"),
        ([["In 2024 the shop opened.", "2026-11-25 11:42 The shop"]], "In 2024 the shop opened."),
    ],
)  # fmt: skip
def test_hyphens_and_running_heads_of_short_pdfs(tmp_path: Path, pages: list[list[str]], text: str) -> None:
    (passage,) = read(write_pdf(tmp_path / "a.pdf", pages))
    assert passage.text == text


def test_spaces_drawn_for_soft_hyphens_are_none(tmp_path: Path) -> None:
    path = write_pdf(tmp_path / "a.pdf", [["pro gram mers"]])
    writer = pypdf.PdfWriter(clone_from=path)
    page = writer.pages[0]
    drawn, hyphen = page.get_contents().get_data(), b"/Span<</ActualText <FEFF00AD> >> BDC\n<0020> Tj\nEMC\n"
    parts = "".join("pro gram mers").encode("utf-16-be").hex().split("0020")
    stream = pypdf.generic.DecodedStreamObject()
    stream.set_data(drawn[: drawn.index(b"<")] + hyphen.join(f"<{part}> Tj\n".encode() for part in parts) + b"ET")
    page[pypdf.generic.NameObject("/Contents")] = writer._add_object(stream)
    writer.write(path)
    (passage,) = read(path)
    assert passage.text == "programmers"


def test_marks_of_markdown_in_a_pdf_are_words(tmp_path: Path) -> None:
    lines = ["# of units: 4.", "3.5 percent of them.", "-5 degrees at night.", "\uf0b7 one", "(2) two", "<b> is a tag."]
    (passage,) = read(write_pdf(tmp_path / "a.pdf", [lines]))
    assert passage.headings == ()
    assert passage.text.split("\n\n") == [
        "\\# of units: 4. 3.5 percent of them. -5 degrees at night.", "- one\n- (2) two", "\\<b> is a tag.",
    ]  # fmt: skip


def test_pdfs_that_cannot_be_read_are_named_together(tmp_path: Path) -> None:
    write_pdf(tmp_path / "locked.pdf", LEAVE, password="secret")
    write_pdf(tmp_path / "scanned.pdf", [[], []])
    (tmp_path / "broken.pdf").write_bytes(b"%PDF-1.7\nnothing of the kind")
    (tmp_path / "locked.docx").write_bytes(b"\xd0\xcf\x11\xe0 and more")
    (tmp_path / "broken.docx").write_bytes(b"PK not a zip")
    (tmp_path / "good.txt").write_text("Words.", encoding="utf-8")
    with pytest.raises(TestsetError) as refused:
        read(tmp_path)
    lines = str(refused.value).splitlines()
    assert lines[0] == f"{tmp_path}: 5 problems; nothing was read"
    assert lines[1] == "  broken.docx: cannot be read as .docx: it is not a ZIP archive, as these are"
    assert lines[2].startswith("  broken.pdf: cannot be read as PDF: ")
    assert lines[3:6] == [
        "  locked.docx: locked with a password, or of Word before 2007",
        "  locked.pdf: locked with a password",
        "  scanned.pdf: no text, only pictures of it",
    ]
    assert "to do: have the text of scanned pages recognised (OCR) first" in lines


def test_pages_without_text_are_noted(tmp_path: Path) -> None:
    notes: list[str] = []
    (passage,) = read(write_pdf(tmp_path / "a.pdf", [["Words."], [], []]), notes)
    assert (passage.text, notes) == ("Words.", ["a.pdf: no text on page 2, 3"])


def make_word(path: Path) -> Path:
    document = docx.Document()
    document.add_heading("Handbook", 0)
    document.add_heading("Returns", 1)
    paragraph = document.add_paragraph("Goods may be sent back within ")
    paragraph._p.append(parse_xml(f"<w:del {nsdecls('w')}><w:r><w:delText>14</w:delText></w:r></w:del>"))
    paragraph._p.append(parse_xml(f"<w:ins {nsdecls('w')}><w:r><w:t>30</w:t></w:r></w:ins>"))
    paragraph.add_run(" days.")
    document.add_paragraph("You need:")
    document.add_paragraph("one form", style="List Bullet")
    document.add_paragraph("two passports", style="List Number 2")
    table = document.add_table(rows=2, cols=2)
    for cell, text in zip(table._cells, ["Land", "Fee", "DE", "free of\ncharge"], strict=True):
        cell.text = text
    document.styles.add_style("toc 1", docx.enum.style.WD_STYLE_TYPE.PARAGRAPH)
    document.add_paragraph("Returns ..... 1", style="toc 1")
    inner = "<w:sdtContent><w:p><w:r><w:t>In a content control.</w:t></w:r></w:p></w:sdtContent>"
    document.element.body.sectPr.addprevious(parse_xml(f"<w:sdt {nsdecls('w')}>{inner}</w:sdt>"))
    styled = document.styles.add_style("Own heading", docx.enum.style.WD_STYLE_TYPE.PARAGRAPH)
    styled.base_style = document.styles["Heading 2"]
    document.add_paragraph("年假", style="Own heading")
    document.add_paragraph("新员工每年有 24 天年假。")
    chinese = document.styles.add_style("标题 '三'", docx.enum.style.WD_STYLE_TYPE.PARAGRAPH)
    chinese.element.get_or_add_pPr().append(parse_xml(f"<w:outlineLvl {nsdecls('w')} w:val='2'/>"))
    document.add_paragraph("病假", style=chinese)
    document.add_paragraph("病假须报告。")
    document.save(str(path))
    return path


def test_a_word_document_is_read_by_its_styles(tmp_path: Path) -> None:
    first, second, third = read(make_word(tmp_path / "handbook.docx"))
    assert first.headings == ("Handbook", "Returns")
    assert first.text.split("\n\n") == [
        "Goods may be sent back within 30 days.",
        "You need:",
        "- one form",
        "1. two passports",
        "| Land | Fee |\n| --- | --- |\n| DE | free of charge |",
        "In a content control.",
    ]
    assert (second.headings, second.text, second.language) == (
        ("Handbook", "Returns", "年假"), "新员工每年有 24 天年假。", "zh"
    )  # fmt: skip
    assert (third.headings, third.text) == (("Handbook", "Returns", "年假", "病假"), "病假须报告。")


BOX = f"<w:txbxContent {nsdecls('w')}><w:p><w:r><w:t>Ask in the {{place}}.</w:t></w:r></w:p></w:txbxContent>"
SHAPES = 'xmlns:wps="http://schemas.microsoft.com/office/word/2010/wordprocessingShape"'
DRAWN = f"<w:drawing {nsdecls('w')}><wps:wsp {SHAPES}><wps:txbx>{BOX}</wps:txbx></wps:wsp></w:drawing>"
VML = f"<v:shape xmlns:v='urn:schemas-microsoft-com:vml'><v:textbox>{BOX}</v:textbox></v:shape>"
PICT = f"<w:pict {nsdecls('w')}>{VML}</w:pict>"
CHOICES = 'xmlns:mc="http://schemas.openxmlformats.org/markup-compatibility/2006"'
CHOICE = f"<mc:AlternateContent {CHOICES}>{{}}</mc:AlternateContent>"


@pytest.mark.parametrize(
    "box",
    [
        DRAWN,
        PICT,
        CHOICE.format(f"<mc:Choice>{DRAWN}</mc:Choice><mc:Fallback>{PICT}</mc:Fallback>"),
    ],
)
def test_text_boxes_of_word_are_paragraphs_once(tmp_path: Path, box: str) -> None:
    document = docx.Document()
    for place in ("shop", "office"):
        paragraph = document.add_paragraph("Goods may ")
        paragraph._p.append(parse_xml(f"<w:r {nsdecls('w')}>{box.replace('{place}', place)}</w:r>"))
        paragraph.add_run("be sent back.")
    document.save(str(tmp_path / "a.docx"))
    (passage,) = read(tmp_path / "a.docx")
    assert passage.text.split("\n\n") == [
        "Goods may be sent back.", "Ask in the shop.", "Goods may be sent back.", "Ask in the office.",
    ]  # fmt: skip


@pytest.mark.parametrize("kind", ["footnote", "endnote"])
def test_notes_of_word_follow_what_they_are_about(tmp_path: Path, kind: str) -> None:
    document = docx.Document()
    document.add_heading("Returns", 1)
    for number, style in enumerate(("List Bullet", "List Bullet", None), start=1):
        paragraph = document.add_paragraph(f"Rule {number} holds.", style=style)
        paragraph._p.append(parse_xml(f'<w:r {nsdecls("w")}><w:{kind}Reference w:id="{number}"/></w:r>'))
    document.add_heading("Fees", 1)
    document.add_paragraph("None.")
    notes = "".join(
        f'<w:{kind} w:id="{n}"><w:p><w:r><w:{kind}Ref/></w:r>'
        f'<w:r><w:t xml:space="preserve"> But not {n}.</w:t></w:r></w:p></w:{kind}>'
        for n in (1, 2, 3)
    )
    part = Part(
        PackURI(f"/word/{kind}s.xml"),
        f"application/vnd.openxmlformats-officedocument.wordprocessingml.{kind}s+xml",
        f"<w:{kind}s {nsdecls('w')}>{notes}</w:{kind}s>".encode(),
        document.part.package,
    )
    document.part.relate_to(part, f"http://schemas.openxmlformats.org/officeDocument/2006/relationships/{kind}s")
    document.save(str(tmp_path / "a.docx"))
    returns, fees = read(tmp_path / "a.docx")
    assert returns.text.split("\n\n") == [
        "- Rule 1 holds.[1]\n- Rule 2 holds.[2]",
        "[1] But not 1.",
        "[2] But not 2.",
        "Rule 3 holds.[3]",
        "[3] But not 3.",
    ]
    assert fees.text == "None."


def test_a_missing_package_is_named_with_what_installs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def find(name: str) -> object:
        return None if name == "pypdf" else importlib.util.find_spec(name)

    monkeypatch.setattr(documents_module, "find_spec", find)
    write_pdf(tmp_path / "a.pdf", LEAVE)
    with pytest.raises(TestsetError, match=r"a\.pdf: reading \.pdf needs a package\nto do: pip install \"evalhouse\["):
        read(tmp_path)


@pytest.mark.slow
def test_documents_that_unpack_to_gigabytes_are_refused_and_the_next_is_read(tmp_path: Path) -> None:
    make_word(tmp_path / "c.docx")
    with (
        zipfile.ZipFile(tmp_path / "c.docx") as good,
        zipfile.ZipFile(tmp_path / "a.docx", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as bomb,
    ):
        for name in good.namelist():
            if name != "word/document.xml":
                bomb.writestr(name, good.read(name))
        with bomb.open("word/document.xml", "w", force_zip64=True) as part:
            part.write(f"<w:document {nsdecls('w')}><w:body><w:p><w:r><w:t>".encode())
            for _ in range(1500):
                part.write(b"a" * 1_000_000)
            part.write(b"</w:t></w:r></w:p></w:body></w:document>")
    with pytest.raises(TestsetError) as refused:
        read(tmp_path)
    lines = str(refused.value).splitlines()
    assert lines[1:] == [
        "  a.docx: cannot be read: it takes more than 1,000 MB of memory to read",
        "to do: save a document that is too large in several, or as Markdown or plain text",
    ]
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss < 1_100_000
