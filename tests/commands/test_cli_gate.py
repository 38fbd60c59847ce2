"""`gate`: what lets a run through, the exit status, and the files it leaves for a CI and a pull request."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import duckdb
import pytest
from cli_house import House
from cli_process import Ask, Finished
from kept_open import let_go
from rows import derive_after

from evalhouse.flows.results.gate import print_gate

# Ends of attributes, elements, table cells, code spans and lines; what XML 1.0 has no form for; colours and mentions.
HOSTILE = "a\"b'<i>&amp;]]></testcase> | `@all <u>` ``d \x1b[31m\x00\ufffe\n| x | ![e](http://x)"


class Nights:
    """A warehouse of two runs, `base` and `night`, with 40 samples and scores that a test chooses."""

    def __init__(self, path: str, ask: Ask) -> None:
        self.path, self._ask = path, ask

    def change(self, sql: str) -> None:
        with duckdb.connect(self.path) as connection:
            connection.execute(sql)
            derive_after(connection, sql)

    def set_status(self, status: str) -> None:
        with duckdb.connect(self.path) as connection:
            connection.execute("update runs set status = ? where run_id = 'night'", [status])

    def score(self, run: str, metric: str, value: str, version: str = "1", better: str = "high") -> None:
        """Give all samples of a run a score, in SQL over `n`, the number of the sample."""
        self.change(
            f"insert into scores (run_id, sample_id, metric, metric_version, better, value) "
            f"select '{run}', 's' || n, '{metric}', '{version}', '{better}', {value} from range(40) as numbers (n)"
        )

    def gate(self, *arguments: str) -> Finished:
        return self._ask("gate", "night", "--warehouse", self.path, *arguments)

    def check(self, *arguments: str) -> dict[str, Any]:
        """The one check that these arguments ask for."""
        finished = self.gate(*arguments, "--json")
        (check,) = finished.document["checks"]
        assert (finished.status == 1) == (finished.document["outcome"] == "failed")
        found: dict[str, Any] = check
        return found


@pytest.fixture(scope="module")
def template(house: House, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A copy of the house's warehouse with the two runs, as yet without scores."""
    path = str(shutil.copy(house.path, tmp_path_factory.mktemp("template") / "template.duckdb"))
    where = f"where run_id = '{house.run_id}'"
    with duckdb.connect(path) as connection:
        for place, run in enumerate(("base", "night")):
            columns = f"'{run}' as run_id, '{run}' as label, started_at + interval {place + 1} hour as started_at"
            connection.execute(f"insert into runs select * replace ({columns}, 40 as n_samples) from runs {where}")
            connection.execute(
                f"insert into run_samples select run_samples.* replace ('{run}' as run_id, 's' || n as sample_id) "
                f"from run_samples, range(40) as numbers (n) {where} and sample_id = 'tide-1'"
            )
        connection.execute(
            "insert into samples select samples.* replace ('s' || n as sample_id) "
            "from samples, range(40) as numbers (n) where sample_id = 'tide-1'"
        )
    return path


@pytest.fixture
def nights(template: str, tmp_path: Path, ask: Ask) -> Nights:
    return Nights(str(shutil.copy(template, tmp_path / "nights.duckdb")), ask)


def parse_junit(path: Path) -> ElementTree.Element:
    root = ElementTree.fromstring(path.read_bytes())
    assert root.tag == "testsuites"
    (suite,) = root
    assert suite.tag == "testsuite"
    return suite


def test_json_has_what_the_readme_says(ask: Ask) -> None:
    arguments = ("--against", "previous", "--max-drop", "factual_f1=0.02", "--json")
    document = ask("gate", "latest", *arguments).document
    assert document.keys() == {
        "outcome", "undecided", "counts", "run", "against", "baseline", "cluster", "seed", "few_scored",
        "warnings", "checks", "components",
    }  # fmt: skip
    assert document["baseline"].keys() == {"against", "run_ids", "accepted"}
    assert document["counts"].keys() == {"failed", "undecided", "passed"}
    assert document["run"].keys() == document["against"].keys() == {
        "run_id", "status", "suite", "variant", "label", "dataset", "judge", "embeddings", "started_at", "n_samples",
    }  # fmt: skip
    assert document["checks"][0].keys() == {
        "kind", "metric", "limit", "value", "ci_low", "ci_high", "n", "beyond", "noise_floor", "outcome", "reason",
        "detail", "by_column", "by_value",
    }  # fmt: skip


