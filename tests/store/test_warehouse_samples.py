"""Samples: taken in once by content, numbered where ids are missing, and read again by run and shard."""

import json
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from kept_open import let_go
from warehouse_processes import count_rows, make_warehouse, run_script
from warehouse_runs import make_run

from evalhouse.warehouse.engine import connection
from evalhouse.warehouse.errors import WarehouseError
from evalhouse.warehouse.rows import samples
from evalhouse.warehouse.rows.runs import find_run, insert_run
from evalhouse.warehouse.rows.samples import (
    FAILURE_REASONS,
    Staging,
    count_samples,
    fetch_samples_between,
    list_unfinished_shards,
    take_in_samples,
)
from evalhouse.warehouse.store import Batch, Warehouse, build_frame
from evalhouse.warehouse.upkeep import check_and_compact
from evalhouse.warehouse.upkeep.check_and_compact import check_warehouse, compact_warehouse
from evalhouse.warehouse.upkeep.copies import back_up

Row = dict[str, object]


def make_row(sample_id: str, **columns: object) -> Row:
    """A staged row; its content is its id unless given."""
    content: Row = {"input_hash": f"hash of {sample_id}", "question": f"What is {sample_id}?", "answer": "An answer."}
    return {"sample_id": sample_id, **content, **columns}


def load_rows(warehouse: Warehouse, run_id: str, *rows: Row, part: int = 2, cluster: str | None = None) -> int:
    """Stage the rows in parts and take them in for a run that is inserted first."""
    staging = Staging()
    try:
        numbered = [{"ordinal": ordinal, **row} for ordinal, row in enumerate(rows, start=1)]
        for begin in range(0, len(numbered), part):
            staging.add(numbered[begin : begin + part])
        if not any(run_id == row["run_id"] for row in warehouse.read_rows("select run_id from runs")):
            insert_run(warehouse, make_run(run_id))
        return take_in_samples(warehouse, run_id, staging, cluster=cluster)
    finally:
        staging.discard()


def read_metadata(warehouse: Warehouse, run_id: str) -> list[object]:
    """The metadata of a run's samples as `run_samples` holds them."""
    rows = warehouse.read_rows("select metadata from run_samples where run_id = $r order by ordinal", {"r": run_id})
    return [row["metadata"] and json.loads(str(row["metadata"])) for row in rows]


def test_samples_come_back_as_they_went(tmp_path: Path) -> None:
    warehouse = make_warehouse(tmp_path)
    full = make_row(
        "a", ground_truth="文", contexts=["one", "two"], context_ids=["1", "2"], reference_context_ids=["2"]
    )
    bare = make_row("b", answer=None, contexts=[])
    assert load_rows(warehouse, "r", full, bare) == 2
    first, second = fetch_samples_between(warehouse, "r", 1, 2)
    assert (first.sample_id, first.ordinal, first.input_hash) == ("a", 1, "hash of a")
    assert (first.question, first.answer, first.ground_truth) == ("What is a?", "An answer.", "文")
    assert (first.contexts, first.context_ids, first.reference_context_ids) == (["one", "two"], ["1", "2"], ["2"])
    assert (second.answer, second.ground_truth, second.contexts, second.context_ids) == (None, None, [], None)
    assert find_run(warehouse, "r").n_samples == 2


def make_grouped(*metadata: Row | None) -> list[Row]:
    return [
        make_row(f"s{number}", metadata=None if one is None else json.dumps(one)) for number, one in enumerate(metadata)
    ]


