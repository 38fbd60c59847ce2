"""The endpoint that answers from documents: what it says over HTTP in each shape, English and Chinese, and how it can
be made to spoil what it writes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import httpx
import orjson
import pytest
from endpoint import Endpoint
from live_runs import judge_samples, lay_out_run, make_sample, make_settings, point_to
from port_answers import port_endpoint
from port_base import EDITS, Edit, Statement, build_base, expect_outcome, find_statements
from port_handbook import LANGUAGES, Language, find_attribute, find_entity
from port_mischief import FILTERS, WAYS, Mischief, Way
from port_questions import ask_for, join_sentences, write_questions
from port_reading import find_claims, find_steps, read_question

from evalhouse.prompts import BlockValue, Item, load_prompts
from evalhouse.prompts.checks import find_value_faults
from evalhouse.tasks.testsets.passages import find_language

FIRST, SECOND = build_base([]), build_base(EDITS)
TEXTS = {path: document.write() for path, document in FIRST.items()}
TEXTS_LATER = {path: document.write() for path, document in SECOND.items()}
KINDS = ("fact", "number", "procedure", "several", "comparison", "conversational", "unanswerable")
PAIRS: Mapping[Language, tuple[str, str]] = {
    "en": ("en/cranes/crane-bertha.md", "en/cranes/crane-conrad.md"),
    "zh": ("zh/吊机/飞燕吊机.md", "zh/吊机/苍山吊机.md"),
}
CONFLICTS: Mapping[Language, tuple[str, str, str]] = {
    "en": ("pewter.closing", "en/locks/pewter-lock.txt", "en/handbook/high-water.txt"),
    "zh": ("yinhe.closing", "zh/船闸/银河船闸.txt", "zh/手册/高水位.txt"),
}


PROMPTS = {language: load_prompts(language) for language in LANGUAGES}
CLIENT = httpx.Client(trust_env=False)


def by_document(base: dict[str, Any]) -> dict[str, list[Statement]]:
    stated: dict[str, list[Statement]] = {path: [] for path in base}
    for one in find_statements(base):
        stated[one.document].append(one)
    return stated


STATED, STATED_LATER = by_document(FIRST), by_document(SECOND)
SUPPORTED = {"unsupported", "unanswered", "wrong_answer"}
ANSWERED = {"unanswered", "wrong_answer", "answerable"}


@pytest.fixture(scope="module", autouse=True)
def _close_client() -> Iterator[None]:
    yield
    CLIENT.close()


def post(endpoint: Endpoint, body: dict[str, Any]) -> httpx.Response:
    return CLIENT.post(f"{endpoint.base_url}/chat/completions", json={"model": "judge", **body})


@pytest.fixture(scope="module")
def endpoint() -> Iterator[Endpoint]:
    with port_endpoint() as (endpoint, _):
        yield endpoint


def number(prefix: str, texts: tuple[str, ...] | list[str]) -> list[Item]:
    return [Item(id=f"{prefix}{place}", text=text) for place, text in enumerate(texts, 1)]


def ask(endpoint: Endpoint, name: str, language: Language = "en", **data: BlockValue) -> dict[str, Any]:
    """The reply to a request as a run would send it, held to the prompt's own schema."""
    prompt = PROMPTS[language][name]
    roles = {"system": "system", "human": "user", "ai": "assistant"}
    body = {
        "messages": [{"role": roles[message.role], "content": message.content} for message in prompt.render(data)],
        "response_format": {"type": "json_schema", "json_schema": {"name": name, "schema": prompt.build_schema(data)}},
    }
    response = post(endpoint, body)
    assert response.status_code == 200, response.text
    reply = orjson.loads(response.json()["choices"][0]["message"]["content"])
    assert list(find_value_faults(prompt.reply_schema, reply, key="reply")) == []
    assert isinstance(reply, dict)
    return reply


def write(endpoint: Endpoint, kind: str, *paths: str, count: int = 2) -> list[dict[str, Any]]:
    data = {"question_kind": kind, "count": str(count), "contexts": number("C", [TEXTS[path] for path in paths])}
    questions = ask(endpoint, "write_question", find_language(paths[0]), **data)["questions"]
    assert isinstance(questions, list)
    return questions


