"""Evidence and scores: what makes a text support a statement, or stop supporting it, and which contexts help."""

import pytest

from evalhouse.tasks.lexical.match import (
    SUPPORT_THRESHOLD,
    Evidence,
    Support,
    compare_statements,
    rate_contexts,
    score_contexts,
)

TEXT = (
    "The Halden bridge was opened on 4 June 1931. It is 1,200 metres long and carries two railway tracks. "
    "The engineer Ada Lindqvist designed it. The bridge does not carry cars."
)
TEXT_ZH = "海登大桥于1931年6月4日通车，全长1200米。设计者是林德工程师。该桥不允许汽车通行。2020年客流量增长了30%。"


def score_support(statement: str, text: str, question: str = "") -> Support:
    return score_contexts([statement], [text], question)[0][0]


def find_evidence(statement: str, text: str = TEXT) -> Evidence:
    evidence = score_support(statement, text).evidence
    assert evidence is not None
    return evidence


@pytest.mark.parametrize(
    "statement",
    [
        "The Halden bridge was opened on 4 June 1931.",
        "The Halden bridge opened in June 1931.",
        "Ada Lindqvist designed the bridge.",
        "The bridge is 1200 metres long.",
        "It carries railway tracks.",
        "The Haldn bridge was designed by the engineer Lindqvist.",
        "The bridge does not carry cars.",
    ],
)
def test_what_the_text_says_is_supported(statement: str) -> None:
    assert score_support(statement, TEXT).supported


@pytest.mark.parametrize(
    "statement",
    [
        "Bananas grow in warm countries.",
        "The tunnel under the river was closed by the mayor.",
        "Erik Dahl painted a portrait of the king.",
        "苹果是一种水果。",
    ],
)
def test_what_the_text_does_not_say_is_not_supported(statement: str) -> None:
    assert not score_support(statement, TEXT).supported


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("The bridge is 1,200 metres long.", "The bridge is 1,500 metres long."),
        ("The engineer Ada Lindqvist designed it.", "The engineer Ada Bergman designed it."),
        ("The bridge does not carry cars.", "The bridge does carry cars."),
        ("The Halden bridge was opened on 4 June 1931.", "The Halden bridge was closed on 4 June 1931."),
        ("The Halden bridge was opened on 4 June 1931.", "The Halden bridge was opened on 4 July 1931."),
        ("It carries two railway tracks.", "It carries two railway wagons."),
    ],
)
def test_one_changed_word_lowers_the_score(right: str, wrong: str) -> None:
    assert score_support(wrong, TEXT).score < score_support(right, TEXT).score


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("海登大桥全长1200米。", "海登大桥全长1500米。"),
        ("该桥不允许汽车通行。", "该桥允许汽车通行。"),
        ("客流量增长了百分之三十。", "客流量增长了百分之五十。"),
        ("客流量增长了30%。", "客流量下降了30%。"),
    ],
)
def test_one_changed_chinese_word_lowers_the_score(right: str, wrong: str) -> None:
    assert score_support(right, TEXT_ZH).supported
    assert score_support(wrong, TEXT_ZH).score < score_support(right, TEXT_ZH).score


def test_a_rival_number_is_worse_than_a_number_that_is_missing() -> None:
    missing = score_support("The bridge is 1,500 metres long.", "The bridge is many metres long.")
    assert score_support("The bridge is 1,500 metres long.", "The bridge is 1,200 metres long.").score < missing.score


def test_what_another_context_holds_is_less_foreign() -> None:
    statement = "The bridge was opened in June by Ada Lindqvist in Oslo."
    chunk = "The bridge was opened by Ada Lindqvist."
    alone = score_contexts([statement], [chunk, "Bread is soft."])[0]
    with_title = score_contexts([statement], [chunk, "Oslo news, June"])[0]
    assert with_title[0].score > alone[0].score == score_support(statement, chunk).score
    assert not with_title[1].supported


def test_contexts_are_judged_one_by_one() -> None:
    halves = ["The tall Halden bridge was opened by the queen.", "Fireworks lit the old harbour at midnight."]
    both = "The tall Halden bridge was opened by the queen and fireworks lit the old harbour at midnight."
    assert [support.supported for support in score_contexts([both], halves)[0]] == [False, False]
    assert score_support(both, " ".join(halves)).supported


def test_a_long_statement_may_be_found_all_over_a_text() -> None:
    facts = [
        "Ada Lindqvist drew the long Halden bridge.",
        "Two railway tracks cross the deep valley below.",
        "Granite pillars carry heavy steel arches.",
        "The king opened the station in June 1931.",
    ]
    rain = " ".join(["Rain fell on the quiet hills again."] * 3)
    scattered = f" {rain} ".join(facts)
    long_statement = " and ".join(fact.rstrip(".") for fact in facts)
    evidence = find_evidence(long_statement, scattered)
    assert evidence.cover < 0.7
    assert evidence.cover_text > 0.95
    assert score_support(long_statement, scattered).supported


