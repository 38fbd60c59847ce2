"""The decision of a gate and its output, for `evalhouse gate` and for the gate of a suite.

The numbers are read from the record here and judged in `evalhouse.tasks.comparing.gate_checks`; who sets the limits,
and whether a run may be decided on at all, is the business of the two callers.
For a CI's test page it leaves JUnit XML, for a pull request a comment in Markdown. Names, labels and statements are
texts of others: in XML they are attributes and texts, without the characters that XML 1.0 does not allow, in Markdown
code spans, where no markup, mention or HTML is read. A comment is cut: GitHub refuses more than 65,536 characters.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Literal
from xml.etree import ElementTree

from evalhouse.flows.results.baseline import Baseline, describe_acceptance, find_previous, list_doubted
from evalhouse.flows.results.comparison import (
    KINDS,
    describe_finding,
    list_plans,
    name_check,
    name_limit,
    name_metric,
    write_amount,
    write_beyond,
    write_difference,
    write_limit,
)
from evalhouse.flows.results.headline import describe_causes, lay_against, write_headline
from evalhouse.flows.results.output import (
    escape_markdown,
    make_table,
    print_line,
    print_table,
    write_count,
    write_dollars,
    write_interval,
    write_number,
    write_value,
)
from evalhouse.flows.results.run_facts import list_first
from evalhouse.tasks.comparing.changes import Flip, find_flips
from evalhouse.tasks.comparing.gate_checks import (
    EDITED,
    OUTCOMES,
    Check,
    Cost,
    Kind,
    Latency,
    Limits,
    Score,
    check_all,
    check_drops,
    check_falls_since,
    check_mean,
    check_trends,
    compare_with_mean,
    count_outcomes,
    find_first_alike,
    is_passed,
    lay_side_by_side,
    mark_changes,
    pick_nights,
)
from evalhouse.tasks.comparing.noise import describe_components
from evalhouse.tasks.comparing.paired import is_sampled
from evalhouse.tasks.comparing.runs import (
    Comparison,
    ComparisonError,
    ComparisonSettings,
    MetricComparison,
    check_common,
    compare_runs,
    group_means,
    rank_samples,
    warn_of_status,
)
from evalhouse.tasks.comparing.slices import (
    BySlice,
    compare_slices,
    compare_slices_with_mean,
    find_slices,
    measure_slices,
)
from evalhouse.tasks.settings.suite import MEAN_OF_PASSED, PASSED, SliceGate
from evalhouse.warehouse.messages import clean_text, cut, list_names, shorten
from evalhouse.warehouse.rows.gates import Night
from evalhouse.warehouse.rows.run_pairs import RunPair
from evalhouse.warehouse.rows.runs import RunRow, fetch_components
from evalhouse.warehouse.store import Warehouse

STDOUT = "-"
NO_SLICES: Mapping[str, SliceGate] = {}
_RUN_COLUMNS = (
    "run_id", "status", "suite", "variant", "label", "dataset", "judge", "embeddings", "started_at", "n_samples",
)  # fmt: skip
_HALF: Final = 0.5
"""The share of a run's samples without a score of a metric that is worth a warning in any run."""
_MANY_MORE: Final = 0.2
"""The rise of that share since the run before, or the share of failed traces, that is worth one."""
_OF_REFUSALS: Final = ("refusal_rate",)
"""Metrics that by their nature only some samples have."""
_EMPTY = """
select metric, unscored_reason as reason, count(*) as n from scores
where run_id = $run_id and value is null
    and unscored_reason in ('no_statements', 'no_contexts', 'no_answer', 'target_failed')
group by all order by n desc, reason
"""
_SAMPLES = "select count(*) as n from run_samples where run_id = $run_id"
Document = Mapping[str, Any]
# XML 1.0, production [2] Char: no controls but tab and line breaks, no surrogates, no U+FFFE and U+FFFF.
_NOT_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_TICKS = re.compile(r"`+")
# What may not be in the name of a series within an HTML comment.
_NOT_NAME = re.compile(r"[^\w.:/-]+|--+")
_MARKS = {"failed": "❌ failed", "undecided": "❔ undecided", "passed": "✅ passed"}
_MAX_SAMPLES = 10
_MAX_FLIPS = 4
_MAX_CHECKS = 50
_MAX_TEXT = 200
_MAX_LINE = 600
# GitHub makes a mention or a link of these, escaped or not, but not with a mark of no width within.
_LINKED = re.compile(r"(?<=@)|(?<=:)(?=//)|(?<=www)(?=\.)", re.IGNORECASE)
_WORD_JOINER = "\u2060"
_SEEN = ("label", "supported", "useful", "rating")
_MAX_NAMED = 4  # metrics of one finding; more of them are counted
SIDES = ("run", "against")
_COLUMNS = (
    "outcome", "metric", "check", "#limit", "#found", "95 % interval", "#noise floor", "#n", "#beyond limit by", "why",
)  # fmt: skip


