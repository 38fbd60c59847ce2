"""Which verdicts of a run a person is asked about, drawn, put on record and written as a table, and what the labels
make of the run's means.

Items that have a label already are left out. An estimate from this export and the labels from before takes these as
known, each standing for itself (stratum `reviewed`, probability 1), and the picked ones as drawn from the others:
unbiased however the earlier labels came about. So they are put on record too, as not asked.

The estimate of a corrected mean is SQL over the labels (`warehouse/views/corrected_scores.sql`), so that every import
changes it with no command. It exists where a sample's score is a sum of single verdicts, each with a share known
beforehand: then the judge's error in the mean is the mean of its errors in the verdicts, which a random part of them
tells. The other metrics divide counts of verdicts by counts of verdicts, or put two verdicts on one statement together:
their error is no sum over verdicts, and would take samples that people labelled whole, picked as such.
"""

import csv
import io
import random
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal, TypeVar

import orjson

from evalhouse.tasks.judge.names import LEXICAL, find_judge
from evalhouse.tasks.lexical.judge import judge_lexically
from evalhouse.tasks.reviews.labels import ReviewError, list_labels
from evalhouse.warehouse.metric_files import load_metrics
from evalhouse.warehouse.rows.reviews import (
    fetch_corrected,
    fetch_items,
    fetch_moved,
    fetch_statements,
    fetch_texts,
    write_picks,
)
from evalhouse.warehouse.rows.runs import RunRow, make_run_id, now_utc, refuse_forgotten
from evalhouse.warehouse.steps import REVIEWED_PROMPTS
from evalhouse.warehouse.store import Warehouse

Stratum = Literal["votes", "judges", "gate", "rest"]
Row = Mapping[str, Any]

LEXICAL_SAMPLES: Final = 400
"""Samples that the lexical judge reads at most, picked at random; some milliseconds each."""

_LEAST: Final = 2
_Name = TypeVar("_Name", bound=str)


@dataclass(frozen=True, kw_only=True)
class Item:
    """What a person is asked about: the first verdict of a run with this content."""

    item_hash: str
    question_hash: str
    sample_id: str
    step: str
    statement_id: str | None
    context_rank: int | None
    source: str | None
    text: str
    judge_label: str
    reason: str | None
    n_beside: int
    votes_differ: bool
    is_reviewed: bool

    @property
    def verdict_key(self) -> tuple[str, str, str]:
        """Sample, step and the short id that the judge was asked under."""
        return (self.sample_id, self.step, self.statement_id or f"C{self.context_rank}")


def collect_items(rows: Sequence[Row]) -> list[Item]:
    """Rows of `fetch_items` as items, the first of each content; what is true of any of its verdicts is said of it."""
    together: defaultdict[str, list[Row]] = defaultdict(list)
    for row in rows:
        together[row["item_hash"]].append(row)
    names = [name for name in Item.__dataclass_fields__ if name not in ("votes_differ", "n_beside")]
    return [
        Item(
            **{name: same[0][name] for name in names},
            votes_differ=any(row["votes_differ"] for row in same),
            n_beside=min(row["n_beside"] for row in same),
        )
        for same in together.values()
    ]


def sort_into_strata(
    items: Sequence[Item],
    *,
    lexical_labels: Mapping[tuple[str, str, str], str],
    moved: Collection[tuple[str, str]] | None,
) -> dict[Stratum, list[Item]]:
    """The items of each group that has one, in their order.

    `lexical_labels` are by verdict_key, for as many as were read; `moved` are (sample, step as metrics name it) whose
    scores changed, None for a first run.
    """
    strata: defaultdict[Stratum, list[Item]] = defaultdict(list)
    for item in items:
        strata[_find_stratum(item, lexical_labels.get(item.verdict_key), moved)].append(item)
    return dict(strata)


def _find_stratum(item: Item, lexical: str | None, moved: Collection[tuple[str, str]] | None) -> Stratum:
    if item.votes_differ:
        return "votes"
    if lexical is not None and lexical != item.judge_label:
        return "judges"
    if moved is None:
        return "gate" if item.n_beside == 1 else "rest"
    step = f"attribute_{item.source}" if item.step == "attribute" else item.step
    return "gate" if (item.sample_id, step) in moved else "rest"


