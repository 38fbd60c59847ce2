"""How the local endpoint may be told to behave, what it counts, and the errors a provider answers.

Neighbour of `endpoint.py`, the server, and `endpoint_replies.py`, the contents. Nothing here does any I/O.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from endpoint_limits import Window
from endpoint_replies import FAULTS, Asked, Fault, compose_reply, count_tokens

TAIL_CAP = 100.0  # a heavy tail ends at this multiple of its least latency
MAX_INPUTS = 2048  # of one embeddings request, as at OpenAI
CLIENT_ERROR = "invalid_request_error"


@dataclass(frozen=True, kw_only=True)
class Raw:
    """One HTTP answer as it is sent; a dict is sent as JSON."""

    status: int = 200
    body: dict[str, Any] | str = ""
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Inject:
    """A scripted fault: the endpoint's own reply with this fault in it."""

    fault: Fault


# A string or a dict is the content of a completion (for embeddings: the whole body); None is the endpoint's own reply.
Canned = str | dict[str, Any] | Raw | Inject | None
Script = Mapping[str, Sequence[Canned] | Callable[[Asked], Canned]]


@dataclass(frozen=True, kw_only=True)
class Options:
    """How the endpoint behaves. Latency in seconds: `0.3`, a range `"0.1-0.5"`, or `"tail:0.3"`, a Pareto
    distribution of shape 2 from 0.3 on (mean 0.6, one in a hundred above 3). Faults are probabilities a request."""

    seed: int = 0
    latency: float | str = 0.0
    faults: Mapping[Fault, float] = field(default_factory=dict)
    max_in_flight: int | None = None  # more at once are answered 429
    slots: int | None = None  # so many are answered at once; the others wait their turn
    rpm: int | None = None  # requests let in within a window; more are answered 429
    tpm: int | None = None  # tokens of prompts let in within a window
    rpm_window_s: float = 60.0
    window: Window = "sliding"  # how the two above are counted
    retry_after: float | None = 1.0  # seconds in the Retry-After of a 429 or 503, written as given; None sends none
    expected_key: str | None = None
    models: tuple[str, ...] = ()  # the only models known; empty knows every name
    model_fields: Mapping[str, Any] = field(default_factory=dict)  # beside the usual ones of each model listed
    documents: Mapping[str, dict[str, Any]] = field(default_factory=dict)  # what else is served, by path
    context_limit: int | None = None  # tokens of a prompt; longer ones are refused
    cached_from: int = 0  # tokens of a beginning that the cache takes at least
    no_json_schema: bool = False
    no_temperature: bool = False
    compose: Callable[[Asked], dict[str, Any] | str] = compose_reply  # the endpoint's own replies; faults show in them
    script: Script = field(default_factory=dict)  # by kind: replies in turn, then the own ones; or a function
    keep_bodies: bool = False
    dimensions: int = 256

    def __post_init__(self) -> None:
        unknown = sorted(set(self.faults) - FAULTS)
        if unknown:
            raise ValueError(f"unknown faults {', '.join(unknown)}; known: {', '.join(sorted(FAULTS))}")
        total = sum(self.faults.values())
        if min(self.faults.values(), default=0) < 0 or total > 1 + 1e-9:
            raise ValueError(f"probabilities of faults are {dict(self.faults)}; give none below 0 and at most 1 in all")
        draw_latency(self.latency, 0.0)


def draw_latency(latency: float | str, chance: float) -> float:
    """Seconds to wait for a uniform `chance` in [0, 1), by the inverse of the latency's distribution function."""
    if isinstance(latency, float | int):
        return float(latency)
    try:
        if latency.startswith("tail:"):
            return float(latency[5:]) * min(TAIL_CAP, math.sqrt(1.0 / (1.0 - chance)))
        least, dash, most = latency.partition("-")
        return float(least) + (float(most) - float(least)) * chance if dash else float(least)
    except ValueError as error:
        raise ValueError(f"latency {latency!r} is none of: seconds, least-most, tail:least") from error


@dataclass(frozen=True, kw_only=True)
class Chances:
    """Two uniform numbers in [0, 1) that depend on nothing but the seed and the request's ordinal (from 1)."""

    ordinal: int
    fault: float
    latency: float

    @classmethod
    def draw(cls, seed: int, ordinal: int) -> Self:
        digest = hashlib.blake2b(b"%d:%d" % (seed, ordinal), digest_size=12).digest()
        fault, latency = int.from_bytes(digest[:6]) / 2**48, int.from_bytes(digest[6:]) / 2**48
        return cls(ordinal=ordinal, fault=fault, latency=latency)


