"""What the commands that ask about test sets have in common: settings, runs, languages and what they say of calls."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from evalhouse.flows.display.output import print_line, write_dollars
from evalhouse.flows.errors import SettingsError
from evalhouse.flows.preparing.live_run import make_prompts
from evalhouse.flows.preparing.request import NO_JUDGE, begin_run
from evalhouse.flows.preparing.settings import resolve_settings
from evalhouse.flows.trials.session import Session
from evalhouse.tasks.asking.tokens import Usage
from evalhouse.tasks.judge.names import LEXICAL
from evalhouse.tasks.models.make import make_judges
from evalhouse.tasks.pipeline.live_run import LiveRun
from evalhouse.tasks.settings.run import RunSettings
from evalhouse.tasks.testsets.answering import STEPS
from evalhouse.warehouse.metric_files import Plan
from evalhouse.warehouse.rows.runs import RunRow, insert_run, now_utc
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