@pytest.mark.slow
def test_questions_of_one_document_are_one_observation_each(nights: Nights, ask: Ask) -> None:
    """Forty samples of ten documents, of each of which all four questions are right or all are wrong."""
    nights.score("night", "own", "case when n // 4 < 7 then 1 else 0 end")  # mean 0.7
    nights.change("update run_samples set ordinal = substr(sample_id, 2)::int where run_id = 'night'")
    nights.change("update run_samples set metadata = '{\"page\": ' || (ordinal // 4) || '}' where run_id = 'night'")
    limits = ("--min", "own=0.5")
    assert nights.check(*limits)["outcome"] == "passed"
    by_page = nights.check(*limits, "--cluster", "page")
    assert (by_page["outcome"], by_page["reason"]) == ("undecided", "interval_holds_limit")
    assert by_page["detail"] == "the limit is inside the interval of 40 samples in 10 groups by page"
    # The column `cluster` as loading samples stores it, for a suite that names the column or for a known column.
    nights.change("update run_samples set cluster = 'page=' || (ordinal // 4) where run_id = 'night'")
    on_record = nights.check(*limits)
    assert on_record["detail"] == by_page["detail"]
    assert [on_record[end] for end in ("ci_low", "ci_high")] == pytest.approx(
        [by_page[end] for end in ("ci_low", "ci_high")], abs=1e-4
    )
    assert nights.check(*limits, "--cluster", "none")["outcome"] == "passed"
    grouped = "intervals count groups of samples by page, up to 10 a metric, and not single samples"
    assert grouped in ask("show", "night", "--warehouse", nights.path).lines
    nights.change("update run_samples set cluster = 'page=@' || sample_id where run_id = 'night' and ordinal = 3")
    without = f"{grouped.replace('10', '11')}; 1 samples without one count singly"
    assert without in ask("show", "night", "--warehouse", nights.path).lines
    refused = nights.gate(*limits, "--cluster", "pages")
    assert refused.status == 2
    assert "no sample has a metadata column 'pages'; did you mean page?" in refused.stderr


def test_a_setting_makes_undecided_pass_or_fail(nights: Nights) -> None:
    nights.score("night", "own", "n % 2")
    for arguments, status, ending in (
        ((), 0, "gate passed: 0 failed, 1 undecided (which passes), 0 passed"),
        (("--undecided", "pass"), 0, "gate passed: 0 failed, 1 undecided (which passes), 0 passed"),
        (("--undecided", "fail"), 1, "gate failed: 0 failed, 1 undecided (which fails), 0 passed"),
    ):
        finished = nights.gate("--min", "own=0.5", *arguments)
        assert (finished.status, finished.lines[-1]) == (status, ending)


def test_cost_and_latency_are_of_the_calls_and_questions_that_this_run_sent(nights: Nights, house: House) -> None:
    nights.change(
        "insert into llm_calls select * replace ('night' as run_id, 'ok' as status, 0.5 as cost_usd) "
        f"from llm_calls where run_id = '{house.run_id}' and status <> 'cached' limit 4"
    )
    nights.change(
        "insert into responses (run_id, sample_id, status, latency_ms) select 'night', sample_id, "
        "if(sample_id like 's3_', 'reused', 'ok'), 1000 from run_samples where run_id = 'night'"
    )
    finished = nights.gate("--max-cost", "1.5", "--max-latency-p95-ms", "1000", "--json")
    cost, latency = finished.document["checks"]
    assert (cost["outcome"], cost["value"], cost["beyond"]) == ("failed", 2.0, 0.5)
    assert (latency["outcome"], latency["value"], latency["n"]) == ("passed", 1000.0, 30)
    with duckdb.connect(nights.path, read_only=True) as connection:
        recorded = connection.execute("select kind, limit_value, value, n, outcome from gate_checks").fetchall()
    assert ("max_latency_p95_ms", 1000.0, 1000.0, 30, "passed") in recorded


