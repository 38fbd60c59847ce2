"""The second reading of a reply: one written otherwise gives what was meant, or is refused, and never anything else."""

import json
import re
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from live_runs import PROMPTS

from evalhouse.prompts import BlockValue, Item
from evalhouse.tasks.asking.asker import read_twice
from evalhouse.tasks.asking.splitting import HEADING
from evalhouse.tasks.asking.verdicts import parse_object, read_statements, read_verdicts
from evalhouse.tasks.grade import read_grades
from evalhouse.tasks.judge.protocol import Question, UnusableReply

MATERIAL = (
    r"The ratio is \frac{1}{2}, \(K_\alpha\), \theta, \nu, \rho, \beta. It is in C:\users\new, C:\temp\bin and "
    r"\\host\share. The pattern is \d+\b\t, the price \$5."
)
LABELS = {"A1": ("TP", "FP"), "G1": ("TP", "FN")}
USEFUL = {"C1": ("useful", "not_useful"), "C2": ("useful", "not_useful")}
SUPPORT: dict[str, tuple[str, ...]] = {"A1": (), "A2": ()}
ROWS = {"A1": ("TP", "FP"), "supports A1": (), "C1": ("useful", "not_useful")}
RUBRIC = PROMPTS["accuracy"].rubric
assert RUBRIC is not None


def ask(prompt: str, *ids: str) -> Question:
    data: dict[str, BlockValue] = {
        "text": MATERIAL,
        "items": [Item(id=item_id, text=f"It is {item_id}.") for item_id in ids],
    }
    return Question(step=prompt, sample_id="s1", prompt=PROMPTS[prompt], data=data)


Case = tuple[Question, Callable[[str], Any], dict[str, Any]]
REASON = "It's \"so\", [A1]: {or} 'not', // no # comment, at 5 %.\nNext: a\tb."
CASES: dict[str, Case] = {
    "extract": (ask("extract"), read_statements, {"statements": ["It is 40 m, high.", REASON, "是的，它很高。"]}),
    "classify": (
        ask("classify", "A1", "G1"),
        lambda text: read_verdicts(text, LABELS),
        {"answer_statements": [{"id": "A1", "reason": REASON, "label": "FP"}],
         "ground_truth_statements": [{"id": "G1", "reason": "as A1", "label": "TP"}]},
    ),
    "rank": (
        ask("rank", "C1", "C2"),
        lambda text: read_verdicts(text, USEFUL),
        {"verdicts": [{"id": "C1", "reason": "", "label": "not_useful"},
                      {"id": "C2", "reason": REASON, "label": "useful"}]},
    ),
    "attribute": (
        ask("attribute", "A1", "A2", "C1", "C2"),
        lambda text: read_verdicts(text, SUPPORT, {"C1", "C2"}),
        {"verdicts": [{"id": "A1", "reason": REASON, "contexts": ["C1"], "together": []},
                      {"id": "A2", "reason": "both", "contexts": [], "together": ["C1", "C2"]}]},
    ),
    "fused": (
        ask("fused", "A1", "C1", "G1"),
        lambda text: read_verdicts(text, ROWS, {"C1"}, sent=("A1", "C1", "G1")),
        {"verdicts": [["A1", "G1", "TP", "none: It's not."], ["C1", REASON, "not_useful"]]},
    ),
    "accuracy": (
        ask("accuracy"),
        lambda text: read_grades(text, RUBRIC, has_contexts=True),
        {"accuracy": {"reason": REASON, "rating": 7}},
    ),
}  # fmt: skip


def dump(reply: object) -> str:
    return json.dumps(reply, ensure_ascii=False)


def change(reply: object, key: str, make: Callable[[Any], object]) -> object:
    """The reply with every value under a key changed; in a row the label is the third cell."""
    if isinstance(reply, dict):
        return {name: make(value) if name == key else change(value, key, make) for name, value in reply.items()}
    if isinstance(reply, list) and key == "label" and len(reply) > 2 and isinstance(reply[0], str):
        return [*reply[:2], make(reply[2]), *reply[3:]] if reply[2].lower() in ("tp", "not_useful") else reply
    return [change(value, key, make) for value in reply] if isinstance(reply, list) else reply


