"""`evalhouse warehouse forget`: texts go and figures stay, what a kept run rests on stays, and no byte is left."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import duckdb
import orjson
import pytest
from cli_house import HOSTILE_ID, ROWS, House, store_all, write_metric
from cli_process import Finished
from history_nights import Size, write_nights
from kept_open import let_go
from warehouse_processes import count_rows, make_warehouse, run_script
from warehouse_runs import make_run

from evalhouse.tasks.comparing.runs import ComparisonSettings, compare_runs
from evalhouse.tasks.reviews.export import ExportRequest, plan_export
from evalhouse.warehouse.engine.connection import open_writer
from evalhouse.warehouse.engine.locks import hold_run
from evalhouse.warehouse.errors import WarehouseError
from evalhouse.warehouse.rows.calls import find_replies
from evalhouse.warehouse.rows.gates import Decision, record_decision
from evalhouse.warehouse.rows.run_pairs import RunPair
from evalhouse.warehouse.rows.runs import (
    find_forgotten,
    find_run,
    hash_text,
    insert_run,
    list_runs,
    parse_mark,
    update_run,
)
from evalhouse.warehouse.rows.samples import Staging, fetch_samples_between, take_in_samples
from evalhouse.warehouse.store import Warehouse, build_frame
from evalhouse.warehouse.upkeep import forget as upkeep_forget
from evalhouse.warehouse.upkeep.check_and_compact import check_warehouse, compact_warehouse
from evalhouse.warehouse.upkeep.copies import move_warehouse
from evalhouse.warehouse.upkeep.forget import KEPT, SHARED, TEXTS, Rule, forget

Ask = Callable[..., Finished]

# Every column of text that a migration made and that names, counts or classifies, and so holds no person's words.
_STAY = {
    "runs": "*", "prompts": "*", "batches": "*", "migrations": "*", "kb_updates": "*", "noise": "*", "scores": "*",
    "gate_decisions": "*", "gate_checks": "*", "gate_acceptances": "*", "provider_batches": "*", "batch_requests": "*",
    "served_models": "*", "stored_scores": "*", "stored_causes": "*", "stored_costs": "*",
    "testset_versions": "*", "review_picks": "*", "sample_picks": "*", "sample_signals": "*", "part_changes": "*",
    "forgotten": "*", "forgotten_items": "*", "forgotten_traces": "*",
    "citations": {"run_id", "sample_id", "statement_id", "call_id"},
    "samples": {"input_hash", "sample_id", "context_ids", "reference_context_ids"},
    "run_samples": {"run_id", "sample_id", "input_hash", "cluster"},
    "responses": {"run_id", "sample_id", "context_ids", "status", "reused_run_id"},
    "llm_calls": {
        "call_id", "run_id", "sample_id", "step", "prompt", "prompt_hash", "judge", "model", "request_hash", "status",
        "reused_call_id", "flow_run_id", "task_run_id", "batch_id", "reply_repair",
    },
    "statements": {"run_id", "sample_id", "statement_id", "source", "call_id"},
    "classifications": {"run_id", "sample_id", "statement_id", "label", "call_id"},
    "attributions": {"run_id", "sample_id", "statement_id", "call_id"},
    "context_verdicts": {"run_id", "sample_id", "call_id"},
    "turn_verdicts": {"run_id", "sample_id", "statement_id", "label", "call_id"},
    "votes": {"run_id", "sample_id", "step", "item_id", "verdict", "call_id"},
    "similarities": {"run_id", "sample_id", "kind", "call_id"},
    "grades": {"run_id", "sample_id", "rubric", "criterion", "rule", "call_id"},
    "outcomes": {"run_id", "sample_id", "step", "reason"},
    "preferences": {"run_id", "sample_id", "shown_first", "verdict", "cluster", "call_id"},
    "testset_candidates": {
        "run_id", "candidate_id", "kind", "language", "passage_ids", "reference_ids", "outcome", "reason",
        "question_id", "call_id",
    },
    "testset_checks": {"run_id", "candidate_id", "name", "call_id"},
    "testset_changes": {"set_hash", "run_id", "question_id", "change", "call_id"},
    # Received spans belong to no run: they go altogether, by age or by their trace.
    "spans": "*", "span_events": "*",
    # A version of a set is what later nights ask; it is forgotten by its questions.
    "testset_questions": "*",
    "reviews": {
        "run_id", "sample_id", "step", "statement_id", "label", "reviewer", "stratum", "item_hash", "question_hash",
        "first_label", "judge_label", "export_id",
    },
}  # fmt: skip


@pytest.fixture
def filled(house: House, tmp_path: Path) -> Warehouse:
    """A copy of the house's warehouse."""
    shutil.copyfile(house.path, tmp_path / "filled.duckdb")
    return Warehouse(str(tmp_path / "filled.duckdb"))