def test_the_table_says_what_failed_and_by_how_much(nights: Nights) -> None:
    nights.score("night", "own", "n % 2")
    finished = nights.gate("--min", "own=0.9", "--max", "own=0.5", "--min-coverage", "own=1", "--max-cost", "1")
    assert finished.lines[0] == "run night (night), 40 samples of harbour.jsonl"
    found = [line for line in finished.lines if re.match(r"(failed|undecided|passed,?) ", line)]
    assert [line.split()[0] for line in found] == ["failed", "undecided", "passed,", "passed,"]
    assert re.match(r"failed +own +mean at least +0\.900 +0\.500 +0\.348 to 0\.652 +40 +0\.400 +the whole", found[0])
    assert found[2:] == ["passed, coverage at least 100%: own 100.00%", "passed, cost at most $1.00: $0.00"]


def test_many_metrics_with_the_same_finding_are_one_row(capsys: pytest.CaptureFixture[str]) -> None:
    check = {
        "kind": "min_coverage", "limit": 0.9, "value": 0.0, "ci_low": None, "ci_high": None, "noise_floor": None,
        "n": 40, "beyond": 0.9, "detail": "0 of 40 samples are scored",
    }  # fmt: skip
    failed = [check | {"metric": f"m{n}", "outcome": "failed"} for n in range(18)]
    passed = [check | {"metric": f"p{n}", "outcome": "passed", "value": 1.0} for n in range(3)]
    print_gate({
        "checks": [*failed, *passed], "run": None, "against": None, "warnings": [], "outcome": "failed",
            "components": [],
        "undecided": "pass", "baseline": {"run_ids": [], "accepted": None},
        "counts": {"failed": 18, "undecided": 0, "passed": 3},
    })  # fmt: skip
    lines = capsys.readouterr().out.splitlines()
    (row,) = [line for line in lines if line.startswith("failed")]
    assert row.split()[1:3] == ["18", "metrics"]
    assert f"18 metrics failed, coverage at least 90%: {', '.join(f'm{n}' for n in range(18))}" in lines
    assert "passed, coverage at least 90%: p0, p1, p2 100.00%" in lines


@pytest.mark.parametrize(("undecided", "failures", "skipped"), [("pass", 1, 1), ("fail", 2, 0)])
def test_junit_has_a_case_for_each_check(
    nights: Nights, tmp_path: Path, undecided: str, failures: int, skipped: int
) -> None:
    nights.score("night", "own", "n % 2")
    path = tmp_path / "gate.xml"
    limits = ("--min", "own=0.9", "--max", "own=0.5", "--min-coverage", "own=1", "--undecided", undecided)
    nights.gate(*limits, "--junit", str(path))
    suite = parse_junit(path)
    assert ElementTree.parse(path).getroot().attrib == {
        "name": "evalhouse gate", "tests": "3", "failures": str(failures), "errors": "0", "time": "0",
    }  # fmt: skip
    counted = {name: int(suite.attrib[name]) for name in ("tests", "failures", "errors", "skipped")}
    assert counted == {"tests": 3, "failures": failures, "errors": 0, "skipped": skipped}
    assert len(suite.findall("testcase/failure")) == failures
    assert len(suite.findall("testcase/skipped")) == skipped
    cases = suite.findall("testcase")
    assert all({"classname", "name", "time"} <= case.attrib.keys() for case in cases)
    assert len({(case.get("classname"), case.get("name")) for case in cases}) == 3
    assert cases[0].get("name") == "own: mean at least 0.900"
    failure = cases[0].find("failure")
    assert failure is not None
    assert (failure.get("type"), failure.text) == ("beyond_limit", failure.get("message"))
    assert str(failure.text).startswith("found 0.500 (0.348 to 0.652), beyond the limit by 0.400: the whole")
    open_one = cases[1].find("skipped" if undecided == "pass" else "failure")
    assert open_one is not None
    assert str(open_one.get("message")).startswith("undecided, found 0.500 (0.348 to 0.652): the limit is inside")
    assert open_one.get("type") == (None if undecided == "pass" else "interval_holds_limit")
    properties = {one.get("name"): one.get("value") for one in suite.findall("properties/property")}
    assert (properties["run.run_id"], properties["run.judge"]) == ("night", "lexical")


