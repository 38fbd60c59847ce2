"""The HTML files: reports of a run and of a series, pages for reviewers, and the check of a test set.

Their texts come from datasets and models, so none of them may become markup or script. Texts in the page itself are
escaped by Jinja; the data of samples is gzipped JSON in base64, whose letters cannot end an element, and the page's
script makes nodes and texts of it, never markup. A Content-Security-Policy allows the script and the style sheet by
their hashes, and nothing to be loaded or sent. Samples come in blocks that a browser unpacks when one is opened.
"""

import base64
import gzip
import hashlib
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import count, islice, pairwise
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, BinaryIO, Final, Literal

import jinja2
import orjson
from markupsafe import Markup

from evalhouse.flows.report.charts import Mark, draw_amounts, draw_shares, draw_trend, write_change
from evalhouse.flows.report.samples import SampleRecord, build_samples
from evalhouse.flows.report.sections import (
    Addresses,
    build_head,
    describe_run,
    describe_slices,
    draw_charts,
    explain_metrics,
    rank_causes,
)
from evalhouse.flows.results.baseline import Difference, list_differences
from evalhouse.flows.results.headline import Compare, compare_plainly, lay_against
from evalhouse.flows.results.output import (
    sort_by_metric,
    write_count,
    write_dollars,
    write_interval,
    write_share,
    write_shared,
    write_value,
)
from evalhouse.flows.results.run_facts import CAUSES, group_metrics, load_advice, sort_first
from evalhouse.flows.results.variants import describe_night
from evalhouse.tasks.reviews.export import Pick
from evalhouse.tasks.reviews.labels import list_choices
from evalhouse.tasks.testsets.decisions import LABELS, AskedQuestions
from evalhouse.tasks.testsets.passages import Passage
from evalhouse.tasks.testsets.questions import Span
from evalhouse.warehouse.engine.connection import close_kept
from evalhouse.warehouse.messages import clean_text, shorten
from evalhouse.warehouse.metric_files import SIGNS, load_metrics
from evalhouse.warehouse.rows.pages import (
    FLAKY_RUNS,
    Row,
    SampleSlice,
    SeriesData,
    fetch_summary,
)
from evalhouse.warehouse.rows.run_pairs import RunPair
from evalhouse.warehouse.rows.runs import RunRow, find_run
from evalhouse.warehouse.rows.samples import plain_turns
from evalhouse.warehouse.store import Warehouse

BLOCK_SAMPLES: Final = 50
"""Samples in a block: under a megabyte to unpack when one of them is opened."""
MAX_VALUES: Final = 30
"""Metadata with more values, or nearly as many as samples, do not help to choose samples."""

_ASSETS = Path(__file__).with_name("assets")


@dataclass(frozen=True, kw_only=True)
class Block:
    """Packed data of the page: gzipped JSON in base64, between two places of a file."""

    id: str
    file: BinaryIO
    start: int
    end: int

    @property
    def packed(self) -> Markup:
        """The data."""
        self.file.seek(self.start)
        return Markup(self.file.read(self.end - self.start).decode())


@dataclass(kw_only=True)
class _Index:
    """The table of all samples by column, in the run's order; the script reads it by these names."""

    metrics: list[str]
    signs: list[int]
    scores: list[list[float | None]]
    reasons: list[list[str | None]]
    base: list[list[float | None]] | None
    causes: list[str | None]
    cause_names: dict[str, str]
    groups: dict[str, list[str]]
    block_size: int = BLOCK_SAMPLES
    metadata: dict[str, list[str | None]] = field(default_factory=dict)
    ids: list[str] = field(default_factory=list)
    questions: list[str] = field(default_factory=list)
    answers: list[str | None] = field(default_factory=list)
    truths: list[str | None] = field(default_factory=list)
    tp: list[int] = field(default_factory=list)
    fp: list[int] = field(default_factory=list)
    fn: list[int] = field(default_factory=list)
    unsupported: list[int] = field(default_factory=list)
    flipped: list[int] = field(default_factory=list)
    failed: list[bool] = field(default_factory=list)
    verdicts_changed: list[int] = field(default_factory=list)

    def add(self, record: SampleRecord) -> None:
        """Add the next sample."""
        of_answer = [statement for statement in record.statements if statement.source == "answer"]
        self.ids.append(record.sample_id)
        self.questions.append(record.question)
        self.answers.append(record.answer)
        self.truths.append(record.ground_truth)
        self.tp.append(sum(statement.label == "TP" for statement in of_answer))
        self.fp.append(sum(statement.label == "FP" for statement in of_answer))
        self.fn.append(sum(statement.label == "FN" for statement in record.statements))
        self.unsupported.append(sum(statement.supported is False for statement in of_answer))
        self.flipped.append(len(record.votes))
        self.verdicts_changed.append(len(record.flips))
        self.failed.append(any(failure["reason"].endswith("failed") for failure in record.failures))
        n = len(self.ids)
        for key, value in (record.metadata or {}).items():
            if isinstance(value, str | int | float) and value != "":
                column = self.metadata.setdefault(key, [])
                column += [None] * (n - 1 - len(column))
                column.append(str(value))


