"""A folder of documents, or a table of passages, as passages: what is kept, where it is cut, what is refused."""

import os
import re
import socket
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalhouse.flows.errors import explain
from evalhouse.prompts import Item
from evalhouse.tasks.judge.protocol import plain_data
from evalhouse.tasks.lexical.judge import judge_lexically
from evalhouse.tasks.testsets import TestsetError
from evalhouse.tasks.testsets.documents import Document, Passage, load_documents
from evalhouse.tasks.testsets.near import find_quote
from evalhouse.tasks.testsets.passages import ENOUGH, LONGEST, cut_markdown, cut_plain, find_blocks, find_language

RETURNS = """---
title: Shop handbook
updated: 2026-01-05
---
# Returns

Goods may be sent back within 30 days.

## Who pays?

| country | postage |
| --- | --- |
| Germany | free |

<!-- not part of the text -->

## Who *pays*? { #again }

- you, from abroad
- we, at home
"""
LEAVE = "# 休假\n\n## 年假\n\n新员工每年有 24 天年假。\n\n## 病假\n\n病假须在当天上午九点之前报告。\n"


def write(folder: Path, **texts: str) -> Path:
    for name, text in texts.items():
        path = folder / name.replace("__", "/").replace("_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


def list_passages(documents: list[Document]) -> list[Passage]:
    for document in documents:
        for passage in document.passages:
            assert document.text[passage.start : passage.start + len(passage.text)] == passage.text
    return [passage for document in documents for passage in document.passages]


def test_a_folder_is_read_by_its_headings_in_the_order_of_its_files(tmp_path: Path) -> None:
    notes: list[str] = []
    write(tmp_path, zh__leave_md=LEAVE, returns_md=RETURNS, notes_txt="One.\n\nTwo.", _hidden_md="# x\n\ny", a_rst="x")
    (tmp_path / "linked").symlink_to(tmp_path / "zh")
    documents = load_documents(tmp_path, note=notes.append)
    passages = list_passages(documents)
    assert [document.document_id for document in documents] == ["notes.txt", "returns.md", "zh/leave.md"]
    assert [(passage.passage_id, passage.headings, passage.language) for passage in passages] == [
        ("notes.txt#text", (), "en"),
        ("returns.md#shop-handbook/returns", ("Shop handbook", "Returns"), "en"),
        ("returns.md#shop-handbook/returns/who-pays", ("Shop handbook", "Returns", "Who pays?"), "en"),
        ("returns.md#shop-handbook/returns/who-pays-2", ("Shop handbook", "Returns", "Who pays?"), "en"),
        ("zh/leave.md#休假/年假", ("休假", "年假"), "zh"),
        ("zh/leave.md#休假/病假", ("休假", "病假"), "zh"),
    ]
    assert [passage.ordinal for passage in passages] == list(range(1, 7))
    assert [passage.text for passage in passages[:4]] == [
        "One.\n\nTwo.",
        "Goods may be sent back within 30 days.",
        "| country | postage |\n| --- | --- |\n| Germany | free |",
        "- you, from abroad\n- we, at home",
    ]
    assert notes == [
        "left out as hidden or linked: .hidden.md, linked/",
        "left out as not readable here: .rst (1); read are .md, .markdown, .txt, .text, .html, .htm, .xhtml, .pdf, "
        ".docx",
    ]


def test_a_hash_follows_the_words_and_headings_and_nothing_else() -> None:
    def read(text: str) -> Document:
        return cut_markdown("a.md", text)

    before = read("# A\n\nSome words\nof a text.\n\n# B\n\nMore.")
    wrapped = read("---\ndate: 1\n---\n# A\n\nSome words of\na text.\n\n\n# B\n\nMore.")
    edited = read("# A\n\nSome words of a text.\n\n# B\n\nLess.")
    hashes = [[passage.passage_hash for passage in document.passages] for document in (before, edited, wrapped)]
    assert hashes[0] == hashes[2]
    assert hashes[0][0] == hashes[1][0]
    assert hashes[0][1] != hashes[1][1]
    assert len(hashes[0][0]) == 16


@pytest.mark.parametrize("cut", [cut_plain, cut_markdown])
@given(text=st.lists(st.sampled_from(
    ["| a | b |\n", "word " * 40 + "end. ", "三十天之内可以退货。" * 30, "x" * 700, "\n", "\n\n", "# Head\n",
     "- item\n", "<!-- no -->\n", "| --- | --- |\n", "```\n", "> q\n", "1. one\n", "  ", "\u2028",
     "---\n", "A short one. ", "You need:\n"]),
    max_size=40).map("".join))  # fmt: skip
def test_passages_are_verbatim_short_enough_and_leave_no_words_out(cut: Callable[..., Document], text: str) -> None:
    document = cut("d", text)
    passages = list_passages([document])
    assert all(0 < len(passage.text) <= LONGEST and passage.text == passage.text.strip() for passage in passages)
    assert len({passage.passage_id for passage in passages}) == len(passages)
    words = document.text
    if cut is cut_markdown:
        blocks = find_blocks(document.text)
        words = "".join(words[block.start : block.end] for block in blocks if block.kind != "heading")
    assert "".join("".join(passage.text for passage in passages).split()) == "".join(words.split())
    assert cut("d", text) == document


def test_paragraphs_are_put_together_until_there_is_enough() -> None:
    short = "Send the goods back to us. "
    long = "".join(f"Sentence number {number} of many says a thing or two. " for number in range(60))
    text = f"# A\n\n{short * 8}\n\n{short * 6}\n\nYou need:\n\n- {short}\n\n{short * 20}\n\n{short}\n\n# B\n\n{long}"
    *first, last = list_passages([cut_markdown("d", text)])
    of_a = [passage for passage in first if passage.headings == ("A",)]
    assert [(passage.text.count("\n\n"), passage.text[-len(short) :].strip()) for passage in of_a] == [
        (3, short.strip()),  # two paragraphs are not enough, and a lead-in takes the list after it along
        (1, short.strip()),  # too short alone, so joined to the passage before it
    ]
    of_b = [passage for passage in [*first, last] if passage.headings == ("B",)]
    assert [passage.passage_id for passage in of_b] == ["d#b", "d#b-2", "d#b-3"]
    assert all(passage.text.endswith("thing or two.") and len(passage.text) > ENOUGH for passage in of_b)


def test_an_edit_changes_the_passages_around_it_and_no_others() -> None:
    paragraphs = [f"Paragraph {number}. " + f"It says {number} things about this. " * 9 for number in range(20)]
    before = cut_plain("d", "\n\n".join(paragraphs))
    paragraphs[7] = paragraphs[7].replace("things", "other and more things")
    after = cut_plain("d", "\n\n".join(paragraphs))
    changed = {p.passage_hash for p in after.passages} - {p.passage_hash for p in before.passages}
    assert len(changed) == 1


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("The 年假 policy for staff", "en"),
        ("员工使用 VPN 的规定", "zh"),
        ("42", "en"),
        ("", "en"),
        ("退货 return", "zh"),
    ],
)
def test_language_is_found_by_letters(text: str, language: str) -> None:
    assert find_language(text) == language


