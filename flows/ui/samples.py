"""The samples of a run as a table that the server filters, sorts and pages by the address; one sample and its verdicts.

`where=faithfulness<0.5`, `where=faithfulness change<0` and `where=faithfulness unscored` are tests of a metric. All
that are given must hold. The form of the page has separate fields for a new test, because a form cannot make
such a text without a script.
"""

import math
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import RedirectResponse, Response

from evalhouse.flows.report.charts import draw_trend, embed_data, write_change
from evalhouse.flows.report.samples import build_samples
from evalhouse.flows.results.baseline import MIN_CHANGE
from evalhouse.flows.results.output import write_value
from evalhouse.flows.results.run_facts import CAUSES, group_metrics, list_first, load_advice, sort_first
from evalhouse.flows.ui.judge import list_items
from evalhouse.flows.ui.pages import find_flow_run_page, find_warehouse, link, render
from evalhouse.warehouse.messages import shorten, suggest
from evalhouse.warehouse.metric_files import SIGNS
from evalhouse.warehouse.rows.pages import (
    Condition,
    Scores,
    Search,
    count_labelled,
    fetch_found_scores,
    fetch_sample,
    find_samples,
)
from evalhouse.warehouse.rows.runs import RunRow, find_run
from evalhouse.warehouse.rows.samples import find_previous
from evalhouse.warehouse.store import Warehouse

SORTS: Final = {"score": "its score", "change": "its change", "order": "order of the dataset", "id": "id"}
TESTS: Final = {"<": "below", "<=": "at most", ">": "above", ">=": "at least", "=": "is", "unscored": "unscored"}
VERDICTS: Final = {"fp": "FP: wrong statement", "fn": "FN: left out", "unsupported": "unsupported statement"}
LABELS: Final = {
    "labelled": "labelled by a person",
    "unlabelled": "not labelled",
    "agrees": "a person agrees with the judge",
    "differs": "a person differs from the judge",
}
LANGUAGES: Final = ("en", "zh")
METADATA: Final = "metadata."
_CHANGE: Final = "change"
_CONDITION: Final = re.compile(r"([a-z][a-z0-9_]*)( change)?(?: (unscored)|\s*(<=|>=|<|>|=)\s*([-+.\deE]+))")
_FORM: Final = ("where_metric", "where_test", "where_number")
_NAMES: Final = (
    "metric", "sort", "descending", "where", "cause", "verdict", "label", "language", "words", "column", "base", "page",
    *_FORM,
)  # fmt: skip
_MANY: Final = ("where", "verdict", "column")

Parameters = list[tuple[str, str]]


@dataclass(frozen=True, kw_only=True)
class Filters:
    """The filters and the order in an address; None or empty for a filter that it does not have, `page` from 1."""

    metric: str | None = None
    sort: str = "score"
    descending: bool | None = None
    where: tuple[Condition, ...] = ()
    cause: str | None = None
    verdicts: tuple[str, ...] = ()
    label: str | None = None
    language: str | None = None
    words: str = ""
    tags: tuple[tuple[str, str], ...] = ()
    columns: tuple[str, ...] = ()
    base: str | None = None
    page: int = 1

    def to_parameters(self) -> Parameters:
        """Return the parameters of the address, without parameters at their defaults."""
        descending = None if self.descending is None else "yes" if self.descending else "no"
        single = {
            "words": self.words,
            "cause": self.cause,
            "label": self.label,
            "language": self.language,
            "metric": self.metric,
            "sort": self.sort if self.sort != "score" else None,
            "descending": descending,
            "base": self.base,
            "page": str(self.page) if self.page > 1 else None,
        }
        return [
            *(("where", write_condition(condition)) for condition in self.where),
            *(("verdict", verdict) for verdict in self.verdicts),
            *((METADATA + key, value) for key, value in self.tags),
            *((name, value) for name, value in single.items() if value),
            *(("column", metric) for metric in self.columns),
        ]

    def list_filters(self) -> Iterator[tuple[str, "Filters"]]:
        """Yield each filter in words, with the filters without it."""
        first = replace(self, page=1)
        for condition in self.where:
            others = tuple(other for other in self.where if other != condition)
            yield write_condition(condition), replace(first, where=others)
        for verdict in self.verdicts:
            yield (
                VERDICTS[verdict],
                replace(first, verdicts=tuple(other for other in self.verdicts if other != verdict)),
            )
        if self.cause:
            yield f"cause: {self.cause}", replace(first, cause=None)
        if self.label:
            yield LABELS[self.label], replace(first, label=None)
        if self.language:
            yield f"language: {self.language}", replace(first, language=None)
        for tag in self.tags:
            yield f"{tag[0]}: {tag[1]}", replace(first, tags=tuple(other for other in self.tags if other != tag))
        if self.words:
            yield f"text: {self.words}", replace(first, words="")


