"""The page on which a person labels verdicts: one HTML file that works offline and keeps what was said in the browser.

The same care as for a report (`page.py`), whose head, looks and policy it shares: texts come packed and become
nodes and texts, never markup, and the page can load and send nothing. What leaves it is the file that a person
downloads. The judge's verdicts are in the page, packed with the rest, and each is shown once the person has decided.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from evalhouse.flows.report.page import pack, render_page
from evalhouse.tasks.reviews.export import Export, Pick
from evalhouse.tasks.reviews.label_files import list_choices

_ITEM: Final = (
    "item_hash", "sample_id", "step", "statement_id", "context_rank", "source", "text", "judge_label", "reason",
)  # fmt: skip


def build_review_page(export: Export, reviewer: str) -> str:
    """The page as text; `reviewer` is the name it begins with, empty for none."""
    return render_page(
        "review.html",
        styles=("report.css", "review.css"),
        scripts=("data.js", "answers.js", "items.js", "review.js"),
        title=f"Review of {export.run.label or export.run.dataset or 'a run'}",
        origin=f"run {export.run.run_id}",
        about="verdicts",
        n=len(export.picks),
        reviewer=reviewer,
        is_sent=False,
        packed=pack(collect_asked(export.export_id, export.run.run_id, export.picks, export.texts)),
    )


def collect_asked(
    export_id: str, run_id: str, picks: Sequence[Pick], of_samples: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """What the script reads: texts once a sample, and the items in the order of asking."""
    sample_ids = list(dict.fromkeys(pick.item.sample_id for pick in picks))
    places = {sample_id: place for place, sample_id in enumerate(sample_ids)}
    names = ("question", "answer", "ground_truth", "contexts")
    return {
        "export_id": export_id,
        "run_id": run_id,
        "samples": [{name: of_samples[sample_id][name] for name in names} for sample_id in sample_ids],
        "items": [_describe(pick, places[pick.item.sample_id]) for pick in picks],
    }


def _describe(pick: Pick, place: int) -> dict[str, Any]:
    item = {name: getattr(pick.item, name) for name in _ITEM}
    return {**item, "sample": place, "choices": list_choices(pick.item.step, pick.item.source)}
