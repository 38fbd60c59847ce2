"""Settings from flags, variables and defaults: which wins, where each came from, and what is refused in which words."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from cli_process import ROOT

from evalhouse.flows.errors import SettingsError
from evalhouse.flows.preparing.request import (
    find_flag,
    find_unknown_variables,
    find_variable,
    parse_metric_settings,
    parse_pairs,
    resolve_changes,
    resolve_settings,
    split_list,
)
from evalhouse.tasks.settings.run import RunSettings


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("EVALHOUSE_", "OPENAI_")):
            monkeypatch.delenv(name)


def test_defaults_are_those_of_the_settings() -> None:
    resolved = resolve_settings({})
    assert resolved.settings == RunSettings()
    assert all(origin.startswith("default") for origin in resolved.origins.values())
    assert resolved.origins.keys() == RunSettings.model_fields.keys()


def test_an_empty_variable_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVALHOUSE_JUDGE", "")
    assert resolve_settings({}).origins["judge"].startswith("default")


@pytest.mark.parametrize(
    ("variable", "text", "name", "value"),
    [
        ("EVALHOUSE_TEMPERATURE", "none", "temperature", None),
        ("EVALHOUSE_TEMPERATURE", "0.3", "temperature", 0.3),
        ("EVALHOUSE_BUDGET", "2.5", "budget_usd", 2.5),
        ("EVALHOUSE_METRICS", "factual_f1, faithfulness,", "metrics", ("factual_f1", "faithfulness")),
        ("EVALHOUSE_FRESH", "true", "fresh", True),
        ("EVALHOUSE_FRESH", "0", "fresh", False),
        ("EVALHOUSE_LIMIT", "none", "limit", None),
    ],
)
def test_variables_are_read_as_their_settings_are(
    monkeypatch: pytest.MonkeyPatch, variable: str, text: str, name: str, value: object
) -> None:
    monkeypatch.setenv(variable, text)
    resolved = resolve_settings({})
    assert getattr(resolved.settings, name) == value
    assert resolved.origins[name] == variable


def test_temperature_may_be_none_as_a_flag_too() -> None:
    assert resolve_settings({"temperature": "none"}).settings.temperature is None
    assert resolve_settings({"temperature": "0.7"}).settings.temperature == 0.7


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("EVALHOUSE_CONCURRENCY", "many"),
        ("EVALHOUSE_CONCURRENCY", "0"),
        ("EVALHOUSE_TIMEOUT", "nan"),
        ("EVALHOUSE_TEMPERATURE", "hot"),
        ("EVALHOUSE_FRESH", "perhaps"),
        ("EVALHOUSE_JUDGE", "none"),
        ("EVALHOUSE_METRICS", " , "),
    ],
)
def test_a_bad_value_is_named_by_its_variable(monkeypatch: pytest.MonkeyPatch, variable: str, text: str) -> None:
    monkeypatch.setenv(variable, text)
    with pytest.raises(SettingsError, match=f"^{variable}"):
        resolve_settings({})


def test_all_problems_are_reported_by_the_flags_that_were_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVALHOUSE_RPM", "0")
    with pytest.raises(SettingsError) as refused:
        resolve_settings({"timeout_s": -2.0, "budget_usd": 0.0, "attempts": 99})
    printed = str(refused.value)
    assert printed.count(";") == 7, "four problems, each with what came and what is allowed"
    for origin, value in (("--timeout", "-2.0"), ("--budget", "0.0"), ("--attempts", "99"), ("EVALHOUSE_RPM", "'0'")):
        assert f"{origin}: got {value}; " in printed


def test_the_judge_depends_on_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    without = resolve_settings({})
    assert without.settings.judge == "lexical"
    assert "no OPENAI_API_KEY" in without.origins["judge"]
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    with_key = resolve_settings({})
    assert with_key.settings.judge == "openai:gpt-4.1-mini"
    assert "OPENAI_API_KEY is set" in with_key.origins["judge"]
    assert not with_key.judge_was_chosen


def test_the_sample_asks_a_model_only_where_one_was_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    unnamed = resolve_settings({"dataset": "sample"})
    assert (unnamed.settings.judge, unnamed.settings.embeddings) == ("lexical", "hashing")
    assert not unnamed.judge_was_chosen
    assert resolve_settings({"dataset": "sample", "judge": "openai:other"}).settings.judge == "openai:other"
    assert resolve_settings({"dataset": "sample.jsonl"}).settings.judge == "openai:gpt-4.1-mini"
    monkeypatch.setenv("EVALHOUSE_JUDGE", "openai:another")
    assert resolve_settings({"dataset": "sample"}).settings.judge == "openai:another"
    monkeypatch.delenv("EVALHOUSE_JUDGE")
    (tmp_path / "sample").touch()
    assert resolve_settings({"dataset": "sample"}).settings.judge == "openai:gpt-4.1-mini", "a file of that name"


def test_named_judge_is_taken_with_any_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    flagged = resolve_settings({"judge": "lexical"})
    assert (flagged.settings.judge, flagged.judge_was_chosen) == ("lexical", True)
    monkeypatch.setenv("EVALHOUSE_JUDGE", "openai:other")
    named = resolve_settings({})
    assert (named.settings.judge, named.judge_was_chosen) == ("openai:other", True)


def test_subject_of_a_run_is_not_taken_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DATASET", "MAPPING", "MAP", "SUITE", "SET"):
        monkeypatch.setenv(f"EVALHOUSE_{name}", "x")
    assert resolve_settings({}).settings == RunSettings()
    assert find_unknown_variables().keys() == {
        "EVALHOUSE_DATASET", "EVALHOUSE_MAPPING", "EVALHOUSE_MAP", "EVALHOUSE_SUITE", "EVALHOUSE_SET",
    }  # fmt: skip


def test_a_misspelt_variable_is_found_with_the_one_that_was_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVALHOUSE_JUGDE", "lexical")
    monkeypatch.setenv("EVALHOUSE_PORT_80_TCP", "tcp://10.0.0.1:80")
    monkeypatch.setenv("EVALHOUSE_BUDGET", "1")
    assert find_unknown_variables() == {"EVALHOUSE_JUGDE": "EVALHOUSE_JUDGE", "EVALHOUSE_PORT_80_TCP": None}


def test_no_variable_that_the_product_reads_is_called_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    sources = [path for room in ("flows", "tasks", "warehouse") for path in (ROOT / room).rglob("*")]
    texts = [path.read_text(encoding="utf-8") for path in sources if path.suffix in (".py", ".yaml", ".service")]
    read = {name for text in texts for name in re.findall(r"\bEVALHOUSE_[A-Z]+(?:_[A-Z]+)*\b", text)}
    assert len(read) > 5
    for name in read:
        monkeypatch.setenv(name, "x")
    assert find_unknown_variables() == {}


def test_each_setting_has_a_flag_and_most_a_variable_of_the_same_name() -> None:
    assert find_flag("timeout_s") == "--timeout"
    assert find_flag("metric_files") == "--metric-files"
    assert find_variable("timeout_s") == "EVALHOUSE_TIMEOUT"
    assert find_variable("metric_files") == "EVALHOUSE_METRIC_FILES"
    assert find_variable("dataset") is None
    variables = [find_variable(name) for name in RunSettings.model_fields if find_variable(name)]
    assert len(set(variables)) == len(variables)


def test_resuming_changes_only_what_was_given() -> None:
    assert resolve_changes({"concurrency": 4, "rpm": None, "timeout_s": 2.0}) == {"concurrency": 4, "timeout_s": 2.0}
    with pytest.raises(SettingsError, match=r"^--attempts: got 0; "):
        resolve_changes({"attempts": 0})


def test_pairs_are_parsed_and_broken_ones_refused() -> None:
    assert parse_pairs(("answer = bot reply", "question=q=1"), "--map") == {"answer": "bot reply", "question": "q=1"}
    for text in ("answer", "=x", "answer=", "  =  "):
        with pytest.raises(SettingsError, match=r"--map got .*; write NAME=VALUE"):
            parse_pairs((text,), "--map")
    with pytest.raises(SettingsError, match="--map got 'answer' twice: 'a' and 'b'"):
        parse_pairs(("answer=a", "answer=b"), "--map")


def test_metric_settings_are_gathered_by_metric() -> None:
    texts = ("answer_correctness.factual_weight=0.5", "answer_correctness.similarity_weight=0.5", "mrr.k=3")
    assert parse_metric_settings(texts) == {
        "answer_correctness": {"factual_weight": 0.5, "similarity_weight": 0.5},
        "mrr": {"k": 3.0},
    }


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("mrr=1", "write METRIC.PARAMETER=NUMBER"),
        ("mrr.k=three", "'three'; write a number"),
        ("mrr.k=inf", "'inf'; write a number"),
        ("mrr.k", "write NAME=VALUE"),
    ],
)
def test_a_bad_metric_setting_is_refused(text: str, printed: str) -> None:
    with pytest.raises(SettingsError, match=printed):
        parse_metric_settings((text,))


def test_lists() -> None:
    assert split_list(None) is None
    assert split_list(" a, b ,,c") == ("a", "b", "c")
    with pytest.raises(SettingsError, match="--metrics got ''"):
        split_list("")


@pytest.mark.parametrize(
    ("judge", "variables", "embeddings"),
    [
        (None, {}, "hashing"),
        ("module:factory", {"OPENAI_API_KEY": "k"}, "hashing"),
        ("openai:gpt-4.1", {}, "openai:text-embedding-3-small"),
        (None, {"OPENAI_API_KEY": "k"}, "openai:text-embedding-3-small"),
        ("openai:m", {"OPENAI_BASE_URL": "https://api.openai.com/v1/"}, "openai:text-embedding-3-small"),
        # Another endpoint may have no embedding model.
        ("openai:m", {"OPENAI_BASE_URL": "http://localhost:8000/v1"}, "hashing"),
        ("openai:m", {"EVALHOUSE_EMBEDDINGS": "hashing"}, "hashing"),
    ],
)
def test_the_judge_at_openai_brings_its_embeddings(
    monkeypatch: pytest.MonkeyPatch, judge: str | None, variables: dict[str, str], embeddings: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert resolve_settings({"judge": judge}).settings.embeddings == embeddings