READ: dict[str, Callable[[Any], str]] = {
    "trailing comma": lambda reply: re.sub(r"(?<![\[{])\n(\s*)([}\]])", r",\n\1\2", json.dumps(reply, indent=1)),
    "trailing comma in prose": lambda reply: f"Sure, {{here}} it is: {dump(reply)[:-1]},}}\nDone.",
    "trailing comma in a fence": lambda reply: f"```json\n{dump(reply)[:-1]} , }}\n```",
    "Python": repr,
    "Python in prose": lambda reply: f"Here's the result: {reply!r} - that's it.",
    "Python after thoughts": lambda reply: f"<think>{reply!r}? No.</think>\n{reply!r}",
    "single quotes around keys": lambda reply: re.sub(r'"(\w+)":', r"'\1':", dump(reply)),
    "comment before": lambda reply: f"// verdicts\n{dump(reply)}",
    "comment within": lambda reply: dump(reply).replace("{", "{ /* a, b: */ ", 1),
    "Python comment": lambda reply: json.dumps(reply, indent=1).replace("{\n", "{ # it's one\n", 1),
    "comment at the end of a line": lambda reply: json.dumps(reply, indent=1).replace(",\n", ", // so\n", 1),
    "text of JSON": lambda reply: json.dumps(dump(reply)),
    "text of JSON in a fence": lambda reply: f"```\n{json.dumps(json.dumps(reply))}\n```",
    "values as texts of JSON": lambda reply: dump({name: dump(value) for name, value in reply.items()}),
    "in a list": lambda reply: dump([reply]),
    "under a key": lambda reply: dump({"result": reply}),
    "under a key in prose": lambda reply: f"My reply: {dump({'output': reply})}",
    "as a tool's arguments": lambda reply: dump({"name": "reply", "parameters": reply}),
    "as a tool's arguments in a text": lambda reply: dump({"name": "reply", "arguments": dump(reply)}),
    "labels in lower case": lambda reply: dump(change(reply, "label", str.lower)),
    "labels with blanks": lambda reply: dump(change(reply, "label", lambda label: f" {label}\n")),
    "labels with a full stop": lambda reply: dump(change(reply, "label", lambda label: f"{label}.")),
    "bold labels": lambda reply: dump(change(reply, "label", lambda label: f"**{label}**.")),
    "labels as code": lambda reply: dump(change(reply, "label", lambda label: f"`{label.title()}`")),
    "labels with blanks for lines": lambda reply: dump(change(reply, "label", lambda label: label.replace("_", " "))),
    "ids in lower case": lambda reply: dump(change(reply, "id", str.lower)),
    "numbers as texts": lambda reply: dump(change(reply, "rating", str)),
    "numbers in brackets": lambda reply: dump(change(reply, "rating", "[[{}]]".format)),
    "numbers of ten": lambda reply: dump(change(reply, "rating", " {} / 10 ".format)),
    "bold numbers": lambda reply: dump(change(reply, "rating", "**{}.0**".format)),
    "two at once": lambda reply: f"```python\n{[change(reply, 'label', str.lower)]!r}\n```",
}  # fmt: skip


@pytest.mark.parametrize("kind", READ)
@pytest.mark.parametrize("case", CASES)
def test_reply_with_slips_of_writing_gives_what_was_meant(case: str, kind: str) -> None:
    question, read, reply = CASES[case]
    written = READ[kind](reply)
    value, repair = read_twice(written, read, question)
    assert value == read(dump(reply))
    try:
        is_plain = read(written) == value
    except UnusableReply:
        is_plain = False
    assert is_plain == (repair is None)


REFUSED: dict[str, Callable[[Any], str]] = {
    "cut off": lambda reply: dump(reply)[:-2],
    "cut off with a comma": lambda reply: dump(reply)[: dump(reply).rfind(",") + 1],
    "a comma missing": lambda reply: json.dumps(reply, indent=1).replace(",\n", "\n", 1) + " ",
    "two commas": lambda reply: dump(reply)[:-1] + ",,}",
    "a quotation mark within": lambda reply: dump(reply).replace('\\"', '"'),
    "two replies": lambda reply: f"{reply!r}\nNo, rather: {reply!r}",
    "a draft and a broken one": lambda reply: f"{dump(reply)}\nNo, rather: {repr(reply)[:-3]}",
    "two under keys": lambda reply: dump({"first": reply, "second": reply}),
    "thoughts that do not end": lambda reply: f"<think>{reply!r}",
}


