"""The file of words: every list is used, and a wrong one fails loudly."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from evalhouse.tasks.lexical import contrast, split, texts

FILE = Path(split.__file__).with_name("words.yaml")


def test_every_list_is_used_and_stands_once() -> None:
    names = re.findall(r"^(\w+):", FILE.read_text(encoding="utf-8"), re.MULTILINE)
    code = "".join(Path(str(module.__file__)).read_text(encoding="utf-8") for module in (split, texts, contrast))
    assert len(names) > 20
    assert len(set(names)) == len(names)
    assert [name for name in names if f'"{name}"' not in code and f"'{name}'" not in code] == []


def test_patterns_of_silence_stand_once_each() -> None:
    def read_keys(name: str) -> list[str]:
        node: Any = yaml.compose(FILE.read_text(encoding="utf-8"))
        return [key.value for top, mapping in node.value if top.value == name for key, _ in mapping.value]

    for name in ("silences", "chinese_silences", "scales", "chinese_digits", "endings"):
        keys = read_keys(name)
        assert keys
        assert len(set(keys)) == len(keys)


@pytest.mark.parametrize(
    ("lists", "complaint"),
    [
        ({}, "'negations' must be a text"),
        ({"negations": " "}, "'negations' must be a text"),
        ({"negations": ["no"]}, "'negations' must be a text"),
    ],
)
def test_a_list_that_is_wrong_is_refused(
    lists: dict[str, object], complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(split, "_LISTS", lists)
    with pytest.raises(ValueError, match=complaint):
        split.read_words("negations")


def test_a_mapping_or_a_pair_that_is_wrong_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split, "_LISTS", {"scales": "hundred", "antonyms": "up down, left"})
    with pytest.raises(ValueError, match="'scales' must be a mapping"):
        split.read_numbers("scales")
    with pytest.raises(ValueError, match="'antonyms' must hold two words between commas"):
        split._read_pairs("antonyms")
