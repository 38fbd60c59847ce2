"""What `evalhouse doctor` says about one thing it looked at."""

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["ok", "note", "wrong"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that was looked at."""

    what: str
    verdict: Verdict
    detail: str