def decide(
    warehouse: Warehouse,
    run: RunRow,
    baseline: Baseline,
    *,
    nights: Sequence[Night] = (),
    scores: Mapping[str, Score],
    limits: Limits,
    settings: ComparisonSettings,
    undecided: Literal["pass", "fail"],
    slices: Mapping[str, SliceGate] = NO_SLICES,
) -> dict[str, Any]:
    """Check all limits and return the checks with the gate's outcome, as --json prints it.

    A missing baseline leaves drops undecided; `slices` are limits for each value of a metadata column,
    `nights` the runs before, for trends. Raises ComparisonError if the
    runs cannot be compared as asked, NothingCommon if they share no sample.
    """
    comparison: Comparison | None = None
    if has_part := any(map(is_sampled, (run, *baseline.runs))):  # plain means of what was picked would mislead
        baseline = replace(baseline, runs=baseline.runs[-1:])
    if baseline.runs:
        check_common(*(RunPair(warehouse, base, run) for base in baseline.runs))
    if len(baseline.runs) == 1:
        # p is adjusted over the drops that are checked, and over no others.
        of_drops = replace(settings, metrics=frozenset(limits.drops))
        comparison = compare_runs(RunPair(warehouse, baseline.runs[0], run), of_drops)
    elif baseline.runs and limits.drops:
        metrics = list(limits.drops)
        laid = lay_side_by_side(warehouse, run, baseline.runs, metrics=metrics, cluster=settings.cluster)
        comparison = compare_with_mean(mark_changes(warehouse, run, baseline.runs, laid), settings)
    comparisons = {compared.metric: compared for compared in comparison.metrics} if comparison else {}
    rows: list[dict[str, Any]] = warehouse.fetch_rows("gate/costs", run_id=run.run_id)
    latencies: list[dict[str, Any]] = warehouse.fetch_rows("gate/latency", run_id=run.run_id)
    checks = check_all(
        limits,
        scores=scores,
        comparisons=comparisons,
        cost=Cost(
            usd=sum(row["priced_usd"] for row in rows),
            n_unpriced=sum(row["n_unpriced"] for row in rows),
            n_estimated=sum(row["n_estimated"] for row in rows),
        ),
        latency=Latency(**latencies[0]) if latencies else Latency(),
    )
    for column, of_slice in slices.items():
        checks += _check_slices(warehouse, run, baseline.runs, settings, column=column, limits=of_slice)
    if baseline.missing is not None:
        checks = [
            Check(
                kind=check.kind,
                metric=check.metric,
                limit=check.limit,
                value=None,
                n=0,
                outcome="failed" if baseline.is_unrelated else "undecided",
                reason="nothing_common",
                detail=baseline.missing,
            )
            if check.kind == "max_drop"
            else check
            for check in checks
        ]
    if baseline.is_unrelated:
        checks += [
            Check(
                kind="trend", metric=name, limit=limit, value=None, n=0, outcome="failed", reason="nothing_common",
                detail=baseline.missing or "",
            )
            for name, limit in limits.trends.items()
        ]  # fmt: skip
    elif limits.trends and has_part and nights:
        firsts = find_first_alike(warehouse, run, [night.run for night in nights], list(limits.trends))
        by_night: dict[str | None, list[str]] = {}
        for name, first in firsts.items():
            by_night.setdefault(first.run_id if first else None, []).append(name)
        for names in by_night.values():
            since = firsts[names[0]]
            of_trends = replace(settings, metrics=frozenset(names))
            fallen = compare_runs(RunPair(warehouse, since, run), of_trends).metrics if since else ()
            of_names = {name: limits.trends[name] for name in names}
            checks += check_falls_since(of_names, {compared.metric: compared for compared in fallen}, since)
    elif limits.trends:
        earlier = pick_nights([night.run for night in nights if not is_sampled(night.run)])
        laid = lay_side_by_side(warehouse, run, earlier, metrics=list(limits.trends), cluster=settings.cluster)
        falls = check_trends(
            limits.trends, laid.nights, cluster=laid.cluster, seed=settings.seed, resamples=settings.resamples
        )
        if any(check.outcome == "failed" for check in falls):
            laid = mark_changes(warehouse, run, earlier, laid)
        for check in falls:
            edited = laid.nights[str(check.metric)].edited
            if check.outcome == "failed" and edited is not None and edited.any():
                note = EDITED.format(n=int(edited.sum()), of=len(edited), since=" since the first of these nights")
                check = replace(check, detail=f"{check.detail}; {note}")  # noqa: PLW2901
            checks.append(check)
    described = [{name: getattr(side, name) for name in _RUN_COLUMNS} for side in (run, *baseline.runs[-1:])]
    components = [row for row in fetch_components(warehouse, run.run_id) if row["metric"] in limits.drops]
    few = warn_of_few_scores(warehouse, run, scores, dict.fromkeys((*limits.minimums, *limits.maximums, *limits.drops)))
    return {
        "outcome": "passed" if is_passed(checks, undecided=undecided) else "failed",
        "undecided": undecided,
        "counts": count_outcomes(checks),
        "run": described[0],
        "against": described[1] if baseline.runs else None,
        "baseline": {
            "against": baseline.against,
            "run_ids": [run.run_id for run in baseline.runs],
            "accepted": vars(baseline.accepted) if baseline.accepted else None,
        },
        "cluster": comparison.cluster if comparison else None,
        "seed": settings.seed,
        "few_scored": few,
        "warnings": [*few, *(comparison.warnings if comparison is not None else warn_of_status(run))],
        "checks": [asdict(check) for check in sorted(checks, key=lambda check: OUTCOMES.index(check.outcome))],
        "components": describe_components(components, limits.drops),
    }