@pytest.fixture(scope="module")
def nights_file(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("nights") / "nights.duckdb"
    write_nights(path, Size(nights=4, samples=20))
    return path.read_bytes()


@pytest.fixture
def nights(nights_file: bytes, tmp_path: Path) -> Warehouse:
    (tmp_path / "nights.duckdb").write_bytes(nights_file)
    return Warehouse(str(tmp_path / "nights.duckdb"))


def _change(warehouse: Warehouse, sql: str) -> None:
    with open_writer(warehouse.location, patience_s=5) as connection:
        connection.execute(sql)


def _list_wrong(warehouse: Warehouse) -> list[str]:
    return [finding.what for finding in check_warehouse(warehouse) if finding.verdict == "wrong"]


def _name_run(*run_ids: str, with_scores: bool = False) -> Rule:
    return Rule(words="--run", run_ids=run_ids, with_scores=with_scores)


def _read_figures(warehouse: Warehouse) -> dict[str, list[tuple[object, ...]]]:
    """All that is counted and compared of all runs, computed again, without a word of any text."""
    store_all(warehouse.location.path)
    views = {
        "scores": "from run_scores order by all",
        "causes": "from sample_causes order by all",
        "costs": "from run_costs order by all",
        "history": "select * exclude (answer) from sample_history order by all",
        "rankings": "from sample_rankings order by all",
        "steps": "select run_id, sample_id, step, reason from sample_steps order by all",
        "labels": "select run_id, sample_id, step, statement_id, label, supported, useful, rating from verdicts "
        "order by all",
        "latencies": "from run_latencies order by all",
    }
    figures = {name: warehouse.read(sql).rows() for name, sql in views.items()}
    figures["documents"] = warehouse.fetch(
        "documents/uses", run_ids=[run.run_id for run in list_runs(warehouse)], words=""
    ).rows()
    runs = [run for run in list_runs(warehouse) if run.kind == "evaluation"]
    for base, candidate in zip(runs[2:], runs[1:], strict=False):
        pair = RunPair(warehouse, base, candidate)
        compared = compare_runs(pair, ComparisonSettings(resamples=20))
        figures[f"compare {base.run_id}"] = [
            (repr(compared.metrics), repr(compared.causes)), *pair.fetch("flips").rows(),
            *pair.fetch_changed_inputs(["topic"]).sort("sample_id").rows(),
        ]  # fmt: skip
    return figures


@pytest.mark.slow
def test_every_figure_is_what_it_was_and_marks_of_two_days_are_one_text(nights: Warehouse) -> None:
    before = _read_figures(nights)
    runs = sorted(run.run_id for run in list_runs(nights) if run.kind == "evaluation")
    for run_id in runs[:2]:  # each in a separate forgetting
        forget(nights, _name_run(run_id))
    texts = nights.read("select text from statements where run_id = $run_id", {"run_id": runs[0]})["text"]
    assert all(parse_mark(text) for text in texts)
    for table, column in (("statements", "text"), ("samples", "question"), ("samples", "answer")):
        _change(
            nights,
            f"update {table} set {column} = "
            f"regexp_replace({column}, '^forgotten on [0-9-]+', 'forgotten on 2020-01-02')"
            f" where sample_id in (select sample_id from run_samples where run_id = '{runs[0]}' and ordinal % 2 = 0)",
        )
    assert _read_figures(nights) == before
    assert _list_wrong(nights) == []


@pytest.mark.slow
def test_no_byte_of_a_sample_is_left_after_compacting(house: House, filled: Warehouse, ask: Ask) -> None:
    let_go()  # a file that is open has rows in its log
    row = next(row for row in ROWS if row["id"] == "tide-1")
    words = [row["question"], row["bot_reply"].split(".")[0], row["contexts"][0], row["contexts"][1], "Brankmouth"]
    journal = filled.location.journal_path
    journal.mkdir(exist_ok=True)
    (journal / "gone-000001.jsonl").write_bytes(
        orjson.dumps(
            {
                "call_id": "late", "run_id": house.run_id, "sample_id": "tide-1", "step": "rank", "judge": "lexical",
                "request_hash": "f" * 64, "request_key": 1, "reply": words[0], "status": "ok", "attempts": 1,
                "started_at": 1,
            }
        )
        + b"\n"
    )  # fmt: skip
    assert _find_bytes(filled, words) == set(words)
    result = ask(
        "warehouse", "forget", "--yes", "--sample", "tide-1", "--warehouse", str(filled.location.path), "--json"
    )
    assert result.status == 0, result.stderr
    assert result.document["n_samples"] == 2
    assert result.document["rows"]["llm_calls"] > 5
    assert ask("warehouse", "compact", "--warehouse", str(filled.location.path)).status == 0
    assert _find_bytes(filled, words) == set()
    # Of the other samples nothing is missing.
    assert len(_find_bytes(filled, [ROWS[2]["question"], ROWS[2]["bot_reply"]])) == 2
    assert _list_wrong(filled) == []


def _find_bytes(warehouse: Warehouse, words: list[str]) -> set[str]:
    """Return the words of these that the warehouse or any file named after it holds."""
    paths = [path for path in warehouse.location.path.parent.rglob("*") if path.is_file()]
    near = [path for path in paths if warehouse.location.path.name in str(path)]
    contents = b"\n".join(path.read_bytes() for path in near)
    read = contents + "\n".join(
        str(row)
        for table in ("samples", "statements", "llm_calls", "responses", "run_samples", "outcomes", "classifications",
                      "attributions", "context_verdicts", "similarities", "grades")
        for row in warehouse.read(f"from {table}").rows()
    ).encode()  # fmt: skip
    # Columns are packed, so that a text is looked for both in its bytes and in its rows.
    return {word for word in words if word.encode() in read}


def test_a_sample_is_forgotten_in_replays_too(house: House, filled: Warehouse) -> None:
    """Replays ask a sample again under other names, whose texts stayed, and the replies of its runs with them."""
    of_run = f"from {{}} where run_id = '{house.run_id}'"
    renamed = "select * replace ('replayed' as run_id, 'tide-1~old~1' as sample_id"
    of_sample = f"{of_run} and sample_id = 'tide-1'"
    _change(
        filled,
        f"insert into runs select * replace ('replayed' as run_id, 'replay' as kind) {of_run.format('runs')};"
        "insert into samples select * replace ('tide-1~old~1' as sample_id) from samples where sample_id = 'tide-1';"
        f"insert into run_samples {renamed}) {of_sample.format('run_samples')};"
        f"insert into llm_calls {renamed}, call_id || '~' as call_id) {of_sample.format('llm_calls')};"
        f"insert into statements {renamed}) {of_sample.format('statements')};"
        # Another sample, whose id begins with this one's:
        f"insert into run_samples {renamed.replace('-1~', '-1~2~')}) {of_sample.format('run_samples')};"
        "insert into samples select * replace ('tide-1~2~old~1' as sample_id, 'Other?' as question) from samples "
        "where sample_id = 'tide-1';",
    )
    rule = Rule(words="--sample tide-1", sample_id="tide-1")
    assert forget(filled, rule, dry_run=True).n_samples == 3
    forgotten = forget(filled, rule)
    assert (forgotten.n_samples, "replayed" in forgotten.run_ids) == (3, True)
    row = next(row for row in ROWS if row["id"] == "tide-1")
    words = f"%{row['question']}%"
    for table, column in (("samples", "question"), ("llm_calls", "request::varchar"), ("statements", "text")):
        text = words if table != "statements" else "%Brankmouth%"
        assert filled.read(f"from {table} where {column} like $text", {"text": text}).is_empty(), table
    assert _list_wrong(filled) == []
    assert forget(filled, rule).run_ids == ()
    assert filled.read("from samples where question = 'Other?'").height == 1


def test_what_a_kept_run_rests_on_stays(house: House, filled: Warehouse) -> None:
    first, second = house.run_id, find_run(filled, "latest").run_id
    replies = filled.read("select distinct request_hash from llm_calls where status = 'ok'")["request_hash"].to_list()
    lineage = "select * exclude (original_started_at) from score_lineage where run_id = $run_id order by all"
    before = filled.read(lineage, {"run_id": second}).rows()
    samples = filled.read("from samples order by all").rows()
    forget(filled, _name_run(first))
    assert filled.read(lineage, {"run_id": second}).rows() == before
    assert filled.read("from samples order by all").rows() == samples
    assert find_replies(filled, replies).keys() == set(replies)
    forget(filled, _name_run(second))
    assert find_replies(filled, replies) == {}
    left = filled.read("from samples order by all")
    assert all(parse_mark(question) for question in left["question"])
    n_contexts = "select sample_id, len(contexts) from samples order by sample_id"
    assert filled.read(n_contexts).rows() == sorted((row[1], row[5] and len(row[5])) for row in samples)


def test_a_text_that_comes_again_is_there_again(filled: Warehouse) -> None:
    run = find_run(filled, "latest")
    staging = Staging()
    rows = filled.read(
        "select ordinal, sample_id as given_id, samples.* exclude (metadata), samples.metadata::varchar as metadata "
        "from run_samples inner join samples using (sample_id, input_hash) where run_id = $run_id order by ordinal",
        {"run_id": run.run_id},
    ).to_dicts()
    staging.add([{name: row[name] for name in build_frame("staged_samples", []).columns} for row in rows])
    forget(filled, Rule(words="all", before=datetime(2100, 1, 1)))
    assert filled.read("select count(*) from samples where question like 'When is%'").item() == 0
    _change(filled, "insert into runs select * replace ('new' as run_id) from runs limit 1")
    take_in_samples(filled, "new", staging)
    staging.discard()
    (tide, *_) = fetch_samples_between(filled, "new", 1, 1)
    assert (tide.question, tide.metadata) == (ROWS[0]["question"], {"harbour": "Brankmouth"})
    # The run that was forgotten is not judged by it: what it was judged by is not known any more.
    assert fetch_samples_between(filled, run.run_id, 1, 10) == []


@pytest.mark.parametrize(
    ("function", "with_scores"),
    [
        ("_forget_rows", False),
        pytest.param("_mark_shared", False, marks=pytest.mark.slow),
        pytest.param("_carry_out", True, marks=pytest.mark.slow),
    ],
)
@pytest.mark.slow
def test_killed_forgetting_resumes(nights: Warehouse, function: str, with_scores: bool) -> None:
    runs = sorted(run.run_id for run in list_runs(nights) if run.kind == "evaluation")
    killed = run_script(
        "from evalhouse.warehouse.upkeep import forget as f\n"
        f"original, calls = f.{function}, []\n"
        # The first of them is carried out, the second is not.
        f"def killing(*args):\n    calls.append(1)\n    return original(*args) if len(calls) < 2 else kill_self()\n"
        f"f.{function}, f._AT_ONCE = killing, 50\n"
        f"f.forget(Warehouse(PATH), f.Rule(words='--run', run_ids={tuple(runs[:3])}, with_scores={with_scores}))",
        nights.location.path,
    )
    assert killed.code == -9, killed.errors
    assert _list_wrong(nights)[-1:] == ["forgettings that were cut short"]
    again = forget(nights, _name_run(*runs[:3], with_scores=with_scores))
    assert again.run_ids == ()
    assert _list_wrong(nights) == []
    left = nights.read("select distinct run_id from statements where not starts_with(text, 'forgotten on ')")
    assert not set(left["run_id"]) & set(runs[:3])
    assert set(left["run_id"]) >= set(runs[3:])
    assert count_rows(nights, "runs", f"run_id in {tuple(runs[:3])}") == (0 if with_scores else 3)
    # Nothing is counted twice, and a third time changes nothing.
    record = nights.read("from forgotten order by all").rows()
    forget(nights, _name_run(*runs[:3], with_scores=with_scores))
    assert nights.read("from forgotten order by all").rows() == record


def test_a_dry_run_says_what_goes_and_changes_nothing(house: House, filled: Warehouse, ask: Ask) -> None:
    before = filled.read("from llm_calls order by call_id").rows()
    options = ("--run", house.run_id, "--warehouse", str(filled.location.path), "--json")
    result = ask("warehouse", "forget", *options, "--dry-run").document
    assert count_rows(filled, "forgotten") == 0
    assert filled.read("from llm_calls order by call_id").rows() == before
    done = ask("warehouse", "forget", "--yes", *options).document
    assert done == result | {"dry_run": False}
    assert done["rows"]["statements"] == count_rows(filled, "statements", f"run_id = '{house.run_id}'")
    record = filled.read("select table_name, sum(n_rows)::bigint from forgotten group by 1").rows()
    assert dict(record) == {**done["rows"], "run_samples": done["n_samples"]}
    shown = ask("warehouse", "forget", *options[:-1])
    assert "nothing to forget" in shown.stdout


def test_a_run_is_forgotten_with_its_scores(house: House, filled: Warehouse, ask: Ask) -> None:
    kept = find_run(filled, "latest").run_id
    before = filled.read("from run_scores where run_id = $run_id order by all", {"run_id": kept}).rows()
    command = ("warehouse", "forget", "--run", house.run_id, "--scores", "--warehouse", str(filled.location.path))
    refused = ask(*command)
    assert refused.status == 2  # there is no terminal to ask at
    assert "give --yes to delete" in refused.stderr
    assert not count_rows(filled, "forgotten")
    assert ask(*command, "--yes").status == 0
    tables = filled.read("select table_name from duckdb_columns() where column_name = 'run_id' and not internal")
    views = set(filled.read("select view_name from duckdb_views()")["view_name"])
    for table in set(tables["table_name"]) - views - KEPT - {"llm_calls"}:
        assert count_rows(filled, table, f"run_id = '{house.run_id}'") == 0, table
    assert filled.read("from run_scores where run_id = $run_id order by all", {"run_id": kept}).rows() == before
    assert _list_wrong(filled) == []
    gone = ask("show", house.run_id, "--warehouse", str(filled.location.path))
    assert gone.status == 2
    assert "was forgotten with all its rows on" in gone.stderr


@pytest.mark.parametrize("option", ["--run", "--sample"])
def test_the_same_command_finishes_what_was_cut_short(
    house: House, filled: Warehouse, ask: Ask, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    """The run was gone from the list and the texts were not: the command refused to finish."""
    name = house.run_id if option == "--run" else HOSTILE_ID
    command = ("warehouse", "forget", f"{option}={name}", "--scores", "--yes", "--warehouse", str(filled.location.path))
    with monkeypatch.context() as patch:
        patch.setattr(upkeep_forget, "_mark_shared", lambda *_: 1 / 0)
        rule = Rule(
            words=f"{option} {name} --scores", with_scores=True, run_ids=(name,) if option == "--run" else (),
            sample_id=name if option == "--sample" else None,
        )  # fmt: skip
        with pytest.raises(ZeroDivisionError):
            forget(filled, rule)
    assert _list_wrong(filled)[-1:] == ["forgettings that were cut short"]
    if option == "--sample":  # received meanwhile
        _change(
            filled,
            f"insert into spans by name select '{name}' as trace_id, 'a' as span_id, now()::timestamp as started_at, "
            "'ok' as status, '{}' as attributes, now()::timestamp as received_at",
        )
    done = ask(*command)
    assert count_rows(filled, "spans") == 0
    assert (done.status, f"finished what was cut short: forget {option}" in done.stderr) == (0, True)
    assert "forgotten: " in done.stdout
    assert _list_wrong(filled) == []


def test_a_sample_is_forgotten_with_its_scores(filled: Warehouse, ask: Ask) -> None:
    before = count_rows(filled, "run_samples")
    forget(filled, Rule(words="--sample", sample_id=HOSTILE_ID, with_scores=True))
    assert count_rows(filled, "run_samples") == before - 2
    assert count_rows(filled, "scores", f"sample_id = '{HOSTILE_ID}'") == 0
    assert {run.n_samples for run in list_runs(filled)} == {3}
    assert _list_wrong(filled) == []
    assert ask("show", "latest", "--warehouse", str(filled.location.path)).status == 0


def test_later_turns_that_hold_a_forgotten_question_are_named(filled: Warehouse, ask: Ask) -> None:
    """The person's words were left in the conversation of the next turn, without a word about it."""
    asked, later = (str(ROWS[place]["id"]) for place in (0, 1))
    turns = orjson.dumps([{"role": "user", "text": ROWS[0]["question"]}, {"role": "assistant", "text": "No."}]).decode()
    with filled.writing() as connection:
        connection.execute("update samples set conversation = $1 where sample_id = $2", [turns, later])
    finished = ask("warehouse", "forget", "--sample", asked, "--dry-run", "--warehouse", str(filled.location.path))
    assert f"remain as an earlier turn in the conversation of {later}; forget these too" in " ".join(
        finished.stdout.split()
    )
    assert forget(filled, Rule(words="--sample", sample_id=later)).later_turns == ()


def test_labels_of_people_stay_with_the_verdicts_they_are_of(house: House, filled: Warehouse) -> None:
    _change(
        filled,
        "insert into reviews by name select run_id, sample_id, step, statement_id, context_rank, judge_label as label, "
        "'Ann' as reviewer, now()::timestamp as reviewed_at, item_hash, question_hash, judge_label, "
        "'Brankmouth, she says' as note, now()::timestamp as imported_at, 0.5 as probability "
        f"from review_items where run_id = '{house.run_id}'",
    )
    reviewed = "select * exclude (review_run_id) from reviewed_verdicts order by all"
    before = filled.read(reviewed).rows()
    assert len({row[0] for row in before}) == 2  # the second run's verdicts have the first one's labels
    for rule in (_name_run(house.run_id), Rule(words="all", before=datetime(2100, 1, 1))):
        forget(filled, rule)
        assert filled.read(reviewed).rows() == before
    assert count_rows(filled, "reviews", "note like '%Brank%'") == 0
    with pytest.raises(WarehouseError, match="nothing to show a person"):
        plan_export(
            filled, find_run(filled, "latest"), ExportRequest(n=3, steps=None, share_random=0.5, seed=1, again=True)
        )


@pytest.mark.slow
def test_what_shows_a_forgotten_run_says_so(filled: Warehouse, tmp_path: Path, ask: Ask) -> None:
    url = ("--warehouse", str(filled.location.path))
    forget(filled, Rule(words="all", before=datetime(2100, 1, 1)))
    today = f"forgotten on {datetime.now(UTC):%Y-%m-%d}"
    page = tmp_path / "run.html"
    for command in (
        ("show", "latest"), ("lineage", "latest", "tide-1", "--full"), ("compare", "previous", "latest"),
        ("query", "select question, reply from score_lineage where reply is not null limit 3"),
        ("diagnose", "latest"), ("report", "latest", "-o", str(page)), ("rescore", "latest"),
    ):  # fmt: skip
        result = ask(*command, *url)
        assert result.status == 0, (command, result.stderr)
        if command[0] not in ("diagnose", "report", "rescore"):
            assert today in " ".join(result.stdout.split()), command
    assert today in page.read_text(encoding="utf-8")
    assert "Brankmouth" not in page.read_text(encoding="utf-8")
    for refused in (("resume", "latest"), ("review", "export", "latest")):
        result = ask(*refused, *url)
        assert result.status == 2
        assert "were forgotten on" in result.stderr


@pytest.mark.slow
def test_scores_of_user_metrics_stay(house: House, filled: Warehouse, tmp_path: Path, ask: Ask) -> None:
    own, url = str(write_metric(tmp_path)), ("--warehouse", str(filled.location.path))
    scores = "select * from scores where run_id = $run_id order by all"
    assert ask("rescore", house.run_id, "--metric-files", own, *url).status == 0
    before = filled.read(scores, {"run_id": house.run_id}).rows()
    forget(filled, _name_run(house.run_id))
    result = ask("rescore", house.run_id, *url, "--json")
    assert result.status == 0
    assert list(result.document[0]["left_out"]) == ["answer_length"]
    assert filled.read(scores, {"run_id": house.run_id}).rows() == before


def test_young_or_running_runs_are_left_out(house: House, filled: Warehouse) -> None:
    now = datetime.now(UTC).replace(tzinfo=None)
    assert forget(filled, Rule(words="", before=now - timedelta(days=1))).run_ids == ()
    assert forget(filled, Rule(words="", before=now + timedelta(days=1), suite="nightly")).run_ids == ()
    _change(filled, f"update runs set status = 'running' where run_id = '{house.run_id}'")
    with hold_run(filled.location, house.run_id):
        with pytest.raises(WarehouseError, match="is running"):
            forget(filled, _name_run(house.run_id))
        forgotten = forget(filled, Rule(words="", before=now + timedelta(days=1)))
    assert forgotten.running == (house.run_id,)
    assert find_forgotten(filled, house.run_id) is None
    # A run whose process died no longer runs.
    assert forget(filled, _name_run(house.run_id)).run_ids == (house.run_id,)


def test_the_baseline_of_a_suite_keeps_its_scores_however_old(tmp_path: Path) -> None:
    """Otherwise a gate that failed every night would pass once its baseline is too old."""
    warehouse = make_warehouse(tmp_path)
    for minute, (name, passed) in enumerate({"old": True, "level": True, "bad": False}.items()):
        insert_run(warehouse, make_run(name, suite="s", minute=minute))
        decision = Decision(
            run_id=name, origin="suite", outcome="passed" if passed else "failed", is_baseline=passed, undecided="pass",
            against="passed", base_run_ids=[], checks=[],
        )  # fmt: skip
        record_decision(warehouse, decision)
        sample = {"run_id": name, "sample_id": "a", "input_hash": "1", "ordinal": 1}
        warehouse.append_rows(name, name, {"run_samples": [sample]})
    later = datetime(2030, 1, 1)
    assert forget(warehouse, Rule(words="w", before=later, with_scores=True), dry_run=True).run_ids == ("bad", "old")
    assert forget(warehouse, Rule(words="w", before=later), dry_run=True).run_ids == ("bad", "level", "old")
    # So does one that the gate of the newest run of a suite names, by its id or label.
    gate = {"gate": {"against": "release-1"}}
    insert_run(warehouse, make_run("other", suite="t", minute=9, config=gate, started_at=datetime(2029, 12, 31)))
    update_run(warehouse, "old", label="release-1")
    assert forget(warehouse, Rule(words="w", before=datetime(2029, 1, 1), with_scores=True), dry_run=True).run_ids == (
        "bad",
    )
    named = Rule(words="w", run_ids=("level",), with_scores=True)
    assert forget(warehouse, named, dry_run=True).run_ids == ("level",)


def test_rows_that_their_table_refused_are_forgotten_too(house: House, filled: Warehouse) -> None:
    folder = filled.location.refused_path / "llm_calls"
    folder.mkdir(parents=True)
    texts = [{"run_id": house.run_id, "sample_id": name, "reply": f"of {name}"} for name in ("here", HOSTILE_ID)]
    lines = [orjson.dumps(row) for row in (*texts, {"run_id": "another", "reply": "kept"})] + [b"{half a li"]
    (folder / "a-refused.jsonl").write_bytes(b"".join(line + b"\n" for line in lines))

    def list_left() -> list[bytes]:
        return (folder / "a-refused.jsonl").read_bytes().splitlines()

    rule = Rule(words="--sample", sample_id=HOSTILE_ID)
    assert forget(filled, rule, dry_run=True).tables["llm_calls"] == forget(filled, rule).tables["llm_calls"]
    assert list_left() == [lines[0], *lines[2:]]
    assert forget(filled, _name_run(house.run_id)).tables["llm_calls"] > 0
    assert list_left() == lines[2:], "only a line that belongs to no known run may stay, and a warning names its file"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ((), "got nothing to forget"),
        (("--run", "latest", "--sample", "tide-1"), "got --run and --sample"),
        (("--older-than", "180"), "got '180'; write a number of days"),
        (("--run", "latest", "--suite", "s"), "--suite goes with --older-than"),
        (("--sample", "tide-2"), "no run has a sample 'tide-2'; did you mean"),
    ],
)
def test_what_cannot_be_meant_is_refused(filled: Warehouse, ask: Ask, options: tuple[str, ...], why: str) -> None:
    result = ask("warehouse", "forget", "--yes", *options, "--warehouse", str(filled.location.path))
    assert result.status == 2
    assert why in result.stderr


