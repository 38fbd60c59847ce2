"""The strict reader of metric files: what it gives, and what it refuses and in which words."""

import re
from pathlib import Path

import pytest

from evalhouse.warehouse import metric_files
from evalhouse.warehouse.metric_files import (
    MetricFileError,
    load_function,
    load_metrics,
    metric_steps_sql,
    metric_version,
    parse_metric,
    resolve_parameters,
)

HEADER = "-- metric: share\n-- version: 1\n-- needs: classify\n"
SAYS = "-- One row per sample of the run: a share.\n"
BODY = "select run_id, sample_id, 1.0 as value, null as unscored_reason from run_samples where run_id = $run_id\n"
WHOLE = HEADER + SAYS + BODY


def parse(text: str) -> metric_files.MetricFile:
    return parse_metric(text, name="share", place="share.sql")


def test_built_in_metrics() -> None:
    metrics = load_metrics()
    assert list(metrics) == sorted(metrics)
    assert metrics["answer_correctness"].parameters == {"factual_weight": 0.75, "similarity_weight": 0.25}
    assert metrics["answer_correctness"].needs == ("classify", "similarity")
    assert metrics["mrr"].needs == ()
    assert metrics["mrr"].optional_needs == ("rank",)
    assert metrics["mrr_retrieved"].needs == ("rank",)
    assert metrics["ndcg_at_k"].parameters == {"k": 5.0}
    assert all(metric.description.startswith("One row per sample of the run: ") for metric in metrics.values())
    assert [
        name for name, metric in metrics.items() if not re.fullmatch(r"(How|Whether) .{10,105}", metric.meaning or "")
    ] == []


def test_whole_file() -> None:
    text = (
        "-- metric: share\n-- version: 12\n-- needs: rank?, similarity, classify\n-- parameter: low = 0.5\n"
        "-- parameter: high = 2\n-- One row per sample of the run: a share,\n-- mind: of two.\n\n"
        + BODY.replace("1.0", "$low + $high")
    )
    metric = parse(text)
    assert (metric.name, metric.version) == ("share", "12")
    assert metric.needs == ("classify", "similarity")
    assert metric.optional_needs == ("rank",)
    assert metric.parameters == {"low": 0.5, "high": 2.0}
    assert metric.description == "One row per sample of the run: a share, mind: of two."
    assert metric.sql.startswith("select run_id")
    assert metric.sql.endswith("$run_id")


def test_a_header_says_which_way_is_better_and_whether_it_is_a_default() -> None:
    plain = parse(WHOLE)
    assert (plain.better, plain.minimum, plain.default_place, plain.correctable) == ("high", 0.0, None, None)
    assert plain.meaning is None
    header = (
        "-- better: low\n-- minimum: 0.25\n-- default: yes\n-- correctable: no, ratio\n-- meaning: How rude: a share\n"
    )
    further = parse(HEADER + header + SAYS + BODY)
    assert further.meaning == "How rude: a share"
    assert (further.better, further.minimum, further.correctable) == ("low", 0.25, "no, ratio")
    assert further.default_place is not None
    assert metric_version(plain, {}) == metric_version(further, {}), "scores by an older header are the same formula's"


