"""What all commands on test sets share: their run and its settings, resuming it, writing a version of a set."""

import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

import orjson

from evalhouse.flows.errors import SettingsError
from evalhouse.flows.preparing.live_run import make_prompts
from evalhouse.flows.preparing.request import NO_JUDGE, begin_run
from evalhouse.flows.preparing.settings import check_resumable, resolve_settings
from evalhouse.flows.results.output import print_line, write_dollars
from evalhouse.flows.trials.session import Session
from evalhouse.tasks.asking.usage import Usage
from evalhouse.tasks.judge.names import LEXICAL
from evalhouse.tasks.models.make import make_judges
from evalhouse.tasks.pipeline.live_run import LiveRun
from evalhouse.tasks.settings.run import RunSettings
from evalhouse.tasks.testsets.answering import STEPS
from evalhouse.tasks.testsets.errors import TestsetError
from evalhouse.tasks.testsets.filters import Check
from evalhouse.tasks.testsets.findings import SetCheck
from evalhouse.tasks.testsets.passages import Passage
from evalhouse.tasks.testsets.sets import Change, TestSet, read_set, write_set
from evalhouse.warehouse.metric_files import Plan
from evalhouse.warehouse.rows.calls import sum_cost
from evalhouse.warehouse.rows.runs import RunRow, insert_run, now_utc, update_run
from evalhouse.warehouse.rows.testsets import append_testset_rows, list_written
from evalhouse.warehouse.store import Warehouse

PLAN: Final = Plan(metrics=(), steps=STEPS | {"similarity"})
USED: Final = ("requests", "reused", "failed", "prompt_tokens", "cached_tokens", "completion_tokens", "cost_usd")
"""What is said of the calls of a run of kind testset."""
EXPECTED: Final = tuple(name for name in USED if name != "failed")
"""What is said of calls that would be made."""


def check_output(path: Path) -> None:
    """Refuse, with SettingsError, a file that no set can be written to."""
    if path.suffix != ".jsonl":
        raise SettingsError(f"-o {path}: a set is a file of JSON Lines; give a name that ends in .jsonl")


def resolve_in_language(flags: Mapping[str, Any], language: str | None, spoken: Iterable[str]) -> RunSettings:
    """The settings, with prompts in the language that was named, else in that of most texts."""
    return resolve_settings({**flags, "language": language or Counter(spoken).most_common(1)[0][0]}).settings


class Spoken:
    """Live runs by the language of their prompts: what is asked about a text is asked in its language.

    Small models answer in the language that they are asked in, whatever language their instructions ask for.
    """

    def __init__(self, own: LiveRun, others: Mapping[str, LiveRun]) -> None:
        self.own, self._others = own, others

    def about(self, language: str) -> LiveRun:
        """The one for texts in a language."""
        return self._others.get(language, self.own)


async def speak(session: Session, prompts: Sequence[str], spoken: Iterable[str], *, named: str | None) -> Spoken:
    """The session's live run with these prompts, and one for each further language that is spoken; none where the
    language of the prompts was `named`, or the judge reads no prompts."""
    own = await session.fit(session.live_run, prompts)
    further = set() if named or own.settings.judge == LEXICAL else set(spoken) - {own.settings.language}
    others = {}
    for language in sorted(further):
        settings = own.settings.model_copy(update={"language": language})
        read = make_prompts(settings, make_judges(settings, PLAN))
        others[language] = await session.fit(replace(own, settings=settings, prompts=read), prompts)
    return Spoken(own, others)


def begin_set_run(settings: RunSettings, *, n_samples: int, source: str, command: str) -> RunRow:
    """The row of a run of kind testset over the documents of `source` that begins now; `command` is what a person types
    to go on with it."""
    run = begin_run("testset", settings, n_samples=n_samples)
    return replace(run, dataset=source, config={**run.config, "testset": {"command": command}})


def record_quiet_run(settings: RunSettings, run: RunRow) -> str:
    """Put a run on record in which nobody has to be asked, so that neither a key nor a price need be there; returns its
    id."""
    warehouse = Warehouse(settings.warehouse)
    warehouse.make_ready()
    insert_run(warehouse, replace(run, judge=NO_JUDGE, status="completed", finished_at=now_utc()))
    return run.run_id


def describe_expected(judge: str, usage: Usage) -> str:
    """What asking would take."""
    return (
        f"about {usage.requests:,} requests to {judge}, {usage.reused:,} replies on record; about "
        f"{usage.prompt_tokens:,} + {usage.completion_tokens:,} tokens, cost {write_dollars(usage.cost_usd)}"
    )


def print_calls(usage: Usage) -> None:
    """What asking took, under an empty line."""
    print_line()
    print_line(
        f"{usage.requests:,} requests, {usage.reused:,} reused from the record, {usage.failed:,} failed; "
        f"{usage.prompt_tokens:,} + {usage.completion_tokens:,} tokens, cost {write_dollars(usage.cost_usd)}"
    )


def hash_passages(passages: Iterable[Passage]) -> dict[str, str]:
    """The hash of each passage by its id."""
    return {passage.passage_id: passage.passage_hash for passage in passages}


