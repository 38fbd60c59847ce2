"""Texts longer than a request: nothing is lost, every part fits, and cuts fall where they hurt least."""

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from evalhouse.prompts import Item
from evalhouse.tasks.asking.splitting import split_items, split_text, split_to_judge
from evalhouse.tasks.asking.usage import estimate_items, estimate_tokens

ENGLISH = (
    "The lamp was lit in 1911. It burned oil, then gas; since 1962 it runs on tidal power. Who keeps it? Ode Varn."
)
CHINESE = "灯塔建于一九一一年。它先烧油，后来改用煤气；一九六二年起靠潮汐发电。谁在看守？是欧德。"
TABLE = "| Year | Fuel |\n| --- | --- |\n| 1911 | oil |\n| 1962 | tide |\n"
FENCE = "```python\nlamp = light()\n\nlamp.burn(oil=True)\n```\n"
LIST = "The keepers were:\n\n- Ode Varn, until 1911\n\n- Mira Solveng, since then\n\n  She came from the south.\n"
WRAPPED = (
    "The lamp was lit in 1911 by the first keeper of the northern cape and\nhas burned ever since, with a break of\n"
    "three nights in the winter of 1962.\n"
)
SCRAPS = st.sampled_from(
    [ENGLISH, CHINESE, TABLE, FENCE, LIST, WRAPPED, "# A heading\n\n", "\n\n", "\r\n", " \t", "：\n\n", "🗼", "é\u0301",
     "سُئلت الحارسة؟ نعم. ", "मीनार पुरानी है। ", "วันที่เปิดน้ำ", "ヶ月｡", "👩‍🚒", "🇩🇪",
     "x" * 90, "灯" * 70, "```\n", "1. ", "**Bold**\n", "a, b; c: ", "\u2028", "...", "“好！”他说。"]
)  # fmt: skip
TEXTS = st.lists(SCRAPS | st.text(max_size=30), max_size=14).map("".join)


def make_prose(n_paragraphs: int) -> str:
    return "\n\n".join(f"Paragraph {number} begins. It continues. It ends." for number in range(1, n_paragraphs + 1))


@given(text=TEXTS, most=st.integers(1, 120))
@example(text="", most=1)
@example(text="🗼" * 9, most=1)
@example(text="\n" * 50, most=3)
@example(text="word " * 40 + "é", most=10)
def test_joined_parts_are_the_text_and_each_of_them_fits(text: str, most: int) -> None:
    parts = split_text(text, most)
    assert "".join(parts) == text
    assert all(estimate_tokens(part) <= most for part in parts)
    assert all(parts) or parts == [""]


@given(text=TEXTS, most=st.integers(1, 120))
def test_a_text_that_fits_stays_whole_and_others_take_no_more_parts_than_they_must(text: str, most: int) -> None:
    parts = split_text(text, most)
    assert (len(parts) == 1) is (estimate_tokens(text) <= most)
    for one, other in pairwise(parts):
        assert estimate_tokens(one + other) > most


@pytest.mark.parametrize("text", ["x" * 5000, "灯" * 5000, "🗼" * 1000, "x" * 900 + " short words follow it"])
def test_one_giant_word_is_cut_between_characters(text: str) -> None:
    parts = split_text(text, 100)
    assert "".join(parts) == text
    assert all(estimate_tokens(part) <= 100 for part in parts)
    assert len(parts) <= estimate_tokens(text) // 100 + 2


@pytest.mark.parametrize("unit", [
    "word " * 40, *(pytest.param(unit, marks=pytest.mark.slow) for unit in ("灯" * 100, "a:\n\n" * 40, "- a\n\n" * 40,
                                                                          ":" * 200, "\n \n" * 60)),
])  # fmt: skip
def test_work_grows_with_the_text_and_not_with_its_square(unit: str) -> None:
    """Each of these takes hours otherwise."""
    text = unit * 1_000
    assert "".join(split_text(text, 500)) == text


