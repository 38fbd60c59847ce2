"""Evidence and scores: what makes a text support a statement, or stop supporting it, and which contexts help."""

import pytest

from evalhouse.tasks.lexical.match import (
    SUPPORT_THRESHOLD,
    Evidence,
    Support,
    compare_statements,
    score_contexts,
)

TEXT = (
    "The Halden bridge was opened on 4 June 1931. It is 1,200 metres long and carries two railway tracks. "
    "The engineer Ada Lindqvist designed it. The bridge does not carry cars."
)


def score_support(statement: str, text: str, question: str = "") -> Support:
    return score_contexts([statement], [text], question)[0][0]


def find_evidence(statement: str, text: str = TEXT) -> Evidence:
    evidence = score_support(statement, text).evidence
    assert evidence is not None
    return evidence


@pytest.mark.parametrize(
    ("statement", "is_supported"),
    [
        ("The Halden bridge opened in June 1931.", True),
        ("Ada Lindqvist designed the bridge.", True),
        ("The bridge is 1200 metres long.", True),
        ("It carries railway tracks.", True),
        ("The Haldn bridge was designed by the engineer Lindqvist.", True),
        ("The bridge does not carry cars.", True),
        ("Bananas grow in warm countries.", False),
        ("The tunnel under the river was closed by the mayor.", False),
        ("Erik Dahl painted a portrait of the king.", False),
        ("苹果是一种水果。", False),
    ],
)
def test_what_the_text_says_is_supported(statement: str, is_supported: bool) -> None:
    assert score_support(statement, TEXT).supported == is_supported


def test_a_rival_number_is_worse_than_a_number_that_is_missing() -> None:
    missing = score_support("The bridge is 1,500 metres long.", "The bridge is many metres long.")
    assert score_support("The bridge is 1,500 metres long.", "The bridge is 1,200 metres long.").score < missing.score


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


@pytest.mark.parametrize(("statement", "text"), [("", TEXT), ("The bridge is long.", ""), ("?", "!"), ("的", "了")])
def test_nothing_supports_nothing(statement: str, text: str) -> None:
    assert score_support(statement, text).score < SUPPORT_THRESHOLD


def test_the_best_spelling_of_a_gold_answer_counts() -> None:
    text = "The summit is known as Elbert Peak."
    assert score_support("Mount Zirkel / Elbert Peak", text).supported
    assert not score_support("Mount Zirkel / Mount Harvard", text).supported


QUESTION = "Who designed the Halden bridge?"


@pytest.mark.parametrize(
    ("question", "answer", "truth", "is_right"),
    [
        # Words of the question do not make an answer right, and a full sentence matches a short gold answer.
        (QUESTION, ["Bo Karlsson designed the Halden bridge."], ["Ada Lindqvist"], [False]),
        (QUESTION, ["The Halden bridge was designed by Ada Lindqvist."], ["Ada Lindqvist"], [True]),
        ("Is the tower open?", ["Yes"], ["Yes"], [True]),
        ("Is the tower open?", ["No"], ["Yes"], [False]),
        (
            "What does the bridge carry?",
            ["It carries two railway tracks.", "Penguins inspected the harbour yesterday."],
            ["It carries two railway tracks.", "Cyclists use a separate path."],
            [True, False],
        ),
    ],
)
def test_answers_are_compared_with_the_ground_truth(
    question: str, answer: list[str], truth: list[str], is_right: list[bool]
) -> None:
    compared = compare_statements(question, answer, truth)
    assert [support.supported for support in compared.answer] == is_right
    assert [support.supported for support in compared.ground_truth] == is_right


def test_one_sided_comparison_supports_nothing() -> None:
    assert not compare_statements("Q?", ["Ants dig."], []).answer[0].supported
    assert not compare_statements("Q?", [], ["Ants dig."]).ground_truth[0].supported
    assert compare_statements("Q?", [], []).ground_truth == ()
