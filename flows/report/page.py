"""The pages that stand alone: a run's report, and those of a review, a review's questions and a test set.

Their texts come from datasets and models, so none of them may become markup or script. What is written into a page
itself is escaped by Jinja; the data of samples is gzipped JSON in base64, whose letters cannot end an element, and the
page's script makes nodes and texts of it, never markup. A Content-Security-Policy allows the one script and the one
style sheet by their hashes, and nothing to be loaded or sent. Samples come in blocks that a browser unpacks when one of
them is opened.
"""

import base64
import gzip
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, Final

import jinja2
import orjson
from markupsafe import Markup

from evalhouse.flows.report.samples import SampleRecord, SharedTexts, build_samples
from evalhouse.flows.report.sections import describe_run, draw_charts, sort_headline
from evalhouse.flows.results.diagnosis import CAUSES, load_advice
from evalhouse.flows.results.output import (
    sort_by_metric,
    write_count,
)
from evalhouse.tasks.reviews.export import Export, Pick
from evalhouse.tasks.reviews.labels import list_choices
from evalhouse.tasks.testsets.decisions import LABELS, AskedQuestions
from evalhouse.tasks.testsets.passages import Passage
from evalhouse.tasks.testsets.questions import Span
from evalhouse.warehouse.messages import clean_text
from evalhouse.warehouse.rows.report import (
    SampleSlice,
    read_sample_scores,
    read_summary,
)
from evalhouse.warehouse.rows.runs import RunRow
from evalhouse.warehouse.store import Warehouse

BLOCK_SAMPLES: Final = 50
"""Samples in a block: under a megabyte to unpack when one of them is opened."""
MOST_VALUES: Final = 30
"""Metadata with more values than this, or nearly as many as samples, are no help in choosing among samples."""

_ASSETS = Path(__file__).with_name("assets")


@dataclass(frozen=True, kw_only=True)
class Block:
    """Packed data of the page: gzipped JSON in base64."""

    id: str
    packed: Markup


@dataclass(kw_only=True)
class _Index:
    """The table's data of all samples, by column in the run's order; the script reads it under these names."""

    metrics: list[str]
    low_is_good: list[bool]
    scores: list[list[float | None]]
    reasons: list[list[str | None]]
    base: list[list[float | None]] | None
    causes: list[str | None]
    cause_names: dict[str, str]
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
        """The next sample."""
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
        self.failed.append(any(failure.reason.endswith("failed") for failure in record.failures))
        n = len(self.ids)
        for key, value in (record.metadata or {}).items():
            if isinstance(value, str | int | float) and value != "":
                column = self.metadata.setdefault(key, [])
                column += [None] * (n - 1 - len(column))
                column.append(str(value))


