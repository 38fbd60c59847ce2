"""The servers of models: the report of a self-hosted one about a model, and a probe of an endpoint's abilities.

Each server has its own form of a report. Most put the context window into the list of models, and beside it what
distinguishes models of one name: vLLM the folder that was loaded, llama.cpp the model's sizes; its slots are at
`/props`. Ollama has the windows of loaded models at `/api/ps`, which may be far smaller than the models allow, and
their digests there and at `/api/tags`. These paths are read only at an address nearby; none of it costs anything.

The probe asks four times for the same JSON object, in which one label is not allowed by the schema: a model that is
held to the schema cannot repeat it. The first request goes out as a run's would, made simpler with each refusal, which
costs nothing; the second asks for plain text with a seed and log-probabilities; the last two, in JSON mode and with a
schema, go out together to show whether they are answered at once or one after the other.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import aiohttp
import orjson
from yarl import URL

from evalhouse.prompts import Item, Prompt
from evalhouse.tasks.asking.http_session import HttpSession, make_ssl_context, read_beginning
from evalhouse.tasks.asking.pairs import find_form
from evalhouse.tasks.asking.usage import count_request
from evalhouse.tasks.asking.verdicts import parse_object
from evalhouse.tasks.judge.protocol import (
    FORM_JOIN,
    FatalJudgeError,
    Judge,
    JudgeError,
    ModelReply,
    ModelRequest,
    Question,
    UnsupportedOption,
    UnusableReply,
    is_near,
    parse_count,
)
from evalhouse.tasks.models.providers import compiles_schemas, find_access

# The names of a window in an entry of the list: vLLM and SGLang; OpenRouter and Together; Groq; Mistral; llama.cpp.
_WINDOWS = ("max_model_len", "context_length", "context_window", "max_context_length", "meta.n_ctx")
# The names of what vLLM loaded, with the model that an adapter was loaded onto; of llama.cpp's figures of a model file.
_ORIGINS = ("root", "parent")
_SIZES = ("n_params", "size", "n_vocab", "n_embd", "n_ctx_train", "vocab_type")
_OLLAMA_OWNER = "library"
_MAX_BYTES = 8 * 1024**2
_WAIT_S, _WAIT_AT_START_S = 10.0, 5.0
_MAX_IDENTITY = 500


@dataclass(frozen=True, kw_only=True)
class Serving:
    """A server's report on a model: its window in tokens, the requests answered at once, and its identity among models
    of the same name; None for what is not reported. `said_at` is the path that had the window.
    """

    window: int | None = None
    slots: int | None = None
    said_at: str = ""
    identity: str | None = None

    @property
    def is_found_by_runs(self) -> bool:
        """True if a run finds the window too: it reads the list of models alone."""
        return self.window is not None and self.said_at == "/models"


def is_own(judge: Judge) -> bool:
    """Return whether a judge's model is self-hosted: its server may have another one under the name tomorrow."""
    if judge.endpoint is None or "://" not in judge.endpoint:
        return False
    kind = _find_kind(judge)
    return kind == "ollama" or (kind == "openai" and not compiles_schemas(judge.endpoint))


def _find_kind(judge: Judge) -> str:
    name = judge.name.partition(FORM_JOIN)[2] if find_form(judge.name) else judge.name
    return name.partition(":")[0]