def answer(
    endpoint: Endpoint, question: str, *paths: str, turns: list[str] | None = None, language: Language = "en"
) -> dict[str, Any]:
    roles = ("user", "assistant")
    conversation = "\n".join(f"{roles[place % 2]}: {turn}" for place, turn in enumerate(turns or []))
    contexts = number("C", [TEXTS[path] for path in paths])
    return ask(endpoint, "answer_question", language, question=question, conversation=conversation, contexts=contexts)


def is_right(endpoint: Endpoint, question: str, said: str, truth: str) -> bool:
    """Whether the answer is judged to say all statements of the ground truth."""
    statements = ask(endpoint, "extract", question=question, text=truth)["statements"]
    verdicts = ask(
        endpoint,
        "classify",
        question=question,
        answer_statements=number("A", [said]),
        ground_truth_statements=number("G", statements),
    )["ground_truth_statements"]
    assert len(verdicts) == len(statements)
    return all(verdict["label"] == "TP" for verdict in verdicts)


def list_supporting(endpoint: Endpoint, question: dict[str, Any], contexts: list[str]) -> list[list[str]]:
    """By statement of the ground truth, the contexts that bear it out, alone or together."""
    asked, truth = question["question"], question["ground_truth"]
    statements = ask(endpoint, "extract", question=asked, text=truth)["statements"]
    reply = ask(
        endpoint,
        "attribute",
        question=asked,
        contexts=number("C", contexts),
        answer_statements=[],
        ground_truth_statements=number("G", statements),
    )
    return [verdict["contexts"] or verdict["together"] for verdict in reply["verdicts"]]


def renew(endpoint: Endpoint, statement: Statement, path: str) -> dict[str, Any]:
    entity, attribute = find_entity(statement.fact), find_attribute(statement.fact)
    contexts = number("C", [TEXTS_LATER[path]]) if path in TEXTS_LATER else []
    return ask(
        endpoint,
        "renew_question",
        entity.language,
        question=ask_for(entity, attribute),
        conversation="",
        ground_truth=attribute.state(entity, statement.value),
        old_contexts=number("O", [statement.text]),
        contexts=contexts,
    )


def list_touched() -> list[tuple[Edit, Statement]]:
    """For each edit the first fact that it touches and that was stated before, as it was stated."""
    stated = {(one.fact, one.document): one for one in reversed(find_statements(FIRST))}
    pairs = [(edit, stated.get((fact, edit.document))) for edit in EDITS for fact in edit.facts[:1]]
    return [(edit, statement) for edit, statement in pairs if statement]


@pytest.mark.parametrize(
    ("texts", "statements"), [(TEXTS, STATED), (TEXTS_LATER, STATED_LATER)], ids=["first", "second"]
)
def test_whatever_a_document_states_is_found_in_its_text_and_nothing_else(
    texts: dict[str, str], statements: dict[str, list[Statement]]
) -> None:
    for path, text in texts.items():
        stated = statements[path]
        values = sorted((one.fact, one.value) for one in stated if not one.fact.endswith(".steps"))
        assert sorted((claim.fact, claim.value) for claim in find_claims(text)) == values
        steps = [one.value for one in stated if one.fact.endswith(".steps")]
        assert [line for found in find_steps(text) for line in found.lines] == steps


@pytest.mark.parametrize("kind", KINDS)
def test_every_question_that_can_be_written_is_understood(kind: str) -> None:
    written = [question for path, text in TEXTS.items() for question in write_questions(kind, 8, {"C1": text})]
    assert len(written) >= {"procedure": 20, "several": 0, "comparison": 30}.get(kind, 100)
    for question in written:
        demand = read_question(question.question, "\n".join(question.turns))
        assert demand is not None, question.question
        assert set(demand.facts) == set(question.facts)


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_good_question_passes_everything_that_it_is_put_to(endpoint: Endpoint, kind: str, language: Language) -> None:
    paths = PAIRS[language]
    written = write(endpoint, kind, *paths)
    assert len(written) == 2
    assert len({question["question"] for question in written}) == 2
    for question in written:
        truth, turns = question["ground_truth"], question["turns"]
        assert find_language(question["question"]) == language
        assert (len(turns) == 2) == (kind == "conversational")
        for quote in question["quotes"]:
            assert quote["quote"] in TEXTS[paths[int(quote["id"][1:]) - 1]]
        said = answer(endpoint, question["question"], *paths, turns=turns, language=language)
        if kind == "unanswerable":
            assert (truth, question["quotes"], said["basis"], said["answer"]) == ("", [], "none", "")
            continue
        assert truth not in question["question"]
        assert (said["basis"], bool(said["used"])) == ("contexts", True)
        assert is_right(endpoint, question["question"], said["answer"], truth)
        assert all(list_supporting(endpoint, question, [TEXTS[path] for path in paths]))
        assert all(list_supporting(endpoint, question, [quote["quote"] for quote in question["quotes"]]))
        others = [path for path in TEXTS if path.startswith(paths[0][:6]) and path not in paths]
        assert answer(endpoint, question["question"], *others, turns=turns)["basis"] == "none"
        assert not any(list_supporting(endpoint, question, [TEXTS[path] for path in others]))


