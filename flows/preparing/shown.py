"""What `doctor` shows: the tables of a suite, without credentials, and the findings of its checks."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from evalhouse.flows.errors import explain
from evalhouse.tasks.settings.suite import Notify, SuiteGate
from evalhouse.tasks.settings.target import TargetSettings
from evalhouse.warehouse.messages import hide_credentials


def show_target(target: TargetSettings) -> str:
    """A target in a word, without credentials."""
    return hide_credentials(target.url) if target.url else str(target.callable or target.runnable)


def to_plain_setting(value: object) -> Any:  # noqa: ANN401  # whatever JSON has
    """A setting as JSON, without secrets: of headers the names alone, of a notification not the address."""
    match value:
        case TargetSettings():
            shown: dict[str, Any] = {**value.model_dump(mode="json"), "headers": sorted(value.headers)}
            return {**shown, "url": hide_credentials(value.url)} if value.url else shown
        case Notify():
            return value.model_dump(mode="json", exclude={"webhook"})
        case SuiteGate():
            return value.model_dump(mode="json", exclude_defaults=True)
        case _:
            return value


def write_part(value: TargetSettings | SuiteGate | Notify) -> str:
    """A table of a suite in a few words."""
    match value:
        case TargetSettings():
            return show_target(value)
        case Notify():
            return f"on {', '.join(value.on)}"
        case SuiteGate():
            return count_limits(value)


def count_limits(gate: SuiteGate) -> str:
    """How many limits of which kind a gate has."""
    kinds: Mapping[str, int] = {
        "least means": len(gate.min),
        "most means": len(gate.max),
        f"drops against {gate.against}": len(gate.max_drop),
        "trends": len(gate.trends),
        "coverages": len(gate.coverage) + (gate.min_coverage is not None),
        "cost": int(gate.max_cost is not None),
        "latency": int(gate.max_latency_p95_ms is not None),
    }
    return ", ".join(f"{n} {kind}" for kind, n in kinds.items() if n)


Verdict = Literal["ok", "note", "wrong"]
CheckResult = tuple[Verdict, str]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that was looked at."""

    what: str
    verdict: Verdict
    detail: str


def make_finding(what: str, check: Callable[[], CheckResult]) -> Finding:
    """What a check returns; an error that a person can fix is a finding as well."""
    try:
        verdict, detail = check()
    except Exception as error:  # a check may be of anything; what is no person's to fix is raised again
        message = explain(error) or (str(error) if isinstance(error, OSError) else None)
        if message is None:
            raise
        verdict, detail = "wrong", message
    return Finding(what=what, verdict=verdict, detail=detail)
