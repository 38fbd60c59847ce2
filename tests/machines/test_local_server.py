"""The Prefect server that a run starts: a real one, in processes like commands, because what counts
is what is left in the database and on the terminal when they end, or are ended."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from cli_process import COMMAND
from prefect_holder import copy_database

from evalhouse.flows.server.environment import (
    LocalServerError,
    configure_prefect_environment,
    find_api_url,
    load_user_settings,
    make_server_environment,
    prepare_environment,
)
from evalhouse.flows.server.local import LocalServer

ROOT = Path(__file__).resolve().parents[2]
N_TASKS = 50
# Of a route that no run uses: without the key, with it, with a body that does not fit, from an old client, for what is
# not there, by another method, and of no route at all.
STATUSES = [401, 401, 200, 422, 400, 404, 405, 404]

# Shaped like `evalhouse run`: server first, then Prefect, then a flow of gathered tasks that ends with an artifact.
RUN = """
import asyncio, base64, json, sys, urllib.error, urllib.request
from evalhouse.flows.server.local import LocalServer
from evalhouse.flows.server.environment import configure_prefect_environment

assert "prefect" not in sys.modules
server = LocalServer.start()
print(json.dumps({"pid": server._process.pid, "log": str(server.log_path)}), flush=True)
configure_prefect_environment(server.api_url, auth_string=server.auth_string)

from pathlib import Path
from prefect import flow, task
from prefect.artifacts import acreate_table_artifact
from prefect.cache_policies import NO_CACHE

modes = sys.argv[1].split(",")
n_tasks = int(sys.argv[2])
failed_once = []

@task(retries=2, retry_delay_seconds=0, persist_result=False, cache_policy=NO_CACHE)
async def judge(number, mode):
    if number == 7 and not failed_once:
        failed_once.append(number)
        raise ConnectionError("once")
    if number == 8 and mode == "raise":
        raise ValueError("for good")
    if number == 9 and mode == "hang":
        print(json.dumps({"hanging": True}), flush=True)
        await asyncio.sleep(60)
    await asyncio.sleep(0.01)
    return number

@flow(persist_result=False, result_storage=Path("results"))
async def evaluate(mode):
    numbers = await asyncio.gather(*[judge(number, mode) for number in range(n_tasks)])
    await acreate_table_artifact([{"sum": sum(numbers)}], key="scores")
    return sum(numbers)

outcomes = []
server.wait_until_ready()
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
key = {"Authorization": "Basic " + base64.b64encode(server.auth_string.encode()).decode()}
old = {"X-PREFECT-API-VERSION": "0.1.0"}

def ask(path, headers, body=None):
    try:
        content = {"Content-Type": "application/json"}
        request = urllib.request.Request(server.api_url + path, data=body, headers=headers | content)
        with opener.open(request) as answered:
            return answered.status
    except urllib.error.HTTPError as error:
        with error:
            return error.code

statuses = [
    ask("/admin/version", {}), ask("/block_types/filter", {}, b"{}"), ask("/block_types/filter", key, b"{}"),
    ask("/block_types/filter", key, b'{"limit": "many"}'), ask("/block_types/filter", key | old, b"{}"),
    ask("/block_types/slug/tide-table", key), ask("/block_types/filter", key), ask("/tide_tables", key),
]
for mode in modes:
    try:
        outcomes.append(asyncio.run(evaluate(mode)))
    except (ValueError, KeyboardInterrupt) as error:
        outcomes.append(type(error).__name__)