@pytest.mark.parametrize("language", LANGUAGES)
def test_several_and_comparison_need_both_contexts(endpoint: Endpoint, language: Language) -> None:
    first, second = PAIRS[language]
    for kind in ("several", "comparison"):
        (question,) = write(endpoint, kind, first, second, count=1)
        assert {quote["id"] for quote in question["quotes"]} == {"C1", "C2"}
        assert answer(endpoint, question["question"], first)["basis"] == "none"
        supporting = list_supporting(endpoint, question, [TEXTS[first], TEXTS[second]])
        assert {context for contexts in supporting for context in contexts} == {"C1", "C2"}
    assert supporting[-1] == ["C1", "C2"], "which is more, both say together"
    assert write(endpoint, "several", first) == []


def test_rows_of_a_table_are_asked_for_and_quoted(endpoint: Endpoint) -> None:
    (question,) = write(endpoint, "number", "en/overview/charges.md", count=1)
    header, row = (quote["quote"] for quote in question["quotes"])
    assert header == "| Name | Charge (crowns) |"
    assert row in TEXTS["en/overview/charges.md"].split("\n")
    assert list_supporting(endpoint, question, [row, f"Charges\n{header} … {row}"]) == [["C2"]]


def test_a_wrapped_sentence_is_quoted_with_its_line_break_and_told_in_one_line(endpoint: Endpoint) -> None:
    questions = write(endpoint, "fact", "en/locks/marl-lock.txt", count=10)
    (broken,) = [question for question in questions if "chamber" in question["question"]]
    assert broken["quotes"][0]["quote"] == "The chamber of Marl Lock is\n96 m long."
    assert broken["ground_truth"] == "The chamber of Marl Lock is 96 m long."


def test_what_everybody_knows_is_answered_without_documents(endpoint: Endpoint) -> None:
    for path in ("en/handbook/units.md", "zh/手册/单位与用语.md"):
        for question in write(endpoint, "fact", path, count=9):
            said = answer(endpoint, question["question"])
            assert (said["basis"], said["used"]) == ("knowledge", [])
            assert is_right(endpoint, question["question"], said["answer"], question["ground_truth"])


def test_what_is_known_without_documents_can_be_chosen() -> None:
    with port_endpoint(knowledge=["alder.draught"]) as (endpoint, _):
        said = answer(endpoint, "What is the permitted draught at Alder Quay?")
        assert (said["basis"], said["answer"]) == ("knowledge", "Vessels at Alder Quay may draw up to 4.2 m.")
        assert answer(endpoint, "How much is one nautical mile?")["basis"] == "none"


@pytest.mark.parametrize("language", LANGUAGES)
def test_where_documents_disagree_both_are_told_and_neither_is_right(endpoint: Endpoint, language: Language) -> None:
    fact, own, other = CONFLICTS[language]
    entity, attribute = find_entity(fact), find_attribute(fact)
    question, truth = ask_for(entity, attribute), attribute.state(entity, entity.values["closing"])
    both = answer(endpoint, question, own, other)
    assert both["used"] == ["C1", "C2"]
    assert not is_right(endpoint, question, both["answer"], truth)
    assert is_right(endpoint, question, answer(endpoint, question, own)["answer"], truth)
    assert not is_right(endpoint, question, answer(endpoint, question, other)["answer"], truth)
    asked = {"question": question, "ground_truth": truth}
    assert list_supporting(endpoint, asked, [TEXTS[other], TEXTS[own]]) == [["C2"]]


