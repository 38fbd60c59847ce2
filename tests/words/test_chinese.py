"""Chinese from end to end: every metric that asks a judge, in Chinese words, over texts with full-width punctuation and
Chinese names, which must come back as they went in.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pytest
from cli_house import place_at, write_dataset
from endpoint import running_endpoint
from endpoint_replies import fill_reply
from prompt_files import ALL_NAMES, read_content

from evalhouse.prompts import load_prompts
from evalhouse.warehouse.metric_files import load_metrics
from evalhouse.warehouse.steps import APART_PROMPTS, GRADE_STEP

ASKED = {"classify", "attribute_answer", "attribute_ground_truth", "rank", "relevancy"}
JUDGED = sorted(
    name
    for name, file in load_metrics().items()
    if any(step in ASKED or step.startswith(GRADE_STEP) for step in (*file.needs, *file.optional_needs))
)
BY_IDS = [name for name, file in load_metrics().items() if file.optional_needs]
# What another plan asks in place of four of them, what only a conversation is asked with, or pairs of answers, or test
# sets are made with.
UNASKED = ("fused", "extract_both", "turns", "preference", *APART_PROMPTS)
ANSWER = [
    "《静波集》（增订本）由阿依古丽·买买提与欧阳静怡合著。",
    "它一九八六年由“海石书局”刊行，全书约４２万字；",
    "诸葛明远作了序……",
    "序里写道：‘江声、桨声、人声——皆在纸上’！",
]
TRUTH = ["《静波集》（增订本）由阿依古丽·买买提与欧阳静怡合著。", "诸葛明远作了序。"]
SAMPLES: list[dict[str, Any]] = [
    {"id": "书", "question": "《静波集》是谁写的？", "answer": ANSWER[0] + ANSWER[1] + ANSWER[2] + "\n" + ANSWER[3],
     "ground_truth": "".join(TRUTH),
     "contexts": ["《静波集》（增订本）由阿依古丽·买买提与欧阳静怡合著，“海石书局”刊行。", "渔市逢五、逢十开张。"]},
    {"id": "塔", "question": "望海塔有多高？", "answer": "望海塔高四十二米，分七层。",
     "ground_truth": "望海塔高四十二米。", "contexts": ["望海塔高四十二米；塔分七层。"]},
]  # fmt: skip
REASON = "与标准答案一致，只是“书局”之名有出入。"
# How a function of SQL is written has no full-width form.
_CALL = re.compile(r"[A-Z]+\([^()]*\)")
_HAN = "[\u3400-\u9fff]"
_HALF_WIDTH = re.compile(rf'{_HAN}[,.;:!?)"]|[(,;!?"]{_HAN}|{_HAN} *[,.;:!?] *{_HAN}|[\uff10-\uff19\uff21-\uff5a]')


@dataclass(frozen=True, kw_only=True)
class Judged:
    """The warehouse after a run, and the messages of each request."""

    path: Path
    sent: list[list[str]]

    def read(self, sql: str) -> list[dict[str, Any]]:
        with duckdb.connect(str(self.path), read_only=True) as connection:
            return connection.sql(sql).pl().to_dicts()


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory, prefect_home: Path) -> Judged:
    folder = tmp_path_factory.mktemp("chinese")
    write_dataset(folder, SAMPLES, "书.jsonl")
    reply = partial(fill_reply, question="这部书是谁写的？", reason=REASON)
    with running_endpoint(keep_bodies=True, script={"other": reply}) as endpoint:
        options = ("--judge", "openai:judge", "--language", "zh", "--metrics", ",".join(JUDGED))
        finished = place_at(folder, prefect_home, endpoint.base_url).call("run", "书.jsonl", *options)
        assert finished.status == 0, finished.stdout + finished.stderr
        sent = [[message["content"] for message in body["messages"]] for body in endpoint.stats.bodies]
    return Judged(path=folder / "evalhouse.duckdb", sent=sent)


def test_every_metric_that_asks_a_judge_is_scored(judged: Judged) -> None:
    rows = judged.read("select metric, sample_id, value, unscored_reason from scores")
    assert {row["metric"] for row in rows} == set(JUDGED)
    assert len(rows) == 2 * len(JUDGED)
    # Both texts state something, so that there is nothing to refuse; no sample has reference ids, and no answer cites.
    undefined = {("refusal_rate", "no_statements"), *((name, "no_reference_ids") for name in BY_IDS)}
    undefined.add(("citation_precision", "no_citations"))
    assert {(row["metric"], row["unscored_reason"]) for row in rows if row["value"] is None} == undefined
    assert {"answer_relevancy", "passage_recall", "relevance_final", "sql_equivalence"} <= set(JUDGED)


def test_statements_keep_punctuation_and_names(judged: Judged) -> None:
    rows = judged.read("select source, text from statements where sample_id = '书' order by source, ordinal")
    texts = {source: [row["text"] for row in rows if row["source"] == source] for source in ("answer", "ground_truth")}
    assert texts == {"answer": ANSWER, "ground_truth": TRUTH}
    labels = judged.read(
        "select text, label from statement_verdicts where sample_id = '书' and source = 'ground_truth'"
    )
    assert {row["text"]: row["label"] for row in labels} == dict.fromkeys(TRUTH, "TP")


def test_texts_reach_the_judge_as_they_are(judged: Judged) -> None:
    answer = SAMPLES[0]["answer"]
    whole = [
        name for name, prompt in load_prompts("zh").items()
        if {"answer", "text", "sql"} & prompt.variables.keys() and name not in UNASKED
    ]  # fmt: skip
    assert sum(answer in messages[-1] for messages in judged.sent) == len(whole) == 11
    listed = "\n".join(f"[A{place}] {text}" for place, text in enumerate(ANSWER, start=1))
    assert sum(listed in messages[-1] for messages in judged.sent) == 2, "classify and attribute"


def test_the_words_sent_and_those_on_record_are_the_chinese_ones(judged: Judged) -> None:
    prompts = load_prompts("zh")
    names = [name for name in ALL_NAMES if name not in UNASKED]
    openings = {name: [message.content for message in prompts[name].opening] for name in names}
    assert {tuple(messages[:-1]) for messages in judged.sent} == {tuple(opening) for opening in openings.values()}
    rows = judged.read("select distinct prompt, language from llm_calls join prompts using (prompt_hash, prompt)")
    assert {row["prompt"]: row["language"] for row in rows} == dict.fromkeys(names, "zh")


def test_reasons_are_kept_as_they_were_written(judged: Judged) -> None:
    rows = judged.read("select distinct reason from grades where said is not null")
    assert rows == [{"reason": REASON}]
    questions = judged.read("select distinct text from similarities where kind = 'regenerated_question'")
    assert questions == [{"text": "这部书是谁写的？"}]


def list_prose(value: object) -> Iterator[str]:
    """All texts of a prompt file but the lines of its instructions that are JSON."""
    if isinstance(value, str):
        yield from (_CALL.sub("", line) for line in value.splitlines() if '{"' not in line)
    elif isinstance(value, dict):
        for inner in value.values():
            yield from list_prose(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from list_prose(inner)


@pytest.mark.parametrize("name", ALL_NAMES)
def test_chinese_prompts_are_punctuated_as_chinese_with_one_name_for_a_verdict(name: str) -> None:
    lines = list(list_prose(read_content(name, "zh")))
    assert [(line, found[0]) for line in lines if (found := _HALF_WIDTH.search(line))] == []
    text = "\n".join(lines)
    assert not re.search("(有且只有一个|给出|再写)判断|(下|写|出的)结论|结论是", text), "a verdict is a 判定"
    assert not re.search(f"{_HAN}[ACG][0-9]|[ACG][0-9]{_HAN}", text)