def _check_slices(
    warehouse: Warehouse,
    run: RunRow,
    bases: Sequence[RunRow],
    settings: ComparisonSettings,
    *,
    column: str,
    limits: SliceGate,
) -> list[Check]:
    """Check the means and drops of each slice by a column; p of drops is adjusted over all slices and metrics.

    All limits fail where the run has no such slices: they were meant to hold.
    """
    kinds: dict[Kind, Mapping[str, float]] = {"min": limits.min, "max": limits.max, "max_drop": limits.max_drop}
    try:
        slices = find_slices(warehouse, run, column)
    except ComparisonError as error:
        return [
            Check(
                kind=kind, metric=name, limit=limit, value=None, n=0, outcome="failed", reason="nothing_scored",
                detail=str(error), by_column=column,
            )
            for kind, by_metric in kinds.items()
            for name, limit in by_metric.items()
        ]  # fmt: skip
    of_runs: BySlice = {}
    metrics = list(limits.max_drop)
    not_sliced = ""
    if len(bases) == 1 and metrics:
        try:
            of_runs = compare_slices(RunPair(warehouse, bases[0], run), settings, column, metrics)
        except ComparisonError as error:  # the baseline is from before the column, or judged a part
            not_sliced = str(error)
    elif bases and metrics:
        laid = lay_side_by_side(warehouse, run, bases, metrics=metrics, cluster=settings.cluster)
        of_runs = compare_slices_with_mean(mark_changes(warehouse, run, bases, laid), slices, settings)
    checks: list[Check] = []
    means = measure_slices(warehouse, run, column, [*limits.min, *limits.max], cluster=settings.cluster)
    for value in slices:
        of_slice = {mean.metric: mean for mean in means if mean.slice == value}
        found = [check_mean("min", name, limit, of_slice[name]) for name, limit in limits.min.items()]
        found += [check_mean("max", name, limit, of_slice[name]) for name, limit in limits.max.items()]
        drops = check_drops(limits.max_drop, of_runs.get(value, {}))
        found += [replace(check, detail=not_sliced) for check in drops] if not_sliced else drops
        checks += [replace(check, by_column=column, by_value=value) for check in found]
    return checks


