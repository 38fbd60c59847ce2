"""What `testset refresh` is given and what it says: a set, documents and settings; what became of the questions."""

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from evalhouse.flows.display.output import (
    make_table,
    print_json,
    print_line,
    print_notice,
    print_section,
    print_table,
    write_count,
)
from evalhouse.flows.display.progress import show_run
from evalhouse.flows.errors import INCOMPLETE, SettingsError
from evalhouse.flows.preparing.settings import find_variable
from evalhouse.flows.testsets.asking import (
    USED,
    check_output,
    describe_expected,
    print_calls,
    resolve_in_language,
)
from evalhouse.flows.testsets.refresh import (
    RefreshOutcome,
    RefreshRequest,
    estimate_refresh,
    look_at_all,
    refresh_quietly,
    refresh_set,
)
from evalhouse.flows.testsets.written import write_version
from evalhouse.tasks.asking.tokens import Usage
from evalhouse.tasks.testsets.changes import PROPOSED
from evalhouse.tasks.testsets.documents import read_documents
from evalhouse.tasks.testsets.places import Base
from evalhouse.tasks.testsets.sets import Change, Manifest, TestSet, find_manifest, read_set, write_set
from evalhouse.warehouse.messages import list_names
from evalhouse.warehouse.store import Warehouse

_LISTED = 20
_WORDS = ("same", "repointed", "still_true", "changed", "contradicted", "answerable", "void", "new")


@dataclass(frozen=True, kw_only=True)
class RefreshedSet:
    """A set as it is after a refresh; the same as before where that was stopped."""

    path: Path
    request: RefreshRequest
    outcome: RefreshOutcome
    test_set: TestSet

    @property
    def status(self) -> int:
        """The command's exit status; some of what was to be asked may not have been answered."""
        return INCOMPLETE if self.outcome.problem or self.outcome.refreshing.has_failures else 0

    @property
    def counts(self) -> dict[str, int]:
        """How many questions became what; `same` are those of the set that nothing happened to."""
        refreshing = self.outcome.refreshing
        counts = Counter(change.change for change in refreshing.changes)
        counts |= {"same": len(self.request.looks) - counts.total(), "new": len(refreshing.new)}
        return {word: counts[word] for word in _WORDS}

    def to_plain(self) -> dict[str, Any]:
        """As JSON has it."""
        refreshing, versions = self.outcome.refreshing, self.test_set.manifest.versions
        return {
            "run_id": self.outcome.run_id,
            "path": str(self.path),
            "manifest": str(find_manifest(self.path)),
            "set_hash": self.test_set.set_hash,
            "parent_hash": self.request.test_set.set_hash,
            "n_versions": len(versions),
            "n_questions": len(self.test_set.questions),
            "n_asked_about": self.request.n_asked,
            "changes": self.counts,
            "proposals": [_show(change) for change in self.test_set.manifest.proposals],
            "void": [_show(change) for change in refreshing.changes if change.change == "void"],
            "dead_references": refreshing.dead,
            "n_new_wanted": refreshing.n_wanted,
            "n_failed": refreshing.n_failed + (refreshing.making.n_failed if refreshing.making else 0),
            "problem": self.outcome.problem,
            "calls": self.outcome.usage.pick(*USED),
        }

    def print(self) -> None:
        """As a person reads it."""
        if self.outcome.problem is not None:
            print_notice(
                f"Stopped: {self.outcome.problem}; {self.path} is as it was, and the same command goes on from here."
            )
            return
        before, after = self.request.test_set.set_hash, self.test_set.set_hash
        version = f"version {after}, made from {before}" if after != before else f"version {after} as before"
        print_line(f"{self.path}: {write_count(len(self.test_set.questions), 'question')}, {version}", bold=True)
        print_line()
        print_table(make_table(["became", "#questions"], [[word, n] for word, n in self.counts.items() if n]))
        self._print_changes()
        refreshing = self.outcome.refreshing
        print_calls(self.outcome.usage)
        if refreshing.n_failed:
            print_notice(
                f"{write_count(refreshing.n_failed, 'question')} without a usable reply stayed as they were; "
                "the same command asks about them again."
            )
        n_missing = refreshing.n_wanted - len(refreshing.new)
        if n_missing > 0:
            print_notice(
                f"{n_missing:,} fewer new ones than wanted: the new and changed passages gave no more that stand all "
                "checks. --coverage N after a later update asks for them again."
            )
        self._print_decisions()

    def _print_changes(self) -> None:
        changes = [change for change in self.outcome.refreshing.changes if change.change in (*PROPOSED, "void")]
        rows = [[change.change, change.id, change.before["question"], change.detail] for change in changes[:_LISTED]]
        print_section("Left the set, or to be decided on", ["became", "question", "text", "why"], rows)
        if len(changes) > _LISTED:
            print_line(f"and {len(changes) - _LISTED:,} more")
        dead = self.outcome.refreshing.dead
        if dead:
            print_line()
            print_line(f"No longer there, and taken out of the references: {list_names(list(dead), _LISTED)}")

    def _print_decisions(self) -> None:
        n_waiting = len(self.test_set.manifest.proposals)
        if n_waiting:
            print_notice(
                f"{write_count(n_waiting, 'proposal')} for a person: out of the set until decided on, and kept in "
                f"{find_manifest(self.path)}; `evalhouse review questions {self.path}` asks people, --accept takes all "
                "of them as they are."
            )
        proposed = [change for change in self.outcome.refreshing.changes if change.change in PROPOSED]
        n_taken = len(proposed) + len(self.request.pending)
        if self.request.accept and n_taken:
            print_notice(f"{write_count(n_taken, 'proposal')} taken as they are (--accept); nobody has looked at them.")
        if self.outcome.run_id is not None:
            print_line(
                'next: evalhouse query "select change, question_id, detail, before, after from testset_changes where '
                f"run_id = '{self.outcome.run_id}'\""
            )


