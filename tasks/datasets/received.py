"""Received spans before they are stored: which are kept, and the texts of them that are removed.

The shapes of keys are a table here because no package fits: the rules of gitleaks are part of a program in Go, and
detect-secrets (last released in 2024) searches lines of source code, with patterns that take quadratic time on foreign
text and know neither Google, Hugging Face nor Anthropic. Each shape is the one that its provider documents.

`regex` searches without holding Python's lock, so that a receiver answers other requests during a large one.
"""

import base64
import hmac
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from string import ascii_letters
from typing import Any, Final, TypeVar

import orjson
import regex

from evalhouse.tasks.datasets.otel import Logged, Recorded, find_session, rename_session
from evalhouse.tasks.datasets.values import open_cell
from evalhouse.tasks.settings.suite import PatternName, Redaction, Sampling

AnyItem = TypeVar("AnyItem", bound=Recorded | Logged)

# Around a number. `\w`, `\d` and `\b` know ASCII only: Chinese and Japanese have no space between a word and a number.
_START: Final = r"(?<!\w)"
_NUMBER, _END = rf"{_START}(?<!\d\.)", r"(?!\w|\.\d)"
_LOCAL, _DOMAIN = r"[\wÀ-ԯ.!#$%&'*+/=?^`{|}~-]{1,64}", r"[\wÀ-ԯ-]{1,63}(?:\.[\wÀ-ԯ-]{1,63}){1,8}"
_HEX: Final = r"[0-9A-Fa-f]{1,4}"
_IBAN_COUNTRIES: Final = (
    "A[DELTZ]|B[AEGHIRY]|C[HRYZ]|D[EKO]|E[EGS]|F[IKOR]|G[BEILRT]|H[NRU]|I[ELQST]|JO|K[WZ]|L[BCITUVY]|M[CDEKNRTU]"
    "|N[ILO]|OM|P[KLST]|QA|R[OSU]|S[ACDEIKMOTV]|T[LNR]|UA|V[AG]|XK|YE"
)
# The names of fields, headers and variables whose value is a secret.
_SECRET: Final = (
    r"(?i:(?:api|access|auth|account|client|private|secret|signing|subscription|encryption|session|refresh|id)[._ -]?"
    r"(?:key|token|secret)(?:[._ -]?id)?|x-[\w-]{0,30}(?:key|token|secret)|client_?credentials?|secret|token"
    r"|密钥|密鑰|令牌)"
)
_PASSWORD: Final = r"(?i:pass(?:word|wd|phrase)|pwd|密码|密碼|口令|パスワード|비밀번호)"
_SEPARATOR: Final = r"""\\?["']?\s{0,3}(?::=|=>|[:=：是])\s{0,3}\\?["']?"""
_VALUE: Final = r"""[^\s"'\\&,;<>(){}\[\]⺀-￯]"""  # none of Chinese, Japanese and Korean

