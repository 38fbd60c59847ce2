"""What an endpoint can, found out with four small requests that go the way of all others.

Each asks for the same small JSON object, in which one label is not among those that a schema allows: a model that is
held to the schema cannot repeat it. The first request goes out as a run's would, made simpler with each refusal, as a
run would do it. The second asks for plain text, with a seed and log-probabilities. The last two, one in JSON mode and
one with a schema that names no ids, go out together, and show whether they are answered at once or one after the other.
A request that is refused costs nothing, and is sent again without what was refused.
"""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import orjson

from evalhouse.prompts import Item, Prompt
from evalhouse.tasks.asking.usage import count_request
from evalhouse.tasks.asking.verdicts import parse_object
from evalhouse.tasks.judge.errors import FatalJudgeError, JudgeError, UnsupportedOption, UnusableReply
from evalhouse.tasks.judge.protocol import Judge, ModelReply, ModelRequest, Question
from evalhouse.tasks.models.chat import ChatModelJudge

N_REQUESTS = 4
Status = Literal["yes", "no", "not sent", "unknown"]
Form = Literal["ids", "schema", "json_object", "words"]
_PATIENCE_S = 120.0
_MAX_REFUSALS = 8
# Below it what is measured is the way to the endpoint, not the endpoint.
_MIN_S = 0.05
# The later of two equal requests takes twice as long where they are answered one after the other.
_APART = 1.6
_REPLY_TOKENS = 60
_IDS = ("C1", "C2")
_COPIED = {"verdicts": [{"id": item_id, "reason": "read 100 percent", "label": "maybe"} for item_id in _IDS]}
_WORDS = "Repeat this JSON object, character by character, and write nothing else:\n" + orjson.dumps(_COPIED).decode()


@dataclass(frozen=True, kw_only=True)
class Seen:
    """One thing an endpoint can or cannot; `detail` is what was seen, or the endpoint's own words."""

    ability: str
    status: Status
    detail: str = ""


