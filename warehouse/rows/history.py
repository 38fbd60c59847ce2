"""What the page of a series' history is made of: its runs, means, costs, prompts, causes, and the samples to look at.

A series is all runs of a suite, or, outside suites, of a dataset (view `run_series`). Means, costs and prompts are read
over all of it; whatever needs rows of single samples is read of a few runs alone, because a series has no end.
`flows/report/history.py` makes the page.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from evalhouse.warehouse.rows.report import Row, Rows
from evalhouse.warehouse.store import Warehouse

CAUSE_RUNS: Final = 14
"""Newest runs whose causes are told: each takes a quarter of a second at 3,000 samples."""
FLAKY_RUNS: Final = 30
"""Newest runs in which flaky samples are looked for."""
MOST_SAMPLES: Final = 20
"""Samples listed of each kind."""
SINCE: Final = timedelta(days=7)
"""How far back the run lies that the newest is laid beside, where there is one."""

_KNOWN = """
select series, count(distinct run_id) as n_runs
from run_series
where run_id in (select run_id from scores)
group by series
order by series
"""
_RUNS = """
select runs.run_id, runs.started_at, runs.finished_at, runs.status, runs.label, runs.judge, runs.embeddings,
       runs.language, runs."trigger", runs.kb_name, runs.kb_version, runs.gate, runs.problem, runs.n_samples,
       runs.suite_hash, runs.code_version
from run_series
inner join runs on runs.run_id = run_series.run_id
where run_series.series = $series
order by runs.started_at, runs.run_id
"""
_MEANS = """
select metric, run_id, started_at, judge, metric_version, mean, ci_low, ci_high, n_scored, n_unscored, same_yardstick
from score_history
where series = $series
order by metric, started_at, run_id
"""
_COSTS = """
select run_id, sum(n_requests)::bigint as n_requests, sum(n_reused)::bigint as n_reused,
       sum(n_failed)::bigint as n_failed, sum(prompt_tokens + completion_tokens)::bigint as tokens,
       sum(cost_usd) as cost_usd, sum(n_unpriced)::bigint as n_unpriced
from run_costs
where run_id in (select run_id from run_series where series = $series)
group by run_id
"""
_PROMPTS = """
with used as (
    select distinct run_id, prompt_hash
    from llm_calls
    where run_id in (select run_id from run_series where series = $series) and prompt_hash is not null
)

select used.run_id, prompts.prompt, prompts.version, used.prompt_hash
from used
inner join prompts on prompts.prompt_hash = used.prompt_hash
order by used.run_id, prompts.prompt, prompts.version, used.prompt_hash
"""
_CAUSES = "select cause, n_samples, n_of, share from run_causes where run_id = $run_id order by precedence"
# One input and one yardstick: what then moves is the judge. From tables and not from `sample_history`, whose windows
# are over all that was ever scored.
_FLAKY = """
with lately as (
    select run_id, judge, embeddings, language
    from run_series
    where series = $series
    order by started_at desc, run_id desc
    limit $n_runs
)

select scores.sample_id, scores.metric, count(*) as n_runs, count(distinct round(scores.value, 9)) as n_values,
       min(scores.value) as lowest, max(scores.value) as highest, max(scores.run_id) as last_run_id
from scores
inner join lately on lately.run_id = scores.run_id
inner join run_samples on run_samples.run_id = scores.run_id and run_samples.sample_id = scores.sample_id
where scores.value is not null
group by scores.sample_id, scores.metric, scores.metric_version, run_samples.input_hash, lately.judge,
         lately.embeddings, lately.language
having max(scores.value) - min(scores.value) > 1e-9
order by max(scores.value) - min(scores.value) desc, n_values desc, scores.sample_id, scores.metric
limit $most
"""
_WORSE = """
with after as (select sample_id, metric, value, metric_version from scores where run_id = $candidate),

before as (select sample_id, metric, value, metric_version from scores where run_id = $base),

