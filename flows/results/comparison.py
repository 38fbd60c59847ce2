"""Comparisons in words and tables: of two runs, of answers that a judge preferred, and of a gate's checks.

Here are also components of variance and corrected means, which several commands show. Nothing here makes `show` slow to
start.
"""

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import zip_longest
from typing import Any, Final

from evalhouse.flows.errors import SettingsError
from evalhouse.flows.results.output import (
    Table,
    explain_support,
    make_table,
    name_support,
    print_fitting,
    print_line,
    print_section,
    print_table,
    write_count,
    write_dollars,
    write_interval,
    write_number,
    write_value,
)
from evalhouse.flows.results.run_facts import FIRST
from evalhouse.tasks.comparing import POWER
from evalhouse.tasks.judge.protocol import LEXICAL
from evalhouse.tasks.reviews.export import CorrectedMean, CorrectedPair
from evalhouse.warehouse.messages import clean_text, shorten, suggest
from evalhouse.warehouse.rows.runs import RunRow, fetch_components, list_repeats
from evalhouse.warehouse.store import Warehouse

Row = Mapping[str, Any]
_CHANGED = {
    "question": "question",
    "answer": "answer",
    "earlier_answers": "earlier answers",
    "contexts": "contexts",
    "ground_truth": "ground truth",
    "reference_ids": "reference ids",
    "judge": "judge or prompt",
    "formula": "formula",
}
_ALSO = {
    "question": "another question",
    "answer": "another answer",
    "earlier_answers": "other earlier answers",
    "contexts": "other contexts",
    "ground_truth": "another ground truth",
}
_PARTS = {
    "noise": "judge's own noise",
    "added": "samples added",
    "removed": "samples removed",
    "newly_scored": "scored only in candidate",
    "no_longer_scored": "scored only in base",
}
_KINDS = {"answer": "answer says", "ground_truth": "truth says", "context": "context", "rating": "rating"}
_MAX_SCORES = 6
# What a narrow terminal does without, in this order; a line below the table names it.
_DROPPED = (("#scored in base", "#in candidate"), ("#common",), ("#noise floor",), ("#p",), ("95 % interval",))
_MAX_CAUSES = 6
_MAX_METRICS = 8
_MAX_SLICES = 12
_MAX_WARNINGS = 3
_MAX_WARNING = 240
# Letters of a text among several samples; a sample shown by itself has its texts whole.
_SHORT = 160
_SHORT_CONTEXT = 60
_WHOLE = 100_000
_SMALLEST_P = 0.001


def read_noise_components(
    warehouse: Warehouse, run: RunRow, *, drops: Sequence[str] = (), power: float = POWER
) -> list[dict[str, Any]]:
    """Read for each metric of a run that repeated questions its components, the smallest visible drop, and plans.

    `drops` are METRIC=NUMBER texts; without any the drops of the run's own gate are planned for. Raises SettingsError
    for other texts, for a metric without components, and for a run that repeated no question.
    """
    rows = fetch_components(warehouse, run.run_id)
    if not rows and not drops:
        return []
    from evalhouse.tasks.comparing.noise import describe_components  # noqa: PLC0415  # few runs need the statistics

    if not drops:
        gate = run.config.get("gate") or {}
        return describe_components(rows, gate.get("max_drop") or {}, power=power)
    if not rows and list_repeats(warehouse, run.run_id):
        raise SettingsError(f"--drop: no answer of run {run.run_id} to a question asked again has a score")
    if not rows:
        raise SettingsError(
            f"--drop: run {run.run_id} asked no question twice, so the bot's own variation is unknown; set "
            "`repeats` in the [target] of its suite"
        )
    metrics = [row["metric"] for row in rows]
    sizes = {}
    for text in drops:
        metric, separator, number = (part.strip() for part in text.partition("="))
        try:
            size = float(number)
        except ValueError:
            size = math.nan
        if not separator or not size > 0 or math.isinf(size):
            raise SettingsError(f"--drop got {text!r}; write METRIC=NUMBER with a number above 0, like factual_f1=0.02")
        if metric not in metrics:
            raise SettingsError(f"--drop: no answers were scored again by {metric!r}; {suggest(metric, metrics)}")
        sizes[metric] = size
    return describe_components(rows, sizes, power=power)


