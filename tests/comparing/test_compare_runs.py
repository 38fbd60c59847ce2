"""Comparison of two runs of literal rows: the rows that are read, the changes that count, and the resulting numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from noise_house import BASE, CANDIDATE, NoiseHouse
from rows import Row

from evalhouse.flows.results.headline import Against, write_headline
from evalhouse.tasks.comparing.changes import INPUTS, METADATA_INPUTS, Part, find_edited
from evalhouse.tasks.comparing.gate_checks import check_drops, check_trends, compare_with_mean, lay_side_by_side
from evalhouse.tasks.comparing.noise import is_judged_alike
from evalhouse.tasks.comparing.runs import (
    Comparison,
    ComparisonError,
    ComparisonSettings,
    MetricComparison,
    compare_runs,
)
from evalhouse.warehouse.metric_files import load_metrics
from evalhouse.warehouse.rows.run_pairs import RunPair
from evalhouse.warehouse.rows.samples import fetch_asked


class Nights(NoiseHouse):
    """Two runs without a sample, to be filled."""

    def pair(self, base: str = BASE, candidate: str = CANDIDATE) -> RunPair:
        return RunPair(self.warehouse, self.runs[base], self.runs[candidate])

    def add_samples(self, run_id: str, samples: Mapping[str, str], **columns: object) -> None:
        """Samples of a run by id, with their hashes."""
        rows = enumerate(samples.items(), start=1)
        self.add(
            "run_samples",
            *(
                {"run_id": run_id, "sample_id": sample_id, "input_hash": input_hash, "ordinal": ordinal, **columns}
                for ordinal, (sample_id, input_hash) in rows
            ),
        )

    def add_scores(
        self,
        run_id: str,
        metric: str,
        values: Mapping[str, float | None],
        version: str = "1",
        *,
        better: str | None = None,
    ) -> None:
        metrics = load_metrics()
        better = better or (metrics[metric].better if metric in metrics else "high")
        self.add(
            "scores",
            *(
                {
                    "run_id": run_id, "sample_id": sample_id, "metric": metric, "value": value,
                    "unscored_reason": "no_answer" if value is None else None, "metric_version": version,
                    "better": better,
                }
                for sample_id, value in values.items()
            ),
        )  # fmt: skip

    def add_calls(self, run_id: str, *calls: Row) -> None:
        rows = [
            {"call_id": f"{run_id}-{n}", "sample_id": "s", "step": "classify", **call} for n, call in enumerate(calls)
        ]
        self.add("llm_calls", *({"run_id": run_id, **row} for row in rows))

    def compare_pair(self, base: str = BASE, candidate: str = CANDIDATE, **settings: Any) -> Comparison:  # noqa: ANN401
        return compare_runs(self.pair(base, candidate), ComparisonSettings(**{"resamples": 1000, **settings}))


Make = Callable[..., Nights]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    return lambda **columns: Nights(tmp_path, **columns)


def name_ids(n: int, start: int = 0) -> list[str]:
    return [f"s{number:04d}" for number in range(start, start + n)]


def get(comparison: Comparison, metric: str) -> MetricComparison:
    (found,) = (one for one in comparison.metrics if one.metric == metric)
    return found


SAMPLE: dict[str, Any] = {
    "sample_id": "s", "question": "Where?", "answer": "Here.", "ground_truth": "There.", "contexts": ["One.", "Two."],
    "context_ids": ["1", "2"], "reference_context_ids": ["1"], "metadata": '{"rows": [1], "latency": 3}',
}  # fmt: skip


CHANGES: tuple[tuple[dict[str, object], list[str]], ...] = (
    ({}, []),
    ({"answer": None}, ["answer"]),
    ({"answer": "Here. "}, ["answer"]),
    ({"question": "When?", "ground_truth": "Never."}, ["question", "ground_truth"]),
    ({"contexts": ["Two.", "One."]}, ["contexts"]),
    ({"contexts": None, "context_ids": None}, ["contexts", "context_ids"]),
    ({"contexts": None, "answer": "No."}, ["answer", "contexts"]),
    ({"reference_context_ids": ["2"]}, ["reference_context_ids"]),
    ({"metadata": '{"rows": [2], "latency": 3}'}, ["rows"]),
    ({"metadata": '{"rows": [1], "latency": 9, "tables": {"a": 1}}'}, ["tables"]),
    ({"metadata": None}, ["rows"]),
    ({"metadata": '{"rows": [1], "contexts": [{}, {"score": 0.5}]}'}, []),
    ({"metadata": '{"rows": [1], "contexts": [{}, {"url": "https://docs.example/2"}]}'}, ["context_sources"]),
    ({"metadata": '{"rows": [1], "contexts": [{"metadata": {"source": "2.md"}}]}'}, ["context_sources"]),
    ({"conversation": '[{"role": "user", "text": "Hello."}]'}, ["conversation"]),
    ({"conversation": '[{"role": "assistant", "text": "Hello."}]'}, ["earlier_answers"]),
)


def test_what_changed_in_a_sample(make: Make) -> None:
    """Metadata of a run's sample replaces the sample's; samples of equal hashes are not read."""
    nights = make()
    for number, (other, _) in enumerate(CHANGES):
        sample = {**SAMPLE, "sample_id": f"s{number}"}
        nights.add("samples", {"input_hash": "1", **sample}, {"input_hash": "2", **sample, **other})
    ids = [f"s{number}" for number in range(len(CHANGES))]
    nights.add("samples", *({"input_hash": "1", **SAMPLE, "sample_id": name} for name in ("of run", "equal")))
    nights.add_samples(BASE, dict.fromkeys([*ids, "of run", "equal"], "1"))
    nights.add_samples(CANDIDATE, {**dict.fromkeys(ids, "2"), "equal": "1"})
    nights.add_samples(CANDIDATE, {"of run": "1"}, metadata='{"rows": [7]}')
    rows = nights.pair().fetch_changed_inputs(METADATA_INPUTS).to_dicts()
    found = {row["sample_id"]: [name for name, is_changed in row.items() if is_changed is True] for row in rows}
    assert found == {"of run": ["rows"], **dict(zip(ids, (changed for _, changed in CHANGES), strict=True))}


def test_other_addresses_beside_the_same_contexts_of_a_bot_are_a_change_of_contexts(make: Make) -> None:
    """After the pages moved, citations that still named the old ones fell by the judge's own noise."""
    nights = make()
    ids = name_ids(40)
    nights.add("samples", *({**SAMPLE, "sample_id": name, "input_hash": "1", "metadata": None} for name in ids))
    for run_id in (BASE, CANDIDATE):
        nights.add_samples(run_id, dict.fromkeys(ids, "1"))
        names = [f'[["https://docs.example/{run_id if place < 30 else ""}"], []]' for place in range(40)]
        rows = [
            {"run_id": run_id, "sample_id": name, "status": "ok", "context_sources": text}
            for name, text in zip(ids, names, strict=True)
        ]
        nights.add("responses", *rows)
        is_kept = [run_id == BASE or place >= 30 for place in range(40)]
        nights.add_scores(run_id, "citation_validity", dict(zip(ids, map(float, is_kept), strict=True)))
        nights.add_scores(run_id, "faithfulness", dict(zip(ids, map(float, is_kept), strict=True)))
    comparison = nights.compare_pair()
    parts = {name: get(comparison, name).parts for name in ("citation_validity", "faithfulness")}
    assert {name: [(part.name, part.n_moved) for part in of_one if part.n_moved] for name, of_one in parts.items()} == {
        "citation_validity": [("contexts", 30)],
        "faithfulness": [("noise", 30)],
    }
    assert comparison.changed.get("contexts", 0) == 0, "the same texts are the same contexts"
    sentence = write_headline(Against(called="the base", name="base", comparison=comparison)).sentence
    assert "contexts are the same" not in sentence, "the scores moved by them"


