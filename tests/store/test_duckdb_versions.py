"""A warehouse that one version of DuckDB has made is read by another.

`EVALHOUSE_OTHER_PYTHON` names the Python of an environment with another version, as `.ci/run` makes one.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest

from evalhouse.warehouse.engine.connection import read_maker
from evalhouse.warehouse.errors import WarehouseError
from evalhouse.warehouse.location import Location
from evalhouse.warehouse.metric_files import view_scripts
from evalhouse.warehouse.store import Warehouse

OTHER = os.environ.get("EVALHOUSE_OTHER_PYTHON")
RUN = "from evalhouse.flows.cli import main; main(['run', 'sample', '--limit', '6', '--fresh'])"
READ_ALL = """
import duckdb, sys
con = duckdb.connect(sys.argv[1], read_only=True)
names = [name for (name,) in con.execute("select view_name from duckdb_views() where not internal").fetchall()]
for name in names:
    con.execute(f'select * from {name}').fetchall()
print(len(names))
"""


def test_no_view_has_a_spelling_that_versions_store_differently() -> None:
    """DuckDB 2.0 stores `if(…)` as a call of a function that 1.5 does not have; 1.5 stores it as CASE."""
    scripts = view_scripts()
    assert not [script.name for script in scripts if re.search(r"\bif\s*\(", script.sql, re.IGNORECASE)]


@pytest.mark.skipif(OTHER is None, reason="EVALHOUSE_OTHER_PYTHON names no Python with another DuckDB")
def test_each_version_reads_and_continues_what_the_other_has_made(tmp_path: Path) -> None:
    assert OTHER is not None
    environment = {**os.environ, "PREFECT_HOME": str(tmp_path / "prefect")}
    environment.pop("PREFECT_API_URL", None)
    for first, second in ((OTHER, sys.executable), (sys.executable, OTHER)):
        path = tmp_path / f"by_{Path(first).parent.parent.name}.duckdb"
        environment["EVALHOUSE_WAREHOUSE"] = str(path)
        for python in (first, second):
            subprocess.run([python, "-c", RUN], env=environment, cwd=tmp_path, check=True, capture_output=True)
            for reader in (first, second):
                subprocess.run([reader, "-c", READ_ALL, str(path)], check=True, capture_output=True)
        assert Warehouse(str(path)).read("select count(*) as n from runs")["n"][0] == 2


def test_a_file_of_another_version_is_named_where_it_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "theirs.duckdb"
    duckdb.connect(str(path)).close()
    assert read_maker(Location(path=path)) == f"v{duckdb.__version__}"
    monkeypatch.setattr("evalhouse.warehouse.store.read_maker", lambda _: "v9.1.2")
    with pytest.raises(WarehouseError) as caught:
        Warehouse(str(path)).read("select * from run_scores")
    assert "was last written by DuckDB 9.1.2" in str(caught.value)
    assert duckdb.__version__ in str(caught.value)
