"""Parts that all commands on test sets share: their run, resuming it, and the versions of a set.

A version is written by `testset make` and `testset refresh`, by `review import` from decisions of people, and found by
its file or hash for `testset diff`.
"""

import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import orjson

from evalhouse.flows.errors import SettingsError
from evalhouse.flows.preparing.live_run import make_prompts
from evalhouse.flows.preparing.request import NO_JUDGE, begin_run, check_resumable, resolve_settings
from evalhouse.flows.results.output import print_line, write_dollars
from evalhouse.flows.trials.session import Session
from evalhouse.tasks.asking.usage import Usage
from evalhouse.tasks.judge.protocol import LEXICAL
from evalhouse.tasks.models.make import make_judges
from evalhouse.tasks.pipeline.live_run import LiveRun
from evalhouse.tasks.reviews.labels import LabelFile, ReviewError
from evalhouse.tasks.settings.run import RunSettings
from evalhouse.tasks.testsets import TestsetError, refuse
from evalhouse.tasks.testsets.checks import STEPS, Check
from evalhouse.tasks.testsets.decisions import AppliedDecisions, apply_decisions, parse_decisions
from evalhouse.tasks.testsets.questions import (
    Change,
    GivenQuestion,
    TestSet,
    find_manifest,
    load_given,
    load_set,
    make_given,
    write_set,
)
from evalhouse.warehouse.messages import list_names
from evalhouse.warehouse.metric_files import Plan
from evalhouse.warehouse.mover import take_in_orphans
from evalhouse.warehouse.rows.calls import sum_cost
from evalhouse.warehouse.rows.runs import RunRow, insert_run, now_utc, update_run
from evalhouse.warehouse.store import Warehouse

PLAN: Final = Plan(metrics=(), steps=STEPS | {"similarity"})
USED: Final = ("requests", "reused", "failed", "prompt_tokens", "cached_tokens", "completion_tokens", "cost_usd")
"""The reported figures on the calls of a run of kind testset."""
EXPECTED: Final = tuple(name for name in USED if name != "failed")
"""The same of an estimate."""


def check_output(path: Path) -> None:
    """Refuse, with SettingsError, a file that no set can be written to."""
    if path.suffix != ".jsonl":
        raise SettingsError(f"-o {path}: a set is a file of JSON Lines; give a name that ends in .jsonl")


def resolve_in_language(flags: Mapping[str, Any], language: str | None, spoken: Iterable[str]) -> RunSettings:
    """Return the settings, with prompts in the given language, else in the language of most texts."""
    return resolve_settings({**flags, "language": language or Counter(spoken).most_common(1)[0][0]}).settings


async def open_languages(
    session: Session, prompts: Sequence[str], spoken: Iterable[str], *, named: str | None
) -> dict[str, LiveRun]:
    """Return a live run with these prompts for each language of the texts, which are asked about in their language.

    Small models answer in the language of the request, even if their instructions ask for another. There is one live
    run for all if the language of the prompts was `named`, or the judge reads no prompts.
    """
    main = await session.fit(session.live_run, prompts)
    runs = dict.fromkeys(spoken, main)
    for language in sorted(runs.keys() - {main.settings.language}):
        if not named and main.settings.judge != LEXICAL:
            settings = main.settings.model_copy(update={"language": language})
            loaded = make_prompts(settings, make_judges(settings, PLAN))
            runs[language] = await session.fit(replace(main, settings=settings, prompts=loaded), prompts)
    return runs


def begin_set_run(settings: RunSettings, *, n_samples: int, source: str, command: str) -> RunRow:
    """Return the row of a run of kind testset on `source` that begins now; `command` is what resumes it."""
    run = begin_run("testset", settings, n_samples=n_samples)
    return replace(run, dataset=source, config={**run.config, "testset": {"command": command}})


def describe_expected(judge: str, usage: Usage) -> str:
    """Return an estimate in words."""
    return (
        f"about {usage.requests:,} requests to {judge}, {usage.reused:,} replies on record; about "
        f"{usage.prompt_tokens:,} + {usage.completion_tokens:,} tokens, cost {write_dollars(usage.cost_usd)}"
    )