def warn_of_few_scores(
    warehouse: Warehouse, run: RunRow, scores: Mapping[str, Score], metrics: Iterable[str]
) -> list[str]:
    """Return what limits do not see: metrics of which half of the samples, or many more than in the run before, have no
    score because of what the bot returned, and traces that failed. The answers that went well are judged as before."""
    previous = find_previous(warehouse, run)
    counts_before = None
    if previous is not None and not is_sampled(previous) and previous.n_samples:
        counts_before = _count_empty(warehouse, previous)
    empty = _count_empty(warehouse, run)
    warnings = []
    for name in metrics:
        score = scores.get(name)
        if score is None or score.is_estimate or not score.n_scored or name in _OF_REFUSALS:
            continue
        counts = empty.get(name, {})
        share, share_before = sum(counts.values()) / score.n_samples, None
        if previous is not None and previous.n_samples and counts_before is not None:
            share_before = sum(counts_before.get(name, {}).values()) / previous.n_samples
        if share < _HALF and (share_before is None or share < share_before + _MANY_MORE):
            continue
        why = ", ".join(f"{reason.replace('_', ' ')} {n:,}" for reason, n in counts.items())
        before = f"; in the run before {share_before:.0%} had none" if share_before is not None else ""
        warnings.append(
            f"{name} is of {score.n_scored:,} of {write_count(score.n_samples, 'sample')}: others have no score "
            f"because of what the bot returned ({why}){before}"
        )
    n_failed, n_samples = run.config.get("failed_traces") or 0, run.n_samples or 0
    if n_failed > _MANY_MORE * (n_failed + n_samples):
        warnings.append(f"{n_failed:,} of {n_failed + n_samples:,} traces ended with an error and were left out")
    return warnings


def _count_empty(warehouse: Warehouse, run: RunRow) -> dict[str, dict[str, int]]:
    """Return by metric and reason the samples without a score because the bot refused, failed, or gave no answer or
    contexts."""
    counts: dict[str, dict[str, int]] = {}
    for row in warehouse.read_rows(_EMPTY, {"run_id": run.run_id}):
        counts.setdefault(str(row["metric"]), {})[str(row["reason"])] = int(str(row["n"]))
    return counts


def read_scores(warehouse: Warehouse, run: RunRow, *, cluster: str | None = None) -> dict[str, Score]:
    """Read the score of every metric of the run, in its order; a metric without a row has no score.

    Intervals count the groups of the run, or the groups by `cluster`, a metadata column; none for NO_CLUSTER. A run
    that judged a part of its dataset keeps the intervals of its estimates. Raises ComparisonError if no sample has that
    column.
    """
    of_run = {"run_id": run.run_id}
    n_samples = int(str(warehouse.read_rows(_SAMPLES, of_run)[0]["n"]))
    scores = warehouse.fetch_rows("gate/scores", **of_run)
    rows: dict[str, dict[str, Any]] = {str(row.pop("metric")): row for row in scores}
    minimums = {name: row.pop("minimum") for name, row in rows.items()}
    is_estimate = is_sampled(run)
    if cluster and not is_estimate:
        for name, grouped in group_means(warehouse, run, cluster, minimums).items():
            rows[name] |= grouped
    # A metric that left no row was not computed for any sample.
    none = {"mean": None, "ci_low": None, "ci_high": None, "n_scored": 0, "n_applicable": n_samples}
    names = dict.fromkeys((*run.metrics, *sorted(rows)))
    return {name: Score(n_samples=n_samples, is_estimate=is_estimate, **rows.get(name, none)) for name in names}


