"""Why a run happens: by hand, by schedule, or because a knowledge base announced an update."""

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from evalhouse.flows.errors import SettingsError

TriggerKind = Literal["manual", "schedule", "event"]


@dataclass(frozen=True, kw_only=True)
class Update:
    """One announced update of a knowledge base. `changed` are ids of documents; `occurred_at` is UTC without a zone."""

    event_id: str
    version: str | None
    changed: tuple[str, ...]
    occurred_at: datetime


@dataclass(frozen=True, kw_only=True)
class Trigger:
    """What started a run; of an event the knowledge base and all updates that this run answers, oldest first."""

    kind: TriggerKind = "manual"
    kb_name: str | None = None
    updates: tuple[Update, ...] = ()

    @property
    def kb_version(self) -> str | None:
        """The version of the newest update that told one."""
        return next((update.version for update in reversed(self.updates) if update.version is not None), None)

    @property
    def changed(self) -> tuple[str, ...]:
        """The ids of all changed documents, each once, in the order they were announced."""
        return tuple(dict.fromkeys(one for update in self.updates for one in update.changed))


BY_HAND = Trigger()


def check_kb_name(name: str) -> str:
    """The name, or SettingsError when it could be mistaken for another one."""
    if wrong := explain_bad_name(name):
        raise SettingsError(f"{name!r}: {wrong}")
    return name


def explain_bad_name(name: str) -> str | None:
    """What is wrong with the name of a knowledge base, and what is allowed; None when it is fine."""
    if _NAME.fullmatch(name) and len(name) <= 200:
        return None
    return (
        "it cannot name a knowledge base; allowed are letters, digits and . _ - / : @ +, with single blanks between "
        "them, at most 200"
    )


# `*`, `?`, `[` and `!` would make Prefect's triggers match other names.
_NAME = re.compile(r"[\w./:@+-]+(?: [\w./:@+-]+)*")