server.stop()
server.stop()
print(json.dumps({"outcomes": outcomes, "statuses": statuses}), flush=True)
"""


@dataclass(frozen=True, kw_only=True)
class Finished:
    """The output of a run of the script."""

    messages: list[dict[str, object]]
    stderr: str
    status: int


def start_run(home: Path, mode: str = "complete", n_tasks: int = N_TASKS) -> subprocess.Popen[str]:
    script = home.parent / "run.py"
    script.write_text(RUN)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    unreachable = "http://127.0.0.1:9"
    return subprocess.Popen(
        [sys.executable, str(script), mode, str(n_tasks)],
        cwd=home.parent,
        env=environ
        | {"PREFECT_HOME": str(home), "PYTHONPATH": str(ROOT), "HTTP_PROXY": unreachable, "http_proxy": unreachable},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(run: subprocess.Popen[str]) -> Finished:
    stdout, stderr = run.communicate(timeout=60)
    return Finished(messages=[json.loads(line) for line in stdout.splitlines()], stderr=stderr, status=run.returncode)


def query(home: Path, sql: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(home / "prefect.db")) as connection:
        return connection.execute(sql).fetchall()


def count_unfinished(home: Path, flow_run_id: str) -> int:
    """The task runs of a flow run whose last recorded state is not final: lost events."""
    final = "('COMPLETED', 'FAILED', 'CRASHED', 'CANCELLED')"
    sql = f"select count(*) from task_run where flow_run_id = '{flow_run_id}' and state_type not in {final}"
    [(count,)] = query(home, sql)
    return int(str(count))


def read_message(run: subprocess.Popen[str]) -> dict[str, object]:
    assert run.stdout is not None
    message: dict[str, object] = json.loads(run.stdout.readline())
    return message


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] != "Z"


def seconds_until_gone(pid: int, limit_s: float) -> float:
    began = time.monotonic()
    while is_alive(pid) and time.monotonic() - began < limit_s:
        time.sleep(0.02)
    return time.monotonic() - began


@pytest.fixture(scope="module")
def warm_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Prefect home with a database in it."""
    home = tmp_path_factory.mktemp("warm") / "home"
    copy_database(home)
    return home


@pytest.fixture
def clean_environ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty working directory and no setting of Prefect's, with what a test sets taken back."""
    monkeypatch.chdir(tmp_path)
    before = dict(os.environ)
    for name in before:
        if name.startswith("PREFECT_") or name == "DO_NOT_TRACK" or name.lower() == "no_proxy":
            del os.environ[name]
    os.environ["PREFECT_HOME"] = str(tmp_path / "home")
    yield tmp_path
    os.environ.clear()
    os.environ.update(before)


@pytest.mark.slow
def test_two_first_runs_at_once_record_every_task_and_say_nothing(tmp_path: Path) -> None:
    home = tmp_path / "home"
    both = [finish(run) for run in [start_run(home), start_run(home)]]

    for run in both:
        assert (run.stderr, run.status) == ("", 0)
        started, finished = run.messages
        assert finished == {"outcomes": [sum(range(N_TASKS))], "statuses": STATUSES}
        assert not is_alive(int(str(started["pid"])))
        assert not Path(str(started["log"])).exists()
    assert query(home, "select state_type, count(*) from task_run group by 1") == [("COMPLETED", 2 * N_TASKS)]
    assert query(home, "select run_count, count(*) from task_run group by 1 order by 1") == [(1, 98), (2, 2)]
    assert query(home, "select state_type from flow_run") == [("COMPLETED",)] * 2
    assert query(home, "select key, type, data from artifact") == [("scores", "table", '"[{\\"sum\\": 1225}]"')] * 2


@pytest.mark.slow
def test_flows_that_raise_or_are_interrupted_are_recorded_and_print_nothing(warm_home: Path) -> None:
    """One after the other; Ctrl-C reaches the second flow, and leaves the server to record it."""
    run = start_run(warm_home, "raise,hang", n_tasks=12)
    server_pid = int(str(read_message(run)["pid"]))
    read_message(run)
    assert os.getsid(server_pid) != os.getsid(run.pid)
    run.send_signal(signal.SIGINT)
    finished = finish(run)

    assert (finished.stderr, finished.status) == ("", 0)
    assert finished.messages[-1] == {"outcomes": ["ValueError", "KeyboardInterrupt"], "statuses": STATUSES}
    [(raised, failed), (interrupted, state)] = query(
        warm_home, "select id, state_type from flow_run order by created desc limit 2"
    )[::-1]
    assert failed == "FAILED"
    assert state in {"CRASHED", "CANCELLED"}
    assert count_unfinished(warm_home, str(raised)) == count_unfinished(warm_home, str(interrupted)) == 0
    task_runs = f"select count(*) from task_run where flow_run_id = '{raised}' and state_type = "
    assert query(warm_home, f"{task_runs} 'FAILED'") == [(1,)]
    assert not is_alive(server_pid)


def test_the_server_does_not_outlive_a_killed_run(warm_home: Path) -> None:
    run = start_run(warm_home, "hang")
    started = read_message(run)
    assert is_alive(int(str(started["pid"])))
    run.kill()
    finish(run)

    assert seconds_until_gone(int(str(started["pid"])), limit_s=5) < 2
    assert not Path(str(started["log"])).exists()


