"""Facts about one run beside its scores: its origin, its responses and replies, silent metrics, and its diagnosis.

A sample gets its cause by SQL (`warehouse/views/sample_causes.sql`); names, meanings and remedies of the causes are in
`remedies.yaml`. No model is asked, and nothing is written.
"""

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, cast, get_args

import yaml

from evalhouse.flows.errors import SettingsError
from evalhouse.flows.preparing.request import NO_JUDGE
from evalhouse.flows.results.output import print_line, print_section, sort_by_metric, write_count, write_interval
from evalhouse.tasks.judge.protocol import COPIED, LATE, LEXICAL, NOT_IN_TEXT, NOT_TAKEN, list_judges
from evalhouse.warehouse.messages import list_names, name_setting, shorten
from evalhouse.warehouse.metric_files import load_metrics, resolve_parameters
from evalhouse.warehouse.rows.runs import RunRow, find_run
from evalhouse.warehouse.rows.samples import FAILURE_REASONS, fetch_derived
from evalhouse.warehouse.steps import PLANS
from evalhouse.warehouse.store import Warehouse

if TYPE_CHECKING:
    from evalhouse.tasks.asking.usage import Usage

FIRST: Final = (
    "answer_correctness", "faithfulness", "context_recall", "context_precision", "answer_rate", "refusal_rate",
)  # fmt: skip
"""The metrics that come first wherever results are shown."""
_GROUPS: Final[Mapping[str, tuple[str, ...]]] = {
    "Answer": (
        "factual_f1", "factual_precision", "factual_recall", "statement_recall", "hallucination", "answer_relevancy",
        "semantic_similarity", "surface_similarity", "answer_validity", "accuracy", "accuracy_3", "accuracy_5",
        "accuracy_binary", "passage_recall", "passage_precision", "relevance_accuracy", "relevance_comprehensiveness",
        "relevance_final", "exact_match", "token_f1", "bleu", "rouge_l", "chrf",
    ),
    "Retrieval": (
        "hit_at_k", "mrr", "ndcg_at_k", "recall_at_k", "precision_at_k", "hit_retrieved", "mrr_retrieved",
        "ndcg_retrieved", "precision_retrieved", "context_utilization", "contexts_usefulness", "context_passage_recall",
        "context_passage_precision", "relevance_context_precision",
    ),
}  # fmt: skip
_OTHER: Final = "Other"
_WEIGHTED = "answer_correctness"
_SHOWN_DOCUMENTS = 10
_SHOWN_ERRORS = 10
_LONGEST_ERROR = 600  # the help is at an error's end
# Fewer replies, or a smaller share, give no warning.
_MIN_REPLIES = 4
_TOO_MANY = 0.5
Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class SilentMetrics:
    """The metrics of a run that scored no sample, each with the reasons and their counts.

    `hidden` were not asked for by name, and no sample has the data they need: a table of scores leaves them out.
    `expected` are the hidden metrics whose data, such as reference ids, few datasets have. `advice` ends the line.
    """

    reasons: Mapping[str, str]
    hidden: tuple[str, ...]
    expected: frozenset[str]
    advice: str = ""

    @property
    def line(self) -> str | None:
        """The line below the table of scores: a note if all of them are expected, else a warning."""
        text = self.describe()
        return text and f"{'note' if self.expected.issuperset(self.reasons) else 'warning'}: {text}{self.advice}"

    def describe(self, *, max_names: int | None = None) -> str | None:
        """Describe the silent metrics and the reasons in a line; None without any. With `max_names` only so many names
        for each reason, and no expected ones."""
        metrics: dict[str, list[str]] = {}
        for metric, reasons in self.reasons.items():
            if max_names is None or metric not in self.expected:
                metrics.setdefault(reasons, []).append(metric)
        parts = [f"{list_names(names, max_names or len(names))} ({reasons})" for reasons, names in metrics.items()]
        return f"nothing was scored by {'; '.join(parts)}" if parts else None


def find_two_runs(warehouse: Warehouse, base: str, candidate: str) -> tuple[RunRow, RunRow]:
    """Find two runs to compare; raises SettingsError if both names mean the same run.

    `previous` is the run before the other one in its series.
    """
    sides = "BASE and CANDIDATE"
    if base.startswith("previous"):
        run = find_run(warehouse, candidate)
        return find_other_run(warehouse, run, base, sides=sides), run
    run = find_run(warehouse, base)
    return run, find_other_run(warehouse, run, candidate, sides=sides)