def write_condition(condition: Condition) -> str:
    """Write a test as addresses have it."""
    measured = f"{condition.metric} {_CHANGE}" if condition.is_change else condition.metric
    return f"{measured} unscored" if condition.number is None else f"{measured}{condition.test}{condition.number:.15g}"


def parse_filters(given: Sequence[tuple[str, str]], metrics: Sequence[str], causes: Sequence[str]) -> Filters:
    """Parse the parameters of an address, for a run with these metrics; empty ones are ignored.

    Raises HTTPException 400 that names the allowed values.
    """
    values: dict[str, list[str]] = {}
    for name, value in given:
        if name.startswith(METADATA) and value:
            values.setdefault(name, []).append(value)
        elif not name.startswith(METADATA):
            _check_known("the filter", name, _NAMES)
            if value.strip():
                values.setdefault(name, []).append(value.strip())
    for name in values.keys() - set(_MANY):
        if len(set(values[name])) > 1:
            raise HTTPException(400, f"{name} is {len(values[name])} times in the address; give one")

    def parse_choice(name: str, allowed: Sequence[str]) -> str | None:
        return _check_known(name, values[name][0], allowed) if name in values else None

    conditions = []
    for text in values.get("where", []):
        match = _CONDITION.fullmatch(text)
        if match is None:
            raise HTTPException(
                400,
                f"where is {text!r}; write a metric and a test, such as faithfulness<0.5, faithfulness change<0 or "
                "faithfulness unscored",
            )
        metric = _check_known("the metric of where", match[1], metrics)
        if match[3]:
            conditions.append(Condition(metric=metric, is_change=False, test="unscored", number=None))
        else:
            number = _parse_number(match[5])
            conditions.append(Condition(metric=metric, is_change=bool(match[2]), test=match[4], number=number))
    if added := parse_choice("where_metric", metrics):
        # The test in the separate fields of the form.
        test, numbers = parse_choice("where_test", tuple(TESTS)), values.get("where_number")
        if test == "unscored":
            conditions.append(Condition(metric=added, is_change=False, test=test, number=None))
        elif numbers:
            number = _parse_number(numbers[0])
            conditions.append(Condition(metric=added, is_change=False, test=test or "<", number=number))
        else:
            raise HTTPException(400, f"a number is missing: which {added} is looked for?")
    page = values.get("page", ["1"])[0]
    if not (page.isascii() and page.isdigit() and 0 < len(page) < 7 and int(page)):
        raise HTTPException(400, f"page is {page!r}; it is a number from 1")
    descending = parse_choice("descending", ("yes", "no"))
    verdicts = [_check_known("verdict", verdict, tuple(VERDICTS)) for verdict in values.get("verdict", [])]
    columns = [_check_known("column", column, metrics) for column in values.get("column", [])]
    tags = [(name.removeprefix(METADATA), texts[0]) for name, texts in values.items() if name.startswith(METADATA)]
    return Filters(
        metric=parse_choice("metric", metrics),
        sort=parse_choice("sort", tuple(SORTS)) or "score",
        descending=None if descending is None else descending == "yes",
        where=tuple(dict.fromkeys(conditions)),
        cause=parse_choice("cause", causes),
        verdicts=tuple(dict.fromkeys(verdicts)),
        label=parse_choice("label", tuple(LABELS)),
        language=parse_choice("language", LANGUAGES),
        words=values.get("words", [""])[0],
        tags=tuple(tags),
        columns=tuple(dict.fromkeys(columns)),
        base=values.get("base", [None])[0],
        page=int(page),
    )


def _parse_number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise HTTPException(400, f"{text!r} is not a number such as 0.5")
    return number


def _check_known(what: str, given: str, allowed: Sequence[str]) -> str:
    """Return a word of a closed list; raises HTTPException 400 that names the allowed ones."""
    if given not in allowed:
        raise HTTPException(400, f"{what} is {given!r}; {suggest(given, allowed)}")
    return given


