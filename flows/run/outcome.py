"""How a run ended, and how the measuring of its judge's noise did."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from evalhouse.warehouse.rows.runs import RunRow, RunStatus

if TYPE_CHECKING:
    from evalhouse.tasks.asking.tokens import Usage
    from evalhouse.tasks.pipeline.live_run import LiveRun

Watch = Callable[["LiveRun"], AbstractContextManager[None]]


@dataclass(frozen=True, kw_only=True)
class RunOutcome:
    """How a run ended. `problem` says why when it did not complete; `noise` is there where it was to be measured."""

    run: RunRow
    status: RunStatus
    counts: "Usage"
    problem: str | None
    noise: "NoiseOutcome | None" = None


Population = Literal["unchanged", "all"]


TAGS: Final[Mapping[Population, str]] = {"unchanged": "of unchanged samples", "all": "of all samples"}
"""What `runs.tags` says of a noise run: which samples it was drawn from."""


@dataclass(frozen=True, kw_only=True)
class NoiseOutcome:
    """What came of measuring noise.

    `outcome` is how the noise run ended, None when nothing was asked: then `problem` says why, or there is none
    because the judge says the same each time. `n_changed` of `n_samples` have another score in some metric.
    """

    outcome: "RunOutcome | None" = None
    population: Population | None = None
    n_samples: int = 0
    n_changed: int = 0
    problem: str | None = None


@dataclass(frozen=True, kw_only=True)
class SuiteOutcome:
    """How a run of a suite ended. `gate` is the document of `evalhouse gate --json`; None without a gate."""

    outcome: RunOutcome
    gate: Mapping[str, Any] | None = None
    gate_failed: bool = False