def find_other_run(warehouse: Warehouse, run: RunRow, name: str, *, sides: str = "RUN and --against") -> RunRow:
    """Find the run to compare with; raises SettingsError if the name means the same run."""
    other = find_run(warehouse, name, beside=run)
    if other.run_id == run.run_id:
        raise SettingsError(f"{sides} are both run {run.run_id}; name two runs (`evalhouse runs` lists all)")
    return other


def read_silent(warehouse: Warehouse, run: RunRow) -> SilentMetrics:
    """Read the metrics of a run that scored nothing."""
    parameters = {"run_id": run.run_id, "failures": list(FAILURE_REASONS)}
    rows = sort_by_metric(warehouse.fetch_rows("runs/silent", **parameters), run.metrics)
    wanted = bool(run.config.get("metrics"))
    advice = ""
    if any("ids_do_not_match" in row["reasons"] for row in rows):
        ids = warehouse.fetch_row("runs/unlike_ids", run_id=run.run_id)
        advice = (
            f". No reference id of the run, such as {shorten(ids['reference_id'], 60)!r}, matches a retrieved id, "
            f"such as {shorten(ids['context_id'], 60)!r}: let both name the same documents or passages"
        )
    return SilentMetrics(
        advice=advice,
        reasons={str(row["metric"]): str(row["reasons"]) for row in rows},
        hidden=tuple(str(row["metric"]) for row in rows if not wanted and not row["has_failed"]),
        expected=frozenset(str(row["metric"]) for row in rows if not wanted and row["is_rare"]),
    )


def list_first(metrics: Sequence[str], config: Mapping[str, Any]) -> list[str]:
    """List the metrics of a run with this configuration that are shown first, in order; the others are folded.

    These are the first metrics, then the metrics of its suite's gate. All are shown first in a run that chose
    its metrics by name, and in one that has none of these.
    """
    limits = [limit for limit in (config.get("gate") or {}).values() if isinstance(limit, Mapping)]
    wanted = set(metrics) if config.get("metrics") else {*FIRST}.union(*limits)
    return [name for name in sort_first(metrics) if name in wanted] or sort_first(metrics)


def list_folded(run: RunRow, rows: Rows, hidden: Collection[str]) -> list[str]:
    """List the metrics of `run_scores` rows that a short table leaves out, besides the `hidden` ones."""
    names = [str(row["metric"]) for row in rows if row["metric"] not in hidden]
    first = list_first(names, run.config)
    return [name for name in names if name not in first]


def sort_first(names: Sequence[str]) -> list[str]:
    """Sort the first metrics first; the others keep their order."""
    return sorted(names, key=lambda name: FIRST.index(name) if name in FIRST else len(FIRST))


def group_metrics(metrics: Sequence[str], config: Mapping[str, Any]) -> dict[str, list[str]]:
    """Group the metrics of a run by the title that they are folded under; the first ones have an empty title."""
    groups = {"": list_first(metrics, config)}
    for title in (*_GROUPS, _OTHER):
        others = [name for name in metrics if name not in groups[""]]
        groups[title] = [name for name in others if name in _GROUPS.get(title, ())]
    grouped = {name for names in groups.values() for name in names}
    groups[_OTHER] = [name for name in metrics if name not in grouped]
    return {title: names for title, names in groups.items() if names}


def read_response_counts(warehouse: Warehouse, run: RunRow) -> dict[str, Any] | None:
    """Count the responses of a run, with failures by error; None if its dataset brought the answers."""
    if not run.config.get("target") and run.parent_run_id is None:
        return None
    return {
        **warehouse.fetch_row("responses/counts", run_id=run.run_id),
        "errors": warehouse.fetch_rows("responses/errors", run_id=run.run_id),
    }