@pytest.mark.parametrize(("metrics", "n_other"), [(("factual_f1", "mrr"), 0), (("factual_f1", "sql_equivalence"), 30)])
def test_a_column_of_the_metadata_is_an_input_where_a_metric_reads_it(
    make: Make, metrics: tuple[str, ...], n_other: int
) -> None:
    """A column `setup` with the arm of an experiment made each question another one."""
    nights = make(metrics=metrics)
    ids = name_ids(30)
    nights.add("samples", *({**SAMPLE, "sample_id": name, "input_hash": "1", "metadata": None} for name in ids))
    for run_id, value in ((BASE, 1.0), (CANDIDATE, 0.0)):
        nights.add_samples(run_id, dict.fromkeys(ids, "1"), metadata=f'{{"setup": "{run_id}"}}')
        for metric in metrics:
            nights.add_scores(run_id, metric, dict.fromkeys(ids, value))
    comparison = nights.compare_pair()
    assert comparison.changed.get("question", 0) == n_other
    assert comparison.edited.get("question", 0) == n_other


JUDGES: tuple[tuple[list[Row], list[Row], bool], ...] = (
    ([{"prompt_hash": "p"}], [{"prompt_hash": "p"}], False),
    ([{"prompt_hash": "p"}], [{"prompt_hash": "q"}], True),
    ([{"judge": "openai:a"}], [{"judge": "openai:b"}], True),
    ([{"model": "a-1"}], [{"model": "a-2"}], True),
    # What came from the record names the model that was asked for, and not the one that answered.
    ([{"model": "a-1"}], [{"model": "a", "status": "cached"}], False),
    ([{"model": "a-1"}, {"model": "a-1", "status": "error"}], [{"model": "a-1"}], False),
    ([{"prompt_hash": "p"}], [{"prompt_hash": "p"}, {"prompt_hash": "q", "status": "error"}], False),
    ([{"prompt_hash": "p"}], [{"prompt_hash": "p"}, {"prompt_hash": "p"}], False),
    ([{"step": "rank"}], [{"step": "attribute", "prompt_hash": "q"}], False),
    ([], [{"prompt_hash": "q"}], False),
)


def test_another_judge_is_seen_by_sample_and_step(make: Make) -> None:
    nights = make()
    for run_id, side in ((BASE, 0), (CANDIDATE, 1)):
        calls = ({"sample_id": f"s{number}", **call} for number, case in enumerate(JUDGES) for call in case[side])
        nights.add_calls(run_id, *calls)
    expected = [(f"s{number}", "classify") for number, case in enumerate(JUDGES) if case[2]]
    assert sorted(nights.pair().fetch("changed_judges").rows()) == expected


@pytest.mark.parametrize(
    ("served", "is_changed"),
    [
        (({"endpoint": "http://a/v1"}, {"endpoint": "http://b/v1"}), True),
        (({"endpoint": "http://a/v1", "identity": "ours"}, {"endpoint": "http://b/v1"}), True),
        (({"endpoint": "http://a/v1", "identity": "ours"}, {"endpoint": "http://b/v1", "identity": "ours"}), False),
        (({"endpoint": "http://a/v1", "identity": "ours"}, {"endpoint": "http://a/v1", "identity": "other"}), True),
        (({"endpoint": "http://a/v1"}, {"endpoint": "http://a/v1"}), False),
        (({"endpoint": "http://a/v1"}, {"endpoint": "http://a/v1 http://b/v1"}), True),  # resumed elsewhere
        (({"endpoint": "http://b/v1"}, {"endpoint": "http://a/v1 http://b/v1"}), True),
        (({}, {"endpoint": "http://b/v1"}), False),
    ],
)
def test_a_judge_at_another_address_is_another_one(
    make: Make, served: tuple[dict[str, str], dict[str, str]], is_changed: bool
) -> None:
    """Behind the same name in CI and on a laptop may be different models."""
    nights = make()
    for run_id, model in zip((BASE, CANDIDATE), served, strict=True):
        nights.add_calls(run_id, {"judge": "openai:m", "status": "ok", "model": "m", "prompt_hash": "p"})
        for endpoint in model.get("endpoint", "").split():
            of_run = {"run_id": run_id, "judge": "openai:m", "model": "m", "noted_at": datetime(2025, 1, 1), **model}
            nights.add("served_models", {**of_run, "endpoint": endpoint})
    assert nights.pair().fetch("changed_judges").rows() == ([("s", "classify")] if is_changed else [])


