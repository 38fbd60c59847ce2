"""What all commands on test sets share: their run and its settings, resuming it, writing a version of a set."""

import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
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
from evalhouse.tasks.reviews.labels import LabelFile, ReviewError
from evalhouse.tasks.settings.run import RunSettings
from evalhouse.tasks.testsets.candidates import Check
from evalhouse.tasks.testsets.checks import STEPS, SetCheck
from evalhouse.tasks.testsets.decisions import (
    OnRecord,
    Said,
    Taken,
    is_decision,
    list_sets,
    read_decisions,
    take_decisions,
)
from evalhouse.tasks.testsets.errors import TestsetError, refuse
from evalhouse.tasks.testsets.passages import Passage
from evalhouse.tasks.testsets.questions import (
    Change,
    GivenQuestion,
    TestSet,
    find_manifest,
    read_given,
    read_set,
    take_given,
    write_set,
)
from evalhouse.warehouse.messages import list_names
from evalhouse.warehouse.metric_files import Plan
from evalhouse.warehouse.rows.calls import sum_cost
from evalhouse.warehouse.rows.runs import RunRow, insert_run, now_utc, update_run
from evalhouse.warehouse.rows.testsets import append_testset_rows, find_versions, list_written, read_questions
from evalhouse.warehouse.rows.testsets import read_decisions as read_record
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


@dataclass(frozen=True, kw_only=True)
class DecidedSet:
    """A set after an import: `taken` has what was decided; `run_id` is None when nothing of it was new."""

    path: Path
    taken: Taken
    run_id: str | None
    set_hash: str

    @property
    def counts(self) -> Counter[str]:
        """New decisions by their change."""
        return Counter(change.change for change in self.taken.changes)


@dataclass(frozen=True, kw_only=True)
class ImportedDecisions:
    """How an import went: `n_undecided` lines said nothing."""

    sets: tuple[DecidedSet, ...]
    n_undecided: int


def holds_decisions(files: Sequence[LabelFile]) -> bool:
    """Whether the files are about questions of sets; ReviewError where some are and others about verdicts."""
    about = {is_decision(line) for file in files for line in file.lines}
    if len(about) > 1:
        raise ReviewError("some lines are about questions of a set and others about verdicts; import them apart")
    return about == {True}


def import_decisions(
    warehouse: Warehouse, files: Sequence[LabelFile], reviewer: str | None, set_path: Path | None
) -> ImportedDecisions:
    """Take decisions in; `set_path` is where the set is, where not where the lines say.

    Raises ReviewError with every problem, and TestsetError for a set that cannot be read: nothing is written then.
    """
    now = now_utc()
    names = list_sets(files)
    if set_path is not None and len(names) > 1:
        raise ReviewError(f"--set names one set, and the lines are about {', '.join(names)}; import them apart")
    decisions = read_decisions(files, reviewer, now)
    paths = {name: set_path or Path(name) for name in names}
    missing = [str(path) for path in paths.values() if not path.is_file()]
    if missing:
        raise ReviewError(f"the set {', '.join(missing)} is not there; say where it is with --set FILE")
    taken = {path: _take(warehouse, path, decisions, name) for name, path in paths.items()}
    n_undecided = sum(not line.get("label") for file in files for line in file.lines)
    sets = tuple(_write(warehouse, path, of_set) for path, of_set in taken.items())
    return ImportedDecisions(sets=sets, n_undecided=n_undecided)


def _take(warehouse: Warehouse, path: Path, decisions: Sequence[Said], name: str) -> Taken:
    test_set = read_set(path)
    warehouse.make_ready()
    hashes = [version.hash for version in test_set.manifest.versions]
    record = [
        OnRecord(
            question_id=row["question_id"],
            change=row["change"],
            before=orjson.loads(row["before"] or "{}"),
            after=orjson.loads(row["after"]),
        )
        for row in read_record(warehouse, hashes)
    ]
    return take_decisions(test_set, [said for said in decisions if said.set_name == name], record)


def _write(warehouse: Warehouse, path: Path, taken: Taken) -> DecidedSet:
    """The new version; the import is a run of its own, in which nobody was asked."""
    if not taken.changes:
        return DecidedSet(path=path, taken=taken, run_id=None, set_hash=taken.test_set.set_hash)
    settings = resolve_settings({"warehouse": warehouse.location.url}).settings
    run = replace(
        begin_run("testset", settings, n_samples=len(taken.changes)),
        judge=NO_JUDGE,
        status="completed",
        finished_at=now_utc(),
    )
    insert_run(warehouse, run)
    written = write_version(warehouse, run.run_id, path, taken.test_set, taken.changes)
    return DecidedSet(path=path, taken=taken, run_id=run.run_id, set_hash=written.set_hash)


_ALLOWED: Final = "a file of questions, or the hash (or how it begins) of a version on record"


@dataclass(frozen=True, kw_only=True)
class SetVersion:
    """The questions of a version; `set_hash` is None for a file that evalhouse did not write."""

    name: str
    set_hash: str | None
    questions: list[GivenQuestion]


def read_version(warehouse: Warehouse, name: str, mapping: Mapping[str, str]) -> SetVersion:
    """The version that is meant; raises TestsetError, or DatasetError for a file that cannot be read."""
    path = Path(name).expanduser()
    if path.is_file():
        questions, _ = read_given(name, mapping=mapping)
        is_own = find_manifest(path).is_file()
        return SetVersion(name=name, set_hash=read_set(path).set_hash if is_own else None, questions=questions)
    versions = find_versions(warehouse, name) if warehouse.location.path.exists() else []
    if len(versions) != 1:
        came = f"{name}: no such file, and {_count(versions)} on record in {warehouse.location.path.name}"
        raise refuse(came, allowed=_ALLOWED, to_do='`evalhouse query "from testset_versions"` lists them')
    rows = read_questions(warehouse, versions[0])
    return SetVersion(name=versions[0], set_hash=versions[0], questions=[_to_given(row) for row in rows])


def _count(versions: list[str]) -> str:
    return f"several versions ({list_names(versions, 5)})" if versions else "no version of that hash"


def _to_given(row: Mapping[str, Any]) -> GivenQuestion:
    beside = {name: orjson.loads(row[name] or "[]") for name in ("spans", "conversation")}
    return take_given(
        sample_id=row["question_id"],
        question=row["question"],
        ground_truth=row["ground_truth"],
        reference_context_ids=row["reference_ids"],
        beside={**beside, "kind": row["kind"]},
    )
