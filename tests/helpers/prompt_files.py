"""Prompt files for the tests: the built-in ones as plain data, and edited copies of them on disk."""

from pathlib import Path
from typing import Any

import yaml

PACKAGE = Path(__file__).parents[2] / "prompts"
NAMES = ["attribute", "classify", "extract", "rank"]  # the prompts for verdicts on items
ALL_NAMES = sorted(path.stem for path in (PACKAGE / "en").glob("*.yaml"))


def read_content(name: str, language: str = "en") -> dict[str, Any]:
    content: dict[str, Any] = yaml.load((PACKAGE / language / f"{name}.yaml").read_bytes(), yaml.CSafeLoader)
    return content


def write_prompt(folder: Path, content: dict[str, Any], *, file_name: str = "") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / (file_name or f"{content['name']}.yaml")
    text = yaml.dump(content, Dumper=yaml.CSafeDumper, allow_unicode=True, sort_keys=False)
    path.write_text(text, encoding="utf-8")
    return path
