"""Processes that share a limit: real ones, told over standard input how many requests they would like to have under
way, asking the test endpoint, and telling over standard output which share they have.

As a script it is such a process: `python sharing_processes.py KEY CONCURRENCY URL [across]`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import aiohttp

from evalhouse.tasks.asking.shared_limit import share_limits

ROOT = Path(__file__).parents[2]
KEY = "https://models.example/v1 judge"


class Slots:
    """A plain limit that can be shared: whoever waits is served in any order."""

    def __init__(self, setting: int) -> None:
        self.setting = setting
        self.share = setting
        self.fraction = 1.0
        self.in_flight = 0
        self.waiting = 0
        self.most_in_flight = 0
        self.shares: list[int] = []

    def wish(self) -> int:
        return min(self.setting, self.in_flight + self.waiting)

    def set_share(self, slots: int, *, fraction: float = 1.0) -> None:
        self.share, self.fraction = slots, fraction
        self.shares.append(slots)

    async def take(self) -> None:
        self.waiting += 1
        while self.in_flight >= self.share:
            await asyncio.sleep(0.005)
        self.waiting -= 1
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)

    def give_back(self) -> None:
        self.in_flight -= 1


class _Telling(Slots):
    """Says on standard output what its share is whenever that changes."""

    def set_share(self, slots: int, *, fraction: float = 1.0) -> None:
        if [slots] != self.shares[-1:]:
            print(json.dumps({"share": slots, "fraction": fraction}), flush=True)
        super().set_share(slots, fraction=fraction)


class _Process:
    def __init__(self, url: str, limit: Slots) -> None:
        self._url = url
        self._limit = limit
        self._wanted = 0
        self._running = 0

    def want(self, wanted: int, session: aiohttp.ClientSession) -> list[asyncio.Task[None]]:
        self._wanted = wanted
        started = [asyncio.create_task(self._ask(session)) for _ in range(wanted - self._running)]
        self._running = max(self._running, wanted)
        return started

    async def _ask(self, session: aiohttp.ClientSession) -> None:
        while self._running <= self._wanted:
            await self._limit.take()
            try:
                async with session.post(f"{self._url}/embeddings", json={"model": "m", "input": "x"}) as response:
                    await response.read()
            finally:
                self._limit.give_back()
        self._running -= 1


async def _listen() -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    return reader


async def _run(key: str, concurrency: int, url: str, *, across_machines: bool) -> None:
    limit = _Telling(concurrency)
    process = _Process(url, limit)
    reader = await _listen()
    tasks: list[asyncio.Task[None]] = []
    connector = aiohttp.TCPConnector(limit=0)
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        share_limits({key: limit}, concurrency=concurrency, across_machines=across_machines),
    ):
        while line := await reader.readline():
            tasks += process.want(int(line), session)
        process.want(0, session)
        await asyncio.gather(*tasks)


class Sharer:
    """Such a process, from the outside. `share` is what it has told last."""

    def __init__(
        self, concurrency: int, *, url: str = "", key: str = KEY, environ: dict[str, str], across: bool
    ) -> None:
        self.share: int | None = None
        self.fraction: float | None = None
        self.process = subprocess.Popen(
            [sys.executable, __file__, key, str(concurrency), url, *(["across"] if across else [])],
            env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests' / 'helpers'}", **environ},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def want(self, requests: int) -> None:
        """Keep so many requests under way or waiting, from now on."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{requests}\n")
        self.process.stdin.flush()

    def wait_for_share(self, wanted: int) -> None:
        """Return once the process has told that share."""
        wait_until(lambda: self.share == wanted, lambda: f"the share is {self.share}, not {wanted}: {self.explain()}")

    def explain(self) -> str:
        """What went wrong in a process that has ended."""
        if self.process.poll() is None:
            return "the process is running"
        assert self.process.stderr is not None
        return self.process.stderr.read()

    def kill(self) -> None:
        """End it as `kill -9` does."""
        self.process.kill()
        self.process.wait(timeout=30)

    def leave(self) -> str:
        """Let it end in good order; returns what it wrote to standard error."""
        assert self.process.stdin is not None
        assert self.process.stderr is not None
        self.process.stdin.close()
        errors = self.process.stderr.read()
        assert self.process.wait(timeout=30) == 0, errors
        self._thread.join(timeout=30)
        return errors

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            told = json.loads(line)
            self.fraction, self.share = told["fraction"], told["share"]


def wait_until(
    condition: Callable[[], bool], explain: Callable[[], str] = lambda: "", *, timeout_s: float = 30
) -> None:
    """Return when the condition holds; a test that waits in vain fails after a while."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, explain()
        time.sleep(0.01)


@contextmanager
def started_sharers() -> Iterator[Callable[..., Sharer]]:
    """Starts such processes; those that still run at the end are killed."""
    started: list[Sharer] = []

    def start(concurrency: int, *, across: bool = False, environ: dict[str, str], **options: str) -> Sharer:
        started.append(Sharer(concurrency, environ=environ, across=across, **options))
        return started[-1]

    try:
        yield start
    finally:
        for sharer in started:
            if sharer.process.poll() is None:
                sharer.kill()
            for stream in (sharer.process.stdout, sharer.process.stderr, sharer.process.stdin):
                assert stream is not None
                if stream is sharer.process.stdout:
                    sharer._thread.join(timeout=30)
                stream.close()


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    asyncio.run(_run(sys.argv[1], int(sys.argv[2]), sys.argv[3], across_machines=sys.argv[4:] == ["across"]))