@pytest.mark.parametrize(("edit", "statement"), list_touched(), ids=lambda value: getattr(value, "kind", ""))
def test_what_became_of_a_question_is_seen_in_the_documents_alone(
    endpoint: Endpoint, edit: Edit, statement: Statement
) -> None:
    later = {(one.fact, path) for path, stated in STATED_LATER.items() for one in stated}
    moved = next((path for path in (edit.to, edit.document) if (statement.fact, path) in later), edit.document)
    path = edit.document if edit.kind == "contradicted" else moved
    reply = renew(endpoint, statement, path)
    attribute, entity = find_attribute(statement.fact), find_entity(statement.fact)
    match edit.outcome:
        case "void":
            assert (reply["verdict"], reply["ground_truth"], reply["quotes"]) == ("void", "", [])
        case "changed":
            assert (reply["verdict"], reply["ground_truth"]) == ("changed", attribute.state(entity, edit.value))
        case _ if edit.kind == "deleted_sentence":
            assert reply["verdict"] == "void", "this page says it no more"
        case _:
            assert reply["verdict"] == "still_true"
    for quote in reply["quotes"]:
        assert quote["quote"] in TEXTS_LATER[path]


def test_a_procedure_a_follow_up_and_an_unanswerable_question_are_renewed(endpoint: Endpoint) -> None:
    for kind in ("procedure", "conversational", "comparison", "unanswerable"):
        (question,) = write(endpoint, kind, *PAIRS["en"], count=1)
        data = {"question": question["question"], "conversation": "", "ground_truth": question["ground_truth"]}
        old = number("O", [quote["quote"] for quote in question["quotes"]])
        contexts = number("C", [TEXTS_LATER[path] for path in PAIRS["en"]])
        reply = ask(endpoint, "renew_question", **data, old_contexts=old, contexts=contexts)
        assert (reply["verdict"], reply["ground_truth"]) == ("still_true", question["ground_truth"])
        gone = ask(endpoint, "renew_question", **data, old_contexts=old, contexts=[])
        assert gone["verdict"] == ("still_true" if kind == "unanswerable" else "void")
    builder = ask_for(find_entity("lantern"), find_attribute("lantern.builder"))
    data = {"question": builder, "conversation": "", "ground_truth": ""}
    contexts = number("C", [TEXTS_LATER["en/quays/lantern-quay.md"]])
    reply = ask(endpoint, "renew_question", **data, old_contexts=[], contexts=contexts)
    assert (reply["verdict"], reply["ground_truth"]) == (
        "changed",
        "Lantern Quay was built by the millwrights of Maldry.",
    )


def test_requests_are_known_by_their_blocks_where_no_schema_is_sent(endpoint: Endpoint) -> None:
    prompts = PROMPTS["en"]
    data: dict[str, dict[str, BlockValue]] = {
        "write_question": {"question_kind": "fact", "count": "1", "contexts": number("C", ["It rains."])},
        "answer_question": {"question": "Why?", "conversation": "", "contexts": []},
        "renew_question": {
            "question": "Why?", "conversation": "", "ground_truth": "So.", "old_contexts": [], "contexts": [],
        },
    }  # fmt: skip
    for name, blocks in data.items():
        messages = [{"role": "user", "content": prompts[name].render(blocks)[-1].content}]
        before = endpoint.stats.kinds[name]
        response = post(endpoint, {"messages": messages})
        reply = orjson.loads(response.json()["choices"][0]["message"]["content"])
        assert list(find_value_faults(prompts[name].reply_schema, reply, key="reply")) == []
        assert endpoint.stats.kinds[name] == before + 1