@pytest.mark.parametrize("kind", REFUSED)
@pytest.mark.parametrize("case", CASES)
def test_reply_with_two_readings_is_refused(case: str, kind: str) -> None:
    question, read, reply = CASES[case]
    with pytest.raises(UnusableReply):
        read_twice(REFUSED[kind](reply), read, question)


@pytest.mark.parametrize("label", ["true positive", "yes", "not TP", "!TP", "TP?", "TP/FP", "TP or FP", "T P", "", 1])
def test_label_that_was_not_offered_stays_refused(label: object) -> None:
    question, read, _ = CASES["classify"]
    reply = {"answer_statements": [{"id": "A1", "reason": "r", "label": label}], "ground_truth_statements": []}
    with pytest.raises(UnusableReply):
        read_twice(dump(reply), read, question)


@pytest.mark.parametrize(
    "rating",
    ["seven", "7.5", 7.5, "11", "7 or 8", "7-8", "7/5", "70 %", "7 - good", [7], None, True, "9" * 400,
     "7/" + "9" * 5000],
)  # fmt: skip
def test_rating_that_may_mean_something_else_stays_refused(rating: object) -> None:
    question, read, _ = CASES["accuracy"]
    with pytest.raises(UnusableReply):
        read_twice(dump({"accuracy": {"reason": "r", "rating": rating}}), read, question)


ONE = {"id": "C1", "reason": "r", "label": "useful"}
SUPPORTED: dict[str, object] = {"id": "A1", "reason": "r", "contexts": ["C1", "C2"], "together": []}


@pytest.mark.parametrize(
    ("prompt", "written", "meant"),
    [
        ("rank", ONE, {"verdicts": [ONE]}),
        ("rank", {"verdicts": ONE}, {"verdicts": [ONE]}),
        ("rank", [ONE], {"verdicts": [ONE]}),
        ("attribute", SUPPORTED | {"contexts": ["c1", "[C2]"]}, {"verdicts": [SUPPORTED]}),
        ("extract", ["It is so.", "It is red."], {"statements": ["It is so.", "It is red."]}),
        ("extract", {"statements": [{"text": "It is."}, "It is red."]}, {"statements": ["It is.", "It is red."]}),
        ("accuracy", {"reason": "r", "rating": 4}, {"accuracy": {"reason": "r", "rating": 4}}),
        ("accuracy", {"accuracy": [{"reason": "r", "rating": 4}]}, {"accuracy": {"reason": "r", "rating": 4}}),
    ],
)  # fmt: skip
def test_one_wrapper_too_few_or_too_many_is_read(prompt: str, written: object, meant: object) -> None:
    question, read, _ = CASES[prompt]
    value, repair = read_twice(dump(written), read, question)
    assert value == read(dump(meant))
    assert repair is not None
    assert "wrapper" in repair
    if read is not read_statements and (not isinstance(written, dict) or len(written) > 1):
        with pytest.raises(UnusableReply):  # in prose it may be a quotation
            read_twice(f"It holds {dump(written)}", read, question)


@pytest.mark.parametrize(
    ("written", "meant"), [("yes", True), ("No.", False), (" TRUE ", True), ("**false**", False), ("是", True)]
)
def test_yes_and_no_are_read_where_a_flag_is_asked_for(written: str, meant: bool) -> None:
    question = ask("accuracy_binary")
    rubric = question.prompt.rubric if question.prompt else None
    assert rubric is not None
    (name,) = rubric.criteria

    def read(verdict: object) -> tuple[object, str | None]:
        reply = dump({name: {"reason": "r", "verdict": verdict}})
        return read_twice(reply, lambda text: read_grades(text, rubric, has_contexts=True), question)

    assert read(written) == (read(meant)[0], "yes_no")
    for unclear in ("yes and no", "yes?", 1, None):
        with pytest.raises(UnusableReply):
            read(unclear)


def test_verdict_of_another_case_completes_a_reply_that_can_be_read_in_part() -> None:
    question, read, reply = CASES["rank"]
    reply = json.loads(dump(reply))
    reply["verdicts"][1]["label"] = "Useful."
    value, repair = read_twice(dump(reply), read, question)
    assert (set(value.by_id), value.missing, repair) == ({"C1", "C2"}, (), "label")
    reply["verdicts"][1]["label"] = "perhaps"
    value, repair = read_twice(dump(reply), read, question)
    assert (set(value.by_id), value.missing, repair) == ({"C1"}, ("C2",), None)