async def read_serving(judge: Judge, *, at_start: bool) -> Serving:
    """Return the report on a judge's model; an empty one if no answer comes or it cannot be read.

    At the start of a run it takes one request, or two to Ollama; otherwise slots and the window at other paths are
    looked for as well.
    """
    endpoint, model, headers = judge.endpoint or "", judge.model, {}
    if _find_kind(judge) == "openai":
        access = find_access()
        bearer = f"Bearer {access.key.get_secret_value()}"
        headers = {"Accept": "application/json", "Authorization": bearer, **access.headers}
    server = _Server(endpoint, headers)
    try:
        async with asyncio.timeout(_WAIT_AT_START_S if at_start else _WAIT_S):
            if _find_kind(judge) == "ollama":
                return await server.read_ollama(endpoint, model)
            entry = await server.find_entry(f"{endpoint}/models", "data", "id", model)
            window = next((window for path in _WINDOWS if (window := _parse_size(entry, path))), None)
            # The window is a setting of the server, and no part of what distinguishes models of one name.
            parts = {name: entry[name] for name in _ORIGINS if isinstance(entry.get(name), str)}
            meta = entry.get("meta")
            if not parts and isinstance(meta, Mapping):
                parts = {name: meta[name] for name in _SIZES if isinstance(meta.get(name), int)}
            identity = ", ".join(f"{name} {value}" for name, value in parts.items())[:_MAX_IDENTITY] or None
            serving = Serving(window=window, said_at="/models", identity=identity)
            if not is_near(endpoint) or (at_start and entry.get("owned_by") != _OLLAMA_OWNER):
                return serving
            root = endpoint.removesuffix("/v1")
            if not at_start and (props := await server.get(f"{root}/props")):
                serving = replace(serving, slots=_parse_size(props, "total_slots"))
                own_window = _parse_size(props, "default_generation_settings.n_ctx")
                return serving if window is not None else replace(serving, window=own_window, said_at="/props")
            if not at_start and window is not None:
                return serving
            return await server.read_ollama(root, model)
    except TimeoutError:
        return Serving()
    finally:
        await server.session.close()