def write_version(
    warehouse: Warehouse, run_id: str, path: Path, test_set: TestSet, changes: Sequence[Change]
) -> TestSet:
    """Write a set as a new version and put it on record; returns it with its version."""
    made_at = now_utc()
    versioned = test_set.add_version(run_id=run_id, made_at=made_at.isoformat(timespec="seconds"), changes=changes)
    versions = versioned.manifest.versions
    is_new = len(versions) > len(test_set.manifest.versions)
    row = {
        "set_hash": versioned.set_hash,
        "parent_hash": versions[-1].parent,
        "run_id": run_id,
        "path": str(path.resolve()),
        "source": versioned.manifest.source,
        "n_questions": len(versioned.questions),
        "n_passages": len(versioned.manifest.passages),
        "made_at": made_at,
    }
    noted = [
        {
            "set_hash": versioned.set_hash,
            "run_id": run_id,
            "question_id": change.id,
            "change": change.change,
            "detail": change.detail,
            "before": dump_json(change.before),
            "after": dump_json(change.after),
            "call_id": change.call_id,
        }
        for change in (*changes, *versioned.manifest.proposals)
    ]
    questions: list[dict[str, Any]] = (
        [
            {
                "set_hash": versioned.set_hash,
                "question_id": question.id,
                "question_hash": question.question_hash,
                "kind": question.kind,
                "language": question.language,
                "question": question.question,
                "ground_truth": question.ground_truth,
                "conversation": dump_json([asdict(turn) for turn in question.conversation]),
                "spans": dump_json([asdict(span) for span in question.spans]),
                "reference_ids": list(question.reference_context_ids),
            }
            for question in versioned.questions
        ]
        if is_new
        else []
    )
    tables = {"testset_versions": [row], "testset_questions": questions, "testset_changes": noted}
    append_testset_rows(warehouse, run_id, "version", tables)
    write_set(path, versioned)
    return versioned


def list_check_rows(run_id: str, checks: Mapping[str, Sequence[Check | SetCheck]]) -> list[dict[str, Any]]:
    """What candidates, or questions of a set, were put to, by their ids, as rows of the warehouse."""
    return [
        {
            "run_id": run_id,
            "candidate_id": candidate_id,
            "ordinal": ordinal,
            "name": check.name,
            "passed": check.passed,
            "detail": check.detail,
            "call_id": check.call_id,
        }
        for candidate_id, of_one in checks.items()
        for ordinal, check in enumerate(of_one, start=1)
    ]


def dump_json(value: Sequence[Any] | Mapping[str, Any]) -> str | None:
    """A list or a mapping as JSON; None for an empty one."""
    return orjson.dumps(value).decode() if value else None


_FILES: Final = ("path", "docs")
# Asking anew what was asked a moment ago would pay for it twice.
_LEFT_OUT: Final = ("fresh", "warehouse")


def find_command(run: RunRow) -> list[str]:
    """The words of the command that made a run; raises SettingsError where it has none."""
    command = (run.config.get("testset") or {}).get("command")
    if not command:
        raise SettingsError(f"run {run.run_id} has no command on record; give it again: what was answered is on record")
    return shlex.split(command)


def find_kept(
    warehouse: Warehouse, run: RunRow, params: Mapping[str, Any], changes: Mapping[str, Any]
) -> dict[str, Any]:
    """The parameters of a run's command that are as its settings have them, but for `changes`.

    Raises SettingsError where there is nothing to go on with, where a file that it needs is gone, and where nothing is
    left of its budget.
    """
    check_resumable(run, changes, params.keys())
    for name in _FILES:
        _check_file(run, params.get(name))
    settings = {name: run.config.get(name) for name in params if name in RunSettings.model_fields}
    kept = {name: value for name, value in settings.items() if value is not None and name not in _LEFT_OUT}
    kept |= {name: value for name, value in changes.items() if name in params} | {"fresh": None}
    if kept.get("budget_usd") is not None:
        # What is left of a budget that is for a run and all that goes on with it
        budget_usd = float(kept["budget_usd"])
        spent_usd = sum_cost(warehouse, run.run_id)
        if spent_usd >= budget_usd:
            raise SettingsError(
                f"run {run.run_id} has spent {spent_usd:.4g} dollars and its budget is {budget_usd:g}, so nothing was "
                f"asked; go on with a higher one: evalhouse resume {run.run_id} --budget USD"
            )
        kept["budget_usd"] = budget_usd - spent_usd
    if "force" in params and _has_written(warehouse, run, Path(params["output"])):
        kept["force"] = True
    return kept


def _check_file(run: RunRow, name: str | None) -> None:
    if name is None:
        return
    if not any(Path(place).expanduser().exists() for place in (name, name.rpartition("#")[0] or name)):
        raise SettingsError(
            f"run {run.run_id} cannot be gone on with: {name}, which its command names, is not there (seen from "
            f"{Path.cwd()}); bring it back, or call this from the folder in which the run was started"
        )


def _has_written(warehouse: Warehouse, run: RunRow, path: Path) -> bool:
    """Whether the set that lies there is what the run wrote as far as it came, and so may be replaced."""
    try:
        return read_set(path).set_hash in list_written(warehouse, run.run_id)
    except TestsetError:
        return False


def note_gone_on(warehouse: Warehouse, run: RunRow) -> None:
    """Put an end on record to a run that was killed before it could write one."""
    if run.status == "running":
        problem = "its process ended before it did; another run went on with it"
        update_run(warehouse, run.run_id, status="cancelled", finished_at=now_utc(), problem=problem)