def test_the_numbers_are_those_of_polars(make: Make) -> None:
    """Means, differences and coverage once more, from the frames that went in."""
    generator = np.random.default_rng(3)
    nights = make()
    before, after = name_ids(200), name_ids(200, start=40)
    nights.add_samples(BASE, dict.fromkeys(before, "1"))
    nights.add_samples(CANDIDATE, dict.fromkeys(after, "1"))

    def draw(ids: Sequence[str], lift: float) -> dict[str, float | None]:
        values = np.clip(generator.choice([0.0, 0.25, 0.5, 1.0], size=len(ids)) + lift, 0, 1)
        return {name: None if generator.random() < 0.1 else float(v) for name, v in zip(ids, values, strict=True)}

    given = {metric: (draw(before, 0.0), draw(after, lift)) for metric, lift in (("up", 0.3), ("flat", 0.0))}
    for metric, (base, candidate) in given.items():
        nights.add_scores(BASE, metric, base)
        nights.add_scores(CANDIDATE, metric, candidate)
    comparison = nights.compare_pair()
    assert (comparison.n_base, comparison.n_candidate, comparison.n_common) == (200, 200, 160)
    for metric, sides in given.items():
        frames = [pl.DataFrame({"id": list(side), "value": list(side.values())}).drop_nulls() for side in sides]
        both = frames[0].join(frames[1], on="id")
        found = get(comparison, metric)
        assert (found.n_base, found.n_candidate, found.paired.n) == (*map(len, frames), len(both))
        assert found.coverage_base == pytest.approx(len(frames[0]) / 200)
        assert found.mean_base == pytest.approx(frames[0]["value"].mean())
        assert found.mean_candidate == pytest.approx(frames[1]["value"].mean())
        assert found.common_base == pytest.approx(both["value"].mean())
        assert found.paired.difference == pytest.approx((both["value_right"] - both["value"]).mean())
        assert found.change is not None
        assert sum(part.value for part in found.parts) == pytest.approx(found.change, abs=1e-12)
        assert {part.name for part in found.parts} == {
            "noise", "added", "removed", "newly_scored", "no_longer_scored",
        }  # fmt: skip
    assert get(comparison, "up").paired.verdict == "better"
    assert get(comparison, "flat").paired.verdict == "undecided"


def test_runs_without_a_score_or_a_sample(make: Make) -> None:
    nights = make()
    assert nights.compare_pair().metrics == ()
    nights.add_samples(BASE, {"s": "1"})
    nights.add_scores(BASE, "m", {"s": None})
    found = get(nights.compare_pair(), "m")
    assert (found.n_base, found.mean_base, found.change, found.parts) == (0, None, None, ())
    assert found.coverage_base == found.coverage_candidate == 0.0


SETTINGS: list[tuple[dict[str, object], str, str]] = [
    ({}, "factual_f1", "noise"),
    ({"config": {"temperature": 0.7, "votes": 1}}, "factual_f1", "judge"),
    ({"config": {"temperature": 0.0, "votes": 3}}, "factual_f1", "judge"),
    # Votes are not taken on ratings, and an older run does not say.
    ({"config": {"temperature": 0.0, "votes": 3}}, "accuracy", "noise"),
    ({"config": {"temperature": 0.0, "votes": 1, "logprobs": True}}, "accuracy", "noise"),
    ({"embeddings": "other"}, "semantic_similarity", "judge"),
    ({"embeddings": "other"}, "answer_relevancy", "judge"),
    ({"embeddings": "other"}, "factual_f1", "noise"),
    ({"judge": "other"}, "semantic_similarity", "noise"),
    ({"judge": "other"}, "bleu", "noise"),
    ({"language": "zh"}, "accuracy", "judge"),
]


def test_settings_of_the_run_move_the_metrics_they_reach(make: Make) -> None:
    nights = make()
    nights.add_samples(BASE, {"s": "1"})
    for metric in {metric for _, metric, _ in SETTINGS}:
        nights.add_scores(BASE, metric, {"s": 0.0})
    for number, (columns, metric, _) in enumerate(SETTINGS):
        nights.add_run(f"c{number}", minute=60, **columns)
        nights.add_samples(f"c{number}", {"s": "1"})
        nights.add_scores(f"c{number}", metric, {"s": 1.0})
    for number, (columns, metric, part) in enumerate(SETTINGS):
        (found,) = get(nights.compare_pair(candidate=f"c{number}"), metric).parts
        assert (found.name, found.value) == (part, 1.0), (columns, metric)


def make_talks(make: Make) -> Nights:
    """Twelve samples of three talks, all of a talk alike, and one that is in no talk."""
    nights = make()
    ids = name_ids(13)
    metadata = [f'{{"talk": "talk {place % 3}", "n": {place}}}' for place in range(12)] + ["{}"]
    rows = [{"sample_id": name, "metadata": text} for name, text in zip(ids, metadata, strict=True)]
    nights.add("samples", *({**SAMPLE, "input_hash": "1", **one} for one in rows))
    for run_id, values in ((BASE, [0.0] * 13), (CANDIDATE, [[0.5, 0.25, 1.0][place % 3] for place in range(13)])):
        nights.add_samples(run_id, dict.fromkeys(ids, "1"))
        nights.add_scores(run_id, "m", dict(zip(ids, values, strict=True)))
    return nights


