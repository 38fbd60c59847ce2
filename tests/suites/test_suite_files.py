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
from evalhouse.flows.preparing.suites import KeyPath, find_lines, load_suite_text

EVERY_FORM = """\
# a comment = "with a key"
plain = 1 # another = 2
"quoted key" = "a = b # no comment"
'literal' = 'x'
dotted.one = true
dotted."two.three" = 1979-05-27 07:32:00
list = [
  1, # first
  [2, 3],
]
inline = { a.b = 1, c = [ "]" ], "d" = {} }
after = 2

  [table]
  key = -inf

[ "spaced" . sub ] # [comment]
key = 0xff
[[array]]
k = 1
"""


def test_every_way_to_begin_a_line_with_a_key_is_found() -> None:
    assert find_lines(EVERY_FORM) == {
        ("plain",): 2, ("quoted key",): 3, ("literal",): 4, ("dotted",): 5, ("dotted", "one"): 5,
        ("dotted", "two.three"): 6, ("list",): 7, ("inline",): 11, ("after",): 12, ("table",): 14, ("table", "key"): 15,
        ("spaced",): 17, ("spaced", "sub"): 17, ("spaced", "sub", "key"): 18, ("array",): 19, ("array", "k"): 20,
    }  # fmt: skip


def test_no_line_is_named_where_a_text_looks_like_the_same_key(tmp_path: Path) -> None:
    path = tmp_path / "suite.toml"
    path.write_text("when = 10:00:00\ntext = '''\nwhen = 1'''\nlater = 11:00:00\n")
    with pytest.raises(SettingsError, match="write a text in quotes") as refused:
        load_suite_text(path)
    first, second = str(refused.value).splitlines()
    assert first.startswith("suite.toml: when: got the date or time 10:00:00")
    assert second.startswith("suite.toml, line 4: later: got the date or time 11:00:00")


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
            # A list takes several lines, one for each item.
            items = [f"{json.dumps(one, ensure_ascii=False)}, # ]" for one in value] if isinstance(value, list) else []
            first = "[" if items else json.dumps(value, ensure_ascii=False)
            written.append(f"{json.dumps(key, ensure_ascii=False)} = {first}")
            expected[(name, key)] = len(written)
            written += [*items, "]"] if items else []
    return "\n".join(written) + "\n", expected


@given(tables=st.dictionaries(KEYS, TABLES, max_size=3))
def test_lines_are_those_that_were_written(tables: dict[str, dict[str, Any]]) -> None:
    text, expected = write_toml(tables)
    assert tomllib.loads(text) == tables, "the test writes TOML"
    found = find_lines(text)
    assert {path: found[path] for path in expected} == expected


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a = 1\nb = = 2\n", "suite.toml is not valid TOML: Invalid value (at line 2, column 5)"),
        (b"a = 1\na = 2\n", "suite.toml is not valid TOML: Cannot overwrite a value (at line 2, column 6)"),
        (
            b'dataset = "C:\\Users\\me\\qa.csv"\n',
            "suite.toml is not valid TOML: Invalid hex value (at "
            'line 1, column 16); a backslash within "…" begins an escape: '
            "write a path in single quotes, 'C:\\Users\\…'",
        ),
        (
            "dataset = “qa.csv”\n".encode(),
            "suite.toml is not valid TOML: Invalid value (at line 1, column "
            "11); it has typographic quotes: write straight ones",
        ),
        ("a = = 2\n".encode("utf-16"), "suite.toml is not valid TOML: Invalid value (at line 1, column 5)"),
        (b"a = '\xff'\n", "suite.toml is not UTF-8: byte 5 is 0xff"),
        (
            b"a = 1\n[t]\nb = 2020-01-01\nc = [1, inf]\nd = 10:00:00\n",
            "suite.toml, line 3: t.b: got the date or time 2020-01-01; no setting is one; write a text in quotes\n"
            "suite.toml, line 4: t.c[2]: got inf; give a finite number\n"
            "suite.toml, line 5: t.d: got the date or time 10:00:00; no setting is one; write a text in quotes",
        ),
    ],
)
def test_invalid_file_is_refused_with_its_place(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "suite.toml"
    path.write_bytes(content)
    with pytest.raises(SettingsError) as refused:
        load_suite_text(path)
    assert str(refused.value) == message


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"the suite .*none\.toml cannot be read: No such file"):
        load_suite_text(tmp_path / "none.toml")


def test_byte_order_mark_is_not_a_key(tmp_path: Path) -> None:
    path = tmp_path / "suite.toml"
    path.write_bytes(b"\xef\xbb\xbfa = 1\n")
    assert load_suite_text(path).values == {"a": 1}