def pick_samples(items: Sequence[Item], generator: random.Random) -> list[str]:
    """The samples that the lexical judge reads: all, or as many as it may at random."""
    samples = list(dict.fromkeys(item.sample_id for item in items))
    return samples if len(samples) <= LEXICAL_SAMPLES else sorted(generator.sample(samples, LEXICAL_SAMPLES))


def label_lexically(
    texts: Mapping[str, Row], statements: Mapping[str, Sequence[Row]], steps: Collection[str]
) -> dict[tuple[str, str, str], str]:
    """What the lexical judge says of these samples, by verdict_key, in the words of review_items.judge_label."""
    labels: dict[tuple[str, str, str], str] = {}
    for sample_id, sample in texts.items():
        for step in steps:
            for item_id, label in _ask_lexical(step, sample, statements.get(sample_id, ())).items():
                labels[sample_id, step, item_id] = label
    return labels


def _ask_lexical(step: str, sample: Row, statements: Sequence[Row]) -> dict[str, str]:
    sides = {
        f"{source}_statements": [
            {"id": row["statement_id"], "text": row["text"]} for row in statements if row["source"] == source
        ]
        for source in ("answer", "ground_truth")
    }
    data = {
        "question": sample["question"],
        "ground_truth": sample["ground_truth"] or "",
        "contexts": [{"id": f"C{n}", "text": text} for n, text in enumerate(sample["contexts"] or (), start=1)],
        **sides,
    }
    verdicts: Any = judge_lexically(step, data)["verdicts"]
    if step == "attribute":
        return {verdict["id"]: "supported" if verdict["contexts"] else "unsupported" for verdict in verdicts}
    return {verdict["id"]: verdict["label"] for verdict in verdicts}


@dataclass(frozen=True, kw_only=True)
class Pick:
    """One item with the group it was drawn from and the probability of that."""

    item: Item
    stratum: str
    probability: float


@dataclass(frozen=True, kw_only=True)
class StratumDraw:
    """What was drawn from one group of a step."""

    step: str
    stratum: Stratum
    size: int
    picks: tuple[Pick, ...]

    @property
    def probability(self) -> float:
        """That of each of its items, picked or not."""
        return len(self.picks) / self.size