GROUPED: dict[str, tuple[list[Row | None], str | None, list[str | None]]] = {
    "some share a value of a known column": (
        [{"document_id": "a"}, {"document_id": "a"}, *({"document_id": n} for n in range(9))], None,
        ['document_id="a"', 'document_id="a"', *(f"document_id={n}" for n in range(9))],
    ),
    "a known column of five values is not taken": (
        [{"document_id": "a"}, {"document_id": "a"}, *({"document_id": n} for n in range(4))], None, [None] * 6,
    ),
    "unless it is named": (
        [{"document_id": 1}, {"document_id": 1}, {"document_id": 2}], "document_id",
        ["document_id=1", "document_id=1", "document_id=2"],
    ),
    "the first known column of six values counts": (
        [{"doc_id": n // 2, "thread_id": n // 2, "session_id": n // 3, "conversation_id": 1} for n in range(12)], None,
        [f"thread_id={n // 2}" for n in range(12)],
    ),
    "a column that all share is useless": ([{"doc_id": 1}, {"doc_id": 1}, {"doc_id": 1}], None, [None] * 3),
    "nor does one that none share": ([{"doc_id": 1}, {"doc_id": 2}, {"doc_id": 3}], None, [None] * 3),
    "samples without a value are groups of one": (
        [{"doc_id": 1}, {"doc_id": 1}, {"doc_id": 2}, {"doc_id": None}, {}], "doc_id",
        ["doc_id=1", "doc_id=1", "doc_id=2", "doc_id=@s3", "doc_id=@s4"],
    ),
    "no cluster by a column that is not known": ([{"page": 1}, {"page": 1}, {"page": 2}], None, [None] * 3),
    "one that is named may be lacking": (
        [{"a/b~c": 1}, {"a/b~c": 1}, {"a/b~c": 2}, {"doc_id": 1}, None], "a/b~c",
        ["a/b~c=1", "a/b~c=1", "a/b~c=2", "a/b~c=@s3", "a/b~c=@s4"],
    ),
    "none can be wanted": ([{"doc_id": 1}, {"doc_id": 1}, {"doc_id": 2}], "none", [None] * 3),
    "without metadata no cluster": ([None, None], None, [None, None]),
}  # fmt: skip


@pytest.mark.parametrize("case", GROUPED)
def test_samples_that_are_not_independent_are_known_by_their_group(tmp_path: Path, case: str) -> None:
    metadata, cluster, expected = GROUPED[case]
    warehouse = make_warehouse(tmp_path)
    load_rows(warehouse, "r", *make_grouped(*metadata), cluster=cluster)
    found = warehouse.read_rows("select cluster from run_samples where run_id = 'r' order by ordinal")
    assert [row["cluster"] for row in found] == expected


def test_repeats_without_an_id_are_numbered_in_file_order(tmp_path: Path) -> None:
    warehouse = make_warehouse(tmp_path)
    rows = [make_row("h", answer=f"answer {number}", input_hash=str(number)) for number in (1, 2, 3)]
    load_rows(warehouse, "r", rows[0], make_row("other"), rows[1], make_row("h", given_id="h", input_hash="4"), rows[2])
    found = [(sample.sample_id, sample.input_hash) for sample in fetch_samples_between(warehouse, "r", 1, 5)]
    assert found == [("h", "1"), ("other", "hash of other"), ("h-2", "2"), ("h", "4"), ("h-3", "3")]


def test_unchanged_content_is_stored_once_over_all_runs(tmp_path: Path) -> None:
    warehouse = make_warehouse(tmp_path)
    night = [make_row("a"), make_row("b"), make_row("b", input_hash="hash of b")]
    for run_id in ("r1", "r2"):
        load_rows(warehouse, run_id, *night)
    assert count_rows(warehouse, "samples") == 3
    load_rows(warehouse, "r3", make_row("a", answer="Changed.", input_hash="new"), make_row("b"), make_row("c"))
    assert count_rows(warehouse, "samples") == 5
    assert count_rows(warehouse, "run_samples") == 9
    answers = [sample.answer for sample in fetch_samples_between(warehouse, "r3", 1, 1)]
    assert answers == ["Changed."]
    assert [sample.answer for sample in fetch_samples_between(warehouse, "r1", 1, 1)] == ["An answer."]


def test_metadata_is_stored_with_the_run_only_where_it_differs(tmp_path: Path) -> None:
    warehouse = make_warehouse(tmp_path)
    topic = make_row("a", metadata='{"topic":"x"}')
    load_rows(warehouse, "r1", topic, make_row("b"))
    load_rows(warehouse, "r2", topic, make_row("b", metadata='{"new":1}'))
    load_rows(warehouse, "r3", make_row("a", metadata='{"topic":"y"}'), make_row("b"))
    load_rows(warehouse, "r4", make_row("a"), make_row("b"))
    assert read_metadata(warehouse, "r1") == [None, None]
    assert read_metadata(warehouse, "r2") == [None, {"new": 1}]
    assert read_metadata(warehouse, "r3") == [{"topic": "y"}, None]
    # No metadata at all must not read as that of the night before.
    assert read_metadata(warehouse, "r4") == [{}, None]
    assert warehouse.read("select metadata from samples order by sample_id")["metadata"].to_list() == [
        '{"topic":"x"}',
        None,
    ]


def test_a_kill_within_the_load_leaves_nothing_of_it(tmp_path: Path) -> None:
    warehouse = make_warehouse(tmp_path)
    insert_run(warehouse, make_run("r"))
    # All rows are in, and how many they are is about to be noted.
    script = """
from evalhouse.warehouse.rows.samples import Staging, take_in_samples
class Killing(Staging):
    n_rows = property(kill_self)
staging = Staging()
staging.add([{"ordinal": 1, "sample_id": "a", "input_hash": "h", "question": "?"}])
staging.__class__ = Killing
take_in_samples(Warehouse(PATH), "r", staging)
"""
    assert run_script(script, warehouse.location.path).code == -9
    assert count_rows(warehouse, "samples") == count_samples(warehouse, "r") == 0


def test_a_load_that_fails_says_so_in_one_line(tmp_path: Path) -> None:
    warehouse = make_warehouse(tmp_path)
    with pytest.raises(WarehouseError, match=r"w\.duckdb: .*Malformed JSON") as raised:
        load_rows(warehouse, "r", make_row("a"), make_row("b", metadata="{broken"))
    assert "\n" not in str(raised.value)
    assert count_rows(warehouse, "samples") == count_samples(warehouse, "r") == 0


def test_shards_are_read_by_ordinal(tmp_path: Path) -> None:
    warehouse = make_warehouse(tmp_path)
    load_rows(warehouse, "r", *(make_row(f"s{number}") for number in range(1, 11)), part=3)
    load_rows(warehouse, "other", make_row("s3"))
    assert [s.sample_id for s in fetch_samples_between(warehouse, "r", 4, 6)] == ["s4", "s5", "s6"]
    assert [s.ordinal for s in fetch_samples_between(warehouse, "r", 9, 12)] == [9, 10]
    assert fetch_samples_between(warehouse, "r", 11, 12) == []
    assert count_samples(warehouse, "r") == 10


def test_what_a_killed_process_staged_is_removed_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    in_use = Staging()
    assert (
        run_script(
            "from evalhouse.warehouse.rows.samples import Staging\nStaging()\nkill_self()", tmp_path / "w.duckdb"
        ).code
        == -9
    )
    assert len(list(tmp_path.glob("*/*/"))) == 2
    (tmp_path / "evalhouse-scratch-of-a-person.txt").touch()
    later = Staging()
    in_use.add([{"ordinal": 1, **make_row("a")}])
    assert len(list(tmp_path.glob("*/*/"))) == 2, "the dead one's is gone, and the living one's is not"
    for staging in (in_use, later):
        staging.discard()
    assert [path.name for path in tmp_path.iterdir()] == ["evalhouse-scratch-of-a-person.txt"]


def note_outcomes(warehouse: Warehouse, key: str, **reasons: str | None) -> None:
    rows = [{"run_id": "r", "sample_id": name, "step": "classify", "reason": why} for name, why in reasons.items()]
    frame = build_frame("outcomes", rows)
    warehouse.append(Batch(key=key, run_id="r", tables={"outcomes": frame}, replaces=tuple(reasons)))


def test_a_shard_is_unfinished_until_every_sample_of_it_ended_well(tmp_path: Path) -> None:
    warehouse = make_warehouse(tmp_path)
    load_rows(warehouse, "r", *(make_row(f"s{number}") for number in range(1, 7)))
    assert list_unfinished_shards(warehouse, "r", 2) == [0, 1, 2]
    assert list_unfinished_shards(warehouse, "r", 4) == [0, 1]
    note_outcomes(warehouse, "first", s1=None, s2="no_answer", s3=None, s5=None, s6="judge_failed")
    assert list_unfinished_shards(warehouse, "r", 2) == [1, 2]
    note_outcomes(warehouse, "second", s4=None, s6=None)
    assert list_unfinished_shards(warehouse, "r", 2) == []
    other_run = build_frame("outcomes", [{"run_id": "r2", "sample_id": "s1", "step": "x", "reason": "judge_failed"}])
    warehouse.append(Batch(key="third", run_id="r2", tables={"outcomes": other_run}))
    assert list_unfinished_shards(warehouse, "r", 2) == []


@pytest.mark.parametrize("reason", FAILURE_REASONS)
def test_one_failed_step_is_enough_to_try_again(tmp_path: Path, reason: str) -> None:
    warehouse = make_warehouse(tmp_path)
    load_rows(warehouse, "r", make_row("a"))
    steps = [("extract_answer", None), ("classify", reason), ("rank", "no_contexts")]
    rows = [{"run_id": "r", "sample_id": "a", "step": step, "reason": why} for step, why in steps]
    warehouse.append(Batch(key="k", run_id="r", tables={"outcomes": build_frame("outcomes", rows)}))
    assert list_unfinished_shards(warehouse, "r", 64) == [0]
    assert list_unfinished_shards(warehouse, "r", 64, failures=["other"]) == []


LENGTHS = {"short": [1] * 7, "one by one": [90] * 3, "a long one": [1, 1, 900, 1], "none": [0, 0], "long last": [5, 99]}


@pytest.mark.parametrize(
    ("column", "lengths"),
    [*(("contexts", lengths) for lengths in LENGTHS.values()),
     *((column, LENGTHS["a long one"]) for column in ("answer", "metadata"))],
)  # fmt: skip
def test_texts_of_any_length_are_staged_and_written_by_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lengths: list[int], column: str
) -> None:
    monkeypatch.setattr("evalhouse.warehouse.rows.samples.PART_BYTES", 600)
    monkeypatch.setattr("evalhouse.warehouse.rows.samples.MAX_COMMIT_BYTES", 1_000)
    warehouse = make_warehouse(tmp_path)
    texts: dict[str, Callable[[int], object]] = {
        "answer": lambda n: "文" * n,
        "contexts": lambda n: ["x" * n] * 3,
        "metadata": lambda n: json.dumps({"x": "y" * n}),
    }
    rows = [make_row(f"s{place}", **{column: texts[column](n)}) for place, n in enumerate(lengths)]
    staging = Staging()
    staging.add([{"ordinal": place, **row} for place, row in enumerate(rows, start=1)])
    groups = staging.group_parts()
    assert [part for parts in groups for part in parts] == staging.parts
    sizes = dict(zip(staging.parts, staging._sizes, strict=True))
    assert all(size <= 600 or pl.read_parquet(part).height == 1 for part, size in sizes.items())
    assert all(len(parts) == 1 or sum(sizes[part] for part in parts) <= 1_000 for parts in groups)
    assert (len(groups) > 1) == (900 in lengths)
    staging.discard()
    for run_id in ("r", "again"):
        assert load_rows(warehouse, run_id, *rows, part=len(rows)) == len(rows)
        samples = fetch_samples_between(warehouse, run_id, 1, 9)
        assert [sample.sample_id for sample in samples] == [row["sample_id"] for row in rows]
        found = [getattr(sample, "metadata_json" if column == "metadata" else column) for sample in samples]
        assert found == [row[column] for row in rows]
    assert count_rows(warehouse, "samples") == len(rows)


def test_load_that_was_killed_between_its_transactions_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evalhouse.warehouse.rows.samples.MAX_COMMIT_BYTES", 50)
    warehouse = make_warehouse(tmp_path)
    rows = [make_row(f"s{place}") for place in range(6)]

    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("evalhouse.warehouse.rows.samples._insert_staged", stop)
        with pytest.raises(KeyboardInterrupt):
            load_rows(warehouse, "r", *rows)
    assert (count_rows(warehouse, "samples"), count_samples(warehouse, "r")) == (4, 0)
    assert all(finding.verdict != "wrong" for finding in check_warehouse(warehouse))
    assert load_rows(warehouse, "r", *rows) == 6
    assert count_rows(warehouse, "samples") == 6


_LONG = """
import os, resource
from evalhouse.warehouse.mover import Mover
from evalhouse.warehouse.rows.runs import insert_run
from evalhouse.warehouse.rows.samples import Staging, fetch_samples_between, take_in_samples
from warehouse_runs import make_run
from warehouse_runs import make_row
warehouse = Warehouse(PATH)
insert_run(warehouse, make_run("r"))
staging = Staging()
for number in range(1, 301):
    contexts = [os.urandom(52_500).hex() for _ in range(5)]
    row = {"sample_id": f"s{number}", "input_hash": str(number), "question": "?", "contexts": contexts}
    staging.add([{"ordinal": number, **row}])
take_in_samples(warehouse, "r", staging)
staging.discard()
mover = Mover(warehouse, "llm_calls")
for number in range(150):
    mover.keep(make_row(number, request='"' + "".join(contexts) + '"'))
mover.close()
# As a run does, a shard at a time.
assert sum(len(fetch_samples_between(warehouse, "r", first, first + 14)) for first in range(1, 301, 15)) == 300
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


@pytest.mark.slow
def test_samples_of_half_a_megabyte_take_bounded_memory(tmp_path: Path) -> None:
    ended = run_script(_LONG, make_warehouse(tmp_path).location.path)
    assert int(ended.output) < 900, ended


@pytest.mark.parametrize(
    ("n_letters", "n_groups"),
    [
        pytest.param([900, 900], [3, 6], id="long-texts-stay-as-they-are-committed", marks=pytest.mark.slow),
        pytest.param([1, 1], [1, 1], id="short-ones-are-merged", marks=pytest.mark.slow),
        pytest.param([900, 1], [3, 4], id="short-ones-do-not-merge-the-long-ones-before"),
    ],
)
def test_row_groups_of_long_texts_are_kept_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_letters: list[int], n_groups: list[int]
) -> None:
    """DuckDB reads up to 2,048 samples of a row group to give one of them."""
    monkeypatch.setattr(samples, "PART_BYTES", 2_000)
    for place in (connection, samples, check_and_compact):
        monkeypatch.setattr(place, "MAX_COMMIT_BYTES", 4_000)
    for place in (connection, check_and_compact):
        monkeypatch.setattr(place, "VECTOR_ROWS", 20)
    monkeypatch.setattr(connection, "_MERGED_BYTES", 100_000)
    warehouse = make_warehouse(tmp_path)
    let_go()  # row groups are merged when the file is closed
    groups, counts = "select count(distinct row_group_id) from pragma_storage_info('samples')", []
    for number, letters in enumerate(n_letters):
        rows = [make_row(f"{number}.{row}", contexts=["x" * letters]) for row in range(12)]
        load_rows(warehouse, f"r{number}", *rows)
        insert_run(warehouse, make_run(f"later {number}"))
        counts.append(warehouse.read(groups).item())
    assert counts == n_groups
    for copy in (warehouse, Warehouse(str(back_up(warehouse, str(tmp_path / "copy.duckdb")).path))):
        compact_warehouse(copy)
        assert (copy.read(groups).item() > 1) is (n_groups[-1] > 1)
        assert count_rows(copy, "samples") == 24