def build_page(
    warehouse: Warehouse, run: RunRow, base: RunRow | None, slices: Iterable[SampleSlice], *, with_calls: bool
) -> str:
    """The page as text; `base` is the run to compare with, None for a report of one run alone, `slices` its samples.

    Raises WarehouseError, in words, for a warehouse of another version.
    """
    summary = read_summary(warehouse, run)
    samples = read_sample_scores(warehouse, run, base)
    sections = describe_run(warehouse, run, base, summary)
    metrics = sort_by_metric(summary.metrics, run.metrics)
    names = [str(row["metric"]) for row in metrics]
    # The index begins with the scores, by column and by place of the sample; `add` adds the rest of each sample.
    sample_ids = dict.fromkeys(row["sample_id"] for row in samples.scores)
    places = {sample_id: place for place, sample_id in enumerate(sample_ids)}
    columns = {name: column for column, name in enumerate(names)}
    index = _Index(
        metrics=names,
        low_is_good=[row["better"] == "low" for row in metrics],
        scores=[[None] * len(places) for _ in names],
        reasons=[[None] * len(places) for _ in names],
        base=None if base is None else [[None] * len(places) for _ in names],
        causes=[samples.causes.get(sample_id) for sample_id in places],
        cause_names={cause: load_advice("en")[cause].name for cause in CAUSES},
    )
    for row in samples.scores:
        if row["metric"] is not None:
            column, place = columns[row["metric"]], places[row["sample_id"]]
            index.scores[column][place], index.reasons[column][place] = row["value"], row["unscored_reason"]
    for row in samples.base_scores:
        if index.base is not None and row["metric"] in columns:
            index.base[columns[row["metric"]]][places[row["sample_id"]]] = row["value"]
    shared = SharedTexts()
    records = (record for rows in slices for record in build_samples(rows, shared))
    # Compressing leaves this thread the time to make the next records.
    with ThreadPoolExecutor(max_workers=1) as other:
        packed = []
        while block := list(islice(records, BLOCK_SAMPLES)):
            for record in block:
                index.add(record)
            packed.append(other.submit(pack, block))
        blocks = [Block(id=f"block-{number}", packed=future.result()) for number, future in enumerate(packed)]
    # Of the metadata only columns with few values are of help in choosing among samples.
    n = len(index.ids)
    filled = {key: [*column, *[None] * (n - len(column))] for key, column in index.metadata.items()}
    most = min(MOST_VALUES, max(2, n // 2))
    index.metadata = {
        key: column for key, column in filled.items() if len(set(column)) > 1 and len(set(column) - {None}) <= most
    }
    scored = {str(row["metric"]) for row in summary.metrics if row["n_scored"]}
    return render_page(
        "page.html",
        styles=("report.css",),
        scripts=("plot.js", "charts.js", "data.js", "sample.js", "table.js", "csv.js", "tip.js", "page.js"),
        title=f"{run.label or run.dataset or 'Run'} · {run.run_id}",
        samples_address="#samples",
        index_metrics=names,
        first_metric=next((name for name in sort_headline(names) if name in scored), None),
        charts=draw_charts(dict(zip(names, index.scores, strict=True)), summary.history),
        blocks=[Block(id="index", packed=pack(index)), Block(id="fixed", packed=pack(shared.texts)), *blocks],
        with_calls=with_calls,
        warehouse=warehouse.location.path.name,
        **sections,
    )


def pack(value: object) -> Markup:
    """Data of a page as letters of base64, which cannot end an element; without a time stamp, so that equal data give
    equal pages."""
    return Markup(base64.b64encode(gzip.compress(orjson.dumps(value), compresslevel=9, mtime=0)).decode())


def render_page(template: str, *, styles: Sequence[str], scripts: Sequence[str], **values: object) -> str:
    """A page with these style sheets and scripts in it.

    Its Content-Security-Policy allows them by their hashes, and nothing else.
    """
    style, script = _read_assets(*styles), _read_assets(*scripts)
    policy = (
        f"default-src 'none'; script-src {_write_hash(script)}; style-src {_write_hash(style)}; base-uri 'none'; "
        "form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )
    return _load_template(template).render(policy=policy, style=Markup(style), script=Markup(script), **values)


def _write_hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@cache
def _load_template(name: str) -> jinja2.Template:
    """A template of the assets."""
    return make_environment(_ASSETS).get_template(name)


def make_environment(*folders: Path) -> jinja2.Environment:
    """Templates in these folders; every text they print is escaped, and cleaned as at the terminal."""
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(folders), autoescape=True, undefined=jinja2.StrictUndefined, finalize=_show,
        trim_blocks=True,
    )  # fmt: skip


def _show(value: Any) -> Any:  # noqa: ANN401  # whatever a template prints
    """Control characters and direction marks as escapes, as at the terminal."""
    return clean_text(value) if type(value) is str else value


@cache
def _read_assets(*names: str) -> str:
    """Style sheets or scripts as one."""
    return "".join((_ASSETS / name).read_text(encoding="utf-8") for name in names)


_MEANINGS: Final = ("right, and worth asking", "nearly: write it as it should be", "not worth asking, or wrong")


def build_question_page(asked: AskedQuestions, reviewer: str) -> str:
    """The page as text; `reviewer` is the name it begins with, empty for none."""
    # What the script reads.
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
                "passages": list(light_spans(question.spans, asked.passages)),
                "choices": [
                    {"label": label, "meaning": meaning} for label, meaning in zip(LABELS, _MEANINGS, strict=True)
                ],
            }
        )
    return render_page(
        "review.html",
        styles=("report.css", "review.css"),
        scripts=("data.js", "answers.js", "questions.js", "review.js"),
        title=f"Questions of {asked.path.name}",
        origin=f"version {asked.test_set.set_hash}",
        about="questions",
        n=len(asked.subjects),
        reviewer=reviewer,
        is_sent=False,
        packed=pack(
            {
                "export_id": f"questions-{asked.test_set.set_hash}",
                "set": str(asked.path),
                "set_hash": asked.test_set.set_hash,
                "samples": [],
                "items": items,
            }
        ),
    )


def light_spans(spans: Iterable[Span], passages: Mapping[str, Passage]) -> Iterator[dict[str, Any]]:
    """Yield each passage that has spans: its name, and its text in parts of which every second one is a span. Of a
    passage that is not at hand, or reads otherwise now, the spans alone."""
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
    """The page as text, from what `testset check --json` prints."""
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
        result=_describe_result(document),
        is_clean=not document["findings"],
        document=document,
        groups=groups,
        kinds=[{"name": name, "n": n, "share": f"{n / total:.0%}"} for name, n in counts.items()],
        languages=coverage["languages"],
        documents=coverage["documents"],
        bare=coverage["documents_without_a_question"],
    )


def _describe_result(document: Mapping[str, Any]) -> str:
    n, n_with = document["n_questions"], document["n_with_findings"]
    if not n_with:
        return f"Nothing was found of {write_count(n, 'question')}."
    return f"Something was found of {n_with:,} of {write_count(n, 'question')}."


_ITEM: Final = (
    "item_hash", "sample_id", "step", "statement_id", "context_rank", "source", "text", "judge_label", "reason",
)  # fmt: skip


def build_review_page(export: Export, reviewer: str) -> str:
    """The page as text; `reviewer` is the name it begins with, empty for none."""
    return render_page(
        "review.html",
        styles=("report.css", "review.css"),
        scripts=("data.js", "answers.js", "items.js", "review.js"),
        title=f"Review of {export.run.label or export.run.dataset or 'a run'}",
        origin=f"run {export.run.run_id}",
        about="verdicts",
        n=len(export.picks),
        reviewer=reviewer,
        is_sent=False,
        packed=pack(collect_asked(export.export_id, export.run.run_id, export.picks, export.texts)),
    )


def collect_asked(
    export_id: str, run_id: str, picks: Sequence[Pick], of_samples: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Return what the script reads: texts once a sample, and the items in the order of asking."""
    sample_ids = list(dict.fromkeys(pick.item.sample_id for pick in picks))
    places = {sample_id: place for place, sample_id in enumerate(sample_ids)}
    names = ("question", "answer", "ground_truth", "contexts")
    return {
        "export_id": export_id,
        "run_id": run_id,
        "samples": [{name: of_samples[sample_id][name] for name in names} for sample_id in sample_ids],
        "items": [
            {
                **{name: getattr(pick.item, name) for name in _ITEM},
                "sample": places[pick.item.sample_id],
                "choices": list_choices(pick.item.step, pick.item.source),
            }
            for pick in picks
        ],
    }