def test_hostile_texts_stay_texts_in_both_files(nights: Nights, tmp_path: Path, ask: Ask) -> None:
    metric = HOSTILE.replace("\x00", "")
    quoted = metric.replace("'", "''")
    nights.score("night", quoted, "n % 2")
    nights.change(f"update runs set label = '{quoted}', dataset = '{quoted}' where run_id = 'night'")
    xml, markdown = tmp_path / "gate.xml", tmp_path / "gate.md"
    finished = nights.gate("--min", f"{metric}=0.9", "--junit", str(xml), "--markdown", str(markdown))
    assert finished.status == 1, finished.stderr
    suite = parse_junit(xml)
    (case,) = suite.findall("testcase")
    shown = metric.replace("\x1b", "\\x1b").replace("\ufffe", "\N{REPLACEMENT CHARACTER}")
    assert case.get("name") == f"{shown}: mean at least 0.900"
    assert suite.get("name") == f"evalhouse gate {shown}"
    lines = markdown.read_text(encoding="utf-8").splitlines()
    (row,) = (line for line in lines if "❌ failed |" in line)
    assert len(re.findall(r"(?<!\\)\|", row)) == 10, "nine cells for any name of the metric"
    for line in (row, *(line for line in lines if line.startswith("- run"))):
        # A fence of three is longer than any run of backticks within; no hostile text is outside a fence.
        outside = re.sub(r"(?<!`)(`{3}|`)(?!`).+?(?<!`)\1(?!`)", "", line)
        assert not re.search(r"[<>`\x1b]|@all|\]\(", outside), outside


def test_markdown_is_the_whole_output_or_a_file(nights: Nights, tmp_path: Path) -> None:
    nights.score("base", "own", "n % 2")
    nights.score("night", "own", "n % 2")
    arguments = ("--against", "base", "--max-drop", "own=0", "--min", "own=0.9", "--min", "factual_f1=0.1")
    printed = nights.gate(*arguments, "--markdown", "-")
    path = tmp_path / "gate.md"
    with_json = nights.gate(*arguments, "--markdown", str(path), "--json")
    assert printed.stdout == path.read_text(encoding="utf-8")
    assert with_json.document["outcome"] == "failed"
    assert printed.lines[:2] == [
        "<!-- evalhouse harbour.jsonl -->",
        "### ❌ evalhouse gate failed: 2 failed, 0 undecided, 1 passed",
    ]
    assert "- run: `night` (`night`), 40 samples of `harbour.jsonl`, judge `lexical`" in printed.lines
    rows = [line for line in printed.lines if line.startswith("| ❌")]
    assert rows[0] == (
        "| ❌ failed | `own` | mean at least | 0.900 | 0.500 | 0.348 to 0.652 | – | 40 | 0.400 | "
        "the whole interval is beyond the limit |"
    )
    assert rows[1].startswith("| ❌ failed | `factual_f1` | mean at least | 0.100 | – | – | – | 0 | – | no sample is")


def test_limits_are_shown_with_all_their_digits(nights: Nights) -> None:
    nights.score("night", "own", "case when n < 39 then n % 2 end")
    limits = ("--min", "own=0.00025", "--min-coverage", "own=0.9755", "--max-cost", "0.00001")
    rows = [line.split("|")[1:] for line in nights.gate(*limits, "--markdown", "-").lines if "least" in line]
    cells = {cell[2].strip(): [text.strip() for text in (cell[3], cell[4], cell[7])] for cell in rows}
    assert cells["mean at least"] == ["0.00025", "0.487", "–"]
    assert cells["coverage at least"] == ["97.55%", "97.50%", "0.05%"]
    assert any("$1e-05" in line for line in nights.gate(*limits).lines)


