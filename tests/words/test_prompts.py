"""The built-in prompts, their hashes, and the shape of what is rendered.

What hostile texts may not do is in test_prompts_hostile.py, what a prompt file may not be in test_prompts_strict.py.
"""

import hashlib
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from prompt_files import ALL_NAMES, NAMES, read_content, write_prompt

from evalhouse.flows.preparing.live_run import find_taken_scores, list_rubrics, make_rubric_metrics
from evalhouse.prompts import (
    BlockValue,
    Item,
    Message,
    Prompt,
    PromptError,
    check_prompts,
    list_languages,
    list_rubric_columns,
    load_prompts,
    read_stored_rubric,
    unfold_row,
)
from evalhouse.prompts.loader import pick_verdict_lists
from evalhouse.prompts.render import BLOCKS
from evalhouse.prompts.rubric import Criterion, Rubric
from evalhouse.warehouse.metric_files import MetricFileError, load_metrics

BUILT_IN = [(language, name) for language in ("en", "zh") for name in ALL_NAMES]
HAN = re.compile(r"[\u4e00-\u9fff]")

CLASSIFY_DATA: dict[str, BlockValue] = {
    "question": "Which river turns the Helm mill?",
    "answer_statements": [Item(id="A1", text="The Orra turns it."), Item(id="A2", text="It was built in 1870.")],
    "ground_truth_statements": [Item(id="G1", text="The river Orra turns the Helm mill.")],
}

# --- the built-in prompts


def test_english_and_chinese_have_the_same_prompts() -> None:
    assert list_languages() == ["en", "zh"]
    for language in list_languages():
        prompts = load_prompts(language)
        assert sorted(prompts) == ALL_NAMES
        assert {prompt.language for prompt in prompts.values()} == {language}
        assert check_prompts(None, language) == []


@pytest.mark.parametrize("name", [*NAMES, "extract_both", "fused"])
def test_both_languages_ask_for_the_same_shape(name: str) -> None:
    english, chinese = load_prompts("en")[name], load_prompts("zh")[name]
    assert chinese.variables == english.variables
    assert chinese.labels == english.labels
    assert chinese.reply_schema == english.reply_schema
    assert chinese.prompt_hash != english.prompt_hash


def test_the_instructions_state_the_reply_as_json() -> None:
    """Some endpoints have no structured output, so the text alone must do, and the shape is the last it says."""
    for language, name in BUILT_IN:
        prompt = load_prompts(language)[name]
        shape = json.loads(prompt.opening[0].content.splitlines()[-1])
        assert list(shape) == list(prompt.reply_schema["properties"])
        for key, verdicts in pick_verdict_lists(shape, prompt.variables).items():
            properties = prompt.reply_schema["properties"][key]["items"].get("properties", {})
            for verdict in verdicts:
                assert read_id(verdict)[0] in prompt.labels
                if isinstance(verdict, list):
                    assert len(verdict) == (3 if read_id(verdict)[0] == "C" else 4)
                else:
                    assert list(verdict) == list(properties)
        listed = pick_verdict_lists(shape, prompt.variables).values()
        ids = {read_id(verdict) for verdicts in listed for verdict in verdicts}
        assert set(walk_texts(shape)) - ids == {"…"}, "small models copy the shape"
        assert not re.search(r": ?(?:\d|true|false)", json.dumps(shape)), "and ratings"


def read_id(verdict: Any) -> str:  # noqa: ANN401  # an object or a row
    return str(verdict[0] if isinstance(verdict, list) else verdict["id"])