def print_components(rows: Sequence[Row]) -> None:
    """Print a table of the metrics whose scores varied, and a line for each plan."""
    if not rows:
        return
    is_known = all(row["judge_variance"] is not None for row in rows)
    parts = {"question": "questions", "bot": "bot", "judge": "judge"}
    if not is_known:
        parts = {"question": "questions", "answer": "bot and judge"}
    cells = []
    for row in rows:
        if row["n_otherwise"] or row["n_judged_otherwise"]:
            variances = [
                f"{row[f'{part}_variance']:.3f} ({write_interval(row[f'{part}_low'], row[f'{part}_high'])})"
                for part in parts
            ]
            cells.append([row["metric"], row["n_repeated"], row["n_otherwise"], *variances, row["smallest_drop"]])
    title = f"What the scores vary by: variances, and the drop of a mean that shows with {rows[0]['power']:.0%} power"
    columns = ["metric", "#asked again", "#otherwise", *parts.values(), "#drop"]
    print_section(title, columns, cells)
    if not cells:
        print_line(f"No score came out otherwise when {rows[0]['n_repeated']} questions were asked again.")
    if not is_known:
        print_line(
            "note: the judge's noise was not measured, so bot and judge variation cannot be separated; [noise] share "
            "in the suite, or --noise, measures it"
        )
    for line in list_plans(rows):
        print_line(line)


def list_plans(rows: Sequence[Row]) -> list[str]:
    """Return the plans for seeing the given drops, a sentence each."""
    return [row["plan"]["text"] for row in rows if row["plan"]]


def print_summary(document: Row) -> None:
    """Print what fits a screen: the sentence, the causes and the main metrics that moved, and where the rest is."""
    _print_runs(document, max_warnings=_MAX_WARNINGS)
    moved = [row for row in document["causes"] if row["n_base"] != row["n_candidate"]]
    moved.sort(key=lambda row: -abs(row["n_candidate"] - row["n_base"]))
    print_section(
        "What is wrong with the answers, and moved most",
        ["cause", "#base", "#candidate", "verdict"],
        [[row["name"], row["n_base"], row["n_candidate"], row["verdict"]] for row in moved[:_MAX_CAUSES]],
    )
    metrics = [
        metric
        for metric in document["metrics"]
        if (metric["n_common"] or metric["is_estimate"]) and metric["verdict"] != "same"
    ]
    # The main metrics first, then metrics that are clearly better or worse.
    places = {name: place for place, name in enumerate(FIRST)}
    metrics.sort(
        key=lambda metric: (places.get(metric["metric"], len(FIRST)), metric["verdict"] not in ("worse", "better"))
    )
    shown = [metric for metric in metrics if metric["metric"] in FIRST or metric["is_real"]] or metrics
    rows = [
        [metric["metric"], metric["common_base"], metric["common_candidate"], write_difference(metric["difference"]),
         write_interval(metric["ci_low"], metric["ci_high"]), metric["verdict"]]
        for metric in shown[:_MAX_METRICS]
    ]  # fmt: skip
    print_section("Scores", ["metric", "#base", "#candidate", "#difference", "95 % interval", "verdict"], rows)
    _print_slices([row for row in document["by"] if row["verdict"] != "same"][:_MAX_SLICES])
    runs = f"{document['base']['run_id']} {document['candidate']['run_id']}"
    print_line()
    n_more, n_same = len(metrics) - len(rows), len(document["metrics"]) - len(metrics)
    print_line(f"next: evalhouse compare {runs} --all   ({n_more} more metrics that moved, {n_same} that did not, why)")
    if document["moved"]:
        # To be pasted: an id is the dataset's own, so it is quoted.
        print_line(
            f"next: evalhouse compare {runs} --sample {shlex.quote(clean_text(document['moved'][0]['sample_id']))}"
        )


def _print_slices(rows: Sequence[Row]) -> None:
    """Print the differences of slices, clearly worse ones first; nothing without rows."""
    order = ("worse", "better", "changed", "undecided", "same")
    cells = [
        [row["slice"], row["metric"], row["common_base"], row["common_candidate"], write_difference(row["difference"]),
         write_interval(row["ci_low"], row["ci_high"]), row["n_common"], row["verdict"]]
        for row in sorted(rows, key=lambda row: order.index(row["verdict"]))
        if row["n_common"]
    ]  # fmt: skip
    if cells:
        columns = ["metric", "#base", "#candidate", "#difference", "95 % interval", "#common", "verdict"]
        print_section(f"By {rows[0]['by']}", [rows[0]["by"], *columns], cells)


