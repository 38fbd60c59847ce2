"""The file of word lists: every list is used, and none is defined twice."""

import re
from pathlib import Path
from typing import Any

import yaml

from evalhouse.tasks.lexical import contrast, split, texts

FILE = Path(split.__file__).with_name("words.yaml")


def test_every_list_is_used_and_defined_once() -> None:
    names = re.findall(r"^(\w+):", FILE.read_text(encoding="utf-8"), re.MULTILINE)
    modules = (split, texts, contrast)
    code = "".join(Path(str(module.__file__)).read_text(encoding="utf-8") for module in modules)
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
