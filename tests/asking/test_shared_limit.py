"""One limit for several processes of one machine: never too many requests, no slot left over, none lost for good."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from endpoint import Endpoint, running_endpoint
from filelock import FileLock
from sharing_processes import KEY, Sharer, Slots, started_sharers, wait_until

from evalhouse.tasks.asking.boards import FOLDER_VARIABLE, FileBoard, Need, find_limits_folder
from evalhouse.tasks.asking.shared_limit import share_limits

Start = Callable[..., Sharer]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "limits"))
    return tmp_path / "limits"


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with running_endpoint(latency=0.04) as running:
        yield running


@pytest.fixture
def start(folder: Path, endpoint: Endpoint) -> Iterator[Start]:
    """Starts a process of some setting that asks the endpoint."""
    with started_sharers() as start_one:
        yield lambda concurrency, **options: start_one(
            concurrency, url=endpoint.base_url, environ={FOLDER_VARIABLE: str(folder)}, **options
        )


# --- one process ---


async def test_a_lone_process_has_everything_before_anything_is_asked(folder: Path) -> None:
    limit = Slots(16)
    async with share_limits({KEY: limit}, concurrency=16):
        assert limit.shares == [16]
        await asyncio.sleep(0.5)
        assert set(limit.shares) == {16}
        assert limit.fraction == 1.0


async def test_each_limit_has_its_own_setting(folder: Path) -> None:
    judge, embedder = Slots(16), Slots(4)
    async with share_limits({"judge": judge, "embedder": embedder}, concurrency={"judge": 16, "embedder": 4}):
        assert (judge.share, embedder.share) == (16, 4)


async def test_nothing_is_left_behind_but_an_empty_folder(folder: Path) -> None:
    async with share_limits({KEY: Slots(16)}, concurrency=16):
        (place,) = folder.iterdir()
        assert {path.suffix for path in place.iterdir()} == {"", ".lock", ".json"}
    assert [path.name for path in place.iterdir()] == ["turn"]


async def test_what_the_key_says_is_nowhere_on_disk(folder: Path) -> None:
    async with share_limits({KEY: Slots(16)}, concurrency=16):
        files = [path for path in folder.rglob("*") if path.is_file()]
        assert files
        for path in files:
            assert b"models" not in path.read_bytes()
            assert "models" not in str(path.relative_to(folder))


async def test_without_limits_there_is_nothing_to_share(folder: Path) -> None:
    async with share_limits({}, concurrency=16):
        pass
    assert not folder.exists()


async def test_a_run_that_fails_gives_its_share_back(folder: Path) -> None:
    with pytest.raises(ValueError, match="the run"):
        async with share_limits({KEY: Slots(16)}, concurrency=16):
            raise ValueError("the run")
    limit = Slots(16)
    async with share_limits({KEY: limit}, concurrency=16):
        assert limit.shares == [16]


async def test_a_folder_that_cannot_be_made_is_warned_of_once_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "file" / "limits"))
    limit = Slots(16)
    async with share_limits({KEY: limit}, concurrency=16):
        await asyncio.sleep(0.5)
        assert (limit.share, limit.fraction) == (16, 1.0)
    (warning,) = caplog.records
    assert warning.levelno == logging.WARNING
    assert "may use all of its 16 slots" in warning.getMessage()
    assert FOLDER_VARIABLE in warning.getMessage()


async def test_a_folder_that_is_lost_on_the_way_does_not_end_the_run(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    limit, other = Slots(16), Slots(16)
    limit.waiting = other.waiting = 16
    async with share_limits({KEY: limit}, concurrency=16), share_limits({KEY: other}, concurrency=16):
        await _wait_for(lambda: limit.share == other.share == 8)
        (place,) = folder.iterdir()
        place.rename(folder / "elsewhere")
        place.write_text("")
        await _wait_for(lambda: limit.share == other.share == 16)
    assert len(caplog.records) == 2


async def test_processes_find_each_other_again_after_somebody_has_emptied_the_folder(folder: Path) -> None:
    limit, other = Slots(16), Slots(16)
    limit.waiting = other.waiting = 16
    async with share_limits({KEY: limit}, concurrency=16), share_limits({KEY: other}, concurrency=16):
        await _wait_for(lambda: limit.share == other.share == 8)
        shutil.rmtree(folder, ignore_errors=True)
        await _wait_for(lambda: len(list(folder.rglob("*.json"))) == 2)
        await _wait_for(lambda: limit.share == other.share == 8)
        other.waiting = 0
        await _wait_for(lambda: (limit.share, other.share) == (15, 1))


async def test_a_turn_that_nobody_ends_is_waited_for_and_then_done_without(
    folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evalhouse.tasks.asking.boards._PATIENCE_S", 0.3)
    limit = Slots(16)
    async with share_limits({KEY: limit}, concurrency=16):
        (place,) = folder.iterdir()
        with FileLock(place / "turn", thread_local=False):
            await _wait_for(lambda: bool(caplog.records))
        assert limit.share == 16
    assert "is one suspended?" in caplog.text


@pytest.mark.parametrize(
    ("platform", "environ", "expected"),
    [
        ("linux", {FOLDER_VARIABLE: "/somewhere"}, "/somewhere"),
        ("linux", {"XDG_CACHE_HOME": "/cache"}, "/cache/evalhouse/limits"),
        ("linux", {"XDG_CACHE_HOME": "cache"}, "/home/me/.cache/evalhouse/limits"),
        ("linux", {}, "/home/me/.cache/evalhouse/limits"),
        ("darwin", {}, "/home/me/Library/Caches/evalhouse/limits"),
        ("win32", {"LOCALAPPDATA": "/local"}, "/local/evalhouse/limits"),
    ],
)
def test_the_folder_is_where_the_platform_keeps_caches(
    platform: str, environ: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.platform", platform)
    monkeypatch.setenv("HOME", "/home/me")
    assert find_limits_folder(environ) == Path(expected)


async def _wait_for(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.01)


# --- several processes ---


def _make_busy(*sharers: Sharer, share: int) -> None:
    """Have all ask for more than there is, and wait until each has that share."""
    for sharer in sharers:
        sharer.want(30)
    for sharer in sharers:
        sharer.wait_for_share(share)


def test_two_processes_together_never_exceed_the_limit(start: Start, endpoint: Endpoint) -> None:
    first = start(8)
    first.want(30)
    first.wait_for_share(8)
    wait_until(lambda: endpoint.stats.in_flight == 8)
    second = start(8)
    second.want(30)
    second.wait_for_share(4)
    first.wait_for_share(4)
    assert (first.fraction, second.fraction) == (0.5, 0.5)
    before = endpoint.stats.requests.total()
    wait_until(lambda: endpoint.stats.requests.total() > before + 100)
    assert endpoint.stats.max_in_flight == 8
    assert first.leave() == ""
    second.wait_for_share(8)
    assert second.leave() == ""
    assert endpoint.stats.max_in_flight == 8


def test_three_processes_started_at_once_share_evenly(start: Start, endpoint: Endpoint) -> None:
    sharers = [start(9) for _ in range(3)]
    _make_busy(*sharers, share=3)
    wait_until(lambda: endpoint.stats.in_flight == 9)
    assert endpoint.stats.max_in_flight == 9
    for sharer in sharers:
        assert sharer.leave() == ""
    assert endpoint.stats.max_in_flight == 9


def test_an_idle_process_lends_its_slots_and_gets_them_back(start: Start, endpoint: Endpoint) -> None:
    first, second = start(8), start(8)
    first.want(30)
    first.wait_for_share(7)
    second.wait_for_share(1)
    second.want(30)
    second.wait_for_share(4)
    first.wait_for_share(4)
    first.want(0)
    second.wait_for_share(7)
    wait_until(lambda: endpoint.stats.in_flight == 7)
    assert endpoint.stats.max_in_flight <= 8


def test_the_slots_of_a_killed_process_come_back_at_once(start: Start, endpoint: Endpoint, folder: Path) -> None:
    first, second = start(8), start(8)
    _make_busy(first, second, share=4)
    assert endpoint.stats.max_in_flight <= 8
    second.kill()
    killed_at = time.monotonic()
    first.wait_for_share(8)
    assert time.monotonic() - killed_at < 5  # no time after which somebody is taken for dead
    (place,) = folder.iterdir()
    wait_until(lambda: len(list(place.glob("*.lock"))) == 1)
    assert len(list(place.glob("*.json"))) == 1


def test_a_suspended_process_keeps_its_slots(start: Start, endpoint: Endpoint) -> None:
    first, second = start(8), start(8)
    _make_busy(first, second, share=4)
    os.kill(second.process.pid, signal.SIGSTOP)
    before = endpoint.stats.requests.total()
    wait_until(lambda: endpoint.stats.requests.total() > before + 60)
    os.kill(second.process.pid, signal.SIGCONT)
    assert first.share == 4
    assert endpoint.stats.max_in_flight <= 8


def test_a_process_with_a_smaller_setting_lowers_the_limit_while_it_runs(start: Start, endpoint: Endpoint) -> None:
    first = start(16)
    first.want(30)
    first.wait_for_share(16)
    second = start(4)
    second.want(30)
    second.wait_for_share(2)
    first.wait_for_share(2)
    wait_until(lambda: endpoint.stats.in_flight == 4)
    second.leave()
    first.wait_for_share(16)


@pytest.mark.slow
def test_more_processes_than_slots_are_all_served(start: Start, endpoint: Endpoint, folder: Path) -> None:
    sharers = [start(1), start(1)]
    for sharer in sharers:
        sharer.want(3)
    for sharer in sharers:
        sharer.wait_for_share(1)
    assert endpoint.stats.max_in_flight == 1


def test_other_models_are_another_limit(start: Start) -> None:
    first, second = start(8), start(8, key="https://models.example/v1 another")
    _make_busy(first, second, share=8)
    time.sleep(0.5)
    assert (first.share, second.share) == (8, 8)


async def test_a_row_of_a_dead_process_is_removed_even_if_it_never_got_further(folder: Path) -> None:
    board = FileBoard(folder, KEY)
    await board.exchange(Need(setting=16, wish=0, held=0))
    (place,) = folder.iterdir()
    (place / "00000000000000000001-dead.lock").touch()
    (place / "00000000000000000001-dead.json").write_bytes(b'{"setting":')
    (place / "00000000000000000002-dead.lock").touch()
    share = await board.exchange(Need(setting=16, wish=16, held=16))
    assert share.slots == 16
    assert not list(place.glob("*dead*"))
    await board.leave()
