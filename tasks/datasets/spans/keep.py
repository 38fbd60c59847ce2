"""What is kept of received spans: redaction of every text in them, and the rules by which whole traces are kept."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from typing import Any, Final

import orjson

from evalhouse.tasks.datasets.spans.logs import Logged
from evalhouse.tasks.datasets.spans.otel import Recorded
from evalhouse.tasks.datasets.values import open_cell
from evalhouse.tasks.settings.receiver import PATTERNS, Redaction, Sampling

_DEEPEST: Final = 50
_TOO_DEEP: Final = "[nested too deep]"
_RANGE: Final = 2**64


@dataclass(frozen=True)
class Redactor:
    """Takes what the patterns find out of spans.

    Text that is JSON is opened first: in it a letter may be written as an escape, which no pattern would find.
    """

    redaction: Redaction

    @cached_property
    def _patterns(self) -> list[tuple[re.Pattern[str], str]]:
        own = [(re.compile(item.pattern), item.replacement) for item in self.redaction.own]
        return [*own, *((re.compile(PATTERNS[name]), f"[{name}]") for name in self.redaction.patterns)]

    def redact(self, recorded: Recorded) -> Recorded:
        """The same span without it; its ids, times and status stay."""
        if not self._patterns:
            return recorded
        return replace(
            recorded,
            name=self._redact_text(recorded.name),
            service=None if recorded.service is None else self._redact_text(recorded.service),
            message=None if recorded.message is None else self._redact_text(recorded.message),
            attributes=self._redact_value(recorded.attributes),
            events=tuple(self._redact_value(event) for event in recorded.events),
        )

    def redact_logged(self, logged: Logged) -> Logged:
        """The same of what was logged about a span."""
        if not self._patterns:
            return logged
        return replace(
            logged,
            name=self._redact_text(logged.name),
            service=None if logged.service is None else self._redact_text(logged.service),
            attributes=self._redact_value(logged.attributes),
        )

    def _redact_value(self, value: Any, depth: int = 0) -> Any:  # noqa: ANN401  # whatever an attribute holds
        if isinstance(value, str):
            opened = open_cell(value)
            if isinstance(opened, str):
                return self._redact_text(value)
            return _spell(self._redact_value(opened, depth + 1))
        if depth > _DEEPEST:
            return _TOO_DEEP
        if isinstance(value, Mapping):
            return {self._redact_text(str(key)): self._redact_value(item, depth + 1) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._redact_value(item, depth + 1) for item in value]
        return self._redact_number(value)

    def _redact_number(self, value: Any) -> Any:  # noqa: ANN401  # a number, a truth value or None
        """A number may be what a pattern looks for, such as a card's."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            return value
        text = str(value)
        redacted = self._redact_text(text)
        return value if redacted == text else redacted

    def _redact_text(self, text: str) -> str:
        for pattern, replacement in self._patterns:
            text = pattern.sub(replacement, text)
        return text


def is_picked(trace_id: str, share: float) -> bool:
    """Whether a trace is of the share that is kept of all: by its id, so that all receivers pick the same ones."""
    return int.from_bytes(sha256(trace_id.encode()).digest()[:8], "big") < share * _RANGE


def is_named(recorded: Recorded, sampling: Sampling) -> bool:
    """Whether a span has its trace kept, whatever the share."""
    if sampling.errors and recorded.status == "error":
        return True
    duration_ms = recorded.duration_ms
    if sampling.slower_than_ms is not None and duration_ms is not None and duration_ms > sampling.slower_than_ms:
        return True
    return any(
        name in recorded.attributes and (not values or _spell(recorded.attributes[name]) in values)
        for name, values in sampling.attributes.items()
    )


def _spell(value: object) -> str:
    """A value as a rule writes it."""
    return value if isinstance(value, str) else orjson.dumps(value, default=str).decode()
