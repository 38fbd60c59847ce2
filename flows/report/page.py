"""The page of a report: one HTML file that shows a run without anything from elsewhere.

Its texts come from datasets and models, so none of them may become markup or script. What is written into the page
itself goes through Jinja's escaping; everything about samples is gzipped JSON in base64, whose letters cannot end an
element, and the page's script makes nodes and texts of it, never markup. Above that stands a Content-Security-Policy
that allows the one script and the one style sheet by their hashes, and nothing to be loaded or sent.
Samples come in blocks that a browser unpacks when one of them is opened, so thousands cost little until then.
"""

import base64
import gzip
import hashlib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, Final

import jinja2
import orjson
from markupsafe import Markup

from evalhouse.flows.report.head import sort_headline
from evalhouse.flows.report.samples import SampleRecord, SharedTexts, build_samples
from evalhouse.flows.report.sections import describe_run, draw_charts
from evalhouse.flows.results.diagnosis import CAUSES, load_advice
from evalhouse.flows.results.output import (
    sort_by_metric,
)
from evalhouse.warehouse.messages import clean_text
from evalhouse.warehouse.rows.report import (
    Row,
    SampleScores,
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
    """What the table shows of each sample, by column in the run's order; the script reads it under these names."""

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

    def keep_few(self) -> None:
        """Of the metadata those by which samples can be told apart in groups."""
        n = len(self.ids)
        columns = {key: [*column, *[None] * (n - len(column))] for key, column in self.metadata.items()}
        most = min(MOST_VALUES, max(2, n // 2))
        self.metadata = {
            key: column for key, column in columns.items() if len(set(column)) > 1 and len(set(column) - {None}) <= most
        }


def build_page(
    warehouse: Warehouse, run: RunRow, base: RunRow | None, slices: Iterable[SampleSlice], *, with_calls: bool
) -> str:
    """The page as text; `base` is the run to compare with, None for a report of one run alone, `slices` its samples.

    Raises WarehouseError, in words, for a warehouse of another version.
    """
    summary = read_summary(warehouse, run)
    samples = read_sample_scores(warehouse, run, base)
    sections = describe_run(warehouse, run, base, summary)
    names = [str(row["metric"]) for row in sort_by_metric(summary.metrics, run.metrics)]
    index = _start_index(sort_by_metric(summary.metrics, run.metrics), samples, has_base=base is not None)
    shared = SharedTexts()
    blocks = _pack_samples(slices, index, shared)
    index.keep_few()
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


def _start_index(metrics: Sequence[Row], samples: SampleScores, *, has_base: bool) -> _Index:
    names = [str(row["metric"]) for row in metrics]
    places = {
        sample_id: place for place, sample_id in enumerate(dict.fromkeys(row["sample_id"] for row in samples.scores))
    }
    columns = {name: column for column, name in enumerate(names)}
    index = _Index(
        metrics=names,
        low_is_good=[row["better"] == "low" for row in metrics],
        scores=[[None] * len(places) for _ in names],
        reasons=[[None] * len(places) for _ in names],
        base=[[None] * len(places) for _ in names] if has_base else None,
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
    return index


def _pack_samples(slices: Iterable[SampleSlice], index: _Index, shared: SharedTexts) -> list[Block]:
    records = (record for rows in slices for record in build_samples(rows, shared))
    # Compressing leaves this thread the time to make the next records.
    with ThreadPoolExecutor(max_workers=1) as other:
        packed = []
        while block := list(islice(records, BLOCK_SAMPLES)):
            for record in block:
                index.add(record)
            packed.append(other.submit(pack, block))
        return [Block(id=f"block-{number}", packed=future.result()) for number, future in enumerate(packed)]


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
