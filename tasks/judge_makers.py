"""From a name after `--judge` or `--embeddings` to the thing itself."""

import re

from tasks.judge import Judge
from tasks.judge_errors import FatalJudgeError
from tasks.run_settings import RunSettings

_FACTORY = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_ALLOWED = "allowed: lexical, openai:MODEL (any OpenAI-compatible endpoint), or module:factory (any LangChain chat model)"
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
        from tasks.lexical import LexicalJudge  # noqa: PLC0415  # each judge imports only what it needs

        return LexicalJudge()
    from tasks.chat_model import make_factory_judge, make_openai_judge  # noqa: PLC0415  # LangChain takes over a second

    kind, _, model = settings.judge.partition(":")
    if kind == "openai":
        return make_openai_judge(settings.judge, model, settings)
    return make_factory_judge(settings.judge, settings)


def _is_model_name(name: str) -> bool:
    kind, separator, rest = name.partition(":")
    if kind == "openai":
        return bool(separator and rest.strip())
    return bool(_FACTORY.fullmatch(name))