def test_paragraphs_are_not_broken_while_one_fits() -> None:
    text = make_prose(30)
    parts = split_text(text, 60)
    assert len(parts) > 5
    assert all(part.startswith("Paragraph ") for part in parts)
    assert all(part.rstrip().endswith("It ends.") for part in parts)


@pytest.mark.parametrize(("text", "ends"), [
    (ENGLISH * 9, ".?"),
    (CHINESE * 9, "。？"),
    ("Die Lampe brannte ab 1911. Wer hütet sie? Frau Löwe z. B. wohnt dort. " * 9, ".?"),
    ("灯台は一九一一年に建てられた。誰が守るのか？オデである｡" * 9, "。？｡"),
    ("أضيئت المنارة عام ١٩١١. من يحرسها؟ إنه عدي. " * 9, ".؟"),
    ("मीनार १९११ में बनी। उसे कौन देखता है? वह पुरानी है॥ " * 9, "।?॥"),
    ("መብራቱ በ1911 ተሠራ። ማን ይጠብቀዋል፧ " * 9, "።፧"),
])  # fmt: skip
def test_a_paragraph_without_room_is_cut_behind_sentences(text: str, ends: str) -> None:
    parts = split_text(text, 50)
    assert len(parts) > 3
    assert all(part.rstrip()[-1] in ends for part in parts)


CHARACTERS = {
    "accents": "e\u0301\u0323", "Hindi": "क्षि", "Tamil": "நி", "Thai": "น้ำ", "Arabic": "مُّ",
    "Korean": "\u1112\u1161\u11ab", "Hebrew": "שָׁ", "family": "👩\u200d👩\u200d👧", "skin": "👍🏽", "flag": "🇩🇪",
    "heart": "❤\ufe0f", "keycap": "1\ufe0f\u20e3",
}  # fmt: skip


@pytest.mark.parametrize("character", CHARACTERS.values(), ids=CHARACTERS)
def test_no_cut_falls_within_what_a_reader_sees_as_one_character(character: str) -> None:
    for most in range(estimate_tokens(character), 40):
        parts = split_text(character * 60, most)
        assert len(parts) > 1
        assert {part.replace(character, "") for part in parts} == {""}


def test_no_abbreviation_decimal_or_initial_is_taken_for_a_sentences_end() -> None:
    text = "Dr. M. Solveng measured 3.14 metres at approx. 5 a.m. on the pier of St. Tarn. " * 12
    assert {part.strip()[-9:] for part in split_text(text, 30)} == {"St. Tarn."}


@pytest.mark.parametrize(
    ("sentence", "marks"),
    [("the keeper, the lamp, the oil and the gulls, " * 20, ","), ("看守人、灯、油和海鸥，还有鱼，" * 30, "，")],
)
def test_a_sentence_without_room_is_cut_behind_commas(sentence: str, marks: str) -> None:
    parts = split_text(sentence, 40)
    assert len(parts) > 3
    assert all(part.rstrip()[-1] in marks for part in parts)


def test_a_clause_without_room_is_cut_between_words() -> None:
    text = "lamp oil gull pier " * 60
    assert all(set(part.split()) <= {"lamp", "oil", "gull", "pier"} for part in split_text(text, 20))
    assert all(part.endswith("、") for part in split_text("灯塔、看守人、海鸥、" * 60, 20))


@pytest.mark.parametrize("block", [TABLE, FENCE, LIST], ids=["table", "fence", "list"])
def test_what_belongs_together_stays_together_while_it_fits(block: str) -> None:
    for n_before in range(1, 8):
        parts = split_text(f"{make_prose(n_before)}\n\n{block}\n{make_prose(5)}", 50)
        assert len(parts) > 1
        assert sum(block.strip() in part for part in parts) == 1


def test_a_large_table_is_cut_between_rows() -> None:
    table = "| Year | Fuel |\n| --- | --- |\n" + "".join(f"| {year} | oil, then gas |\n" for year in range(1900, 1960))
    parts = split_text(table, 60)
    assert len(parts) > 3
    assert all(part.startswith("|") and part.endswith("|\n") for part in parts)