@pytest.mark.parametrize(
    ("statement", "text"),
    [
        ("The movie was released in spring.", "The film was released in spring."),
        ("The colour is grey.", "The color is grey."),
        ("WHO published the report.", "The World Health Organization published the report."),
        ("The Rail Freight Group published the report.", "RFG published the report."),
        ("It opened in April 2018.", "It opened: 2018-04-26."),
        ("The FerryLine network is new.", "The ferry line network is new."),
        ("Twelve ships sailed.", "12 ships sailed."),
        ("Sales rose by 5 percent.", "Sales rose by 5%."),
    ],
)
def test_variants_count_as_found(statement: str, text: str) -> None:
    assert find_evidence(statement, text).cover > 0.75


def test_evidence_must_stand_close_together() -> None:
    scattered = "Ada lives here. " + "Rain fell again on the hills. " * 5 + "Some tracks rust. " + "Wind blew. " * 5
    assert (
        score_support("Ada tracks hills", scattered).score < score_support("Ada tracks hills", "Ada tracks hills").score
    )


def test_talk_is_not_supported_by_a_context() -> None:
    text = "The garden has tall trees."
    assert score_support("I love that the garden has tall trees.", text).score < 0.9
    assert (
        score_support("Does the garden have tall trees?", text).score
        < score_support("The garden has trees", text).score
    )


@pytest.mark.parametrize(("statement", "text"), [("", TEXT), ("The bridge is long.", ""), ("?", "!"), ("的", "了")])
def test_nothing_supports_nothing(statement: str, text: str) -> None:
    assert score_support(statement, text).score < SUPPORT_THRESHOLD


def test_the_best_spelling_of_a_gold_answer_counts() -> None:
    text = "The summit is known as Elbert Peak."
    assert score_support("Mount Zirkel / Elbert Peak", text).supported
    assert not score_support("Mount Zirkel / Mount Harvard", text).supported


def test_scores_stay_between_0_and_1_and_repeat() -> None:
    texts = [TEXT, TEXT_ZH, "x", "1 2 3", "No."]
    scores = [score_support(left, right, "Why?").score for left in texts for right in texts]
    assert all(0 <= score <= 1 for score in scores)
    assert scores == [score_support(left, right, "Why?").score for left in texts for right in texts]


QUESTION = "Who designed the Halden bridge?"


def test_words_of_the_question_do_not_make_an_answer_right() -> None:
    compared = compare_statements(QUESTION, ["Bo Karlsson designed the Halden bridge."], ["Ada Lindqvist"])
    assert not compared.answer[0].supported
    assert not compared.ground_truth[0].supported


def test_a_full_sentence_matches_a_short_gold_answer() -> None:
    compared = compare_statements(QUESTION, ["The Halden bridge was designed by Ada Lindqvist."], ["Ada Lindqvist"])
    assert compared.answer[0].supported
    assert compared.ground_truth[0].supported


def test_an_addition_is_false_and_an_omission_is_missed() -> None:
    compared = compare_statements(
        "What does the bridge carry?",
        ["It carries two railway tracks.", "Penguins inspected the harbour yesterday."],
        ["It carries two railway tracks.", "Cyclists use a separate path."],
    )
    assert [support.supported for support in compared.answer] == [True, False]
    assert [support.supported for support in compared.ground_truth] == [True, False]
    assert 0.3 < sum(support.score for support in compared.answer) / 2 < 0.7
    assert 0.3 < sum(support.score for support in compared.ground_truth) / 2 < 0.7


def test_one_sided_comparison_supports_nothing() -> None:
    assert not compare_statements("Q?", ["Ants dig."], []).answer[0].supported
    assert not compare_statements("Q?", [], ["Ants dig."]).ground_truth[0].supported
    assert compare_statements("Q?", [], []).ground_truth == ()


def test_a_yes_is_compared_with_a_yes() -> None:
    question = "Is the tower open?"
    assert compare_statements(question, ["Yes"], ["Yes"]).answer[0].supported
    assert not compare_statements(question, ["No"], ["Yes"]).answer[0].supported


def test_useful_contexts_hold_the_ground_truth() -> None:
    contexts = [
        "Lindqvist, Ada: the engineer who designed the Halden bridge.",
        "The Halden bridge is repainted every spring.",
        "Bread rises when yeast makes gas.",
    ]
    rated = rate_contexts(QUESTION, "Ada Lindqvist", contexts)
    assert [one.useful for one in rated] == [True, False, False]
    assert rated[0].score > rated[1].score > rated[2].score


def test_chinese_contexts_are_rated() -> None:
    rated = rate_contexts("海登大桥有多长？", "1200米", ["香蕉是黄色的。", "海登大桥全长1200米。"])
    assert [one.useful for one in rated] == [False, True]


def test_without_a_ground_truth_the_question_decides() -> None:
    rated = rate_contexts("How long is the Halden bridge?", "", ["The Halden bridge is long.", "Bread is soft."])
    assert rated[0].ground_truth_share is None
    assert rated[0].score > rated[1].score


def test_the_order_of_contexts_does_not_matter() -> None:
    contexts = ["The bridge is long.", "Ada Lindqvist designed it.", "Rain fell."]
    forward = rate_contexts(QUESTION, "Ada Lindqvist", contexts)
    backward = rate_contexts(QUESTION, "Ada Lindqvist", contexts[::-1])
    assert [one.score for one in forward] == [one.score for one in backward[::-1]]


def test_empty_contexts_are_useless() -> None:
    assert [one.useful for one in rate_contexts(QUESTION, "Ada Lindqvist", ["", "。"])] == [False, False]