def test_faults_come_on_top_of_its_replies() -> None:
    faults = {"server_error": 0.1, "rate_limit": 0.1, "truncated": 0.1}
    messages = PROMPTS["en"]["write_question"].render(
        {"question_kind": "fact", "count": "1", "contexts": number("C", [TEXTS[PAIRS["en"][0]]])}
    )
    body = {"messages": [{"role": "user", "content": messages[-1].content}]}
    with port_endpoint(faults=faults) as (endpoint, _):
        statuses = Counter(post(endpoint, body).status_code for _ in range(100))
        assert endpoint.stats.faults.keys() == faults.keys()
        assert 15 <= endpoint.stats.faults.total() <= 45
    assert statuses[429] + statuses[500] + endpoint.stats.faults["truncated"] == endpoint.stats.faults.total()


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("way", WAYS)
def test_each_way_of_spoiling_does_what_its_filter_looks_for(way: Way, language: Language) -> None:
    paths = PAIRS[language]
    kind = "unanswerable" if way == "answerable" else "fact"
    # A duplicate needs something good that it repeats.
    shares: dict[Way, float] = {way: 0.5} if FILTERS[way] == "duplicate" else {way: 1.0}
    with port_endpoint(mischief=Mischief(shares=shares)) as (endpoint, answers):
        written = write(endpoint, kind, *paths, count=8)
        spoilt = answers.spoilt
        assert [one.way for one in spoilt] == [way] * len(spoilt)
        assert len(spoilt) >= 2
        assert {one.question for one in spoilt} <= {question["question"] for question in written}
        n_spoilt = len(spoilt)
        assert write(endpoint, kind, *paths, count=8) == written
        assert len(spoilt) == n_spoilt
        for one in spoilt[:2]:
            question = next(question for question in written if question["question"] == one.question)
            quotes = [quote["quote"] for quote in question["quotes"]]
            verbatim = all(any(quote in TEXTS[path] for path in paths) for quote in quotes)
            supported = FILTERS[way] in SUPPORTED and all(list_supporting(endpoint, question, quotes))
            assert verbatim == (way != "not_verbatim")
            said = answer(endpoint, one.question, *paths, language=language) if FILTERS[way] in ANSWERED else {}
            match FILTERS[way]:
                case "form" if way == "empty":
                    assert one.question == ""
                case "form" if way == "other_language":
                    assert find_language(one.question) != language
                case "form":
                    assert ("passage" in one.question) or ("段落" in one.question)
                case "leak":
                    assert one.ground_truth in one.question
                case "duplicate":
                    twins = [other["question"] for other in written if other["ground_truth"] == one.ground_truth]
                    assert len(twins) >= 2
                    assert (set(twins) == {one.question}) == (way == "duplicate")
                case "unsupported":
                    assert not supported
                case "unanswered":
                    assert supported
                    assert said["basis"] == "none"
                case "wrong_answer":
                    assert supported
                    assert said["basis"] == "contexts"
                    assert not is_right(endpoint, one.question, said["answer"], one.ground_truth)
                case "answerable":
                    assert (one.ground_truth, said["basis"]) == ("", "contexts")


def test_shares_are_kept_to_and_the_same_questions_are_spoilt_whatever_their_order() -> None:
    mischief = Mischief(shares={"leak": 0.2, "unsupported": 0.1})
    contexts = [{"C1": text} for text in TEXTS.values()]
    written = [(write_questions("fact", 5, context), context) for context in contexts]
    spoilt = {one for questions, context in written for one in mischief.spoil(questions, context, {})[1]}
    ways, n = Counter(one.way for one in spoilt), sum(len(questions) for questions, _ in written)
    assert n > 250
    assert 0.13 <= ways["leak"] / n <= 0.27
    assert 0.05 <= ways["unsupported"] / n <= 0.15
    assert spoilt == {one for questions, context in written[::-1] for one in mischief.spoil(questions, context, {})[1]}
    other = Mischief(seed=1, shares=mischief.shares)
    assert spoilt != {one for questions, context in written for one in other.spoil(questions, context, {})[1]}
    for questions, context in written:
        assert Mischief().spoil(questions, context, {}) == (questions, [])


async def test_a_run_is_judged_by_what_the_documents_say(endpoint: Endpoint, tmp_path: Any) -> None:  # noqa: ANN401
    path = PAIRS["en"][0]
    truth = "Crane Bertha lifts up to 40 tonnes. The jib of Crane Bertha reaches 28 m."
    sample = make_sample(
        question="How much does Crane Bertha lift, and how far does the jib of Crane Bertha reach?",
        answer="The greatest load of Crane Bertha is 40 tonnes. The reach of Crane Bertha comes to 30 m.",
        ground_truth=truth,
        contexts=[TEXTS[path], TEXTS[PAIRS["en"][1]]],
    )
    point_to(endpoint.base_url)
    async with lay_out_run(tmp_path, make_settings()) as live_run:
        (work,) = await judge_samples(live_run, [sample])
    labels = {row["statement_id"]: row["label"] for row in work.rows["classifications"]}
    assert labels == {"A1": "TP", "A2": "FP", "G1": "TP", "G2": "FN"}
    assert [row["useful"] for row in work.rows["context_verdicts"]] == [True, False]


def test_join_sentences_and_outcomes_agree_over_languages() -> None:
    assert join_sentences(["A.", "B."]) == "A. B."
    assert join_sentences(["甲。", "乙。"]) == "甲。乙。"
    assert expect_outcome(["yinhang.price"], ["zh/总览/服务收费.md"]) == "changed"