def draw_fault(faults: Mapping[Fault, float], chance: float) -> Fault | None:
    """The fault whose stretch of [0, 1) holds `chance`, if any."""
    bound = 0.0
    for fault, probability in faults.items():
        bound += probability
        if chance < bound:
            return fault
    return None


@dataclass(kw_only=True)
class Stats:
    """What the endpoint was asked and what it answered, exact as soon as the client has the answer."""

    requests: Counter[str] = field(default_factory=Counter)  # of a model, by path
    looked_at: Counter[str] = field(default_factory=Counter)  # documents, by path, those that are not there too
    kinds: Counter[str] = field(default_factory=Counter)  # extract, classify, attribute, rank, embeddings, other
    statuses: Counter[int] = field(default_factory=Counter)  # 499: the client went away first
    faults: Counter[str] = field(default_factory=Counter)  # those injected; not limits and refusals
    duplicates: int = 0  # bodies received before
    duplicates_answered: int = 0  # good answers sent to bodies that had been sent one before: what is paid twice
    in_flight: int = 0
    max_in_flight: int = 0
    prompt_tokens: int = 0  # reported to clients, like the two below
    cached_tokens: int = 0
    written_tokens: int = 0  # put into the cache because of a mark
    completion_tokens: int = 0
    first_request_at: float | None = None  # seconds since the epoch
    last_request_at: float | None = None
    bodies: list[dict[str, Any]] = field(default_factory=list)  # only with keep_bodies


def make_error(
    status: int,
    message: str,
    *,
    kind: str = CLIENT_ERROR,
    code: str | None = None,
    param: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Raw:
    """An error in OpenAI's shape; `kind` goes to its `type`."""
    error = {"message": message, "type": kind, "param": param, "code": code}
    return Raw(status=status, body={"error": error}, headers=headers or {})


def make_http_fault(fault: Fault, retry_after: float | None) -> Raw:
    """The error a provider answers for one of the faults that are a status of their own."""
    headers = {} if retry_after is None else {"Retry-After": f"{retry_after:g}"}
    match fault:
        case "rate_limit":
            message = "Rate limit reached. Please try again later."
            return make_error(429, message, kind="requests", code="rate_limit_exceeded", headers=headers)
        case "insufficient_quota":
            return make_error(429, "You exceeded your current quota.", kind=fault, code=fault)
        case "server_error":
            return make_error(500, "The server had an error while processing your request.", kind="server_error")
        case "unavailable":
            return make_error(503, "The engine is overloaded.", kind="server_error", headers=headers)
        case "context_length_exceeded":
            message = "This model's maximum context length is exceeded; reduce the length of the messages."
            return make_error(400, message, code="context_length_exceeded", param="messages")
        case _:
            raise ValueError(f"fault {fault!r} has no status of its own")


def refuse_request(options: Options, asked: Asked) -> Raw | None:
    """The error for what a model with these options cannot do, or None."""
    if options.models and asked.model not in options.models:
        return make_error(404, f"The model `{asked.model}` does not exist.", code="model_not_found", param="model")
    if asked.kind == "embeddings" and not (all(asked.texts) and 0 < len(asked.texts) <= MAX_INPUTS):
        return make_error(400, f"'input' must be 1 to {MAX_INPUTS} texts, none of them empty.", param="input")
    if options.context_limit is not None and count_tokens(*asked.texts) > options.context_limit:
        return make_http_fault("context_length_exceeded", None)
    return _refuse_parameters(options, asked.body)


def _refuse_parameters(options: Options, body: Mapping[str, Any]) -> Raw | None:
    if body.get("stream"):
        return make_error(400, "This endpoint does not stream.", param="stream", code="unsupported_value")
    if options.no_json_schema and (body.get("response_format") or {}).get("type") == "json_schema":
        message = "Invalid parameter: 'response_format' of type 'json_schema' is not supported with this model."
        return make_error(400, message, param="response_format")
    if options.no_temperature and body.get("temperature", 1) != 1:
        message = "Unsupported value: 'temperature' must be left at its default (1) with this model."
        return make_error(400, message, param="temperature", code="unsupported_value")
    return None
