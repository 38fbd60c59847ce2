"""What a run of kind `prefer` comes to, as its command and `show` say it, and the pages."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from evalhouse.flows.results.comparison import write_p
from evalhouse.flows.results.output import (
    make_table,
    print_line,
    print_section,
    print_table,
    write_count,
    write_interval,
    write_value,
)
from evalhouse.tasks.judge.names import LEXICAL
from evalhouse.warehouse.messages import shorten
from evalhouse.warehouse.rows.gates import read_checks
from evalhouse.warehouse.rows.preferences import count_left_out, read_preferences
from evalhouse.warehouse.rows.runs import RunRow
from evalhouse.warehouse.store import Warehouse

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
    "The lexical judge compares words alone, with the ground truth or else the contexts: a stand-in, which knows "
    "nothing of use or style and has no eye for places."
)
_ORDERS: Final = {"contradict": "the order decided", "half": "one order says tie", "agree": "both orders"}


def describe_preferences(warehouse: Warehouse, run: RunRow, *, with_samples: bool = True) -> dict[str, Any] | None:
    """All that a run of kind prefer found, as JSON has it; None for a run of another kind."""
    if run.kind != "prefer":
        return None
    from evalhouse.tasks.comparing.paired import summarise_preferences  # noqa: PLC0415  # imports the statistics

    rows = read_preferences(warehouse, run.run_id)
    summary = summarise_preferences(rows)
    asked = {name: run.config["prefer"][name] for name in ("base", "candidate", "rubric", "without", "cluster")}
    position = asdict(summary.position) | {"leans_to": summary.position.leans_to}
    # What was decided on the win rate, in the words of a gate; None where no limit was given.
    checks = read_checks(warehouse, run.run_id)
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
        "left_out": count_left_out(warehouse, run.run_id),
        "gate": gate_lines,
        "samples": [_describe_sample(row) for row in rows] if with_samples else [],
    }


def _describe_sample(row: Mapping[str, Any]) -> dict[str, Any]:
    names = ("sample_id", "cluster", "winner", "points", "orders", "is_identical")
    shown = {
        side: {"verdict": row[side], "reason": row[f"{side}_reason"], "call_id": row[f"{side}_call_id"]}
        for side in ("base_first", "candidate_first")
    }
    return {name: row[name] for name in names} | shown


def print_preferences(document: Mapping[str, Any], *, top: int) -> None:
    """The same as a person reads it, with `top` samples that the candidate lost or that the order decided."""
    print_table(make_table(*lay_out_result(document)))
    for line in list_remarks(document):
        print_line(line)
    print_section("What the places did", *lay_out_position(document))
    print_section("Left out", *lay_out_left_out(document))
    columns = ["sample", "preferred", "by", "why, the base's answer in front", "why, the candidate's in front"]
    order = {"base": 0, "tie": 1}
    lost = [sample for sample in document["samples"] if sample["winner"] == "base" or sample["orders"] == "contradict"]
    print_section(
        "Samples that the candidate lost, and those that the order decided",
        columns,
        [
            [
                shorten(sample["sample_id"], 40),
                sample["winner"],
                _ORDERS[sample["orders"]],
                *(_write_reason(sample[side]) for side in ("base_first", "candidate_first")),
            ]
            for sample in sorted(lost, key=lambda sample: (order[sample["winner"]], sample["points"]))[:top]
        ],
    )


def lay_out_result(document: Mapping[str, Any]) -> tuple[list[str], list[list[object]]]:
    """Columns and the one row of the table that says whose answers are preferred."""
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
    """The result as one sentence, without a full stop."""
    if not document["n"]:
        return "Nothing can be said of the answers: no pair was judged"
    side = document["verdict"]
    said = "Neither side's answers are" if side == "undecided" else f"The {side}'s answers are"
    n = write_count(document["n"], "sample")
    return (
        f"{said} preferred by more than chance: the candidate's in {document['wins']:,} of {n}, the base's in "
        f"{document['losses']:,}, neither in {document['ties']:,}"
    )


def lay_out_position(document: Mapping[str, Any]) -> tuple[list[str], list[list[object]]]:
    """Columns and rows of the table that says how far places decided; no rows where nothing was asked."""
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
    """Columns and rows of the table that says which samples have no preference."""
    return ["why", "#samples"], [[_REASONS.get(reason, reason), n] for reason, n in document["left_out"].items()]


def list_remarks(document: Mapping[str, Any]) -> list[str]:
    """What stands behind the figures, in sentences."""
    halves, signs = document["half_wins"] + document["half_losses"], document["sign_test"]
    lines = [
        f"base {document['base']}, candidate {document['candidate']}; judge {document['judge']}, rubric "
        f"{document['rubric']}",
        f"The win rate is the candidate's, a tie counting half. {halves:,} wins count half, because one order says "
        f"tie; of the ties {document['n_contradicted']:,} are contradictions and {document['n_identical']:,} have the "
        "same answer, of which nothing was asked.",
    ]
    if document["cluster"] is not None:
        lines.append(
            f"Interval and test count {document['n_clusters']:,} groups by {document['cluster']}, of which "
            f"{signs['n_candidate']:,} are for the candidate and {signs['n_base']:,} for the base."
        )
    if document["judge"] == LEXICAL:
        lines.append(_STAND_IN)
    return [*lines, *_list_findings(document["gate"])]


def _list_findings(gate: Mapping[str, Any] | None) -> list[str]:
    if gate is None:
        return []
    from evalhouse.flows.results.gate import describe_finding, name_check  # noqa: PLC0415  # imports the statistics

    return [f"gate {gate['outcome']}: {name_check(check)}; {describe_finding(check)}" for check in gate["checks"]]


def _write_reason(shown: Mapping[str, Any]) -> str:
    return f"{write_value(shown['verdict'])}: {shorten(shown['reason'], 120)}"
