"""DuckDB's look for pandas at each value costs no search where there is none, and finds one that is there."""

import importlib.util
import sys
from pathlib import Path

import duckdb
import pytest

from evalhouse.warehouse.engine.no_pandas import AbsenceFinder, remember_absence


class Searches:
    """Stands before the finders that look into folders, and writes down what they are asked for."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def find_spec(self, fullname: str, *_: object) -> None:
        self.names.append(fullname)


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> Searches:
    searches = Searches()
    others = [finder for finder in sys.meta_path if not isinstance(finder, AbsenceFinder)]
    monkeypatch.setattr(sys, "meta_path", [searches, *others])
    monkeypatch.setattr(sys, "modules", {name: module for name, module in sys.modules.items() if name != "pandas"})
    monkeypatch.setattr(sys, "path", [])  # where no pandas is
    return searches


def insert_values() -> None:
    with duckdb.connect() as connection:
        connection.execute("create table rows (a integer, b varchar)")
        for number in range(3):
            connection.execute("insert into rows values (?, ?)", [number, "x"])


def test_duckdb_searches_for_pandas_at_each_value(searches: Searches) -> None:
    insert_values()
    assert searches.names.count("pandas") > 3, "DuckDB no longer asks: `no_pandas` can go"


def test_the_search_is_made_once(searches: Searches) -> None:
    remember_absence()
    remember_absence()
    insert_values()
    assert searches.names.count("pandas") == 1
    with pytest.raises(ModuleNotFoundError, match="No module named 'pandas'"):
        importlib.import_module("pandas")


def test_a_pandas_that_is_put_on_the_path_later_is_found(searches: Searches, tmp_path: Path) -> None:
    remember_absence()
    insert_values()
    (tmp_path / "pandas.py").write_text("here = True")
    sys.path.append(str(tmp_path))
    assert importlib.import_module("pandas").here


def test_who_asks_whether_there_is_one_is_told_that_there_is_none(searches: Searches) -> None:
    remember_absence()
    insert_values()
    assert importlib.util.find_spec("pandas") is None  # torch asks so, and is not importable where this raises
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("pandas")
