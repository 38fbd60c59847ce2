"""The baseline of a gate, its decision as stored, and the changes of a run since the run before.

A baseline is named by one word of `tasks/settings/suite` or as any run is. Of these words only `previous_any` accepts a
run that failed its gate.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from evalhouse.flows.results.output import escape_markdown, write_count, write_value
from evalhouse.flows.results.run_facts import load_advice
from evalhouse.tasks.settings.suite import MEAN_OF_PASSED, PASSED, PREVIOUS_ANY
from evalhouse.warehouse.engine.connection import one_reader
from evalhouse.warehouse.errors import WarehouseError
from evalhouse.warehouse.messages import shorten
from evalhouse.warehouse.rows.gates import Acceptance, Decision, Night, Origin, list_acceptances
from evalhouse.warehouse.rows.runs import WORDS, YARDSTICKS, RunRow, find_run, list_runs, pick_before
from evalhouse.warehouse.rows.samples import fetch_asked, fetch_shared_with
from evalhouse.warehouse.store import Warehouse

NAMES = (PASSED, MEAN_OF_PASSED, PREVIOUS_ANY)
# Undecided drops that do not show how much worse a run is.
_OTHER_YARDSTICKS = ("other_judge", "other_formula")
# Undecided drops over other samples than the baseline has, which stays; a run with more scores takes its place.
_OF_OTHERS = ("scores_lost", "few_common")
_LOOKED_AT: Final = 30  # nights of which one may be judged as the run is
_MAX_SAMPLES: Final = 5
_MAX_LETTERS: Final = 160
MIN_CHANGE: Final = 0.0005  # what three decimals show
_UNMOVED: Final[Mapping[str, Any]] = {"change": 0.0}
_NO_FAULTS: Final = frozenset({"fine", "refused_rightly"})


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """The runs that drops are measured against. `against` is the name that was given, None without one; `runs` are
    several if their mean is meant, newest last; `missing` says why `runs` is empty; a name of no run, or a run that
    cannot be compared (`is_unrelated`), such as one without a common sample, fails the gate."""

    against: str | None = None
    runs: tuple[RunRow, ...] = ()
    accepted: Acceptance | None = None
    missing: str | None = None
    is_unrelated: bool = False


def find_baseline(warehouse: Warehouse, run: RunRow, against: str, *, k: int, nights: Sequence[Night]) -> Baseline:
    """Find the baseline that `against` names for this run; `nights` are the earlier good runs (`list_nights`)."""
    if against in (PASSED, MEAN_OF_PASSED):
        # A trial of a few samples, or a night of less than half as many, is compared with only without another run.
        good = [night for night in nights if night.is_baseline]
        whole = [night for night in good if not night.run.is_trial_beside(run) and 2 * night.run.size >= run.size]
        good = whole or good
        good = good[-k:] if against == MEAN_OF_PASSED else pick_alike(warehouse, good[-_LOOKED_AT:], run)
        accepted = next((night.accepted for night in good if night.accepted), None)
        missing = None
        if not good:
            missing = (
                f"no earlier run of {name_series(run)} has passed its gate, so there is nothing to compare with; the "
                "first that passes is the baseline, or one that `evalhouse gate --accept RUN` accepts"
            )
        return Baseline(against=against, runs=tuple(night.run for night in good), accepted=accepted, missing=missing)
    if against == PREVIOUS_ANY:
        base = find_previous(warehouse, run)
    else:
        try:
            base = find_run(warehouse, against, beside=run)
        except WarehouseError as error:
            # A name that was mistyped, or whose run is gone, is not the first night.
            is_named = against.partition(":")[0].replace(" ", "-") not in WORDS
            return Baseline(against=against, missing=f"the baseline cannot be found: {error}", is_unrelated=is_named)
        if base.run_id == run.run_id:
            return Baseline(against=against, missing=f"the baseline {against!r} is this run itself")
    if base is None:
        message = f"no earlier run of {name_series(run)} has completed, so nothing can be compared"
        return Baseline(against=against, missing=message)
    acceptances = list_acceptances(warehouse, base.run_id)
    return Baseline(against=against, runs=(base,), accepted=acceptances[-1] if acceptances else None)


def pick_alike(warehouse: Warehouse, nights: list[Night], run: RunRow) -> list[Night]:
    """Return the last of these nights that was judged as a run is, in all of its metrics; the last one without any.

    So a trial with another judge, prompt or fewer metrics hides no drop of the night after it.
    """
    # The statistics, which most runs do without.
    from evalhouse.tasks.comparing.noise import is_judged_alike  # noqa: PLC0415

    asked = fetch_asked(warehouse, [run.run_id, *(night.run.run_id for night in nights)])
    alike = [
        night
        for night in nights
        if set(run.metrics) <= set(night.run.metrics)
        and night.run.config.get("metric_settings") == run.config.get("metric_settings")
        and is_judged_alike(night.run, run, asked, ())
    ]
    return (alike or nights)[-1:]


def name_series(run: RunRow) -> str:
    """Return the name of a run's series."""
    return f"suite {run.suite_name}" if run.suite else f"dataset {run.dataset}"