def test_what_is_left_open_and_what_is_not_code() -> None:
    metric = parse(WHOLE.replace("needs: classify", "needs: -"))
    assert metric.needs == metric.optional_needs == ()
    assert parse(WHOLE.rstrip() + ";\n").sql == parse(WHOLE).sql
    body = BODY.replace("1.0", "length('$5; \"it''s') /* $no; */").replace("from", "-- $neither;\nfrom")
    assert parse(HEADER + SAYS + body).parameters == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no '-- metric: …' line"),
        (WHOLE.replace("-- version: 1\n", ""), "no '-- version: …' line"),
        (WHOLE.replace("-- needs: classify\n", ""), "no '-- needs: …' line"),
        (WHOLE.replace("metric: share", "metric: Share"), "must be the file's name"),
        (WHOLE.replace("version: 1", "version: 1.2"), "version is '1.2'; it must be a whole number from 1"),
        (
            WHOLE.replace("version", "author"),
            "unknown header 'author'; known: metric, version, needs, parameter, better, minimum, embeddings, "
            "default, correctable",
        ),
        (HEADER + "-- needs: rank\n" + SAYS + BODY, "header 'needs' is given twice"),
        (WHOLE.replace("needs: classify", "needs:"), "header 'needs' is empty; write - for none"),
        (HEADER + SAYS + "-- parameter: k = 5\n" + BODY, "'parameter' comes after the description"),
        (HEADER + BODY, "lacks the meaning of a row"),
        (WHOLE.replace("classify", "clasify"), "unknown step 'clasify' in needs; did you mean classify"),
        (WHOLE.replace("classify", "classify, classify"), "'classify' is in needs twice"),
        (HEADER + "-- better: lower\n" + SAYS + BODY, "better is 'lower'; it must be 'high' or 'low' or 'neutral'"),
        (HEADER + "-- minimum: low\n" + SAYS + BODY, "minimum is 'low'; it must be a number from 0 to below 1"),
        (HEADER + "-- default: 3\n" + SAYS + BODY, "default is '3'; it must be 'no', 'yes' or 'yes, place <number>'"),
        (HEADER + "-- correctable: no\n" + SAYS + BODY, "correctable is 'no'; it must be 'yes' or 'no, ratio'"),
        (HEADER + "-- parameter: k\n" + SAYS + BODY, "parameter is 'k'; it must be '<name> = <default number>'"),
        (HEADER + "-- parameter: K = 5\n" + SAYS + BODY, "parameter is 'K = 5'"),
        (HEADER + "-- parameter: run_id = 5\n" + SAYS + BODY, "'run_id' is taken"),
        (HEADER + "-- parameter: k = 5\n-- parameter: k = 6\n" + SAYS + BODY, "'k' is taken"),
        (HEADER + "-- parameter: k = 5\n" + SAYS + BODY, "parameter 'k' is not used in the SQL"),
        (WHOLE.replace("1.0", "$k"), "the SQL uses \\$k; add '-- parameter: k = <default number>'"),
        (WHOLE.replace("$run_id", "'r'"), "the SQL never uses \\$run_id"),
        (HEADER + SAYS, "must be one SELECT"),
        (HEADER + SAYS + "delete from scores where run_id = $run_id\n", "must be one SELECT"),
    ],
)
def test_broken_files_are_refused(text: str, message: str) -> None:
    with pytest.raises(MetricFileError, match=message) as caught:
        parse(text)
    assert str(caught.value).startswith("share.sql: ")


def test_users_folder_adds_metrics(tmp_path: Path) -> None:
    (tmp_path / "share.sql").write_text(WHOLE)
    (tmp_path / "notes.txt").write_text("not a metric")
    metrics = load_metrics(tmp_path)
    assert set(metrics) == {*load_metrics(), "share"}
    assert list(metrics) == sorted(metrics)
    assert "('share', 'classify', false)" in metric_steps_sql(metrics)


def test_users_folder_is_as_strict(tmp_path: Path) -> None:
    with pytest.raises(MetricFileError, match="no folder of metric files at "):
        load_metrics(tmp_path / "missing")
    (tmp_path / "faithfulness.sql").write_text(WHOLE)
    with pytest.raises(MetricFileError, match="metric 'faithfulness' is built in; give yours another name"):
        load_metrics(tmp_path)
    (tmp_path / "faithfulness.sql").rename(tmp_path / "fidelity.sql")
    with pytest.raises(MetricFileError, match=r"fidelity\.sql: metric is 'share' in the header"):
        load_metrics(tmp_path)
    (tmp_path / "fidelity.sql").write_bytes(b"-- metric: \xff")
    with pytest.raises(MetricFileError, match=r"fidelity\.sql cannot be read as UTF-8 text"):
        load_metrics(tmp_path)


@pytest.mark.parametrize(("settings", "version"), [
    ({}, "1"),
    ({"factual_weight": 0.75}, "1"),
    ({"factual_weight": 0.5}, "1;factual_weight=0.5"),
    ({"similarity_weight": 1, "factual_weight": 0.1}, "1;factual_weight=0.1;similarity_weight=1"),
])  # fmt: skip
def test_version_names_what_is_not_default(settings: dict[str, float], version: str) -> None:
    assert metric_version(load_metrics()["answer_correctness"], settings) == version