def print_gate(document: Mapping[str, Any], *, names_run: bool = True) -> None:
    """Print the gate: the runs, warnings, a table of all checks, and the verdict."""
    for side in SIDES if names_run else SIDES[1:]:
        if run := document[side]:
            label = f" ({run['label']})" if run["label"] else ""
            print_line(f"{side} {run['run_id']}{label}, {write_count(run['n_samples'], 'sample')} of {run['dataset']}")
    for line in list_baseline(document):
        print_line(line)
    for warning in document["warnings"]:
        print_line(f"warning: {warning}")
    print_line()
    # The checks that did not pass, failed ones first as in the document; metrics with the same finding are one row.
    alike: dict[tuple[object, ...], list[Document]] = {}
    for check in document["checks"]:
        if check["outcome"] != "passed":
            keys = ("kind", "limit", "outcome", "value", "ci_low", "ci_high", "detail")
            alike.setdefault(tuple(check[key] for key in keys), []).append(check)
    checks = []
    for group in alike.values():
        names = ", ".join(name_metric(check) for check in group)
        joined = {"metric": f"{len(group)} metrics", "names": names} if len(group) > 1 else {}
        checks.append({**group[0], **joined})
    if checks:
        print_table(make_table(*lay_out_checks(checks)))
        for check in checks:
            if "names" in check:
                print_line(f"{check['metric']} {check['outcome']}, {name_limit(check)}: {check['names']}")
        for line in list_explanations(document):
            print_line(line)
        print_line()
    # The checks that passed, a line for each kind and limit: `passed, mean at least 0.800: factual_f1 0.912`.
    passed: dict[str, dict[str, list[str]]] = {}
    for check in document["checks"]:
        if check["outcome"] == "passed":
            value = write_amount(check["kind"], check["value"])
            passed.setdefault(name_limit(check), {}).setdefault(value, []).append(name_metric(check))
    for limit, values in passed.items():
        shown = []
        for value, metrics in values.items():
            names = ", ".join(metrics) if len(metrics) <= _MAX_NAMED else f"{len(metrics)} metrics"
            shown.append(f"{names} {value}".strip())
        print_line(f"passed, {limit}: {', '.join(shown)}")
    print_line(describe_verdict(document), bold=True)


def list_explanations(document: Document) -> list[str]:
    """Explain drops that did not pass: the sources of variance, and the samples needed to see a drop of that size."""
    unpassed = {
        check["metric"] for check in document["checks"] if check["kind"] == "max_drop" and check["outcome"] != "passed"
    }
    lines = []
    for row in document["components"]:
        if row["metric"] not in unpassed:
            continue
        # `questions 70%, bot 26%, judge 4% of the variance`
        if row["judge_variance"] is None:
            parts = {"questions": row["question_variance"], "bot and judge": row["answer_variance"]}
        else:
            parts = {"questions": row["question_variance"], "bot": row["bot_variance"], "judge": row["judge_variance"]}
        whole = sum(parts.values())
        shares = ", ".join(f"{name} {value / whole if whole else 0:.0%}" for name, value in parts.items())
        repeated = f"{row['n_repeated']} questions asked again"
        lines += [f"{row['metric']} varies by {shares} of the variance ({repeated})", *list_plans([row])]
    return lines


