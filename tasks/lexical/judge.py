"""The lexical judge behind the judge protocol: no model, no network, the same reply every time."""

import orjson

from evalhouse.tasks.judge.protocol import (
    STEP_VERSIONS,
    ModelReply,
    ModelRequest,
    Question,
    hash_canonical,
    plain_data,
    require_prompt,
)
from evalhouse.tasks.lexical.verdicts import LEXICAL_VERSION, judge_lexically


class LexicalJudge:
    """Gives verdicts by the rules of `lexical_judge`. Prompt texts play no part in them."""

    name = "lexical"
    model = f"lexical-{LEXICAL_VERSION}"
    endpoint = None

    def prepare(self, question: Question) -> ModelRequest:
        """The question's data under the version of the rules; `note` is for models and is left out."""
        name = require_prompt(question).name
        payload: dict[str, object] = {"model": self.model, "prompt": name, "data": plain_data(question.data)}
        keyed = [payload, STEP_VERSIONS[name], question.number, question.only]
        return ModelRequest(request_hash=hash_canonical(keyed), payload=payload)

    async def reply(self, request: ModelRequest) -> ModelReply:
        """Decide at once; there is nothing to wait for."""
        data = request.payload["data"]
        assert isinstance(data, dict)
        verdicts = judge_lexically(str(request.payload["prompt"]), data)
        return ModelReply(text=orjson.dumps(verdicts).decode(), model=self.model)

    async def close(self) -> None:
        """Nothing is open."""