def print_calls(usage: Usage) -> None:
    """Print the usage under an empty line."""
    print_line()
    print_line(
        f"{usage.requests:,} requests, {usage.reused:,} reused from the record, {usage.failed:,} failed; "
        f"{usage.prompt_tokens:,} + {usage.completion_tokens:,} tokens, cost {write_dollars(usage.cost_usd)}"
    )


def write_version(
    warehouse: Warehouse,
    run_id: str,
    path: Path,
    test_set: TestSet,
    changes: Sequence[Change],
    *,
    source: Path | None = None,
) -> TestSet:
    """Write a set as a new version to its files and the warehouse, with the columns that people added to the `source`
    or to the file itself; returns it with its version."""
    made_at = now_utc()
    versioned = test_set.add_version(run_id=run_id, made_at=made_at.isoformat(timespec="seconds"), changes=changes)
    versions = versioned.manifest.versions
    version = {
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
    questions: list[dict[str, Any]] = []
    if len(versions) > len(test_set.manifest.versions):
        questions = [
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
    tables = {"testset_versions": [version], "testset_questions": questions, "testset_changes": noted}
    warehouse.append_rows(f"{run_id}/testset/version", run_id, tables)
    write_set(path, versioned, source=source)
    return versioned


def list_check_rows(run_id: str, checks: Mapping[str, Sequence[Check]]) -> list[dict[str, Any]]:
    """Return the checks of candidates, or of questions of a set, by their ids as rows of the warehouse."""
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
        for candidate_id, of_candidate in checks.items()
        for ordinal, check in enumerate(of_candidate, start=1)
    ]


def dump_json(value: Sequence[Any] | Mapping[str, Any]) -> str | None:
    """Return a list or a mapping as JSON; None for an empty one."""
    return orjson.dumps(value).decode() if value else None


_FILES: Final = ("path", "docs")
# With `fresh`, a resumed run would pay a second time for replies of the run it resumes.
_LEFT_OUT: Final = ("fresh", "warehouse")


def find_command(run: RunRow) -> list[str]:
    """Return the words of the command that made a run; raises SettingsError if it has none."""
    command = (run.config.get("testset") or {}).get("command")
    if not command:
        raise SettingsError(f"run {run.run_id} has no command on record; give it again; stored replies are reused")
    return shlex.split(command)


def find_kept(
    warehouse: Warehouse, run: RunRow, params: Mapping[str, Any], changes: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the parameters of a run's command that come from its settings and from `changes`.

    Raises SettingsError if there is nothing to resume, a file that it needs is gone, or its budget is spent.
    """
    check_resumable(run, changes, params.keys())
    for name in (params.get(name) for name in _FILES):
        places = () if name is None else (name, name.rpartition("#")[0] or name)
        if places and not any(Path(place).expanduser().exists() for place in places):
            raise SettingsError(
                f"run {run.run_id} cannot be resumed: {name}, which its command names, does not exist (seen from "
                f"{Path.cwd()}); bring it back, or call this from the folder in which the run was started"
            )
    settings = {name: run.config.get(name) for name in params if name in RunSettings.model_fields}
    kept = {name: value for name, value in settings.items() if value is not None and name not in _LEFT_OUT}
    kept |= {name: value for name, value in changes.items() if name in params} | {"fresh": None}
    if kept.get("budget_usd") is not None:
        # A budget is for a run and all runs that resume it.
        budget_usd = float(kept["budget_usd"])
        take_in_orphans(warehouse)  # the replies of a process that was killed
        spent_usd = sum_cost(warehouse, run.run_id)
        if spent_usd >= budget_usd:
            raise SettingsError(
                f"run {run.run_id} has spent {spent_usd:.4g} dollars and its budget is {budget_usd:g}, so nothing was "
                f"asked; resume with a higher one: evalhouse resume {run.run_id} --budget USD"
            )
        kept["budget_usd"] = budget_usd - spent_usd
    if "force" in params:
        try:  # a set that the run itself has written may be replaced
            if (
                load_set(Path(params["output"])).set_hash
                in warehouse.fetch("testsets/versions_written", run_id=run.run_id)["set_hash"].to_list()
            ):
                kept["force"] = True
        except TestsetError:
            pass
    return kept


def note_resumed(warehouse: Warehouse, run: RunRow) -> None:
    """Write the end of a run that was killed before it could do so itself."""
    if run.status == "running":
        problem = "its process ended before it did; another run resumed it"
        update_run(warehouse, run.run_id, status="cancelled", finished_at=now_utc(), problem=problem)


def holds_decisions(files: Sequence[LabelFile]) -> bool:
    """Return whether the files are about questions of sets; raises ReviewError if only some of them are."""
    about = {bool(line.get("question_id") and line.get("set")) for file in files for line in file.lines}
    if len(about) > 1:
        raise ReviewError("some lines are about questions of a set and others about verdicts; import them apart")
    return about == {True}


def import_decisions(
    warehouse: Warehouse, files: Sequence[LabelFile], reviewer: str | None, set_path: Path | None
) -> list[AppliedDecisions]:
    """Import decisions of people, and return the sets; `set_path` is a set's place if it is not the one in the lines.

    The import is recorded as a run without requests. Raises ReviewError with every problem, and TestsetError for a set
    that cannot be read: nothing is written then.
    """
    now = now_utc()
    names = list(dict.fromkeys(name for file in files for line in file.lines if (name := line.get("set"))))
    if set_path is not None and len(names) > 1:
        raise ReviewError(f"--set names one set, and the lines are about {', '.join(names)}; import them apart")
    decisions = parse_decisions(files, reviewer, now)
    paths = {name: set_path or Path(name) for name in names}
    missing = [str(path) for path in paths.values() if not path.is_file()]
    if missing:
        raise ReviewError(f"the set {', '.join(missing)} is not there; name its place with --set FILE")
    applied: list[AppliedDecisions] = []
    for path in dict.fromkeys(paths.values()):  # two names may be of one file
        test_set = load_set(path)
        warehouse.make_ready()
        stored = [
            Change(
                id=row["question_id"],
                change=row["change"],
                before=orjson.loads(row["before"] or "{}"),
                after=orjson.loads(row["after"]),
            )
            for row in warehouse.fetch_rows(
                "testsets/decisions", set_hashes=[version.hash for version in test_set.manifest.versions]
            )
        ]
        own = [decision for decision in decisions if paths[decision.set_name] == path]
        applied.append(apply_decisions(path, test_set, own, stored))
    for taken in applied:
        if taken.changes:
            settings = resolve_settings({"warehouse": warehouse.location.url}).settings
            run = begin_run("testset", settings, n_samples=len(taken.changes))
            insert_run(warehouse, replace(run, judge=NO_JUDGE, status="completed", finished_at=now_utc()))
            taken.run_id = run.run_id
            taken.test_set = write_version(warehouse, run.run_id, taken.path, taken.test_set, taken.changes)
    return applied


@dataclass(frozen=True, kw_only=True)
class SetVersion:
    """The questions of a version; `set_hash` is None for a file that evalhouse did not write."""

    name: str
    set_hash: str | None
    questions: list[GivenQuestion]


def find_version(warehouse: Warehouse, name: str, mapping: Mapping[str, str]) -> SetVersion:
    """Return the version of this file or hash; raises TestsetError, or DatasetError for a file that cannot be read."""
    path = Path(name).expanduser()
    if path.is_file():
        questions, _ = load_given(name, mapping=mapping)
        is_own = find_manifest(path).is_file()
        return SetVersion(name=name, set_hash=load_set(path).set_hash if is_own else None, questions=questions)
    versions = (
        list(warehouse.fetch("testsets/versions_named", prefix=name)["set_hash"])
        if warehouse.location.path.exists()
        else []
    )
    if len(versions) != 1:
        found = f"several versions ({list_names(versions, 5)})" if versions else "no version of that hash"
        raise refuse(
            f"{name}: no such file, and {found} on record in {warehouse.location.path.name}",
            allowed="a file of questions, or the hash (or how it begins) of a version on record",
            to_do='`evalhouse query "from testset_versions"` lists them',
        )
    questions = []
    for row in warehouse.fetch_rows("testsets/questions", set_hash=versions[0]):
        columns = {column: orjson.loads(row[column] or "[]") for column in ("spans", "conversation")}
        question = make_given(
            sample_id=row["question_id"],
            question=row["question"],
            ground_truth=row["ground_truth"],
            reference_context_ids=row["reference_ids"],
            columns={**columns, "kind": row["kind"]},
        )
        questions.append(question)
    return SetVersion(name=versions[0], set_hash=versions[0], questions=questions)