def _show(change: Change) -> dict[str, Any]:
    return {
        "id": change.id,
        "change": change.change,
        "detail": change.detail,
        "before": dict(change.before),
        "after": dict(change.after),
    }


@dataclass(frozen=True, kw_only=True)
class RefreshPlan:
    """A set that can be refreshed: everything that can be refused has been looked at."""

    path: Path
    output: Path
    request: RefreshRequest
    notices: tuple[str, ...]

    def print_estimate(self, *, as_json: bool) -> None:
        """What refreshing would take; nothing is asked."""
        usage = estimate_refresh(self.request)
        quiet = refresh_quietly(self.request)
        repointed = sum(change.change == "repointed" for change in quiet.changes)
        if as_json:
            plain = {"n_questions": len(self.request.looks), "n_asked_about": self.request.n_asked}
            print_json(plain | {"repointed": repointed, "dead_references": quiet.dead, **usage.pick(*USED)})
            return
        print_line(f"{self._describe(usage, repointed)}. Nothing was asked.")

    def _describe(self, usage: Usage, repointed: int) -> str:
        base = self.request.base
        return (
            f"{len(base.changed):,} of {write_count(len(base.passages), 'passage')} are new or changed; of "
            f"{write_count(len(self.request.looks), 'question')} {repointed:,} are pointed to where their spans are "
            f"now and {self.request.n_asked:,} asked about: {describe_expected(self.request.settings.judge, usage)}"
        )

    def refresh(self) -> RefreshedSet:
        """Refresh it and write it; raises FatalJudgeError when the judge cannot be asked."""
        with show_run() as watch:
            outcome = refresh_set(self.request, watch)
        refreshing, before = outcome.refreshing, self.request.test_set
        if outcome.problem is not None:
            return RefreshedSet(path=self.output, request=self.request, outcome=outcome, test_set=before)
        manifest = self._renew_manifest(refreshing.known)
        after = TestSet(
            questions=(*refreshing.kept, *refreshing.new), manifest=replace(manifest, proposals=refreshing.proposals)
        )
        if outcome.run_id is not None and after.set_hash != before.set_hash:
            warehouse = Warehouse(self.request.settings.warehouse)
            after = write_version(warehouse, outcome.run_id, self.output, after, refreshing.settled_changes)
        elif after != before or self.output != self.path:
            write_set(self.output, after)
        return RefreshedSet(path=self.output, request=self.request, outcome=outcome, test_set=after)

    def _renew_manifest(self, known: Mapping[str, str]) -> Manifest:
        """As before, with what the set knows now and what it was asked to be this time."""
        manifest, n = self.request.test_set.manifest, self.request.coverage
        asked = dict(manifest.asked)
        if n is not None and n != _find_coverage(manifest, self.request.base):
            asked |= {"n": n, "n_passages": len(self.request.base.passages)}
        return replace(manifest, source=self.request.source, passages=known, asked=asked)


def plan_refresh(
    path: Path,
    docs: str,
    output: Path,
    *,
    coverage: int | None,
    no_new: bool,
    accept: bool,
    encoding: str | None,
    language: str | None,
    command: str,
    flags: Mapping[str, Any],
) -> RefreshPlan:
    """Read set, documents and settings; raises SettingsError or TestsetError for what cannot be used."""
    check_output(output)
    if coverage is not None and no_new:
        raise SettingsError("--coverage says how many questions the set is to have, --no-new that none are made")
    test_set = read_set(path)
    manifest = test_set.manifest
    notices: list[str] = []
    documents = read_documents(docs, encoding=encoding, note=notices.append)
    base = Base(documents, manifest.passages, by_document=manifest.asked.get("references") == "documents")
    # Who made the set keeps it, unless somebody else is named.
    judge = flags.get("judge") or (None if os.environ.get(find_variable("judge") or "") else manifest.judge)
    spoken = (passage.language for passage in base.passages)
    looks, pending = look_at_all(base, test_set)
    request = RefreshRequest(
        settings=resolve_in_language({**flags, "judge": judge}, language, spoken),
        test_set=test_set,
        base=base,
        coverage=None if no_new else coverage or _find_coverage(manifest, base),
        accept=accept,
        source=docs,
        command=command,
        language=language,
        looks=looks,
        pending=pending,
    )
    return RefreshPlan(path=path, output=output, request=request, notices=tuple(notices))


def _find_coverage(manifest: Manifest, base: Base) -> int:
    """As many questions a passage as the set was asked to have when it was made."""
    asked = manifest.asked
    a_passage: float = asked["n"] / max(1, asked.get("n_passages", len(manifest.passages)))
    return round(a_passage * len(base.passages))
