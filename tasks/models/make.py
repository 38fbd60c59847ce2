"""The judges and embeddings that the names after `--judge` and `--embeddings` mean.

Each kind of judge is imported only for a judge of that kind.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from importlib.util import find_spec
from itertools import chain
from pathlib import Path

from evalhouse.tasks.judge.protocol import (
    DEFAULT,
    FORM_JOIN,
    LEXICAL,
    LOCAL,
    FatalJudgeError,
    Judge,
    find_judge,
    list_judges,
    list_jurors,
)
from evalhouse.tasks.settings.run import RunSettings
from evalhouse.warehouse.messages import name_setting
from evalhouse.warehouse.metric_files import Plan
from evalhouse.warehouse.steps import JUDGED_TASKS, PLANS, add_earlier, arrange_steps, list_tasks

_FACTORY = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_EMBEDDINGS_ALLOWED = "allowed: hashing, openai:MODEL, or module:factory (any LangChain embeddings)"


@dataclass(frozen=True, kw_only=True)
class Judges:
    """The judges of a run: `default` answers for every step that has none in `of_tasks`, by task.

    `juries` has the judges of steps that several vote in, by task; the first of them is in `of_tasks` too. `wrapped`
    are the original judges, if these were changed.
    """

    default: Judge
    of_tasks: Mapping[str, Judge] = field(default_factory=dict)
    juries: Mapping[str, Sequence[Judge]] = field(default_factory=dict)
    wrapped: Sequence[Judge] = ()

    def find(self, task: str) -> Judge:
        """Return the judge of a step."""
        return self.of_tasks.get(task, self.default)

    @property
    def all(self) -> list[Judge]:
        """Each judge once, the default first."""
        jurors = (judge for jury in self.juries.values() for judge in jury)
        return list({id(judge): judge for judge in (self.default, *self.of_tasks.values(), *jurors)}.values())

    @property
    def made(self) -> Sequence[Judge]:
        """The original judges."""
        return self.wrapped or self.all

    @property
    def have_servers(self) -> bool:
        """True if any of them is asked at an address."""
        return any(judge.endpoint for judge in self.made)

    def change(self, wrap: Callable[[Judge], Judge]) -> "Judges":
        """Return the same with each judge wrapped, once for all its steps."""
        wrapped = {id(judge): wrap(judge) for judge in self.all}
        return Judges(
            default=wrapped[id(self.default)],
            of_tasks={task: wrapped[id(judge)] for task, judge in self.of_tasks.items()},
            juries={task: [wrapped[id(judge)] for judge in jury] for task, jury in self.juries.items()},
            wrapped=self.made,
        )


def check_judge_name(name: str) -> None:
    """Refuse a name that cannot be a judge, before anything is read or asked; raises FatalJudgeError."""
    if name == LEXICAL:
        return
    from evalhouse.tasks.asking.pairs import find_form  # noqa: PLC0415  # the lexical judge needs none

    form, inner = find_form(name), name.partition(FORM_JOIN)[2]
    if form is not None:
        # Only chat models can be asked in a form, and in some forms only `openai:` models.
        check_judge_name(inner)
        kind = inner.partition(":")[0]
        if kind in (LEXICAL, LOCAL) or FORM_JOIN in kind:
            raise FatalJudgeError(
                f"{name!r} puts the form of a chat model before {inner!r}; name a chat model behind it"
            )
        if form.body and kind != "openai":
            raise FatalJudgeError(
                f"the form {form.name!r} takes an openai:MODEL, whose server reads {', '.join(form.body)}"
            )
        return
    kind, _, model = name.partition(":")
    if kind == LOCAL:
        from evalhouse.tasks.models.local import parse_classifier  # noqa: PLC0415

        parse_classifier(name)
        return
    from evalhouse.tasks.models.providers import load_providers, load_table  # noqa: PLC0415

    kinds = ["lexical", "openai", LOCAL, *load_providers()]
    # A module of that name, in the working directory too, is not a misspelled kind.
    is_module = kind.isidentifier() and (
        find_spec(kind) is not None or Path(f"{kind}.py").exists() or Path(kind).is_dir()
    )
    close = [] if kind in kinds or is_module else get_close_matches(kind, kinds, n=1, cutoff=0.75)
    if close or not _is_model_name(name):
        meant = f"did you mean {close[0]}{f':{model}' if model else ''}? " if close else ""
        raise FatalJudgeError(
            f"unknown judge {name!r}; {meant}allowed: lexical, openai:MODEL (any OpenAI-compatible endpoint), "
            f"{', '.join(f'{prefix}:MODEL' for prefix in load_table()['providers'])}, "
            "local:MODEL (a classifier in this process), or module:factory (any LangChain chat model)"
        )


def check_embeddings_name(name: str) -> None:
    """Refuse a name that cannot be embeddings; raises FatalJudgeError."""
    if name != "hashing" and not _is_model_name(name):
        raise FatalJudgeError(f"unknown embeddings {name!r}; {_EMBEDDINGS_ALLOWED}")


def make_judges(settings: RunSettings, plan: Plan) -> Judges:
    """Return the judges that the plan's steps ask, or all judges for a plan without steps; others need no key.

    Raises FatalJudgeError when one cannot be made, or cannot answer a step it is named for.
    """
    for name in list_judges(settings.judge):
        check_judge_name(name)
    taken = arrange_steps(plan.steps, settings.plan)
    tasks = [task for task in list_tasks(plan.steps) if task in JUDGED_TASKS] if plan.steps else JUDGED_TASKS
    tasks = [*tasks, *(name for name in taken if name in PLANS)]
    named = {task: find_judge(settings.judge, task) for task in tasks}
    for name in taken.intersection(PLANS):
        joined = list_tasks(plan.steps.intersection(PLANS[name].joins))
        names = list(dict.fromkeys(named[task] for task in joined))
        if len(names) > 1:
            raise FatalJudgeError(
                f"plan {name!r} asks {', '.join(joined)} in one request, which goes to one judge, and they have "
                f"{', '.join(names)}; name one judge for all of them, or leave the plan out"
            )
    default = find_judge(settings.judge, DEFAULT)
    if named and default not in named.values():
        default = list_jurors(next(iter(named.values())))[0]
    jurors = {task: list_jurors(name) for task, name in named.items()}
    made = {name: make_judge(name_judge(settings, name)) for name in {default, *chain(*jurors.values())}}
    judges = Judges(
        default=made[default],
        of_tasks={task: made[names[0]] for task, names in jurors.items() if names[0] != default},
        juries={task: [made[name] for name in names] for task, names in jurors.items() if len(names) > 1},
    )
    for name in taken.intersection(PLANS):
        if not all(_is_able(judge, name) for judge in judges.juries.get(name, [judges.find(name)])):
            raise FatalJudgeError(f"the judge {named[name]!r} takes one step at a time; leave plan {name!r} out")
    for judge in judges.all if plan.steps else ():
        asked = [task for task in tasks if judge in judges.juries.get(task, [judges.find(task)])]
        unable = [task for task in asked if not _is_able(judge, task)]
        if not unable:
            continue
        resting = [metric.name for metric in plan.metrics if set(list_tasks(add_earlier(metric.needs))) & set(unable)]
        for_what = f" ({', '.join(resting)})" if resting else ""
        of_steps = ",".join(f"{task}=openai:MODEL" for task in unable)
        raise FatalJudgeError(
            f"the judge {judge.name!r} cannot take the step{'s' if len(unable) > 1 else ''} {', '.join(unable)}"
            f"{for_what}, only {', '.join(name for name in JUDGED_TASKS if _is_able(judge, name))}; name another "
            f"judge, for all steps or with {name_setting('judge', of_steps)}, or leave "
            "these metrics out"
        )
    return judges


def _is_able(judge: Judge, task: str) -> bool:
    return judge.tasks is None or task in judge.tasks


def name_judge(settings: RunSettings, name: str) -> RunSettings:
    """Return the settings with one judge alone."""
    return settings.model_copy(update={"judge": name})


def make_judge(settings: RunSettings) -> Judge:
    """Return the one judge of the settings; raises FatalJudgeError when it cannot be made."""
    if settings.judge == LEXICAL:
        from evalhouse.tasks.lexical.judge import LexicalJudge  # noqa: PLC0415

        return LexicalJudge()
    from evalhouse.tasks.asking.pairs import FormJudge, find_form  # noqa: PLC0415  # the lexical judge needs none

    check_judge_name(settings.judge)
    form = find_form(settings.judge)
    if form is not None:
        return FormJudge(settings.judge, form, make_judge(name_judge(settings, settings.judge.partition(FORM_JOIN)[2])))
    if settings.judge.startswith(f"{LOCAL}:"):
        from evalhouse.tasks.models.local import LocalJudge, PairModel, parse_classifier  # noqa: PLC0415

        classifier = parse_classifier(settings.judge)
        return LocalJudge(settings.judge, classifier, PairModel(classifier))
    from evalhouse.tasks.models.providers import find_provider  # noqa: PLC0415

    kind, _, model = settings.judge.partition(":")
    if kind == "openai":
        from evalhouse.tasks.models.chat import make_openai_judge  # noqa: PLC0415

        return make_openai_judge(settings.judge, model, settings)
    from evalhouse.tasks.models.provider_judges import make_factory_judge, make_provider_judge  # noqa: PLC0415

    if provider := find_provider(settings.judge):
        return make_provider_judge(settings.judge, provider, model, settings)
    return make_factory_judge(settings.judge, settings)


async def check_reachable(settings: RunSettings) -> str:
    """Return how far the judge can be reached, at no cost; raises JudgeError that states why not."""
    if settings.judge == LEXICAL:
        return "built in: no model, no network, no key"
    from evalhouse.tasks.asking.pairs import find_form  # noqa: PLC0415  # the lexical judge needs none

    if find_form(settings.judge) is not None:
        return await check_reachable(name_judge(settings, settings.judge.partition(FORM_JOIN)[2]))
    if settings.judge.startswith(f"{LOCAL}:"):
        from evalhouse.tasks.models.local import check_golden_pairs  # noqa: PLC0415

        return check_golden_pairs(settings.judge)
    from evalhouse.tasks.models.providers import find_provider  # noqa: PLC0415

    kind, _, model = settings.judge.partition(":")
    if provider := find_provider(settings.judge):
        await make_judge(settings).close()
        return f"the package and the settings of {provider.name} are there; the model was not asked"
    if kind != "openai":
        await make_judge(settings).close()
        return "its factory returns a chat model; the model was not asked"
    from evalhouse.tasks.models.openai_batches import list_models  # noqa: PLC0415

    models = await list_models(settings)
    if model not in models:
        raise FatalJudgeError(f"the endpoint does not list {model!r}; it has: {', '.join(sorted(models)[:10])} …")
    return f"the endpoint lists it, with {len(models) - 1} others"


def _is_model_name(name: str) -> bool:
    from evalhouse.tasks.models.providers import load_providers  # noqa: PLC0415

    kind, separator, rest = name.partition(":")
    if kind == "openai" or kind in load_providers():
        return bool(separator and rest.strip())
    return bool(_FACTORY.fullmatch(name))
