"""The verdicts of a run that a reviewer is asked about: drawn, recorded, written as a table; and the corrected means.

Items that have a label already are left out. An estimate from this export and the earlier labels takes those as known,
each with probability 1 (stratum `reviewed`), and the picked ones as drawn from the others: unbiased however the earlier
labels were made. So they are recorded too, as not asked.

The estimate of a corrected mean is SQL over the labels (`warehouse/views/corrected_scores.sql`), so that every import
changes it with no command. It exists if a sample's score is a sum of single verdicts, each with a share known
beforehand: then the judge's error in the mean is the mean of its errors in the verdicts, which a random part of them
estimates. The other metrics divide counts of verdicts by counts of verdicts, or combine two verdicts on one statement:
their error is not a sum over verdicts, and would need samples that people labelled whole, picked as such.
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

from evalhouse.prompts.render import CONVERSATION, TURN_PREFIX
from evalhouse.tasks.judge.protocol import LEXICAL, find_judge
from evalhouse.tasks.reviews.labels import ReviewError, list_labels
from evalhouse.warehouse.metric_files import load_metrics
from evalhouse.warehouse.rows.reviews import (
    fetch_corrected,
    fetch_items,
    fetch_moved,
    fetch_statements,
    fetch_texts,
)
from evalhouse.warehouse.rows.runs import RunRow, make_run_id, now_utc, refuse_forgotten
from evalhouse.warehouse.steps import REVIEWED_PROMPTS
from evalhouse.warehouse.store import FLUSH_PATIENCE_S, Batch, Warehouse, build_frame

Stratum = Literal["votes", "judges", "gate", "rest"]
Row = Mapping[str, Any]

LEXICAL_SAMPLES: Final = 400
"""The most samples that the lexical judge reads, picked at random; some milliseconds each."""

_MIN_PLACES: Final = 2
_Name = TypeVar("_Name", bound=str)


@dataclass(frozen=True, kw_only=True)
class Item:
    """An item to label: the first verdict of a run with this content."""

    item_hash: str
    question_hash: str
    sample_id: str
    step: str
    statement_id: str | None
    context_rank: int | None
    source: str | None
    statement: str | None
    judge_label: str
    reason: str | None
    n_beside: int
    votes_differ: bool
    is_reviewed: bool

    @property
    def verdict_key(self) -> tuple[str, str, str]:
        """The sample, the step and the short id in the judge's request."""
        return (self.sample_id, self.step, self.statement_id or f"C{self.context_rank}")

    def find_text(self, sample: Row) -> str | None:
        """Return the statement, or the context among the texts of its sample."""
        return self.statement if self.context_rank is None else sample["contexts"][self.context_rank - 1]


def collect_items(rows: Sequence[Row]) -> list[Item]:
    """Return rows of `fetch_items` as items, the first of each content; flags are true if any verdict has them."""
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
    """Return the items of each stratum that has any, in their order.

    `lexical_labels` are by verdict_key, for the samples that were read; `moved` are the (sample, step as metrics name
    it) with changed scores, None for a first run.
    """
    strata: defaultdict[Stratum, list[Item]] = defaultdict(list)
    for item in items:
        lexical = lexical_labels.get(item.verdict_key)
        step = f"attribute_{item.source}" if item.step == "attribute" else item.step
        decides = item.n_beside == 1 if moved is None else (item.sample_id, step) in moved
        if item.votes_differ:
            stratum: Stratum = "votes"
        elif lexical is not None and lexical != item.judge_label:
            stratum = "judges"
        else:
            stratum = "gate" if decides else "rest"
        strata[stratum].append(item)
    return dict(strata)


def pick_samples(items: Sequence[Item], generator: random.Random) -> list[str]:
    """Return the samples that the lexical judge reads: all, or the allowed number at random."""
    samples = list(dict.fromkeys(item.sample_id for item in items))
    return samples if len(samples) <= LEXICAL_SAMPLES else sorted(generator.sample(samples, LEXICAL_SAMPLES))


