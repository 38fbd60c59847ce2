"""`evalhouse report`: content of the file, that no text of it runs as code, and messages when it cannot be made."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest
from cli_house import HOSTILE, HOSTILE_ID, MARKUP, N_JUDGED, House
from cli_process import Ask
from report_pages import ReportPage
from rows import derive_after

from evalhouse.warehouse.metric_files import load_metrics

Write = Callable[..., ReportPage]

ATTACK = "</script><img src=x onerror=\"document.title='owned'\"><script>alert(1)</script>"
ATTACKS = (ATTACK, "<!--<script>", "]]></style><svg/onload=alert(1)>", "{{ 7 * 7 }}{% raw %}", "\u2028\u2029 &lt;b&gt;")


@pytest.fixture
def write(ask: Ask, tmp_path: Path) -> Write:
    """Writes a report and reads it."""

    def write_report(*arguments: str) -> ReportPage:
        path = tmp_path / "report.html"
        finished = ask("report", *arguments, "-o", str(path))
        assert finished.status == 0, finished.stderr
        return ReportPage(path)

    return write_report


@pytest.fixture(scope="module")
def page(house: House, tmp_path_factory: pytest.TempPathFactory) -> ReportPage:
    """The report of the house's first run."""
    path = tmp_path_factory.mktemp("page") / "report.html"
    finished = house.place.call("report", house.run_id, "-o", str(path))
    assert finished.status == 0, finished.stderr
    return ReportPage(path)


def change(url: str, *statements: str, **values: object) -> None:
    with duckdb.connect(url) as connection:
        for sql in statements:
            connection.execute(sql, values or None)
        derive_after(connection, *statements)


