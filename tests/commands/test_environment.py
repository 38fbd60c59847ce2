"""The variables that libraries read by themselves are tidied, used or refused; errors end in one sentence."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import stat
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from cli_process import Place
from endpoint import running_endpoint
from in_process import Finished

from evalhouse.flows.server.environment import find_environment_problems, tidy_variables
from evalhouse.tasks.settings.environment import find_proxy
from evalhouse.warehouse.messages import note_secret


@dataclass
class Socks:
    url: str
    hosts: list[str] = field(default_factory=list)


def _receive(connection: socket.socket, n: int) -> bytes:
    got = b""
    while len(got) < n:
        piece = connection.recv(n - len(got))
        if not piece:
            raise ConnectionError
        got += piece
    return got


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while piece := source.recv(65536):
            sink.sendall(piece)
        sink.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def running_socks(port: int) -> Iterator[Socks]:
    """Serve for this block; every connection goes to this port of this machine."""
    listener = socket.create_server(("127.0.0.1", 0))
    socks = Socks(url=f"socks5://127.0.0.1:{listener.getsockname()[1]}")

    def answer(connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            _receive(connection, _receive(connection, 2)[1])  # the ways to log in that the client knows
            connection.sendall(b"\x05\x00")
            kind = _receive(connection, 4)[3]
            size = {1: 4, 4: 16}.get(kind) or _receive(connection, 1)[0]
            host = _receive(connection, size)
            socks.hosts.append(host.decode() if kind == 3 else f"address {socket.inet_ntop(2, host)}")
            _receive(connection, 2)
            with socket.create_connection(("127.0.0.1", port)) as upstream:
                connection.sendall(b"\x05\x00\x00\x01\x00\x00\x00\x00\x00\x00")
                back = threading.Thread(target=_pump, args=(upstream, connection), daemon=True)
                back.start()
                _pump(connection, upstream)
                back.join()

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield socks
    finally:
        listener.close()


ROW = {
    "id": "q",
    "question": "¿颜色?",
    "answer": "It is red. 😀",
    "ground_truth": "It is red.",
    "contexts": ["It is red."],
}


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in list(os.environ):
        if name.upper().endswith("_PROXY") or name in ("SSL_CERT_FILE", "PREFECT_API_SSL_CERT_FILE"):
            monkeypatch.delenv(name)
    return monkeypatch


@pytest.mark.parametrize(("name", "value", "tidy"), [
    ("OPENAI_API_KEY", "sk-1\r\n", "sk-1"),
    ("GROQ_API_KEY", ' "sk-1" ', "sk-1"),
    ("AWS_SECRET_ACCESS_KEY", "\ufeffab/c+\n", "ab/c+"),
    ("PREFECT_API_AUTH_STRING", "'me:secret'", "me:secret"),
    ("AZURE_OPENAI_ENDPOINT", "“https://mine.openai.azure.com”", "https://mine.openai.azure.com"),
    ("OPENAI_ORG_ID", "org-1\t", "org-1"),
    ("OPENAI_API_KEY", 'sk-"1', 'sk-"1'),
    ("MY_TEXT", " kept ", " kept "),
])  # fmt: skip
def test_line_ends_blanks_and_quotes_are_taken_off_and_reported(
    bare: pytest.MonkeyPatch, name: str, value: str, tidy: str
) -> None:
    bare.setenv(name, value)
    notices = [notice for notice in tidy_variables() if notice.startswith(f"{name} ")]
    assert os.environ[name] == tidy
    assert len(notices) == (tidy != value)
    assert not any(tidy in notice for notice in notices)


@pytest.mark.parametrize("name", ["ALL_PROXY", "https_proxy"])
@pytest.mark.parametrize(("value", "is_usable"), [
    ("http://127.0.0.1:7890", True),
    ("127.0.0.1:7890", True),
    ("socks5://me:secret@127.0.0.1:7891", True),
    ("socks5h://127.0.0.1:7891", True),
    ("socks://127.0.0.1:7891", True),
    ("socks4://me:secret@127.0.0.1:7891", False),
    ("http://127.0.0.1:port", False),
    ("socks5://", False),
])  # fmt: skip
def test_a_proxy_is_usable_or_refused_by_its_name(
    bare: pytest.MonkeyPatch, name: str, value: str, is_usable: bool
) -> None:
    bare.setenv(name, value)
    tidy_variables()
    problems = find_environment_problems()
    assert bool(problems) != is_usable
    assert all(problem.startswith(f"{name} is ") and f"unset {name}" in problem for problem in problems)
    assert "secret" not in "".join(problems)


@pytest.mark.parametrize(("variables", "url", "proxy"), [
    ({}, "https://api.example/v1", None),
    ({"ALL_PROXY": "socks5://p:1"}, "https://api.example/v1", "socks5://p:1"),
    ({"all_proxy": "socks5://p:1", "HTTPS_PROXY": "p:2"}, "https://api.example/v1", "http://p:2"),
    ({"all_proxy": "socks5://p:1", "HTTPS_PROXY": "p:2"}, "http://api.example/v1", "socks5://p:1"),
    ({"ALL_PROXY": "socks5://p:1", "NO_PROXY": "other,.example"}, "https://api.example/v1", None),
    ({"ALL_PROXY": "socks5://p:1", "no_proxy": "*"}, "https://api.example/v1", None),
    ({"ALL_PROXY": "socks5://p:1"}, "http://127.0.0.1:8000/v1", None),
    ({"ALL_PROXY": "socks5://p:1"}, "http://localhost/v1", None),
])  # fmt: skip
def test_the_proxy_of_an_address(
    bare: pytest.MonkeyPatch, variables: dict[str, str], url: str, proxy: str | None
) -> None:
    for name, value in variables.items():
        bare.setenv(name, value)
    assert find_proxy(url) == proxy


@pytest.mark.parametrize("name", ["SSL_CERT_FILE", "PREFECT_API_SSL_CERT_FILE"])
def test_a_file_without_certificates_is_refused(bare: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    empty = tmp_path / "empty.pem"
    empty.write_text("none", encoding="utf-8")
    for path, reason in ((tmp_path / "missing.pem", "is not a file"), (empty, "holds no certificate")):
        bare.setenv(name, str(path))
        (problem,) = find_environment_problems()
        assert problem.startswith(f"{name} is {path}, which {reason}")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    folder = tmp_path_factory.mktemp("environment")
    (folder / "one.jsonl").write_text(json.dumps(ROW), encoding="utf-8")
    return Place(
        folder=folder, own_server=True, variables={"OPENAI_API_KEY": "'sk-test'\r", "PREFECT_HOME": str(folder)}
    )


ARGUMENTS = ("run", "one.jsonl", "--embeddings", "hashing", "--metrics", "factual_f1")


@pytest.fixture(scope="module")
def by_socks(place: Place) -> tuple[Finished, list[str]]:
    """A run whose judge only the proxy finds, and the hosts that the proxy was asked for."""
    with running_endpoint() as endpoint, running_socks(int(endpoint.root_url.rpartition(":")[2])) as socks:
        variables = {"all_proxy": socks.url.replace("socks5", "socks"), "OPENAI_BASE_URL": "http://judge.invalid/v1"}
        finished = place.with_variables(**variables).call_process(*ARGUMENTS, "--judge", "openai:judge")
        return finished, socks.hosts


@pytest.mark.slow
def test_a_judge_is_asked_through_a_socks_proxy_and_prefect_is_not(by_socks: tuple[Finished, list[str]]) -> None:
    finished, hosts = by_socks
    assert finished.status == 0, finished.stderr
    assert set(hosts) == {"judge.invalid"}
    assert "OPENAI_API_KEY is read without the line end, blanks or quotes" in finished.stderr


@pytest.mark.parametrize("arguments", [
    ("lineage", "q"), ("query", "from samples", "--format", "json"),
])  # fmt: skip
def test_an_output_that_cannot_hold_a_character_gets_escapes(
    by_socks: tuple[Finished, list[str]], place: Place, arguments: tuple[str, ...]
) -> None:
    finished = place.with_variables(PYTHONIOENCODING="ascii").call_process(*arguments)
    assert finished.status == 0, finished.stderr
    assert "\\u989c" in finished.stdout
    if "json" in arguments:
        assert json.loads(finished.stdout)[0]["answer"] == ROW["answer"]


DOCTOR = ("doctor", "--judge", "lexical", "--json")
SOCKS4 = ({"HTTPS_PROXY": "socks4://127.0.0.1:9"}, "HTTPS_PROXY is not an address of a proxy")
VERBOSE = (
    {"PREFECT_LOGGING_LEVEL": "verbose"}, "Prefect refuses its settings: LoggingSettings level: Input should be",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("arguments", "variables", "message"), [
    (ARGUMENTS, *SOCKS4), (DOCTOR, *VERBOSE),
])  # fmt: skip
def test_what_prefect_could_not_start_with_is_one_sentence(
    place: Place, arguments: tuple[str, ...], variables: dict[str, str], message: str
) -> None:
    finished = place.with_variables(**variables).call_process(*arguments)
    assert finished.status == 2
    assert message in finished.stdout + finished.stderr
    assert "Traceback" not in finished.stdout + finished.stderr


def test_an_unexpected_error_ends_with_status_2_and_a_log_for_its_user_alone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from evalhouse.flows import cli  # noqa: PLC0415  # as the command imports it

    note_secret("sk-never-written-0001")

    def fail(**_: object) -> None:
        raise ZeroDivisionError("by sk-never-written-0001")

    monkeypatch.setattr(cli.evalhouse, "main", fail)
    with pytest.raises(SystemExit) as caught:
        cli.main(["runs"])
    assert caught.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("Error: unexpected ZeroDivisionError: by [key]; ")
    path = Path(re.findall(r"\S+\.log", line)[0])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    text = path.read_text(encoding="utf-8")
    assert "in fail" in text
    assert "never-written" not in text
    path.unlink()
