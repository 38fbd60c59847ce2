"""The printed comparison: words, signs, which rows are there, and what a narrow terminal leaves out."""

from __future__ import annotations

from typing import Any

import pytest

from evalhouse.flows.results import output
from evalhouse.flows.results.comparison import print_comparison
from evalhouse.flows.results.output import make_console


def make_metric(name: str = "factual_f1", **columns: object) -> dict[str, Any]:
    return {
        "metric": name, "n_base": 8, "n_candidate": 9, "coverage_base": 0.8, "coverage_candidate": 0.9,
        "mean_base": 0.5, "mean_candidate": 0.6, "common_base": 0.51, "common_candidate": 0.62, "change": 0.1,
        "n_common": 7, "n_clusters": 7, "n_higher": 2, "n_lower": 0, "difference": 0.11, "ci_low": 0.01,
        "ci_high": 0.21, "p": 0.02, "p_adjusted": 0.04, "is_exact": True, "verdict": "better", "noise_floor": 0.0,
        "noise": None, "is_real": True,
        "parts": [
            {"name": "noise", "n": 5, "n_moved": 0, "value": 0.0, "also": {}},
            {"name": "added", "n": 2, "n_moved": 2, "value": 0.02, "also": {}},
            {"name": "answer", "n": 2, "n_moved": 1, "value": 0.08, "also": {}},
        ],
        **columns,
    }  # fmt: skip


def make_document(*metrics: dict[str, Any], **columns: object) -> dict[str, Any]:
    run = {"label": None, "dataset": "data.jsonl"}
    return {
        "base": {"run_id": "b", **run}, "candidate": {"run_id": "c", **run, "label": "v2"},
        "n_samples": {"base": 10, "candidate": 10, "common": 9}, "cluster": None, "warnings": [],
        "metrics": list(metrics), "noise": {"run_ids": [], "steps": []}, "moved": [],
        "components": [], "all_answers": [], "by": [],
        "headline": {"sentence": "Nothing moved", "further": ["Really."]},
        **columns,
    }  # fmt: skip


def make_statement(text: str, **columns: object) -> dict[str, Any]:
    return {
        "text": text, "label": "TP", "label_reason": "it is there", "supported": True, "context_ranks": [1, 3],
        "joint_ranks": [], "support_reason": "C1 states it", **columns,
    }  # fmt: skip


def make_flip(kind: str, change: str, base: object, candidate: object) -> dict[str, Any]:
    return {"kind": kind, "change": change, "base": base, "candidate": candidate}


def make_sample(*flips: dict[str, Any], **columns: object) -> dict[str, Any]:
    return {"sample_id": "s 1", "scores": {}, "flips": list(flips), **columns}


@pytest.fixture
def show(capsys: pytest.CaptureFixture[str]) -> Any:  # noqa: ANN401  # a function from a document to its lines
    def print_it(document: dict[str, Any]) -> list[str]:
        print_comparison(document)
        return capsys.readouterr().out.splitlines()

    return print_it


def test_differences_have_signs_and_what_is_missing_a_dash(show: Any) -> None:  # noqa: ANN401
    missing = dict.fromkeys(
        ("common_base", "common_candidate", "difference", "ci_low", "ci_high", "p", "p_adjusted", "change")
    )
    lines = show(
        make_document(
            make_metric(p_adjusted=0.0004),
            make_metric(
                "mrr", difference=-0.25, ci_low=None, ci_high=None, p_adjusted=1.0, verdict="undecided", parts=[]
            ),
            make_metric("tiny", difference=-0.0001, verdict="undecided", parts=[]),
            make_metric("absent", **missing, n_common=0, n_base=0, coverage_base=0.0, verdict="undecided", parts=[]),
        )
    )
    cells = {line.split()[0]: line.split()[1:] for line in lines if line}
    assert "Samples that both runs scored (p adjusted for 3 metrics)" in lines
    assert cells["mrr"] == ["0.510", "0.620", "-0.250", "–", "1.000", "7", "8", "(80%)", "9", "(90%)", "undecided"]
    assert cells["tiny"][2] == "0.000"
    assert cells["absent"] == ["–", "–", "–", "–", "–", "0", "0", "(0%)", "9", "(90%)", "undecided"]
    assert any(line.endswith("better") and "+0.110  0.01" in line and " <0.001 " in line for line in lines)