class _Server:
    """Gets JSON documents from one server."""

    def __init__(self, endpoint: str, headers: Mapping[str, str]) -> None:
        self._headers = headers
        self.session = HttpSession(certificates=make_ssl_context() if endpoint.startswith("https") else True)

    async def get(self, address: str) -> Mapping[str, Any]:
        """Return the document; empty if the server has no such document."""
        try:
            async with await self.session.send("GET", URL(address), content=None, headers=self._headers) as response:
                content = await read_beginning(response, _MAX_BYTES)
                document = orjson.loads(content) if response.status == 200 else {}
        except (aiohttp.ClientError, OSError, orjson.JSONDecodeError):
            return {}
        return document if isinstance(document, dict) else {}

    async def find_entry(self, address: str, member: str, key: str, model: str) -> Mapping[str, Any]:
        """Return the entry of a model in a list; Ollama lists one that was named without a tag as its latest."""
        entries = (await self.get(address)).get(member)
        listed = [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
        return next((entry for entry in listed if entry.get(key) in (model, f"{model}:latest")), {})

    async def read_ollama(self, root: str, model: str) -> Serving:
        """Return Ollama's report on a model that is loaded, else on the one that it would load."""
        path = "/api/ps"
        entry = await self.find_entry(f"{root}{path}", "models", "name", model)
        if not entry.get("digest"):
            path = "/api/tags"
            entry = {**await self.find_entry(f"{root}{path}", "models", "name", model), **entry}
        digest = entry.get("digest")
        identity = f"digest {digest}"[:_MAX_IDENTITY] if digest else None
        return Serving(window=_parse_size(entry, "context_length"), said_at=path, identity=identity)


def _parse_size(document: Mapping[str, Any], path: str) -> int | None:
    """Return a whole number above zero under a dotted path."""
    value: object = document
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return parse_count(value) or None


# --- the probe

N_REQUESTS = 4
Status = Literal["yes", "no", "not sent", "unknown"]
Form = Literal["ids", "schema", "json_object", "words"]
_TIMEOUT_S = 120.0
_MAX_REFUSALS = 8
# In less time than that, the network is measured and not the endpoint.
_MIN_S = 0.05
# The later of two equal requests takes twice as long if they are answered one after the other.
_APART = 1.6
_REPLY_TOKENS = 60
_IDS = ("C1", "C2")
_COPIED = {"verdicts": [{"id": item_id, "reason": "read 100 percent", "label": "maybe"} for item_id in _IDS]}
_WORDS = "Repeat this JSON object, character by character, and write nothing else:\n" + orjson.dumps(_COPIED).decode()
_FORMS: dict[Form, str] = {
    "ids": "schema that names ids",
    "schema": "schema of a prompt",
    "json_object": "JSON mode",
}


@dataclass(frozen=True, kw_only=True)
class Seen:
    """One ability of an endpoint; `detail` is what was seen, or the endpoint's own words."""

    ability: str
    status: Status
    detail: str = ""


@dataclass(kw_only=True)
class Trial:
    """The result of the probe. `form` is the form of replies that a run asks for, `is_held` whether it binds the model.

    `problem` is why the probe ended early. `side_by_side` is None if the two requests did not show it. `refused` are
    the endpoint's words by the option that it refused.
    """

    seen: list[Seen] = field(default_factory=list)
    form: Form = "words"
    is_held: bool = False
    side_by_side: bool | None = None
    refused: dict[str, str] = field(default_factory=dict)
    problem: str | None = None
    n_answered: int = 0
    n_refused: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class _Answer:
    """A reply with the request that was sent for it, and its end on the clock of the process.

    `is_held` if the label that the schema does not allow was kept out of the reply.
    """

    sent: Mapping[str, Any]
    reply: ModelReply
    ended_at: float
    is_readable: bool
    is_held: bool
    quoted: str

    @property
    def reading(self) -> str:
        return "its JSON can be read" if self.is_readable else f"not the object that was asked for: {self.quoted}"


class Probe:
    """Asks one judge, which is used for nothing else. `prompt` gives the form of the replies; it is not sent itself."""

    def __init__(self, judge: Judge, prompt: Prompt, timeout_s: float | None) -> None:
        self._judge = judge
        self._timeout_s = timeout_s or _TIMEOUT_S
        items = [Item(id=item_id, text="read") for item_id in _IDS]
        data = {name: items if name == "contexts" else "read" for name in prompt.variables}
        self._forms: Sequence[str] = tuple(getattr(judge, "forms", ()))
        self._question = Question(step="rank", sample_id="", prompt=prompt, data=data)
        self._trial = Trial()

    def count_tokens(self) -> tuple[int, int]:
        """Return about how many tokens all requests take: of prompts and of replies."""
        return N_REQUESTS * count_request(self._write(self._question).payload), N_REQUESTS * _REPLY_TOKENS

    async def run(self) -> Trial:
        """Ask; any failure ends it, with the results until then and the reason."""
        trial, began = self._trial, time.monotonic()
        try:
            first = await self._ask(self._question)
            trial.form = _find_form(first.sent)
            trial.is_held = first.is_held and trial.form in ("ids", "schema")
            plain = await self._ask(replace(self._question, vote=1, logprobs=True), "words")
            together_at = time.monotonic()
            # A judge that does not know a form is asked in words.
            forms: tuple[Form, Form] = ("json_object", "schema")
            both = await asyncio.gather(
                *(self._ask(self._question, form if form in self._forms else "words") for form in forms)
            )
            earlier_s, later_s = sorted(answer.ended_at - together_at for answer in both)
            refused = trial.refused
            by_form = {_find_form(answer.sent): answer for answer in (*reversed(both), first)}
            for form, ability in _FORMS.items():
                answer = by_form.get(form)
                if form in refused:
                    self._see(ability, "no", refused[form])
                elif answer is None:
                    compiled = form == "ids" and "schema" in self._forms
                    self._see(ability, "not sent", "each new one is compiled there, for seconds" if compiled else "")
                elif form == "json_object":
                    self._see(ability, "yes", answer.reading)
                else:
                    detail = "the model is held to it" if answer.is_held else f"taken, and not kept to: {answer.quoted}"
                    self._see(ability, "yes" if answer.is_held else "no", detail)
            self._see("plain text", "yes" if plain.is_readable else "no", plain.reading)
            for ability, name in (("seed", "seed"), ("log-probabilities", "logprobs")):
                if name == "logprobs" and name in plain.sent and plain.reply.logprobs is None:
                    self._see(ability, "no", "taken, and none came")
                elif name in plain.sent:
                    self._see(ability, "yes", refused.get(name, ""))
                else:
                    self._see(ability, "no" if name in refused else "not sent", refused.get(name, ""))
            for name in sorted(refused.keys() - {"seed", "logprobs", "top_logprobs", *_FORMS}):
                self._see(name, "no", refused[name])
            times = f"{earlier_s:.1f} s and {later_s:.1f} s after they were sent together"
            if earlier_s < _MIN_S:
                self._see("requests at once", "unknown", f"too quick to measure: {times}")
            else:
                trial.side_by_side = later_s < _APART * earlier_s
                self._see("requests at once", "yes" if trial.side_by_side else "no", f"answered {times}")
        except TimeoutError:
            trial.problem = (
                f"no answer within {self._timeout_s:g} s; a model that is still being loaded may need another try, "
                "and EVALHOUSE_TIMEOUT sets more seconds"
            )
        except JudgeError as error:
            trial.problem = str(error)
        finally:
            await self._judge.close()
        trial.seconds = time.monotonic() - began
        return trial

    async def _ask(self, question: Question, form: Form | None = None) -> _Answer:
        """Return the reply to a request in a form, or in that of a run; in words once the form is refused."""
        for _ in range(_MAX_REFUSALS):
            request = self._write(question, form)
            try:
                async with asyncio.timeout(self._timeout_s):
                    reply = await self._judge.reply(request)
            except UnsupportedOption as error:
                self._trial.n_refused += 1
                # The options that the judge leaves out from now on were refused by the endpoint.
                sent, after = request.payload, self._judge.prepare(question).payload
                lost = [name for name in sent if name not in after and name not in ("response_format", "messages")]
                if not lost and "response_format" in sent:
                    lost = [_find_form(sent)]
                    form = None if form is None else "words"
                for name in lost:
                    self._trial.refused.setdefault(name, str(error))
                continue
            self._trial.n_answered += 1
            self._trial.prompt_tokens += reply.prompt_tokens or count_request(request.payload)
            self._trial.completion_tokens += reply.completion_tokens or 0
            ended_at, text = time.monotonic(), " ".join(reply.text.split())
            try:
                is_readable = "verdicts" in parse_object(reply.text, "verdicts")
            except UnusableReply:
                is_readable = False
            return _Answer(
                sent=request.payload,
                reply=reply,
                ended_at=ended_at,
                is_readable=is_readable,
                is_held=is_readable and '"maybe"' not in reply.text,
                quoted=repr(f"{text[:60]}…" if len(text) > 60 else text),
            )
        raise FatalJudgeError(
            f"one request was refused {_MAX_REFUSALS} times; the last: {[*self._trial.refused.values()][-1]}"
        )

    def _write(self, question: Question, form: Form | None = None) -> ModelRequest:
        """Return the judge's current request, with the words of this module in place of the prompt's."""
        request = self._judge.prepare(question)
        payload = {**request.payload, "messages": [{"role": "user", "content": _WORDS}]}
        prompt = self._question.prompt
        if form is not None:
            payload.pop("response_format", None)
        if form == "schema" and prompt is not None:
            described = {"name": prompt.name, "strict": True, "schema": prompt.reply_schema}
            payload["response_format"] = {"type": "json_schema", "json_schema": described}
        elif form == "json_object":
            payload["response_format"] = {"type": "json_object"}
        return replace(request, payload=payload)

    def _see(self, ability: str, status: Status, detail: str) -> None:
        self._trial.seen.append(Seen(ability=ability, status=status, detail=detail))


def _find_form(payload: Mapping[str, Any]) -> Form:
    form = payload.get("response_format") or {}
    if "prefixItems" in str(form):
        return "ids"
    kinds: dict[str, Form] = {"json_schema": "schema", "json_object": "json_object"}
    return kinds.get(form.get("type", ""), "words")