def list_trail(run: RunRow) -> list[str]:
    """List the facts about a run's origin, a line each."""
    suite_hash = f" (file {run.suite_hash[:8]})" if run.suite_hash else ""
    # The schedule, or the update with its version and documents; nothing for a run by hand that follows none.
    update = run.kb_name or ""
    update += f" {run.kb_version}" if run.kb_version else ""
    if run.kb_changed:
        more = f" and {len(run.kb_changed) - _SHOWN_DOCUMENTS} more" if len(run.kb_changed) > _SHOWN_DOCUMENTS else ""
        update += f" ({len(run.kb_changed)} changed: {', '.join(run.kb_changed[:_SHOWN_DOCUMENTS])}{more})"
    started = f"hand, for an update of {update.strip()}" if update else None
    if run.trigger == "event":
        started = f"update of {update.strip()}"
    elif run.trigger == "schedule":
        started = "schedule"
    named = {
        "label": run.label,
        "link": run.href,
        "tags": ", ".join(run.tags),
        "suite": f"{run.suite_name}{suite_hash}" if run.suite else None,
        "asked after": run.night if run.variant else None,
        "started by": started,
        "parent run": run.parent_run_id,
        "gate": run.gate,
        "problem": run.problem,
        "test set": describe_testset(run),
        "code": run.code_version,
    }
    return [f"{name}: {value}" for name, value in named.items() if value]


def describe_testset(run: RunRow) -> str | None:
    """Describe the refresh of the suite's test set before a run; None without one."""
    refreshed = run.config.get("refreshed")
    if refreshed is None:
        return None
    from evalhouse.tasks.settings.suite import RefreshedTestset  # noqa: PLC0415  # Pydantic, which few runs need here

    return RefreshedTestset.model_validate(refreshed).describe().removeprefix("test set: ")


def explain_surface(
    embeddings: str | None, metrics: Sequence[str], metric_settings: Mapping[str, Mapping[str, float]]
) -> str | None:
    """Explain which metrics compare spelling because no embedding model was named; None if none does."""
    if embeddings != "hashing":
        return None
    weights = resolve_parameters(load_metrics()[_WEIGHTED], metric_settings.get(_WEIGHTED, {}))
    share = weights["similarity_weight"] / (sum(weights.values()) or 1)
    parts = {_WEIGHTED: f" (as {share:.2g} of it)" if share else None, "answer_relevancy": ""}
    affected = " and ".join(f"{name}{part}" for name, part in parts.items() if name in metrics and part is not None)
    if not affected:
        return None
    return (
        f"note: no embedding model, so {affected} uses surface_similarity, which compares spelling, not meaning; "
        "--embeddings openai:MODEL compares meaning."
    )


def read_slices(warehouse: Warehouse, run: RunRow, column: str | None) -> list[dict[str, Any]]:
    """Read the means of the metrics that are shown first by the values of a metadata column; none without one.

    Raises ComparisonError for a column that has too many values, or that no sample has.
    """
    if column is None:
        return []
    from evalhouse.tasks.comparing.slices import measure_slices  # noqa: PLC0415  # imports the statistics

    names = ("by", "slice", "metric", "better", "n_samples", "n_scored", "mean", "ci_low", "ci_high")
    means = measure_slices(warehouse, run, column, list_first(run.metrics, run.config))
    return [{name: getattr(mean, name) for name in names} for mean in means]


