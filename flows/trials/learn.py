"""`prompts learn`: worked examples for a prompt, taken from verdicts that people have reviewed, with proof.

The examples are samples in which the judge contradicted people. Whether they help is measured by cross-validation: the
questions are split into folds, and the samples of each fold are judged with examples of the other folds, so that no
example judges itself. A prompt with examples of all folds is written only where agreement with people is better with
its whole 95 % interval.
"""

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl
import yaml

from evalhouse.flows.errors import SettingsError
from evalhouse.flows.trials.prompts import (
    BUILT_IN,
    ComparisonPlan,
    ComparisonReport,
    PromptSet,
    Side,
    ask_with,
    find_prompt_set,
    find_reviewed_runs,
    list_verdicts,
    plan_comparison,
    report_comparison,
    walk_verdicts,
)
from evalhouse.flows.trials.session import Session
from evalhouse.prompts import Prompt, load_prompts
from evalhouse.prompts.loader import ExampleContent, PromptContent, build_prompt
from evalhouse.tasks.asking.usage import estimate_tokens
from evalhouse.tasks.judge.protocol import plain_data
from evalhouse.tasks.pipeline.live_run import SampleWork
from evalhouse.tasks.rank import join_accepted
from evalhouse.warehouse.rows.reviews import JudgedTexts
from evalhouse.warehouse.store import Warehouse