_KEYS: Final = (
    # OpenAI, Anthropic and providers with their form, Langfuse, Stripe
    r"\b[spr]k[-_](?=[\w-]{0,80}\d)[\w-]{16,}",
    # GitHub, GitLab, Hugging Face, Groq, Pinecone, Replicate, Fireworks, LangSmith, npm, Linear, Notion, Grafana,
    # Sentry, Supabase, Shopify, DigitalOcean, Stripe's webhooks
    r"\b(?:gh[pousr]|github_pat|hf|gsk|pcsk|r8|fw|lsv2_(?:pt|sk)|npm|lin_api|ntn|glc|glsa|sntr[yu]s|sbp|sb_secret"
    r"|shp(?:at|ca|pa|ss)|do[opr]_v1|whsec)_(?=\w{0,60}\d)[\w+/=]{16,}",
    r"\b(?:gl(?:pat|dt|rt|cbt|ptt|ft|imt|agent|soat|ffct)|gloas|xox[a-z](?:\.xox[a-z])?|xapp|xai|pplx|nvapi|tvly|pypi"
    r"|NRAK|GOCSPX)-(?=[\w-]{0,60}\d)[\w-]{16,}",
    r"\bAIza[\w-]{30,}|\bya29\.[\w-]{20,}",  # Google
    r"\b(?:AKIA|ASIA|ABIA|ACCA|AROA|AIDA)[A-Z0-9]{16}(?!\w)|\bABSK[\w+/=]{40,}",  # AWS
    r"\b(?:LTAI|AKID)(?=\w{0,30}\d)\w{12,}",  # Alibaba Cloud, Tencent Cloud
    r"\bSG\.[\w-]{16,}\.[\w-]{16,}|\bhv[sbr]\.[\w-]{20,}|\bdp\.\w{2,5}\.\w{20,}",  # SendGrid, Vault, Doppler
    r"\b(?:SK|AC|dapi|key-)[0-9a-f]{32}(?!\w)",  # Twilio, Databricks, Mailgun
    r"\bATATT3[\w=-]{20,}|\b\d{8,10}:AA[\w-]{30,}",  # Atlassian, Telegram
    r"\bhooks\.slack\.com/\w{1,20}/[\w/+]{20,}|\bdiscord(?:app)?\.com/api/webhooks/\d{1,20}/[\w-]{20,}",
    r"[?&]sig=[\w%+/=-]{20,}",  # addresses that Azure has signed
    r"\beyJ[\w-]{8,300}\.[\w-]{8,}(?:\.[\w-]*){0,3}",  # JWT
    r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----(?:[^-]|-(?!----))*+(?:-----END [A-Z0-9 ]{1,40}-----)?",
    r"(?i:\bbearer)\s{1,9}[\w.~+/=-]{16,}",
    r"(?i:\bbasic)\s{1,9}(?=[\w+/]{0,60}[\d=])[\w+/]{12,}={0,2}",
    rf"(?i:\bauthorization){_SEPARATOR}(?:[A-Za-z]{{1,20}}\s{{1,3}})?(?={_VALUE}{{0,60}}\d){_VALUE}{{8,}}",
    r"(?<=://)[^\s/?#@:]{0,100}:[^\s/?#]{1,200}(?=@)",  # the user and the password of an address
    rf"{_SECRET}{_SEPARATOR}(?={_VALUE}{{0,60}}\d){_VALUE}{{8,}}",
    rf"{_PASSWORD}(?:{_SEPARATOR}(?={_VALUE}{{0,60}}[!-\-/:-@\[-^`{{-~])|{_SEPARATOR}(?={_VALUE}{{0,60}}\d)|=){_VALUE}{{4,}}",
)

PATTERNS: Final[Mapping[PatternName, tuple[str, ...]]] = {
    "email": (
        rf"{_LOCAL}@{_DOMAIN}",
        rf"{_LOCAL}%40{_DOMAIN}",
        rf"[\wÀ-ԯ.+-]{{1,64}} ?\[at\] ?{_DOMAIN}",
        rf"[\wÀ-ԯ.+-]{{1,64}} ?\(at\) ?{_DOMAIN}",
    ),
    "phone": (
        rf"{_NUMBER}(?:\+|00)\d{{1,3}}[ ./-]?(?:\(\d{{1,4}}\)[ ./-]?)?\d(?:[ ./-]?\d){{6,12}}{_END}"
        rf"|{_NUMBER}\(?0?\d{{2,5}}\)?[ ./-]\d{{3,4}}[ ./-]?\d{{3,5}}{_END}|{_NUMBER}1[3-9]\d{{9}}{_END}"
        rf"|{_NUMBER}0\d{{1,4}}(?:[ .-]\d\d){{4}}{_END}"
        rf"|{_NUMBER}[78][ -]?\(?\d{{3}}\)?[ -]?\d{{3}}[ -]\d\d[ -]\d\d{_END}",  # Russia
    ),
    "card": (
        rf"{_NUMBER}(?:\d{{4}}[ .-]?\d{{4}}[ .-]?\d{{4}}[ .-]?\d{{1,7}}|3[47]\d\d[ .-]?\d{{6}}[ .-]?\d{{5}})(?!\w)",
    ),
    "iban": (
        rf"(?i:{_START}(?:{_IBAN_COUNTRIES})\d{{2}}(?=(?:[ -]?[A-Z]{{0,6}}[ -]?\d){{8}})"
        r"(?:[ -]?[A-Z0-9]{4}){2,7}(?:[ -]?[A-Z0-9]{1,4})?(?!\w))",
    ),
    "ip": (
        rf"{_NUMBER}(?<!:)(?:{_HEX}:){{7}}{_HEX}(?![\w:])",
        # Three hexadecimal digits in a row, or three colons: `1::2` is a slice in Python.
        rf"{_NUMBER}(?<!:)(?=[0-9A-Fa-f:]{{0,30}}[0-9A-Fa-f]{{3}}|(?:{_HEX}:+){{3}})(?:{_HEX}:){{0,6}}(?:{_HEX})?::"
        rf"(?:{_HEX}:){{0,6}}(?:(?:\d{{1,3}}\.){{3}}\d{{1,3}}|{_HEX})?(?![\w:])",
        rf"{_NUMBER}(?:\d{{1,3}}\.){{3}}\d{{1,3}}{_END}",
    ),
    "key": tuple(pattern.replace(r"\b", _START) for pattern in _KEYS),
}
"""The built-in patterns by name; a match becomes `[name]`. Each searches any text in a time in proportion to its
length: what can fail has an end, and what has none is part of a match."""