def add_prompt(nights: Nights, prompt_hash: str, name: str, template: str) -> None:
    """A rubric's prompt on record, of one criterion."""
    rubric = "rubric: {needs: [], criteria: {tone: {max: 5}}}"
    written = f"name: {name}\n{template}\n{rubric}"
    nights.add(
        "prompts", {"prompt_hash": prompt_hash, "prompt": name, "version": "1", "language": "en", "template": written}
    )


def test_a_changed_ground_truth_counts_where_the_stored_prompt_took_it(make: Make) -> None:
    nights = make()
    metrics = [name for name in load_metrics() if name.startswith("relevance_")]
    ids = name_ids(8)
    truths = {BASE: ("1", "Here."), CANDIDATE: ("2", "There.")}
    for value, (run_id, (input_hash, truth)) in enumerate(truths.items()):
        nights.add_samples(run_id, dict.fromkeys(ids, input_hash))
        nights.add(
            "samples", *(SAMPLE | {"sample_id": name, "input_hash": input_hash, "ground_truth": truth} for name in ids)
        )
        for metric in metrics:
            nights.add_scores(run_id, metric, dict.fromkeys(ids, float(value)))
        calls = {"step": "grade_relevance", "prompt_hash": "p", "judge": "j", "status": "ok"}
        nights.add_calls(run_id, *({"sample_id": name, **calls} for name in ids))
    template = "variables: {question: text, ground_truth: text, answer: text}"
    add_prompt(nights, "p", "relevance", template)
    comparison = nights.compare_pair()
    found = {metric: [part.name for part in get(comparison, metric).parts] for metric in metrics}
    assert found == {metric: ["ground_truth"] for metric in metrics}


def test_a_users_rubric_is_moved_by_its_judge_and_only_by_inputs_that_it_read(make: Make) -> None:
    nights = make()
    ids = name_ids(8)
    for value, (run_id, prompt_hash) in enumerate({BASE: "p", CANDIDATE: "q"}.items()):
        nights.add_samples(run_id, dict.fromkeys(ids, run_id))
        nights.add(
            "samples", *(SAMPLE | {"sample_id": name, "input_hash": run_id, "contexts": [run_id]} for name in ids)
        )
        nights.add_scores(run_id, "manners", dict.fromkeys(ids, float(value)))
        add_prompt(nights, prompt_hash, "manners", "variables: {question: text, answer: text}")
        asked = {"step": "grade_manners", "judge": "j", "status": "ok"}
        # The last four samples were asked about with another prompt.
        prompts = ["p"] * 4 + [prompt_hash] * 4
        nights.add_calls(
            run_id,
            *({"sample_id": name, "prompt_hash": prompt, **asked} for name, prompt in zip(ids, prompts, strict=True)),
        )
    assert [(part.name, part.n) for part in get(nights.compare_pair(), "manners").parts] == [("judge", 4), ("noise", 4)]


def test_clusters_by_a_named_column_leave_few_observations(make: Make) -> None:
    nights = make_talks(make)
    alone, clustered = get(nights.compare_pair(), "m").paired, get(nights.compare_pair(cluster="talk"), "m").paired
    assert (alone.n_clusters, clustered.n_clusters) == (13, 4)
    assert alone.verdict == "better"
    assert clustered.verdict == "undecided"
    assert clustered.p == pytest.approx(2 / 16)
    assert alone.difference == clustered.difference


@pytest.mark.parametrize(
    ("of_suite", "asked", "n_clusters"),
    [("talk", None, 4), ("none", None, 13), ("talk", "none", 13), ("n", "talk", 4), ("not_in_this_one", None, 13)],
)
def test_clusters_are_those_of_the_suite_unless_asked_otherwise(
    make: Make, of_suite: str, asked: str | None, n_clusters: int
) -> None:
    """The gate of a night left undecided what its headline and its page called better."""
    nights = make_talks(make)
    nights.add_run("night", minute=60, config={"gate": {"cluster": of_suite}})
    nights.add_samples("night", dict.fromkeys(name_ids(13), "1"))
    nights.add_scores("night", "m", {name: [0.5, 0.25, 1.0][place % 3] for place, name in enumerate(name_ids(13))})
    comparison = nights.compare_pair(candidate="night", cluster=asked)
    assert get(comparison, "m").paired.n_clusters == n_clusters


@pytest.mark.parametrize(
    ("n_groups", "asked", "cluster", "trend"),
    [
        (5, None, None, "failed"),
        (5, "document_id", "document_id", "undecided"),
        (6, None, "document_id", "undecided"),
        (10, None, "document_id", "failed"),
    ],
)
def test_a_column_that_is_not_named_groups_samples_from_six_groups_on(
    make: Make, n_groups: int, asked: str | None, cluster: str | None, trend: str
) -> None:
    """No gate could fail and nothing was worse of 120 questions that were about four manuals."""
    nights = make()
    ids = name_ids(30)
    metadata = [f'{{"document_id": {place % n_groups}}}' for place in range(30)]
    rows = [{"sample_id": name, "metadata": text} for name, text in zip(ids, metadata, strict=True)]
    nights.add("samples", *({**SAMPLE, "input_hash": "1", **one} for one in rows))
    for run_id, value in ((BASE, 1.0), (CANDIDATE, 0.0)):
        nights.add_samples(run_id, dict.fromkeys(ids, "1"))
        nights.add_scores(run_id, "m", dict.fromkeys(ids, value))
    comparison = nights.compare_pair(cluster=asked)
    found = get(comparison, "m")
    assert (comparison.cluster, found.cluster, found.paired.n_clusters) == (
        cluster,
        cluster,
        n_groups if cluster else 30,
    )
    few = (
        "samples share document_id, in 5 groups, too few to compare by: each sample counts for itself; "
        "--cluster document_id, or `cluster` in [gate], counts the groups"
    )
    assert [warning for warning in comparison.warnings if "document_id" in warning] == ([] if cluster else [few])
    runs = nights.runs[CANDIDATE], [nights.runs[BASE]]
    laid = lay_side_by_side(nights.warehouse, *runs, metrics=["m"], cluster=asked)
    mean = compare_with_mean(laid, ComparisonSettings())
    assert [warning for warning in mean.warnings if "document_id" in warning] == ([] if cluster else [few])
    assert mean.metrics[0].cluster == cluster
    (check,) = check_trends({"m": 0.1}, laid.nights, cluster=laid.cluster)
    assert check.outcome == trend