def print_slices(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the means of slices, metric by metric; nothing without rows."""
    names = sort_first(list(dict.fromkeys(str(row["metric"]) for row in rows)))
    rows = sorted((row for row in rows if row["n_scored"]), key=lambda row: names.index(row["metric"]))
    cells = [
        [row["metric"], row["slice"], row["mean"], write_interval(row["ci_low"], row["ci_high"]), row["n_scored"],
         row["n_samples"]]
        for row in rows
    ]  # fmt: skip
    if rows:
        print_section(
            f"By {rows[0]['by']}", ["metric", rows[0]["by"], "#mean", "95 % interval", "#scored", "#samples"], cells
        )


def list_notes(warehouse: Warehouse, run: RunRow) -> list[str]:
    """Return what a reader of a stored run's scores should know about them."""
    notes = [explain_surface(run.embeddings, run.metrics, run.config.get("metric_settings", {}))]
    if any(metric.startswith("relevance_") for metric in run.metrics):
        n = warehouse.fetch_rows("runs/unlogged_contexts", run_id=run.run_id)[0]["n_unlogged"]
        if n:
            notes.append(
                f"note: {n:,} samples have no contexts on record, so their relevance_context_precision is 0 and their "
                "relevance_final at most 0.7; give the column contexts, or [] where retrieval found nothing."
            )
    if not {"citation_recall", "citation_precision", "citation_validity"}.isdisjoint(run.metrics):
        cited = warehouse.fetch_row("runs/citations", run_id=run.run_id)
        named = f"{name_setting('citations', 'REGEX')} names the form of yours (evalhouse guide metrics)"
        if cited["n_answers"] and not cited["n_citations"]:
            notes.append(
                "note: no answer has a citation in a known form, such as [1] or [doc 1], or a link that a context has "
                f"as its id, `url` or `source`; {named}."
            )
        elif cited["n_zero"]:
            notes.append(
                f"note: {cited['n_zero']:,} of {cited['n_citations']:,} citations have the number 0, where the first "
                f"context is 1; {name_setting('citations_from', '0')} counts from 0 as your bot does."
            )
        elif cited["n_unknown"] > cited["n_citations"] / 2:
            notes.append(
                f"note: {cited['n_unknown']:,} of {cited['n_citations']:,} citations, such as "
                f"{shorten(cited['unknown'], 60)!r}, name no context of their sample by its rank or its id; {named}."
            )
    if "tool_call_accuracy" in run.metrics:
        calls = warehouse.fetch_row("runs/unreadable_calls", run_id=run.run_id)
        if calls["n_unreadable"]:
            notes.append(
                f"note: in {calls['n_unreadable']:,} of {calls['n_graded']:,} samples a tool call of the bot cannot be "
                'read and counts as wrong in tool_call_accuracy: tool_calls is a list of {"name": …, "args": {…}}, or '
                "as OpenAI, Anthropic, Gemini and others write them"
            )
    if "result_set_match" in run.metrics:
        queries = warehouse.fetch_row("runs/failed_queries", run_id=run.run_id)
        if queries["n_failed"]:
            notes.append(
                f"note: {queries['n_failed']:,} of {queries['n_compared']:,} results of result_set_match are 0 because "
                f"{shorten(queries['reason'], 160)}"
            )
    thoughts = warehouse.fetch_rows("runs/thoughts", run_id=run.run_id)[0]
    if thoughts["n_answers"]:
        alone = f" ({thoughts['n_empty']:,} with nothing else, which count as missing)" if thoughts["n_empty"] else ""
        notes.append(
            f"note: the bot's thoughts were left out of {thoughts['n_answers']:,} answers{alone}; `evalhouse lineage` "
            "shows them, --judge-thoughts judges them."
        )
    if run.judge not in (LEXICAL, NO_JUDGE):
        from evalhouse.tasks.datasets.read import MAX_LOOKED_AT, describe_language  # noqa: PLC0415  # reads datasets

        texts = warehouse.fetch("runs/first_texts", run_id=run.run_id, n=MAX_LOOKED_AT)["text"]
        notes += describe_language(texts, run.judge)
    return [note for note in notes if note]


def explain_sampling(warehouse: Warehouse, run: RunRow) -> str | None:
    """Describe the part of its dataset that a run judged; None for a run that judged all."""
    if run.config.get("sample_budget") is None:
        return None
    rows = warehouse.fetch_rows("runs/sampling", run_id=run.run_id)
    if not rows or rows[0]["n_picked"] in (None, rows[0]["n"]):
        return None
    counts = {name: int(str(number)) for name, number in rows[0].items()}
    share = counts["n_earlier"] / counts["n_signals"]
    return (
        f"note: {counts['n_picked']:,} of {counts['n']:,} samples were judged, picked with known probabilities, by "
        f"chance and doubt (signals: {share:.0%} earlier scores, else lexical); means, shares and intervals are "
        "estimates."
    )


def explain_joint_split(costs: Sequence[Mapping[str, Any]]) -> str | None:
    """Explain how requests that split two texts at once are counted in the costs by step; None without any."""
    steps = {str(row["step"]) for row in costs}
    if "extract_ground_truth" not in steps or not any(PLANS[name].extract_prompt for name in PLANS.keys() & steps):
        return None
    return "note: a request that splits answer and ground truth at once counts as extract_answer, with all its tokens."


def describe_responses(counts: Mapping[str, Any]) -> str:
    """Describe responses in one line: answered, failed and reused ones, and their latency."""
    parts = [f"{counts['n_ok']:,} answered", f"{counts['n_failed']:,} failed"]
    if counts["n_reused"]:
        parts.append(f"{counts['n_reused']:,} taken from the record")
    if counts["latency_p50_ms"] is not None:
        parts.append(f"latency p50 {counts['latency_p50_ms']:,.0f} ms, p95 {counts['latency_p95_ms']:,.0f} ms")
    return ", ".join(parts)


def print_responses(counts: Mapping[str, Any] | None) -> None:
    """Print the responses of a run, and the errors of failed ones."""
    if counts is None:
        return
    print_line(f"responses: {describe_responses(counts)}")
    if not counts["n_ok"] + counts["n_reused"] and counts["n_failed"]:
        print_line("warning: no question was answered, so no score here says anything about the application")
    print_response_errors(counts["errors"])


def print_response_errors(errors: Sequence[Mapping[str, Any]]) -> None:
    """Print failed responses by error, the most frequent first."""
    rows = [[shorten(row["error"], _LONGEST_ERROR), row["n_samples"], row["example"]] for row in errors[:_SHOWN_ERRORS]]
    print_section("Failed responses", ["error", "#samples", "for example"], rows)


def read_replies(warehouse: Warehouse, run_id: str) -> list[dict[str, Any]]:
    """Read a row for each step whose model was asked."""
    return warehouse.fetch_rows("runs/replies", run_id=run_id, copied=COPIED, late=LATE)


def describe_dropped(warehouse: Warehouse, run_id: str) -> Iterator[str]:
    """Yield a line for each parameter that an endpoint refused in a run, with its error."""
    for row in warehouse.fetch_rows("runs/dropped", run_id=run_id, not_taken=NOT_TAKEN):
        yield f"{row['judge']} was asked without what its endpoint does not take: {shorten(str(row['refusal']), 300)}"


def describe_languages(warehouse: Warehouse, run_id: str) -> Iterator[str]:
    """Yield a line where the lexical judge was asked about languages that it does not know."""
    rows = warehouse.fetch_rows("runs/languages", run_id=run_id)
    if rows:
        named = ", ".join(f"{write_count(row['n_samples'], 'sample')} in {row['language']}" for row in rows)
        yield (
            f"the lexical judge knows English and Chinese only: {named} got no verdicts, and no scores that rest on "
            "verdicts (language_not_supported); judge them with a model: --judge openai:MODEL"
        )


def describe_strange(warehouse: Warehouse, run_id: str) -> Iterator[str]:
    """Yield a line where a judge gave statements that the texts do not make."""
    row = warehouse.fetch_row("runs/not_in_text", run_id=run_id, words=NOT_IN_TEXT)
    if row["n_samples"]:
        yield (
            f"{write_count(row['n_statements'], 'statement')} of {write_count(row['n_samples'], 'sample')} have mostly "
            "words that neither the text nor the question has: the judge may have made them up, or translated; "
            "`lineage` names them"
        )


def list_troubled(rows: Rows) -> Rows:
    """List the steps with a reply that was not complete and usable at once, or that came too late."""
    return [row for row in rows if row["n_complete"] < row["n_replies"] or row["n_repaired"] or row["n_late"]]


def describe_replies(rows: Rows) -> Iterator[str]:
    """Yield a warning for each step that the judge cannot do, and one if replies came too late."""
    for row in rows:
        useless = row["n_incomplete"] + row["n_unusable"]
        if row["n_replies"] >= _MIN_REPLIES and useless >= _TOO_MANY * row["n_replies"]:
            copied = f", {row['n_copied']:,} of them in the words of the prompt's example" if row["n_copied"] else ""
            yield (
                f"the judge is not up to {row['step']}: {useless:,} of {row['n_replies']:,} replies were unreadable or "
                f"left something out{copied}; a larger model may be"
            )
    n_late, n_requests = (sum(row[name] for row in rows) for name in ("n_late", "n_requests"))
    if n_late:
        yield f"{n_late:,} of {n_requests:,} requests got no reply in time: raise --timeout or lower --concurrency"


def describe_local(
    counts: "Usage", judge: str | None, n_earlier: int = 0, identified: Collection[str] = ()
) -> Iterator[str]:
    """Yield warnings about a self-hosted model that follow from the counts of a run.

    `n_earlier` replies of earlier runs were reused; `identified` are the models that the server has identified.
    """
    from evalhouse.tasks.judge.protocol import is_near  # noqa: PLC0415  # imports the prompts

    if counts.shortened:
        yield (
            f"the endpoint counted less than half of the tokens of {counts.shortened:,} requests: where its context "
            "window is too small it cuts them without a word (Ollama: num_ctx); raise it, or set "
            "EVALHOUSE_REQUEST_TOKENS lower"
        )
    endpoint = os.environ.get("OPENAI_BASE_URL", "")
    named = [name.removeprefix("openai:") for name in list_judges(judge or "") if name.startswith("openai:")]
    models = [name for name in named if name not in identified]
    if n_earlier and models and is_near(endpoint):
        yield (
            f"{n_earlier:,} stored replies of {' or '.join(map(repr, models))} at this address were reused, "
            "which are known only by name; if another model has that name now, ask again with --fresh"
        )


def describe_unnamed(embeddings: str | None, n_unnamed: int) -> Iterator[str]:
    """Yield a warning where stored vectors were reused of a factory's model, no field of which has the model's name."""
    if n_unnamed:
        yield (
            f"{n_unnamed:,} stored vectors of {embeddings} were reused; its object has no field with the name of its "
            "model (model, model_name), so if the model has changed, ask again with --fresh"
        )


Cause = Literal[
    "not_judged",
    "judge_suspect",
    "refused_rightly",
    "ground_truth_doubtful",
    "answered_unanswerable",
    "refused_wrongly",
    "retrieval_missed",
    "ground_truth_outdated",
    "knowledge_base_lacks",
    "not_in_contexts",
    "ranked_too_low",
    "hallucinated",
    "misled_by_contexts",
    "misled_by_turns",
    "contexts_ignored",
    "turns_ignored",
    "own_knowledge",
    "fine",
]
"""All causes, in the order of their first rules."""
Language = Literal["en", "zh"]
CAUSES: Final[tuple[Cause, ...]] = get_args(Cause)
LANGUAGES: Final[tuple[Language, ...]] = get_args(Language)

_REMEDIES = Path(__file__).with_name("remedies.yaml")
_THRESHOLDS = "select threshold, value::double as value from cause_thresholds"


@dataclass(frozen=True, kw_only=True)
class Advice:
    """One cause in one language: `name` for a table, `meaning` in a sentence, `remedies` the likeliest first."""

    name: str
    meaning: str
    remedies: tuple[str, ...] = ()


@cache
def load_advice(language: Language) -> Mapping[Cause, Advice]:
    """Load the name, meaning and remedies of each cause."""
    texts = yaml.load(_REMEDIES.read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader))[language]
    return {cause: Advice(**{**texts[cause], "remedies": tuple(texts[cause].get("remedies", ()))}) for cause in CAUSES}


