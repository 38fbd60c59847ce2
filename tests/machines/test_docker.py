"""The services of `flows/deploy`, built and started by Docker Compose: suites served, pages shown, traces received.

Without a Docker engine, or without the base images that it builds on and a way to pull them, the files
are only read: by tests/commands/test_deploy_files.py.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import httpx
import pytest
from cli_process import ROOT
from trace_files import make_bot_trace, make_request

T = TypeVar("T")
PYTHON, POSTGRES = "python:3.11-slim", "postgres:17"
TOKEN = "abcdefghij0123456789"
SUITE = 'dataset = "sample"\njudge = "lexical"\n[schedule]\ncron = "* * * * *"\n'
# Free ports, and none for the worker, which gets no work here.
OVERRIDE = """
name: evalhouse-test
services:
  prefect: {{ports: !override ["127.0.0.1::4200"]}}
  serve: {{volumes: ["{suites}:/suites:ro"]}}
  worker: {{volumes: ["{suites}:/suites:ro"]}}
  ui: {{ports: !override ["127.0.0.1::4210"], volumes: ["{suites}:/suites:ro"]}}
  receive: {{ports: !override ["127.0.0.1::4318"]}}
"""


def _docker(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["docker", *words], capture_output=True, text=True, check=False)


def _find_what_is_missing() -> str | None:
    if shutil.which("docker") is None or _docker("info").returncode != 0:
        return "no Docker engine here"
    if _docker("compose", "version").returncode != 0:
        return "no Docker Compose here"
    for image in (PYTHON, POSTGRES):
        if _docker("image", "inspect", image).returncode != 0 and _docker("pull", "--quiet", image).returncode != 0:
            return f"the image {image} is not here and cannot be fetched"
    return None


@dataclass(frozen=True, kw_only=True)
class Stack:
    """The running services of compose.yaml."""

    files: tuple[str, ...]

    def compose(self, *words: str) -> str:
        done = _docker("compose", *self.files, *words)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def address(self, service: str, port: int) -> str:
        return f"http://{self.compose('port', service, str(port)).strip()}"

    def log(self, service: str = "serve") -> str:
        return self.compose("logs", "--no-log-prefix", "--no-color", service)

    def wait_for(self, pattern: str, *, after: int = 0) -> re.Match[str]:
        """Wait until the log of `serve` has this behind its first `after` characters."""
        found = wait(lambda: re.compile(pattern).search(self.log(), after))
        assert found is not None, self.log()
        return found

    def runs(self) -> list[dict[str, str]]:
        rows: list[dict[str, str]] = json.loads(self.compose("exec", "-T", "ui", "evalhouse", "runs", "--json"))
        return rows


def wait(look: Callable[[], T | None], seconds: float = 240.0) -> T | None:
    """Return the first result of `look`; fail without one in time."""
    ends_at = time.monotonic() + seconds
    while (found := look()) is None and time.monotonic() < ends_at:
        time.sleep(1.0)
    return found


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    if (why := _find_what_is_missing()) is not None:
        pytest.skip(why)
    folder = tmp_path_factory.mktemp("compose")
    suites = folder / "suites"
    suites.mkdir()
    (suites / "nightly.toml").write_text(SUITE)
    (folder / "override.yaml").write_text(OVERRIDE.format(suites=suites))
    secrets = {"POSTGRES_PASSWORD": "letters", "PREFECT_AUTH": "admin:letters"}
    secrets |= {"EVALHOUSE_UI_TOKEN": TOKEN, "EVALHOUSE_RECEIVE_TOKEN": TOKEN}
    (folder / ".env").write_text("".join(f"{name}={value}\n" for name, value in secrets.items()))
    for path in (folder, suites, suites / "nightly.toml"):
        path.chmod(0o755)  # the image runs as another user
    compose = str(ROOT / "flows" / "deploy" / "compose.yaml")
    stack = Stack(files=("--env-file", str(folder / ".env"), "-f", compose, "-f", str(folder / "override.yaml")))
    try:
        stack.compose("build", "serve")
        stack.compose("up", "--detach", "--no-build")
        yield stack
    finally:
        stack.compose("down", "--volumes", "--timeout", "5")


@pytest.mark.slow
def test_suite_is_served_again_after_its_container_was_killed(stack: Stack) -> None:
    begun = stack.wait_for(r"nightly: run (\S+) has started on schedule")
    stack.compose("kill", "serve")
    stack.compose("up", "--detach", "--no-build", "serve")
    stack.wait_for(rf"run {begun[1]} completed", after=begun.end())
    later = stack.wait_for(r"nightly: run (\S+) has started on schedule", after=len(stack.log()))
    stack.wait_for(rf"run {later[1]} completed", after=later.end())
    runs = {run["run_id"]: run["status"] for run in stack.runs()}
    assert (runs[begun[1]], runs[later[1]]) == ("completed", "completed")
    minutes = [run_id[:13] for run_id in runs]
    assert len(set(minutes)) == len(minutes), f"a night was run twice: {runs}"


@pytest.mark.slow
def test_pages_and_traces_are_for_those_with_the_token(stack: Stack) -> None:
    page = stack.address("ui", 4210)
    assert wait(lambda: _status(page)) == httpx.codes.UNAUTHORIZED
    with httpx.Client(follow_redirects=True) as client:
        assert "nightly" in client.get(f"{page}/", params={"token": TOKEN}).text
    address, spans = f"{stack.address('receive', 4318)}/v1/traces", make_request(make_bot_trace())
    assert httpx.post(address, json=spans).status_code == httpx.codes.UNAUTHORIZED
    headers = {"authorization": f"Bearer {TOKEN}"}
    assert httpx.post(address, json=spans, headers=headers).status_code == httpx.codes.OK


@pytest.mark.slow
def test_the_image_holds_the_package_alone(stack: Stack) -> None:
    listing = stack.compose("exec", "-T", "ui", "sh", "-c", "ls -a / /suites; id -u; evalhouse doctor")
    assert "src" not in listing.split()
    assert "10001" in listing.split()
    assert (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()[1] == "*"


def _status(address: str) -> int | None:
    try:
        return httpx.get(address).status_code
    except httpx.TransportError:
        return None
