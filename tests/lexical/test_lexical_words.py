"""The file of word lists: every list is used, and none is defined twice."""

import re
from pathlib import Path

from evalhouse.tasks.lexical import contrast, split, texts

FILE = Path(split.__file__).with_name("words.yaml")


def test_every_list_is_used_and_defined_once() -> None:
    names = re.findall(r"^(\w+):", FILE.read_text(encoding="utf-8"), re.MULTILINE)
    modules = (split, texts, contrast)
    code = "".join(Path(str(module.__file__)).read_text(encoding="utf-8") for module in modules)
    assert len(names) > 20
    assert len(set(names)) == len(names)
    assert [name for name in names if f'"{name}"' not in code and f"'{name}'" not in code] == []