@pytest.mark.parametrize("heading", ["Here are the statements:", "**Statements:**", "## Facts", "以下是陈述："])
def test_heading_among_statements_is_left_out(heading: str) -> None:
    question, read, _ = CASES["extract"]
    assert read_twice(dump({"statements": [heading, "It is red."]}), read, question) == (["It is red."], "heading")
    assert read_twice(dump({"statements": [heading]}), read, question) == ([heading], None), "it may be all there is"
    assert read_twice(dump({"statements": ["It is at 10:30 :)", "It is #1."]}), read, question)[1] is None


def write_raw(text: str) -> str:
    """A text in quotation marks as a model writes it that does not double backslashes."""
    return '"' + text.replace('"', '\\"').replace("\n", "\\n") + '"'


def read_texts(text: str) -> Any:  # noqa: ANN401
    texts = parse_object(text, "statements").get("statements")
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise UnusableReply("no list of texts")
    return texts


def read_one(written: str, *, material: str = MATERIAL) -> tuple[str, str | None]:
    question = Question(step="extract", sample_id="s1", prompt=PROMPTS["extract"], data={"text": material})
    value, repair = read_twice(f'{{"statements": [{written}]}}', lambda text: read_texts(text)[0], question)
    assert isinstance(value, str)
    return value, repair


TEXTS = [
    r"It is \frac{1}{2}.", r"\theta is \nu.", r"The \rho of \(K_\alpha\)", r"C:\users\new", r"C:\temp\bin",
    r"\\host\share", r"\d+\b\t", r"\$5 and \beta", r'say "\theta"', "first \\theta\nThen \\rho",
]  # fmt: skip


@pytest.mark.parametrize("text", TEXTS)
def test_words_of_the_material_keep_their_backslashes(text: str) -> None:
    assert read_one(write_raw(text)) == (text, "backslash")
    assert read_one(json.dumps(text)) == (text, None)
    assert read_one(repr(text))[0] == text


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (r'"the \theta, \frac12 and \beta"', r"the \theta, \frac12 and \beta"),  # no words without the first letter
        (r'"a\tb, c\nd \u00e9 \/ \\ \" "', 'a\tb, c\nd é / \\ " '),
        (r'"Plan:\nto do, \tan"', "Plan:\nto do, \tan"),
        (r'"\(x\) holds.\nThen \nu"', "\\(x\\) holds.\nThen \\nu"),
        (r'"it\'s"', "it's"),
        (r'"100\%, \alpha_1, \#"', r"100\%, \alpha_1, \#"),
        (r'"\ud83d\ude00 is fine, \ud83d is half"', "😀 is fine, \ufffd is half"),
        ('"one\nline"', "one\nline"),
    ],
)
def test_backslashes_without_proof_follow_the_rule(written: str, meant: str) -> None:
    assert read_one(written, material="Nothing of the kind.")[0] == meant


def test_page_breaks_of_the_material_stay_what_they_are() -> None:
    assert read_one(r'"\fPage 2"', material="Page 1\fPage 2") == ("\fPage 2", None)
    assert read_one(r'"\fPage 2"', material="Page 1") == (r"\fPage 2", "backslash")


@given(
    st.lists(
        st.text(st.sampled_from("ab\\\"'\n\t ,:{}[]/#uxnrtf0é否"), max_size=12).filter(
            lambda text: not HEADING.search(text)
        ),
        max_size=4,
    )
)
def test_any_text_is_read_as_it_was_meant_or_refused(texts: list[str]) -> None:
    """Written by JSON's rules and by Python's, with commas too many, with comments, wrapped, as a text of JSON."""
    question = replace(CASES["extract"][0], data={"text": "ab."})
    reply = {"statements": texts}
    for kind in READ.values():
        value, _ = read_twice(kind(reply), read_texts, question)
        assert value == texts, kind(reply)


@pytest.mark.parametrize(
    "reply",
    ["{" * 200_000, '{"a":' * 50_000, "{}" * 5000 + "{", '{"' * 100_000, "[" * 200_000, "#" * 100_000, "/*" * 50_000,
     '{"statements": ["' + r"\theta \x" * 20_000, "{'" + "\\" * 100_000, '"' + "{ " * 100_000],
)  # fmt: skip
def test_a_text_made_of_marks_is_refused_in_no_time(reply: str) -> None:
    started = time.monotonic()
    with pytest.raises(UnusableReply):
        read_twice(reply, read_statements, CASES["extract"][0])
    assert time.monotonic() - started < 2.0