def _print_runs(document: Row, *, max_warnings: int | None = None) -> None:
    """Print the sentence on top, both runs, and the warnings; of many the first ones, shortened."""
    headline, n = document["headline"], document["n_samples"]
    print_line(f"{headline['sentence']}.", bold=True)
    for sentence in headline["further"]:
        print_line(sentence)
    print_line()
    for name in ("base", "candidate"):
        run = document[name]
        label = f" ({run['label']})" if run["label"] else ""
        print_line(f"{name}: run {run['run_id']}{label}, {write_count(n[name], 'sample')} of {run['dataset']}")
    if document["cluster"] or n["common"] < max(n["base"], n["candidate"]):
        cluster = f"; clustered by {document['cluster']}" if document["cluster"] else ""
        print_line(f"{write_count(n['common'], 'sample')} in both{cluster}")
    for warning in document["warnings"][:max_warnings]:
        print_line(f"warning: {warning if max_warnings is None else shorten(warning, _MAX_WARNING)}")
    if max_warnings is not None and len(document["warnings"]) > max_warnings:
        print_line(f"{len(document['warnings']) - max_warnings} more warnings with --all")


def print_comparison(document: Row) -> None:
    """Print everything: the runs, warnings, differences, why they are there, and the samples that moved most.

    A sample that was named by its id, which is the one with texts, is printed alone.
    """
    _print_runs(document)
    if not document["metrics"]:
        print_line("Neither run has scores yet.")
        return
    if not any("texts" in sample for sample in document["moved"]):
        scored = [metric for metric in document["metrics"] if metric["n_base"] or metric["n_candidate"]]
        differences: list[dict[str, object]] = [
            {
                "metric": metric["metric"],
                "#base": metric["common_base"],
                "#candidate": metric["common_candidate"],
                "#difference": write_difference(metric["difference"]),
                "95 % interval": write_interval(metric["ci_low"], metric["ci_high"]),
                "#noise floor": metric["noise_floor"],
                "#p": write_p(metric["p_adjusted"]),
                "#common": metric["n_common"],
                "#scored in base": f"{metric['n_base']} ({metric['coverage_base']:.0%})",
                "#in candidate": f"{metric['n_candidate']} ({metric['coverage_candidate']:.0%})",
                "verdict": metric["verdict"],
            }
            for metric in scored or document["metrics"]
        ]
        n_tests = sum(metric["p"] is not None for metric in document["metrics"])
        title = f"Samples that both runs scored (p adjusted for {n_tests} metrics)"
        print_line()
        # Without samples judged again or measured noise a column of zeros or dashes is left out.
        if not any(row["#noise floor"] for row in differences):
            for row in differences:
                del row["#noise floor"]
        print_fitting(differences, _DROPPED, title=title)
        if scored and len(scored) < len(document["metrics"]):
            neither = [metric["metric"] for metric in document["metrics"] if metric not in scored]
            print_line(f"note: scored in neither run: {', '.join(neither)}")
        rows = [
            [metric["metric"], write_difference(metric["change"]), name_part(part["name"]), part["n"], part["n_moved"],
             write_difference(part["value"]), write_also(part["also"])]
            for metric in document["metrics"]
            for part in sorted(metric["parts"], key=lambda part: -abs(part["value"]))
            if part["n_moved"]
        ]  # fmt: skip
        columns = ["metric", "#mean moved by", "because of", "#samples", "#moved", "#adds", "of these samples"]
        if not any(row[-1] for row in rows):
            columns, rows = columns[:-1], [row[:-1] for row in rows]
        print_section("Why the means over all scored samples moved", columns, rows)
        # How often judge and bot contradict themselves: the noise floors and the components come from it.
        noise = document["noise"]
        # `--json` also has the metrics in which it never contradicted itself.
        metrics = [(metric["metric"], metric["noise"]) for metric in document["metrics"] if metric["noise"]]
        rows = [[step["step"], step["n_items"], step["n_flipped"], step["flip_rate"], None] for step in noise["steps"]]
        rows += [
            [metric, row["n_pairs"], row["n_changed"], row["n_changed"] / row["n_pairs"], row["deviation"]]
            for metric, row in metrics
            if row["n_changed"]
        ]
        n_runs = len(noise["run_ids"])
        title = f"The judge against itself: what was judged twice, in {n_runs} noise run{'' if n_runs == 1 else 's'}"
        if noise["steps"]:
            print_section(title, ["step or metric", "#judged twice", "#otherwise", "#share", "#deviation"], rows)
        print_components(document["components"])
        # The difference over all answers, of the metrics whose scores wavered.
        wavering = {row["metric"] for row in document["components"] if row["n_otherwise"]}
        rows = [
            [row["metric"], row["base"], row["candidate"], write_difference(row["difference"]),
             write_interval(row["ci_low"], row["ci_high"]), row["n"], row["n_repeated"]]
            for row in document["all_answers"]
            if row["metric"] in wavering
        ]  # fmt: skip
        columns = ["metric", "#base", "#candidate", "#difference", "95 % interval", "#questions", "#asked again"]
        print_section(
            "Over all answers, the repeated ones too, where the table above has the first ones", columns, rows
        )
    for sample in document["moved"]:
        print_line()
        print_line(f"sample {sample['sample_id']}", bold=True)
        for metric, score in list(sample["scores"].items())[: None if "texts" in sample else _MAX_SCORES]:
            values = f"{write_value(score['base'])} → {write_value(score['candidate'])}"
            print_line(f"{metric} {values}: {name_part(score['changed'])}")
        if "texts" in sample:
            # The texts of both runs; one that is the same in both is shown once.
            texts = sample["texts"]
            names = ("question", "answer", "ground_truth")
            pairs = [(name, texts["base"][name], texts["candidate"][name]) for name in names]
            contexts = zip_longest(*(texts[side]["contexts"] or [] for side in ("base", "candidate")))
            pairs += [(f"C{rank}", before, after) for rank, (before, after) in enumerate(contexts, start=1)]
            for name, before, after in pairs:
                if before == after:
                    print_line(f"{name}: {write_value(before)}")
                else:
                    print_line(f"{name}, base: {write_value(before)}")
                    print_line(f"{name}, candidate: {write_value(after)}")
        elif len(sample["scores"]) > _MAX_SCORES:
            print_line(f"… and {len(sample['scores']) - _MAX_SCORES} more scores")
        most = _WHOLE if "texts" in sample else _SHORT
        rows = [
            [
                _KINDS[flip["kind"]],
                flip["change"],
                *(
                    shorten(text, most)
                    for side in ("base", "candidate")
                    for text in _write_item(flip["kind"], flip[side])
                ),
            ]
            for flip in sample["flips"]
            # A context at another rank is not another verdict, but may explain a metric of ranks.
            if flip["change"] != "moved" or "texts" in sample
        ]
        if rows:
            print_table(make_table(["what", "change", "base", "reason", "candidate", "reason"], rows))
        else:
            print_line("No verdict changed.")
    # The command that shows one sample whole, to be pasted: an id is the dataset's own, so it is quoted.
    if document["moved"] and "texts" not in document["moved"][0]:
        runs = f"{document['base']['run_id']} {document['candidate']['run_id']}"
        sample = shlex.quote(clean_text(document["moved"][0]["sample_id"]))
        print_line()
        print_line(f"next: evalhouse compare {runs} --sample {sample}")


