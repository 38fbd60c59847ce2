"""The files in `flows/deploy`: what they start exists, with the options they give, and programs that are meant to read
them do, where they are at hand."""

from __future__ import annotations

import configparser
import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from cli_process import ROOT

from evalhouse.flows.commands.serve import receive, serve, ui

FOLDER = ROOT / "flows" / "deploy"
COMPOSE = FOLDER / "compose.yaml"
UNITS = sorted(FOLDER.glob("*.service"))
COMMANDS: dict[str, click.Command] = {"receive": receive, "serve": serve, "ui": ui}
VARIABLES = {
    "POSTGRES_PASSWORD": "letters", "PREFECT_AUTH": "admin:letters", "EVALHOUSE_UI_TOKEN": "letters",
    "EVALHOUSE_RECEIVE_TOKEN": "letters",
}  # fmt: skip


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))
    return document


def check_command(words: list[str]) -> None:
    """Check that a command, perhaps within `sh -c`, exists and takes its options."""
    if words[0].endswith("sh"):
        words = shlex.split(words[2].removeprefix("exec "))
    if not words[0].endswith("evalhouse"):
        assert words[0].endswith("prefect")
        return
    known = {
        option for parameter in COMMANDS[words[1]].params for option in (*parameter.opts, *parameter.secondary_opts)
    }
    assert {word for word in words if word.startswith("--")} <= known


def test_every_service_starts_what_is_there(compose: dict[str, Any]) -> None:
    services = compose["services"]
    assert services.keys() == {"postgres", "prefect", "serve", "worker", "ui", "receive"}
    for name in services.keys() - {"postgres"}:
        check_command(services[name]["command"])
    mounted = {volume.split(":")[0] for service in services.values() for volume in service["volumes"]}
    assert {name for name in mounted if not name.startswith(".")} == compose["volumes"].keys()


def test_no_secret_is_in_the_file_and_each_variable_is_explained(compose: dict[str, Any]) -> None:
    text = COMPOSE.read_text(encoding="utf-8")
    assert set(re.findall(r"\$\{([A-Z_]+)", text)) == VARIABLES.keys()
    head = text[: text.index("\nname:")]
    assert all(f"#     {name}=" in head for name in VARIABLES)
    for service in compose["services"].values():
        for name, value in service.get("environment", {}).items():
            assert not re.search("PASSWORD|TOKEN|AUTH", name) or value.startswith("${")
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))


def test_the_image_installs_extras_that_exist() -> None:
    text = (FOLDER / "Dockerfile").read_text(encoding="utf-8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (extras,) = re.findall(r"ARG EXTRAS=(.+)", text)
    assert set(extras.split(",")) <= project["optional-dependencies"].keys()
    assert f"FROM python:{project['requires-python'].removeprefix('>=')}-slim" in text
    assert (ROOT / "requirements.lock").is_file()


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_every_unit_starts_what_is_there(unit: Path) -> None:
    parser = configparser.ConfigParser(interpolation=None, strict=True)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(unit, encoding="utf-8")
    assert parser.sections() == ["Unit", "Service", "Install"]
    check_command(shlex.split(parser["Service"]["ExecStart"]))
    assert parser["Service"]["User"] == "evalhouse"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_systemd_takes_every_unit(unit: Path) -> None:
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False)
    # The programs are where the guide has them installed, which is not here.
    assert [line for line in done.stderr.splitlines() if "is not executable" not in line] == []


def _has_compose() -> bool:
    if shutil.which("docker") is None:
        return False
    return subprocess.run(["docker", "compose", "version"], capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not _has_compose(), reason="no Docker Compose here")
def test_docker_compose_takes_the_file() -> None:
    done = subprocess.run(
        ["docker", "compose", "-f", str(COMPOSE), "config", "--quiet"],
        env={"PATH": "/usr/local/bin:/usr/bin:/bin", **VARIABLES},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
