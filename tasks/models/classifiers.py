"""Which classifier `local:…` names, and how it is to be asked: what stands in classifiers.toml about it, with the
settings of the name laid over it: `local:factcg?threshold=0.6&device=cuda`, `local:FOLDER?support=0`.

Knows nothing of the libraries that run one, so that a name can be checked where they are not installed.
"""

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any, Final
from urllib.parse import parse_qsl

from evalhouse.tasks.judge.errors import FatalJudgeError


@dataclass(frozen=True, kw_only=True)
class Classifier:
    """A model and how it is asked. Windows, overlaps and `max_tokens` are counted in its own tokens.

    `form` is `pair`, or a text with {document}, {claim} and maybe {eos}. `support` is the number of the label that
    means "supported", for configs that do not name it, and for any where `says_support`. `device` and `backend` are the
    library's to choose where they are None, `max_tokens` the model's own.
    """

    model: str
    form: str
    window: int
    overlap: int
    threshold: float
    batch: int
    support: int | None = None
    says_support: bool = False
    max_tokens: int | None = None
    device: str | None = None
    backend: str | None = None


@dataclass(frozen=True, kw_only=True)
class GoldenPair:
    """A text with a claim that it supports and one that it does not; `far` behind more than a window of `filler`."""

    text: str
    supported: str
    unsupported: str
    far: bool = False


@cache
def _read_table() -> Mapping[str, Any]:
    return tomllib.loads(files("evalhouse.tasks.models").joinpath("classifiers.toml").read_text(encoding="utf-8"))


def list_known() -> tuple[str, ...]:
    """The classifiers that have a name of their own."""
    return tuple(_read_table()["models"])


def list_support_labels() -> frozenset[str]:
    """How configs name the label that means "supported", in small letters."""
    return frozenset(_read_table()["labels"]["support"])


def list_golden_pairs() -> tuple[GoldenPair, ...]:
    """What any classifier of support gets right."""
    return tuple(GoldenPair(**pair) for pair in _read_table()["golden"]["pairs"])


def read_filler() -> str:
    """What stands before golden pairs that are `far`."""
    return str(_read_table()["golden"]["filler"])


def parse_classifier(name: str) -> Classifier:
    """The classifier that a judge's name means; raises FatalJudgeError that says what is allowed."""
    model, _, query = name.partition(":")[2].partition("?")
    if not model.strip():
        raise FatalJudgeError(f"{name!r} names no model; allowed: {', '.join(list_known())}, a folder or a hub's id")
    row = _read_table()["defaults"] | _read_table()["models"].get(model, {"id": model})
    known = Classifier(model=row["id"], **{key: value for key, value in row.items() if key not in ("id", "source")})
    settings = _read_settings(name, query)
    return replace(known, **settings, says_support="support" in settings)


def _read_settings(name: str, query: str) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for key, text in parse_qsl(query, keep_blank_values=True):
        read = _SETTINGS.get(key)
        value = read(text) if read is not None else None
        if value is None:
            allowed = "; ".join(f"{known} {reads.__doc__}" for known, reads in _SETTINGS.items())
            raise FatalJudgeError(f"{name!r} has {key}={text!r}; allowed: {allowed}")
        settings[key] = value
    if query and not settings:
        raise FatalJudgeError(f"{name!r} has {query!r} behind its `?`; settings are written key=value, with & between")
    return settings


def _read_share(text: str) -> float | None:
    """between 0 and 1"""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 < value < 1 else None


def _read_count(text: str) -> int | None:
    """a whole number from 1"""
    return int(text) if text.isascii() and text.isdigit() and int(text) else None


def _read_number(text: str) -> int | None:
    """a whole number from 0"""
    return int(text) if text.isascii() and text.isdigit() else None


def _read_device(text: str) -> str | None:
    """cpu, cuda, cuda:1, mps, …"""
    return text or None


def _read_backend(text: str) -> str | None:
    """torch or onnx"""
    return text if text in ("torch", "onnx") else None


def _read_form(text: str) -> str | None:
    """pair, the name of a model above whose form it is, or a text with {document} and {claim}"""
    known: Mapping[str, Any] = _read_table()["models"]
    form = str(known[text]["form"]) if text in known else text
    return form if form == "pair" or ("{document}" in form and "{claim}" in form) else None


_SETTINGS: Final[Mapping[str, Callable[[str], Any]]] = {
    "threshold": _read_share,
    "support": _read_number,
    "window": _read_count,
    "overlap": _read_number,
    "max_tokens": _read_count,
    "batch": _read_count,
    "form": _read_form,
    "device": _read_device,
    "backend": _read_backend,
}