def name_part(name: str) -> str:
    """Name a part of a difference in words."""
    if name in _PARTS:
        return _PARTS[name]
    *others, last = [_CHANGED[cause] for cause in name.split("+")]
    return f"{', '.join(others)} and {last} changed" if others else f"{last} changed"


def write_also(also: Mapping[Any, int]) -> str:
    """Describe other changes in a part's samples, which its metric does not use: `28 also had other contexts`."""
    return "; ".join(f"{n} also had {_ALSO[cause]}" for cause, n in also.items())


def _write_item(kind: str, item: Row | None) -> tuple[str, str]:
    """Write the text of an item with its verdict, and the reasons for it."""
    if item is None:
        return "–", "–"
    if kind == "rating":
        verdict = f"{item['text']} {item['rating']:g} of {item['scale_max']:g}"
    elif kind == "context":
        usefulness = "useful" if item["useful"] else "not useful"
        verdict = f"C{item['context_rank']} {usefulness}: {shorten(item['text'], _SHORT_CONTEXT)}"
    else:
        verdicts = [item["label"]] if item["label"] else []
        if item["supported"] is not None:
            verdicts.append(f"in {name_support(item)}" if item["supported"] else "unsupported")
        verdict = f"{', '.join(verdicts)}: {item['text']}" if verdicts else str(item["text"])
    reasons = (item.get("reason"), item.get("label_reason"), explain_support(item, item.get("support_reason")))
    return verdict, " / ".join(filter(None, reasons)) or "–"