def test_a_run_without_an_end_is_not_decided_on_and_an_incomplete_one_with_a_warning(nights: Nights) -> None:
    for status in ("running", "failed", "cancelled"):
        nights.set_status(status)
        finished = nights.gate("--max-cost", "1", "--json")
        assert (finished.status, finished.stdout) == (3, "")
        assert f"run night is {status}" in finished.stderr
        assert "evalhouse resume night" in finished.stderr
    nights.set_status("incomplete")
    finished = nights.gate("--max-cost", "1", "--json")
    assert finished.status == 0
    assert finished.document["warnings"] == ["run night is incomplete: some of its samples may be unscored"]


def accept(nights: Nights, ask: Ask, *arguments: str) -> Finished:
    return ask("gate", *arguments, "--warehouse", nights.path)


def test_an_accepted_run_is_the_baseline_and_is_shown_as_such(nights: Nights, ask: Ask, tmp_path: Path) -> None:
    for run in ("base", "night"):
        nights.score(run, "own", "0.2")
    drop = ("--against", "passed", "--max-drop", "own=0.1")
    nights.change("delete from runs where run_id not in ('base', 'night')")
    assert nights.check(*drop)["detail"].startswith("no earlier run of dataset harbour.jsonl has passed its gate")
    accepted = accept(nights, ask, "--accept", "base", "--why", "a harder [bold]corpus", "--accepted-by", "ann")
    assert accepted.status == 0, accepted.stderr
    message = "run base was accepted as the baseline by ann on "
    assert accepted.lines[0].startswith(message)
    assert accepted.lines[0].endswith(" UTC: a harder [bold]corpus")
    assert accepted.lines[1] == "the next runs of dataset harbour.jsonl are compared with it, until one passes"

    gated = nights.gate(*drop, "--markdown", str(tmp_path / "gate.md"))
    assert gated.lines[1].startswith("against base (base), 40 samples")
    assert gated.lines[2].startswith(message)
    assert f"- `{message}" in (tmp_path / "gate.md").read_text(encoding="utf-8")
    document = nights.gate(*drop, "--json").document
    assert document["baseline"]["run_ids"] == ["base"]
    assert document["baseline"]["accepted"]["why"] == "a harder [bold]corpus"
    at = ("--warehouse", nights.path)
    assert message in ask("show", "base", *at).stdout
    assert ask("show", "base", "--json", *at).document["acceptances"][0]["accepted_by"] == "ann"
    page = tmp_path / "history.html"
    assert ask("report", "--history", "dataset harbour.jsonl", "-o", str(page), *at).status == 0
    assert "accepted by ann: a harder [bold]corpus" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("against", ["base", "mean_of_passed"])