_ORDER: Final[tuple[PatternName, ...]] = ("key", "iban", "card", "email", "ip", "phone")
"""The order in which texts are searched: the groups of a card, and of an IBAN, may be a phone number as well."""
_TIMEOUT_S: Final = 20.0
_UNSEARCHED: Final = "[redaction took too long]"
_MAX_NESTING: Final = 50
_TOO_DEEP: Final = "[nested too deep]"
_SECRET_FIELD: Final = regex.compile(rf"(?:[\w.-]*[._-])?(?:{_SECRET}|(?P<password>{_PASSWORD})|(?i:authorization))")
_SECRET_VALUE: Final = regex.compile(r"(?=\S*\d)\S{8,}")
_ZEROS: Final = "０٠۰०০੦૦௦౦೦൦๐໐༠၀០᠐"  # each before the other nine digits of its script
PLAIN: Final[Mapping[int, int]] = {
    **{ord(zero) + digit: ord("0") + digit for zero in _ZEROS for digit in range(10)},
    **{letter + 0xFEE0: letter for letter in map(ord, f"+-.@{ascii_letters}")},  # of full width
    **dict.fromkeys([0xA0, *range(0x2000, 0x200B), 0x202F, 0x205F, 0x3000], ord(" ")),
    **dict.fromkeys([*range(0x2010, 0x2016), 0x2212], ord("-")),
}
"""The spaces, dashes, digits and letters of typography and other scripts, and the ones of ASCII for them."""
_BASE64: Final = regex.compile(r"(?<![\w+/-])[A-Za-z0-9_+/-]{16,}={0,2}(?![\w+/=-])")


