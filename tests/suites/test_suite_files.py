"""A suite's text: the line of every key, however TOML lets it be written, and what is refused before any setting."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalhouse.flows.errors import SettingsError
from evalhouse.flows.preparing.suites import KeyPath, explain_unknown, find_lines, read_suite_text, write_path

EVERY_FORM = '''\
# a comment = "with a key"
plain = 1 # another = 2
"quoted key" = "a = b # no comment"
'literal' = 'x'
dotted.one = true
dotted."two.three" = 1979-05-27 07:32:00
list = [
  1, # first
  [2, 3],
  { inner = """
[no header]
a = 1 \\""" """"" },
]
inline = { a.b = 1, c = [ "]" ], "d" = {} }
text = \'\'\'
[neither]
x = 1\'\'\'\'
after = 2

  [table]
  key = -inf

[ "spaced" . sub ]
key = 0xff
[[array]]
k = 1
[[array]]
k = 2
'''


def list_paths(values: object, path: KeyPath = ()) -> list[KeyPath]:
    """Every key and array item of what tomllib read."""
    if isinstance(values, dict):
        return [one for key, part in values.items() for one in ((*path, key), *list_paths(part, (*path, key)))]
    if isinstance(values, list):
        return [one for place, part in enumerate(values) for one in ((*path, place), *list_paths(part, (*path, place)))]
    return []


def test_every_way_to_write_a_key_is_found_on_its_line() -> None:
    lines = find_lines(EVERY_FORM)
    assert {
        ("plain",): 2, ("quoted key",): 3, ("literal",): 4, ("dotted",): 5, ("dotted", "one"): 5,
        ("dotted", "two.three"): 6, ("list",): 7, ("list", 0): 8, ("list", 1): 9, ("list", 1, 1): 9, ("list", 2): 10,
        ("list", 2, "inner"): 10, ("inline",): 14, ("inline", "a"): 14, ("inline", "a", "b"): 14,
        ("inline", "c", 0): 14, ("inline", "d"): 14, ("text",): 15, ("after",): 18, ("table",): 20,
        ("table", "key"): 21, ("spaced",): 23, ("spaced", "sub"): 23, ("spaced", "sub", "key"): 24, ("array",): 25,
    }.items() <= lines.items()  # fmt: skip


def test_no_key_is_left_out() -> None:
    values = tomllib.loads(EVERY_FORM)
    del values["array"]  # tables of an array share one path
    assert set(list_paths(values)) <= find_lines(EVERY_FORM).keys()


def test_line_ends_of_windows_count_once() -> None:
    assert find_lines("a = 1\r\n\r\n[t]\r\nb = 2\r\n")[("t", "b")] == 4


KEYS = st.text(alphabet="ab-_1 .\"'#=[]{}\\,é\u4e2d", min_size=1, max_size=6)
LEAVES = st.one_of(
    st.integers(-5, 5), st.booleans(), st.text(alphabet="a\"'#=[]{},\\ \té", max_size=8), st.sampled_from([0.5, -2.0])
)
TABLES = st.dictionaries(KEYS, st.recursive(LEAVES, lambda part: st.lists(part, max_size=3), max_leaves=5), max_size=4)


def write_toml(tables: dict[str, dict[str, Any]]) -> tuple[str, dict[KeyPath, int]]:
    """A file of tables, and the line on which each key was put."""
    written: list[str] = []
    expected: dict[KeyPath, int] = {}
    for name, table in tables.items():
        written.append(f"[{json.dumps(name, ensure_ascii=False)}] # = [")
        expected[(name,)] = len(written)
        for key, value in table.items():
            # A list goes over several lines, each item on its own.
            items = [f"{json.dumps(one, ensure_ascii=False)}, # ]" for one in value] if isinstance(value, list) else []
            first = "[" if items else json.dumps(value, ensure_ascii=False)
            written.append(f"{json.dumps(key, ensure_ascii=False)} = {first}")
            expected[(name, key)] = len(written)
            for place, item in enumerate(items):
                written.append(item)
                expected[(name, key, place)] = len(written)
            written += ["]"] if items else []
    return "\n".join(written) + "\n", expected


@given(tables=st.dictionaries(KEYS, TABLES, max_size=3))
def test_lines_are_those_that_were_written(tables: dict[str, dict[str, Any]]) -> None:
    text, expected = write_toml(tables)
    assert tomllib.loads(text) == tables, "the test writes TOML"
    found = find_lines(text)
    assert {path: found[path] for path in expected} == expected


def test_a_path_is_written_as_a_person_writes_it() -> None:
    assert write_path(("target", "headers", "X-Key")) == "target.headers.X-Key"
    assert write_path(("metrics", 1)) == "metrics[2]"
    assert write_path(()) == ""


def test_unknown_keys_are_told_what_is_like_them_or_what_there_is() -> None:
    assert explain_unknown("concurency", ["concurrency", "rpm"]) == "there is no such key; did you mean concurrency?"
    assert explain_unknown("xyz", ["concurrency", "rpm"]) == "there is no such key; allowed: concurrency, rpm"


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"a = 1\nb = = 2\n", "suite.toml is no TOML: Invalid value (at line 2, column 5)"),
        (b"a = 1\na = 2\n", "suite.toml is no TOML: Cannot overwrite a value (at line 2, column 6)"),
        (b"a = '\xff'\n", "suite.toml is not UTF-8: byte 5 is 0xff"),
        (
            b"a = 1\n[t]\nb = 2020-01-01\nc = [1, inf]\nd = 10:00:00\n",
            "suite.toml, line 3: t.b: got the date or time 2020-01-01; no setting is one; write a text in quotes\n"
            "suite.toml, line 4: t.c[2]: got inf; give a finite number\n"
            "suite.toml, line 5: t.d: got the date or time 10:00:00; no setting is one; write a text in quotes",
        ),
    ],
)
def test_what_is_no_suite_at_all_is_refused_with_its_place(tmp_path: Path, content: bytes, told: str) -> None:
    path = tmp_path / "suite.toml"
    path.write_bytes(content)
    with pytest.raises(SettingsError) as refused:
        read_suite_text(path)
    assert str(refused.value) == told


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"the suite .*none\.toml cannot be read: No such file"):
        read_suite_text(tmp_path / "none.toml")


def test_a_byte_order_mark_is_no_key(tmp_path: Path) -> None:
    path = tmp_path / "suite.toml"
    path.write_bytes(b"\xef\xbb\xbfa = 1\n")
    assert read_suite_text(path).values == {"a": 1}