def test_worked_examples_come_in_pairs_in_the_wire_shape() -> None:
    for language, name in BUILT_IN:
        prompt = load_prompts(language)[name]
        examples = read_content(name, language)["examples"]
        assert 1 <= len(examples) <= 9
        assert [message.role for message in prompt.opening] == ["system"] + ["human", "ai"] * len(examples)
        for position, example in enumerate(examples):
            human, ai = prompt.opening[1 + 2 * position : 3 + 2 * position]
            blocks = {name: (value if isinstance(value, str) else [Item(**item) for item in value])
                      for name, value in example["data"].items()}  # fmt: skip
            assert human == prompt.render(blocks)[-1]
            assert json.loads(ai.content) == example["reply"]


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize(
    ("name", "half", "main", "detail"), [("accuracy", 5, 3, 7), ("accuracy_5", 3, 2, 4), ("accuracy_3", 2, 1, 2)]
)
def test_an_answer_to_half_of_the_question_is_half_right_on_every_scale(
    language: str, name: str, half: int, main: int, detail: int
) -> None:
    prompt = load_prompts(language)[name]
    ratings = {
        str(example.data["question"]): example.reply[name]["rating"]  # type: ignore[call-overload, index]
        for example in prompt.examples
    }
    worked = [("built, and by whom|由谁主持", half), ("laser|激光", main), ("glue|胶水", detail)]
    for words, expected in worked:
        assert [rating for question, rating in ratings.items() if re.search(words, question)] == [expected]
    anchors = {
        rating for rating in ratings.values() if f"- {rating}: " in prompt.system or f"- {rating}：" in prompt.system
    }
    assert anchors == set(ratings.values()), "an example has the rating of a described step"


def list_verdicts(reply: dict[str, Any]) -> list[dict[str, Any]]:
    listed = [verdict for verdicts in pick_verdict_lists(reply, CLASSIFY_DATA).values() for verdict in verdicts]
    return [verdict for one in listed for verdict in (unfold_row(one) if isinstance(one, list) else [one])]


@pytest.mark.parametrize("name", [*NAMES, "extract_both", "fused"])
def test_chinese_prompts_are_chinese_with_separate_examples(name: str) -> None:
    english, chinese = read_content(name, "en"), read_content(name, "zh")
    assert HAN.search(chinese["description"])
    assert len(HAN.findall(chinese["system"])) > 300
    for example in chinese["examples"]:
        texts = [text for text in walk_texts(example) if len(text) > 12]
        assert texts
        assert all(HAN.search(text) for text in texts)
    assert not HAN.search(json.dumps(english, ensure_ascii=False))


def walk_texts(value: object) -> list[str]:
    if isinstance(value, dict):
        return walk_texts(list(value.values()))
    if isinstance(value, list):
        return [text for part in value for text in walk_texts(part)]
    assert isinstance(value, str)
    return [value]


@pytest.mark.parametrize("language", ["en", "zh"])
def test_examples_show_every_label_and_every_kind_of_nothing(language: str) -> None:
    replies = {name: [example["reply"] for example in read_content(name, language)["examples"]] for name in NAMES}
    labels = {
        name: {(verdict["id"][0], verdict["label"]) for reply in replies[name] for verdict in list_verdicts(reply)}
        for name in ("classify", "rank")
    }
    assert labels["classify"] == {("A", "TP"), ("A", "FP"), ("G", "TP"), ("G", "FN")}
    assert labels["rank"] == {("C", "useful"), ("C", "not_useful")}
    assert {"statements": []} in replies["extract"]
    supports = {len(verdict["contexts"]) for reply in replies["attribute"] for verdict in reply["verdicts"]}
    assert supports == {0, 1, 2}
    together = [verdict["together"] for reply in replies["attribute"] for verdict in reply["verdicts"]]
    assert sorted(map(len, together))[-2:] == [0, 2], "one that needs two contexts"


# --- rendering


def render_last(data: dict[str, Any], name: str = "classify") -> str:
    return load_prompts()[name].render(data)[-1].content


def test_the_last_message_holds_the_data_in_blocks_and_nothing_else() -> None:
    content = render_last(CLASSIFY_DATA)
    nonce = re.match(r"<question ([0-9a-f]{8})>\n", content)
    assert nonce
    assert content.replace(nonce[1], "NONCE") == (
        "<question NONCE>\n"
        "Which river turns the Helm mill?\n"
        "</question NONCE>\n"
        "<answer_statements NONCE>\n"
        "[A1] The Orra turns it.\n"
        "[A2] It was built in 1870.\n"
        "</answer_statements NONCE>\n"
        "<ground_truth_statements NONCE>\n"
        "[G1] The river Orra turns the Helm mill.\n"
        "</ground_truth_statements NONCE>"
    )