def list_baseline(document: Document) -> list[str]:
    """Explain a baseline that is the mean of several runs, that a person accepted, or that stays for the next runs."""
    baseline = document["baseline"]
    run_ids, accepted = baseline["run_ids"], baseline["accepted"]
    lines = []
    if len(run_ids) > 1:
        lines.append(f"against the mean of {len(run_ids)} runs that passed: {', '.join(run_ids)}")
    if accepted:
        lines.append(describe_acceptance(accepted))
    doubted = list_doubted(document)
    if run_ids and doubted and document["outcome"] == "passed" and baseline["against"] in (PASSED, MEAN_OF_PASSED):
        lines.append(
            f"this run is not the baseline of the next ones, because the drop of {list_names(doubted, _MAX_NAMED)} is "
            "undecided: the baseline stays until a run has no such drop, or is accepted"
        )
    return lines


def lay_out_checks(checks: Sequence[Document]) -> tuple[list[str], list[list[str]]]:
    """Return the columns of a table of checks, `#` before numbers, and its rows; only drops have noise floors."""
    rows = [
        {
            "outcome": check["outcome"],
            "metric": name_metric(check) or "–",
            "check": KINDS[check["kind"]],
            "#limit": write_limit(check["kind"], check["limit"]),
            "#found": write_amount(check["kind"], check["value"]),
            "95 % interval": write_interval(check["ci_low"], check["ci_high"]),
            "#noise floor": "–" if check["noise_floor"] is None else write_number(check["noise_floor"]),
            "#n": "–" if check["n"] is None else str(check["n"]),
            "#beyond limit by": write_beyond(check),
            "why": check["detail"],
        }
        for check in checks
    ]
    has_floor = any(check["kind"] == "max_drop" for check in checks)
    columns = [column for column in _COLUMNS if column != "#noise floor" or has_floor]
    return columns, [[row[column] for column in columns] for row in rows]


def describe_verdict(document: Document) -> str:
    """Return the result of the whole gate in one sentence."""
    counts = document["counts"]
    undecided = f"{counts['undecided']} undecided"
    if counts["undecided"]:
        undecided += f" (which {'passes' if document['undecided'] == 'pass' else 'fails'})"
    return f"gate {document['outcome']}: {counts['failed']} failed, {undecided}, {counts['passed']} passed"


def write_junit(document: Document) -> bytes:
    """Return JUnit XML with one test case a check; an undecided check is a failure or skipped, as the gate says."""
    checks: Sequence[Document] = document["checks"]
    undecided = "failure" if document["undecided"] == "fail" else "skipped"
    endings = [{"failed": "failure", "passed": "passed", "undecided": undecided}[check["outcome"]] for check in checks]
    counts = {"tests": str(len(checks)), "failures": str(endings.count("failure")), "errors": "0", "time": "0"}
    suites = ElementTree.Element("testsuites", {"name": "evalhouse gate", **counts})
    run = document["run"]
    suite = ElementTree.SubElement(
        suites,
        "testsuite",
        {
            "name": _clean_xml(f"evalhouse gate {run['suite'] or run['label'] or run['run_id']}"),
            **counts,
            # Schemas in use (Jenkins' junit-10.xsd) have it here and not at the root.
            "skipped": str(endings.count("skipped")),
            "timestamp": f"{run['started_at']:%Y-%m-%dT%H:%M:%S}",
        },
    )
    properties = ElementTree.SubElement(suite, "properties")
    for side in SIDES:
        for name, value in (document[side] or {}).items():
            attributes = {"name": f"{side}.{name}", "value": _clean_xml("" if value is None else str(value))}
            ElementTree.SubElement(properties, "property", attributes)
    for check, ending in zip(checks, endings, strict=True):
        names = {"classname": f"evalhouse.gate.{check['kind']}", "name": _clean_xml(name_check(check)), "time": "0"}
        case = ElementTree.SubElement(suite, "testcase", names)
        text = _clean_xml(describe_finding(check))
        if ending == "passed":
            ElementTree.SubElement(case, "system-out").text = text
            continue
        attributes = {"message": text, "type": check["reason"]} if ending == "failure" else {"message": text}
        ElementTree.SubElement(case, ending, attributes).text = text
    ElementTree.indent(suites)
    written: bytes = ElementTree.tostring(suites, encoding="utf-8", xml_declaration=True)
    return written + b"\n"