def write_difference(value: float | None) -> str:
    """Write a difference with its sign, and 0.000 without one."""
    if value is None:
        return "–"
    return "0.000" if abs(value) < 0.0005 else f"{value:+.3f}"


def write_p(value: float | None) -> str:
    """Write a p value; a small one as below a limit."""
    if value is None:
        return "–"
    return f"<{_SMALLEST_P}" if value < _SMALLEST_P else f"{value:.3f}"


def corrected_table(rows: Sequence[CorrectedMean], *, title: str = "Means corrected by people's labels") -> Table:
    """Lay out the corrected means of one run, a row for each metric."""
    columns = ["metric", "#judge's mean", "#corrected", "95 % interval", "#judge off by", "#reviewed", "mind"]
    cells = [
        [
            row.metric, row.mean, row.corrected_mean, write_interval(row.ci_low, row.ci_high), f"{row.judge_bias:+.3f}",
            row.n_reviewed, row.note,
        ]
        for row in rows
    ]  # fmt: skip
    return make_table(columns, cells, title=title)


def corrected_pair_table(pairs: Sequence[CorrectedPair]) -> Table:
    """Lay out the corrected means of two runs, a row for each metric.

    The difference has no interval, since both means use the same labels.
    """
    columns = ["metric", "#base", "95 % interval", "#candidate", "95 % interval", "#reviewed", "mind"]
    cells = [
        [
            pair.metric, pair.base.corrected_mean, write_interval(pair.base.ci_low, pair.base.ci_high),
            pair.candidate.corrected_mean, write_interval(pair.candidate.ci_low, pair.candidate.ci_high),
            f"{pair.base.n_reviewed} and {pair.candidate.n_reviewed}",
            "; ".join(dict.fromkeys(note for note in (pair.base.note, pair.candidate.note) if note)) or None,
        ]
        for pair in pairs
    ]  # fmt: skip
    return make_table(columns, cells, title="Means corrected by people's labels")


def lay_out_jury(steps: Sequence[Row]) -> dict[str, tuple[list[str], list[list[object]]]]:
    """Return by title the columns and rows of two tables: how far a jury's judges agree, and who is alone."""
    agreement: list[list[object]] = []
    alone: list[list[object]] = []
    for step in steps:
        alpha = step["alpha"]
        interval = write_interval(alpha["ci_low"], alpha["ci_high"])
        counts = [step["n_items"], step["n_split"], step["n_ties"]]
        agreement.append([step["step"], *counts, step["agreeing"]["value"], alpha["value"], interval])
        for juror in step["jurors"]:
            share = juror["share_alone"]
            interval = write_interval(share["ci_low"], share["ci_high"])
            what = "is alone too often" if juror["is_outlier"] else ""
            alone.append([step["step"], juror["judge"], juror["n"], juror["n_alone"], share["value"], interval, what])
    columns = ["step", "#judged", "#not unanimous", "#ties", "#two agree", "#α", "95 % interval"]
    of_judges = ["step", "judge", "#verdicts", "#against all others", "#share of those", "95 % interval", "verdict"]
    return {"The jury": (columns, agreement), "Its judges": (of_judges, alone)}


_REASONS: Final = {
    "no_base_answer": "the base has no answer",
    "no_candidate_answer": "the candidate has no answer",
    "no_answer": "neither side has an answer",
    "other_question": "the runs ask another question under this id",
    "no_ground_truth": "no ground truth, which the rubric needs",
    "no_contexts": "no contexts, which the rubric needs",
    "judge_failed": "the judge gave no usable reply",
    "budget_exhausted": "the budget was spent",
}
_VERDICTS: Final = {
    "candidate": "the candidate's are preferred",
    "base": "the base's are preferred",
    "undecided": "undecided",
}
_STAND_IN: Final = (
    "The lexical judge only compares words, with the ground truth or else the contexts: it cannot judge use or style, "
    "and ignores the order."
)
_ORDERS: Final = {"contradict": "the order decided", "half": "one order says tie", "agree": "both orders"}


