"""What `prompts compare` is given and what it says: settings from the reviewed run and the flags, tables for people."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from evalhouse.flows.display.output import make_table, print_line, print_table, write_interval
from evalhouse.flows.errors import SettingsError
from evalhouse.flows.preparing.settings import Resolved, resolve_settings
from evalhouse.flows.run.estimate import usage_table
from evalhouse.flows.trials.prompts import (
    ComparisonPlan,
    PromptComparison,
    compare_prompts,
    estimate_comparison,
    find_prompt_set,
    plan_comparison,
)
from evalhouse.tasks.asking.tokens import Usage
from evalhouse.tasks.comparing.agreement import Change
from evalhouse.tasks.comparing.bootstrap import Measure
from evalhouse.tasks.settings.run import RunSettings, list_settings, read_settings
from evalhouse.warehouse.messages import shorten
from evalhouse.warehouse.rows.reviews import list_reviewed_runs
from evalhouse.warehouse.rows.runs import RunRow, find_run
from evalhouse.warehouse.store import Warehouse

ALL = "all"
_MOST_MOVES = 20
_SIDES = ("old", "new")
_USED = ("requests", "reused", "failed", "prompt_tokens", "completion_tokens", "cost_usd")


@dataclass(frozen=True, kw_only=True)
class ComparisonReport:
    """A comparison, or what one would take, ready to be shown."""

    plan: ComparisonPlan
    costs: Sequence[Usage]
    comparison: PromptComparison | None

    def to_plain(self) -> dict[str, Any]:
        """As JSON has it."""
        plain: dict[str, Any] = {
            "old": _describe_prompt_set(self.plan, "old"),
            "new": _describe_prompt_set(self.plan, "new"),
            "judge": self.plan.settings.judge,
            "language": self.plan.settings.language,
            "steps": list(self.plan.steps),
            "reviewed_runs": list(self.plan.texts),
            "n_verdicts": self.plan.n_verdicts,
            "costs": {side: usage.pick(*_USED) for side, usage in zip(_SIDES, self.costs, strict=True)},
        }
        if self.comparison is None:
            return plain
        return plain | {
            "run_id": self.comparison.run_id,
            "n_unjudged": self.comparison.n_unjudged,
            "changes": [asdict(change) for change in self.comparison.changes],
            "moves": self.comparison.moves.to_dicts(),
        }

    def print(self) -> None:
        """As a person reads it."""
        plan = self.plan
        n_samples = sum(len(texts) for texts in plan.texts.values())
        print_line(
            f"{plan.n_verdicts} reviewed verdicts in {n_samples} samples, judged by {plan.settings.judge}; prompts "
            f"that differ: {', '.join(plan.prompts)}"
        )
        print_line()
        if self.comparison is not None:
            _print_changes(self.comparison)
        _print_costs(self.costs)
        if self.comparison is None:
            print_line("Nothing was asked.")
            return
        if self.comparison.n_unjudged:
            print_line(f"{self.comparison.n_unjudged} verdicts are left out: the judge failed on one side or both.")
        print_line(f"The calls are those of run {self.comparison.run_id}.")


def compare_prompt_sets(
    *, old: str, new: str, reviewed: str, url: str, flags: Mapping[str, Any], seed: int, dry_run: bool
) -> ComparisonReport:
    """Compare two sets of prompts, or estimate what that takes; raises SettingsError for what cannot be compared."""
    warehouse = Warehouse(url)
    runs = _find_runs(warehouse, reviewed)
    newest = max(runs, key=lambda run: run.started_at)
    settings = derive_settings(resolve_settings(flags), newest, url)
    words = [find_prompt_set(warehouse, source, settings.language) for source in (old, new)]
    plan = plan_comparison(warehouse, runs, settings, *words)
    if dry_run:
        return ComparisonReport(plan=plan, costs=estimate_comparison(plan), comparison=None)
    comparison = compare_prompts(plan, seed=seed)
    return ComparisonReport(plan=plan, costs=comparison.usages, comparison=comparison)


def _find_runs(warehouse: Warehouse, reviewed: str) -> list[RunRow]:
    names = list_reviewed_runs(warehouse) if reviewed == ALL else [reviewed]
    if not names:
        raise SettingsError(
            "nobody has reviewed a verdict yet; `evalhouse review export latest` picks some for a person to label"
        )
    return [find_run(warehouse, name) for name in names]


def derive_settings(resolved: Resolved, run: RunRow, url: str) -> RunSettings:
    """A run's settings, with what was named for asking again."""
    settable = list_settings(lambda where: where.compares == "given")
    chosen = {name for name in settable if not resolved.origins[name].startswith("default")}
    always = list_settings(lambda where: where.compares == "always")
    own = read_settings(run.config)
    changes = {name: getattr(resolved.settings, name) for name in (*chosen, *always)}
    return own.model_copy(update={**changes, "warehouse": url, "prompts": None, "embeddings": "hashing"})


def _describe_prompt_set(plan: ComparisonPlan, side: str) -> dict[str, Any]:
    words = plan.old if side == "old" else plan.new
    hashes = {name: {"version": words.prompts[name].version, "prompt_hash": words.prompts[name].prompt_hash}
              for name in plan.prompts}  # fmt: skip
    return {"source": words.source, "prompts": hashes}


def _print_changes(comparison: PromptComparison) -> None:
    columns = [
        "step", "#verdicts", "#old", "#new", "difference", "κ old", "κ new", "difference of κ", "#changed", "#better",
        "#worse", "verdict", "mind",
    ]  # fmt: skip
    rows = [_make_row(change) for change in comparison.changes]
    print_table(make_table(columns, rows, title="Agreement with people"))
    print_line()
    if comparison.moves.is_empty():
        print_line("No verdict changed.")
        return
    moves = comparison.moves.sort("moved", maintain_order=True).to_dicts()
    shown = [
        [
            move["step"], shorten(move["sample_id"], 40), move["statement_id"] or f"C{move['context_rank']}",
            move["old_label"], move["new_label"], ", ".join(move["people"]),
            "better" if move["moved"] > 0 else "worse" if move["moved"] < 0 else "no nearer",
        ]
        for move in moves[:_MOST_MOVES]
    ]  # fmt: skip
    more = f", {_MOST_MOVES} of {len(moves)} (--json has all)" if len(moves) > _MOST_MOVES else ""
    columns = ["step", "sample", "item", "old", "new", "people", "which is"]
    print_table(make_table(columns, shown, title=f"Verdicts that changed, worst first{more}"))
    print_line()


def _make_row(change: Change) -> list[object]:
    return [
        change.step, change.n_verdicts, change.accuracy_old.value, change.accuracy_new.value,
        _write_change(change.accuracy_difference), _value(change.kappa_old), _value(change.kappa_new),
        _write_change(change.kappa_difference), change.n_changed, change.n_better, change.n_worse, change.verdict,
        "; ".join(change.notes) or None,
    ]  # fmt: skip


def _value(measure: Measure | None) -> float | None:
    return measure.value if measure else None


def _write_change(measure: Measure | None) -> str | None:
    if measure is None or measure.value is None:
        return None
    if measure.ci_low is None:
        return f"{measure.value:+.3f}"
    return f"{measure.value:+.3f} ({write_interval(measure.ci_low, measure.ci_high)})"


def _print_costs(costs: Sequence[Usage]) -> None:
    rows = [([side], usage) for side, usage in zip(_SIDES, costs, strict=True)]
    print_table(usage_table(["words"], rows, _USED, title="Costs"))
