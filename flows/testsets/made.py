"""What `testset make` is given and what it says: documents and settings, the set and what was turned down."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
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
from evalhouse.flows.testsets.asking import (
    EXPECTED,
    USED,
    check_output,
    describe_expected,
    print_calls,
    resolve_in_language,
)
from evalhouse.flows.testsets.make import MakeOutcome, MakeRequest, estimate_set, make_set
from evalhouse.flows.testsets.written import hash_passages, write_version
from evalhouse.tasks.asking.tokens import Usage
from evalhouse.tasks.judge.names import LEXICAL
from evalhouse.tasks.testsets.documents import read_documents
from evalhouse.tasks.testsets.drafts import SHARES, parse_shares, share_out
from evalhouse.tasks.testsets.files import name_kind
from evalhouse.tasks.testsets.sets import Change, Manifest, TestSet, find_manifest
from evalhouse.warehouse.store import Warehouse

STAND_IN = (
    "The lexical judge writes cloze-like questions and compares words: a stand-in that shows how everything works and "
    "costs nothing. Questions to rely on need a model: --judge openai:MODEL."
)


@dataclass(frozen=True, kw_only=True)
class MadeSet:
    """A set as it was written, and how its candidates ended."""

    path: Path
    request: MakeRequest
    outcome: MakeOutcome
    test_set: TestSet

    @property
    def status(self) -> int:
        """The command's exit status; there may be fewer questions than were asked for."""
        return 0 if len(self.outcome.making.kept) >= self.request.n else INCOMPLETE

    def to_plain(self) -> dict[str, Any]:
        """As JSON has it."""
        making = self.outcome.making
        return {
            "run_id": self.outcome.run_id,
            "path": str(self.path),
            "manifest": str(find_manifest(self.path)),
            "set_hash": self.test_set.set_hash,
            "n_asked": self.request.n,
            "n_questions": len(making.kept),
            "kinds": dict(making.by_kind),
            "languages": dict(Counter(question.language for question in making.kept)),
            "n_candidates": making.n_candidates,
            "outcomes": dict(making.outcomes),
            "turned_down": dict(making.reasons),
            "n_failed": making.n_failed,
            "problem": self.outcome.problem,
            "calls": self.outcome.usage.pick(*USED),
        }

    def print(self) -> None:
        """As a person reads it."""
        making = self.outcome.making
        kept, wanted = making.by_kind, share_out(self.request.n, self.request.shares)
        documents = {span.document_id for question in making.kept for span in question.spans}
        print_line(
            f"{self.path}: {write_count(len(making.kept), 'question')} of {self.request.n:,} asked for, from "
            f"{len(documents):,} of {write_count(len(self.request.documents), 'document')}, made by "
            f"{self.request.settings.judge}",
            bold=True,
        )
        print_line()
        rows = [[kind, kept[kind], n] for kind, n in wanted.items() if n]
        print_table(make_table(["kind", "#questions", "#asked for"], rows))
        turned_down = [[reason, n] for reason, n in making.reasons.most_common()]
        print_section("Turned down, by the check they did not stand", ["check", "#candidates"], turned_down)
        print_calls(self.outcome.usage)
        if self.status == INCOMPLETE:
            print_notice(self._explain_shortage())
        run_id = self.outcome.run_id
        print_line(f"next: evalhouse run {self.path} …   (or as the dataset of a suite that asks your bot)")
        print_line(
            '      evalhouse query "select reason, detail, question from testset_candidates '
            f"where run_id = '{run_id}' and outcome = 'rejected'\""
        )

    def _explain_shortage(self) -> str:
        making = self.outcome.making
        if self.outcome.problem is not None:
            again = f"evalhouse resume {self.outcome.run_id}"
            return f"Stopped before all were made: {self.outcome.problem}; {again} goes on from here."
        missing = {kind: n - making.by_kind[kind] for kind, n in share_out(self.request.n, self.request.shares).items()}
        kinds = ", ".join(f"{n} {kind}" for kind, n in missing.items() if n > 0)
        failed = f", {making.n_failed} without a usable reply" if making.n_failed else ""
        return (
            f"Fewer than asked for ({kinds} missing): the documents gave no more that stand all checks after "
            f"{making.n_candidates:,} candidates{failed}. More documents, other --kinds or a stronger judge help."
        )


@dataclass(frozen=True, kw_only=True)
class SetPlan:
    """A set that can be made: everything that can be refused has been looked at."""

    path: Path
    request: MakeRequest
    notices: tuple[str, ...]

    def print_estimate(self, *, as_json: bool) -> None:
        """What making it would take when every candidate stands; nothing is asked."""
        usage = estimate_set(self.request)
        if as_json:
            print_json({"n_asked": self.request.n, **usage.pick(*EXPECTED)})
            return
        print_line(f"{self._describe(usage)}. Nothing was asked.")

    def _describe(self, usage: Usage) -> str:
        n_passages = len(self.request.passages)
        return (
            f"{write_count(self.request.n, 'question')} from {write_count(n_passages, 'passage')} of "
            f"{write_count(len(self.request.documents), 'document')}: "
            f"{describe_expected(self.request.settings.judge, usage)}, and up to four times as much where most "
            "candidates are turned down"
        )

    def make(self) -> MadeSet:
        """Make it and write it; raises FatalJudgeError when the judge cannot be asked."""
        if self.request.settings.judge != LEXICAL:
            print_notice(self._describe(estimate_set(self.request)))
        with show_run() as watch:
            outcome = make_set(self.request, watch)
        manifest = Manifest(
            source=self.request.source,
            passages=hash_passages(self.request.passages),
            asked={
                "n": self.request.n,
                "n_passages": len(self.request.passages),
                "kinds": dict(self.request.shares),
                "seed": self.request.seed,
                "references": "documents" if self.request.by_document else "passages",
            },
            judge=self.request.settings.judge,
        )
        questions = tuple(outcome.making.kept)
        new = [Change(id=question.id, change="new") for question in questions]
        warehouse = Warehouse(self.request.settings.warehouse)
        test_set = write_version(
            warehouse, outcome.run_id, self.path, TestSet(questions=questions, manifest=manifest), new
        )
        return MadeSet(path=self.path, request=self.request, outcome=outcome, test_set=test_set)


def plan_set(
    docs: str,
    path: Path,
    *,
    n: int,
    kinds: str | None,
    language: str | None,
    references: str | None,
    encoding: str | None,
    seed: int,
    force: bool,
    command: str,
    flags: Mapping[str, Any],
) -> SetPlan:
    """Read the documents and the settings; raises SettingsError or TestsetError for what cannot be used."""
    check_output(path)
    if path.exists() and not force:
        raise SettingsError(
            f"{path} is there already; --force replaces it, `evalhouse testset refresh` renews a set after an update"
        )
    shares = parse_shares(kinds) if kinds else dict(SHARES)
    notices: list[str] = []
    documents = read_documents(docs, encoding=encoding, note=notices.append)
    spoken = (passage.language for document in documents for passage in document.passages)
    settings = resolve_in_language(flags, language, spoken)
    if settings.judge == LEXICAL:
        notices.append(STAND_IN)
    is_folder = Path(docs).expanduser().is_dir() or name_kind(Path(docs)) is not None
    request = MakeRequest(
        settings=settings,
        documents=documents,
        n=n,
        shares=shares,
        seed=seed,
        by_document=(references or ("documents" if is_folder else "passages")) == "documents",
        source=docs,
        command=command,
        language=language,
    )
    return SetPlan(path=path, request=request, notices=tuple(notices))
