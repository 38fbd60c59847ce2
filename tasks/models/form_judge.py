"""A chat model behind a form: the requests of any judge of chat models, in the words that the model was made for."""

from dataclasses import fields, replace

from evalhouse.prompts import Prompt
from evalhouse.tasks.judge.errors import FatalJudgeError
from evalhouse.tasks.judge.forms import Form, FormPrompt
from evalhouse.tasks.judge.protocol import (
    Judge,
    ModelReply,
    ModelRequest,
    Question,
    find_window,
    hash_canonical,
    require_prompt,
)
from evalhouse.tasks.models.local import LOCAL_TASKS


class FormJudge:
    """Asks `judge` about pairs of a document and a claim; what a pair is stands in `asking/pairs`."""

    tasks = LOCAL_TASKS

    def __init__(self, name: str, form: Form, judge: Judge) -> None:
        self.name = name
        self.model = judge.model
        self.endpoint = judge.endpoint
        self._form = form
        self._judge = judge

    @property
    def window(self) -> int | None:
        """The model's."""
        return find_window(self._judge)

    @property
    def made(self) -> Judge:
        """The judge of the model."""
        return self._judge

    def prepare(self, question: Question) -> ModelRequest:
        """The form's messages with the model's own parameters; no schema, for the reply is one word."""
        pair = question.data
        if pair.keys() != {"document", "claim"}:
            raise FatalJudgeError(f"{self.name} answers whether a document supports a claim, and no {question.step!r}")
        prompt = _lay_form(self._form, require_prompt(question))
        request = self._judge.prepare(replace(question, prompt=prompt))
        payload = {key: value for key, value in request.payload.items() if key != "response_format"}
        payload |= self._form.fill_body(pair)
        keyed = [request.request_hash, self._form.name, pair["document"], pair["claim"]]
        return ModelRequest(request_hash=hash_canonical(keyed), payload=payload)

    async def reply(self, request: ModelRequest) -> ModelReply:
        """Whatever the model says."""
        return await self._judge.reply(request)

    async def close(self) -> None:
        """Close the model's client."""
        await self._judge.close()


def _lay_form(form: Form, prompt: Prompt) -> FormPrompt:
    return FormPrompt(form=form, **{item.name: getattr(prompt, item.name) for item in fields(Prompt)})