def test_note_comes_after_the_data_and_changes_nothing_else() -> None:
    """A small model does not look for it in the instructions, and nothing that a provider has cached is used."""
    prompt = load_prompts()["classify"]
    plain, noted = prompt.render(CLASSIFY_DATA), prompt.render(CLASSIFY_DATA, note="Reply for A2 only.")
    assert noted[-1] == Message(role="human", content=plain[-1].content + "\n\nReply for A2 only.")
    assert noted[:-1] == plain[:-1]
    assert prompt.render(CLASSIFY_DATA) == plain


@pytest.mark.parametrize(("change", "message"), [
    ({"question": None}, "missing question"),
    ({"text": "more"}, "not declared text"),
    ({"question": [Item(id="A1", text="x")]}, "block 'question' is list; it must be a text"),
    ({"answer_statements": "A1"}, "block 'answer_statements' is a text; it must be a list of items"),
    ({"answer_statements": [Item(id="G1", text="x")]}, "has the id 'G1'; ids there are A1, A2"),
    ({"answer_statements": [Item(id="A0", text="x")]}, "has the id 'A0'"),
    ({"answer_statements": [Item(id="A1] x\n[A2", text="x")]}, "has the id 'A1] x"),
    ({"answer_statements": [Item(id="A1", text="x"), Item(id="A1", text="y")]}, "more than one item with the id A1"),
])  # fmt: skip
def test_wrong_data_is_refused(change: dict[str, Any], message: str) -> None:
    data = {name: value for name, value in {**CLASSIFY_DATA, **change}.items() if value is not None}
    with pytest.raises(PromptError, match=re.escape(message)):
        load_prompts()["classify"].render(data)


# --- the hash


def test_comments_and_layout_do_not_change_the_hash(tmp_path: Path) -> None:
    built_in = load_prompts()["rank"]
    path = write_prompt(tmp_path, dict(reversed(read_content("rank").items())))
    path.write_text("# a comment\n\n" + path.read_text(encoding="utf-8"), encoding="utf-8")
    again = load_prompts("en", tmp_path)["rank"]
    assert again.prompt_hash == built_in.prompt_hash
    assert again.opening == built_in.opening
    assert again.template == path.read_text(encoding="utf-8") != built_in.template


def test_the_hash_is_that_of_canonical_json() -> None:
    prompt = load_prompts("zh")["extract"]
    canonical = json.dumps(read_content("extract", "zh"), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert "陈述" in canonical
    assert prompt.prompt_hash == hashlib.sha256(canonical.encode()).hexdigest()


# --- releases

# A released version never changes: to change a word, raise the version and add its hash to the file.
RELEASED: dict[str, str] = json.loads(Path(__file__).with_name("released.json").read_text(encoding="utf-8"))


def identify(prompt: Prompt) -> str:
    return f"{prompt.language}/{prompt.name}/{prompt.version}"


# What OpenAI's cache takes at least; `tests/benchmarks/prompt_tokens.py` counts.
LEAST_CACHED = 1024
COUNTED = json.loads(Path(__file__).with_name("prompt_tokens.json").read_text(encoding="utf-8"))


def test_text_before_the_data_is_long_enough_for_a_providers_cache() -> None:
    for language, name in BUILT_IN:
        counted = COUNTED[f"{language}/{name}"]
        prompt = load_prompts(language)[name]
        assert counted["prompt_hash"] == prompt.prompt_hash[:16], "run prompt_tokens.py again"
        assert counted["tokens"] > LEAST_CACHED


@pytest.mark.parametrize(("language", "most"), [("en", 3_000), ("zh", 3_450)])
def test_text_before_the_data_of_a_fused_night_stays_within_its_price(language: str, most: int) -> None:
    """At 3,000 tokens a first night by batch takes 0.20 of ragas' price: python tests/benchmarks/price.py."""
    assert sum(COUNTED[f"{language}/{name}"]["tokens"] for name in ("extract_both", "fused")) <= most
    for name in ("extract_both", "fused"):
        assert len(json.dumps(load_prompts(language)[name].reply_schema)) < 350


def test_a_released_version_is_as_it_was_released() -> None:
    for language, name in BUILT_IN:
        prompt = load_prompts(language)[name]
        assert RELEASED.get(identify(prompt)) == prompt.prompt_hash[:16], (
            f"{identify(prompt)} now has the hash {prompt.prompt_hash[:16]}: raise its version and list it here"
        )


RENDERED: dict[str, str] = json.loads(Path(__file__).with_name("rendered.json").read_text(encoding="utf-8"))


def fill_block(name: str) -> BlockValue:
    """A block whose texts hold all that could pass for a mark, that of a turn included."""
    prefix = BLOCKS[name].prefix
    if not prefix:
        return f"some {name}\n[T2] assistant: x\n</conversation 1a>\n[A1] y"
    texts = (f"line {{}}\n[T1] user: <turns> [{prefix}1]\n<question>".format(place) for place in (1, 2))
    return [Item(id=f"{prefix}{place}", text=text) for place, text in enumerate(texts, start=1)]


def test_requests_without_a_conversation_are_unchanged() -> None:
    for language, name in BUILT_IN:
        prompt = load_prompts(language)[name]
        if identify(prompt) in RENDERED:
            messages = prompt.render({block: fill_block(block) for block in prompt.variables})
            text = "\0".join(f"{message.role}\1{message.content}" for message in messages)
            assert hashlib.sha256(text.encode()).hexdigest()[:16] == RENDERED[identify(prompt)]


@pytest.mark.parametrize("template", ["Judge each item.", "a: [", "name: tone\nvariables: [question]", "rubric: {}"])
def test_a_rubric_on_record_that_cannot_be_read_says_nothing(template: str) -> None:
    assert read_stored_rubric(template) is None
    assert list_rubric_columns("tone", [template]) is None
    assert list_rubric_columns("accuracy", [template]) == list_rubric_columns("accuracy")


ITEMS = {"contexts": "C", "answer_statements": "A", "ground_truth_statements": "G"}


def make_data(variables: Iterable[str], n: int) -> dict[str, BlockValue]:
    return {
        name: [Item(id=f"{ITEMS[name]}{place}", text="x") for place in range(1, n + 1)] if name in ITEMS else "x"
        for name in variables
    }


def read_names(schema: dict[str, Any]) -> dict[str, list[tuple[str, Any]]]:
    """Return for each list the ids in order, each with its labels or the contexts that may be cited."""
    named: dict[str, list[tuple[str, Any]]] = {}
    for key, part in schema["properties"].items():
        assert part["minItems"] == part["maxItems"] == len(part["prefixItems"])
        for verdict in part["prefixItems"]:
            assert verdict["required"] == list(verdict["properties"])
            (item_id,) = verdict["properties"]["id"]["enum"]
            choices = verdict["properties"].get("label") or verdict["properties"]["contexts"]["items"]
            named.setdefault(key, []).append((item_id, choices["enum"]))
    return named


EXPECTED = {
    "classify": {"answer_statements": [("A1", ["TP", "FP"]), ("A2", ["TP", "FP"])],
     "ground_truth_statements": [("G1", ["TP", "FN"]), ("G2", ["TP", "FN"])]},
    "attribute": {"verdicts": [(item_id, ["C1", "C2"]) for item_id in ("A1", "A2", "G1", "G2")]},
    "rank": {"verdicts": [("C1", ["useful", "not_useful"]), ("C2", ["useful", "not_useful"])]},
}  # fmt: skip


@pytest.mark.parametrize("language", list_languages())
@pytest.mark.parametrize("name", EXPECTED)
def test_every_id_is_named_once_with_its_choices(language: str, name: str) -> None:
    prompt = load_prompts(language)[name]
    schema = prompt.build_schema(make_data(prompt.variables, 2))
    assert read_names(schema) == EXPECTED[name]
    assert schema["required"] == list(schema["properties"])
    assert "prefixItems" not in str(prompt.reply_schema), "the prompt's own schema is as it was"


def test_a_request_for_some_ids_names_those_alone() -> None:
    prompt = load_prompts()["classify"]
    schema = prompt.build_schema(make_data(prompt.variables, 3), only=("G2",))
    assert read_names(schema) == {"ground_truth_statements": [("G2", ["TP", "FN"])]}
    assert schema["required"] == ["ground_truth_statements"]


def read_cells(schema: dict[str, Any]) -> list[list[Any]]:
    """Return the allowed texts of each cell of each row, None for any text."""
    part = schema["properties"]["verdicts"]
    assert part["minItems"] == part["maxItems"] == len(part["prefixItems"])
    assert all(row["minItems"] == row["maxItems"] == len(row["prefixItems"]) for row in part["prefixItems"])
    return [[cell.get("enum") for cell in row["prefixItems"]] for row in part["prefixItems"]]


def test_rows_name_their_ids_and_labels_and_leave_out_cells_that_are_not_asked_for() -> None:
    prompt = load_prompts()["fused"]
    data = make_data(prompt.variables, 1)
    assert read_cells(prompt.build_schema(data)) == [
        [["A1"], None, ["TP", "FP"], None],
        [["G1"], None, ["TP", "FN"], None],
        [["C1"], None, ["useful", "not_useful"]],
    ]
    assert read_cells(prompt.build_schema(data, only=("A1", "supports G1"))) == [
        [["A1"], None, ["TP", "FP"], ["-"]],
        [["G1"], ["-"], ["-"], None],
    ]


@pytest.mark.parametrize(("name", "n"), [("accuracy", 1), ("rank", 65)])
def test_a_reply_without_lists_and_one_with_very_many_verdicts_keep_the_prompts_schema(name: str, n: int) -> None:
    prompt = load_prompts()[name]
    assert prompt.build_schema(make_data(prompt.variables, n)) == prompt.reply_schema


@pytest.mark.parametrize(("text", "most"), [("2, 3, 5: " * 20, 60), ("春夏秋冬" * 20, 80), ("Yes.", 8)])
def test_the_schema_limits_a_list_of_texts_by_the_length_of_the_text(text: str, most: int) -> None:
    prompt = load_prompts()["extract"]
    schema = prompt.build_schema({"question": "", "text": text})
    assert schema["properties"]["statements"] == {"type": "array", "items": {"type": "string"}, "maxItems": most}
    assert "maxItems" not in str(prompt.reply_schema), "the prompt's own schema is as it was"


KNOWN = load_metrics()
OURS = load_prompts()


def make_rubric(name: str, **criteria: str | None) -> Rubric:
    """A rubric with some criteria and the names they give their scores."""
    return Rubric(
        name=name,
        needs=["answer"],
        criteria={key: Criterion(min=1, max=5, metric=metric) for key, metric in criteria.items()},
    )


def test_each_score_of_a_rubric_becomes_a_metric_that_rests_on_its_grading() -> None:
    made = make_rubric_metrics([*list_rubrics(OURS), make_rubric("tone", warm="", brief="brevity", steer=None)], KNOWN)
    assert sorted(made) == ["brevity", "tone_warm"], "a criterion without a metric only steers rules"
    assert made["brevity"].needs == ("grade_tone",)
    assert "criterion = 'brief'" in made["brevity"].sql


def test_a_name_that_is_taken_is_refused_with_all_others() -> None:
    rubrics = [make_rubric("mrr", x=""), make_rubric("tone", y=""), make_rubric("manner", z="tone")]
    problems = [
        "rubric 'mrr': its score 'mrr' is that of the metric file mrr.sql too; give x another name under `metric`",
        "rubric 'manner': its score 'tone' is that of the rubric 'tone' too; give z another name under `metric`",
    ]
    assert list(find_taken_scores(rubrics, KNOWN)) == problems
    with pytest.raises(MetricFileError) as refused:
        make_rubric_metrics(rubrics, KNOWN)
    assert str(refused.value) == "; ".join(problems)