def _clean_xml(text: str) -> str:
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", clean_text(text))


@dataclass(frozen=True, kw_only=True)
class Changes:
    """The changes since another run: the sentence on top, the main metrics, the causes that grew, and the samples that
    moved most, with their question and the items whose verdict changed."""

    sentence: str
    metrics: Sequence[MetricComparison]
    causes: Sequence[Mapping[str, Any]]
    samples: Mapping[str, tuple[str, Sequence[Flip]]]


def find_changes(warehouse: Warehouse, base: RunRow, run: RunRow) -> Changes:
    """Find what changed from a run to another one."""
    pair = RunPair(warehouse, base, run)
    comparison = compare_runs(pair, ComparisonSettings())
    headline = write_headline(lay_against(pair, "the baseline", lambda _: comparison))
    ranked = rank_samples(comparison.moves)
    flips = find_flips(**pair.fetch_verdicts(ranked))
    changed = {
        sample_id: [flip for flip in of_sample if flip.change != "moved"] for sample_id, of_sample in flips.items()
    }
    moved = [sample_id for sample_id in ranked if changed.get(sample_id)][:_MAX_SAMPLES]
    questions = {
        row["sample_id"]: str(row["question"])
        for row in pair.fetch("texts", {"sample_id": moved}).to_dicts()
        if row["of_candidate"]
    }
    by_name = {compared.metric: compared for compared in comparison.metrics if compared.is_compared}
    return Changes(
        sentence=headline.sentence,
        metrics=[by_name[name] for name in list_first(list(by_name), run.config)],
        causes=[cause for cause in describe_causes(comparison) if cause["n_candidate"] > cause["n_base"]],  # type: ignore[operator]
        samples={sample_id: (questions.get(sample_id, ""), changed[sample_id]) for sample_id in moved},
    )


def write_failure(run: RunRow, report_url: str | None) -> str:
    """Return a comment that takes the place of an earlier one where a run failed, and there is nothing to decide on."""
    lines = [_write_marker(vars(run)), f"### ❌ evalhouse: the run is {run.status}, and nothing was decided", ""]
    lines.append(f"- run: {_quote(run.run_id)}{f', {_quote(run.problem, _MAX_LINE)}' if run.problem else ''}")
    if report_url is not None:
        lines.append(f"- [report]({report_url})")
    return "\n".join([*lines, ""])


def _write_marker(run: Mapping[str, Any]) -> str:
    """Return the first line of a comment, by which the one of the run before is found and renewed."""
    series = _NOT_NAME.sub("-", "/".join(filter(None, (run["suite"], run["variant"]))) or run["dataset"] or "")
    return f"<!-- evalhouse {series} -->"


