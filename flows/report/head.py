"""What stands first on a page: the result in a few sentences, for a person who did not build the bot.

They are said from facts on record alone: the causes that samples have, the comparison with another run, the decision of
a gate. Where these tell nothing, the sentences say so. Beside them the causes by size, in the words of the page.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from evalhouse.flows.report.charts import write_change
from evalhouse.flows.results.diagnosis import load_advice
from evalhouse.flows.results.gate import name_check, write_amount
from evalhouse.flows.results.output import write_count, write_value
from evalhouse.flows.results.run_origin import HEADLINE
from evalhouse.tasks.comparing.retrieval import describe_retrieval_moves
from evalhouse.tasks.comparing.runs import Comparison, ComparisonSettings, MetricComparison, compare_runs
from evalhouse.warehouse.metric_files import MetricFile
from evalhouse.warehouse.rows.report import Row
from evalhouse.warehouse.rows.run_pairs import RunPair
from evalhouse.warehouse.rows.runs import YARDSTICKS, ForgottenTexts, RunRow

FINE: Final = ("fine", "refused_rightly")
"""Causes of samples in which nothing is wrong."""
_UNJUDGED: Final = "not_judged"
_FEW: Final = 20
"""With fewer judged answers than this, the page says that they are few."""
_MOST_NAMED: Final = 3
_SAYS: Final = "One row per sample of the run: "
_CLEAR: Final = ("worse", "better")
_MEASURING: Final = ("judge", "formula")
"""Parts of a change that are no change of what is measured."""


Tone = Literal["good", "bad", "unclear"]
Compare = Callable[[RunPair], Comparison]


@dataclass(frozen=True, kw_only=True)
class Head:
    """The result and what else there is to say; `tone` is good, bad, or unclear where neither can be said."""

    tone: Tone
    result: str
    further: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Against:
    """The run that another is held against: how it is called among others and by its id, and the comparison, or why
    there is none."""

    called: str
    name: str
    comparison: Comparison | None = None
    otherwise: str = ""


def build_head(
    causes: Sequence[Row],
    *,
    metrics: Sequence[Row],
    against: Against | None,
    gate: Sequence[Row],
    forgotten: ForgottenTexts | None = None,
) -> Head:
    """The head of a run: `causes` are rows of `run_causes`, `metrics` of `run_scores`, `gate` the checks that did not
    pass, none where no gate decided; `forgotten` says which of its texts are gone."""
    moves = _sort_moves(against)
    outcome = gate[0]["gate"] if gate else None
    result = f"{_describe_result(causes, metrics)}{_sum_up_moves(moves, against)}."
    further = (
        *([f"{forgotten.words[:1].upper()}{forgotten.words[1:]}."] if forgotten else ()),
        *_describe_gate(outcome, gate),
        *_describe_problem(causes),
        *_describe_moves(moves, against),
        *_describe_doubts(causes),
    )
    return Head(tone=_find_tone(moves, outcome), result=result, further=further)


def build_pair_head(against: Against) -> Head:
    """The head of two runs side by side: what became of the retrieval first, since answers follow it."""
    moves = _sort_moves(against)
    retrieval = describe_retrieval_moves(against.comparison.retrieval_moves) if against.comparison else None
    found = [retrieval[0] if retrieval else "", _sum_up_moves(moves, against).removeprefix("; ")]
    result = (
        "; ".join(filter(None, found)) or f"Compared with {against.called}: {against.otherwise or _join_moves(moves)}"
    )
    further = (*([f"{retrieval[1]}."] if retrieval else ()), *_describe_moves(moves, against))
    return Head(tone=_find_tone(moves, None), result=f"{result[:1].upper()}{result[1:]}.", further=further)


def compare_plainly(pair: RunPair) -> Comparison:
    """Two runs compared as `evalhouse compare` does."""
    return compare_runs(pair, ComparisonSettings())


def lay_against(pair: RunPair, called: str, compare: Compare = compare_plainly) -> Against:
    """The run of a pair that the other is held against, by the comparison that `compare` makes."""
    label = f" ({pair.base.label})" if pair.base.label else ""
    name = f"{called}, {pair.base.run_id}{label}"
    if otherwise := _explain_otherwise(pair.base, pair.candidate):
        return Against(called=called, name=name, otherwise=otherwise)
    return Against(called=called, name=name, comparison=compare(pair))


def _explain_otherwise(base: RunRow, run: RunRow) -> str:
    """That two runs were measured with something else, in half a sentence; empty where they were not."""
    pairs = ((name, getattr(base, name), getattr(run, name)) for name in YARDSTICKS)
    changed = ", ".join(f"{name} {old or 'none'} → {new or 'none'}" for name, old, new in pairs if old != new)
    return f"measured otherwise ({changed}), so what differs may be no change of the bot" if changed else ""


def rank_causes(counted: Sequence[Row], before: Sequence[Row]) -> list[dict[str, Any]]:
    """The causes that samples have, as the page's rows: what is wrong by size, then what was not judged, then what is
    fine. `before` are those of the other run, empty without one."""
    advice = {str(cause): entry for cause, entry in load_advice("en").items()}
    earlier = {row["cause"]: row["n_samples"] for row in before}
    rows = [
        {
            **row,
            "name": advice[row["cause"]].name,
            "meaning": advice[row["cause"]].meaning,
            "remedies": advice[row["cause"]].remedies,
            "is_wrong": _place_cause(row) == 0,
            "percent": write_share(row["share"]),
            "interval": _write_shares(row),
            "before": earlier.get(row["cause"], 0) if before else None,
        }
        for row in counted
        if row["n_samples"]
    ]
    return sorted(rows, key=lambda row: (_place_cause(row), -row["n_samples"]))


def write_share(share: float | None) -> str:
    """A share as per cent; with a decimal where whole ones would say 0 or 100."""
    if share is None:
        return "–"
    percent = 100 * share
    return f"{percent:.1f} %" if 0 < percent < 1 or 99 < percent < 100 else f"{percent:.0f} %"


def explain_metrics(names: Sequence[str], files: Mapping[str, MetricFile]) -> dict[str, str]:
    """What each metric means, by name; those without a file here are left out."""
    return {name: _explain(files[name]) for name in names if name in files}


def sort_headline(names: Sequence[str]) -> list[str]:
    """The metrics that say most, first; the others as they come."""
    return sorted(names, key=lambda name: HEADLINE.index(name) if name in HEADLINE else len(HEADLINE))


def _explain(file: MetricFile) -> str:
    text = file.meaning or file.description.removeprefix(_SAYS).partition(";")[0]
    return f"{text[:1].upper()}{text[1:]}".rstrip(".")


def _place_cause(row: Row) -> int:
    return 2 if row["cause"] in FINE else 1 if row["cause"] == _UNJUDGED else 0


def _write_shares(row: Row) -> str:
    low, high = row.get("ci_low"), row.get("ci_high")
    return "–" if low is None or high is None else f"{100 * low:.0f} to {100 * high:.0f} %"


def _describe_result(causes: Sequence[Row], metrics: Sequence[Row]) -> str:
    """How many answers have a problem, without a full stop; or that it cannot be said."""
    n_judged, n_wrong = _count_judged(causes), sum(row["n_samples"] for row in causes if _place_cause(row) == 0)
    if not n_judged:
        return _describe_unjudged(metrics)
    if not n_wrong:
        return f"No problem was found in {write_count(n_judged, 'judged answer')}"
    have = "has" if n_wrong == 1 else "have"
    share = write_share(n_wrong / n_judged)
    return f"{n_wrong:,} of {write_count(n_judged, 'judged answer')} {have} a problem ({share})"


def _describe_problem(causes: Sequence[Row]) -> Iterator[str]:
    for row in rank_causes([row for row in causes if _place_cause(row) == 0], ())[:1]:
        yield f"Most often, in {write_count(row['n_samples'], 'sample')}: {row['name']}. {row['meaning']}"


def _describe_doubts(causes: Sequence[Row]) -> Iterator[str]:
    """How far the result can be relied on."""
    if 0 < _count_judged(causes) < _FEW:
        yield "So few answers tell little: as many others may look different."
    if n_unjudged := sum(row["n_samples"] for row in causes if row["cause"] == _UNJUDGED):
        lack = "lacks" if n_unjudged == 1 else "lack"
        yield f"{write_count(n_unjudged, 'sample')} {lack} verdicts that a cause rests on."


def _count_judged(causes: Sequence[Row]) -> int:
    return next((int(row["n_of"]) for row in causes if row["cause"] != _UNJUDGED), 0)


def _describe_unjudged(metrics: Sequence[Row]) -> str:
    """What can be said where no sample has the verdicts that causes rest on."""
    scored = {str(row["metric"]): row for row in metrics if row["mean"] is not None}
    for name in sort_headline(list(scored))[:1]:
        return f"{name} is {write_value(scored[name]['mean'])} over {write_count(scored[name]['n_scored'], 'sample')}"
    return "Nothing can be said of the answers: no sample was judged"


def _sort_moves(against: Against | None) -> dict[str, list[MetricComparison]]:
    """By verdict the metrics of a comparison, those that say most first."""
    found: dict[str, list[MetricComparison]] = {}
    for compared in against.comparison.metrics if against and against.comparison else ():
        is_otherwise = any(part.name in _MEASURING and part.n_moved for part in compared.parts)
        if compared.paired.n:
            found.setdefault("otherwise" if is_otherwise else compared.paired.verdict, []).append(compared)
    for of_verdict in found.values():
        places = {name: place for place, name in enumerate(sort_headline([one.metric for one in of_verdict]))}
        of_verdict.sort(key=lambda compared: places[compared.metric])
    return found


def _sum_up_moves(moves: Mapping[str, Sequence[MetricComparison]], against: Against | None) -> str:
    """How many metrics are better or worse, for the end of the result; empty where that cannot be said."""
    if against is None or not any(way in moves for way in (*_CLEAR, "same", "undecided")):
        return ""
    n = write_count(sum(map(len, moves.values())), "score")
    ways = [way for way in _CLEAR if way in moves]
    if not ways:
        return f"; no score is clearly better or worse than in {against.called}"
    n_first = len(moves[ways[0]])
    also = f", and {len(moves[ways[1]])} {ways[1]}" if len(ways) > 1 else ""
    return f"; {n_first} of {n} {'is' if n_first == 1 else 'are'} {ways[0]} than in {against.called}{also}"


def _describe_moves(moves: Mapping[str, Sequence[MetricComparison]], against: Against | None) -> Iterator[str]:
    if against is None:
        return
    yield f"Compared with {against.name}: {against.otherwise or _join_moves(moves)}."
    if against.comparison:
        yield from (f"{finding.describe()}." for finding in against.comparison.retrieval[:1])


def _join_moves(moves: Mapping[str, Sequence[MetricComparison]]) -> str:
    """What a comparison found, in half a sentence."""
    if not moves:
        return "no sample has a score in both, so that nothing can be said of better or worse"
    if moves.keys() == {"same"}:
        return "no score differs"
    said = "no metric is better or worse beyond chance"
    if any(way in moves for way in _CLEAR):
        said = "; ".join(f"{way} in {_name_metrics(moves[way]) if way in moves else 'none'}" for way in _CLEAR)
    n_otherwise = len(moves.get("otherwise", ()))
    if not n_otherwise:
        return said
    return f"{said}; not said of {write_count(n_otherwise, 'metric')} with another judge, prompt or formula"


def _name_metrics(metrics: Sequence[MetricComparison]) -> str:
    named = [f"{metric.metric} ({write_change(metric.paired.difference)})" for metric in metrics[:_MOST_NAMED]]
    n_more = len(metrics) - len(named)
    return ", ".join(named) + (f" and {write_count(n_more, 'more metric')}" if n_more else "")


def _describe_gate(gate: str | None, checks: Sequence[Row]) -> Iterator[str]:
    if gate is None:
        return
    failed = [check for check in checks if check["outcome"] == "failed"] or [check for check in checks if check["kind"]]
    named = [f"{name_check(check)}, found {write_amount(check['kind'], check['value'])}" for check in failed]
    more = f"; and {len(named) - _MOST_NAMED} more" if len(named) > _MOST_NAMED else ""
    why = f": {'; '.join(named[:_MOST_NAMED])}{more}" if gate != "passed" and named else ""
    yield f"The gate {gate}{why}."


def _find_tone(moves: Mapping[str, Sequence[MetricComparison]], gate: str | None) -> Tone:
    """The gate's word where there is one, else that of the metrics that say most, else that of all."""
    if gate in ("passed", "failed"):
        return "good" if gate == "passed" else "bad"
    main = [way for way in _CLEAR if any(compared.metric in HEADLINE for compared in moves.get(way, ()))]
    ways = main or [way for way in _CLEAR if way in moves]
    return "unclear" if len(ways) != 1 else "bad" if ways == ["worse"] else "good"