MIN_QUESTIONS = 10
"""Reviewed questions below which a cross-validation shows nothing."""
_MAX_TOKENS = 1_500  # of one example, which is part of every request
# The reason of a corrected verdict where the reviewer left no note.
_REASONS = {
    "en": {
        "TP": "The other list states it.", "FP": "The other list does not state it.",
        "FN": "The other list does not state it.", "unsupported": "No context states it.",
        "useful": "It helps to reach the ground truth.", "not_useful": "It does not help to reach the ground truth.",
    },
    "zh": {
        "TP": "另一份列表说了这一点。", "FP": "另一份列表没有说这一点。", "FN": "另一份列表没有说这一点。",
        "unsupported": "没有上下文说明这一点。", "useful": "它有助于得出标准答案。",
        "not_useful": "它无助于得出标准答案。",
    },
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A sample that can be an example: the judge contradicted people in `n_wrong` of its verdicts."""

    sample_id: str
    question: str
    n_wrong: int
    example: ExampleContent
    n_tokens: int


@dataclass(kw_only=True)
class Learning:
    """One learning of a step's prompt: at most `n_examples` examples, tried in `n_folds` folds.

    `people` and `notes` have people's labels and notes by run, sample and item. `learned` is the prompt with examples
    of all folds, None until it is asked for and without candidates.
    """

    plan: ComparisonPlan
    step: str
    n_examples: int
    n_folds: int
    seed: int
    people: Mapping[tuple[str, str, str], str]
    notes: Mapping[tuple[str, str, str], str]
    chosen: list[Candidate] = field(default_factory=list)
    learned: Prompt | None = None

    async def ask(self, session: Session) -> list[Side]:
        """Ask with the old prompt, then about each fold with the old prompt and examples of the other folds."""
        old = self.plan.old.prompts[self.step]
        works = {
            run_id: await ask_with(session, self.plan, run_id, self.plan.old.prompts, texts)
            for run_id, texts in self.plan.texts.items()
        }
        first = session.usage
        candidates = [
            candidate
            for run_id, of_run in works.items()
            for work in of_run
            if (candidate := self._make_candidate(run_id, work)) is not None
        ]
        questions = sorted({of_sample.sample.question for texts in self.plan.texts.values() for of_sample in texts})
        random.Random(self.seed).shuffle(questions)
        fold_of = {question: place % self.n_folds for place, question in enumerate(questions)}
        verdicts: dict[str, list[Any]] = {run_id: [] for run_id in self.plan.texts}
        for fold in range(self.n_folds):
            others = [candidate for candidate in candidates if fold_of[candidate.question] != fold]
            prompt = add_examples(old, self._choose(others))
            for run_id, texts in self.plan.texts.items():
                held_out: Sequence[JudgedTexts] = [
                    of_sample for of_sample in texts if fold_of[of_sample.sample.question] == fold
                ]
                judged = await ask_with(session, self.plan, run_id, {self.step: prompt}, held_out)
                verdicts[run_id] += list_verdicts(judged)
        self.chosen = self._choose(candidates)
        self.learned = add_examples(old, self.chosen) if self.chosen else None
        by_run = {run_id: list_verdicts(of_run) for run_id, of_run in works.items()}
        return [(by_run, first), (verdicts, session.usage - first)]

    def _choose(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Choose the samples with the most wrong verdicts, shorter ones first, one of each question."""
        ordered = sorted(candidates, key=lambda one: (-one.n_wrong, one.n_tokens, one.sample_id))
        return list({one.question: one for one in reversed(ordered)}.values())[::-1][: self.n_examples]

    def _make_candidate(self, run_id: str, work: SampleWork) -> Candidate | None:
        """Return a sample as an example with people's labels; None if the judge is right, or it cannot be one.

        Only reviewed verdicts are in it, except in `classify`, which judges both lists as a whole: there the judge's
        own verdicts stand beside them. That a context supports a statement is known from the judge alone, since people
        label support without naming contexts.
        """
        sample = work.sample
        if sample.conversation_json is not None:
            return None
        rows: dict[str, dict[str, Any]] = {}
        for step, item_id, label, row in walk_verdicts(work):
            if step == self.step:
                rows[item_id] = {"reason": row["reason"], "label": label}
                if step == "attribute":
                    for name, ranks in (("contexts", row["context_ranks"]), ("together", row["joint_ranks"])):
                        rows[item_id][name] = [f"C{rank}" for rank in ranks or ()]
        n_wrong = 0
        for item_id, verdict in rows.items():
            key = (run_id, sample.sample_id, item_id)
            label = self.people.get(key, verdict["label"])
            if label == verdict["label"]:
                continue
            if label == "supported":
                return None  # by which context is not known
            n_wrong += 1
            language = self.plan.settings.language
            reason = self.notes.get(key) or _REASONS["zh" if language == "zh" else "en"][label]
            verdict |= {"reason": reason, "label": label}
            if self.step == "attribute":
                verdict |= {"contexts": [], "together": []}
        if not n_wrong:
            return None
        reviewed = {item for run, sample_id, item in self.people if (run, sample_id) == (run_id, sample.sample_id)}
        kept = list(rows) if self.step == "classify" else [item for item in rows if item in reviewed]
        statements = {source: extraction.result().items for source, extraction in work.extractions.items()}
        data = plain_data(
            {
                "question": sample.question,
                "ground_truth": join_accepted(work),
                "contexts": [item for item in work.context_items if self.step != "rank" or item.id in kept],
                **{
                    f"{source}_statements": [item for item in items if item.id in kept]
                    for source, items in statements.items()
                },
            }
        )
        prompt = self.plan.old.prompts[self.step]
        if self.step == "attribute":
            for item_id in kept:
                del rows[item_id]["label"]
        verdicts = [{"id": item_id, **rows[item_id]} for item_id in kept]
        lists = prompt.reply_schema["properties"]
        reply: dict[str, Any] = {"verdicts": verdicts}
        if "verdicts" not in lists:
            prefixes = {"answer_statements": "A", "ground_truth_statements": "G"}
            reply = {name: [one for one in verdicts if one["id"][0] == prefixes[name]] for name in lists}
        shown = {"data": {name: data[name] for name in prompt.variables}, "reply": reply}
        example = ExampleContent.model_validate(shown)
        n_tokens = estimate_tokens(example.model_dump_json())
        if n_tokens > _MAX_TOKENS:
            return None
        return Candidate(
            sample_id=sample.sample_id, question=sample.question, n_wrong=n_wrong, example=example, n_tokens=n_tokens
        )


def add_examples(prompt: Prompt, chosen: Sequence[Candidate]) -> Prompt:
    """Return a prompt with these examples behind its own, as the next version."""
    if not chosen:
        return prompt
    parsed = yaml.safe_load(prompt.template)
    parsed["examples"] = [*parsed["examples"], *(one.example.model_dump() for one in chosen)]
    parsed["version"] += 1
    text = yaml.dump(parsed, Dumper=_Dumper, allow_unicode=True, sort_keys=False, width=110)
    return build_prompt(text, parsed, PromptContent.model_validate(parsed))


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as blocks, and every text so that it is read as it was."""


def _write_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    # YAML would take a NEL of a text for the end of a line, but not within quotes.
    style = '"' if "\x85" in text else "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _write_text)


@dataclass(frozen=True, kw_only=True)
class LearnReport:
    """The result of a learning; `path` is the prompt that was written, None where it was not adopted."""

    compared: ComparisonReport
    learning: Learning
    path: Path | None

    @property
    def verdict(self) -> str:
        """Say whether the examples help, in one sentence."""
        if self.compared.comparison is None:
            return "Nothing was asked."
        if not self.learning.chosen:
            return "Nothing is learned: no reviewed verdict contradicts the judge in a sample that can be an example."
        ids = ", ".join(candidate.sample_id for candidate in self.learning.chosen)
        if self.path is None:
            return f"Not adopted: with examples the judge agrees with people no better beyond chance (tried: {ids})."
        return f"Wrote {self.path} with the examples {ids}; `evalhouse run --prompts {self.path.parent}` asks with it."

    def to_plain(self) -> dict[str, Any]:
        """Return the report as in JSON."""
        plain, learned = self.compared.to_plain(), self.learning.learned
        plain["new"]["prompts"] = {}
        if learned is not None:
            words = {"version": learned.version, "prompt_hash": learned.prompt_hash}
            plain["new"]["prompts"] = {self.learning.step: words}
        return plain | {
            "examples": [candidate.sample_id for candidate in self.learning.chosen],
            "adopted": self.path is not None,
            "path": str(self.path) if self.path else None,
            "verdict": self.verdict,
        }


def learn_examples(
    *, step: str, reviewed: str, url: str, flags: Mapping[str, Any], output: Path, n_examples: int, n_folds: int,
    prompts: str | None, seed: int, dry_run: bool,
) -> LearnReport:  # fmt: skip
    """Learn examples for a step's prompt, and write it where they help.

    Raises SettingsError for too few reviews, and where a run with own prompts leaves open which get the examples.
    """
    if output.exists() and not output.is_dir():
        raise SettingsError(f"{output} is not a folder; name the folder to write {step}.yaml into with -o")
    warehouse = Warehouse(url)
    runs, settings = find_reviewed_runs(warehouse, reviewed, flags)
    newest = max(runs, key=lambda run: run.started_at)
    if prompts is None and (folder := newest.config.get("prompts")):
        raise SettingsError(
            f"run {newest.run_id} was judged with the prompts in {folder}: add the examples to these with --prompts "
            f"{folder}, or to the built-in ones with --prompts {BUILT_IN}"
        )
    old = find_prompt_set(warehouse, prompts or BUILT_IN, settings.language)
    new = PromptSet(source=f"{old.source} with examples", prompts=old.prompts)
    plan = plan_comparison(warehouse, runs, settings, old, new, only=step)
    n_questions = len({of_sample.sample.question for texts in plan.texts.values() for of_sample in texts})
    if n_questions < MIN_QUESTIONS:
        raise SettingsError(
            f"verdicts of {step} are reviewed for {n_questions} questions; learning takes at least {MIN_QUESTIONS}, "
            f"and some dozens to show anything: `evalhouse review export latest --steps {step}` picks more"
        )
    # Of several reviewers the majority counts; a verdict on which they tie is not used.
    labels: dict[tuple[str, str, str], Counter[str]] = {}
    columns = ["run_id", "sample_id", pl.coalesce("statement_id", pl.format("C{}", "context_rank")), "label"]
    for run_id, sample_id, item_id, label in plan.reviewed.select(columns).iter_rows():
        labels.setdefault((run_id, sample_id, item_id), Counter())[label] += 1
    people = {
        key: counts.most_common(1)[0][0]
        for key, counts in labels.items()
        if len(counts) == 1 or counts.most_common(2)[0][1] > counts.most_common(2)[1][1]
    }
    notes = {
        (row["run_id"], row["sample_id"], row["statement_id"] or f"C{row['context_rank']}"): row["note"]
        for row in warehouse.fetch_rows("reviews/notes", {"run_id": list(plan.texts)}, step=step)
    }
    learning = Learning(
        plan=plan, step=step, n_examples=n_examples, n_folds=min(n_folds, n_questions), seed=seed, people=people,
        notes=notes,
    )  # fmt: skip
    compared = report_comparison(plan, learning.ask, seed=seed, dry_run=dry_run)
    path = None
    change = compared.comparison.changes[0] if compared.comparison and compared.comparison.changes else None
    if change is not None and change.verdict == "better" and learning.learned is not None:
        output.mkdir(parents=True, exist_ok=True)
        path = output / f"{step}.yaml"
        before, after = change.accuracy_old.value or 0.0, change.accuracy_new.value or 0.0
        head = (
            f"# Examples learned by `evalhouse prompts learn` from reviewed verdicts of {', '.join(plan.texts)}: on\n"
            f"# held-out questions {settings.judge} agreed with people in {before:.1%} of verdicts without and "
            f"{after:.1%} with\n# such examples.\n"
        )
        path.write_text(head + learning.learned.template, encoding="utf-8")
        load_prompts(settings.language, output)  # refuses what `prompts check` would
    return LearnReport(compared=compared, learning=learning, path=path)