def test_every_column_of_text_goes_or_is_known_to_stay(filled: Warehouse) -> None:
    columns = filled.read(
        "select table_name, column_name from duckdb_columns() inner join duckdb_tables() using (table_name) "
        "where not duckdb_tables.internal and data_type in ('VARCHAR', 'VARCHAR[]', 'JSON')"
    ).rows()
    known = {**TEXTS, **SHARED}
    unknown = [
        (table, column)
        for table, column in columns
        if column not in known.get(table, {}) and _STAY.get(table) != "*" and column not in _STAY.get(table, ())
    ]
    assert unknown == []


def test_a_mark_has_the_hash_of_its_text(filled: Warehouse) -> None:
    forget(filled, Rule(words="all", before=datetime(2100, 1, 1)))
    question = filled.read("select question from samples where sample_id = 'zh-1'").item()
    assert parse_mark(question) == hash_text(ROWS[2]["question"])
    assert "中文" in question
    assert parse_mark("forgotten on a whim") is None


@pytest.fixture
def lake(tmp_path: Path) -> Warehouse:
    return Warehouse(f"ducklake:sqlite:///{tmp_path / 'catalogue.sqlite'}?data={tmp_path / 'files'}")


@pytest.mark.slow  # the tables of a lake take seconds to make
def test_a_lake_forgets_in_all_its_snapshots(nights: Warehouse, lake: Warehouse, tmp_path: Path) -> None:
    def find_files(words: str) -> list[str]:
        found = []
        for path in sorted(map(str, (tmp_path / "files").rglob("*.parquet"))):
            rows = duckdb.sql(
                "select count(*) from read_parquet($path) t where t::text like $like",
                params={"path": path, "like": f"%{words}%"},
            )
            found += [path] if rows.fetchall() != [(0,)] else []
        return found

    move_warehouse(nights, lake, lambda *_: None)
    one = "at berth 7,"
    assert find_files(one)
    sample_id = lake.read(f"select sample_id from samples where question like '%{one}%'").row(0)[0]
    forget(lake, Rule(words="--sample", sample_id=sample_id, with_scores=True))
    compact_warehouse(lake)
    assert find_files(one) == [], "a sample is a small part of its files"
    assert _list_wrong(lake) == []

    runs = sorted(run.run_id for run in list_runs(lake) if run.kind == "evaluation")
    before = _read_lake_figures(lake)
    forgotten = forget(lake, _name_run(*runs))
    assert forgotten.tables["statements"] > 0
    assert _read_lake_figures(lake) == before
    compact_warehouse(lake)
    assert _list_wrong(lake) == []
    assert lake.read("select count(*) from ducklake_snapshots('evalhouse')").item() <= 2
    assert find_files("high tide at berth") == []


def _read_lake_figures(lake: Warehouse) -> list[tuple[object, ...]]:
    return lake.read("from run_scores order by all").rows() + lake.read("from sample_causes order by all").rows()