def describe_preferences(warehouse: Warehouse, run: RunRow, *, with_samples: bool = True) -> dict[str, Any] | None:
    """Describe the result of a run of kind prefer, as in JSON; None for a run of another kind."""
    if run.kind != "prefer":
        return None
    from evalhouse.tasks.comparing.paired import summarise_preferences  # noqa: PLC0415  # imports the statistics

    rows = warehouse.fetch_rows("preferences/samples", run_id=run.run_id)
    summary = summarise_preferences(rows)
    asked = {name: run.config["prefer"][name] for name in ("base", "candidate", "rubric", "without", "cluster")}
    position = asdict(summary.position) | {"leans_to": summary.position.leans_to}
    # The decision on the win rate, as a gate has it; None without a limit.
    checks = warehouse.fetch_rows("gate/newest", run_id=run.run_id)
    if not checks:
        gate_lines = None
    else:
        of_all = ("gate", "on_undecided")  # each check has what was decided on all of them
        own = [{name: value for name, value in check.items() if name not in of_all} for check in checks]
        gate_lines = {"outcome": checks[0]["gate"], "undecided": checks[0]["on_undecided"], "checks": own}
    return {
        **asked,
        "judge": run.judge,
        "language": run.language,
        "verdict": summary.verdict,
        **asdict(summary),
        "position": position,
        "left_out": dict(
            warehouse.fetch("preferences/left_out", run_id=run.run_id).select("reason", "n_samples").iter_rows()
        ),
        "gate": gate_lines,
        "samples": [
            {
                **{name: row[name] for name in ("sample_id", "cluster", "winner", "points", "orders", "is_identical")},
                **{
                    side: {"verdict": row[side], "reason": row[f"{side}_reason"], "call_id": row[f"{side}_call_id"]}
                    for side in ("base_first", "candidate_first")
                },
            }
            for row in (rows if with_samples else ())
        ],
    }


def print_preferences(document: Mapping[str, Any], *, top: int) -> None:
    """Print the result, with `top` samples that the candidate lost or that the order decided."""
    print_table(make_table(*lay_out_result(document)))
    for line in list_remarks(document):
        print_line(line)
    print_section("What the places did", *lay_out_position(document))
    print_section("Left out", *lay_out_left_out(document))
    columns = ["sample", "preferred", "by", "why, the base's answer in front", "why, the candidate's in front"]
    order = {"base": 0, "tie": 1}
    lost = [sample for sample in document["samples"] if sample["winner"] == "base" or sample["orders"] == "contradict"]
    print_section(
        "Samples that the candidate lost or that the order decided",
        columns,
        [
            [
                shorten(sample["sample_id"], 40),
                sample["winner"],
                _ORDERS[sample["orders"]],
                *(
                    f"{write_value(sample[side]['verdict'])}: {shorten(sample[side]['reason'], 120)}"
                    for side in ("base_first", "candidate_first")
                ),
            ]
            for sample in sorted(lost, key=lambda sample: (order[sample["winner"]], sample["points"]))[:top]
        ],
    )


def lay_out_result(document: Mapping[str, Any]) -> tuple[list[str], list[list[object]]]:
    """Return the columns and the only row of the table of the result."""
    rate = document["win_rate"]
    columns = [
        "#samples", "#candidate wins", "#ties", "#base wins", "#win rate", "95 % interval", "#p", "whose answers",
    ]  # fmt: skip
    row = [
        document["n"], document["wins"], document["ties"], document["losses"], rate["value"],
        write_interval(rate["ci_low"], rate["ci_high"]), write_p(document["sign_test"]["p"]),
        _VERDICTS[document["verdict"]],
    ]  # fmt: skip
    return columns, [row]


def write_result(document: Mapping[str, Any]) -> str:
    """Return the result as one sentence, without a full stop."""
    if not document["n"]:
        return "The answers cannot be compared: no pair was judged"
    side = document["verdict"]
    preferred = "Neither side's answers are" if side == "undecided" else f"The {side}'s answers are"
    n = write_count(document["n"], "sample")
    return (
        f"{preferred} preferred by more than chance: the candidate's in {document['wins']:,} of {n}, the base's in "
        f"{document['losses']:,}, neither in {document['ties']:,}"
    )


def lay_out_position(document: Mapping[str, Any]) -> tuple[list[str], list[list[object]]]:
    """Return the columns and rows of the table of position effects; no rows if nothing was asked."""
    position = document["position"]
    leans = f"the judge leans to the {position['leans_to']}" if position["leans_to"] else "no leaning is shown"
    meanings = {
        "agreement": f"both orders of {write_count(position['n'], 'sample')} say the same",
        "order_decided": "they contradict each other: a tie",
        "first_place": f"points of the answer in front, 0.5 without a leaning: {leans}",
    }
    rows = [
        [name.replace("_", " "), position[name]["value"],
         write_interval(position[name]["ci_low"], position[name]["ci_high"]), meaning]
        for name, meaning in meanings.items()
    ]  # fmt: skip
    return ["measure", "#share", "95 % interval", "which means"], rows if position["n"] else []


