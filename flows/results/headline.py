"""The sentence on top of two runs: what changed, in words that need no knowledge of metrics.

`evalhouse compare`, the report, the pages, JSON and notifications all open with it. It names the stage of the bot that
is worse or better and the causes of bad answers that grew or shrank, beside the share of answers with a problem in both
runs. The counts are over the samples that were judged in both, without the ones whose question or ground truth the
dataset changed: where most of a difference is in these, the sentence gives that as the reason and names no stage,
unless what the bot changed in them explains it.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from evalhouse.flows.results.comparison import name_part
from evalhouse.flows.results.output import capitalise, write_count, write_share, write_value
from evalhouse.flows.results.run_facts import Cause, load_advice, sort_first
from evalhouse.tasks.comparing.changes import FINE, OF_RETRIEVAL, WAYS, CauseMove
from evalhouse.tasks.comparing.runs import (
    MEASURING,
    Comparison,
    ComparisonSettings,
    MetricComparison,
    compare_runs,
    name_edits,
)
from evalhouse.warehouse.rows.run_pairs import RunPair
from evalhouse.warehouse.rows.runs import YARDSTICKS

Compare = Callable[[RunPair], Comparison]
_STAGES: Final = {"retrieval": "retrieval", "generation": "generation", "answer": "what the bot answers"}
_UNJUDGED: Final = "not_judged"
_MAX_CLEAR: Final = 3
_MAX_UNCLEAR: Final = 2
_MOST: Final = 0.95  # of a run's samples; a comparison over fewer says how many it has


@dataclass(frozen=True, kw_only=True)
class Against:
    """The run that another is compared with: a short name, one with its id, and the comparison or why it is missing.

    `slices` are half sentences about parts of the samples that got worse while the whole did not.
    """

    called: str
    name: str
    comparison: Comparison | None = None
    otherwise: str = ""
    slices: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Headline:
    """`sentence` says what changed, without a full stop; `further` are whole sentences about what it rests on."""

    sentence: str
    further: tuple[str, ...] = ()


def compare_plainly(pair: RunPair) -> Comparison:
    """Compare two runs as `evalhouse compare` does."""
    return compare_runs(pair, ComparisonSettings())


def lay_against(pair: RunPair, called: str, compare: Compare = compare_plainly) -> Against:
    """Compare the second run of a pair with the first by `compare`, unless they were measured differently."""
    label = f" ({pair.base.label})" if pair.base.label else ""
    name = f"{called}, {pair.base.run_id}{label}"
    # The differences of the measurement, in half a sentence; empty without any.
    pairs = ((name, getattr(pair.base, name), getattr(pair.candidate, name)) for name in YARDSTICKS)
    changed = ", ".join(f"{name} {old or 'none'} → {new or 'none'}" for name, old, new in pairs if old != new)
    if changed:
        otherwise = f"measured differently ({changed}), so a difference may not be a change of the bot"
        return Against(called=called, name=name, otherwise=otherwise)
    return Against(called=called, name=name, comparison=compare(pair))


def is_measured_otherwise(compared: MetricComparison) -> bool:
    """Return True if another judge, prompt or formula moved a score of this metric."""
    if not compared.parts:  # of an estimate
        return bool(compared.n_other)
    return any(part.n_moved and not set(MEASURING).isdisjoint(part.name.split("+")) for part in compared.parts)


def _name_moved(compared: MetricComparison) -> set[str]:
    """Return the inputs that changed in the samples which moved a metric."""
    parts = compared.parts or compared.plain_parts
    return {name for part in parts if part.n_moved for name in part.name.split("+")}


def write_headline(against: Against) -> Headline:
    """Write what changed since the run that another is compared with."""
    if against.comparison is None:
        return Headline(sentence=f"{capitalise(against.called)} was {against.otherwise}")
    comparison, called = against.comparison, against.called
    causes = comparison.causes
    scored = [compared for compared in comparison.metrics if compared.is_compared]
    is_estimate = any(compared.is_estimate for compared in comparison.metrics)  # of all samples, from any of them
    if not scored and not causes.n:
        return Headline(sentence=f"No sample has a score here and in {called}, so better or worse is unknown")
    alike = [compared for compared in scored if not is_measured_otherwise(compared)]
    clear = {way: [compared for compared in alike if compared.paired.verdict == way] for way in WAYS}
    # Of a run that judged a part of its dataset the texts of the others are not known.
    is_same_bot = bool(comparison.changed) and not comparison.changed["answer"] and not comparison.changed["contexts"]
    # Other addresses of contexts move citations, though the texts are the same.
    moved_inputs = set[str]().union(*(_name_moved(compared) for of_way in clear.values() for compared in of_way))
    is_same_bot = is_same_bot and not is_estimate and moved_inputs.isdisjoint(("answer", "contexts"))
    edits = [name for name, n in comparison.edited.items() if n]
    clauses, explained = [], []
    if len(alike) * 2 < len(scored):
        clauses.append(
            f"{called} was judged by another prompt, model or formula, so whether the bot is better or worse is unknown"
        )
    elif is_same_bot and any(clear.values()):
        parts: dict[str, float] = {}
        for part in (part for compared in scored for part in compared.parts):
            parts[part.name] = parts.get(part.name, 0.0) + abs(part.value)
        why = f"because of: {name_part(max(parts, key=parts.__getitem__))}" if parts else "as a run judged part of them"
        clauses.append(f"answers and contexts are the same as in {called}; the scores moved {why}")
    else:
        for way in WAYS:
            stages = [stage for stage, moved_to in causes.stages.items() if moved_to == way]
            if not stages and not clear[way]:
                continue
            moved = causes.list_moved(way)
            if "retrieval" in stages:
                moved.sort(key=lambda move: (move.verdict != way, move.cause not in OF_RETRIEVAL))
            n_clear = sum(move.verdict == way for move in moved)
            moved = moved[: min(n_clear, _MAX_CLEAR) or _MAX_UNCLEAR]
            subject = " and ".join(_STAGES[stage] for stage in stages)
            verb, why = "are" if len(stages) > 1 else "is", ""
            if not stages:
                subject, verb = "others" if clauses else "some scores", "are"
            by_edits = Counter(compared.edits for compared in clear[way] if compared.edits)
            if not stages and by_edits and 2 * by_edits.total() >= len(clear[way]):
                moved = []
                names_by_metric = [_name_moved(compared) for compared in clear[way]]
                of_bot = [name for name in ("answer", "contexts") if any(name in names for names in names_by_metric)]
                is_retrieval = any("contexts" in names and "answer" not in names for names in names_by_metric)
                reason = by_edits.most_common(1)[0][0]
                if reason == "beside":
                    subject = _STAGES["retrieval" if is_retrieval or "answer" not in of_bot else "answer"]
                    verb = "is"
                    why = f", in samples whose {name_part('+'.join(edits))} too"
                else:
                    # Another question has another answer.
                    also = of_bot if reason == "unclear" and "question" not in edits else []
                    why = f", because of: {name_part('+'.join([*also, *edits]))}"
            explained += moved[:1]
            has_same = "generation" in stages and not comparison.changed["contexts"] and not is_estimate
            same = ", with the same contexts" if has_same else ""
            than = "" if clauses else f" than in {called}"
            clauses.append(f"{subject} {verb} {way}{than}{same}{why}{_count_moves(moved)}")
    if not clauses:
        moved = [move for way in WAYS for move in causes.list_moved(way)[:_MAX_UNCLEAR]]
        if moved or any(compared.paired.verdict != "same" for compared in scored):
            may_be = ", which may be chance" if moved else ""
            clauses.append(
                f"nothing is clearly better or worse than in {called}{_count_moves(moved[:_MAX_UNCLEAR])}{may_be}"
            )
        else:
            clauses.append(f"no score differs from {called}")
    if not is_estimate and comparison.n_common < _MOST * comparison.n_candidate:
        n_here = write_count(comparison.n_candidate, "sample")
        clauses.insert(0, f"only {comparison.n_common:,} of {n_here} here can be compared with {called}")
    # A fall that is named says more than that its samples lost other scores as well.
    is_calm = not clear["worse"] and "worse" not in causes.stages.values()
    partly_lost = [
        compared for compared in comparison.metrics if compared.is_partly_missing or (is_calm and compared.has_few_left)
    ]
    if partly_lost:
        most = max(partly_lost, key=lambda compared: abs(compared.shares.shift) if compared.shares else compared.n_lost)
        reasons = ", ".join(reason.replace("_", " ") for reason in list(most.lost)[:2])
        of_all = write_count(most.n_lost + most.paired.n, "sample")
        lost = f"{most.n_lost:,} of {of_all} that {called} scored have no score now ({reasons})"
        clauses.insert(0, f"in {most.metric} {most.shares.describe(called)}" if most.shares else lost)
    if gained := [compared for compared in comparison.metrics if compared.has_many_gained and compared.is_compared]:
        most = max(gained, key=lambda compared: abs(compared.shares.shift) if compared.shares else compared.n_gained)
        means = (write_value(most.mean_candidate), write_value(most.common_candidate))
        of_all = write_count(most.n_gained + most.paired.n, "sample")
        new = (
            f"{most.n_gained:,} of {of_all} scored here had no score in {called} ({most.metric} is {means[0]} with "
            f"them, {means[1]} without)"
        )
        clauses.insert(0, f"in {most.metric} {most.shares.describe(called)}" if most.shares else new)
    clauses += against.slices
    if causes.n:
        if is_estimate:  # of the answers that both runs judged, which were picked by doubt: no share of all
            before, now = f"{causes.n_base:,}", f"{causes.n_candidate:,}"
            answers = f"{write_count(causes.n, 'answer')} that both runs judged"
        else:
            before, now = (write_share(n / causes.n) for n in (causes.n_base, causes.n_candidate))
            answers = write_count(causes.n, "answer")
        answers += " with the same question and ground truth" if {"question", "ground_truth"} & {*edits} else ""
        share = "as before" if causes.n_base == causes.n_candidate else f"{before} before"
        clauses.append(f"{now} of {answers} have a problem, {share}")
    further = [f"{capitalise(_name(move.cause))} means: {_explain(move.cause)}" for move in explained]
    if comparison.changed:
        *others, last = (
            f"{comparison.changed['answer']:,} have another answer",
            f"{comparison.changed['contexts']:,} other contexts",
            *name_edits(comparison.edited),
        )
        n_samples = write_count(comparison.n_common, "sample")
        further.append(f"Of the {n_samples} in both runs {', '.join(others)} and {last}.")
    return Headline(sentence=capitalise("; ".join(clauses)), further=tuple(further))


def describe_result(
    causes: Sequence[Mapping[str, Any]], metrics: Sequence[Mapping[str, Any]], against: Against | None
) -> Headline:
    """Describe a run: what changed since another, or without one that can be compared what is frequent.

    `causes` are rows of `run_causes`, `metrics` of `run_scores`.
    """
    changes = write_headline(against) if against and against.comparison else None
    if changes and against and against.comparison and against.comparison.causes.n:
        return changes
    n_judged = next((int(row["n_of"]) for row in causes if row["cause"] != _UNJUDGED), 0)
    wrong = [row for row in causes if row["n_samples"] and row["cause"] not in (*FINE, _UNJUDGED)]
    n_wrong = sum(row["n_samples"] for row in wrong)
    further = changes.further if changes else ()
    if n_wrong:
        have = "has" if n_wrong == 1 else "have"
        # A budget of samples picks answers in doubt, and `share` is that of the whole dataset.
        share = write_share(sum(row["share"] for row in wrong))
        if share != write_share(n_wrong / n_judged):
            share = f"an estimated {share} of the whole dataset"
        sentence = f"{n_wrong:,} of {write_count(n_judged, 'judged answer')} {have} a problem ({share})"
        most = max(wrong, key=lambda row: row["n_samples"])
        meaning = load_advice("en")[most["cause"]].meaning
        often = f"Most often, in {write_count(most['n_samples'], 'sample')}: {_name(most['cause'])}. {meaning}"
        further = further or (often,)
    elif n_judged:
        sentence = f"No problem was found in {write_count(n_judged, 'judged answer')}"
    else:
        # Without a sample that has the verdicts which causes rest on, a metric is named.
        sentence = "No result yet: no sample was judged"
        scored = {str(row["metric"]): row for row in metrics if row["mean"] is not None}
        for name in sort_first(list(scored))[:1]:
            n_scored = write_count(scored[name]["n_scored"], "sample")
            sentence = f"{name} is {write_value(scored[name]['mean'])} over {n_scored}"
    if changes:
        sentence = f"{changes.sentence}; {sentence}" if n_judged else changes.sentence
    return Headline(sentence=sentence, further=further)


def describe_causes(comparison: Comparison) -> list[dict[str, object]]:
    """Return the causes of bad answers in both runs with their names, as in JSON, the largest growth first."""
    moves = sorted(comparison.causes.moves, key=lambda move: move.n_base - move.n_candidate)
    return [{**vars(move), "name": _name(move.cause)} for move in moves]


def _count_moves(moves: Sequence[CauseMove]) -> str:
    counts = ", ".join(f"{_name(move.cause)}: {move.n_base:,} → {move.n_candidate:,}" for move in moves)
    return f" ({counts})" if counts else ""


def _name(cause: str) -> str:
    return load_advice("en")[cast(Cause, cause)].name


def _explain(cause: str) -> str:
    meaning = load_advice("en")[cast(Cause, cause)].meaning
    return f"{meaning[:1].lower()}{meaning[1:]}"