@dataclass(kw_only=True)
class Trial:
    """What came of the requests. `form` is how a run asks for a reply's form, `is_held` whether that binds the model.

    `problem` is why no more was found out. `side_by_side` is None where the two requests did not show it. `refused` are
    the endpoint's words by what it did not take.
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
    """A reply with what was sent for it, and its end on the clock of the process."""

    sent: Mapping[str, Any]
    reply: ModelReply
    ended_at: float

    @property
    def form(self) -> Form:
        return _find_form(self.sent)

    @property
    def is_held(self) -> bool:
        """Whether the label that the schema does not allow was kept out of the reply."""
        return self.is_readable and '"maybe"' not in self.reply.text

    @property
    def is_readable(self) -> bool:
        try:
            return "verdicts" in parse_object(self.reply.text, "verdicts")
        except UnusableReply:
            return False


class Probe:
    """Asks one judge, which is used for nothing else. `prompt` gives the form of the replies; it is not sent itself."""

    def __init__(self, judge: Judge, prompt: Prompt, timeout_s: float | None) -> None:
        self._judge = judge
        self._patience_s = timeout_s or _PATIENCE_S
        items = [Item(id=item_id, text="read") for item_id in _IDS]
        data = {name: items if name == "contexts" else "read" for name in prompt.variables}
        self._forms = tuple(judge.forms) if isinstance(judge, ChatModelJudge) else ()
        self._question = Question(step="rank", sample_id="", prompt=prompt, data=data)
        self._trial = Trial()

    def count_tokens(self) -> tuple[int, int]:
        """About how many tokens all requests take: of prompts and of replies."""
        return N_REQUESTS * count_request(self._write(self._question).payload), N_REQUESTS * _REPLY_TOKENS

    async def run(self) -> Trial:
        """Ask; any failure ends it, with what was seen until then and the reason."""
        began = time.monotonic()
        try:
            first = await self._ask(self._question)
            self._trial.form, self._trial.is_held = first.form, first.is_held and first.form in ("ids", "schema")
            plain = await self._ask(replace(self._question, vote=1, logprobs=True), "words")
            together_at = time.monotonic()
            # A judge that does not know a form is asked in words.
            forms: tuple[Form, Form] = ("json_object", "schema")
            both = await asyncio.gather(
                *(self._ask(self._question, form if form in self._forms else "words") for form in forms)
            )
            self._note_forms([first, *both])
            self._note_plain(plain)
            self._note_pace(*sorted(answer.ended_at - together_at for answer in both))
        except TimeoutError:
            self._trial.problem = (
                f"no answer within {self._patience_s:g} s; a model that is still being loaded may need another try, "
                "and EVALHOUSE_TIMEOUT sets more seconds"
            )
        except JudgeError as error:
            self._trial.problem = str(error)
        finally:
            await self._judge.close()
        self._trial.seconds = time.monotonic() - began
        return self._trial

    async def _ask(self, question: Question, form: Form | None = None) -> _Answer:
        """The reply to a request in a form, or in that which a run would use; in words once the form is refused."""
        for _ in range(_MAX_REFUSALS):
            request = self._write(question, form)
            try:
                async with asyncio.timeout(self._patience_s):
                    reply = await self._judge.reply(request)
            except UnsupportedOption as error:
                self._trial.n_refused += 1
                # What the judge leaves out from now on is what the endpoint refused.
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
            return _Answer(sent=request.payload, reply=reply, ended_at=time.monotonic())
        raise FatalJudgeError(
            f"one request was refused {_MAX_REFUSALS} times; the last: {[*self._trial.refused.values()][-1]}"
        )

    def _write(self, question: Question, form: Form | None = None) -> ModelRequest:
        """Return what the judge would send now, with the words of this module in place of the prompt's."""
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

    def _note_forms(self, answers: list[_Answer]) -> None:
        by_form = {answer.form: answer for answer in reversed(answers)}
        for form, ability in _FORMS.items():
            answer = by_form.get(form)
            if form in self._trial.refused:
                self._see(ability, "no", self._trial.refused[form])
            elif answer is None:
                compiled = form == "ids" and "schema" in self._forms
                self._see(ability, "not sent", "each new one is compiled there, for seconds" if compiled else "")
            elif form == "json_object":
                self._see(ability, "yes", _describe_reading(answer))
            else:
                detail = "the model is held to it" if answer.is_held else f"taken, and not kept to: {_quote(answer)}"
                self._see(ability, "yes" if answer.is_held else "no", detail)

    def _note_plain(self, answer: _Answer) -> None:
        refused = self._trial.refused
        self._see("plain text", "yes" if answer.is_readable else "no", _describe_reading(answer))
        self._see_option("seed", sent="seed" in answer.sent)
        if "logprobs" in answer.sent and answer.reply.logprobs is None:
            self._see("log-probabilities", "no", "taken, and none came")
        else:
            self._see_option("log-probabilities", sent="logprobs" in answer.sent, name="logprobs")
        for name in sorted(refused.keys() - {"seed", "logprobs", "top_logprobs", *_FORMS}):
            self._see(name, "no", refused[name])

    def _see_option(self, ability: str, *, sent: bool, name: str | None = None) -> None:
        words = self._trial.refused.get(name or ability)
        self._see(ability, "yes" if sent else "not sent" if words is None else "no", words or "")

    def _note_pace(self, earlier_s: float, later_s: float) -> None:
        times = f"{earlier_s:.1f} s and {later_s:.1f} s after they were sent together"
        if earlier_s < _MIN_S:
            self._see("requests at once", "unknown", f"too quick to tell: {times}")
            return
        self._trial.side_by_side = later_s < _APART * earlier_s
        self._see("requests at once", "yes" if self._trial.side_by_side else "no", f"answered {times}")

    def _see(self, ability: str, status: Status, detail: str) -> None:
        self._trial.seen.append(Seen(ability=ability, status=status, detail=detail))


_FORMS: dict[Form, str] = {
    "ids": "schema that names ids",
    "schema": "schema of a prompt",
    "json_object": "JSON mode",
}


def _find_form(payload: Mapping[str, Any]) -> Form:
    form = payload.get("response_format") or {}
    if "prefixItems" in str(form):
        return "ids"
    kinds: dict[str, Form] = {"json_schema": "schema", "json_object": "json_object"}
    return kinds.get(form.get("type", ""), "words")


def _describe_reading(answer: _Answer) -> str:
    return "its JSON can be read" if answer.is_readable else f"not the object that was asked for: {_quote(answer)}"


def _quote(answer: _Answer) -> str:
    text = " ".join(answer.reply.text.split())
    return repr(f"{text[:60]}…" if len(text) > 60 else text)