def find_previous(warehouse: Warehouse, run: RunRow) -> RunRow | None:
    """Find the completed evaluation before this one in its series."""
    runs = list_runs(warehouse, kinds=("evaluation",))
    of_series = [other for other in runs if name_series(other) == name_series(run) and other.status == "completed"]
    return pick_before(of_series, run)


def describe_acceptance(accepted: Mapping[str, Any]) -> str:
    """Describe in a sentence who accepted which run as the baseline, when and why."""
    return (
        f"run {accepted['run_id']} was accepted as the baseline by {accepted['accepted_by']} on "
        f"{accepted['accepted_at']:%Y-%m-%d %H:%M} UTC: {accepted['why']}"
    )


def list_doubted(document: Mapping[str, Any]) -> list[str]:
    """Return the metrics whose undecided drops keep the baseline: it is a worsening beyond chance (its whole interval),
    lacks scores, or is over few samples of the baseline."""
    doubted = {
        check["metric"]: None
        for check in document["checks"]
        if check["kind"] == "max_drop"
        and check["outcome"] == "undecided"
        and check["reason"] not in _OTHER_YARDSTICKS
        and ((check["ci_low"] or 0.0) > 0 or check["reason"] in _OF_OTHERS)
    }
    return list(doubted)


def make_decision(document: Mapping[str, Any], origin: Origin) -> Decision:
    """Make the decision to store from a gate's document.

    A run becomes a baseline if it passed and no undecided drop keeps the one before (`list_doubted`). A run with such a
    drop may be within its limit and passes, but later runs are compared with the level before it.
    """
    baseline = document["baseline"]
    return Decision(
        run_id=document["run"]["run_id"],
        origin=origin,
        outcome=document["outcome"],
        is_baseline=document["outcome"] == "passed" and not list_doubted(document),
        undecided=document["undecided"],
        against=baseline["against"],
        base_run_ids=baseline["run_ids"],
        checks=document["checks"],
    )


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A difference from the run before; `is_break` if the scores of the two cannot be compared because of it."""

    text: str
    is_break: bool


def list_differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Difference]:
    """Yield the differences of two rows of `runs`, each with its plan."""
    for name in YARDSTICKS:
        if before[name] != after[name]:
            yield Difference(text=f"{name}: {before[name] or 'none'} → {after[name] or 'none'}", is_break=True)
    bases = [" ".join(filter(None, (run["kb_name"], run["kb_version"]))) for run in (before, after)]
    if bases[0] != bases[1]:
        yield Difference(text=f"knowledge base: {bases[0] or 'none'} → {bases[1] or 'none'}", is_break=False)
    if before["suite_hash"] != after["suite_hash"]:
        yield Difference(text="suite file: changed", is_break=False)


@dataclass(frozen=True, kw_only=True)
class Moves:
    """The changes since the run before. `changes` are by metric, `causes` the number of samples before and now by the
    cause's name; `samples` fell furthest, the worst first."""

    previous: RunRow
    means: Sequence[Mapping[str, Any]]
    changes: Mapping[str, Mapping[str, Any]]
    differences: Sequence[Difference]
    causes: Mapping[str, tuple[int, int]]
    samples: Sequence[Mapping[str, Any]]