def lay_out_left_out(document: Mapping[str, Any]) -> tuple[list[str], list[list[object]]]:
    """Return the columns and rows of the table of samples without a preference."""
    return ["why", "#samples"], [[_REASONS.get(reason, reason), n] for reason, n in document["left_out"].items()]


def list_remarks(document: Mapping[str, Any]) -> list[str]:
    """Explain the figures in sentences."""
    halves, signs = document["half_wins"] + document["half_losses"], document["sign_test"]
    lines = [
        f"base {document['base']}, candidate {document['candidate']}; judge {document['judge']}, rubric "
        f"{document['rubric']}",
        f"The win rate is the candidate's, a tie counting half. {halves:,} wins count half, because one order says "
        f"tie; of the ties {document['n_contradicted']:,} are contradictions and {document['n_identical']:,} have the "
        "same answer, which was not asked about.",
    ]
    if document["cluster"] is not None:
        lines.append(
            f"Interval and test count {document['n_clusters']:,} groups by {document['cluster']}, of which "
            f"{signs['n_candidate']:,} are for the candidate and {signs['n_base']:,} for the base."
        )
    if document["judge"] == LEXICAL:
        lines.append(_STAND_IN)
    gate = document["gate"]
    checks = gate["checks"] if gate else ()
    return [*lines, *(f"gate {gate['outcome']}: {name_check(check)}; {describe_finding(check)}" for check in checks)]


KINDS = {
    "min": "mean at least",
    "max": "mean at most",
    "max_drop": "drop at most",
    "trend": "fall over nights at most",
    "min_coverage": "coverage at least",
    "max_cost": "cost at most",
    "max_latency_p95_ms": "latency (p95) at most",
}


def write_amount(kind: str, value: float | None) -> str:
    """Write a value in its unit."""
    if value is None:
        return "unknown" if kind == "max_cost" else "–"
    match kind:
        case "max_cost":
            return write_dollars(value)
        case "max_latency_p95_ms":
            return f"{value:,.0f} ms"
        case "min_coverage":
            return f"{value:.2%}"
        case _:
            return write_number(value)


def write_limit(kind: str, value: float) -> str:
    """Write a limit in its unit, with all digits that were given."""
    match kind:
        case "max_cost":
            return f"${value:.2f}" if round(value, 2) == value else f"${value:.12g}"
        case "min_coverage":
            return f"{100 * value:.12g}%"
        case "max_latency_p95_ms":
            return f"{value:,.12g} ms"
        case _:
            return write_number(value) if round(value, 3) == value else f"{value:.12g}"


def write_beyond(check: Row) -> str:
    """Write the distance of a value beyond its limit; a dash within it."""
    beyond = check["beyond"]
    if beyond is None or beyond <= 0:
        return "–"
    return write_amount(check["kind"], beyond)


def name_check(check: Row) -> str:
    """Name a check in a few words, such as `factual_f1: mean at least 0.800`."""
    limit = name_limit(check)
    return f"{name_metric(check)}: {limit}" if check["metric"] else limit


def name_metric(check: Row) -> str:
    """Name the metric of a check, and its slice: `factual_f1 (language zh)`; empty for a cost."""
    name = check["metric"] or ""
    return f"{name} ({check['by_column']} {check['by_value'] or 'missing'})" if check.get("by_column") else name


def name_limit(check: Row) -> str:
    return f"{KINDS[check['kind']]} {write_limit(check['kind'], check['limit'])}"


def describe_finding(check: Row) -> str:
    """Describe the finding of a check in one sentence."""
    prefix = "undecided, " if check["outcome"] == "undecided" else ""
    finding = f"{prefix}found {write_amount(check['kind'], check['value'])}"
    if check["ci_low"] is not None:
        finding += f" ({write_interval(check['ci_low'], check['ci_high'])})"
    if check["noise_floor"]:
        finding += f", noise floor {write_number(check['noise_floor'])}"
    beyond = write_beyond(check)
    return f"{finding}{'' if beyond == '–' else f', beyond the limit by {beyond}'}: {check['detail']}"