def share_places(n: int, sizes: Mapping[_Name, int]) -> dict[_Name, int]:
    """`n` places in equal parts, none with more than its size; what one cannot take goes to the larger ones."""
    shares: dict[_Name, int] = {}
    for place, name in enumerate(sorted(sizes, key=lambda name: sizes[name])):
        shares[name] = min(sizes[name], (n - sum(shares.values())) // (len(sizes) - place))
    return shares


def draw(
    strata: Mapping[Stratum, Sequence[Item]], n: int, *, share_random: float, generator: random.Random
) -> list[StratumDraw]:
    """Draw `n` items of one step from its groups. With too few places for all groups they are drawn from as one."""
    if n < _LEAST * len(strata):
        strata = {"rest": [item for items in strata.values() for item in items]}
    places = allocate({stratum: len(items) for stratum, items in strata.items()}, n, share_random=share_random)
    return [
        _draw_from(stratum, items, places[stratum], generator) for stratum, items in sorted(strata.items()) if items
    ]


def allocate(sizes: Mapping[Stratum, int], n: int, *, share_random: float) -> dict[Stratum, int]:
    """Places by group: two each, then towards its part of the random share and its equal part of the others."""
    n = min(n, sum(sizes.values()))
    targeted: dict[Stratum, int] = {stratum: size for stratum, size in sizes.items() if stratum != "rest"}
    n_random = n if not targeted else round(n * share_random)
    equal: dict[Stratum, int] = share_places(n - n_random, targeted)
    total = sum(sizes.values())
    targets = {stratum: n_random * size / total + equal.get(stratum, 0) for stratum, size in sizes.items()}
    least = min(_LEAST, n // len(sizes))
    places = {stratum: min(size, least) for stratum, size in sizes.items()}
    for _ in range(n - sum(places.values())):
        # The one furthest below what it is to have; full groups cannot take more.
        open_strata = [stratum for stratum in sizes if places[stratum] < sizes[stratum]]
        neediest = max(open_strata, key=lambda stratum: targets[stratum] - places[stratum])
        places[neediest] += 1
    return places


def _draw_from(stratum: Stratum, items: Sequence[Item], n: int, generator: random.Random) -> StratumDraw:
    chosen = generator.sample(items, n)
    picks = tuple(Pick(item=item, stratum=stratum, probability=n / len(items)) for item in chosen)
    return StratumDraw(step=items[0].step, stratum=stratum, size=len(items), picks=picks)


REVIEWED = "reviewed"
_OF_ITEM = ("sample_id", "step", "statement_id", "context_rank", "item_hash", "question_hash", "judge_label")
# A spreadsheet takes a cell that begins so for a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


@dataclass(frozen=True, kw_only=True)
class ExportRequest:
    """What an export is to hold: `steps` None for all that have verdicts; `seed` repeats a draw."""

    n: int
    steps: tuple[str, ...] | None
    share_random: float
    seed: int
    again: bool


@dataclass(frozen=True, kw_only=True)
class Export:
    """What was drawn: `picks` in the order of asking, groups with their sizes, and the texts of the samples."""

    export_id: str
    run: RunRow
    seed: int
    drawn: tuple[StratumDraw, ...]
    picks: tuple[Pick, ...]
    reviewed: tuple[Item, ...]
    n_samples: int
    n_read_lexically: int
    texts: dict[str, Any]

    @property
    def n_items(self) -> int:
        """Items that were drawn from."""
        return sum(group.size for group in self.drawn)


def plan_export(warehouse: Warehouse, run: RunRow, request: ExportRequest) -> Export:
    """Draw what to ask; raises ReviewError when there is nothing, or less than one item a step, to draw."""
    items = _list_items(warehouse, run, request)
    generator = random.Random(request.seed)
    open_items = items if request.again else [item for item in items if not item.is_reviewed]
    by_step = {step: [item for item in open_items if item.step == step] for step in REVIEWED_PROMPTS}
    by_step = {step: of_step for step, of_step in by_step.items() if of_step}
    if request.n < len(by_step):
        raise ReviewError(
            f"-n {request.n} is less than one verdict for each of {', '.join(by_step)}; name fewer --steps"
        )
    places = share_places(request.n, {step: len(of_step) for step, of_step in by_step.items()})
    lexical, n_read = _read_lexically(warehouse, run, request, open_items, generator)
    moved = fetch_moved(warehouse, run.run_id)
    drawn: list[StratumDraw] = []
    for step, of_step in by_step.items():
        # A plain random sample has no groups.
        groups: dict[Stratum, list[Item]] = (
            {"rest": of_step}
            if request.share_random >= 1
            else sort_into_strata(of_step, lexical_labels=lexical, moved=moved)
        )
        drawn += draw(groups, places[step], share_random=request.share_random, generator=generator)
    picks = [_stand_for_itself(pick) for group in drawn for pick in group.picks]
    generator.shuffle(picks)
    picked_at = datetime.now(UTC)
    return Export(
        export_id=make_run_id(picked_at),
        run=run,
        seed=request.seed,
        drawn=tuple(drawn),
        picks=tuple(picks),
        reviewed=tuple(item for item in items if item.is_reviewed),
        n_samples=len({item.sample_id for item in open_items}),
        n_read_lexically=n_read,
        texts=dict(fetch_texts(warehouse, run.run_id, {pick.item.sample_id for pick in picks})),
    )


def record_export(warehouse: Warehouse, export: Export) -> None:
    """Put on record what is asked, and what had been reviewed before."""
    asked = {pick.item.item_hash for pick in export.picks}
    labelled = [
        Pick(item=item, stratum=REVIEWED, probability=1.0) for item in export.reviewed if item.item_hash not in asked
    ]
    picked_at = now_utc()
    rows = [
        {
            "export_id": export.export_id,
            "run_id": export.run.run_id,
            **{name: getattr(pick.item, name) for name in _OF_ITEM},
            "stratum": pick.stratum,
            "probability": pick.probability,
            "asked": pick.item.item_hash in asked,
            "picked_at": picked_at,
        }
        for pick in (*export.picks, *labelled)
    ]
    write_picks(warehouse, export.run.run_id, export.export_id, rows)


def read_asked(warehouse: Warehouse, run: RunRow, export_id: str) -> list[Pick]:
    """What an export on record asks of a run, in the order of asking; a verdict that the run has no more is left out.

    Raises ReviewError for an export that asks nothing of this run.
    """
    rows = [
        row
        for row in warehouse.fetch_rows("reviews/picks", export_ids=[export_id])
        if row["asked"] and row["run_id"] == run.run_id
    ]
    if not rows:
        raise ReviewError(f"export {export_id!r} asks nothing of run {run.run_id}")
    items = {item.item_hash: item for item in collect_items(fetch_items(warehouse, run.run_id, REVIEWED_PROMPTS))}
    return [
        Pick(item=items[row["item_hash"]], stratum=row["stratum"], probability=row["probability"])
        for row in rows
        if row["item_hash"] in items
    ]


def _stand_for_itself(pick: Pick) -> Pick:
    """An item that is asked about again has a label already, and so stands for nothing but itself."""
    return Pick(item=pick.item, stratum=REVIEWED, probability=1.0) if pick.item.is_reviewed else pick


def _list_items(warehouse: Warehouse, run: RunRow, request: ExportRequest) -> list[Item]:
    if run.status == "running":
        raise ReviewError(
            f"run {run.run_id} is not finished; wait for it, or finish it with `evalhouse resume {run.run_id}`"
        )
    refuse_forgotten(warehouse, run, "there is nothing to show a person; name a later run")
    items = collect_items(fetch_items(warehouse, run.run_id, request.steps or REVIEWED_PROMPTS))
    missing = [step for step in request.steps or () if not any(item.step == step for item in items)]
    if missing:
        raise ReviewError(
            f"run {run.run_id} has no verdict of {', '.join(missing)}; its metrics do not ask for it, or every sample "
            f"failed there (`evalhouse show {run.run_id}`)"
        )
    if not items:
        raise ReviewError(f"run {run.run_id} has no verdict of {', '.join(REVIEWED_PROMPTS)} to review")
    if not request.again and all(item.is_reviewed for item in items):
        raise ReviewError(
            f"all {len(items)} verdicts of run {run.run_id} have been reviewed; --again asks about them once more"
        )
    return items


def _read_lexically(
    warehouse: Warehouse, run: RunRow, request: ExportRequest, items: Sequence[Item], generator: random.Random
) -> tuple[dict[tuple[str, str, str], str], int]:
    """What the lexical judge says, and of how many samples. With a step of its own it cannot disagree."""
    others = [item for item in items if find_judge(run.judge, item.step) != LEXICAL]
    if request.share_random >= 1 or not others:
        return {}, 0
    samples = pick_samples(others, generator)
    texts = fetch_texts(warehouse, run.run_id, samples)
    statements = fetch_statements(warehouse, run.run_id, samples)
    steps = sorted({item.step for item in others})
    return label_lexically(texts, statements, steps), len(samples)


def list_rows(export: Export, *, reviewer: str, with_verdicts: bool) -> list[dict[str, Any]]:
    """What is asked, in the order of asking."""
    return [_describe_row(export, pick, reviewer, with_verdicts=with_verdicts) for pick in export.picks]


def write_csv(rows: Iterable[Mapping[str, Any]], names: Iterable[str]) -> bytes:
    """A table with these columns and a byte order mark, without which spreadsheets spoil what is not ASCII; what a
    spreadsheet would take for a formula is kept from being one."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(names))
    writer.writeheader()
    writer.writerows({name: _write_cell(value) for name, value in row.items()} for row in rows)
    return text.getvalue().encode("utf-8-sig")


def write_lines(rows: Iterable[Mapping[str, Any]]) -> bytes:
    """JSON Lines."""
    return b"".join(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in rows)


def _describe_row(export: Export, pick: Pick, reviewer: str, *, with_verdicts: bool) -> dict[str, Any]:
    item, sample = pick.item, export.texts[pick.item.sample_id]
    row = {
        "label": None,
        "labels": " or ".join(list_labels(item.step, item.source)),
        "note": None,
        "reviewer": reviewer or None,
        "step": item.step,
        "question": sample["question"],
        "statement": None if item.step == "rank" else item.text,
        "context": item.text if item.step == "rank" else None,
        **_list_against(item.step, item.source, sample),
        "run_id": export.run.run_id,
        "sample_id": item.sample_id,
        "statement_id": item.statement_id,
        "context_rank": item.context_rank,
        "export_id": export.export_id,
        "item_hash": item.item_hash,
    }
    if with_verdicts:
        row |= {"judge_label": item.judge_label, "judge_reason": item.reason}
    return row


def _list_against(step: str, source: str | None, sample: Mapping[str, Any]) -> dict[str, Any]:
    """The texts that the verdict is about, and no other."""
    of_truth = step == "rank" or (step == "classify" and source == "answer")
    return {
        "ground_truth": sample["ground_truth"] if of_truth else None,
        "answer": sample["answer"] if step == "classify" and source == "ground_truth" else None,
        "contexts": sample["contexts"] if step == "attribute" else None,
    }


def _write_cell(value: object) -> object:
    if isinstance(value, list):
        value = "\n\n".join(f"[C{n}] {text}" for n, text in enumerate(value, start=1))
    if isinstance(value, str) and value.startswith(_FORMULA):
        return f"'{value}"
    return value


LEAST_EFFECTIVE: Final = 20
LEAST_SAMPLES: Final = 10
LEAST_COVERAGE: Final = 0.5
"""As in the view, which gives no corrected mean below."""

_OBSTACLES: Final[Mapping[str, str]] = {
    "no, ratio": "which divide counts of verdicts by each other",
    "no, joined": "which join two verdicts on a statement, and these are not picked together",
    "no, ranks": "which depend on all verdicts of a ranking at once",
}
"""What metric files say of metrics that cannot be corrected, in words."""


@dataclass(frozen=True, kw_only=True)
class CorrectedMean:
    """A metric's mean as the judge has it, and as people's labels correct it, with a 95 % interval.

    `corrected_mean` and the interval are None when too little is reviewed; `note` says what is missing, or what to
    mind.
    """

    metric: str
    mean: float
    corrected_mean: float | None
    ci_low: float | None
    ci_high: float | None
    judge_bias: float
    judge_weight: float
    n_reviewed: int
    n_carried: int
    n_samples_reviewed: int
    coverage: float
    n_scored: int
    note: str | None


@dataclass(frozen=True, kw_only=True)
class CorrectedPair:
    """One metric of two runs that both have reviewed verdicts of it."""

    metric: str
    base: CorrectedMean
    candidate: CorrectedMean


def list_corrected(warehouse: Warehouse, run_id: str) -> list[CorrectedMean]:
    """The corrected means of a run, by metric; none when nobody has reviewed any of its verdicts."""
    names = [name for name in CorrectedMean.__dataclass_fields__ if name != "note"]
    return [
        CorrectedMean(**{name: row[name] for name in names}, note=_note(row))
        for row in fetch_corrected(warehouse, run_id)
    ]


def pair_corrected(warehouse: Warehouse, base: str, candidate: str) -> list[CorrectedPair]:
    """The corrected means of two runs side by side, for metrics that both have; neither need be enough for a mean."""
    of_base = {row.metric: row for row in list_corrected(warehouse, base)}
    return [
        CorrectedPair(metric=row.metric, base=of_base[row.metric], candidate=row)
        for row in list_corrected(warehouse, candidate)
        if row.metric in of_base
    ]


def explain_uncorrected(metrics: Sequence[str]) -> list[str]:
    """Why metrics that rest on reviewable verdicts have no corrected mean, a sentence for each reason."""
    files = load_metrics()
    by_obstacle: dict[str, list[str]] = {}
    for metric in metrics:
        obstacle = files[metric].correctable if metric in files else None
        if obstacle is not None and obstacle in _OBSTACLES:
            by_obstacle.setdefault(obstacle, []).append(metric)
    return [f"no corrected mean: {', '.join(names)}, {_OBSTACLES[why]}" for why, names in by_obstacle.items()]


def _note(row: Mapping[str, Any]) -> str | None:
    if row["coverage"] < LEAST_COVERAGE:
        return f"the reviewed stand for {row['coverage']:.0%} of the run's verdicts; {LEAST_COVERAGE:.0%} are needed"
    if row["n_effective"] < LEAST_EFFECTIVE:
        return f"{row['n_effective']:.0f} reviewed verdicts by weight; {LEAST_EFFECTIVE} are needed"
    if row["n_samples_effective"] < LEAST_SAMPLES:
        return f"reviewed in {row['n_samples_effective']:.0f} samples by weight; {LEAST_SAMPLES} are needed"
    if row["n_carried"]:
        return f"{row['n_carried']} of the labels are from reviews of other runs"
    return None