FSCK = "```\n./fsck.sh --repair --export /path/to/dir first-repo second-repo\n```"


@pytest.mark.parametrize(
    ("text", "languages"),
    [
        (f"# 检查\n\n## 命令\n\n运行下面的命令：\n\n{FSCK}\n\n## 只有命令\n\n{FSCK}\n", ["zh", "zh"]),
        (
            "# 配置\n\n把 `SERVICE_URL = https://example.com/path/to` 写进 `conf/seahub_settings.py file` 即可。\n",
            ["zh"],
        ),
        ("# Checks\n\nRun this when a library is damaged:\n\n```\necho 检查资料库是否完整并且修复\n```\n", ["en"]),
        ("# 说明\n\n这一节用中文写成。\n\n# Notes\n\nThis section is written in English.\n", ["zh", "en"]),
        ("# Data\n\n```\n资料库\n```\n", ["en"]),
    ],
)
def test_language_of_a_passage_is_that_of_its_prose_or_its_document(text: str, languages: list[str]) -> None:
    assert [passage.language for passage in cut_markdown("a.md", text).passages] == languages


@pytest.mark.parametrize(
    ("text", "kind", "cloze"),
    [
        ("1. Put 3 cups of flour into the bowl.\n2. Stir.\n", "number", "Put ____ cups of flour into the bowl."),
        ("Every year all teams\nmeet for 5 days in\nthe old mill.\n", "number",
         "Every year all teams meet for ____ days in the old mill."),
        ("| Country | Price |\n| --- | --- |\n| Germany | 5 crowns a parcel |\n", "number", None),
        ("```\ngit reset --hard 4f9d21 and wait 5 minutes\n# one\n```\n", "number", None),
        ("The commit 4f9d21 was reverted after 6 days by hand.\n", "number",
         "The commit 4f9d21 was reverted after ____ days by hand."),
        ("- 每位读者一次最多可以借阅八本图书。\n", "fact", "____读者一次最多可以借阅八本图书。"),
    ],
)  # fmt: skip
def test_lexical_questions_are_made_of_whole_sentences(text: str, kind: str, cloze: str | None) -> None:
    (passage,) = cut_markdown("a.md", f"# Title\n\n{text}").passages
    data = {"question_kind": kind, "count": "1", "contexts": [Item(id="C1", text=passage.as_context())]}
    written: Any = judge_lexically("write_question", plain_data(data))["questions"]
    assert [re.findall("[“「](.*)[”」]", one["question"])[0] for one in written] == ([cloze] if cloze else [])
    for one in written:
        assert find_quote(one["quotes"][0]["quote"], passage.text)