def read_diagnosis(
    warehouse: Warehouse, run: RunRow, *, language: Language, causes: Sequence[Cause], n_samples: int, n_runs: int
) -> dict[str, Any]:
    """Read the causes of a run with their shares, the trend, the worst samples and the remedies.

    `causes` are the ones to show, with `n_samples` of the worst samples of each and a trend over `n_runs` runs.
    """
    of_run = {"run_id": run.run_id}
    names = ("run_id", "status", "label", "suite", "dataset", "judge", "language", "n_samples", "started_at")
    counted = warehouse.fetch_rows("diagnosis/causes", run_id=run.run_id)
    described = []
    for row in counted:
        if row["cause"] in causes:
            advice = load_advice(language)[cast(Cause, row["cause"])]
            remedies = list(advice.remedies) if row["n_samples"] else []
            described.append({**row, "name": advice.name, "meaning": advice.meaning, "remedies": remedies})
    # The trend, oldest run first.
    series = warehouse.fetch_rows("diagnosis/series", run_id=run.run_id, n_runs=n_runs)
    by_run = {str(row["run_id"]): counted if row["run_id"] == run.run_id else [] for row in series}
    for row in fetch_derived(warehouse, "causes", by_run.keys() - {run.run_id}).sort("precedence").to_dicts():
        by_run[row["run_id"]].append(row)
    trend = []
    for of_series in reversed(series):
        rows = by_run[str(of_series["run_id"])]
        shares = {str(row["cause"]): row["share"] for row in rows if row["cause"] in causes}
        n_judged = next((row["n_of"] for row in rows if row["cause"] != "not_judged"), 0)
        trend.append({**of_series, "n_judged": n_judged, "shares": shares})
    has_unjudged = "not_judged" in causes and any(row["cause"] == "not_judged" and row["n_samples"] for row in counted)
    picked = {**of_run, "causes": list(causes), "n_samples": n_samples}
    return {
        "run": {name: getattr(run, name) for name in names},
        "sampling": explain_sampling(warehouse, run),
        "language": language,
        "thresholds": {str(row["threshold"]): row["value"] for row in warehouse.read_rows(_THRESHOLDS)},
        "causes": described,
        "not_judged": warehouse.fetch("diagnosis/unjudged", **of_run).to_dicts() if has_unjudged else [],
        "trend": trend,
        "samples": warehouse.fetch("diagnosis/samples", **picked).to_dicts() if n_samples else [],
    }