@pytest.mark.parametrize(("n_groups", "asked", "alone"), [
    (6, None, ", each sample for itself would have failed"), (6, "document_id", ""), (12, None, ""),
])  # fmt: skip
def test_an_undecided_drop_names_its_groups_and_what_each_sample_would_say(
    make: Make, n_groups: int, asked: str | None, alone: str
) -> None:
    """A fall from 1 to 0.333, in four of six documents, passed the gate without a word about documents."""
    nights = make()
    ids = name_ids(n_groups * 15)
    rows = [{"sample_id": name, "metadata": f'{{"document_id": {place // 15}}}'} for place, name in enumerate(ids)]
    for run_id in (BASE, CANDIDATE):
        answers = {"input_hash": run_id, "answer": run_id}
        nights.add("samples", *({**SAMPLE, **answers, **one} for one in rows))
        nights.add_samples(run_id, dict.fromkeys(ids, run_id))
    nights.add_scores(BASE, "m", dict.fromkeys(ids, 1.0))
    nights.add_scores(CANDIDATE, "m", {name: float(place >= 60) for place, name in enumerate(ids)})
    laid = lay_side_by_side(nights.warehouse, nights.runs[CANDIDATE], [nights.runs[BASE]], metrics=["m"], cluster=asked)
    for comparison in (nights.compare_pair(cluster=asked), compare_with_mean(laid, ComparisonSettings())):
        (check,) = check_drops({"m": 0.02}, {"m": get(comparison, "m")})
        assert check.outcome == "undecided"
        groups = f"; {len(ids)} samples in {n_groups} groups by document_id{alone}"
        way = '; `cluster = "none"` in [gate], or `--cluster none`, counts each sample for itself'
        assert check.detail.endswith(f"{groups}{way}")


def test_a_column_that_is_not_there_is_refused(make: Make) -> None:
    with pytest.raises(ComparisonError, match="metadata column 'talks'; did you mean talk"):
        make_talks(make).compare_pair(cluster="talks")


def test_only_what_moved_is_listed(make: Make) -> None:
    nights = make()
    nights.add("samples", *({**SAMPLE, "sample_id": name, "input_hash": "1"} for name in "abcd"))
    nights.add_samples(BASE, dict.fromkeys("abc", "1"))
    nights.add_samples(CANDIDATE, dict.fromkeys("abcd", "1"))
    nights.add_scores(BASE, "m", {"a": 0.5, "b": 0.5, "c": None})
    nights.add_scores(CANDIDATE, "m", {"a": 0.5, "b": 0.75, "c": 1.0, "d": 1.0})
    assert nights.compare_pair().moves.rows() == [("b", "m", 0.5, 0.75, "noise"), ("c", "m", None, 1.0, "noise")]


def test_scores_that_the_candidate_lacks_are_named_with_their_reasons(make: Make) -> None:
    """Losing the bad answers makes the mean of the others higher, and no sample of both got worse."""
    nights = make()
    names = [f"s{number:02}" for number in range(40)]
    nights.add("samples", *({**SAMPLE, "sample_id": name, "input_hash": "1"} for name in names))
    for run_id in (BASE, CANDIDATE):
        nights.add_samples(run_id, dict.fromkeys(names, "1"))
    nights.add_scores(BASE, "m", {name: 0.0 if name < "s20" else 0.5 for name in names})
    nights.add_scores(CANDIDATE, "m", {name: None if name < "s20" else 0.5 for name in names})
    nights.add_scores(BASE, "other", dict.fromkeys(names, 0.5))
    nights.add_scores(CANDIDATE, "other", {name: None if name < "s02" else 0.5 for name in names})
    comparison = nights.compare_pair()
    lost, few = comparison.metrics
    assert (lost.lost, lost.is_partly_lost, few.lost, few.is_partly_lost) == (
        {"no_answer": 20}, True, {"no_answer": 2}, False,
    )  # fmt: skip
    warnings = [text for text in comparison.warnings if "have no score" in text]
    assert warnings == [
        f"20 of 40 samples that {BASE} scored have no score in {CANDIDATE} (no_answer: 20), "
        "so no difference has them: m"
    ]
    headline = write_headline(Against(called="the base", name="the base", comparison=comparison))
    assert headline.sentence.startswith(
        "20 of 40 samples that the base scored have no score now (no answer); no score "
    )
    (check,) = check_drops({"m": 0.5}, {"m": lost})
    assert (check.outcome, check.reason) == ("undecided", "scores_lost")
    assert check.detail == "20 of 40 samples that the baseline scored have no score (no_answer)"
    assert check_drops({"other": 0.5}, {"other": few})[0].outcome == "passed"


def test_samples_that_had_no_score_in_the_base_are_in_the_first_sentence(make: Make) -> None:
    """After a night without contexts what was missing is wrong now, and the sentence was "no score differs" alone."""
    nights = make()
    names = name_ids(40)
    nights.add("samples", *({**SAMPLE, "sample_id": name, "input_hash": "1"} for name in names))
    for run_id in (BASE, CANDIDATE):
        nights.add_samples(run_id, dict.fromkeys(names, "1"))
    nights.add_scores(BASE, "m", {name: None if name < "s0020" else 0.5 for name in names})
    nights.add_scores(CANDIDATE, "m", {name: 0.0 if name < "s0020" else 0.5 for name in names})
    comparison = nights.compare_pair()
    headline = write_headline(Against(called="the base", name="the base", comparison=comparison))
    assert headline.sentence.startswith(
        "20 of 40 samples scored here had no score in the base (m is 0.250 with them, 0.500 without); no score differs"
    )


