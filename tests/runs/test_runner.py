"""The process that `evaluate` keeps for the next call, with its server, and how it is replaced after an end."""

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from endpoint import running_endpoint
from prefect_holder import copy_database, find_server

from evalhouse.flows.results.progress import ProgressLine
from evalhouse.flows.run import call_process
from evalhouse.flows.start import EvaluationError, evaluate
from evalhouse.warehouse.store import Warehouse

SAMPLE = {
    "question": "Which river turns the Helm mill?",
    "answer": "The Arl turns the mill. It was built in 1802.",
    "contexts": ["The Arl turns the mill."],
}


@pytest.fixture(scope="module", autouse=True)
def _own_runners(prefect_home: Path) -> Iterator[None]:
    """Keep the processes of other test files apart; end the ones of this file."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"PREFECT_HOME": str(prefect_home), **find_server()}.items():
            patch.setenv(name, value)
        patch.setattr(call_process, "_idle", [])
        yield
        call_process.end_runners()


@pytest.fixture
def own_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No Prefect server is configured."""
    copy_database(tmp_path / "home")
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "home"))
    for name in find_server():
        monkeypatch.delenv(name)


def judge(folder: Path) -> float:
    """The faithfulness of the sample."""
    result = evaluate([SAMPLE], metrics="faithfulness", judge="lexical", warehouse=str(folder / "w.duckdb"))
    return result.mean("faithfulness")


def list_family() -> list[int]:
    """The process that ran last and its children: servers, where there are some."""
    pid = call_process._idle[-1]._process.pid
    return [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]


def is_gone(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"


@pytest.mark.slow
def test_the_second_call_starts_no_server_but_where_that_has_died(tmp_path: Path, own_server: None) -> None:
    assert judge(tmp_path) == 0.5
    first = list_family()
    assert judge(tmp_path) == 0.5
    assert list_family() == first
    assert len(first) == 2, "a process and its server"
    os.kill(first[1], signal.SIGKILL)
    time.sleep(1)  # until the last of its threads has ended
    assert judge(tmp_path) == 0.5
    second = list_family()
    assert set(second).isdisjoint(first)
    call_process.end_runners()
    assert all(map(is_gone, [*first, *second]))
    assert Warehouse(str(tmp_path / "w.duckdb")).read_rows("select status, count(*) as n from runs group by 1") == [
        {"status": "completed", "n": 3}
    ]


@pytest.mark.slow
def test_killed_process_is_replaced_and_two_calls_at_once_have_one_each(tmp_path: Path) -> None:
    call_process.end_runners()
    assert judge(tmp_path) == 0.5
    (killed,) = list_family()
    os.kill(killed, signal.SIGKILL)
    values: list[float] = []
    threads = [threading.Thread(target=lambda: values.append(judge(tmp_path))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert values == [0.5, 0.5]
    assert len(call_process._idle) == 2
    assert killed not in [waiting._process.pid for waiting in call_process._idle]
    call_process.end_runners()  # the others have a use for one


@pytest.mark.slow  # some ten seconds
def test_ctrl_c_stops_the_run_and_keeps_the_process(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = str(tmp_path / "w.duckdb")
    with running_endpoint(latency=3.0) as endpoint, pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_BASE_URL", endpoint.base_url)
        patch.setenv("OPENAI_API_KEY", "none-needed")
        interrupting = threading.Thread(target=_interrupt_when_asked, args=(endpoint.stats,))
        interrupting.start()
        with pytest.raises(KeyboardInterrupt):
            evaluate([SAMPLE], metrics="faithfulness", judge="openai:judge", warehouse=url)
        interrupting.join()
    (pid,) = list_family()
    (run,) = Warehouse(url).read_rows("select run_id, status from runs")
    assert run["status"] == "cancelled"
    assert f"evalhouse resume {run['run_id']}" in capsys.readouterr().err
    assert judge(tmp_path) == 0.5
    assert list_family() == [pid]


def _interrupt_when_asked(stats: object) -> None:
    while not stats.requests.total():  # type: ignore[attr-defined]
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.slow
def test_a_forked_process_leaves_those_of_its_parent_alone(tmp_path: Path) -> None:
    assert judge(tmp_path) == 0.5
    child = os.fork()
    if child == 0:
        call_process.end_runners()
        os._exit(len(call_process._idle))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert call_process._idle[-1].is_alive
    assert judge(tmp_path) == 0.5


def test_a_callers_own_modules_are_imported_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    seen = []
    for number in (1, 2):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "own_factory.py").write_text(f"NUMBER = {number}\n")
        request = {"environment": dict(os.environ), "folder": str(folder), "path": [str(folder), *sys.path]}
        with monkeypatch.context() as here:
            here.chdir(folder)
            with call_process.taking_place_of_caller(request):
                import own_factory  # type: ignore[import-not-found]  # noqa: PLC0415

                seen.append(own_factory.NUMBER)
                import this  # noqa: F401, PLC0415
    assert seen == [1, 2]
    assert "own_factory" not in sys.modules
    assert "this" in sys.modules, "what is installed stays"


def test_progress_is_one_line_that_goes_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Imitate a notebook, which is recognized by IPython's shell: standard error is not a terminal there."""
    assert not ProgressLine().is_watched
    shell = type("Shell", (), {"kernel": None})()
    monkeypatch.setitem(sys.modules, "IPython", type("IPython", (), {"get_ipython": staticmethod(lambda: shell)}))
    capsys.readouterr()
    assert judge(tmp_path) == 0.5
    shown = capsys.readouterr().err.split("\r")
    assert "\n" not in "".join(shown)
    assert shown[-3].rstrip().endswith("1/1 samples, 2 calls, 0 reused")
    assert shown[-3].startswith("████████████ ")
    assert (shown[-2].strip(), shown[-1]) == ("", "")


def test_a_process_that_dies_in_a_run_is_an_error(tmp_path: Path) -> None:
    """Last, as the others have a use for the process."""
    (tmp_path / "fatal_judges.py").write_text("import os\n\ndef make():\n    os._exit(9)\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        with pytest.raises(EvaluationError, match="ended with status 9"):
            evaluate([SAMPLE], judge="fatal_judges:make", warehouse=str(tmp_path / "w.duckdb"))
    assert all(waiting.is_alive for waiting in call_process._idle)
