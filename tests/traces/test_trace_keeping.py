"""The redaction of received spans, and the choice of spans that are kept."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from evalhouse.tasks.datasets.otel import Recorded
from evalhouse.tasks.datasets.received import PATTERNS, PLAIN, Redactor, is_named, is_picked
from evalhouse.tasks.settings.suite import OwnPattern, Redaction, Sampling

NAME = "李明华"
DIGITS = "4f09a1c7d2e85b36" * 4
# What each pattern finds, and what looks like it and is left alone.
PRIVATE: dict[str, list[str]] = {
    "email": [
        "ada.quill+boat@mail.example.org", "x@y.io", "ada.quill%40example.org", "ada.quill＠example.org",
        "ada.quill [at] example.org", "ada(at)example.org",
    ],
    "phone": [
        "+49 171 2345678", "0171 2345678", "(030) 1234-5678", "13812345678", "+86 138 1234 5678", "0170/1234567",
        "(415) 555-2671", "089 12 34 56 78", "8 (916) 123-45-67", "8-916-123-45-67",
    ],
    "card": [
        "4111 1111 1111 1111", "4111111111111111", "5500-0000-0000-0004", "4111.1111.1111.1111", "3782 822463 10005",
    ],
    "iban": [
        "DE89 3704 0044 0532 0130 00", "GB29NWBK60161331926819", "de89370400440532013000",
        "De89 3704-0044-0532-0130-00",
        "MT84MALT011000012345MTLCAST001S", "no9386011117947",
    ],
    "ip": [
        "192.168.17.4", "2001:db8::1", "2001:0db8:85a3:0000:0000:8a2e:0370:7334", "fe80::1", "::ffff:192.168.17.4",
        "2001:DB8:0:0:1::1",
    ],
    "key": [
        "sk-proj-abcdefghijklmnop1234", "sk-ant-api03-abcdefghijklmnopqrst", "sk-or-v1-" + DIGITS,
        "sk_live_abcdefghijklmnop1234", "rk_test_abcdefghijklmnop1234", "whsec_abcdefghijklmnop1234",
        "AIzaSyA1234567890abcdefghijklmnopqrstuv", "ya29.a0AfH6SMBx-abcdefghijkl", "GOCSPX-abcdefghij1234567890",
        "hf_abcdefghijklmnopqrstuvwxyz1234", "gsk_abcdefghijklmnop1234", "r8_abcdefghijklmnop1234",
        "xai-abcdefghijklmnop1234", "pplx-abcdefghijklmnop1234", "nvapi-abcdefghijklmnop1234",
        "tvly-dev-abcdefghijkl123",
        "lsv2_pt_0123456789abcdef0123456789abcdef_0123456789", "sk-lf-01234567-89ab-cdef-0123-456789abcdef",
        "github_pat_11ABCDEFG0abcdefghijklmnop", "ghp_abcdefghijklmnop1234abcdefghijklmnop", "gho_abcdefghijklmnop1234",
        "glpat-abcdefghij1234567890", "gldt-abcdefghij1234567890", "npm_abcdefghijklmnopqrstuvwxyz0123456789",
        "pypi-AgEIcHlwaS5vcmcCJGYwMTIz", "xoxb-123456789012-abcdefghijkl", "xoxe-1-abcdefghijklmnop",
        "xoxe.xoxp-1-abcdefghijklmnop", "xapp-1-A0123-456-abcdefghijkl",
        "hooks.slack.com/services/T0123/B4567/abcdefghijkl",
        "AKIAIOSFODNN7EXAMPLE", "ASIAABCDEFGHIJKLMNOP", "LTAI5tabcdefghijklmn", "AKIDabcdefghijklmn1234",
        "SG.abcdefghijklmnop12.abcdefghijklmnop1234", "hvs.abcdefghijklmnop12345678", f"SK{DIGITS[:32]}",
        f"dapi{DIGITS[:32]}", f"key-{DIGITS[:32]}", "dop_v1_" + DIGITS, "shpat_" + DIGITS[:32],
        "123456789:AAabcdefghijklmnopqrstuvwxyz_0123-45", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abc",
        "eyJhbGciOiJub25lIn0.eyJzdWIiOiIxMjM0In0.", "Bearer abcdefghijklmnop.qrst", "Basic dXNlcjpwYXNzd29yZDEyMzQ=",
        "basic dXNlcjpwYXNzd29yZDEyMzQ", "Authorization: ApiKey 0123456789abcdef",
        "authorization: Token abcdef1234567890",
        "api_key=0123456789abcdef0123456789abcdef", "x-api-key: 0123456789abcdef0123456789abcdef",
        "X-Goog-Api-Key: abcdefgh12", "client_secret=abcdefgh1234", "secret => abcdefgh1234",
        "access_token=abcdefgh1234", "AccountKey=abcdefgh1234==", "password=hunter", "password: hunter2",
        "PWD=x-$y!z",
        "-----BEGIN RSA PRIVATE KEY-----\nMIIEvQIBADANBg+/=\nabc\n-----END RSA PRIVATE KEY-----",
        "-----BEGIN OPENSSH PRIVATE KEY-----\\nb3BlbnNzaC1rZXk\\n-----END OPENSSH PRIVATE KEY-----",
        "-----BEGIN PGP PRIVATE KEY BLOCK-----\n\nlQOYBF\n=abc\n-----END PGP PRIVATE KEY BLOCK-----",
    ],
}  # fmt: skip
HARMLESS = [
    "The ferry leaves at 22:40.", "v1.2.3", "2026-03-14T12:00:00", "pier 4, seat 117", "0.9312", "$1,250.00",
    "meet me @ the pier", "100%400", "12:40:05", "std::vector<int>", "x[1::2]", "x[::2]", "00:1A:2B:3C:4D:5E", "::",
    "mp34 test case word", "iso27 this that more", "in24 hours with some more words", "de12 no account here",
    "sk-learn-contrib-extensions", "ghp_short1", "hf_hub_download_with_a_long_name",
    "glpat-none", "task-force-of-the-harbour",
    "AKIA", "AIzawa", "basic understanding of boats", "a basic introduction", "bearer of bad news", "Bearer token",
    "Authorization: required before boarding", "the api key: ask the harbour", "password: required",
    "forgot your password?",
    "max_tokens=1024", "prompt_tokens: 12345678", "token: hello", "total tokens: 123456789", "https://example.org/a:b@c",
    "http://localhost:8080/a", "http://localhost:8080?to=a@b",
    "-----BEGIN CERTIFICATE-----\nMIIC\n-----END CERTIFICATE-----", "eyJ.a.b", "SG.1.2",
    "4f09a1c7d2e85b364f09a1c7d2e85b36", "iVBORw0KGgoAAAANSUhEUgAAAAUA", "secretary 12345678", "hooks.slack.com/help",
    "ya29.short", "GOCSPX-short", "hvs.short", "dapi1234", "ATATT3x", "12345678:AAshort", "?sig=short",
    "npm_install 12", "pypi-publish-to-the-index", "xoxb-help-and-more-help", "LTAI1", "whsec_short1",
    "shpat_1", "gsk_none", "nvapi-1",
    "discord.com/api/webhooks/1/x", "X-Api-Key: none", "clientSecret: see the vault", "sk-12", "A bearer 12",
    "ada at example.org",
    "-----BEGIN PUBLIC KEY-----\nMIIB\n-----END PUBLIC KEY-----", "GB12 3", "4111 1111", "+49 12", "999.1",
    "fe80:1", "AKIA1234", "449281726532000001", "the id 1234567890123456",
]  # fmt: skip


def _redact(value: Any, redaction: Redaction) -> Any:  # noqa: ANN401  # any value of an attribute
    recorded = Recorded(trace_id="t", span_id="s", attributes={"input.value": value})
    return Redactor(redaction).redact(recorded).attributes["input.value"]


@pytest.mark.parametrize("name", PRIVATE)
def test_built_in_patterns_find_what_they_are_named_for(name: str) -> None:
    redaction = Redaction.model_validate({"patterns": (name,)})
    left = {text: _redact(f"It is {text}, you see.", redaction) for text in PRIVATE[name]}
    assert {text: found for text, found in left.items() if found != f"It is [{name}], you see."} == {}


@pytest.mark.parametrize(
    "sentence",
    [
        "It is {}.",
        "Tel.{} (old)",
        "我的是{}，几点开？",
        "号码{}吗",
        "電話は{}です。",
        "text='It:\\n{}\\nOld.'",
        '{{"a": "\\u4e2d{}\\u4e2d',
    ],
)
@pytest.mark.parametrize("name", PRIVATE)
def test_built_in_patterns_find_the_same_beside_any_letters(name: str, sentence: str) -> None:
    """A phone number stayed before a full stop, and anything but a mail address between Chinese characters, and behind
    the escapes of text that Python printed or a limit cut."""
    redaction = Redaction(patterns=("email", "phone", "card", "iban", "ip", "key"))
    left = {text: _redact(sentence.format(text), redaction) for text in PRIVATE[name]}
    assert {text: found for text, found in left.items() if f"[{name}]" not in found or text[-4:] in found} == {}


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("+49\u00a0171\u00a01234567", "[phone]"),
        ("DE89\u202f3704\u202f0044\u202f0532\u202f0130\u202f00", "[iban]"),
        ("(555)\u00a0123\u20134567", "[phone]"),
        ("号码１３８１２３４５６７８，谢谢", "号码[phone]，谢谢"),
        ("٠٥٠ ١٢٣ ٤٥٦٧", "[phone]"),
        ("[Document(text='Tel.:\\xa0030 1234567')]", "[Document(text='Tel.:\\xa0[phone]')]"),
        ("10⁶ m² ½ ①，Tel.\u00a0+49\u00a030\u00a01234567", "10⁶ m² ½ ①，Tel.\u00a0[phone]"),
        ("12\u202f500\u202f000 €", "12\u202f500\u202f000 €"),
        ("100 000–150 000 Euro, 2020–2021–2022", "100 000–150 000 Euro, 2020–2021–2022"),
        ("比例为1：2：3：4：5：6：7：8", "比例为1：2：3：4：5：6：7：8"),
        ("\U0001ccf1 and \U0001e4f1", "\U0001ccf1 and \U0001e4f1"),
        ("密码是abc12345，谢谢", "[key]，谢谢"),
        ("api_key：abcdef1234567890吗", "[key]吗"),
        ("能不能把发票发到wang@qq.com吗？", "能不能把发票发到[email]吗？"),
        ("An jörg.müller@grüße.example schreiben", "An [email] schreiben"),
        ("忘记密码是怎么回事2024？", "忘记密码是怎么回事2024？"),
        ("令牌是在2024年引入的 – “２０２４”", "令牌是在2024年引入的 – “２０２４”"),
        ("password: обязательно", "password: обязательно"),
    ],
)
def test_typographic_and_chinese_spellings_are_found(text: str, left: str) -> None:
    assert _redact(text, Redaction(patterns=tuple(PATTERNS))) == left


ADDRESSES = f"postgres://ada:pw@db https://x.io?sig=abcdefgh%2Bijklmnopqr discord.com/api/webhooks/1/{DIGITS}"


@pytest.mark.parametrize("name", PRIVATE)
def test_built_in_patterns_find_the_same_beside_each_other(name: str) -> None:
    """A phone number was found in the groups of a card, of an IBAN and of keys, whose other groups stayed."""
    redaction = Redaction(patterns=("email", "phone", "card", "iban", "ip", "key"))
    left = {text: _redact(f"It is {text}, you see.", redaction) for text in (*PRIVATE[name], *_GROUPED.get(name, ()))}
    assert {text: found for text, found in left.items() if found != f"It is [{name}], you see."} == {}


_GROUPED = {
    "iban": ["GB29 NWBK 6016 1331 9268 19", "FR14 2004 1010 0505 0001 3M02 606", "IT60 X054 2811 1010 0000 0123 456"],
    "card": ["4111-1111-1111-1111", "3782-822463-10005"],
    "key": [
        "xoxb-1312345678901-1412345678901-pdFZKVeTuE8sk7oOcHrzqqgy",
        "api_key=4f1b2c3d-1234-4567-8901-123456789012",
    ],
    "phone": ["06 12 34 56 78"],
}


@pytest.mark.parametrize(("name", "pattern"), [(name, one) for name, listed in PATTERNS.items() for one in listed])
def test_every_built_in_pattern_finds_something(name: str, pattern: str) -> None:
    assert any(regex.search(pattern, text.translate(PLAIN)) for text in (*PRIVATE[name], ADDRESSES))


def test_built_in_patterns_leave_the_rest_alone() -> None:
    assert PRIVATE.keys() == PATTERNS.keys()
    redaction = Redaction(patterns=tuple(PATTERNS))
    assert [(text, left) for text in HARMLESS if (left := _redact(text, redaction)) != text] == []


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("postgres://ada:hunter2secret@db/x", "postgres://[key]@db/x"),
        ("https://ada:p@ss@db.example.org:5432/x", "https://[key]@db.example.org:5432/x"),
        ("redis://:hunter2@db", "redis://[key]@db"),
        ("https://x.blob.core.windows.net/a?sv=1&sig=abcdefgh%2Bijklmnopqr%3D", "https://x.blob.core.windows.net/a?sv=1[key]"),
        ('{"x-api-key": "0123456789abcdef", "n": 1}', '{"x-api-key":"[key]","n":1}'),
        ({"http.request.header.authorization": "abcdef0123", "model": "m1"},
         {"http.request.header.authorization": "[key]", "model": "m1"}),
        ({"config": {"password": "hunter", "max_tokens": 12, "token": "hello", "next_token": None}},
         {"config": {"password": "[key]", "max_tokens": 12, "token": "hello", "next_token": None}}),
        ({"password": ["hunter2222"], "pin_password": 12345678, "api_key": ["abcdefgh1234"], "token": [7]},
         {"password": "[key]", "pin_password": "[key]", "api_key": "[key]", "token": [7]}),
        (r'"api_key \u003d abcdefgh1234"', '"[key]"'),
        ("curl -H 'Authorization: Bearer abcdefghijklmnop12' https://x.io", "curl -H 'Authorization: [key]' https://x.io"),
        ("{'apiKey': 'abcdefgh1234', 'n': 1}", "{'[key]', 'n': 1}"),
        (r"{\"passwd\": \"hunter2\"}", r"{\"[key]\"}"),
    ],
)  # fmt: skip
def test_a_secret_is_taken_out_of_an_address_and_a_field(text: object, left: object) -> None:
    assert _redact(text, Redaction(patterns=("key",))) == left


@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode])
def test_text_in_base64_is_redacted(encode: Callable[[bytes], bytes]) -> None:
    texts = ("é~~~ <ada@mail.example.org>", "Anna and Bela?", "é~~~ is not private", "é~~~ <[email]>")
    before, plain, other, after = (encode(text.encode()).decode() for text in texts)
    left = _redact(f"data: {before}; {plain} {other}", Redaction(patterns=("email",)))
    assert left == f"data: {after}; {plain} {other}"


def test_pattern_of_the_user_that_takes_too_long_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evalhouse.tasks.datasets.received._TIMEOUT_S", 0.1)
    own = (OwnPattern(pattern=r"(a|a)+b"),)
    assert _redact("a" * 60 + "c", Redaction(own=own)) == "[redaction took too long]"


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
    assert NAME not in regex.sub(r"\\+u([0-9a-f]{4})", lambda escape: chr(int(escape[1], 16)), left)
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
        ({"patterns": ["mail"]}, "should be 'email', 'phone'"),
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
