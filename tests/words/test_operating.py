"""The commands of the operating guide work as it states, if they need neither Docker nor systemd.

`test_deploy_files` looks at what the others start.
"""

from __future__ import annotations

import re
import shlex
import sqlite3
import subprocess
from pathlib import Path

import pytest
from cli_process import ROOT, call_here
from history_nights import Size, write_nights
from prefect.settings.models.server.services import ServerServicesDBVacuumSettings

GUIDE = (ROOT / "flows" / "guides" / "operating.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```sh\n(.*?)```", GUIDE, flags=re.DOTALL)


def list_commands(start: str) -> list[list[str]]:
    """The words of all lines of the guide that begin so, without their comments."""
    return [
        shlex.split(line, comments=True) for block in BLOCKS for line in block.splitlines() if line.startswith(start)
    ]


def test_a_warehouse_is_checked_backed_up_forgotten_and_made_smaller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_nights(tmp_path / "evalhouse.duckdb", Size(nights=2, samples=5))
    monkeypatch.setenv("EVALHOUSE_WAREHOUSE", str(tmp_path / "evalhouse.duckdb"))
    (tmp_path / "backups").mkdir()
    outputs = {}
    for words in list_commands("evalhouse warehouse"):
        own = [word.replace("/backups", str(tmp_path / "backups")) for word in words[1:]]
        asked = ["--yes"] if "forget" in own and "--dry-run" not in own else []  # no terminal to ask at
        done = call_here(capsys, *own, *asked)
        assert done.status == 0, (words, done.stderr)
        outputs[" ".join(words[2:])] = done.stdout
    assert len(outputs) == 5
    (backup,) = (tmp_path / "backups").glob("evalhouse-*.duckdb")
    # What the guide names after that is such a file.
    (named,) = re.findall(r"--warehouse /backups/(evalhouse-[\d-]+\.duckdb)", GUIDE)
    assert re.sub(r"\d", "0", named) == re.sub(r"\d", "0", backup.name)
    shown = call_here(capsys, "show", "latest", "--warehouse", str(backup))
    assert shown.status == 0, shown.stderr


def test_prefect_knows_the_settings_that_bound_its_history(monkeypatch: pytest.MonkeyPatch) -> None:
    for _, assignment in list_commands("export PREFECT"):
        name, _, value = assignment.partition("=")
        monkeypatch.setenv(name, value)
    settings = ServerServicesDBVacuumSettings()
    assert settings.enabled == {"events", "flow_runs"}
    assert settings.retention_period.total_seconds() == 7_776_000


def test_the_command_that_makes_prefects_file_smaller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with sqlite3.connect("prefect.db") as connection:
        connection.execute("create table log as select zeroblob(1000000) as text")
        connection.execute("delete from log")
    connection.close()
    before = (tmp_path / "prefect.db").stat().st_size
    (command,) = re.findall(r'`(python3 -c "import sqlite3.*?")`', GUIDE)
    subprocess.run(shlex.split(command), check=True)
    assert (tmp_path / "prefect.db").stat().st_size < before / 10


def test_every_file_that_the_guide_starts_or_copies_is_there() -> None:
    named = {name for block in BLOCKS for name in re.findall(r"flows/deploy[\w./-]*|tests/benchmarks/[\w.]+", block)}
    named |= set(re.findall(r"`(?:python )?(tests/benchmarks/[\w.]+)`", GUIDE))
    assert named
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []
