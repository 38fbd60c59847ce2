"""Updates without a pause, and a kill within seconds of a run's start, on a Prefect server that others use as well."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from serve_house import ServeHouse, open_serve_house, start_prefect_server

pytestmark = pytest.mark.slow

SUITE, KB = "stream", "docs"
LONGEST_WAIT_S, STREAM_S, PAUSE_S = 20, 45, 0.5
LOST = "a run had crashed before it was on record: it is queued again"


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeHouse]:
    with open_serve_house(tmp_path_factory.mktemp("stream")) as house, start_prefect_server(house):
        path = house.write_suite(SUITE, kb_name=KB)
        path.write_text(f"{path.read_text()}max_wait_s = {LONGEST_WAIT_S}\n")
        yield house


@dataclass(frozen=True, kw_only=True)
class Streamed:
    """The house when a stream of updates has ended and all its runs have; how many runs there were while it lasted."""

    house: ServeHouse
    versions: list[str]
    n_meanwhile: int


@pytest.fixture(scope="module")
def streamed(house: ServeHouse) -> Streamed:
    house.serve(house.folder / f"{SUITE}.toml", with_server=False)
    versions: list[str] = []
    end = time.monotonic() + STREAM_S
    while time.monotonic() < end:
        versions.append(f"v{len(versions)}")
        house.announce(KB, versions[-1])
        time.sleep(PAUSE_S)
    n_meanwhile = len(house.list_runs(SUITE))
    house.wait_until(lambda: len(list_answered(house)) == len(versions))
    house.wait_for_runs(SUITE, n_meanwhile + 1)
    return Streamed(house=house, versions=versions, n_meanwhile=n_meanwhile)


def list_answered(house: ServeHouse) -> list[dict[str, str]]:
    return house.query(SUITE, "select kb_version, run_id from kb_updates order by occurred_at")


def test_updates_that_come_without_a_pause_do_not_put_a_run_off_for_good(streamed: Streamed) -> None:
    assert streamed.n_meanwhile >= 1
    # With 20 s between two looks a run begins at most 40 s after the first update that it answers.
    assert len(streamed.house.list_runs(SUITE)) in range(2, 2 + STREAM_S // LONGEST_WAIT_S)
    assert f"have waited for {LONGEST_WAIT_S} s while more came" in streamed.house.output


def test_every_update_of_a_stream_is_answered_once_and_in_its_order(streamed: Streamed) -> None:
    answered = list_answered(streamed.house)
    assert [row["kb_version"] for row in answered] == streamed.versions
    order = list(dict.fromkeys(row["run_id"] for row in answered))
    assert order == [run["run_id"] for run in streamed.house.list_runs(SUITE)]
    assert [row["run_id"] for row in answered] == sorted((row["run_id"] for row in answered), key=order.index)


def test_a_run_killed_within_seconds_of_its_start_does_not_stay_pending(streamed: Streamed) -> None:
    house, n_runs = streamed.house, len(streamed.house.list_runs(SUITE))
    house.announce(KB, "last")
    house.wait_until(lambda: any(one["state_type"] == "PENDING" for one in house.list_flow_runs(SUITE)))
    house.kill()
    (left,) = [one for one in house.list_flow_runs(SUITE) if one["state_type"] == "PENDING"]
    house.serve(house.folder / f"{SUITE}.toml", with_server=False)
    house.wait_until(lambda: len(house.list_runs(SUITE)) > n_runs)
    assert f"{SUITE}: {LOST}" in house.output
    house.wait_for_runs(SUITE, n_runs + 1)
    states = {one["id"]: one["state_type"] for one in house.list_flow_runs(SUITE)}
    assert states[left["id"]] == "CRASHED"
    assert list_answered(house)[-1]["kb_version"] == "last"