def build_page(
    warehouse: Warehouse,
    run: RunRow,
    base: RunRow | None,
    slices: Iterable[SampleSlice],
    spool: BinaryIO,
    *,
    with_calls: bool,
    by: str | None = None,
) -> Iterator[str]:
    """Build the report of a run and yield it in parts, since it may be large; its blocks wait in `spool`.

    `base` is the run to compare with, None for one run alone, `slices` its samples, and `by` a metadata column for
    means by its values. Raises WarehouseError for a warehouse of another version.
    """
    summary = fetch_summary(warehouse, run)
    run_id = run.run_id
    causes = dict(warehouse.fetch("report/causes", run_id=run_id).iter_rows())
    sections = describe_run(warehouse, run, base, summary, by=by)
    by_column = {} if by is None else describe_slices(warehouse, run, by) | {"columns": []}
    metrics = sort_by_metric(summary.metrics, run.metrics)
    names = [str(row["metric"]) for row in metrics]
    # The index begins with the scores, by column and by place of the sample; `add` adds the other data of a sample.
    # One row a sample and metric, in the run's order: as dictionaries they would take hundreds of megabytes.
    scores = warehouse.fetch("report/scores", run_id=run_id)
    sample_ids = scores["sample_id"].unique(maintain_order=True)
    places = {sample_id: place for place, sample_id in enumerate(sample_ids)}
    columns = {name: column for column, name in enumerate(names)}
    index = _Index(
        metrics=names,
        signs=[SIGNS[row["better"]] for row in metrics],
        scores=[[None] * len(places) for _ in names],
        reasons=[[None] * len(places) for _ in names],
        base=None if base is None else [[None] * len(places) for _ in names],
        causes=[causes.get(sample_id) for sample_id in places],
        cause_names={cause: load_advice("en")[cause].name for cause in CAUSES},
        groups=group_metrics(names, run.config),
    )
    for sample_id, metric, value, reason in scores.iter_rows():
        if metric is not None:
            column, place = columns[metric], places[sample_id]
            index.scores[column][place], index.reasons[column][place] = value, reason
    if base is not None and index.base is not None:
        # Of the samples that are in both runs.
        scores = warehouse.fetch("report/base_scores", run_id=run_id, base=base.run_id)
        for sample_id, metric, value in scores.iter_rows():
            if metric in columns:
                index.base[columns[metric]][places[sample_id]] = value
    # Neither the scores nor what DuckDB keeps after these queries is held beside the slices.
    del scores
    close_kept()
    shared: dict[str, str] = {}
    records = (record for rows in slices for record in build_samples(rows, shared))
    blocks: list[Block] = []

    def keep(name: str, packed: str) -> None:
        start = spool.seek(0, os.SEEK_END)
        spool.write(packed.encode())
        blocks.append(Block(id=name, file=spool, start=start, end=spool.tell()))

    # While one block is compressed this thread makes the next records.
    with ThreadPoolExecutor(max_workers=1) as other:
        packing: Future[Markup] | None = None
        for number in count():
            block = list(islice(records, BLOCK_SAMPLES))
            for record in block:
                index.add(record)
            if packing is not None:
                keep(f"block-{number - 1}", packing.result())
            if not block:
                break
            packing = other.submit(pack, block)
    # Only metadata with few values help to choose samples.
    n = len(index.ids)
    filled = {key: [*column, *[None] * (n - len(column))] for key, column in index.metadata.items()}
    most = min(MAX_VALUES, max(2, n // 2))
    index.metadata = {
        key: column for key, column in filled.items() if len(set(column)) > 1 and len(set(column) - {None}) <= most
    }
    scored = {str(row["metric"]) for row in summary.metrics if row["n_scored"]}
    keep("index", pack(index))
    keep("fixed", pack(shared))
    return generate_page(
        "page.html",
        styles=("report.css",),
        scripts=("plot.js", "charts.js", "data.js", "sample.js", "table.js", "csv.js", "tip.js", "page.js"),
        title=f"{run.label or run.dataset or 'Run'} · {run.run_id}",
        samples_address="#samples",
        index_metrics=names,
        first_metric=next((name for name in sort_first(names) if name in scored), None),
        charts=draw_charts(dict(zip(names, index.scores, strict=True)), summary.history),
        blocks=blocks,
        with_calls=with_calls,
        warehouse=warehouse.location.path.name,
        slices=by_column,
        **sections,
    )


def write_page(
    path: Path,
    warehouse: Warehouse,
    run: RunRow,
    base: RunRow | None,
    slices: Iterable[SampleSlice],
    *,
    with_calls: bool,
    by: str | None = None,
) -> int:
    """Write the report of a run to a file, as `build_page` builds it, and return its size in bytes."""
    with TemporaryFile() as spool:
        parts = build_page(warehouse, run, base, slices, spool, with_calls=with_calls, by=by)
        with path.open("wb") as file:
            return sum(file.write(part.encode()) for part in parts)


def pack(value: object) -> Markup:
    """Pack data of a page into letters of base64, which cannot end an element; equal data give equal pages."""
    return Markup(base64.b64encode(gzip.compress(orjson.dumps(value), compresslevel=9, mtime=0)).decode())


def render_page(template: str, *, styles: Sequence[str], scripts: Sequence[str], **values: object) -> str:
    """Return a page as `generate_page` yields it."""
    return "".join(generate_page(template, styles=styles, scripts=scripts, **values))


def generate_page(template: str, *, styles: Sequence[str], scripts: Sequence[str], **values: object) -> Iterator[str]:
    """Yield the parts of a page with these style sheets and scripts in it.

    Its Content-Security-Policy allows them by their hashes, and nothing else.
    """
    style, script = _load_assets(*styles), _load_assets(*scripts)
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (script, style)]
    policy = (
        f"default-src 'none'; script-src 'sha256-{digests[0]}'; style-src 'sha256-{digests[1]}'; base-uri 'none'; "
        "form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )
    page = make_environment(_ASSETS).get_template(template)
    return page.generate(policy=policy, style=Markup(style), script=Markup(script), **values)


@cache
def make_environment(*folders: Path) -> jinja2.Environment:
    """Return the templates in these folders; every text they print is escaped, and cleaned as at the terminal."""
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(folders), autoescape=True, undefined=jinja2.StrictUndefined, finalize=_clean,
        trim_blocks=True,
    )  # fmt: skip


def _clean(value: Any) -> Any:  # noqa: ANN401  # any value in a template
    """Write control characters and direction marks as escapes, as at the terminal."""
    return clean_text(value) if type(value) is str else value


@cache
def _load_assets(*names: str) -> str:
    """Load style sheets or scripts as one text."""
    return "".join((_ASSETS / name).read_text(encoding="utf-8") for name in names)


_MEANINGS: Final = ("right, and worth asking", "nearly: write it as it should be", "not worth asking, or wrong")


def build_review_page(
    data: Mapping[str, Any], *, about: Literal["verdicts", "questions"], title: str, origin: str, reviewer: str
) -> str:
    """Build the page on which a person labels verdicts or decides on questions.

    `data` are what its script reads, `reviewer` the name in its form, empty for none.
    """
    return render_page(
        "review.html",
        styles=("report.css", "review.css"),
        scripts=("data.js", "answers.js", "items.js" if about == "verdicts" else "questions.js", "review.js"),
        title=title,
        origin=origin,
        about=about,
        n=len(data["items"]),
        reviewer=reviewer,
        is_sent=False,
        packed=pack(data),
    )


def collect_questions(asked: AskedQuestions) -> dict[str, Any]:
    """Return the data of the page for questions: each with its passages, and a proposal with the question before."""
    items = []
    for subject in asked.subjects:
        question, before = subject.question, subject.before
        old = (
            {
                "ground_truth": before.ground_truth,
                "spans": [{"name": span.passage_id, "text": span.text} for span in before.spans],
            }
            if before
            else None
        )
        items.append(
            {
                "item_hash": subject.item_hash,
                "question_id": question.id,
                "kind": question.kind,
                "language": question.language,
                "question": question.question,
                "ground_truth": question.ground_truth,
                "conversation": [{"role": turn.role, "content": turn.content} for turn in question.conversation],
                "origin": subject.proposal.change if subject.proposal else "new",
                "why": subject.proposal.detail if subject.proposal else None,
                "before": old,
                "passages": list(_split_passages(question.spans, asked.passages)),
                "choices": [
                    {"label": label, "meaning": meaning} for label, meaning in zip(LABELS, _MEANINGS, strict=True)
                ],
            }
        )
    return {
        "export_id": f"questions-{asked.test_set.set_hash}",
        "set": str(asked.path),
        "set_hash": asked.test_set.set_hash,
        "samples": [],
        "items": items,
    }


def _split_passages(spans: Iterable[Span], passages: Mapping[str, Passage]) -> Iterator[dict[str, Any]]:
    """Yield each passage that has spans: its name, and its text in parts of which every second one is a span.

    For a passage that is missing, or has changed since, only the spans are given.
    """
    by_passage: dict[str, list[Span]] = {}
    for span in sorted(spans, key=lambda span: span.start):
        by_passage.setdefault(span.passage_id, []).append(span)
    for passage_id, of_passage in by_passage.items():
        passage = passages.get(passage_id)
        headings = " > ".join(passage.headings) if passage else ""
        name = f"{passage_id} · {headings}" if headings else passage_id
        text, first = (passage.text, passage.start) if passage else ("", 0)
        places = [(span.start - first, span.start - first + len(span.text)) for span in of_passage]
        is_there = all(
            start >= 0 and text[start:end] == span.text for (start, end), span in zip(places, of_passage, strict=True)
        )
        parts: list[str] = []
        if passage is None or not is_there:
            parts = [part for place, span in enumerate(of_passage) for part in (" … " if place else "", span.text)]
        else:
            at = 0
            for start, end in places:
                if start >= at:  # of two that share words the first is lit
                    parts += [text[at:start], text[start:end]]
                    at = end
            parts.append(text[at:])
        yield {"name": name, "parts": parts}


_TONES: Final = {"error": "is-fp", "warning": "is-fn"}


def build_check_page(document: Mapping[str, Any]) -> str:
    """Build the page of a checked test set from the document of `testset check --json`."""
    n_all = write_count(document["n_questions"], "question")
    result = f"Nothing was found in {n_all}."
    if document["n_with_findings"]:
        result = f"Something was found in {document['n_with_findings']:,} of {n_all}."
    coverage = document["coverage"]
    # Counts with their share of the whole.
    counts = coverage["kinds"]
    total = sum(counts.values()) or 1
    groups = []
    for row in document["counts"]:
        findings = document["findings"]
        groups.append(
            {
                **row,
                "tone": _TONES[row["severity"]],
                "rows": [finding for finding in findings if finding["finding"] == row["finding"]],
            }
        )
    return render_page(
        "testset_check.html",
        styles=("report.css",),
        scripts=(),
        title=f"Check of {document['set']}",
        result=result,
        is_clean=not document["findings"],
        document=document,
        groups=groups,
        kinds=[{"name": name, "n": n, "share": f"{n / total:.0%}"} for name, n in counts.items()],
        languages=coverage["languages"],
        documents=coverage["documents"],
        bare=coverage["documents_without_a_question"],
    )


_ITEM: Final = (
    "item_hash", "sample_id", "step", "statement_id", "context_rank", "source", "judge_label", "reason",
)  # fmt: skip


def collect_verdicts(
    export_id: str, run_id: str, picks: Sequence[Pick], of_samples: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the data of the page for verdicts: texts once a sample, and the items in the order of asking."""
    sample_ids = list(dict.fromkeys(pick.item.sample_id for pick in picks))
    places = {sample_id: place for place, sample_id in enumerate(sample_ids)}
    names = ("question", "answer", "ground_truth", "accepted", "contexts")
    samples = [of_samples[sample_id] for sample_id in sample_ids]
    return {
        "export_id": export_id,
        "run_id": run_id,
        "samples": [
            {**{name: sample[name] for name in names}, "conversation": plain_turns(sample["conversation"])}
            for sample in samples
        ],
        "items": [
            {
                **{name: getattr(pick.item, name) for name in _ITEM},
                "text": pick.item.find_text(of_samples[pick.item.sample_id]),
                "sample": places[pick.item.sample_id],
                "choices": list_choices(pick.item.step, pick.item.source),
            }
            for pick in picks
        ],
    }


_BLANK: Final = {"mean": None, "ci_low": None, "ci_high": None, "n_scored": 0, "same_yardstick": None}
_MAX_LETTERS: Final = 160
_MAX_MOVES: Final = 4


def build_history(warehouse: Warehouse, data: SeriesData) -> str:
    """Build the report of a series."""
    return render_page(
        "history.html",
        styles=("report.css",),
        scripts=("plot.js", "charts.js", "history.js"),
        title=f"History of {data.series}",
        warehouse=warehouse.location.path.name,
        **describe_series(warehouse, data, Addresses(run="#run-")),
    )


def describe_series(
    warehouse: Warehouse, data: SeriesData, addresses: Addresses, compare: Compare = compare_plainly
) -> dict[str, Any]:
    """Return the sections of a series; `compare` compares two runs."""
    runs, files = data.runs, load_metrics()
    # A row for every run of the series by metric, blank if the run has no score; the main metrics come first.
    places = {run["run_id"]: place for place, run in enumerate(runs)}
    by_metric: dict[str, list[Row]] = {}
    for row in data.means:
        if row["metric"] not in by_metric:
            by_metric[str(row["metric"])] = [{**run, **_BLANK, "n_unscored": 0} for run in runs]
        place = places[row["run_id"]]
        by_metric[str(row["metric"])][place] = {**runs[place], **row}
    newest = find_run(warehouse, str(data.newest["run_id"]))
    groups = group_metrics(sort_first(list(by_metric)), newest.config)
    means = {metric: by_metric[metric] for names in groups.values() for metric in names}
    # The versions of prompts by run, name and hash.
    prompts: defaultdict[str, dict[str, dict[str, str]]] = defaultdict(dict)
    for row in data.prompts:
        prompts[str(row["run_id"])].setdefault(str(row["prompt"]), {})[str(row["prompt_hash"])] = str(row["version"])
    # The changes in the order of the runs, each with the only metric it concerns, or None.
    changes: list[tuple[str | None, Mark]] = []
    for place, (before, after) in enumerate(pairwise(data.runs), start=1):
        found = [*list_differences(before, after)]
        asked_before, asked_after = prompts[before["run_id"]], prompts[after["run_id"]]
        for name in sorted(asked_before.keys() & asked_after.keys()):
            if asked_before[name].keys() != asked_after[name].keys():
                old, new = (", ".join(sorted(set(side[name].values()))) for side in (asked_before, asked_after))
                change = f"version {old} → {new}" if old != new else f"another text of version {old}"
                found.append(Difference(text=f"prompt {name}: {change}", is_break=True))
        for difference in sorted(found, key=lambda difference: not difference.is_break):
            changes.append((None, Mark(place=place, text=difference.text, is_break=difference.is_break)))
    for metric, rows in means.items():
        versions = [(place, row["metric_version"]) for place, row in enumerate(rows) if "metric_version" in row]
        for (_, old), (place, new) in pairwise(versions):
            if old != new:
                text = f"formula of {metric}: version {old} → {new}"
                changes.append((metric, Mark(place=place, text=text, is_break=True)))
    changes.sort(key=lambda change: change[1].place)
    # The runs with their costs, in a table and as charts, and what they come to together.
    coverage: list[float | None] = []
    for place in range(len(runs)):
        n_scored = sum(rows[place]["n_scored"] for rows in means.values())
        n_all = n_scored + sum(rows[place]["n_unscored"] for rows in means.values())
        coverage.append(n_scored / n_all if n_all else None)
    costs = [data.costs.get(str(run["run_id"]), {}) for run in runs]
    latencies = [data.latencies.get(str(run["run_id"]), {}) for run in runs]
    drawn = [
        ("Requests", [row.get("n_requests") for row in costs], "{:,.0f}"),
        ("Dollars", [row.get("cost_usd") for row in costs], "{:,.4g}"),
        ("Milliseconds to a response, median", [row.get("latency_p50_ms") for row in latencies], "{:,.0f}"),
        ("Milliseconds to a response, 95th percentile", [row.get("latency_p95_ms") for row in latencies], "{:,.0f}"),
        ("Share of scores that are there", coverage, "{:.1%}"),
    ]
    described_runs = []
    for place in reversed(range(len(runs))):
        latency = latencies[place]  # median and 95th percentile of a run's responses; a dash where it asked for none
        is_timed = latency.get("latency_p50_ms") is not None
        described_runs.append(
            {
                **runs[place],
                "requests": costs[place].get("n_requests", "–"),
                "cost": write_dollars(costs[place]["cost_usd"]) if costs[place] else "–",
                "latency": f"{latency['latency_p50_ms']:,.0f} / {latency['latency_p95_ms']:,.0f}" if is_timed else "–",
                "coverage": "–" if (share := coverage[place]) is None else f"{share:.1%}",
                "means": [write_value(rows[place]["mean"]) for rows in means.values()],
            }
        )
    with_costs = [row for row in costs if row]
    total_cost = write_dollars(sum(row["priced_usd"] for row in with_costs))
    if n_unknown := sum(row["n_unpriced"] > 0 for row in with_costs):
        total_cost = (
            f"cost unknown: calls in {n_unknown} of {len(with_costs)} runs have no known price; "
            f"the others cost {total_cost}"
        )
    else:
        total_cost = f"cost {total_cost} in all"
    # The newest run's result, compared with the run a week before.
    against = None
    if data.since is not None:
        pair = RunPair(warehouse, find_run(warehouse, str(data.since["run_id"])), newest)
        against = lay_against(pair, f"the run of {pair.base.started_at:%Y-%m-%d}", compare)
    metrics = [{**rows[places[data.newest["run_id"]]], "metric": metric} for metric, rows in means.items()]
    head = build_head(
        data.causes[newest.run_id],
        metrics=metrics,
        against=against,
        gate=warehouse.fetch_rows("report/gate", run_id=newest.run_id),
        night=describe_night(warehouse, newest),
    )
    worse = []
    for row in data.worse:
        reasons = ("the judged texts differ", row["input_changed"]), ("a formula differs", row["formula_changed"])
        moves = [
            {"metric": move["metric"], "before": write_value(move["before"]), "after": write_value(move["after"])}
            for move in row["moves"]
        ]
        worse.append(
            {
                **row,
                "moves": moves[:_MAX_MOVES],
                "n_more": max(0, len(moves) - _MAX_MOVES),
                "why": ", ".join(text for text, holds in reasons if holds) or "the judged texts are the same",
                "question": shorten(row["question"], _MAX_LETTERS),
                "old_answer": shorten(row["old_answer"], _MAX_LETTERS)
                if row["old_answer"] != row["new_answer"]
                else None,
                "new_answer": shorten(row["new_answer"], _MAX_LETTERS),
            }
        )
    return {
        "addresses": addresses,
        "newest": data.newest,
        "since": data.since,
        "charts": [
            _draw_metric(data, metric, rows, changes, addresses.run)
            | {"is_low": metric in files and files[metric].better == "low"}
            for metric, rows in means.items()
            if any(row["mean"] is not None for row in rows)
        ],
        "head": replace(head, result=f"Newest run: {head.result}"),
        "meanings": explain_metrics(list(means), files),
        "changes": [{"run": data.runs[mark.place], "text": mark.text} for _, mark in reversed(changes)],
        "groups": groups,
        "causes": _describe_causes(data, addresses.run),
        "worse": worse,
        "flaky": [
            {**row, "lowest": write_value(row["lowest"]), "highest": write_value(row["highest"])} for row in data.flaky
        ],
        "flaky_runs": FLAKY_RUNS,
        "first": runs[0],
        "last": runs[-1],
        "n_runs": len(runs),
        "gates": _count(runs, "gate"),
        "triggers": _count(runs, "trigger"),
        "statuses": _count(runs, "status"),
        "total_cost": total_cost,
        "metrics": list(means),
        "n_first": len(groups[""]),
        "amounts": [
            {"name": name, "chart": draw_amounts(runs, values, what=name, form=form, link=addresses.run)}
            for name, values, form in drawn
            if any(values)
        ],
        "timed": any(latencies),
        "knowledge": any(run["kb_version"] for run in runs),
        "judges": len({run["judge"] for run in runs}) > 1,
        "runs": described_runs,
    }


def _draw_metric(
    data: SeriesData, metric: str, rows: Sequence[Row], changes: Sequence[tuple[str | None, Mark]], link: str
) -> dict[str, Any]:
    # One mark a place, which names all that changed there.
    by_place: dict[int, list[Mark]] = {}
    for of_metric, mark in changes:
        if of_metric in (None, metric):
            by_place.setdefault(mark.place, []).append(mark)
    marks = [
        Mark(
            place=place,
            text="; ".join(f"{mark.text} ({data.runs[place]['run_id']})" for mark in here),
            is_break=any(mark.is_break for mark in here),
        )
        for place, here in by_place.items()
    ]
    # The change of the mean since the run a week before, over the samples that both scored.
    change = None
    if data.since is not None:
        run_ids = [run["run_id"] for run in data.runs]
        start, end = run_ids.index(data.since["run_id"]), run_ids.index(data.newest["run_id"])
        if rows[start]["mean"] is None or rows[end]["mean"] is None:
            change = None
        elif any(row["same_yardstick"] is False for row in rows[start + 1 : end + 1]):
            change = "measured differently"
        else:
            counts = {"previous_n_scored": rows[start]["n_scored"], "n_scored": rows[end]["n_scored"]}
            shared = data.shared.get(metric, {"n_shared": 0, "change": None})
            text = write_shared({**shared, **counts})
            change = " ".join(filter(None, (write_change(shared["change"]), f"({text})" if text else "")))
    scored = [row for row in rows if row["mean"] is not None]
    return {
        "name": metric,
        "history": draw_trend(rows, f"Mean of {metric}", marks=marks, is_zoomed=True, link=link),
        "last": write_value(scored[-1]["mean"]),
        "interval": write_interval(scored[-1]["ci_low"], scored[-1]["ci_high"]),
        "n_runs": len(scored),
        "n_yardsticks": 1 + sum(row["same_yardstick"] is False for row in scored[1:]),
        "change": change,
    }


def _count(runs: Sequence[Row], column: str) -> dict[str, int]:
    return dict(Counter(str(run[column]) for run in runs if run[column] is not None).most_common())


def _describe_causes(data: SeriesData, link: str) -> dict[str, Any] | None:
    """Describe the shares of samples by cause in the newest runs: a chart, and the newest run's numbers as its key."""
    runs = [run for run in data.runs if data.causes.get(str(run["run_id"]))]
    if not runs:
        return None
    counted = [{row["cause"]: row["n_samples"] for row in data.causes[str(run["run_id"])]} for run in runs]
    # Shares of all samples; in run_causes the shares of all causes but not_judged are of the judged ones.
    of_all = []
    for run in runs:
        of_run = {row["cause"]: row["share"] or 0.0 for row in data.causes[str(run["run_id"])]}
        unjudged = of_run.get("not_judged", 0.0)
        of_all.append(
            {cause: unjudged if cause == "not_judged" else share * (1 - unjudged) for cause, share in of_run.items()}
        )
    advice = load_advice("en")
    # Fine samples are at the bottom of the chart, and failures rise above them.
    causes = [cause for cause in reversed(list(advice)) if any(of_run.get(cause) for of_run in counted)]
    shares = {advice[cause].name: [of_run.get(cause, 0.0) for of_run in of_all] for cause in causes}
    key = [
        {"place": place, "cause": cause, "name": name, "meaning": advice[cause].meaning,
         "n_samples": counted[-1].get(cause, 0), "first": write_share(values[0]), "last": write_share(values[-1])}
        for place, (cause, (name, values)) in enumerate(zip(causes, shares.items(), strict=True))
    ]  # fmt: skip
    order = [row["cause"] for row in rank_causes(data.causes[str(runs[-1]["run_id"])], ())]
    key.sort(key=lambda row: order.index(row["cause"]) if row["cause"] in order else len(order))
    return {"chart": draw_shares(runs, shares, link=link), "key": key, "n_runs": len(runs)}
