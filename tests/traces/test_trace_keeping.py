"""The redaction of received spans, and the choice of spans that are kept."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from evalhouse.tasks.datasets.otel import Recorded
from evalhouse.tasks.datasets.traces import Redactor, is_named, is_picked
from evalhouse.tasks.settings.suite import PATTERNS, OwnPattern, Redaction, Sampling

NAME = "李明华"
PRIVATE = {
    "email": ["ada.quill+boat@mail.example.org", "x@y.io"],
    "phone": ["+49 171 2345678", "0171 2345678", "(030) 1234-5678", "13812345678", "+86 138 1234 5678"],
    "card": ["4111 1111 1111 1111", "4111111111111111", "5500-0000-0000-0004"],
    "iban": ["DE89 3704 0044 0532 0130 00", "GB29NWBK60161331926819"],
    "ip": ["192.168.17.4"],
    "key": ["sk-proj-abcdefghijklmnop1234", "AKIAIOSFODNN7EXAMPLE", "Bearer abcdefghijklmnop.qrst"],
}
HARMLESS = ["The ferry leaves at 22:40.", "v1.2.3", "2026-03-14T12:00:00", "pier 4, seat 117", "0.9312", "$1,250.00"]


def _redact(value: Any, redaction: Redaction) -> Any:  # noqa: ANN401  # any value of an attribute
    recorded = Recorded(trace_id="t", span_id="s", attributes={"input.value": value})
    return Redactor(redaction).redact(recorded).attributes["input.value"]


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in PRIVATE.items() for text in texts])
def test_built_in_patterns_find_what_they_are_named_for(name: str, text: str) -> None:
    assert _redact(f"It is {text}, you see.", Redaction(patterns=(name,))) == f"It is [{name}], you see."


def test_built_in_patterns_leave_the_rest_alone() -> None:
    assert PRIVATE.keys() == PATTERNS.keys()
    for text in HARMLESS:
        assert _redact(text, Redaction(patterns=tuple(PATTERNS))) == text


@given(
    around=st.recursive(
        st.just("@"),
        lambda inner: st.one_of(
            st.lists(inner, min_size=1, max_size=3),
            st.dictionaries(st.text(max_size=4), inner, min_size=1, max_size=3),
            st.tuples(inner, st.booleans()).map(lambda pair: json.dumps(pair[0], ensure_ascii=pair[1])),
        ),
        max_leaves=6,
    ),
    where=st.sampled_from(["value", "key", "event", "name", "message", "service"]),
)
def test_no_text_is_left_at_any_depth_and_escape(around: object, where: str) -> None:
    """JSON within JSON writes letters that are not ASCII as escapes, in which no pattern would find them."""
    private = f"{NAME} <ada@mail.example.org>"
    value = json.loads(json.dumps(around).replace("@", private)) if where == "value" else private
    recorded = Recorded(
        trace_id="t",
        span_id="s",
        name=private if where == "name" else "",
        message=private if where == "message" else None,
        service=private if where == "service" else None,
        attributes={"v": json.dumps(value) if where == "value" else 1, **({private: 1} if where == "key" else {})},
        events=({"name": "e", "attributes": {"v": [private]}},) if where == "event" else (),
    )
    own = (OwnPattern(pattern=NAME, replacement="[customer]"),)
    left = repr(Redactor(Redaction(patterns=("email",), own=own)).redact(recorded))
    assert NAME not in left
    assert NAME.encode("unicode_escape").decode() not in left
    assert "mail.example" not in left
    assert "[email]" in left


def test_a_number_may_be_what_is_looked_for() -> None:
    assert _redact(4111111111111111, Redaction(patterns=("card",))) == "[card]"
    assert _redact([0.25, 12, True, None], Redaction(patterns=tuple(PATTERNS))) == [0.25, 12, True, None]


def test_own_patterns_may_keep_a_part_of_what_they_find() -> None:
    own = (OwnPattern(pattern=r"KD-(\d\d)\d+", replacement=r"KD-\1…"),)
    assert _redact("customer KD-123456", Redaction(own=own)) == "customer KD-12…"


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"patterns": ["mail"]}, "unknown pattern mail; known: email, phone"),
        ({"own": [{"pattern": "("}]}, "not a regular expression"),
        ({"own": [{"pattern": "x*"}]}, "found everywhere"),
        ({"own": [{"pattern": "x", "replacement": "\\d"}]}, "a backslash"),
    ],
)
def test_patterns_that_make_no_sense_are_refused(values: dict[str, Any], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        Redaction.model_validate_json(json.dumps(values))


def test_the_share_is_that_of_all_traces_and_always_the_same_ones() -> None:
    ids = [f"{number:032x}" for number in range(20_000)]
    picked = {share: {trace_id for trace_id in ids if is_picked(trace_id, share)} for share in (0, 0.05, 0.2, 1)}
    assert (len(picked[0]), len(picked[1])) == (0, len(ids))
    assert len(picked[0.2]) == pytest.approx(4000, rel=0.06)
    assert picked[0.05] < picked[0.2]


def _is_named(sampling: dict[str, Any], **span: Any) -> bool:  # noqa: ANN401  # fields of Recorded
    settings = Sampling.model_validate_json(json.dumps(sampling))
    return is_named(Recorded(trace_id="t", span_id="s", started_at=1.0, **span), settings)


def test_errors_slow_spans_and_attributes_keep_a_trace() -> None:
    assert _is_named({}, status="error")
    assert not _is_named({"errors": False}, status="error")
    assert _is_named({"slower_than_ms": 900}, ended_at=2.0)
    assert not _is_named({"slower_than_ms": 1100}, ended_at=2.0)
    rule = {"attributes": {"user.tier": ["gold"], "rating": [], "n": ["3"]}}
    assert _is_named(rule, attributes={"user.tier": "gold"})
    assert not _is_named(rule, attributes={"user.tier": "tin"})
    assert _is_named(rule, attributes={"rating": 0})
    assert _is_named(rule, attributes={"n": 3})


@pytest.mark.parametrize("name", PATTERNS)
def test_no_text_keeps_a_built_in_pattern_busy(name: str) -> None:
    """Received values may be anything: twice the text takes about twice the time, and not four times."""
    redaction = Redaction(patterns=(name,))
    for pump in ("a", "a.", "-eyJ", "0", "0 ", "+1-", "(1)", "@", "a@b", "sk-", "bearer ", "AA00", "1.", "é-"):
        started = time.process_time()
        _redact(pump * (100_000 // len(pump)), redaction)
        assert time.process_time() - started < 3, pump