def test_parameters_are_checked() -> None:
    metric = load_metrics()["recall_at_k"]
    assert resolve_parameters(metric, {}) == {"k": 5.0}
    assert resolve_parameters(metric, {"k": 3}) == {"k": 3.0}
    with pytest.raises(MetricFileError, match="metric 'recall_at_k' takes no parameter 'n'; known: k"):
        resolve_parameters(metric, {"n": 3})
    with pytest.raises(MetricFileError, match="metric 'mrr' takes no parameter 'k'; known: none"):
        metric_version(load_metrics()["mrr"], {"k": 3})
    for value in (float("nan"), float("inf"), "5", True, None):
        with pytest.raises(MetricFileError, match=r"k is .*; it must be a finite number"):
            resolve_parameters(metric, {"k": value})  # type: ignore[dict-item]


PYTHON = '''
from evalhouse import flows

@flows.metric(name="half", needs=["answer", "statements", "grade_tone"])
def halve(answer, *, statements, grade_tone):
    """Half
    of it."""
    raise SystemExit("is not run")
'''


def test_a_python_file_is_read_and_not_run(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(f"{PYTHON}\nraise SystemExit('is not run')", encoding="utf-8")
    (tmp_path / "_helper.py").write_text("not python", encoding="utf-8")
    metric = load_metrics(tmp_path)["half"]
    assert (metric.function, metric.arguments) == ("halve", ("answer", "statements", "grade_tone"))
    assert metric.needs == ("extract_answer", "extract_ground_truth", "grade_tone")
    assert (metric.better, metric.description, metric.is_own) == ("high", "Half of it.", True)
    (tmp_path / "mine.py").write_text(PYTHON, encoding="utf-8")
    assert load_metrics(tmp_path)["half"].version != metric.version
    assert len(metric_version(metric, {})) == 12
    (tmp_path / "other.py").write_text(PYTHON, encoding="utf-8")
    with pytest.raises(MetricFileError, match=r"other\.py: metric 'half' is taken"):
        load_metrics(tmp_path)


@pytest.mark.parametrize(("text", "problem"), [
    ("def halve(:", "line 1: not valid Python: invalid syntax"),
    ("def halve(answer): ...", "no function is marked with @metric"),
    ("@metric('x', needs='answer')\ndef f(answer): ...",
     "line 1: @metric takes the arguments name=, needs= and better="),
    ("@metric(name='x', need='answer')\ndef f(answer): ...", "line 1: @metric takes the arguments name=, needs= and"),
    ("@metric(name=NAME, needs='answer')\ndef f(answer): ...", "must be written out as literals"),
    ("@metric(name='X', needs='answer')\ndef f(answer): ...", "name is 'X'; it must be in small letters"),
    ("@metric(name='x', needs='answr')\ndef f(answr): ...", "needs has 'answr'; did you mean answer"),
    ("@metric(name='x', needs='answer', better='up')\ndef f(answer): ...",
     "better is 'up'; it must be one of high, low"),
    ("@metric(name='x', needs='answer')\ndef f(reply): ...", r"f takes \(reply\), and needs names answer"),
    ("@metric(name='x', needs='answer')\nasync def f(answer): ...", "marks an ordinary function"),
    ("@metric(name='mrr', needs='answer')\ndef f(answer): ...", "metric 'mrr' is taken"),
])  # fmt: skip
def test_a_python_file_that_breaks_the_rules_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "mine.py").write_text(text, encoding="utf-8")
    with pytest.raises(MetricFileError, match=rf"mine\.py.*{problem}"):
        load_metrics(tmp_path)


def test_a_python_file_that_fails_is_named_when_it_is_run(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(f"1 / 0\n{PYTHON}", encoding="utf-8")
    with pytest.raises(MetricFileError, match=r"mine\.py cannot be loaded: ZeroDivisionError: division by zero"):
        load_function(load_metrics(tmp_path)["half"])