def select(ask: Ask, sql: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = ask("query", sql, "--format", "json").document
    return rows


def test_it_is_written_where_asked_and_reports_it(house: House, ask: Ask, tmp_path: Path) -> None:
    path = tmp_path / "night.html"
    finished = ask("report", "first night", "-o", str(path))
    assert finished.stdout.startswith(f"wrote {path}: ")
    assert f"{N_JUDGED} samples" in finished.stdout
    page = ReportPage(path)
    assert [title.text for title in page.find("title")[:1]] == [f"first night · {house.run_id}"]


def test_without_a_name_it_is_named_after_the_run(house: House, ask: Ask) -> None:
    assert ask("report", house.run_id).status == 0
    path = house.place.folder / f"report-{house.run_id}.html"
    assert path.exists()
    path.unlink()


def test_every_score_is_there_with_its_interval_and_counts(house: House, ask: Ask, page: ReportPage) -> None:
    shown = {row[0]: [row[2], row[-1]] for row in page.rows("scores")}
    metrics = ask("show", house.run_id, "--json").document["metrics"]
    assert shown.keys() == {row["metric"] for row in metrics}
    for row in metrics:
        mean = "–" if row["mean"] is None else f"{row['mean']:.3f}"
        interval = "–" if row["ci_low"] is None else f"{row['ci_low']:.3f} to {row['ci_high']:.3f}"
        assert shown[row["metric"]] == [f"{mean} {interval}", str(row["n_scored"])]
    files = load_metrics()
    meant = {row.attributes["data-metric"]: row for row in page.find("tr") if "data-metric" in row.attributes}
    for name, row in meant.items():
        assert files[str(name)].meaning in "".join(row.all_texts)
        assert ("low is good" in "".join(row.all_texts)) == (files[str(name)].better == "low")


def test_costs_and_what_is_unscored_stand_there(house: House, ask: Ask, page: ReportPage) -> None:
    shown = ask("show", house.run_id, "--json").document
    assert [row[:3] for row in page.rows("costs")] == [
        [row["step"], str(row["n_requests"]), str(row["n_reused"])] for row in shown["costs"]
    ]
    reasons = {row[0]: row[1] for row in page.rows("unscored")}
    assert reasons.keys() == {row["reason"] for row in shown["unscored"]}
    assert "faithfulness 1" in reasons["no_answer"]


def test_the_table_has_every_sample_with_its_scores_and_counts(house: House, ask: Ask, page: ReportPage) -> None:
    index = page.index
    assert index["ids"] == ["tide-1", HOSTILE_ID, "zh-1", "silent-1"]
    sql = f"select sample_id, metric, value, unscored_reason from scores where run_id = '{house.run_id}'"
    for row in select(ask, sql):
        place, column = index["ids"].index(row["sample_id"]), index["metrics"].index(row["metric"])
        assert index["scores"][column][place] == row["value"]
        assert index["reasons"][column][place] == row["unscored_reason"]
    sql = f"""
        select sample_id, count(*) filter (where label = 'TP' and source = 'answer') as tp,
               count(*) filter (where label = 'FP') as fp, count(*) filter (where label = 'FN') as fn,
               count(*) filter (where source = 'answer' and not supported) as unsupported
        from statement_verdicts where run_id = '{house.run_id}' group by sample_id
    """
    for row in select(ask, sql):
        place = index["ids"].index(row.pop("sample_id"))
        assert {name: index[name][place] for name in row} == row


def test_texts_and_verdicts_come_through_whole(house: House, ask: Ask, page: ReportPage) -> None:
    for row in select(ask, "select sample_id, question, answer, ground_truth, contexts from samples"):
        sample = page.sample(row["sample_id"])
        assert {name: sample[name] for name in ("question", "answer", "ground_truth")} == {
            name: row[name] for name in ("question", "answer", "ground_truth")
        }
        assert [context["text"] for context in sample["contexts"]] == (row["contexts"] or [])
    sql = f"select * from statement_verdicts where run_id = '{house.run_id}' order by source, ordinal"
    rows = select(ask, sql)
    assert {row["label"] for row in rows} >= {"TP", "FP"}
    for row in rows:
        statements = {statement["id"]: statement for statement in page.sample(row["sample_id"])["statements"]}
        statement = statements[row["statement_id"]]
        for name in ("source", "text", "label", "label_reason", "supported", "support_reason"):
            assert statement[name] == row[name]
        assert statement["ranks"] == (row["context_ranks"] or [])


def test_a_reused_reply_is_shown_with_the_run_it_comes_from(house: House, page: ReportPage, write: Write) -> None:
    first, second = page.sample("tide-1"), write("latest").sample("tide-1")
    assert [call["from_run"] for call in first["calls"]] == [None] * 6
    assert [call["from_run"] for call in second["calls"]] == [house.run_id] * 6
    assert sorted(call["reply"] for call in second["calls"]) == sorted(call["reply"] for call in first["calls"])
    assert all(call["request"] for call in second["calls"])


def test_thoughts_are_shown_with_the_reply_that_came_after_them_in_later_runs_too(url: str, write: Write) -> None:
    change(url, "update llm_calls set thoughts = 'Let me see.' where step = 'rank' and status = 'ok'")
    for run in ("first night", "latest"):
        calls = write(run, "--warehouse", url).sample("tide-1")["calls"]
        assert {call["step"]: call["thoughts"] for call in calls if call["thoughts"]} == {"rank": "Let me see."}


# First and last message of a request, or none, and what of it is the call's own text.
REQUESTS: tuple[tuple[object, object, str | None], ...] = (
    ({"content": "twice"}, {"content": "twice"}, "twice"),
    ({"content": "once"}, {"content": ""}, ""),
    ({"content": "odd"}, {"content": 'a\x1b\x7f\n"\u2028é灯\\'}, 'a\x1b\x7f\n"\u2028é灯\\'),
    ({"content": "parts"}, {"content": [{"type": "text"}]}, None),
    ({"content": "no dictionary"}, "a text", None),
    (None, None, None),
)


def test_what_a_request_shares_and_what_is_its_own_is_distinguished_however_it_is_written(
    url: str, write: Write
) -> None:
    bodies = [
        {"model": "m", "messages": [first, last]} if first else {"input": ["a text"], "model": "e"}
        for first, last, _ in REQUESTS
    ]
    # Each sample has its calls written in all these ways, one after the other.
    place = "(row_number() over (partition by run_id, sample_id order by step) - 1) % len($bodies) + 1"
    placed = f"select call_id, {place} from llm_calls"
    change(
        url,
        f"update llm_calls set request = $bodies[place] from ({placed}) as placed (id, place) where call_id = id",
        bodies=[json.dumps(body) for body in bodies],
    )
    page = write("latest", "--warehouse", url)
    shared, n_seen = page.unpack("fixed"), Counter[int]()
    for sample in page.samples:
        steps = sorted(str(call["step"]) for call in sample["calls"])
        for call in sample["calls"]:
            place = steps.index(call["step"]) % len(REQUESTS)
            (first, _, request_text), request = REQUESTS[place], bodies[place]
            n_seen[place] += 1
            if request_text is None:
                assert call["fixed"] is None
                assert json.loads(call["request"]) == request
                assert "\n  " in call["request"], "to be read by a person"
            else:
                assert json.loads(shared[call["fixed"]]) == {"model": "m", "messages": [first]}
                assert call["request"] == request_text
    assert n_seen.keys() == set(range(len(REQUESTS)))


def test_calls_can_be_left_out(house: House, page: ReportPage, write: Write) -> None:
    whole, small = page, write(house.run_id, "--no-calls")
    assert len(small.source) < len(whole.source)
    assert all(sample["calls"] == [] for sample in small.samples)
    assert all(statement["calls"] == {} for sample in small.samples for statement in sample["statements"])
    assert "but the raw calls" in "".join(footer.text for footer in small.find("footer"))


def test_history_has_the_runs_of_the_series_up_to_this_one(house: House, page: ReportPage, write: Write) -> None:
    newest = write("latest")
    later = newest.find("title")[0].text.split(" · ")[1]
    histories = newest.charts("trend")
    assert histories
    assert all(house.run_id in chart["runs"] and chart["runs"][-1] == later for chart in histories)
    assert page.charts("trend") == [], "a report of an old run stays as it was: it has no run before it"


def test_two_runs_side_by_side(house: House, url: str, write: Write) -> None:
    change(
        url,
        f"update scores set value = value / 2 where run_id = '{house.run_id}' and metric = 'factual_f1'",
        f"delete from scores where run_id = '{house.run_id}' and metric = 'mrr_retrieved' and sample_id = 'tide-1'",
        f"update run_samples set input_hash = 'other' where run_id = '{house.run_id}' and sample_id = 'tide-1'",
        """insert into samples (input_hash, sample_id, question, answer)
           values ('other', 'tide-1', 'When?', 'At seven.')""",
    )
    page = write("latest", "--against", house.run_id, "--warehouse", url)
    index, column = page.index, page.index["metrics"].index("factual_f1")
    pairs = [
        (new, old) for new, old in zip(index["scores"][column], index["base"][column], strict=True) if new is not None
    ]
    assert any(new for new, _ in pairs)
    assert all(old == pytest.approx(new / 2) for new, old in pairs)
    rows = {row[0]: row[4:] for row in page.rows("scores")}
    mean_difference = sum(new - old for new, old in pairs) / len(pairs)
    n_higher = sum(new > old for new, old in pairs)
    assert rows["factual_f1"][0] == f"{mean_difference:+.3f}"
    assert rows["factual_f1"][1].startswith("undecided p "), "too few for more"
    assert rows["factual_f1"][2] == f"{n_higher} / 0"
    assert (rows["faithfulness"][0], rows["faithfulness"][1]) == ("±0.000", "same p 1.000")
    of = {
        str(row.attributes["data-metric"]): re.search(r"of (\d+)", " ".join(row.all_texts))
        for row in page.find("tr")
        if "data-metric" in row.attributes
    }
    n_common = {name: int(match[1]) for name, match in of.items() if match}
    assert n_common["mrr_retrieved"] == n_common["hit_retrieved"] - 1, "a sample that only one run scored is not common"
    assert page.sample("tide-1")["base_answer"] == "At seven."
    assert page.sample("zh-1")["base_answer"] is None, "the same answer is not shown twice"


def test_causes_are_those_of_the_diagnosis(house: House, ask: Ask, page: ReportPage) -> None:
    causes = ask("diagnose", house.run_id, "--language", "en", "--json").document["causes"]
    assert {(row[0], row[1]) for row in page.rows("causes")} == {
        (cause["name"], str(cause["n_samples"])) for cause in causes if cause["n_samples"]
    }
    for cause in causes:
        assert page.index["causes"].count(cause["cause"]) == cause["n_samples"]


def test_votes_that_were_not_of_one_mind(house: House, url: str, write: Write) -> None:
    votes = ", ".join(
        f"('{house.run_id}', 'tide-1', 'classify', '{item}', {vote}, '{verdict}', {verdict == 'TP'})"
        for item, verdicts in (("A1", ("TP", "FP", "TP")), ("A2", ("TP", "TP", "TP")))
        for vote, verdict in enumerate(verdicts, start=1)
    )
    change(
        url,
        """update runs set config = '{"votes": 3}'""",
        f"insert into votes (run_id, sample_id, step, item_id, vote, verdict, agrees) values {votes}",
    )
    page = write(house.run_id, "--warehouse", url)
    assert page.rows("flips") == [["classify", "2", "1", "50 %", "6", "1"]]
    assert page.sample("tide-1")["votes"] == [{"step": "classify", "item": "A1", "votes": [["TP", 2], ["FP", 1]]}]
    assert page.index["flipped"] == [1, 0, 0, 0]


def test_a_run_without_scores_is_reported_as_what_it_is(url: str, write: Write) -> None:
    change(url, "delete from scores", "update runs set status = 'cancelled'")
    page = write("latest", "--warehouse", url)
    assert "This run is cancelled" in page.source
    assert "No scores yet." in page.source
    assert page.index["metrics"] == []
    assert len(page.samples) == N_JUDGED


def test_equal_runs_give_equal_files(house: House, page: ReportPage, write: Write) -> None:
    assert write(house.run_id).source == page.source


def test_no_text_becomes_markup(house: House, url: str, page: ReportPage, write: Write) -> None:
    texts, attack = ("question", "answer", "ground_truth"), " ".join(ATTACKS)
    change(
        url,
        *(f"update samples set {name} = $attack" for name in texts),
        "update samples set contexts = [$attack], context_ids = [$attack], metadata = json_object('note', $attack)",
        "update statements set text = $attack",
        "update classifications set reason = $attack",
        "update attributions set reason = $attack",
        "update llm_calls set reply = $attack, model = $attack, error = $attack, step = step || $attack",
        "update outcomes set detail = $attack where reason is not null",
        "update runs set label = $attack, dataset = $attack, judge = $attack, tags = [$attack], href = $attack",
        "update scores set metric = metric || $attack where metric in ('mrr', 'faithfulness')",
        attack=attack,
    )
    plain, attacked = page, write(house.run_id, "--warehouse", url)
    assert attacked.sample("tide-1")["answer"] == attack
    assert attacked.sample("tide-1")["calls"][0]["reply"] == attack
    allowed = {element.tag for element in plain.elements}
    assert {element.tag for element in attacked.elements} <= allowed
    assert len(attacked.find("script")) == len(plain.find("script"))
    assert len(attacked.find("style")) == 1
    assert not any(name.startswith("on") for element in attacked.elements for name in element.attributes)
    assert attack in attacked.find("title")[0].text
    (script,) = [element for element in attacked.find("script") if "type" not in element.attributes]
    assert script.text == next(one.text for one in plain.find("script") if "type" not in one.attributes)


def test_no_control_character_of_a_text_reaches_the_page(url: str, write: Write) -> None:
    change(url, "update runs set label = $label, judge = $label", label=f"{HOSTILE} {MARKUP}")
    page = write("latest", "--warehouse", url)
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", page.source)
    assert "\\x1b[31mred" in page.source
    assert page.sample(HOSTILE_ID)["question"] == f"What does {MARKUP} mean? {HOSTILE}", "data stay unchanged"


@pytest.mark.parametrize(("href", "is_link"), [("https://example.org/c/1", True), ("javascript:alert(1)", False)])
def test_only_web_addresses_become_links(url: str, write: Write, href: str, is_link: bool) -> None:
    change(url, "update runs set href = $href", href=href)
    page = write("latest", "--warehouse", url)
    links = [link.attributes["href"] for link in page.find("a") if not str(link.attributes["href"]).startswith("#")]
    assert links == ([href] if is_link else [])
    assert href in page.source


def test_the_page_allows_its_own_script_and_style_and_nothing_else(page: ReportPage) -> None:
    (policy,) = [element.attributes["content"] for element in page.find("meta") if "http-equiv" in element.attributes]
    assert policy is not None
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    (style,) = page.find("style")
    (script,) = [element for element in page.find("script") if "type" not in element.attributes]
    for name, element in (("style-src", style), ("script-src", script)):
        digest = base64.b64encode(hashlib.sha256(element.text.encode()).digest()).decode()
        assert rules[name] == f"'sha256-{digest}'"
    assert rules["default-src"] == rules["base-uri"] == rules["form-action"] == "'none'"
    assert (rules["require-trusted-types-for"], rules["trusted-types"]) == ("'script'", "'none'")
    assert not {"link", "img", "iframe", "object", "embed", "base", "image"} & {one.tag for one in page.elements}
    assert not any(name in element.attributes for element in page.elements for name in ("src", "srcset", "style"))
    assert not re.search(r"url\(|@import", style.text)