ROWS = [
    {"id": "p1", "text": "Goods come back in 30 days.", "document": "returns", "title": "Returns"},
    {"id": "p2", "text": "新员工有 24 天年假。", "document": "leave", "title": None},
    {"id": "p3", "text": "Postage is free.", "document": "returns", "title": "Postage"},
]


@pytest.mark.parametrize("ending", ["jsonl", "csv", "duckdb"])
def test_a_table_of_passages_keeps_its_ids(tmp_path: Path, ending: str) -> None:
    frame, path = pl.DataFrame(ROWS), tmp_path / f"passages.{ending}"
    source = str(path)
    match ending:
        case "jsonl":
            frame.write_ndjson(path)
        case "csv":
            frame.write_csv(path)
        case _:
            with duckdb.connect(str(path)) as connection:
                connection.execute("create table passages as select * from frame")
            source = f"{path}#passages"
    documents = load_documents(source)
    assert [document.document_id for document in documents] == ["returns", "leave"]
    assert [(p.passage_id, p.headings, p.text, p.ordinal) for p in list_passages(documents)] == [
        ("p1", ("Returns",), "Goods come back in 30 days.", 1),
        ("p3", ("Postage",), "Postage is free.", 2),
        ("p2", (), "新员工有 24 天年假。", 3),
    ]


def test_a_table_may_name_its_columns_as_others_do(tmp_path: Path) -> None:
    path = write(tmp_path, p_jsonl='{"page_content": "Free.", "metadata": {"id": 7, "source": "a.md"}}\n') / "p.jsonl"
    (document,) = load_documents(path)
    assert (document.document_id, document.passages[0].passage_id, document.text) == ("a.md", "7", "Free.")


def test_a_table_is_refused_with_all_that_is_wrong(tmp_path: Path) -> None:
    lines = [
        '{"id": "a", "text": "x"}',
        '{"id": "a", "text": "y"}',
        '{"id": "b"}',
        '{"id": "c", "text": " "}',
        "{",
        "[]",
    ]
    path = write(tmp_path, p_jsonl="\n".join(lines)) / "p.jsonl"
    with pytest.raises(TestsetError) as refused:
        load_documents(path)
    message = str(refused.value)
    assert message.startswith(f"{path}: 5 problems; nothing was read")
    for part in (
        "line 2: id 'a' is that of line 1 already",
        "line 3: no text; columns: id",
        "line 4: text is empty",
        "line 5: broken JSON",
        "line 6: a list, not a JSON object",
        "to do: an id names one passage",
    ):
        assert part in message


def test_text_in_other_encodings_is_read(tmp_path: Path) -> None:
    (tmp_path / "zh.txt").write_bytes("新员工每年有二十四天的年假，可以在系统中申请。".encode("gb18030"))
    (tmp_path / "de.md").write_bytes("# Rückgabe\r\n\r\nGrößere Pakete können Sie zurückgeben.".encode("cp1252"))
    (tmp_path / "u16.txt").write_bytes("Free postage.".encode("utf-16"))
    (tmp_path / "bom.md").write_bytes("\ufeff# Title\n\nWords.".encode())
    passages = {passage.passage_id: passage.text for passage in list_passages(load_documents(tmp_path))}
    assert passages == {
        "bom.md#title": "Words.",
        "de.md#rückgabe": "Größere Pakete können Sie zurückgeben.",
        "u16.txt#text": "Free postage.",
        "zh.txt#text": "新员工每年有二十四天的年假，可以在系统中申请。",
    }


