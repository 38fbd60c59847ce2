"""One limit for several machines, over a real Prefect server: what it shows, what it enforces, and what goes on when
it fails."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from endpoint import Endpoint, running_endpoint
from prefect_holder import find_server
from sharing_processes import KEY, Sharer, Slots, started_sharers, wait_until

from evalhouse.tasks.asking.boards import FOLDER_VARIABLE, BoardLost, Need, Share
from evalhouse.tasks.asking.prefect_board import PrefectBoard
from evalhouse.tasks.asking.shared_limit import share_limits

# A port that nobody listens on.
NOWHERE = "http://127.0.0.1:9/api"


class Api:
    """The server as an operator sees and changes it."""

    def __init__(self, url: str, auth_string: str) -> None:
        self.url = url
        self.auth_string = auth_string
        user, _, password = auth_string.partition(":")
        self._client = httpx.Client(base_url=url, auth=(user, password), trust_env=False, timeout=30)

    @property
    def environ(self) -> dict[str, str]:
        return {"PREFECT_API_URL": self.url, "PREFECT_API_AUTH_STRING": self.auth_string, "NO_PROXY": "127.0.0.1"}

    def read_limit(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self._client.get(f"/v2/concurrency_limits/{name}").raise_for_status().json()
        return found

    def change_limit(self, name: str, **changes: object) -> None:
        self._client.patch(f"/v2/concurrency_limits/{name}", json=changes).raise_for_status()

    def delete_limit(self, name: str) -> None:
        self._client.delete(f"/v2/concurrency_limits/{name}").raise_for_status()

    def release(self, lease_id: object) -> None:
        self._client.post("/v2/concurrency_limits/decrement-with-lease", json={"lease_id": str(lease_id)})

    def list_rows(self, prefix: str = "evalhouse_share") -> dict[str, dict[str, int]]:
        rows = self._client.post("/variables/filter", json={}).raise_for_status().json()
        return {row["name"]: row["value"] for row in rows if row["name"].startswith(prefix)}

    def touched_at(self, name: str) -> str:
        row: dict[str, str] = self._client.get(f"/variables/name/{name}").raise_for_status().json()
        return row["updated"]

    def change_row(self, name: str, value: object) -> None:
        self._client.patch(f"/variables/name/{name}", json={"value": value}).raise_for_status()

    def delete_row(self, name: str) -> None:
        self._client.delete(f"/variables/name/{name}").raise_for_status()

    def close(self) -> None:
        self._client.close()


@pytest.fixture(scope="module")
def api() -> Iterator[Api]:
    variables = find_server()
    api = Api(variables["PREFECT_API_URL"], variables["PREFECT_API_AUTH_STRING"])
    yield api
    api.close()


@pytest.fixture
def key(request: pytest.FixtureRequest) -> str:
    """Another limit for every test."""
    return f"http://models.example:8000/v1 {request.node.name}"


@pytest.fixture
async def open_board(api: Api, key: str) -> AsyncIterator[Callable[..., PrefectBoard]]:
    """Opens boards as processes of several machines would; those that are left open are left at the end."""
    from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings  # noqa: PLC0415

    opened: list[PrefectBoard] = []

    def open_one() -> PrefectBoard:
        opened.append(PrefectBoard(key))
        return opened[-1]

    with temporary_settings({PREFECT_API_URL: api.url, PREFECT_API_AUTH_STRING: api.auth_string}):
        yield open_one
        for board in opened:
            await board.leave()


async def exchange(board: PrefectBoard, *, held: int, wish: int = 16, setting: int = 16) -> Share:
    return await board.exchange(Need(setting=setting, wish=wish, held=held))


async def test_a_lone_process_has_everything_at_its_first_look_and_gives_it_back(
    api: Api, open_board: Callable[..., PrefectBoard], key: str
) -> None:
    board = open_board()
    share = await exchange(board, held=0, wish=0)
    assert (share.slots, share.fraction) == (16, 1.0)
    limit = api.read_limit(board.limit_name)
    assert (limit["limit"], limit["active_slots"]) == (16, 16)
    assert board.limit_name.startswith("evalhouse-models.example-8000-v1-test")
    assert {"setting": 16, "wish": 0, "grant": 16} in api.list_rows().values()
    await board.leave()
    assert api.read_limit(board.limit_name)["active_slots"] == 0
    assert {"setting": 16, "wish": 0, "grant": 16} not in api.list_rows().values()


@pytest.mark.parametrize("setting", [1, 7, 100])
async def test_no_slot_is_lost_to_the_size_of_the_parts(
    setting: int, api: Api, open_board: Callable[..., PrefectBoard]
) -> None:
    board = open_board()
    assert (await exchange(board, held=0, setting=setting)).slots == setting
    assert api.read_limit(board.limit_name)["active_slots"] == setting


async def test_slots_change_hands_only_when_they_are_free(api: Api, open_board: Callable[..., PrefectBoard]) -> None:
    first, second = open_board(), open_board()
    assert (await exchange(first, held=0)).slots == 16
    assert (await exchange(second, held=0)).slots == 0
    told = await exchange(first, held=16)
    assert told.slots == 8
    # Twelve requests are still under way: only four slots can be handed over.
    assert (await exchange(first, held=12)).slots == 8
    assert (await exchange(second, held=0)).slots == 4
    assert (await exchange(first, held=8)).slots == 8
    assert (await exchange(second, held=4)).slots == 8
    assert api.read_limit(first.limit_name)["active_slots"] == 16
    await second.leave()
    assert (await exchange(first, held=8)).slots == 16


async def test_an_idle_process_lends_its_slots(open_board: Callable[..., PrefectBoard]) -> None:
    first, second = open_board(), open_board()
    await exchange(first, held=0, wish=0)
    await exchange(second, held=0)
    idle = await exchange(first, held=16, wish=0)
    assert idle.slots == 1
    await exchange(first, held=1, wish=0)
    assert (await exchange(second, held=0)).slots == 15


async def test_what_an_operator_changes_is_honoured(api: Api, open_board: Callable[..., PrefectBoard]) -> None:
    board = open_board()
    await exchange(board, held=0)
    api.change_limit(board.limit_name, limit=4)
    assert (await exchange(board, held=16)).slots == 4
    await exchange(board, held=4)
    assert api.read_limit(board.limit_name)["active_slots"] == 4
    api.change_limit(board.limit_name, limit=0)
    assert (await exchange(board, held=4)).slots == 0
    api.change_limit(board.limit_name, limit=64)
    assert (await exchange(board, held=0)).slots == 16  # a process never exceeds its own setting
    api.change_limit(board.limit_name, limit=4, active=False)
    assert (await exchange(board, held=16)).slots == 16  # switched off


async def test_what_an_operator_deletes_is_made_anew(
    api: Api, open_board: Callable[..., PrefectBoard], monkeypatch: pytest.MonkeyPatch
) -> None:
    board = open_board()
    await exchange(board, held=0)
    api.delete_limit(board.limit_name)
    for name in api.list_rows():
        api.delete_row(name)
    monkeypatch.setattr("evalhouse.tasks.asking.prefect_board._ROW_S", 0.0)
    assert (await exchange(board, held=16)).slots == 16
    assert api.read_limit(board.limit_name)["active_slots"] == 16
    assert len(api.list_rows()) == 1


async def test_a_lease_that_has_ended_is_no_longer_counted_on(
    api: Api, open_board: Callable[..., PrefectBoard], monkeypatch: pytest.MonkeyPatch
) -> None:
    board = open_board()
    await exchange(board, held=0)
    monkeypatch.setattr("evalhouse.tasks.asking.prefect_board._RENEW_S", 0.0)
    api.release(board._leases[0].lease_id)
    api.change_limit(board.limit_name, active_slots=16)  # another has taken it
    assert (await exchange(board, held=16)).slots == 15
    api.change_limit(board.limit_name, active_slots=15)
    assert (await exchange(board, held=15)).slots == 16


async def test_slots_that_a_server_forgot_to_free_are_freed(
    api: Api, open_board: Callable[..., PrefectBoard], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    board = open_board()
    await exchange(board, held=0)
    await board.leave()
    api.change_limit(board.limit_name, active_slots=12)  # as after a restart: taken, and no lease that could end
    later = open_board()
    assert (await exchange(later, held=0)).slots == 4
    assert (await exchange(later, held=4)).slots == 4
    monkeypatch.setattr("evalhouse.tasks.asking.prefect_board._FORGOTTEN_S", 0.0)
    await exchange(later, held=4)
    assert (await exchange(later, held=4)).slots == 16
    assert "12 slots taken by nobody" in caplog.text


async def test_a_row_that_is_not_touched_any_more_is_overlooked_and_later_removed(
    api: Api, open_board: Callable[..., PrefectBoard], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evalhouse.tasks.asking.prefect_board._ROW_S", 0.0)
    dead, living = open_board(), open_board()
    await exchange(dead, held=0)
    await exchange(living, held=0)
    created_at = api.touched_at(living._name)
    await exchange(living, held=0)
    assert api.touched_at(living._name) > created_at
    for lease in dead._leases:  # they have ended
        api.release(lease.lease_id)
    assert (await exchange(living, held=0)).slots == 0  # its row still stands for all of them
    monkeypatch.setattr("evalhouse.tasks.asking.prefect_board._ROW_STALE", timedelta(0))
    assert (await exchange(living, held=0)).slots == 16
    assert dead._name in api.list_rows()
    monkeypatch.setattr("evalhouse.tasks.asking.prefect_board._ROW_DEAD", timedelta(0))
    await exchange(living, held=16)
    assert dead._name not in api.list_rows()
    assert living._name in api.list_rows()


@pytest.mark.parametrize("value", ["nonsense", {"setting": 1}, {"setting": 1, "wish": "x", "grant": 0}])
async def test_a_row_that_somebody_has_spoiled_is_overlooked(
    value: object, api: Api, open_board: Callable[..., PrefectBoard]
) -> None:
    first, second = open_board(), open_board()
    await exchange(second, held=0, setting=2, wish=0)
    api.change_row(second._name, value)
    assert (await exchange(first, held=0)).limit == 2  # the limit itself is as it was
    await second.leave()
    assert (await exchange(first, held=0)).slots == 2


async def test_without_an_answer_the_last_share_is_kept(
    open_board: Callable[..., PrefectBoard], monkeypatch: pytest.MonkeyPatch
) -> None:
    board = open_board()
    await exchange(board, held=0)
    assert board._client is not None
    monkeypatch.setattr(board._client._client, "base_url", httpx.URL("http://127.0.0.1:9/nowhere/"))
    monkeypatch.setattr("prefect.client.base.PREFECT_CLIENT_MAX_RETRIES", _Setting(0))
    share = await exchange(board, held=16)
    assert (share.slots, share.limit, share.again_s) == (16, 16, 3.0)  # asked again later than after an answer


class _Setting:
    def __init__(self, value: int) -> None:
        self._value = value

    def value(self) -> int:
        return self._value


async def test_a_server_that_cannot_be_used_at_first_is_an_error_of_the_board(key: str) -> None:
    from prefect.settings import PREFECT_API_URL, temporary_settings  # noqa: PLC0415

    with temporary_settings({PREFECT_API_URL: NOWHERE}):
        board = PrefectBoard(key)
        with pytest.raises(BoardLost, match="All connection attempts failed"):
            await exchange(board, held=0)
        await board.leave()


async def test_then_the_processes_of_this_machine_share_in_their_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from prefect.settings import PREFECT_API_URL, temporary_settings  # noqa: PLC0415

    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "limits"))
    limit = Slots(16)
    with temporary_settings({PREFECT_API_URL: NOWHERE}):
        async with share_limits({KEY: limit}, concurrency=16, across_machines=True):
            assert limit.share == 16
            assert list((tmp_path / "limits").rglob("*.json"))
    (warning,) = [record for record in caplog.records if record.name.startswith("evalhouse.tasks.")]
    assert "shared with the processes of this machine alone" in warning.getMessage()


@pytest.mark.parametrize("host", ["localhost:8000", "127.0.0.1:8000", "[::1]:8000", "gpu.localhost"])
async def test_an_endpoint_of_this_machine_is_shared_on_this_machine_alone(
    host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from prefect.settings import PREFECT_API_URL, temporary_settings  # noqa: PLC0415

    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "limits"))
    limit = Slots(16)
    with temporary_settings({PREFECT_API_URL: NOWHERE}):
        async with share_limits({f"http://{host}/v1 judge": limit}, concurrency=16, across_machines=True):
            assert limit.share == 16
            assert list((tmp_path / "limits").rglob("*.json"))
    assert not [record for record in caplog.records if record.name.startswith("evalhouse.tasks.")]


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with running_endpoint(latency=0.04) as running:
        yield running


@pytest.fixture
def start(api: Api, endpoint: Endpoint, key: str, tmp_path: Path) -> Iterator[Callable[[int], Sharer]]:
    """Starts a process as of another machine: it has a folder of its own."""
    with started_sharers() as start_one:

        def start_elsewhere(concurrency: int) -> Sharer:
            environ = {**api.environ, FOLDER_VARIABLE: str(tmp_path / "unused"), "PREFECT_HOME": str(tmp_path)}
            return start_one(concurrency, url=endpoint.base_url, key=key, across=True, environ=environ)

        yield start_elsewhere
    assert not (tmp_path / "unused").exists()


@pytest.mark.slow
def test_processes_of_several_machines_never_exceed_the_limit(
    start: Callable[[int], Sharer], endpoint: Endpoint, api: Api, key: str
) -> None:
    first = start(8)
    first.want(30)
    first.wait_for_share(8)
    wait_until(lambda: endpoint.stats.in_flight == 8)
    second = start(8)
    second.want(30)
    second.wait_for_share(4)
    first.wait_for_share(4)
    before = endpoint.stats.requests.total()
    wait_until(lambda: endpoint.stats.requests.total() > before + 100)
    assert endpoint.stats.max_in_flight == 8
    assert first.leave() == ""
    second.wait_for_share(8)
    assert second.leave() == ""
    assert endpoint.stats.max_in_flight == 8
    assert api.read_limit(PrefectBoard(key).limit_name)["active_slots"] == 0