def test_edited_ground_truths_are_named_wherever_a_gate_is_shown(nights: Nights, ask: Ask, against: str) -> None:
    nights.change("delete from runs where run_id not in ('base', 'night')")
    other = "replace ('older' as run_id, 'older' as label, started_at - interval 1 minute as started_at)"
    nights.change(f"insert into runs select * {other} from runs where run_id = 'base'")
    nights.change("insert into run_samples select * replace ('older' as run_id) from run_samples where run_id = 'base'")
    nights.change(
        "insert into samples select * replace ('edited' as input_hash, 'Another.' as ground_truth) from samples "
        "where sample_id in ('s1', 's2', 's3')"
    )
    nights.change(
        "update run_samples set input_hash = 'edited' where run_id = 'night' and sample_id in ('s1', 's2', 's3')"
    )
    for run, value in {"older": "0.9", "base": "0.9", "night": "n * 0.01"}.items():
        nights.score(run, "own", value)
    assert accept(nights, ask, "--accept", "older", "--why", "a level").status == 0
    assert accept(nights, ask, "base", "--against", "passed", "--max-drop", "own=0.1").status == 0
    limits = ("--against", against, "--max-drop", "own=0.1")
    document = nights.gate(*limits, "--json").document
    assert len(document["baseline"]["run_ids"]) == (1 if against == "base" else 2)
    warning = "3 of 40 common samples have another ground truth, under the same id, so that a difference may not be a"
    assert document["warnings"][0].startswith(warning)
    detail = "; 3 of 40 samples have another question, ground truth or reference ids; if they should, accept the run"
    assert detail in document["checks"][0]["detail"]
    assert document["outcome"] == "failed"
    table = nights.gate(*limits)
    assert any(line.startswith(f"warning: {warning}") for line in table.lines)
    assert detail in " ".join(table.stdout.split())
    comment = nights.gate(*limits, "--markdown", "-").stdout
    assert f"- ⚠️ `{warning}" in comment
    assert detail in comment
    assert "evalhouse gate --accept RUN --why TEXT" in comment
    (trend,) = nights.gate("--trend", "own=0.05", "--json").document["checks"]
    since = "; 3 of 40 samples have another question, ground truth or reference ids since the first of these nights; if"
    assert (trend["outcome"], since in trend["detail"]) == ("failed", True), trend["detail"]


def test_what_was_decided_by_hand_is_stored(nights: Nights, ask: Ask) -> None:
    nights.score("base", "own", "0.9 + n % 3 * 0.01")
    nights.score("night", "own", "0.5")
    nights.change("delete from runs where run_id not in ('base', 'night')")
    assert ask("gate", "base", "--min", "own=0.5", "--warehouse", nights.path).status == 0
    for against in ("passed", "mean_of_passed", "previous_any"):
        document = nights.gate("--against", against, "--max-drop", "own=0.1", "--trend", "own=0.1", "--json").document
        assert document["baseline"] == {"against": against, "run_ids": ["base"], "accepted": None}
        assert {check["kind"]: check["outcome"] for check in document["checks"]} == {
            "max_drop": "failed",
            "trend": "failed",
        }
    columns, where = "run_id, origin, outcome, against, base_run_ids", "run_id in ('base', 'night')"
    sql = f"select {columns} from gate_decisions where {where} order by decided_at"
    decided = ask("query", sql, "--format", "json", "--warehouse", nights.path).document
    assert [tuple(row.values()) for row in decided] == [
        ("base", "hand", "passed", None, []),
        *(("night", "hand", "failed", against, ["base"]) for against in ("passed", "mean_of_passed", "previous_any")),
    ]


@pytest.mark.parametrize(("arguments", "status", "message"), [
    (("--accept", "stranger", "--why", "x"), 2, "no run fits 'stranger'"),
    (("--accept", "night"), 2, "--accept takes --why TEXT"),
    (("--accept", "night", "--why", " "), 2, "--accept takes --why TEXT"),
    (("--accept", "base", "--why", "x"), 3, "run base is running, so there is nothing to accept"),
    ((), 2, "name the RUN to check"),
])  # fmt: skip
def test_what_cannot_be_accepted_is_reported(
    nights: Nights, ask: Ask, arguments: tuple[str, ...], status: int, message: str
) -> None:
    nights.change("update runs set status = 'running' where run_id = 'base'")
    finished = accept(nights, ask, *arguments)
    assert (finished.status, finished.stdout) == (status, "")
    assert message in finished.stderr


def test_a_warehouse_that_cannot_be_written_to_can_be_looked_at(
    nights: Nights, monkeypatch: pytest.MonkeyPatch
) -> None:
    nights.score("night", "own", "0.5")
    monkeypatch.setattr("evalhouse.flows.commands.gate.WRITE_PATIENCE_S", 0.1)
    let_go()
    offline = {"autoinstall_known_extensions": False, "autoload_known_extensions": False}
    with duckdb.connect(nights.path, read_only=True, config=dict(offline)):
        finished = nights.gate("--min", "own=0.4")
    assert finished.status == 0
    assert finished.stderr.startswith("The decision is not stored: ")
