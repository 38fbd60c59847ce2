"""Reading of texts by the lexical judge: sentences, stems, numbers, names, negation, the bounded cache."""

import re
from pathlib import Path

import pytest

from evalhouse.tasks.lexical import contrast, split, texts
from evalhouse.tasks.lexical.split import read_alternatives, split_sentences, stem_word
from evalhouse.tasks.lexical.texts import MAX_CHARACTERS, analyse_text, read_number


def read_keys(text: str) -> list[str]:
    return [token.key for sentence in analyse_text(text).sentences for token in sentence.tokens]


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("Dr. Okoye left. She was tired.", ["Dr. Okoye left.", "She was tired."]),
        ("The U.S. Navy owns No. 7 there.", ["The U.S. Navy owns No. 7 there."]),
        ("It opens at 9 a.m. on Mondays.", ["It opens at 9 a.m. on Mondays."]),
        ("Citrus (i.e. lemons) is sour. Eat it.", ["Citrus (i.e. lemons) is sour.", "Eat it."]),
        ("Pi is 3.14. Version 2.0.1 is out.", ["Pi is 3.14.", "Version 2.0.1 is out."]),
        ("Read https://a.example/x.html today. Then rest.", ["Read https://a.example/x.html today.", "Then rest."]),
        ("Well... it broke. Again?! Yes.", ["Well... it broke.", "Again?!", "Yes."]),
        ("1. Mix the flour. 2. Bake it.", ["1. Mix the flour.", "2. Bake it."]),
        ('"It works." Nobody agreed.', ['"It works."', "Nobody agreed."]),
        ("Two lines\nare two", ["Two lines", "are two"]),
        ("天黑了。我们回家吧！", ["天黑了。", "我们回家吧！"]),
        ("她说：“太晚了。”门关上了。", ["她说：“太晚了。”", "门关上了。"]),
        ("“真的吗？”他问。没人回答。", ["“真的吗？”他问。", "没人回答。"]),
        ("价格是3.5元。版本为2.0。", ["价格是3.5元。", "版本为2.0。"]),
        ("它用Python写成.很快。", ["它用Python写成.", "很快。"]),
    ],
)
def test_sentence_ends(text: str, sentences: list[str]) -> None:
    assert split_sentences(text) == sentences


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("connected", "connections"),
        ("organised", "organization"),
        ("children", "child"),
        ("risen", "rises"),
    ],
)
def test_forms_of_a_word_share_a_stem(left: str, right: str) -> None:
    assert stem_word(left) == stem_word(right)


@pytest.mark.parametrize(("left", "right"), [("new", "news"), ("cat", "cater"), ("less", "lesson"), ("bus", "but")])
def test_other_words_keep_apart(left: str, right: str) -> None:
    assert stem_word(left) != stem_word(right)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1,250,000 people", "#1250000"),
        ("1.25 million people", "#1250000"),
        ("125万人", "#1250000"),
        ("一百二十五万人", "#1250000"),
        ("30%", "#30%"),
        ("30 percent", "#30%"),
        ("百分之三十", "#30%"),
        ("百分之三点五", "#3.5%"),
        ("two hundred and five", "#205"),
        ("二〇一九年", "#2019"),
        ("third", "#o3"),
        ("第三次", "#o3"),
        ("in October", "#m10"),
        ("10月", "#m10"),
        ("2019-10-03", "#m10"),
        ("on Dec. 5", "#m12"),
        ("version 2.0.1", "#2.0.1"),
    ],
)
def test_a_number_has_one_key(text: str, number: str) -> None:
    assert number in read_keys(text)


def test_what_only_looks_like_a_number_is_none() -> None:
    for text in ("They may march home", "one of them, 一个人", "The bridge is old [3]"):
        assert not [key for key in read_keys(text) if key.startswith("#")], text
    assert "#m10" not in read_keys("They won 15-10-3 there")
    assert read_number("chinese", "三五") is None


def test_words_have_one_key_however_they_are_written() -> None:
    assert read_keys("the U.S. economy") == read_keys("the US economy")
    assert read_keys("Café ＡＢＣ１２") == read_keys("Cafe ABC12")
    assert {"c#", "c++"} <= set(read_keys("C# is not C++ here"))
    assert (read_keys("Yes."), read_keys("No")) == (["yes"], ["no"])


@pytest.mark.parametrize("text", ["", "   ", "?!", "的", "🙂"])
def test_texts_without_content_are_fine(text: str) -> None:
    assert analyse_text(text).text == text


@pytest.mark.parametrize(
    ("text", "spellings"),
    [
        ("Ana Ruiz / Ana R.", ["Ana Ruiz", "Ana R."]),
        ("Ana Ruiz/Ruiz", ["Ana Ruiz", "Ruiz"]),
        ("TCP/IP", ["TCP/IP"]),
        ("120 km/h on dry roads", ["120 km/h on dry roads"]),
        ("3/4 cup of milk", ["3/4 cup of milk"]),
        ("It is a / b here.\nNext line / more", ["It is a / b here.\nNext line / more"]),
    ],
)
def test_alternative_spellings(text: str, spellings: list[str]) -> None:
    assert read_alternatives(text) == spellings


@pytest.mark.parametrize("word", ["Twelve", "No", "Rain", "U.S.", "doesn't"])
def test_a_sentence_reads_alike_with_and_without_digits(word: str) -> None:
    assert read_keys(f"{word}, it ends 7")[:-1] == read_keys(f"{word}, it ends")


def test_the_same_text_is_kept_and_the_texts_kept_stay_bounded() -> None:
    first = analyse_text("a small text")
    assert analyse_text("a small text") is first
    for number in range(20):
        analyse_text(f"text number {number}, {'and more ' * (MAX_CHARACTERS // 100)}")
    kept = analyse_text.cache
    assert kept is not None
    assert sum(len(text.text) for text in kept.values()) <= MAX_CHARACTERS
    assert analyse_text("a small text") is not first
    assert analyse_text("x" * 2 * MAX_CHARACTERS).text, "one that is longer than all is analysed and not kept"


def test_every_list_of_words_is_used_and_defined_once() -> None:
    path = Path(split.__file__).with_name("words.yaml")
    names = re.findall(r"^(\w+):", path.read_text(encoding="utf-8"), re.MULTILINE)
    code = "".join(Path(str(module.__file__)).read_text(encoding="utf-8") for module in (split, texts, contrast))
    assert len(set(names)) == len(names) > 20
    assert [name for name in names if f'"{name}"' not in code and f"'{name}'" not in code] == []