@pytest.mark.parametrize(("changed", "alike"), [(False, True), (True, False)])
def test_a_question_after_earlier_turns_makes_no_other_judge(make: Make, *, changed: bool, alike: bool) -> None:
    """Picks of a budget without a conversation counted as judged by another prompt, and drops were undecided."""
    nights = make()
    talk = '[{"role": "user", "text": "Hello."}]'
    nights.add("samples", {**SAMPLE, "sample_id": "a", "input_hash": "1"})
    nights.add("samples", {**SAMPLE, "sample_id": "b", "input_hash": "1", "conversation": talk})
    nights.add_samples(BASE, {"a": "1"})
    nights.add_samples(CANDIDATE, {"a": "1", "b": "1"})
    nights.add_calls(BASE, {"sample_id": "a", "prompt_hash": "plain"})
    of_talk = {"sample_id": "b", "prompt_hash": "of talks"}
    nights.add_calls(CANDIDATE, {"sample_id": "a", "prompt_hash": "other" if changed else "plain"}, of_talk)
    asked = fetch_asked(nights.warehouse, [BASE, CANDIDATE])
    assert is_judged_alike(nights.runs[BASE], nights.runs[CANDIDATE], asked, ()) is alike


def test_the_first_sentence_says_what_is_lost_and_how_few_samples_it_rests_on(make: Make) -> None:
    """A retriever that stopped logging, and a dataset that grew, changed no score of the samples of both."""
    nights = make()
    names = name_ids(40)
    nights.add("samples", *({**SAMPLE, "sample_id": name, "input_hash": "1"} for name in names))
    nights.add_samples(BASE, dict.fromkeys(names[:20], "1"))
    nights.add_samples(CANDIDATE, dict.fromkeys(names, "1"))
    nights.add_scores(BASE, "m", dict.fromkeys(names[:20], 0.5))
    nights.add_scores(CANDIDATE, "m", dict.fromkeys(names, 0.5))
    comparison = nights.compare_pair()
    headline = write_headline(Against(called="the base", name="the base", comparison=comparison))
    assert headline.sentence.startswith("Only 20 of 40 samples here can be compared with the base; no score differs")
    for reasons, says in (({"no_contexts": 9}, True), ({"no_statements": 9}, False)):
        n_missing = 9 if says else 0
        lost = replace(comparison.metrics[0], lost=reasons, n_missing=n_missing)
        headline = write_headline(
            Against(called="the base", name="the base", comparison=replace(comparison, metrics=(lost,)))
        )
        assert ("have no score now (no contexts)" in headline.sentence) is says
    # A bot writes other words every night, and the judge changed in the same night.
    for part, says in (("answer", False), ("answer+judge", True), ("contexts+formula", True)):
        moved = replace(comparison.metrics[0], parts=(Part(name=part, n=20, n_moved=20, value=-0.1),))
        headline = write_headline(
            Against(called="the base", name="the base", comparison=replace(comparison, metrics=(moved,)))
        )
        assert ("was judged by another prompt, model or formula" in headline.sentence) is says


STAGES: tuple[tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...], dict[str, str]], ...] = (
    (("answer", "contexts"), ("factual_f1", "context_recall"), ("context_recall", "mrr"), {"retrieval": "worse"}),
    (("contexts",), ("context_recall",), ("context_recall",), {"retrieval": "worse"}),
    (("answer", "contexts"), ("factual_f1",), ("context_recall",), {"generation": "worse"}),
    (("answer",), ("factual_f1",), ("context_recall",), {"generation": "worse"}),
    (("answer",), ("factual_f1",), (), {"generation": "worse"}),
    (("answer", "contexts"), ("factual_f1",), (), {"answer": "worse"}),  # nothing measures the contexts
    (("ground_truth",), ("factual_f1", "context_recall"), ("context_recall",), {}),
    (("answer", "contexts"), (), ("context_recall",), {}),
    (("answer", "ground_truth"), ("factual_f1",), ("context_recall",), {}),
    (("contexts", "ground_truth"), ("context_recall",), ("context_recall",), {}),
    (("answer", "contexts", "question"), ("factual_f1", "context_recall"), ("context_recall", "mrr"), {}),
)


def test_the_stage_that_got_worse_follows_from_what_changed_where_scores_fell(make: Make) -> None:
    """Half of the samples have other texts, and lower scores in these metrics; without verdicts there are no causes."""
    nights = make()
    ids = name_ids(20)
    texts = {"contexts": ["Three."], "answer": "Not here.", "ground_truth": "Elsewhere.", "question": "When?"}
    for number, (changed, fell, scored, _) in enumerate(STAGES):
        for run_id, hurt in ((f"b{number}", set()), (f"c{number}", set(ids[:10]))):
            nights.add_run(run_id, minute=number)
            for name in ids:
                others = {column: texts[column] for column in changed} if name in hurt else {}
                nights.add("samples", {**SAMPLE, "sample_id": name, "input_hash": f"{run_id}-{name}", **others})
            nights.add_samples(run_id, {name: f"{run_id}-{name}" for name in ids})
            for metric in ("factual_f1", *scored):
                values = {name: 0.0 if name in hurt and metric in fell else 1.0 for name in ids}
                nights.add_scores(run_id, metric, values)
    for number, (*case, stages) in enumerate(STAGES):
        assert nights.compare_pair(f"b{number}", f"c{number}").causes.stages == stages, case