def test_a_fence_ends_only_with_the_mark_it_began_with() -> None:
    fence = "~~~\nlight()\n\n```\n\nwait()\n~~~\n"
    text = f"{make_prose(5)}\n\n{fence}\n{make_prose(5)}"
    for most in range(estimate_tokens(fence) + 5, 70):
        parts = split_text(text, most)
        assert len(parts) > 1
        assert sum(fence in part for part in parts) == 1


@pytest.mark.parametrize("lead", ["# Keepers", "**Keepers**", "The keepers were:", "看守人如下："])
def test_what_leads_on_goes_with_what_follows(lead: str) -> None:
    for n_before in range(1, 8):
        text = f"{make_prose(n_before)}\n\n{lead}\n\nOde Varn kept the lamp.\n\n{make_prose(4)}"
        (holding,) = [part for part in split_text(text, 40) if lead in part]
        assert f"{lead}\n\nOde Varn kept the lamp." in holding


LONG_LINE = "The lamp was lit on the northern cape in the winter of that year by"


def is_cut_between(line: str, following: str) -> bool:
    """Return True if some size of the parts puts a cut at the line break."""
    text = f"{line}\n{following}\n" * 12
    return any(part.endswith(f"{line}\n") for most in range(25, 90) for part in split_text(text, most))


@pytest.mark.parametrize(("line", "following"), [
    ("The lamp was lit by", "the keeper."),
    ("The lamp, the oil,", "Ode and Mira are gone."),
    ("灯塔建于一九一一年，", "由欧德看守。"),
    (LONG_LINE, "Ode Varn."),
    (LONG_LINE, "1911 at the latest."),
])  # fmt: skip
def test_a_sentence_wrapped_over_lines_is_one_sentence(line: str, following: str) -> None:
    assert not is_cut_between(line, following)


@pytest.mark.parametrize(("line", "following"), [
    ("Berth one is free", "Berth two is not."),
    ("It was lit in 1911.", "but not in 1912."),
    (LONG_LINE, "- keepers of the cape."),
    (LONG_LINE, "2. keepers of the cape."),
    (LONG_LINE, "（二）看守人。"),
    (LONG_LINE, "| a keeper | a cape |"),
    (LONG_LINE, "> keepers of the cape."),
])  # fmt: skip
def test_a_line_that_begins_something_new_may_begin_a_part(line: str, following: str) -> None:
    assert is_cut_between(line, following)


def test_blanks_send_no_request() -> None:
    text = "The lamp is lit." + " \n" * 400 + "The oil is low."
    parts = split_to_judge(text, 20)
    assert len(split_text(text, 20)) > 5
    assert [part.strip() for part in parts] == ["The lamp is lit.", "The oil is low."]


@pytest.mark.parametrize("text", ["", "  ", " \n" * 400])
def test_a_text_of_blanks_alone_is_asked_about_once(text: str) -> None:
    (part,) = split_to_judge(text, 20)
    assert not part.strip()


@given(texts=st.lists(TEXTS, max_size=8), most=st.integers(5, 200))
def test_items_come_in_groups_that_fit_and_never_twice_in_one(texts: list[str], most: int) -> None:
    items = [Item(id=f"C{rank}", text=text) for rank, text in enumerate(texts, start=1)]
    groups = split_items(items, most)
    assert all(groups)
    assert all(estimate_items(group) <= most for group in groups)
    assert all(len({item.id for item in group}) == len(group) for group in groups)
    for item in items:
        found = [piece.text for group in groups for piece in group if piece.id == item.id]
        if estimate_items([item]) <= most:
            assert found == [item.text]
        else:
            assert "".join("".join(found).split()) == "".join(item.text.split())
    ranks = [int(piece.id[1:]) for group in groups for piece in group]
    assert ranks == sorted(ranks)