def label_lexically(
    texts: Mapping[str, Row], statements: Mapping[str, Sequence[Row]], steps: Collection[str]
) -> dict[tuple[str, str, str], str]:
    """Return the lexical judge's labels of these samples, by verdict_key, in the words of review_items.judge_label."""
    from evalhouse.tasks.lexical.judge import judge_lexically  # noqa: PLC0415  # `show` loads this module, and no rules

    labels: dict[tuple[str, str, str], str] = {}
    for sample_id, sample in texts.items():
        rows = statements.get(sample_id, ())
        sides = {
            f"{source}_statements": [
                {"id": row["statement_id"], "text": row["text"]} for row in rows if row["source"] == source
            ]
            for source in ("answer", "ground_truth")
        }
        data = {
            "question": sample["question"],
            "ground_truth": sample["accepted"] or "",
            CONVERSATION: [
                {"id": f"{TURN_PREFIX}{n}", "text": turn.line} for n, turn in enumerate(sample["conversation"], start=1)
            ],
            "contexts": [{"id": f"C{n}", "text": text} for n, text in enumerate(sample["contexts"] or (), start=1)],
            **sides,
        }
        for step in steps:
            verdicts: Any = judge_lexically(step, data)["verdicts"]
            for verdict in verdicts:
                if step == "attribute":
                    # Of the ground truth's statements contexts alone count.
                    held = [one for one in verdict["contexts"] if verdict["id"].startswith("A") or "C" in str(one)]
                    label = "supported" if held else "unsupported"
                else:
                    label = verdict["label"]
                labels[sample_id, step, verdict["id"]] = label
    return labels


@dataclass(frozen=True, kw_only=True)
class Pick:
    """One item with the stratum it was drawn from and the probability of that."""

    item: Item
    stratum: str
    probability: float


@dataclass(frozen=True, kw_only=True)
class StratumDraw:
    """The items drawn from one stratum of a step."""

    step: str
    stratum: Stratum
    size: int
    picks: tuple[Pick, ...]

    @property
    def probability(self) -> float:
        """The probability of each of its items, picked or not."""
        return len(self.picks) / self.size


