"""From a name after `--judge` or `--embeddings` to the thing itself."""

import re

from evalhouse.tasks.judge.errors import FatalJudgeError
from evalhouse.tasks.judge.protocol import Judge
from evalhouse.tasks.settings.run import RunSettings

_FACTORY = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_ALLOWED = (
    "allowed: lexical, openai:MODEL (any OpenAI-compatible endpoint), or module:factory (any LangChain chat model)"
)
_EMBEDDINGS_ALLOWED = "allowed: hashing, openai:MODEL, or module:factory (any LangChain embeddings)"


def check_judge_name(name: str) -> None:
    """Refuse a name that cannot be a judge, before anything is read or asked."""
    if name != "lexical" and not _is_model_name(name):
        raise FatalJudgeError(f"{name!r} names no judge; {_ALLOWED}")


def check_embeddings_name(name: str) -> None:
    """Refuse a name that cannot be embeddings."""
    if name != "hashing" and not _is_model_name(name):
        raise FatalJudgeError(f"{name!r} names no embeddings; {_EMBEDDINGS_ALLOWED}")


def make_judge(settings: RunSettings) -> Judge:
    """The judge of the settings; raises FatalJudgeError when it cannot be made."""
    check_judge_name(settings.judge)
    if settings.judge == "lexical":
        from evalhouse.tasks.lexical.judge import LexicalJudge  # noqa: PLC0415  # each judge imports only what it needs

        return LexicalJudge()
    from evalhouse.tasks.models.chat import make_factory_judge, make_openai_judge  # noqa: PLC0415  # LangChain takes over a second

    kind, _, model = settings.judge.partition(":")
    if kind == "openai":
        return make_openai_judge(settings.judge, model, settings)
    return make_factory_judge(settings.judge, settings)


async def check_reachable(settings: RunSettings) -> str:
    """Ask whether the judge could be asked, at no cost; raises JudgeError that says why not."""
    if settings.judge == "lexical":
        return "built in: no model, no network, no key"
    kind, _, model = settings.judge.partition(":")
    if kind != "openai":
        await make_judge(settings).close()
        return "its factory returns a chat model; whether that can be reached is not asked"
    from evalhouse.tasks.models.chat import list_models  # noqa: PLC0415

    models = await list_models(settings)
    if model not in models:
        raise FatalJudgeError(f"the endpoint does not list {model!r}; it has: {', '.join(sorted(models)[:10])} …")
    return f"the endpoint lists it, with {len(models) - 1} others"


def _is_model_name(name: str) -> bool:
    kind, separator, rest = name.partition(":")
    if kind == "openai":
        return bool(separator and rest.strip())
    return bool(_FACTORY.fullmatch(name))
