"""Asking anew for a noise run: a judge under keys of its own, so that no reply on record is taken and none is given."""

import hashlib
from dataclasses import replace

from evalhouse.tasks.asking.embedders import AskedEmbedder, Embedder
from evalhouse.tasks.judge.protocol import Judge, ModelReply, ModelRequest, Question


class AskAnew:
    """A judge whose every request counts as one that was never asked.

    The key of a request is that of the judge it stands before and of the noise run together. So nothing on record
    answers it, and nothing that it is answered is ever taken for an answer in a later run: an unchanged sample would
    otherwise change its verdict after the night on which it was judged twice.
    """

    def __init__(self, judge: Judge, run_id: str) -> None:
        self._judge, self._run_id = judge, run_id

    @property
    def name(self) -> str:
        """That of the judge."""
        return self._judge.name

    @property
    def model(self) -> str:
        """That of the judge."""
        return self._judge.model

    @property
    def endpoint(self) -> str | None:
        """That of the judge."""
        return self._judge.endpoint

    def prepare(self, question: Question) -> ModelRequest:
        """The judge's request under a key of this run's own."""
        request = self._judge.prepare(question)
        own_key = hashlib.sha256(f"{self._run_id}/{request.request_hash}".encode()).hexdigest()
        return replace(request, request_hash=own_key)

    async def reply(self, request: ModelRequest) -> ModelReply:
        """What the judge says."""
        return await self._judge.reply(request)

    async def close(self) -> None:
        """Close the judge's connections."""
        await self._judge.close()


def embed_anew(embedder: Embedder | None, run_id: str) -> None:
    """Let embeddings that are asked of a model be asked anew as well."""
    if isinstance(embedder, AskedEmbedder):
        embedder.asker.judge = AskAnew(embedder.asker.judge, run_id)