def test_a_server_that_is_not_needed_after_all_ends_at_once(clean_environ: Path) -> None:
    server = LocalServer.start()
    began = time.monotonic()
    server.stop()

    assert time.monotonic() - began < 2
    assert not server.log_path.exists()
    assert not (clean_environ / "home").exists()


def test_a_database_of_a_newer_prefect_is_refused_with_advice(clean_environ: Path) -> None:
    home = clean_environ / "home"
    copy_database(home)
    with closing(sqlite3.connect(home / "prefect.db")) as connection, connection:
        connection.execute("update alembic_version set version_num = 'fedcba987654'")
    server = LocalServer.start()

    with pytest.raises(LocalServerError, match="set PREFECT_HOME to another folder") as caught:
        server.wait_until_ready()
    assert "Can't locate revision identified by 'fedcba987654'" in str(caught.value)
    server.stop()
    assert server.log_path.exists()
    server.log_path.unlink()


@pytest.mark.slow
def test_server_starts_without_shortcuts_when_they_do_not_fit(
    clean_environ: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A release of Prefect without the names that `faster_start` uses costs seconds and loses no run."""
    monkeypatch.delenv("EVALHOUSE_PLAIN_SERVER", raising=False)
    copy_database(clean_environ / "home")
    (tmp_path / "sitecustomize.py").write_text(
        "import os\nif not os.environ.get('EVALHOUSE_PLAIN_SERVER'):\n"
        "    import prefect.server.utilities.server as module\n    del module.PrefectAPIRoute\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    server = LocalServer.start()
    server.wait_until_ready()
    log = server.log_path.read_text()
    server.stop()

    assert "started again with EVALHOUSE_PLAIN_SERVER=1: AttributeError" in log


def test_a_port_that_a_killed_server_still_holds_is_waited_for(clean_environ: Path) -> None:
    held = socket.create_server(("127.0.0.1", 0))
    port = held.getsockname()[1]
    threading.Timer(0.5, held.close).start()
    server = LocalServer.start_lasting(port)
    server.stop()

    assert server.api_url == f"http://127.0.0.1:{port}/api"


def test_a_server_that_takes_too_long_is_ended(clean_environ: Path) -> None:
    server = LocalServer.start()

    with pytest.raises(LocalServerError, match=r"not ready after 0\.01 s"):
        server.wait_until_ready(timeout_s=0.01)
    server.stop()
    assert seconds_until_gone(server._process.pid, limit_s=2) < 2
    server.log_path.unlink()


def test_a_server_of_the_users_profile_is_found(clean_environ: Path) -> None:
    assert find_api_url() is None
    (clean_environ / "home").mkdir()
    (clean_environ / "home" / "profiles.toml").write_text(
        'active = "mine"\n[profiles.mine]\nPREFECT_API_URL = "http://there/api"\n'
    )
    assert find_api_url() == "http://there/api"
    os.environ["PREFECT_API_URL"] = "http://here/api"
    assert find_api_url() == "http://here/api"


@pytest.mark.parametrize(
    ("file", "text"),
    [
        (".env", "export PREFECT_API_URL='http://there/api'\n"),
        ("prefect.toml", '[api]\nurl = "http://there/api"\n'),
        ("pyproject.toml", '[tool.prefect.api]\nurl = "http://there/api"\n'),
    ],
)
def test_a_server_that_a_file_in_the_working_folder_names_is_not_used(
    clean_environ: Path, capsys: pytest.CaptureFixture[str], file: str, text: str
) -> None:
    """A server decides what its clients load and run, and a dataset may come in a folder with such a file."""
    Path(file).write_text(text)
    prepare_environment()
    assert find_api_url() is None
    assert capsys.readouterr().err.startswith(f"note: {file} in this folder sets PREFECT_API_URL, and is not used")
    os.environ["PREFECT_API_URL"] = "http://there/api"
    prepare_environment()
    assert not capsys.readouterr().err


@pytest.mark.parametrize(("file", "text"), [
    pytest.param(".env", "PREFECT_LOGGING_SETTINGS_PATH=logging.yml\n", marks=pytest.mark.slow),
    pytest.param("prefect.toml", '[logging]\nconfig_path = "logging.yml"\n', marks=pytest.mark.slow),
    pytest.param("pyproject.toml", '[tool.prefect.logging]\nconfig_path = "logging.yml"\n', marks=pytest.mark.slow),
])  # fmt: skip
def test_a_file_beside_a_dataset_runs_no_code(clean_environ: Path, file: str, text: str) -> None:
    """Prefect's logging may call any function, and a dataset may come in a folder with settings of Prefect."""
    Path(file).write_text(text, encoding="utf-8")
    Path("logging.yml").write_text(
        "version: 1\nformatters: {x: {'()': os.mkdir, path: ran}}\n"
        "handlers: {h: {class: logging.StreamHandler, formatter: x}}\nroot: {handlers: [h]}\n",
        encoding="utf-8",
    )
    Path("d.jsonl").write_text('{"question": "a", "answer": "b", "contexts": ["b"]}\n', encoding="utf-8")
    command = [*COMMAND, "run", "d.jsonl", "--judge", "lexical", "--metrics", "faithfulness", "--dry-run"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, Path("ran").exists()) == (0, False)
    prepare_environment()
    script = "import prefect.settings as s; print(s.get_current_settings().logging.config_path)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == str(clean_environ / "home" / "logging.yml")


def test_the_profile_in_use_decides(clean_environ: Path) -> None:
    profiles = clean_environ / "elsewhere.toml"
    profiles.write_text('active = "none"\n[profiles.none]\n[profiles.cloud]\nPREFECT_API_URL = "http://cloud/api"\n')
    os.environ["PREFECT_PROFILES_PATH"] = str(profiles)
    assert find_api_url() is None
    os.environ["PREFECT_PROFILE"] = "cloud"
    assert find_api_url() == "http://cloud/api"
    os.environ["PREFECT_TEST_MODE"] = "1"
    assert find_api_url() is None


def test_empty_variable_and_broken_file_are_not_settings(clean_environ: Path) -> None:
    os.environ["PREFECT_API_URL"] = ""
    (clean_environ / "home").mkdir()
    (clean_environ / "home" / "profiles.toml").write_text("[api\n")
    assert load_user_settings() == {"PREFECT_HOME": str(clean_environ / "home")}


def test_a_server_of_the_users_own_keeps_its_settings(clean_environ: Path) -> None:
    os.environ["PREFECT_API_URL"] = "http://there/api"
    configure_prefect_environment(None)

    assert os.environ["PREFECT_API_URL"] == "http://there/api"
    assert os.environ["PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL"] == "CRITICAL"
    assert "PREFECT_LOGGING_TO_API_ENABLED" not in os.environ
    assert "NO_PROXY" not in os.environ


def test_settings_of_the_user_stay(clean_environ: Path) -> None:
    os.environ["PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL"] = "DEBUG"
    os.environ["NO_PROXY"] = "intranet"
    (clean_environ / "home").mkdir()
    (clean_environ / "home" / "profiles.toml").write_text(
        'active = "a"\n[profiles.a]\nPREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE = 7\n'
        'PREFECT_LOGGING_LEVEL = "INFO"\n'
    )
    environ = make_server_environment(4200, "evalhouse:key")
    configure_prefect_environment("http://127.0.0.1:1/api", auth_string="evalhouse:key")

    assert os.environ["PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL"] == "DEBUG"
    assert "PREFECT_LOGGING_LEVEL" not in os.environ
    assert os.environ["NO_PROXY"] == "intranet,127.0.0.1,localhost"
    assert os.environ["PREFECT_API_AUTH_STRING"] == environ["PREFECT_SERVER_API_AUTH_STRING"] == "evalhouse:key"
    assert "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE" not in environ
    assert environ["PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_READ_BATCH_SIZE"] == "200"


def test_log_of_server_is_not_quiet_after_this_process_was_configured(clean_environ: Path) -> None:
    before = make_server_environment(4200, "evalhouse:key")
    configure_prefect_environment("http://127.0.0.1:1/api", auth_string="evalhouse:key")
    after = make_server_environment(4200, "evalhouse:key")

    assert "PREFECT_API_URL" not in after
    assert "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL" not in after
    assert {name for name in after if name not in before} <= {"PREFECT_API_AUTH_STRING", "NO_PROXY", "no_proxy"}


def test_a_home_on_a_full_disk_is_one_sentence(clean_environ: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**17, hard))  # of each file, of the server too
    try:
        server = LocalServer.start()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    with pytest.raises(LocalServerError, match="make room") as caught:
        server.wait_until_ready()
    assert "\n" not in str(caught.value)
    assert "PREFECT_HOME" in str(caught.value)
    server.stop()
    server.log_path.unlink()