def share_places(n: int, sizes: Mapping[_Name, int]) -> dict[_Name, int]:
    """Return `n` places in equal parts, none over its size; the remainder goes to the larger ones."""
    shares: dict[_Name, int] = {}
    for place, name in enumerate(sorted(sizes, key=lambda name: sizes[name])):
        shares[name] = min(sizes[name], (n - sum(shares.values())) // (len(sizes) - place))
    return shares


def draw(
    strata: Mapping[Stratum, Sequence[Item]], n: int, *, share_random: float, generator: random.Random
) -> list[StratumDraw]:
    """Draw `n` items of one step from its strata, or from all as one if there are too few places."""
    if n < _MIN_PLACES * len(strata):
        strata = {"rest": [item for items in strata.values() for item in items]}
    places = allocate({stratum: len(items) for stratum, items in strata.items()}, n, share_random=share_random)
    drawn = []
    for stratum, items in sorted(strata.items()):
        if items:
            probability = places[stratum] / len(items)
            chosen = generator.sample(items, places[stratum])
            picks = tuple(Pick(item=item, stratum=stratum, probability=probability) for item in chosen)
            drawn.append(StratumDraw(step=items[0].step, stratum=stratum, size=len(items), picks=picks))
    return drawn


def allocate(sizes: Mapping[Stratum, int], n: int, *, share_random: float) -> dict[Stratum, int]:
    """Return places by stratum: two each, then towards its part of the random share and an equal part of the rest."""
    n = min(n, sum(sizes.values()))
    targeted: dict[Stratum, int] = {stratum: size for stratum, size in sizes.items() if stratum != "rest"}
    n_random = n if not targeted else round(n * share_random)
    equal: dict[Stratum, int] = share_places(n - n_random, targeted)
    total = sum(sizes.values())
    targets = {stratum: n_random * size / total + equal.get(stratum, 0) for stratum, size in sizes.items()}
    lowest = min(_MIN_PLACES, n // len(sizes))
    places = {stratum: min(size, lowest) for stratum, size in sizes.items()}
    for _ in range(n - sum(places.values())):
        # The stratum furthest below its target gets the place, unless it is full.
        open_strata = [stratum for stratum in sizes if places[stratum] < sizes[stratum]]
        neediest = max(open_strata, key=lambda stratum: targets[stratum] - places[stratum])
        places[neediest] += 1
    return places


REVIEWED = "reviewed"
_OF_ITEM = ("sample_id", "step", "statement_id", "context_rank", "item_hash", "question_hash", "judge_label")
# The beginnings of cells that a spreadsheet takes for formulas.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


@dataclass(frozen=True, kw_only=True)
class ExportRequest:
    """The settings of an export: `steps` None for all with verdicts; `seed` repeats a draw."""

    n: int
    steps: tuple[str, ...] | None
    share_random: float
    seed: int
    again: bool


@dataclass(frozen=True, kw_only=True)
class Export:
    """The drawn items: `picks` in the order of asking, strata with their sizes, and the texts of the samples."""

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
        """The number of items that could be drawn."""
        return sum(group.size for group in self.drawn)


def plan_export(warehouse: Warehouse, run: RunRow, request: ExportRequest) -> Export:
    """Draw the items to label; raises ReviewError for no items, or fewer places than steps."""
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
    generator = random.Random(request.seed)
    open_items = items if request.again else [item for item in items if not item.is_reviewed]
    by_step = {step: [item for item in open_items if item.step == step] for step in REVIEWED_PROMPTS}
    by_step = {step: of_step for step, of_step in by_step.items() if of_step}
    if request.n < len(by_step):
        raise ReviewError(
            f"-n {request.n} is less than one verdict for each of {', '.join(by_step)}; name fewer --steps"
        )
    places = share_places(request.n, {step: len(of_step) for step, of_step in by_step.items()})
    # With its own verdicts the lexical judge cannot disagree.
    others = [item for item in open_items if find_judge(run.judge, item.step) != LEXICAL]
    lexical: dict[tuple[str, str, str], str] = {}
    samples: list[str] = []
    if request.share_random < 1 and others:
        samples = pick_samples(others, generator)
        sample_texts = dict(fetch_texts(warehouse, run.run_id, samples))
        statements = fetch_statements(warehouse, run.run_id, samples)
        lexical = label_lexically(sample_texts, statements, sorted({item.step for item in others}))
    moved = fetch_moved(warehouse, run.run_id)
    drawn: list[StratumDraw] = []
    for step, of_step in by_step.items():
        # A plain random sample has no strata.
        groups: dict[Stratum, list[Item]] = (
            {"rest": of_step}
            if request.share_random >= 1
            else sort_into_strata(of_step, lexical_labels=lexical, moved=moved)
        )
        drawn += draw(groups, places[step], share_random=request.share_random, generator=generator)
    # An item that is asked about again has a label already, and so represents only itself.
    picks = [
        Pick(item=pick.item, stratum=REVIEWED, probability=1.0) if pick.item.is_reviewed else pick
        for group in drawn
        for pick in group.picks
    ]
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
        n_read_lexically=len(samples),
        texts=dict(fetch_texts(warehouse, run.run_id, {pick.item.sample_id for pick in picks})),
    )


def record_export(warehouse: Warehouse, export: Export) -> None:
    """Record the items that are asked about, and the items that were reviewed before."""
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
    picks = {"review_picks": build_frame("review_picks", rows)}
    batch = Batch(key=f"review {export.export_id}", run_id=export.run.run_id, tables=picks)
    warehouse.append_now(batch, patience_s=FLUSH_PATIENCE_S)


def read_asked(warehouse: Warehouse, run: RunRow, export_id: str) -> list[Pick]:
    """Return the items of a recorded export of a run, in the order of asking, without verdicts that were deleted.

    Raises ReviewError for an export that has none of this run.
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


def list_rows(export: Export, *, reviewer: str, with_verdicts: bool) -> list[dict[str, Any]]:
    """Return the items as rows of a table, in the order of asking, each with the texts that its verdict is about."""
    rows = []
    for pick in export.picks:
        item, sample = pick.item, export.texts[pick.item.sample_id]
        step, source = item.step, item.source
        needs_truth = step == "rank" or (step == "classify" and source == "answer")
        row = {
            "label": None,
            "labels": " or ".join(list_labels(step, source)),
            "note": None,
            "reviewer": reviewer or None,
            "step": step,
            "conversation": "\n".join(turn.line for turn in sample["conversation"]) or None,
            "question": sample["question"],
            "statement": item.statement,
            "context": item.find_text(sample) if step == "rank" else None,
            "ground_truth": sample["accepted" if step == "rank" else "ground_truth"] if needs_truth else None,
            "answer": sample["answer"] if step == "classify" and source == "ground_truth" else None,
            "contexts": sample["contexts"] if step == "attribute" else None,
            "run_id": export.run.run_id,
            "sample_id": item.sample_id,
            "statement_id": item.statement_id,
            "context_rank": item.context_rank,
            "export_id": export.export_id,
            "item_hash": item.item_hash,
        }
        if with_verdicts:
            row |= {"judge_label": item.judge_label, "judge_reason": item.reason}
        rows.append(row)
    return rows


def write_csv(rows: Iterable[Mapping[str, Any]], names: Iterable[str]) -> bytes:
    """Return a CSV table with these columns, without cells that a spreadsheet would take for formulas.

    It has a byte order mark, without which spreadsheets misread other than ASCII characters.
    """

    def write_cell(value: object) -> object:
        if isinstance(value, list):
            value = "\n\n".join(f"[C{n}] {text}" for n, text in enumerate(value, start=1))
        return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value

    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(names))
    writer.writeheader()
    writer.writerows({name: write_cell(value) for name, value in row.items()} for row in rows)
    return text.getvalue().encode("utf-8-sig")


def write_lines(rows: Iterable[Mapping[str, Any]]) -> bytes:
    """Return rows as JSON Lines."""
    return b"".join(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in rows)


MIN_EFFECTIVE: Final = 20
MIN_SAMPLES: Final = 10
MIN_COVERAGE: Final = 0.5
MIN_COVERAGE_CARRIED: Final = 0.8
"""The limits of the view, which gives no corrected mean below them; the last one where labels are from other runs."""

_OBSTACLES: Final[Mapping[str, str]] = {
    "no, ratio": "which divide counts of verdicts by each other",
    "no, joined": "which join two verdicts on a statement, and these are not picked together",
    "no, ranks": "which depend on all verdicts of a ranking at once",
}
"""The reasons of metric files why a metric cannot be corrected, in words."""


@dataclass(frozen=True, kw_only=True)
class CorrectedMean:
    """A metric's mean by the judge, and corrected by people's labels, with a 95 % interval.

    `corrected_mean` and the interval are None when too little is reviewed; `note` states what is missing, or a caveat.
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
    """Return the corrected means of a run, by metric; none if no verdict was reviewed."""
    names = [name for name in CorrectedMean.__dataclass_fields__ if name != "note"]
    means = []
    rows = fetch_corrected(warehouse, run_id)
    left_out = "select 1 from sample_picks where run_id = $run_id and not picked limit 1"
    is_part = bool(rows) and not warehouse.read(left_out, {"run_id": run_id}).is_empty()
    for row in rows:
        note = None
        needed = MIN_COVERAGE_CARRIED if row["n_carried"] else MIN_COVERAGE
        if is_part:
            note = "both are of the judged part: with a budget of samples no mean is corrected"
        elif row["coverage"] < needed:
            share = f"{row['coverage']:.0%} of the run's verdicts"
            note = f"the reviewed verdicts represent {share}; {needed:.0%} are needed"
            note += ", as the other verdicts are new since that review" if row["n_carried"] else ""
        elif row["n_effective"] < MIN_EFFECTIVE:
            note = f"{row['n_effective']:.0f} reviewed verdicts by weight; {MIN_EFFECTIVE} are needed"
        elif row["n_samples_effective"] < MIN_SAMPLES:
            note = f"reviewed in {row['n_samples_effective']:.0f} samples by weight; {MIN_SAMPLES} are needed"
        elif row["n_carried"]:
            note = f"{row['n_carried']} of the labels are from reviews of other runs"
        means.append(CorrectedMean(**{name: row[name] for name in names}, note=note))
    return means


def pair_corrected(warehouse: Warehouse, base: str, candidate: str) -> list[CorrectedPair]:
    """Return the corrected means of two runs in pairs, for metrics with reviewed verdicts in both."""
    of_base = {row.metric: row for row in list_corrected(warehouse, base)}
    return [
        CorrectedPair(metric=row.metric, base=of_base[row.metric], candidate=row)
        for row in list_corrected(warehouse, candidate)
        if row.metric in of_base
    ]


def explain_uncorrected(metrics: Sequence[str]) -> list[str]:
    """Return why metrics of reviewable verdicts have no corrected mean, a sentence for each reason."""
    files = load_metrics()
    by_obstacle: dict[str, list[str]] = {}
    for metric in metrics:
        obstacle = files[metric].correctable if metric in files else None
        if obstacle is not None and obstacle in _OBSTACLES:
            by_obstacle.setdefault(obstacle, []).append(metric)
    return [f"no corrected mean: {', '.join(names)}, {_OBSTACLES[why]}" for why, names in by_obstacle.items()]