router = APIRouter()
PAGE: Final = 50
MAX_VALUES: Final = 30
"""Metadata with more values than this do not help to choose samples."""
_MAX_ANSWER: Final = 300
_MAX_TITLE: Final = 200
_MAX_RUNS: Final = 60
"""Newest runs of a series in which the scores of a sample are shown."""
_NOT_SCORED: Final = {"value": None, "unscored_reason": "not scored yet", "change": None}


@dataclass(frozen=True, kw_only=True)
class SampleList:
    """The samples of a run that fit the filters of an address, in their order."""

    run: RunRow
    wanted: Filters
    metrics: Mapping[str, int]
    """The worth of a rise by metric, as in SIGNS; the first ones at the front."""
    metric: str | None
    base: str | None
    is_descending: bool
    sample_ids: Sequence[str]

    @property
    def columns(self) -> list[str]:
        """The metrics in the table: the columns of the address, else the first ones, and the metric it is sorted by."""
        chosen = self.wanted.columns or list_first([*self.metrics], self.run.config)
        return [*chosen, *([self.metric] if self.metric and self.metric not in chosen else [])]

    def address(self, kind: str = "", **changes: Any) -> str:  # noqa: ANN401  # fields of Filters
        """Return the address of this table with some filters changed; `kind` is the ending of another format."""
        parameters = urlencode(replace(self.wanted, **changes).to_parameters())
        return f"{link(f'/runs/{self.run.run_id}/samples{kind}')}{'?' if parameters else ''}{parameters}"


def find_list(warehouse: Warehouse, run: RunRow, given: Sequence[tuple[str, str]]) -> SampleList:
    """Find the samples that fit the parameters of an address; raises HTTPException 400 for values it does not allow."""
    rows = {str(row["metric"]): row for row in warehouse.fetch_rows("ui/run_metrics", run_id=run.run_id)}
    metrics = {name: SIGNS[rows[name]["better"]] for name in sort_first(sorted(rows))}
    wanted = parse_filters(given, list(metrics), CAUSES)
    scored = (name for name in metrics if rows[name]["n_scored"])
    metric = wanted.metric or next(scored, None)
    base = find_run(warehouse, wanted.base).run_id if wanted.base else find_previous(warehouse, run.run_id)
    if base is None and (wanted.sort == "change" or any(condition.is_change for condition in wanted.where)):
        raise HTTPException(400, "no run of this series is before this one; name a run to count changes from: base=RUN")
    is_worst_high = wanted.sort in ("score", "change") and metrics.get(metric or "", 1) < 0
    is_descending = is_worst_high if wanted.descending is None else wanted.descending
    search = Search(
        metric=metric, sort=wanted.sort, descending=is_descending, conditions=wanted.where, cause=wanted.cause,
        verdicts=wanted.verdicts, label=wanted.label, language=wanted.language, tags=wanted.tags,
        words=wanted.words.split(), base=base,
    )  # fmt: skip
    return SampleList(
        run=run, wanted=wanted, metrics=metrics, metric=metric, base=base, is_descending=is_descending,
        sample_ids=find_samples(warehouse, run, search),
    )  # fmt: skip