fallen as (
    select after.sample_id, after.metric, before.value as before, after.value as after,
           if(after.metric in (select unnest($low_is_good)), after.value - before.value, before.value - after.value)
               as worse_by,
           after.metric_version <> before.metric_version as formula_changed
    from after
    inner join before on before.sample_id = after.sample_id and before.metric = after.metric
    where worse_by > 1e-9
),

worst as (
    select sample_id, max(worse_by) as worst_by, sum(worse_by) as worse_by, bool_or(formula_changed) as formula_changed,
           list({metric: metric, before: before, after: after} order by worse_by desc, metric) as moves
    from fallen
    group by sample_id
    order by worst_by desc, worse_by desc, sample_id
    limit $most
)

select worst.*, here.input_hash <> there.input_hash as input_changed,
       new_texts.question, old_texts.answer as old_answer, new_texts.answer as new_answer
from worst
inner join run_samples as here on here.run_id = $candidate and here.sample_id = worst.sample_id
inner join run_samples as there on there.run_id = $base and there.sample_id = worst.sample_id
left join samples as new_texts
    on new_texts.sample_id = here.sample_id and new_texts.input_hash = here.input_hash
left join samples as old_texts
    on old_texts.sample_id = there.sample_id and old_texts.input_hash = there.input_hash
order by worst.worst_by desc, worst.worse_by desc, worst.sample_id
"""


@dataclass(frozen=True, kw_only=True)
class SeriesData:
    """A series as rows, runs oldest first.

    `means` has a row per metric and run, in time order within the metric; `causes` is by run id, of the newest runs.
    `worse` lists samples that are worse in the newest run with scores than in run `since` (None with only one run).
    """

    series: str
    runs: Rows
    means: Rows
    costs: dict[str, Row]
    prompts: Rows
    causes: dict[str, Rows]
    flaky: Rows
    since: Row | None
    newest: Row
    worse: Rows


def find_series(store: Warehouse, wanted: str) -> tuple[str | None, list[str]]:
    """The series meant by a suite's name, a dataset's, or a series' own, and all series with scores.

    A suite goes before a dataset of the same name.
    """
    known = [str(row["series"]) for row in store.read_rows(_KNOWN)]
    meant = (f"suite {wanted}", f"dataset {wanted}", wanted)
    return next((series for series in meant if series in known), None), known


def read_series(store: Warehouse, series: str, *, low_is_good: Sequence[str]) -> SeriesData:
    """Everything about a series of which at least one run has scores."""
    of_series = {"series": series}
    runs, means = store.read_rows(_RUNS, of_series), store.read_rows(_MEANS, of_series)
    scored = {row["run_id"] for row in means}
    with_scores = [run for run in runs if run["run_id"] in scored]
    newest, since = with_scores[-1], _find_base(with_scores)
    pair = {"candidate": newest["run_id"], "base": since["run_id"] if since else None}
    return SeriesData(
        series=series,
        runs=runs,
        means=means,
        costs={str(row["run_id"]): row for row in store.read_rows(_COSTS, of_series)},
        prompts=store.read_rows(_PROMPTS, of_series),
        # Each run by itself, since a filter on one run reaches the tables.
        causes={
            str(run["run_id"]): store.read_rows(_CAUSES, {"run_id": run["run_id"]}) for run in with_scores[-CAUSE_RUNS:]
        },
        flaky=store.read_rows(_FLAKY, {**of_series, "n_runs": FLAKY_RUNS, "most": MOST_SAMPLES}),
        since=since,
        newest=newest,
        worse=store.read_rows(_WORSE, {**pair, "low_is_good": list(low_is_good), "most": MOST_SAMPLES})
        if since
        else [],
    )


def _find_base(runs: Rows) -> Row | None:
    """The newest run that is a week older than the last one, or the first where none is that old."""
    if len(runs) == 1:
        return None
    old = [run for run in runs if run["started_at"] <= runs[-1]["started_at"] - SINCE]
    return old[-1] if old else runs[0]