@dataclass(frozen=True)
class Redactor:
    """Takes what the patterns find out of spans.

    Text that is JSON is opened first, because in it a letter may be written as an escape, which no pattern would find.
    Text in base64 is decoded for the same reason. Numbers are found with any spaces, dashes and digits. A session whose
    name holds such text, as a phone number, gets a name made of it and `secret`: as `[phone]` the sessions of all users
    would be one.
    """

    redaction: Redaction
    secret: str = field(default="", repr=False)

    @cached_property
    def _patterns(self) -> list[tuple[Any, Any]]:
        own = [(regex.compile(item.pattern), item.replacement) for item in self.redaction.own]
        names = sorted(self.redaction.patterns, key=_ORDER.index)
        return own + [
            (regex.compile(one, regex.ASCII), _mark_card if name == "card" else f"[{name}]")
            for name in names
            for one in PATTERNS[name]
        ]

    @cached_property
    def _patterns_in_escapes(self) -> list[tuple[Any, Any]]:
        return [
            (regex.compile(allow_escapes(one.pattern), one.flags), replacement) for one, replacement in self._patterns
        ]

    def redact(self, item: AnyItem) -> AnyItem:
        """Return the same span or event without it; ids, times and status stay."""
        if not self._patterns:
            return item
        fields: dict[str, Any] = {
            "name": self._redact_text(item.name),
            "service": None if item.service is None else self._redact_text(item.service),
            "attributes": self._redact_value(item.attributes),
        }
        if isinstance(item, Recorded):
            fields["message"] = None if item.message is None else self._redact_text(item.message)
            fields["events"] = tuple(self._redact_value(event) for event in item.events)
            if item.session is not None and item.session != find_session(fields["attributes"]):
                digest = hmac.new(self.secret.encode(), item.session.encode(), sha256).hexdigest()
                fields["attributes"] = rename_session(fields["attributes"], f"session-{digest[:16]}")
        return replace(item, **fields)

    def _redact_value(self, value: Any, depth: int = 0) -> Any:  # noqa: ANN401  # any value of an attribute
        if isinstance(value, str):
            opened = open_cell(value)
            if not isinstance(opened, str):
                return spell(self._redact_value(opened, depth + 1))
            with suppress(orjson.JSONDecodeError):
                if value[:1] == '"':  # a text that was written as JSON, as MLflow writes all of them
                    value = orjson.dumps(self._redact_value(orjson.loads(value), depth + 1)).decode()
            return self._redact_text(value)
        if depth > _MAX_NESTING:
            return _TOO_DEEP
        if isinstance(value, Mapping):
            return {
                self._redact_text(str(name)): (
                    "[key]" if self._is_secret(name, item) else self._redact_value(item, depth + 1)
                )
                for name, item in value.items()
            }
        if isinstance(value, list | tuple):
            return [self._redact_value(item, depth + 1) for item in value]
        if isinstance(value, int | float) and not isinstance(value, bool):
            # A number may be what a pattern looks for, such as a card's.
            redacted = self._redact_text(str(value))
            return value if redacted == str(value) else redacted
        return value

    def _is_secret(self, name: object, value: object) -> bool:
        """Return True if a field is named like one that holds a secret, and its value may be one."""
        values = value if isinstance(value, list | tuple) else [value]
        texts = [str(item) for item in values if isinstance(item, str | int) and not isinstance(item, bool)]
        if "key" not in self.redaction.patterns or not texts:
            return False
        match = _SECRET_FIELD.fullmatch(str(name))
        return match is not None and (
            match["password"] is not None or any(_SECRET_VALUE.fullmatch(text) for text in texts)
        )

    def _redact_text(self, text: str) -> str:
        text = self._replace(self._replace(text), spelling=PLAIN)
        redacted: str = _BASE64.sub(lambda match: self._redact_base64(match[0]), text, concurrent=True)
        return redacted

    def _redact_base64(self, packed: str) -> str:
        """Return base64 of a text with its redacted text; anything else unchanged."""
        altchars = b"-_" if "-" in packed or "_" in packed else b"+/"
        digits = packed.rstrip("=")
        try:
            text = base64.b64decode(digits + "=" * (-len(digits) % 4), altchars, validate=True).decode()
        except ValueError:
            return packed
        redacted = self._replace(text)
        return packed if redacted == text else base64.b64encode(redacted.encode(), altchars).decode()

    def _replace(self, text: str, spelling: Mapping[int, int] | None = None) -> str:
        """Replace what the patterns find in a text, or in its `spelling`, which has a character for each of the text's.

        Amounts are written with the spaces and dashes of a `spelling`: there a phone number begins with +, 0 or (, or
        is of digits alone.
        """
        patterns = self._patterns_in_escapes if "\\" in text else self._patterns
        searched = text if spelling is None or text.isascii() else text.translate(spelling)
        if spelling is not None and searched == text:
            return text
        for pattern, replacement in patterns:
            parts, at = list[str](), 0
            try:
                for match in pattern.finditer(searched, concurrent=True, timeout=_TIMEOUT_S):
                    found = match[0]
                    if spelling is not None and replacement == "[phone]" and not (found[0] in "+0(" or found.isdigit()):
                        continue
                    mark = replacement(match) if callable(replacement) else match.expand(replacement)
                    if mark != found:
                        parts += [text[at : match.start()], mark]
                        at = match.end()
            except TimeoutError:  # a pattern of the user's, such as (a+)+b: what it might find must not be stored
                return _UNSEARCHED
            if parts:
                text = "".join([*parts, text[at:]])
                searched = text if spelling is None else text.translate(spelling)
        return text


def _mark_card(match: Any) -> str:  # noqa: ANN401  # a match of `regex`
    """Return `[card]` for a number with the check digit of cards (Luhn), and other numbers, such as ids, unchanged."""
    digits = [int(digit) for digit in match[0] if digit.isdigit()][::-1]
    total = sum(digits[::2]) + sum(sum(divmod(2 * digit, 10)) for digit in digits[1::2])
    return match[0] if total % 10 else "[card]"


def allow_escapes(pattern: str) -> str:
    """Return a pattern that also finds what follows the escape of a line break or of a letter.

    Text that Python has printed, or JSON that a limit has cut, cannot be opened as JSON.
    """
    return pattern.replace(_START, r"(?:(?<!\w)|(?<=\\[nrt])|(?<=\\u[0-9A-Fa-f]{4})|(?<=\\x[0-9A-Fa-f]{2}))")


def is_picked(name: str, share: float) -> bool:
    """Return True if a session, or a trace without one, is in the share that is kept: by its id, so that all receivers
    pick the same ones."""
    return int.from_bytes(sha256(name.encode()).digest()[:8], "big") < share * 2**64


def is_named(recorded: Recorded, sampling: Sampling) -> bool:
    """Return True if a rule keeps the trace of this span, regardless of the share."""
    if sampling.errors and recorded.status == "error":
        return True
    duration_ms = recorded.duration_ms
    if sampling.slower_than_ms is not None and duration_ms is not None and duration_ms > sampling.slower_than_ms:
        return True
    return any(
        name in recorded.attributes and (not values or spell(recorded.attributes[name]) in values)
        for name, values in sampling.attributes.items()
    )


def spell(value: object) -> str:
    """Return a value as a rule, or JSON within a text, writes it."""
    return value if isinstance(value, str) else orjson.dumps(value, default=str).decode()