@router.get("/runs/{run}/samples")
def show_samples(request: Request, run: str) -> Response:
    """Show a page of the samples that fit the address."""
    warehouse = find_warehouse(request)
    given = request.query_params.multi_items()
    found = find_list(warehouse, find_run(warehouse, run), given)
    if given != found.wanted.to_parameters():
        # A form also sends empty fields and its separate fields; the address to pass on is shorter.
        return RedirectResponse(found.address(), status_code=303)
    n_pages = max(1, -(-len(found.sample_ids) // PAGE))
    if found.wanted.page > n_pages:
        raise HTTPException(400, f"page is {found.wanted.page}; what is found has {n_pages}")
    start = (found.wanted.page - 1) * PAGE
    tags: dict[str, dict[str, int]] = {}  # by key of the metadata its values, with the number of samples that have each
    for row in warehouse.fetch_rows("ui/run_tags", run_id=found.run.run_id, most=MAX_VALUES):
        tags.setdefault(row["key"], {})[row["value"]] = row["n"]
    shown = found.sample_ids[start : start + PAGE]
    fields = [METADATA + key for key in tags]
    scores = fetch_found_scores(warehouse, found.run, found.base, shown)
    labelled = count_labelled(warehouse, found.run, shown)
    came_from = urlencode(found.wanted.to_parameters())
    rows = []
    for row in warehouse.fetch_rows("ui/found_samples", {"sample_id": shown}, run_id=found.run.run_id):
        cells = []
        for name in found.columns:
            score = scores.get((row["sample_id"], name), _NOT_SCORED)
            gain = (score["change"] or 0) * found.metrics[name]
            cells.append(
                {
                    "value": write_value(score["value"]),
                    "reason": score["unscored_reason"],
                    "change": write_change(score["change"]) if score["change"] else None,
                    "tone": "better" if gain >= MIN_CHANGE else "worse" if gain <= -MIN_CHANGE else "",
                }
            )
        rows.append(
            {
                **row,
                "link": link(f"/runs/{found.run.run_id}/sample", id=row["sample_id"], list=came_from),
                "n_labels": labelled.get(row["sample_id"], 0),
                "answer": shorten(row["answer"], _MAX_ANSWER) if row["answer"] else None,
                "cells": cells,
            }
        )
    return render(
        request,
        "samples.html",
        found=found,
        run=found.run,
        wanted=found.wanted,
        n_pages=n_pages,
        start=start,
        rows=rows,
        causes={cause: load_advice("en")[cause].name for cause in CAUSES},
        tags=tags,
        metadata=METADATA,
        sorts=SORTS,
        tests=TESTS,
        verdicts=VERDICTS,
        labels=LABELS,
        metric_names=[(name, name) for name in found.metrics],
        # Hidden in the form: tests and verdicts that are set already, and metadata without a field.
        kept=[
            (name, value)
            for name, value in found.wanted.to_parameters()
            if name in ("where", "verdict", "base") or (name.startswith(METADATA) and name not in fields)
        ],
        chips=[(text, found.address(**vars(without))) for text, without in found.wanted.list_filters()],
    )


@router.get("/runs/{run}/samples.csv")
def save_samples(request: Request, run: str) -> Response:
    """Send all samples that fit the address as a table for a spreadsheet, with all metrics."""
    from evalhouse.tasks.reviews.export import write_csv  # noqa: PLC0415  # imports the lexical judge

    warehouse = find_warehouse(request)
    found = find_list(warehouse, find_run(warehouse, run), request.query_params.multi_items())
    scores = fetch_found_scores(warehouse, found.run, found.base, found.sample_ids)
    rows = [
        _list_cells(row, found, scores)
        for row in warehouse.fetch_rows("ui/found_samples", {"sample_id": found.sample_ids}, run_id=found.run.run_id)
    ]
    names = {"Content-Disposition": f'attachment; filename="samples-{found.run.run_id}.csv"'}
    return Response(write_csv(rows, _list_cells({}, found, {})), media_type="text/csv; charset=utf-8", headers=names)


def _list_cells(row: Mapping[str, Any], found: SampleList, scores: Scores) -> dict[str, Any]:
    """Return the cells of a row by column."""
    held = {name: scores.get((row.get("sample_id", ""), name), {}) for name in found.metrics}
    texts = {name: row.get(name) for name in ("sample_id", "question", "answer", "ground_truth", "metadata", "cause")}
    counts = {name: row.get(f"n_{name}") for name in ("tp", "fp", "fn", "unsupported")}
    changes = {f"change.{name}": score.get("change") for name, score in held.items()} if found.base else {}
    return {**texts, **counts, **{name: score.get("value") for name, score in held.items()}, **changes}


_LANGUAGE: Final = "en"
_MAX_LIST: Final = 4000
"""Letters of an address that is passed on within another one."""


@router.get("/sample")
def lead_to_sample(id: str, run: str) -> Response:
    """Redirect from the address of a sample with the run at its end, as points of a chart have it."""
    return RedirectResponse(link(f"/runs/{run}/sample", id=id), status_code=303)


@router.get("/runs/{run}/sample")
def show_sample(request: Request, run: str, id: str, list: str = "", reviewer: str = "") -> Response:
    """Show a sample by its id.

    `list` has the parameters of the samples' page it was found on, `reviewer` is the person who labels.
    """
    if len(list) > _MAX_LIST:
        raise HTTPException(400, f"list has {len(list)} letters, of at most {_MAX_LIST}; open the sample by its id")
    warehouse, name = find_warehouse(request), reviewer.strip()
    row = find_run(warehouse, run)
    found = find_list(warehouse, row, parse_qsl(list))
    base = find_run(warehouse, found.base) if found.base else None
    data = collect(warehouse, found, base, id)
    # By metric of the table the scores of this sample over the runs of its series, where there are two or more.
    of_sample = {"run_id": found.run.run_id, "sample_id": id}
    rows = warehouse.fetch_rows("ui/sample_scores", **of_sample, metrics=[*found.columns], n_runs=_MAX_RUNS)
    nights = {metric: [*of_metric] for metric, of_metric in groupby(rows, key=lambda row: str(row["metric"]))}
    to_run = link("/sample", id=id) + "&run="
    charts = [
        {
            "name": metric,
            "value": write_value(nights[metric][-1]["mean"]),
            "chart": draw_trend(nights[metric], f"{metric} of sample {id}", link=to_run),
        }
        for metric in found.columns
        if len(nights.get(metric, ())) > 1 and any(night["mean"] is not None for night in nights[metric])
    ]
    # The place of the sample in its list, from 1, and the addresses beside it; a sample that has left the list, such as
    # after it was labelled, is followed by the list's first.
    ids = found.sample_ids
    place = ids.index(id) if id in ids else -1
    parameters = urlencode(replace(found.wanted, page=1).to_parameters())
    steps: dict[str, Any] = {"place": place + 1, "n": len(ids), "before": None, "next": None}
    for step, beside in (("before", place - 1), ("next", place + 1)):
        if 0 <= beside < len(ids):
            steps[step] = link(f"/runs/{row.run_id}/sample", id=ids[beside], list=parameters, reviewer=name)
    # The runs in which the answer differs from that of the run before, the newest first.
    versions = []
    for answer in warehouse.fetch_rows("ui/sample_answers", run_id=row.run_id, sample_id=id, most=20):
        before = answer["previous_run_id"]
        sample_address = link(f"/runs/{answer['run_id']}/sample", id=id)
        pair_address = before and link("/compare", base=before, candidate=answer["run_id"])
        versions.append({**answer, "sample": sample_address, "pair": pair_address})
    return render(
        request,
        "sample.html",
        run=row,
        sample_id=id,
        base=base,
        found=found,
        list=list,
        steps=steps,
        reviewer=name,
        items=list_items(warehouse, row.run_id, id, name) if name else [],
        data=embed_data(data),
        title=shorten(data["sample"].question, _MAX_TITLE),
        question=data["sample"].question,
        charts=charts,
        max_runs=_MAX_RUNS,
        versions=versions,
        flow_run=find_flow_run_page(row),
        command=f"evalhouse lineage {row.run_id} {quote_argument(id)}",
    )


def collect(warehouse: Warehouse, found: SampleList, base: RunRow | None, sample_id: str) -> dict[str, Any]:
    """Return the data for the script: the record, the index of a report for this one sample, and shared texts."""
    run = found.run
    shared: dict[str, str] = {}
    rows = fetch_sample(warehouse, run, base, sample_id)
    (record,) = build_samples(rows, shared)
    (summary,) = warehouse.fetch_rows("ui/found_samples", {"sample_id": [sample_id]}, run_id=run.run_id)
    scores = fetch_found_scores(warehouse, run, found.base, [sample_id])
    of_metric = [scores.get((sample_id, name), {}) for name in found.metrics]
    values, changes = ([score.get(name) for score in of_metric] for name in ("value", "change"))
    of_base = [
        None if value is None or change is None else value - change
        for value, change in zip(values, changes, strict=True)
    ]
    return {
        "sample": record,
        "index": {
            "metrics": [*found.metrics],
            "scores": [[value] for value in values],
            "reasons": [[score.get("unscored_reason")] for score in of_metric],
            "base": [[value] for value in of_base] if found.base else None,
            "causes": [summary["cause"]],
            "cause_names": {cause: advice.name for cause, advice in load_advice(_LANGUAGE).items()},
            "groups": group_metrics([*found.metrics], run.config),
        },
        "fixed": shared,
    }


def quote_argument(text: str) -> str:
    """Quote a text as one argument of a shell; control characters are written as the shell reads them."""
    if text.isprintable():
        return shlex.quote(text)
    escaped = text.encode("unicode_escape").decode().replace("'", "\\'")
    return f"$'{escaped}'"
