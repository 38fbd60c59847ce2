"""The page of a checked test set: findings by what they are, and what the set covers.

Everything stands in the page as text and needs no script; how a page is made safe stands in `page.py`.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from evalhouse.flows.report.page import render_page
from evalhouse.flows.results.output import write_count

_TONES: Final = {"error": "is-fp", "warning": "is-fn"}


def build_check_page(document: Mapping[str, Any]) -> str:
    """The page as text, from what `testset check --json` prints."""
    coverage = document["coverage"]
    return render_page(
        "testset_check.html",
        styles=("report.css",),
        scripts=(),
        title=f"Check of {document['set']}",
        result=_describe_result(document),
        is_clean=not document["findings"],
        document=document,
        groups=[_describe_group(row, document["findings"]) for row in document["counts"]],
        kinds=_draw_shares(coverage["kinds"]),
        languages=coverage["languages"],
        documents=coverage["documents"],
        bare=coverage["documents_without_a_question"],
    )


def _describe_result(document: Mapping[str, Any]) -> str:
    n, n_with = document["n_questions"], document["n_with_findings"]
    if not n_with:
        return f"Nothing was found of {write_count(n, 'question')}."
    return f"Something was found of {n_with:,} of {write_count(n, 'question')}."


def _describe_group(row: Mapping[str, Any], findings: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        **row,
        "tone": _TONES[row["severity"]],
        "rows": [finding for finding in findings if finding["finding"] == row["finding"]],
    }


def _draw_shares(counts: Mapping[str, int]) -> list[dict[str, Any]]:
    """Counts with their share of the whole."""
    total = sum(counts.values()) or 1
    return [{"name": name, "n": n, "share": f"{n / total:.0%}"} for name, n in counts.items()]
