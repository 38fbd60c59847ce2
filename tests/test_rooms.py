"""Rules of imports: rooms in layers, no circle between rooms or files, and every room a package that is installed.

A room is a folder; the files that lie beside the rooms of `flows/`, `tasks/` and `warehouse/` count as rooms too.
Imports inside functions and for types alone count like all others.
"""

import ast
import graphlib
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("flows", "tasks", "prompts", "warehouse")
# A folder may import from those further right; `prompts` and `warehouse` know nothing of each other.
BELOW = {
    "flows": {"tasks", "prompts", "warehouse"},
    "tasks": {"prompts", "warehouse"},
    "prompts": set(),
    "warehouse": set(),
}
# Where a library may be imported at all.
LIBRARIES = {"duckdb": ("warehouse/",), "prefect": ("flows/", "tasks/"), "langchain_openai": ("tasks/models/",)}


def list_files() -> list[Path]:
    return sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))


def name_module(path: Path) -> str:
    return ".".join(["evalhouse", *path.relative_to(ROOT).with_suffix("").parts]).removesuffix(".__init__")


@cache
def list_imports(path: Path) -> tuple[str, ...]:
    """Every dotted name that a file imports; of `from a import b` both `a` and `a.b`."""
    return tuple(_find_imports(path))


def _find_imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.fixture(scope="module")
def neighbours() -> dict[str, set[str]]:
    """Map each file to the files of evalhouse that it imports, as paths from the root."""
    paths = {name_module(path): path.relative_to(ROOT).as_posix() for path in list_files()}
    return {own: {paths[name] for name in list_imports(ROOT / own) if name in paths} - {own} for own in paths.values()}


def find_room(path: str) -> str:
    """The folder of a file; for a file beside rooms, the file."""
    parts = path.split("/")
    return "/".join(parts[:2]) if len(parts) > 2 or parts[0] in ("flows", "tasks", "warehouse") else parts[0]


def find_circle(graph: dict[str, set[str]]) -> list[str]:
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []


def test_no_import_climbs(neighbours: dict[str, set[str]]) -> None:
    climbing = [
        f"{own} imports {other}"
        for own, others in neighbours.items()
        for other in others
        if (folder := other.split("/")[0]) != own.split("/")[0] and folder not in BELOW[own.split("/")[0]]
    ]
    assert climbing == []


def test_no_two_files_import_each_other_however_far_round(neighbours: dict[str, set[str]]) -> None:
    assert find_circle(neighbours) == []


def test_no_two_rooms_import_each_other_however_far_round(neighbours: dict[str, set[str]]) -> None:
    rooms: dict[str, set[str]] = {}
    for own, others in neighbours.items():
        rooms.setdefault(find_room(own), set()).update(find_room(other) for other in others)
    assert find_circle({room: others - {room} for room, others in rooms.items()}) == []


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_library_stays_in_its_rooms(library: str) -> None:
    using = [
        path.relative_to(ROOT).as_posix()
        for path in list_files()
        if library in {name.split(".")[0] for name in list_imports(path)}
    ]
    assert using
    assert [path for path in using if not path.startswith(LIBRARIES[library])] == []


@pytest.mark.parametrize("folder", ["flows", "tasks"])
def test_a_folder_can_be_taken_in_at_a_glance(folder: str) -> None:
    entries = [path.name for path in (ROOT / folder).iterdir() if path.name != "__pycache__"]
    assert len(entries) <= 25, entries


def test_every_room_is_installed() -> None:
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]["packages"]
    folders = sorted({name_module(path.parent / "__init__.py") for path in list_files()})
    assert packages == folders
    assert all((ROOT / Path(*name.split(".")[1:]) / "__init__.py").is_file() for name in folders)


def test_every_file_beside_the_code_is_installed() -> None:
    data = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]["package-data"]
    installed = {
        found
        for package, patterns in data.items()
        for pattern in patterns
        for found in ROOT.joinpath(*package.split(".")[1:]).glob(pattern)
    }
    beside = {
        path
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and path.suffix not in (".py", ".pyc", ".png")
    }
    assert sorted(path.relative_to(ROOT).as_posix() for path in beside - installed) == []


def test_no_two_files_of_tests_have_one_name() -> None:
    """Tests have no packages: of two modules of one name pytest would refuse the second, and with it the whole run."""
    names = Counter(path.name for path in (ROOT / "tests").rglob("*.py") if path.name != "conftest.py")
    assert [name for name, n in names.items() if n > 1] == []