def test_all_files_that_cannot_be_read_are_named_together(tmp_path: Path) -> None:
    write(tmp_path, good_md="# A\n\nWords.")
    (tmp_path / "a.txt").write_bytes("дом".encode("cp1251"))
    (tmp_path / "b.md").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TestsetError) as refused:
        load_documents(tmp_path)
    message = str(refused.value)
    assert "2 problems; nothing was read" in message
    assert "a.txt: not UTF-8; line 1 reads" in message
    assert "'дом' with --encoding cp1251" in message
    assert "b.md: not utf-16" in message
    assert explain(refused.value) == message  # and no traceback at the command line
    (tmp_path / "b.md").unlink()
    assert "дом" in [passage.text for passage in list_passages(load_documents(tmp_path, encoding="cp1251"))]
    with pytest.raises(TestsetError, match="--encoding klingon is not known"):
        load_documents(tmp_path, encoding="klingon")


def test_source_without_documents_lists_its_files(tmp_path: Path) -> None:
    with pytest.raises(TestsetError, match=r"missing: no such file or folder; allowed: a folder of documents"):
        load_documents(tmp_path / "missing")
    write(tmp_path, a_rst="x", b_rst="y")
    with pytest.raises(TestsetError, match=r"has no documents; left out as not readable here: \.rst \(2\)"):
        load_documents(tmp_path)
    write(tmp_path, a_md="# Only a heading\n")
    with pytest.raises(TestsetError, match="no text in it"):
        load_documents(tmp_path)
    notes: list[str] = []
    write(tmp_path, b_md="# A\n\nWords.")
    assert [document.document_id for document in load_documents(tmp_path, note=notes.append)] == ["b.md"]
    assert notes[-1] == "without any text: a.md"
    assert [d.document_id for d in load_documents(tmp_path / "b.md")] == ["b.md"]


@pytest.mark.slow
def test_a_large_base_takes_seconds_and_memory_in_proportion(tmp_path: Path) -> None:
    """2,000 passages, compared with a quarter of them. Measured: 1 s and 6 MB for 2 MB of text."""
    peaks = []
    for n_documents in (50, 200):
        folder = tmp_path / str(n_documents)
        sections = [f"## Section {number}\n\n" + "Words of the section, a good many. " * 27 for number in range(10)]
        for number in range(n_documents):
            write(folder, **{f"d{number}_md": f"# Document {number}\n\n" + "\n\n".join(sections)})
        started = time.perf_counter()
        tracemalloc.start()
        assert len(list_passages(load_documents(folder))) == n_documents * 10
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert time.perf_counter() - started < 60
    assert peaks[1] < 5 * peaks[0]


def test_paths_that_lead_to_no_file_of_the_folder_are_refused(tmp_path: Path) -> None:
    outside = write(tmp_path / "outside", secret_txt="The password is 7.") / "secret.txt"
    folder = write(tmp_path / "base", a_md="# A\n\nWords.")
    os.mkfifo(folder / "fifo.txt")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "socket.md"))
    links = {"zero.txt": "/dev/zero", "out.txt": outside, "up.md": "../outside/secret.txt", "self.md": "self.md",
             "gone.pdf": "gone", "fifo.docx": "fifo.txt"}  # fmt: skip
    for name, target in links.items():
        (folder / name).symlink_to(target)
    (folder / "inside.md").symlink_to("a.md")
    with pytest.raises(TestsetError) as refused:
        load_documents(folder)
    assert str(refused.value).splitlines()[1:-2] == [
        "  fifo.docx: is a FIFO, not a file",
        "  fifo.txt: is a FIFO, not a file",
        "  gone.pdf: is a link to nothing, not a file",
        f"  out.txt: a link to {outside}, out of the folder",
        "  self.md: is a link to nothing, not a file",
        "  socket.md: is a socket, not a file",
        f"  up.md: a link to {outside}, out of the folder",
        "  zero.txt: is a device, not a file",
    ]
    with pytest.raises(TestsetError, match="is a FIFO"):
        load_documents(folder / "fifo.txt")
    for name in ("fifo.txt", "socket.md", *links):
        (folder / name).unlink()
    assert [document.document_id for document in load_documents(folder)] == ["a.md", "inside.md"]
    (passage,) = list_passages(load_documents((folder / "named.txt").symlink_to(outside) or folder / "named.txt"))
    assert passage.text == "The password is 7.", "a document that is named may be a link"
