"""Which model a server of one's own has under a name, and for how many tokens: asked when a run begins, kept with it.

Replies on record are known by the model's name and address. The first model that was seen under a name has that key for
its own, with all that is on record from before anybody asked; of any other the key has what tells it apart. So a reply
is never taken for that of another model, and none is lost when the first one is served again.
"""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from evalhouse.tasks.judge.errors import FatalJudgeError
from evalhouse.tasks.judge.protocol import Judge
from evalhouse.warehouse.messages import shorten
from evalhouse.warehouse.rows.calls import KnownModel, ServedModel, find_known, has_answered, note_served
from evalhouse.warehouse.store import Warehouse

if TYPE_CHECKING:
    from evalhouse.tasks.models.chat import ChatModelJudge
    from evalhouse.tasks.models.serving import Serving


def ask_servers(judges: Sequence[Judge], run_id: str, warehouse: Warehouse) -> list[str]:
    """Ask the servers of these judges, keep with the run what they say, and return what a person should know of it.

    Raises FatalJudgeError for a run that goes on and began with another model.
    """
    own = _pick_own(judges)
    notices: list[str] = []
    for judge, serving in zip(own, _read_all(own), strict=True):
        notices += _take(judge, serving, run_id, warehouse)
    return notices


def recall_servers(judges: Sequence[Judge], run_id: str, warehouse: Warehouse) -> None:
    """Let these judges know what is on record of their servers, where none of them is asked now."""
    for judge in _pick_own(judges):
        if not judge.is_known:
            known = find_known(warehouse, run_id, judge.endpoint, judge.model)
            _settle(judge, known, known.of_run or known.last, known.context_window)


def _pick_own(judges: Sequence[Judge]) -> "list[ChatModelJudge]":
    from evalhouse.tasks.models.chat import ChatModelJudge  # noqa: PLC0415  # imported by whoever made such a judge
    from evalhouse.tasks.models.serving import is_own  # noqa: PLC0415

    made = [getattr(judge, "made", judge) for judge in judges if is_own(judge)]
    return [judge for judge in made if isinstance(judge, ChatModelJudge)]


def _read_all(judges: Sequence[Judge]) -> "list[Serving]":
    if not judges:
        return []
    from evalhouse.tasks.models.serving import read_at_start  # noqa: PLC0415  # the lexical judge has no server

    async def read() -> "list[Serving]":
        return await asyncio.gather(*(read_at_start(judge) for judge in judges))

    with ThreadPoolExecutor(1) as threads:  # this one may have an event loop of its own
        return threads.submit(lambda: asyncio.run(read())).result()


def _take(judge: "ChatModelJudge", serving: "Serving", run_id: str, warehouse: Warehouse) -> list[str]:
    known = find_known(warehouse, run_id, judge.endpoint, judge.model)
    if known.of_run and serving.identity and known.of_run != serving.identity:
        raise FatalJudgeError(
            f"{judge.endpoint} has another model as {judge.model!r} now ({shorten(serving.identity)}) than when run "
            f"{run_id} began ({shorten(known.of_run)}); serve that one again, or start a new run"
        )
    if serving.identity is None and serving.window is None:
        _settle(judge, known, known.of_run or known.last, None)
        return []
    served = ServedModel(
        judge=judge.name,
        endpoint=judge.endpoint,
        model=judge.model,
        identity=serving.identity,
        context_window=serving.window,
    )
    note_served(warehouse, run_id, served)
    _settle(judge, known, serving.identity or known.last, serving.window)
    return _explain(judge, serving.identity, known, warehouse)


def _settle(judge: "ChatModelJudge", known: KnownModel, identity: str | None, window: int | None) -> None:
    judge.is_known = True
    judge.window = window or judge.window
    judge.other_model = identity if known.first not in (None, identity) else None


def _explain(judge: "ChatModelJudge", identity: str | None, known: KnownModel, warehouse: Warehouse) -> list[str]:
    if identity is None or identity == known.last:
        return []
    if known.last is not None:
        return [
            f"note: {judge.endpoint} has another model as {judge.model!r} than in the last run: {shorten(identity)}, "
            f"before {shorten(known.last)}. What other models answered under this name is not used."
        ]
    if not has_answered(warehouse, judge.name):
        return []
    return [
        f"note: {judge.endpoint} says that {judge.model!r} is {shorten(identity)}, which is kept from this run on. "
        f"Replies of {judge.name} on record are from before: they are taken for this model's; --fresh asks anew."
    ]
