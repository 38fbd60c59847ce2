"""The diagnosis of one run, read from the warehouse: causes with their shares, the trend, the samples, the remedies.

What gives a sample its cause is SQL (`warehouse/views/sample_causes.sql`), what a cause is called and what helps
against it is `remedies.yaml`; here the two are laid together as the document that `evalhouse diagnose
--json` prints. No model is asked, and nothing is written.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal, cast, get_args

import yaml

from evalhouse.warehouse.queries import read_query
from evalhouse.warehouse.rows.runs import RunRow
from evalhouse.warehouse.rows.scores import read_causes, read_derived
from evalhouse.warehouse.store import Warehouse

Cause = Literal[
    "not_judged",
    "judge_suspect",
    "refused_rightly",
    "ground_truth_doubtful",
    "answered_unanswerable",
    "refused_wrongly",
    "retrieval_missed",
    "ground_truth_outdated",
    "knowledge_base_lacks",
    "not_in_contexts",
    "ranked_too_low",
    "hallucinated",
    "misled_by_contexts",
    "misled_by_turns",
    "contexts_ignored",
    "turns_ignored",
    "own_knowledge",
    "fine",
]
"""All causes, in the order of their first rules."""
Language = Literal["en", "zh"]
CAUSES: Final[tuple[Cause, ...]] = get_args(Cause)
LANGUAGES: Final[tuple[Language, ...]] = get_args(Language)

_REMEDIES = Path(__file__).with_name("remedies.yaml")
_THRESHOLDS = "select threshold, value::double as value from cause_thresholds"


@dataclass(frozen=True, kw_only=True)
class Advice:
    """One cause in one language: `name` for a table, `meaning` in a sentence, `remedies` the likeliest first."""

    name: str
    meaning: str
    remedies: tuple[str, ...] = ()


@cache
def load_advice(language: Language) -> Mapping[Cause, Advice]:
    """What each cause is called, what it means, and what to try against it."""
    texts = yaml.load(_REMEDIES.read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader))[language]
    return {cause: Advice(**{**texts[cause], "remedies": tuple(texts[cause].get("remedies", ()))}) for cause in CAUSES}


def read_diagnosis(
    warehouse: Warehouse, run: RunRow, *, language: Language, causes: Sequence[Cause], n_samples: int, n_runs: int
) -> dict[str, Any]:
    """Everything known of why this run's samples failed.

    `causes` are those to show, `n_samples` how many of the worst samples of each, `n_runs` how long the trend is.
    """
    of_run = {"run_id": run.run_id}
    names = ("run_id", "status", "label", "suite", "dataset", "judge", "language", "n_samples", "started_at")
    counted = read_causes(warehouse, run.run_id)
    n_by_cause = {row["cause"]: row["n_samples"] for row in counted}
    has_unjudged = "not_judged" in causes and n_by_cause.get("not_judged")
    picked = {**of_run, "causes": list(causes), "n_samples": n_samples}
    return {
        "run": {name: getattr(run, name) for name in names},
        "language": language,
        "thresholds": {str(row["threshold"]): row["value"] for row in warehouse.read_rows(_THRESHOLDS)},
        "causes": [_advise(row, language) for row in counted if row["cause"] in causes],
        "not_judged": warehouse.read(read_query("diagnosis/unjudged"), of_run).to_dicts() if has_unjudged else [],
        "trend": _read_trend(warehouse, run, causes, n_runs, counted),
        "samples": warehouse.read(read_query("diagnosis/samples"), picked).to_dicts() if n_samples else [],
    }


def _advise(row: Mapping[str, Any], language: Language) -> dict[str, Any]:
    advice = asdict(load_advice(language)[cast(Cause, row["cause"])])
    return {**row, **advice, "remedies": list(advice["remedies"]) if row["n_samples"] else []}


def _read_trend(
    warehouse: Warehouse, run: RunRow, causes: Sequence[Cause], n_runs: int, of_this: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """One entry a run, oldest first."""
    series = warehouse.read_rows(read_query("diagnosis/series"), {"run_id": run.run_id, "n_runs": n_runs})
    counted = {str(row["run_id"]): of_this if row["run_id"] == run.run_id else [] for row in series}
    others = read_derived(warehouse, "causes", counted.keys() - {run.run_id})
    for row in others.sort("precedence").to_dicts():
        counted[row["run_id"]].append(row)
    trend = []
    for of_series in reversed(series):
        of_run = counted[str(of_series["run_id"])]
        shares = {str(row["cause"]): row["share"] for row in of_run if row["cause"] in causes}
        n_judged = next((row["n_of"] for row in of_run if row["cause"] != "not_judged"), 0)
        trend.append({**of_series, "n_judged": n_judged, "shares": shares})
    return trend