def test_corrected_reference_ids_are_no_fall_of_the_retriever(make: Make) -> None:
    """The retriever returns the same documents in another order each night."""
    nights = make()
    ids = name_ids(60)
    for run_id, found in ((BASE, ["a", "b"]), (CANDIDATE, ["b", "a"])):
        for place, name in enumerate(ids):
            reference = "c" if run_id == CANDIDATE and place < 30 else "a"
            columns = {"context_ids": found, "contexts": found, "reference_context_ids": [reference]}
            nights.add("samples", {**SAMPLE, "sample_id": name, "input_hash": f"{run_id}-{name}", **columns})
        nights.add_samples(run_id, {name: f"{run_id}-{name}" for name in ids})
        values = {name: 0.0 if run_id == CANDIDATE and place < 30 else 1.0 for place, name in enumerate(ids)}
        nights.add_scores(run_id, "hit_at_k", values)
    comparison = nights.compare_pair()
    headline = write_headline(Against(called="the base", name="the base", comparison=comparison))
    assert headline.sentence == "Some scores are worse than in the base, because of: reference ids changed"
    (warning,) = [text for text in comparison.warnings if "noise floor" not in text]
    assert warning.startswith("30 of 60 common samples have other reference ids, under the same id")


@pytest.mark.parametrize(("name", "edit"), [("tables", "question"), ("expected_rows", "ground_truth")])
def test_all_that_a_dataset_asks_and_expects_counts_as_edited(name: str, edit: str) -> None:
    edited = find_edited({column: np.array([column == name, False]) for column in INPUTS})
    assert {kind: flags.tolist() for kind, flags in edited.items() if flags.any()} == {edit: [True, False]}


EDITED: tuple[tuple[str, int, int, str, tuple[int, int]], ...] = (
    ("ground_truth", 30, 0, "Some scores are worse than in the base, because of: ground truth changed", (0, 30)),
    ("question", 60, 0, "Some scores are worse than in the base, because of: question changed", (60, 0)),
    ("ground_truth", 4, 20, "Generation is worse than in the base, with the same contexts", (0, 4)),
    ("ground_truth", 30, 20, "Generation is worse than in the base, with the same contexts", (0, 30)),
    # The bot's own earlier answers are in the turns before a question.
    ("conversation", 60, 20, "Generation is worse than in the base, with the same contexts", (0, 0)),
)


@pytest.mark.parametrize("case", EDITED)
def test_an_edit_of_the_dataset_is_no_fall_of_the_bot(
    make: Make, case: tuple[str, int, int, str, tuple[int, int]]
) -> None:
    """A bot that words all answers otherwise every night is worse in `n_bot` samples, and the first ones are edited."""
    column, n_edited, n_bot, sentence, counts = case
    nights = make()
    ids = name_ids(60)
    texts = {"ground_truth": "Elsewhere.", "question": "When?", "conversation": '[{"role": "user", "text": "Hi"}]'}
    for run_id in (BASE, CANDIDATE):
        edited = set(ids[:n_edited] if run_id == CANDIDATE else ())
        worse = set(ids[60 - n_bot :] if run_id == CANDIDATE else ())
        if column != "conversation":
            worse |= edited
        for name in ids:
            others = {column: texts[column]} if name in edited else {}
            sample = {**SAMPLE, "sample_id": name, "input_hash": f"{run_id}-{name}", "answer": f"Here, {run_id}."}
            nights.add("samples", sample | others)
        nights.add_samples(run_id, {name: f"{run_id}-{name}" for name in ids})
        nights.add_scores(run_id, "factual_f1", {name: 0.0 if name in worse else 1.0 for name in ids})
    comparison = nights.compare_pair()
    headline = write_headline(Against(called="the base", name="the base", comparison=comparison))
    assert headline.sentence == sentence
    assert tuple(comparison.edited.values()) == (*counts, 0)
    named = [f"{n} {{}}another {kind}" for n, kind in zip(counts, ("question", "ground truth"), strict=True) if n]
    edits = ", ".join(named).format("of 60 common samples have ")
    warnings = [f"{edits}, under the same id, so that a difference may not be a change of the bot"] if named else []
    assert [text for text in comparison.warnings if "noise floor" not in text] == warnings
    parts = ["60 have another answer", "0 other contexts", *(text.format("") for text in named)]
    assert headline.further == (f"Of the 60 samples in both runs {', '.join(parts[:-1])} and {parts[-1]}.",)
    (check,) = check_drops({"factual_f1": 0.02}, {"factual_f1": get(comparison, "factual_f1")})
    assert check.outcome == "failed"
    says = f"{sum(counts)} of 60 samples have another question, ground truth or reference ids; if they should, accept"
    assert (says in check.detail) is bool(named)


@pytest.mark.parametrize(("edited", "column", "sentence"), [
    (40, "ground_truth", "What the bot answers is worse than in the base, in samples whose ground truth changed too"),
    (40, "question", "What the bot answers is worse than in the base, in samples whose question changed too"),
    (20, "ground_truth", "Some scores are worse than in the base, because of: answer and ground truth changed"),
])  # fmt: skip
def test_an_edit_of_all_samples_does_not_excuse_the_answers_that_fell(
    make: Make, edited: int, column: str, sentence: str
) -> None:
    """All ground truths got another full stop in the night in which half of the answers broke, and were the reason."""
    nights = make()
    ids = name_ids(40)
    for run_id in (BASE, CANDIDATE):
        n_edited, n_worse = (edited, 20) if run_id == CANDIDATE else (0, 0)
        for place, name in enumerate(ids):
            others = {column: "Reformatted!"} if place < n_edited else {}
            others |= {"answer": "Elsewhere."} if place < n_worse else {}
            nights.add("samples", {**SAMPLE, "sample_id": name, "input_hash": f"{run_id}-{name}", **others})
        nights.add_samples(run_id, {name: f"{run_id}-{name}" for name in ids})
        nights.add_scores(run_id, "factual_f1", {name: float(place >= n_worse) for place, name in enumerate(ids)})
    comparison = nights.compare_pair()
    headline = write_headline(Against(called="the base", name="the base", comparison=comparison))
    assert headline.sentence == sentence
    (check,) = check_drops({"factual_f1": 0.02}, {"factual_f1": get(comparison, "factual_f1")})
    assert check.outcome == "failed"
    assert check.detail.endswith("; first look at the bot: the drop is where its answer or contexts changed too")