def write_markdown(
    document: Document, changes: Changes | None = None, *, cost_usd: float | None = None, report_url: str | None = None
) -> str:
    """Return a gate as Markdown: the verdict, what changed, the runs, warnings, a table of all checks, and samples."""
    mark = "✅" if document["outcome"] == "passed" else "❌"
    lines = [_write_marker(document["run"]), f"### {mark} evalhouse {describe_verdict(document)}", ""]
    if changes is not None:
        lines += [f"**{_escape(cut(changes.sentence, _MAX_LINE))}.**", ""]
    for side in SIDES:
        if run := document[side]:
            label = f" ({_quote(run['label'])})" if run["label"] else ""
            lines.append(
                f"- {side}: {_quote(run['run_id'])}{label}, {run['n_samples']} samples of {_quote(run['dataset'])}, "
                f"judge {_quote(run['judge'])}"
            )
    lines += [f"- {_quote(line, _MAX_LINE)}" for line in list_baseline(document)]
    lines += [f"- ⚠️ {_quote(warning, _MAX_LINE)}" for warning in document["warnings"]]
    lines += [f"- {_quote(line, _MAX_LINE)}" for line in list_explanations(document)]
    if cost_usd is not None:
        lines.append(f"- cost: {write_dollars(cost_usd)}")
    if report_url is not None:
        lines.append(f"- [report]({report_url})")
    if changes is not None and changes.metrics:
        rows = [
            [_quote(one.metric), write_value(one.common_base), write_value(one.common_candidate),
             write_difference(one.paired.difference), write_interval(one.paired.ci_low, one.paired.ci_high),
             one.paired.verdict]
            for one in changes.metrics
        ]  # fmt: skip
        columns = ["metric", "#baseline", "#now", "#difference", "95 % interval", "verdict"]
        lines += ["", *_write_table(columns, rows)]
    if changes is not None and changes.causes:
        rows = [[cause["name"], str(cause["n_base"]), str(cause["n_candidate"])] for cause in changes.causes]
        lines += ["", *_write_table(["cause that grew", "#baseline", "#now"], rows)]
    # The name of a slice is a value of the dataset, and the detail of a check may repeat one.
    checks = [
        {
            **check,
            "outcome": _MARKS[check["outcome"]],
            "metric": _quote(name_metric(check)),
            "by_column": None,
            "detail": _escape(shorten(check["detail"], _MAX_TEXT)),
        }
        for check in document["checks"][:_MAX_CHECKS]
    ]
    lines += ["", *_write_table(*lay_out_checks(checks))]
    if n_more := len(document["checks"]) - len(checks):
        lines += ["", f"and {write_count(n_more, 'more check')}"]
    if changes is not None and changes.samples:
        what = write_count(len(changes.samples), "sample")
        lines += ["", f"<details><summary>{what} whose verdicts changed, the largest moves first</summary>", ""]
        for sample_id, (question, flips) in changes.samples.items():
            lines.append(f"- {_quote(sample_id)}: {_quote(question)}")
            lines += [f"  - {_write_flip(flip)}" for flip in flips[:_MAX_FLIPS]]
            if len(flips) > _MAX_FLIPS:
                lines.append(f"  - and {len(flips) - _MAX_FLIPS} more")
        lines += ["", "</details>"]
    return "\n".join(lines) + "\n"


def _write_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a table; `#` before a column sets its numbers to the right."""
    lines = [f"| {' | '.join(column.removeprefix('#') for column in columns)} |"]
    lines.append(f"|{'|'.join('--:' if column.startswith('#') else '---' for column in columns)}|")
    for row in rows:
        cells = [cell.replace("|", r"\|") for cell in row]  # a bar ends a cell even in a code span
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _write_flip(flip: Flip) -> str:
    """Return one changed item: `FP, new`, or its verdict before and now, and its text."""
    sides = [
        "–"
        if item is None
        else ", ".join(_name_verdict(name, value) for name in _SEEN if (value := item.get(name)) is not None)
        for item in (flip.base, flip.candidate)
    ]
    item: Mapping[str, Any] = flip.candidate or flip.base or {}
    text = _quote(str(item.get("text") or ""))
    return f"{flip.kind.replace('_', ' ')}: {sides[0]} → {sides[1]}: {text}"


def _name_verdict(name: str, value: object) -> str:
    if isinstance(value, bool):
        return name if value else f"not {name}"
    return str(value)


def _escape(sentence: str) -> str:
    """Return a sentence, which may name runs and suites, with a backslash before each sign of Markdown."""
    return _LINKED.sub(_WORD_JOINER, escape_markdown(sentence))


def _quote(text: str | None, max_length: int = _MAX_TEXT) -> str:
    """Return a code span on one line, with a fence that is longer than any within."""
    flat = shorten(clean_text(text or ""), max_length)
    if not flat:
        return "–"
    fence = "`" * (max((len(run) for run in _TICKS.findall(flat)), default=0) + 1)
    padding = " " if "`" in (flat[0], flat[-1]) else ""
    return f"{fence}{padding}{flat}{padding}{fence}"