def test_parts_that_moved_nothing_are_left_out_and_the_largest_is_first(show: Any) -> None:  # noqa: ANN401
    lines = show(make_document(make_metric()))
    start = lines.index("Why the means over all scored samples moved")
    rows = [" ".join(line.split()) for line in lines[start + 2 :]]
    assert rows == ["factual_f1 +0.100 answer changed 2 1 +0.080", "factual_f1 +0.100 samples added 2 2 +0.020"]
    assert not any("noise floor" in line or "against itself" in line for line in lines)
    still = [{"name": "noise", "n": 5, "n_moved": 0, "value": 0.0, "also": {}}]
    assert not any(line.startswith("Why") for line in show(make_document(make_metric(parts=still))))


@pytest.mark.parametrize(("width", "missing"), [
    (200, []),
    (95, ["common", "scored in base", "in candidate"]),
    (75, ["95 % interval", "p", "common", "scored in base", "in candidate"]),
])  # fmt: skip
def test_a_narrow_terminal_keeps_both_means_and_names_what_it_leaves_out(
    width: int,
    missing: list[str],
    show: Any,  # noqa: ANN401
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def make() -> Any:  # noqa: ANN401
        console = make_console()
        console.width = width
        return console

    monkeypatch.setattr(output, "make_console", make)
    wide = make_metric("noise_sensitivity_irrelevant", ci_low=-0.2, ci_high=-0.1, verdict="undecided", parts=[])
    lines = show(make_document(wide))
    header = next(line for line in lines if line.startswith("metric"))
    assert "base  candidate  difference" in header
    assert not any(column in header for column in missing)
    notes = [line for line in lines if line.startswith("note: no room for")]
    assert notes == (
        [f"note: no room for {', '.join(missing)}; a wider terminal or --json has them"] if missing else []
    )


def make_noise(**columns: object) -> dict[str, Any]:
    return {"n_anew": 7, "n_runs": 2, "n_pairs": 20, "n_changed": 3, "deviation": 0.1, **columns}


def test_the_noise_floor_is_beside_the_difference_with_its_source(show: Any) -> None:  # noqa: ANN401
    steps = [{"step": "classify", "n_items": 80, "n_flipped": 8, "flip_rate": 0.1}]
    lines = show(
        make_document(
            make_metric(noise_floor=0.15, noise=make_noise()),
            make_metric(
                "mrr", noise_floor=None, noise=make_noise(n_pairs=0, n_changed=0), verdict="undecided", parts=[]
            ),
            noise={"run_ids": ["n1", "n2"], "steps": steps},
        )
    )
    rows = [" ".join(line.split()) for line in lines]
    header = next(row for row in rows if row.startswith("metric base"))
    assert "95 % interval noise floor p" in header
    assert any("0.010 to 0.210 0.150 0.040" in row and row.endswith("better") for row in rows)
    start = rows.index("The judge against itself: what was judged twice, in 2 noise runs")
    assert rows[start + 2 :] == ["classify 80 8 0.100 –", "factual_f1 20 3 0.150 0.100"]


def test_flips_stand_side_by_side_with_their_reasons(show: Any) -> None:  # noqa: ANN401
    before = make_statement("It is red.")
    after = make_statement(
        "It is red.", label="FP", supported=False, context_ranks=[], joint_ranks=[], support_reason=None
    )
    context = {"text": "One.", "context_rank": 2, "useful": False, "reason": "no use"}
    rating = {"text": "accuracy: accuracy", "rating": 7.0, "scale_max": 10.0, "reason": "good"}
    lines = show(
        make_document(
            make_metric(parts=[]),
            moved=[
                make_sample(
                    make_flip("answer", "flipped", before, after),
                    make_flip("context", "flipped", context, {**context, "useful": True}),
                    make_flip("context", "moved", context, {**context, "context_rank": 1}),
                    make_flip("rating", "flipped", rating, {**rating, "rating": 3.0}),
                    make_flip("ground_truth", "vanished", make_statement("Gone.", label=None, supported=None), None),
                )
            ],
        )
    )
    text = "\n".join("  ".join(line.split("  ")) for line in lines)
    squeezed = [" ".join(line.split()) for line in lines]
    row = (
        "answer says flipped TP, in C1, C3: It is red. it is there / "
        "C1 states it FP, unsupported: It is red. it is there"
    )
    assert row in squeezed
    assert "context flipped C2 not useful: One. no use C2 useful: One. no use" in squeezed
    assert "rating flipped accuracy: accuracy 7 of 10 good accuracy: accuracy 3 of 10 good" in squeezed
    assert "truth says vanished Gone. it is there / C1 states it – –" in squeezed
    assert "  moved  " not in text
    assert lines[-1] == "next: evalhouse compare b c --sample 's 1'"
