"""The diagnosis of one run, read from the warehouse: causes with their shares, the trend, the samples, the remedies.

What gives a sample its cause is SQL (`warehouse/views/sample_causes.sql`), what a cause is called and what helps
against it is `flows/documents/remedies.py`; here the two are laid together as the document that `evalhouse diagnose
--json` prints. No model is asked, and nothing is written.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from evalhouse.flows.documents.remedies import ADVICE, Cause, Language
from evalhouse.warehouse.errors import WarehouseError
from evalhouse.warehouse.rows.runs import RunRow
from evalhouse.warehouse.store import Warehouse

_VIEWS: Final = ("cause_rules", "cause_thresholds", "run_causes", "sample_causes")
_FOUND_VIEWS = "select distinct view_name from duckdb_views() where view_name in (select unnest($names))"
_THRESHOLDS = "select threshold, value::double as value from cause_thresholds"
_CAUSES = """
select cause, n_samples, n_of, share, ci_low, ci_high
from run_causes where run_id = $run_id order by precedence
"""
_UNJUDGED = """
select reason, count(*) as n_samples
from sample_causes where run_id = $run_id and reason is not null group by reason order by n_samples desc, reason
"""
# Earlier runs of the series and this one, in time order. The embeddings decide no cause, so they are no part of the
# yardstick.
_SERIES = """
with placed as (
    select
        run_id, status, judge, language, started_at,
        lag({j: judge, l: language}) over before = {j: judge, l: language} as same_yardstick
    from run_series
    where series = (select series from run_series where run_id = $run_id)
        and (started_at, run_id) <= (select (started_at, run_id) from run_series where run_id = $run_id)
    window before as (order by started_at, run_id)
)

select run_id, status, judge, started_at, same_yardstick
from placed order by started_at desc, run_id desc limit $n_runs
"""
# The worst of a cause are those of which the largest share speaks for it.
_SAMPLES = """
with picked as (
    select *
    from sample_causes
    where run_id = $run_id and cause in (select unnest($causes))
    qualify row_number() over (
        partition by cause order by n_deciding / nullif(n_judged, 0) desc nulls last, n_deciding desc, ordinal
    ) <= $n_samples
),

stated as (
    select
        verdicts.sample_id,
        list({
            statement_id: verdicts.statement_id, text: verdicts.text, label: verdicts.label,
            label_reason: verdicts.label_reason, context_ranks: verdicts.context_ranks,
            support_reason: verdicts.support_reason
        } order by verdicts.source, verdicts.ordinal) as statements
    from statement_verdicts as verdicts
    inner join picked
        on picked.sample_id = verdicts.sample_id and list_contains(picked.statement_ids, verdicts.statement_id)
    where verdicts.run_id = $run_id
    group by verdicts.sample_id
)

select picked.cause, picked.sample_id, picked.rule, cause_rules.meaning as rule_meaning, picked.evidence,
       picked.n_deciding, picked.n_judged, picked.other_rules, coalesce(stated.statements, []) as statements,
       samples.question, samples.answer, samples.ground_truth
from picked
join cause_rules using (rule)
join run_samples on run_samples.run_id = $run_id and run_samples.sample_id = picked.sample_id
left join samples on samples.sample_id = run_samples.sample_id and samples.input_hash = run_samples.input_hash
left join stated on stated.sample_id = picked.sample_id
order by cause_rules.precedence, picked.n_deciding / nullif(picked.n_judged, 0) desc nulls last,
         picked.n_deciding desc, picked.ordinal
"""


def read_diagnosis(
    store: Warehouse, run: RunRow, *, language: Language, causes: Sequence[Cause], n_samples: int, n_runs: int
) -> dict[str, Any]:
    """Everything known of why this run's samples failed.

    `causes` are those to show, `n_samples` how many of the worst samples of each, `n_runs` how long the trend is.
    Raises WarehouseError for a warehouse whose views were laid before there were causes.
    """
    _check_views(store, run)
    of_run = {"run_id": run.run_id}
    names = ("run_id", "status", "label", "suite", "dataset", "judge", "language", "n_samples", "started_at")
    counted = store.read_rows(_CAUSES, of_run)
    picked = {**of_run, "causes": list(causes), "n_samples": n_samples}
    return {
        "run": {name: getattr(run, name) for name in names},
        "language": language,
        "thresholds": {str(row["threshold"]): row["value"] for row in store.read_rows(_THRESHOLDS)},
        "causes": [_advise(row, language) for row in counted if row["cause"] in causes],
        "not_judged": store.read_rows(_UNJUDGED, of_run) if _has_unjudged(counted, causes) else [],
        "trend": _read_trend(store, run, causes, n_runs, counted),
        "samples": store.read_rows(_SAMPLES, picked) if n_samples else [],
    }


def _check_views(store: Warehouse, run: RunRow) -> None:
    found = store.read_rows(_FOUND_VIEWS, {"names": list(_VIEWS)})
    if len(found) < len(_VIEWS):
        raise WarehouseError(
            f"{store.location.path} was last written by an evalhouse that knew no causes; "
            f"`evalhouse rescore {run.run_id}` brings it up to date, without a model call"
        )


def _advise(row: Mapping[str, Any], language: Language) -> dict[str, Any]:
    advice = ADVICE[language][cast(Cause, row["cause"])]
    return {
        **row,
        "name": advice.name,
        "meaning": advice.meaning,
        "remedies": list(advice.remedies) if row["n_samples"] else [],
    }


def _has_unjudged(counted: Sequence[Mapping[str, Any]], causes: Sequence[Cause]) -> bool:
    return "not_judged" in causes and any(row["n_samples"] for row in counted if row["cause"] == "not_judged")


def _read_trend(
    store: Warehouse, run: RunRow, causes: Sequence[Cause], n_runs: int, of_this: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """One entry a run, oldest first. Each run is read by itself, since a filter on one run reaches the tables."""
    trend = []
    for of_series in reversed(store.read_rows(_SERIES, {"run_id": run.run_id, "n_runs": n_runs})):
        is_this = of_series["run_id"] == run.run_id
        counted = of_this if is_this else store.read_rows(_CAUSES, {"run_id": of_series["run_id"]})
        shares = {str(row["cause"]): row["share"] for row in counted if row["cause"] in causes}
        n_judged = next((row["n_of"] for row in counted if row["cause"] != "not_judged"), 0)
        trend.append({**of_series, "n_judged": n_judged, "shares": shares})
    return trend
