"""`testset check`: the findings on the questions of a set, by themselves and against the documents.

Checks without a judge come first; then each question is compared with similar ones and with the documents. The requests
depend on the set, the documents and the settings alone: the same command again asks nothing twice.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from evalhouse.flows.errors import GATE_FAILED, INCOMPLETE
from evalhouse.flows.results.output import (
    make_table,
    print_json,
    print_line,
    print_notice,
    print_section,
    print_table,
    write_count,
)
from evalhouse.flows.run.outcome import show_run
from evalhouse.flows.testsets.versions import (
    EXPECTED,
    PLAN,
    USED,
    begin_set_run,
    describe_expected,
    list_check_rows,
    open_languages,
    print_calls,
    resolve_in_language,
)
from evalhouse.flows.trials.session import Session, estimate_usage, open_session
from evalhouse.tasks.asking.usage import Usage
from evalhouse.tasks.asking.verdicts import gather_all
from evalhouse.tasks.judge.protocol import LEXICAL, BudgetExhausted, JudgeFailed, RunCancelled
from evalhouse.tasks.settings.run import RunSettings
from evalhouse.tasks.testsets.checks import (
    FINDINGS,
    MEANINGS,
    SEVERITIES,
    CheckedQuestion,
    KnowledgeBase,
    check_alone,
    check_in_documents,
    check_twin,
)
from evalhouse.tasks.testsets.documents import load_documents
from evalhouse.tasks.testsets.near import QuestionIndex
from evalhouse.tasks.testsets.questions import KINDS, GivenQuestion, load_given
from evalhouse.warehouse.messages import list_names, shorten


@dataclass(frozen=True, kw_only=True)
class CheckPlan:
    """A set that can be checked, and the documents that it is about; None without any.

    `command` is the command that asks for the same again, `language` the language of the prompts if it was named.
    """

    settings: RunSettings
    path: str
    content_hash: str
    questions: Sequence[GivenQuestion]
    source: str | None
    base: KnowledgeBase | None
    command: str
    language: str | None
    notices: tuple[str, ...]

    def print_estimate(self, *, as_json: bool) -> None:
        """Print the cost of checking it at most; nothing is asked."""
        usage, text = self._estimate()
        if as_json:
            print_json({"n_questions": len(self.questions), **usage.pick(*EXPECTED)})
            return
        print_line(f"{text}. Nothing was asked.")

    def _estimate(self) -> tuple[Usage, str]:
        usage = estimate_usage(self.settings, PLAN, partial(check_questions, plan=self))
        against = f" against {write_count(len(self.base.documents), 'document')}" if self.base else ""
        expected = describe_expected(self.settings.judge, usage)
        return usage, f"{write_count(len(self.questions), 'question')}{against}: {expected}"

    def check(self) -> "CheckedSet":
        """Check the set; raises FatalJudgeError when the judge cannot be asked."""
        settings = self.settings
        if settings.judge != LEXICAL:
            print_notice(self._estimate()[1])
        run = begin_set_run(settings, n_samples=len(self.questions), source=self.path, command=self.command)
        run = replace(run, dataset_hash=self.content_hash)
        with show_run() as watch, open_session(settings, PLAN, run=run) as session:
            checked, problem = session.carry_out(partial(check_questions, plan=self), watch)
            if isinstance(stopped_by := session.live_run.asker.stop_sign.error, RunCancelled):
                raise stopped_by  # though the last replies came while it stopped
            session.has_failures = any(one.failure is not None for one in checked)
            usage = session.usage
            rows = list_check_rows(run.run_id, {one.question.id: one.checks for one in checked})
            session.live_run.warehouse.append_rows(f"{run.run_id}/testset/check", run.run_id, {"testset_checks": rows})
        problem = session.problem or problem
        return CheckedSet(plan=self, run_id=run.run_id, checked=checked, usage=usage, problem=problem)


async def check_questions(session: Session, plan: CheckPlan) -> tuple[list[CheckedQuestion], str | None]:
    """Return all questions with their checks, and the problem that ended the requests early.

    A question may be left without a usable reply, and then has a `failure`.
    """
    languages = (question.language for question in plan.questions)
    runs = await open_languages(session, ("answer_question",), languages, named=plan.language)
    base = plan.base
    checked = [
        CheckedQuestion(question=question, documents=base.find_documents(question) if base is not None else set())
        for question in plan.questions
    ]
    for one in checked:
        check_alone(one, base)
    session.expect(len(checked), "questions")
    index = QuestionIndex(plan.questions)
    by_id = {question.id: question for question in plan.questions}
    problem: str | None = None

    async def finish(place: int, one: CheckedQuestion) -> None:
        nonlocal problem
        live_run = runs[one.question.language]
        assert live_run.embedder is not None
        try:
            async for twin in index.list_twins(one.question, live_run.embedder, before=place):
                if await check_twin(live_run, one, by_id[twin.id], twin):
                    break
            else:
                one.note("duplicate", True, "no earlier question asks the same")
            if base is not None:
                await check_in_documents(live_run, one, base)
        except JudgeFailed as error:
            one.failure = str(error)
            if isinstance(error, BudgetExhausted):
                problem = str(error)
        session.note_done()

    await gather_all([finish(place, one) for place, one in enumerate(checked)])
    return checked, problem


STAND_IN: Final = (
    "The lexical judge compares words: a statement that it calls unsupported may be supported in other words. For "
    "reliable findings name a model: --judge openai:MODEL."
)
_SHOWN: Final = 40
"""Findings that are printed in full; the others are in the JSON and the page."""
_SHORT: Final = 160


@dataclass(frozen=True, kw_only=True)
class CheckedSet:
    """A set that was checked; `problem` is what ended the requests early."""

    plan: CheckPlan
    run_id: str
    checked: Sequence[CheckedQuestion]
    usage: Usage
    problem: str | None

    @property
    def findings(self) -> list[dict[str, Any]]:
        """All findings, the most severe kind first, in the order of the set within a kind."""
        findings = [
            {
                "id": one.question.id,
                "finding": check.name,
                "severity": SEVERITIES[check.name],
                "detail": check.detail,
                "others": list(check.others),
                "question": one.question.question,
                "ground_truth": one.question.ground_truth,
                "call_id": check.call_id,
            }
            for one in self.checked
            for check in one.findings
        ]
        return sorted(findings, key=lambda finding: FINDINGS.index(finding["finding"]))

    @property
    def counts(self) -> list[dict[str, Any]]:
        """The number of questions with each finding."""
        counts = Counter(finding.name for one in self.checked for finding in one.findings)
        return [
            {"finding": name, "severity": SEVERITIES[name], "meaning": MEANINGS[name], "n": counts[name]}
            for name in FINDINGS
            if counts[name]
        ]

    @property
    def coverage(self) -> dict[str, Any]:
        """The number of questions of each kind, in each language, and about each document where there are any."""
        kinds = Counter(one.question.kind for one in self.checked)
        documents: dict[str, int] | None = None
        if self.plan.base is not None:
            about = Counter(name for one in self.checked for name in one.documents)
            documents = dict.fromkeys(self.plan.base.documents, 0) | about
        return {
            "kinds": {kind: kinds[kind] for kind in KINDS},
            "kinds_are_guessed": not all(one.question.given_kind for one in self.checked),
            "languages": dict(Counter(one.question.language for one in self.checked)),
            "documents": documents,
            "documents_without_a_question": documents and [name for name, n in documents.items() if not n],
        }

    @property
    def failed(self) -> list[dict[str, Any]]:
        """The questions that could not be checked to the end."""
        return [{"id": one.question.id, "why": one.failure} for one in self.checked if one.failure]

    @property
    def status(self) -> int:
        """The command's exit status."""
        if self.failed or self.problem:
            return INCOMPLETE
        return GATE_FAILED if self.counts else 0

    def to_plain(self) -> dict[str, Any]:
        """Return the findings as JSON."""
        return {
            "run_id": self.run_id,
            "set": self.plan.path,
            "documents": self.plan.source,
            "n_questions": len(self.plan.questions),
            "n_with_findings": sum(bool(one.findings) for one in self.checked),
            "counts": self.counts,
            "findings": self.findings,
            "coverage": self.coverage,
            "failed": self.failed,
            "problem": self.problem,
            "calls": self.usage.pick(*USED),
        }

    def print(self) -> None:
        """Print the findings for a person."""
        plan, findings, coverage = self.plan, self.findings, self.coverage
        n_with = sum(bool(one.findings) for one in self.checked)
        against = f" against {write_count(len(plan.base.documents), 'document')}" if plan.base else ""
        print_line(
            f"{plan.path}: {write_count(len(plan.questions), 'question')}{against}, judged by "
            f"{plan.settings.judge}; " + (f"something was found of {n_with:,}" if n_with else "nothing was found"),
            bold=True,
        )
        rows = []
        for count in self.counts:
            ids = [finding["id"] for finding in findings if finding["finding"] == count["finding"]]
            rows.append([count["severity"], count["finding"], count["n"], count["meaning"], list_names(ids, 3)])
        print_section("Findings", ["severity", "finding", "#questions", "what it means", "of"], rows)
        listed = []
        for finding in findings[:_SHOWN]:
            text = f"{shorten(finding['question'], _SHORT)} – {shorten(finding['detail'], 2 * _SHORT)}"
            listed.append([finding["id"], finding["finding"], text])
        print_section("What was found", ["question", "finding", "detail"], listed)
        if len(findings) > _SHOWN:
            print_line(f"and {len(findings) - _SHOWN:,} more: --json or --html FILE has them all")
        print_line()
        title = f"Kinds{' (by their words)' if coverage['kinds_are_guessed'] else ''}"
        print_table(make_table(["kind", "#questions"], list(coverage["kinds"].items()), title=title))
        documents, bare = coverage["documents"], coverage["documents_without_a_question"]
        if documents is not None:
            print_line()
            print_line(f"{len(documents) - len(bare):,} of {write_count(len(documents), 'document')} have a question")
            if bare:
                print_line(f"without one: {list_names(bare, 10)}")
        print_calls(self.usage)
        failed = self.failed
        if self.problem or failed:
            ids = [one["id"] for one in failed]
            print_notice(
                f"{write_count(len(failed), 'question')} could not be checked to the end ({list_names(ids, 5)}): "
                f"{self.problem or failed[0]['why']}; the same command resumes from here."
            )
        print_line(
            '      evalhouse query "select candidate_id, name, detail from testset_checks '
            f"where run_id = '{self.run_id}' and not passed\""
        )


def plan_check(
    path: str,
    docs: str | None,
    *,
    mapping: Mapping[str, str],
    language: str | None,
    encoding: str | None,
    command: str,
    flags: Mapping[str, Any],
) -> CheckPlan:
    """Read the set, the documents and the settings; raises SettingsError, DatasetError or TestsetError."""
    notices: list[str] = []
    questions, content_hash = load_given(path, mapping=mapping, encoding=encoding)
    documents = load_documents(docs, encoding=encoding, note=notices.append) if docs is not None else None
    base = KnowledgeBase(documents) if documents is not None else None
    settings = resolve_in_language(flags, language, (question.language for question in questions))
    if settings.judge == LEXICAL and documents is not None:
        notices.append(STAND_IN)
    return CheckPlan(
        settings=settings,
        path=path,
        content_hash=content_hash,
        questions=questions if base is None else base.use_own_ids(questions),
        source=docs,
        base=base,
        command=command,
        language=language,
        notices=tuple(notices),
    )
