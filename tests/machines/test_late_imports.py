"""A package is loaded when something of it is first used, and a part of it that needs nothing else before."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from evalhouse.flows.server.environment import import_late


def test_a_part_is_there_before_its_package_and_the_package_when_it_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "tide_tables"
    package.mkdir()
    (package / "__init__.py").write_text("from tide_tables.moon import PHASES\nHIGH = len(PHASES)\n")
    (package / "moon.py").write_text("PHASES = ('new', 'full')\n")
    (package / "sun.py").write_text("RISES = 6\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    import_late("tide_tables", "sun")
    import_late("tide_tables", "sun")
    assert importlib.import_module("tide_tables.sun").RISES == 6
    assert "tide_tables.moon" not in sys.modules
    assert sys.modules["tide_tables"].HIGH == 2
    assert "tide_tables.moon" in sys.modules
    assert sys.modules["tide_tables"].sun is sys.modules["tide_tables.sun"]
    for name in [name for name in sys.modules if name.startswith("tide_tables")]:
        monkeypatch.delitem(sys.modules, name)
