"""One sample in two runs: texts with what differs marked, and all that was judged with both verdicts."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import Response

from evalhouse.flows.display.output import name_support, write_value
from evalhouse.flows.documents.run_origin import HEADLINE
from evalhouse.flows.report.charts import write_change
from evalhouse.flows.report.head import sort_headline
from evalhouse.flows.ui.pages import link, render
from evalhouse.flows.ui.pair.kept import find_pair
from evalhouse.flows.ui.pair.text_changes import mark_changes
from evalhouse.tasks.comparing.flips import Flip, match_items
from evalhouse.warehouse.rows.run_pairs import RunPair

router = APIRouter()
_SECTIONS: Final = {
    "answer": "Statements of the answer",
    "ground_truth": "Statements of the ground truth",
    "context": "Contexts",
    "rating": "Ratings",
}
_TAGS: Final = {"TP": "is-tp", "FP": "is-fp", "FN": "is-fn"}
_TEXTS: Final = {"question": "Question", "answer": "Answer", "ground_truth": "Ground truth"}


@router.get("/compare/sample")
def show_sample(request: Request, base: str, candidate: str, id: str) -> Response:  # as in the address
    """One sample that both runs have."""
    pair = find_pair(request, base, candidate)
    texts = {row["of_candidate"]: row for row in pair.read_texts([id]).to_dicts()}
    if len(texts) < 2:
        where = ", ".join(
            side.run_id for is_there, side in ((False, pair.base), (True, pair.candidate)) if is_there in texts
        )
        raise HTTPException(404, f"sample {id!r} is {f'only in {where}' if where else 'in neither run'}")
    items = match_items(
        statements=pair.read_statements([id]), contexts=pair.read_all_contexts(id), grades=pair.read_grades([id])
    ).get(id, [])
    return render(
        request,
        "pair_sample.html",
        pair=pair,
        given={"base": base, "candidate": candidate},
        sample_id=id,
        links={run.run_id: link(f"/runs/{run.run_id}/sample", id=id) for run in (pair.base, pair.candidate)},
        texts={title: mark_changes(texts[False][name], texts[True][name]) for name, title in _TEXTS.items()},
        changed=_list_changed(texts, pair.list_changed_judges(id)),
        scores=_describe_scores(pair, id),
        sections=[
            {"title": title, "rows": [_describe_item(item) for item in items if item.kind == kind]}
            for kind, title in _SECTIONS.items()
        ],
    )


def _list_changed(texts: Mapping[bool, Mapping[str, Any]], steps: Sequence[str]) -> list[str]:
    """What is another in the sample, or in how it was judged."""
    names = [name.replace("_", " ") for name in (*_TEXTS, "contexts") if texts[False][name] != texts[True][name]]
    return [*names, *([f"judge, prompt or model ({', '.join(steps)})"] if steps else [])]


def _describe_scores(pair: RunPair, sample_id: str) -> list[dict[str, Any]]:
    rows = {row["metric"]: row for row in pair.read_sample_scores(sample_id)}
    return [
        {
            "metric": name,
            "is_main": name in HEADLINE,
            "base": _write_score(rows[name]["base"], rows[name]["base_reason"]),
            "candidate": _write_score(rows[name]["candidate"], rows[name]["candidate_reason"]),
            **_describe_change(rows[name]),
        }
        for name in sort_headline(list(rows))
    ]


def _write_score(value: float | None, reason: str | None) -> str:
    return reason.replace("_", " ") if value is None and reason else write_value(value)


def _describe_change(row: Mapping[str, Any]) -> dict[str, str]:
    if row["base"] is None or row["candidate"] is None:
        return {"change": "–", "tone": ""}
    change = row["candidate"] - row["base"]
    tone = "" if abs(change) < 0.0005 else "worse" if (change < 0) != (row["better"] == "low") else "better"
    return {"change": write_change(change), "tone": tone}


def _describe_item(item: Flip) -> dict[str, Any]:
    """Both sides of one thing that was judged; texts stand once where they are the same."""
    before, after = item.base, item.candidate
    texts = mark_changes(before["text"] if before else None, after["text"] if after else None)
    return {
        "change": item.change,
        "is_same": item.change in ("same", "moved"),
        "text": None if texts.differ else texts.candidate,
        "sides": [
            {"name": name, "pieces": pieces if texts.differ else None, **_describe_side(item.kind, side)}
            for name, side, pieces in (("base", before, texts.base), ("candidate", after, texts.candidate))
        ],
    }


def _describe_side(kind: str, side: Mapping[str, Any] | None) -> dict[str, Any]:
    """Its tags, each with its colour, and its reasons; `is_there` is False where the run does not have it."""
    if side is None:
        return {"is_there": False, "tags": (), "reasons": ()}
    if kind == "rating":
        return {
            "is_there": True,
            "tags": ((f"{side['rating']:g} of {side['scale_max']:g}", ""),),
            "reasons": (side["reason"],),
        }
    if kind == "context":
        tags = [(f"C{side['context_rank']}", "")]
        if side["useful"] is not None:
            tags.append(("useful", "is-tp") if side["useful"] else ("not useful", "is-fn"))
        return {"is_there": True, "tags": tags, "reasons": (side["reason"],)}
    tags = [(side["statement_id"], "")]
    if side["label"]:
        tags.append((side["label"], _TAGS[side["label"]]))
    if side["supported"] is not None:
        tags.append((f"in {name_support(side)}", "is-tp") if side["supported"] else ("unsupported", "is-fp"))
    return {"is_there": True, "tags": tags, "reasons": (side["label_reason"], side["support_reason"])}