def list_means(warehouse: Warehouse, run: RunRow) -> list[dict[str, Any]]:
    """Read the means of a run, in the order of its metrics."""
    return warehouse.fetch_rows("runs/means", run_id=run.run_id, metrics=list(run.metrics))


def read_moves(warehouse: Warehouse, run: RunRow) -> Moves | None:
    """Read the changes since the run before; None for the first run of a series."""
    with one_reader():  # opening the warehouse for each read takes as long as the reads
        previous = find_previous(warehouse, run)
        if previous is None:
            return None
        columns = (*YARDSTICKS, "kb_name", "kb_version", "suite_hash")
        sides = [{name: getattr(side, name) for name in columns} for side in (previous, run)]
        advice = load_advice("en")
        # Of the samples that both judged: a dataset that grew has more of each cause.
        of_both = warehouse.fetch("run_pairs/causes", base=previous.run_id, candidate=run.run_id)
        before, now = (Counter[Any](of_both[side].to_list()) for side in ("base", "candidate"))
        means = list_means(warehouse, run)
        pair = {"candidate": run.run_id, "base": previous.run_id, "most": _MAX_SAMPLES}
        fallen = warehouse.fetch_rows("history/worse", **pair)
        wanted = {"run_id": run.run_id, "sample_ids": [row["sample_id"] for row in fallen]}
        rows = warehouse.fetch("diagnosis/of_samples", **wanted).to_dicts() if fallen else []
        causes = {row["sample_id"]: row for row in rows}
        return Moves(
            previous=previous,
            means=means,
            changes=fetch_shared_with(warehouse, run.run_id, previous.run_id, [str(row["metric"]) for row in means]),
            differences=list(list_differences(*sides)),
            causes={
                advice[cause].name: (before[cause], now[cause])
                for cause in now | before
                if cause not in _NO_FAULTS and now[cause] != before[cause]
            },
            samples=[{**row, **causes.get(row["sample_id"], {"cause": None, "evidence": None})} for row in fallen],
        )


def write_moves(moves: Moves) -> list[str]:
    """Write the changes as lines of Markdown."""
    lines = [f"## Against run `{moves.previous.run_id}` of {moves.previous.started_at:%Y-%m-%d %H:%M} UTC"]

    moved = [row for row in moves.means if abs(moves.changes.get(row["metric"], _UNMOVED)["change"]) >= MIN_CHANGE]
    if moved:
        lines += ["", "| metric | mean | change | over |", "| --- | --- | --- | --- |"]
    for row in moved:
        shared = moves.changes[row["metric"]]
        cells = (escape_markdown(row["metric"]), write_value(row["mean"]), f"{shared['change']:+.3f}")
        lines.append(f"| {' | '.join(cells)} | {write_count(shared['n_shared'], 'sample')} |")
    still = [row["metric"] for row in moves.means if row["metric"] in moves.changes and row not in moved]
    if still:
        lines += ["", f"As before: {escape_markdown(', '.join(still))}."]
    differences = []
    for difference in moves.differences:
        note = " (so the means are not comparable)" if difference.is_break else ""
        differences.append(f"{escape_markdown(difference.text)}{note}")
    causes = [f"{escape_markdown(name)}: {before:,} → {now:,}" for name, (before, now) in moves.causes.items()]
    samples = []
    for sample in moves.samples:
        # The metric that fell most, and why: the cause by the verdicts, its evidence, and whether the input changed.
        move = sample["moves"][0]
        fall = f"{move['metric']} {write_value(move['before'])} → {write_value(move['after'])}"
        why = [] if sample["cause"] in (None, "not_judged") else [load_advice("en")[sample["cause"]].name]
        why += [sample["evidence"]] if why and sample["evidence"] else []
        why += ["its answer or contexts changed" if sample["input_changed"] else "nothing of it changed"]
        text = f"{sample['sample_id']}, {fall}: {'; '.join(why)}. {sample['question'] or ''}"
        samples.append(escape_markdown(shorten(text, 2 * _MAX_LETTERS)))
    lists = {
        "Measured or made differently than then:": differences,
        "Causes, then → now:": causes,
        "Fallen furthest:": samples,
    }
    for title, items in lists.items():
        if items:
            lines += ["", title, "", *(f"- {item}" for item in items)]
    return lines
