"""URLs of a warehouse: accepted ones, and the errors for others."""

from pathlib import Path

import pytest

from evalhouse.warehouse.errors import WarehouseUrlError
from evalhouse.warehouse.location import DEFAULT_URL, parse_location


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        (DEFAULT_URL, "evalhouse.duckdb"),
        ("duckdb:///a/b.duckdb", "a/b.duckdb"),
        ("duckdb:///a%20b%25.duckdb", "a b%.duckdb"),
        ("a/b.duckdb", "a/b.duckdb"),
        ("  a.duckdb ", "a.duckdb"),
        ("a/../b.duckdb", "b.duckdb"),
        ("~/b.duckdb", "home/b.duckdb"),
        ("数据/b.duckdb", "数据/b.duckdb"),
        ("100%25.duckdb", "100%25.duckdb"),
    ],
)
def test_relative_places_are_found_from_the_working_folder(url: str, expected: str, tmp_path: Path) -> None:
    assert parse_location(url).path == (tmp_path / expected).resolve()


@pytest.mark.parametrize("url", ["duckdb:////data/w.duckdb", "/data/w.duckdb"])
def test_four_slashes_or_a_plain_path_are_absolute(url: str) -> None:
    assert parse_location(url).path == Path("/data/w.duckdb")


def test_a_folder_that_is_only_at_the_root_is_not_made_here(tmp_path: Path) -> None:
    top = Path(tmp_path.parts[1])
    with pytest.raises(WarehouseUrlError, match=f"write 'duckdb:////{top}/w.duckdb' for the one, or '{top}/w.duckdb'"):
        parse_location(f"duckdb:///{top}/w.duckdb")
    top.mkdir()
    assert parse_location(f"duckdb:///{top}/w.duckdb").path == tmp_path / top / "w.duckdb"


@pytest.mark.parametrize("name", ["w.duckdb", "with space.duckdb", "100%25.duckdb", "a#b?c.duckdb", "数据.duckdb"])
def test_its_url_names_the_same_place_again(name: str, tmp_path: Path) -> None:
    location = parse_location(str(tmp_path / name))
    assert parse_location(location.url) == location


def test_a_link_leads_to_the_file_so_that_both_names_share_lock_and_spool(tmp_path: Path) -> None:
    (tmp_path / "link.duckdb").symlink_to(tmp_path / "real.duckdb")
    assert parse_location("link.duckdb") == parse_location("real.duckdb")


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://host/db",
        "duckdb://host/w.duckdb",
        "duckdb://w.duckdb",
        "duckdb:w.duckdb",
        "duckdb:///",
        "duckdb:////",
        "sqlite:///x.db",
        ":memory:",
        "duckdb:///:memory:",
    ],
)
def test_other_urls_are_refused_with_what_is_allowed(url: str) -> None:
    with pytest.raises(WarehouseUrlError) as raised:
        parse_location(url)
    assert repr(url) in str(raised.value)
    assert "duckdb:///folder/file.duckdb" in str(raised.value)


def test_path_that_cannot_be_followed_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    for path in ("~no-such-user/w.duckdb", "nul\0.duckdb"):
        with pytest.raises(WarehouseUrlError, match="cannot be followed"):
            parse_location(path)