@pytest.mark.parametrize("n_alike", [0, 8])
def test_refusals_that_stay_alike_do_not_blame_the_bot_for_an_edit_of_all_ground_truths(
    make: Make, n_alike: int
) -> None:
    """All prices rose in the ground truths, the bot gave the old ones in other words, and 8 of 40 refused."""
    nights = make()
    ids = name_ids(40)
    for run_id in (BASE, CANDIDATE):
        for place, name in enumerate(ids):
            others = {"answer": "Unknown."} if place < n_alike else {"answer": f"It costs ten, as {run_id} says."}
            others["ground_truth"] = f"It costs {'ten' if run_id == BASE else 'eleven'}."
            nights.add("samples", {**SAMPLE, "sample_id": name, "input_hash": f"{run_id}-{name}", **others})
        nights.add_samples(run_id, {name: f"{run_id}-{name}" for name in ids})
        scores = {name: place / 200 if place < n_alike else float(run_id == BASE) for place, name in enumerate(ids)}
        nights.add_scores(run_id, "factual_f1", scores)
    headline = write_headline(Against(called="the base", name="the base", comparison=nights.compare_pair()))
    assert headline.sentence == "Some scores are worse than in the base, because of: answer and ground truth changed"


def test_lost_contexts_are_named_beside_an_edit_of_all_ground_truths(make: Make) -> None:
    """The answers changed where documents were lost, so that the sentence on top blamed the answers."""
    nights = make()
    ids = name_ids(40)
    for run_id in (BASE, CANDIDATE):
        n_lost = 20 if run_id == CANDIDATE else 0
        for place, name in enumerate(ids):
            others = {"ground_truth": f"It costs ten{'.' if run_id == BASE else '!'}"}
            others |= {"answer": "Unknown.", "contexts": ["Elsewhere."]} if place < n_lost else {}
            nights.add("samples", {**SAMPLE, "sample_id": name, "input_hash": f"{run_id}-{name}", **others})
        nights.add_samples(run_id, {name: f"{run_id}-{name}" for name in ids})
        for metric in ("factual_f1", "context_recall"):
            nights.add_scores(run_id, metric, {name: float(place >= n_lost) for place, name in enumerate(ids)})
    headline = write_headline(Against(called="the base", name="the base", comparison=nights.compare_pair()))
    assert headline.sentence == "Retrieval is worse than in the base, in samples whose ground truth changed too"


@pytest.mark.parametrize(("picks", "contexts", "part", "sentence"), [
    (True, None, "answer", "Some scores are worse than in the base"),
    (True, ["Two.", "One."], "answer+contexts", "Some scores are worse than in the base"),
    (True, ["Elsewhere."], "answer+contexts", "Retrieval is worse than in the base"),
    (False, ["Two.", "One."], "contexts", "Retrieval is worse than in the base"),
])  # fmt: skip
def test_another_accepted_answer_that_an_answer_picks_is_not_noise_and_not_retrieval(
    make: Make, picks: bool, contexts: list[str] | None, part: str, sentence: str
) -> None:
    """The one that the answer says counts in context_recall."""
    nights = make()
    ids = name_ids(40)
    metadata = '{"ground_truths": ["There.", "Over there."]}'
    for run_id in (BASE, CANDIDATE):
        for place, name in enumerate(ids):
            is_other = run_id == CANDIDATE and place < 20
            others = {"answer": f"It is {'over ' if is_other else ''}there.", "metadata": metadata}
            others |= {"contexts": contexts} if is_other and contexts else {}
            nights.add("samples", {**SAMPLE, "sample_id": name, "input_hash": f"{run_id}-{name}", **others})
            truth = "Over there." if is_other and picks else "There."
            of_run = {"run_id": run_id, "sample_id": name}
            nights.add("similarities", of_run | {"kind": "accepted_answer", "value": 1.0, "text": truth})
        nights.add_samples(run_id, {name: f"{run_id}-{name}" for name in ids})
        is_lower = [run_id == CANDIDATE and place < 20 for place in range(40)]
        scores = dict(zip(ids, (float(not lower) for lower in is_lower), strict=True))
        nights.add_scores(run_id, "context_recall", scores)
        nights.add_scores(run_id, "hit_retrieved", dict.fromkeys(ids, 1.0))
    comparison = nights.compare_pair()
    assert not any("answer" in one.name for one in get(comparison, "hit_retrieved").parts), "all accepted answers count"
    moved = [one for one in get(comparison, "context_recall").parts if one.n_moved]
    assert [(one.name, one.n_moved, one.value) for one in moved] == [(part, 20, pytest.approx(-0.5))]
    assert write_headline(Against(called="the base", name="the base", comparison=comparison)).sentence == sentence


def test_causes_are_counted_in_samples_whose_question_and_ground_truth_are_the_same(make: Make) -> None:
    nights = make()
    ids = name_ids(20)
    for run_id in (BASE, CANDIDATE):
        for place, name in enumerate(ids):
            truth = "Elsewhere." if run_id == CANDIDATE and place < 5 else "There."
            nights.add(
                "samples", {**SAMPLE, "sample_id": name, "input_hash": f"{run_id}-{name}", "ground_truth": truth}
            )
        nights.add_samples(run_id, {name: f"{run_id}-{name}" for name in ids})
        is_fine = [run_id == BASE or place >= 5 for place in range(20)]
        found = ["fine" if fine else "not_in_contexts" for fine in is_fine]
        of_run = {"run_id": run_id, "ordinal": 1, "rule": "one"}
        rows = zip(ids, found, strict=True)
        nights.add("stored_causes", *(of_run | {"sample_id": name, "cause": cause} for name, cause in rows))
    causes = nights.compare_pair().causes
    assert (causes.n, causes.n_base, causes.n_candidate, causes.moves) == (15, 0, 0, ())
