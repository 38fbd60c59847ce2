"""Batches of a run: whether it goes by them, at which price and where requests wait. And the models of own servers."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from evalhouse.tasks.asking.asker import Asker
from evalhouse.tasks.asking.batches import BatchQueue, find_batches
from evalhouse.tasks.asking.usage import load_batch_rates
from evalhouse.tasks.judge.protocol import FatalJudgeError, Judge, list_judges
from evalhouse.tasks.settings.run import RunSettings, find_deadline
from evalhouse.warehouse.messages import name_setting, shorten
from evalhouse.warehouse.rows.calls import BatchLedger, KnownModel, ServedModel, fetch_known_model, write_served_models
from evalhouse.warehouse.store import Warehouse

if TYPE_CHECKING:
    from evalhouse.tasks.models.chat import ChatModelJudge
    from evalhouse.tasks.models.serving import Serving


def check_batch(settings: RunSettings) -> None:
    """Refuse a batch that no judge takes, and a deadline without a batch; raises FatalJudgeError."""
    if not settings.batch:
        if settings.deadline is not None:
            raise FatalJudgeError(
                f"{name_setting('deadline')} says how long to wait for a batch; give {name_setting('batch')} too, or "
                "leave it out"
            )
        return
    if settings.pool is not None:
        raise FatalJudgeError(
            f"{name_setting('batch')} asks for all samples of a run at once, from one process; leave out "
            f"{name_setting('pool')}"
        )
    rates = load_batch_rates(settings.prices)
    if not any(rates.get(name.partition(":")[0]) for name in list_judges(settings.judge)):
        raise FatalJudgeError(
            f"{settings.judge!r} takes no batches; judges that do: {', '.join(f'{name}:MODEL' for name in rates)}; "
            f"name one of them with {name_setting('judge')}, or leave {name_setting('batch')} out"
        )


def add_batch_queue(
    asker: Asker, settings: RunSettings, run_id: str, warehouse: Warehouse, *, since: datetime | None = None
) -> None:
    """Let requests go by batch where the judge has a service for that; the deadline counts from `since`, or now."""
    judge = asker.judge
    service = find_batches(judge)
    if service is None or judge.endpoint is None:
        return
    rate = load_batch_rates(settings.prices).get(judge.name.partition(":")[0]) or 1.0
    asker.batch_price = asker.price and asker.price.at_rate(rate)
    begun = since.replace(tzinfo=UTC).astimezone() if since else datetime.now().astimezone()
    deadline = find_deadline(settings.deadline, begun) if settings.deadline else None
    ledger = BatchLedger(
        warehouse=warehouse, run_id=run_id, judge=judge.name, endpoint=judge.endpoint, only_run=settings.fresh
    )
    asker.batch_queue = BatchQueue(
        service,
        ledger,
        asker.activity,
        folder=warehouse.location.journal_path / "batches" / run_id,
        afford=asker.count_affordable,
        stop=asker.stop,
        deadline=deadline.timestamp() if deadline else None,
    )
    asker.stop_sign.listen(asker.batch_queue.stopped)


def ask_servers(judges: Sequence[Judge], run_id: str, warehouse: Warehouse) -> list[str]:
    """Ask the servers of these judges for their models, store the answers with the run, and return notices about them.

    Stored replies are found by the model's name and address. The first model that was seen under a name has that key,
    with all replies from before a server was first asked; the key of any other model has its identity too. So a reply
    is never taken for one of another model, and none is lost when the first one is served again. The address of any
    other judge is stored too: behind another one may be another model. Raises FatalJudgeError for a run that is resumed
    and began with another model.
    """
    from evalhouse.tasks.models.serving import read_serving  # noqa: PLC0415  # the lexical judge has no server

    async def read_all() -> "list[Serving]":
        return await asyncio.gather(*(read_serving(judge, at_start=True) for judge in own))

    own, notices = _list_own_servers(judges), []
    with ThreadPoolExecutor(1) as threads:  # this thread may have an event loop
        servings = threads.submit(lambda: asyncio.run(read_all())).result()
    for judge, serving in zip(own, servings, strict=True):
        known, identity = fetch_known_model(warehouse, run_id, judge.endpoint, judge.model), serving.identity
        if known.of_run and identity and known.of_run != identity:
            raise FatalJudgeError(
                f"{judge.endpoint} has another model as {judge.model!r} now ({shorten(identity)}) than when run "
                f"{run_id} began ({shorten(known.of_run)}); serve that one again, or start a new run"
            )
        if identity is None and serving.window is None:
            _settle_model(judge, known, known.of_run or known.last, None)
            continue
        _settle_model(judge, known, identity or known.last, serving.window)
        if identity is not None and known.last is not None and identity != known.last:
            notices.append(
                f"note: {judge.endpoint} has another model as {judge.model!r} than in the last run: "
                f"{shorten(identity)}, before {shorten(known.last)}. What other models answered under this name is not "
                "used."
            )
        elif identity is not None and known.last is None and warehouse.fetch_rows("served/asked", judge=judge.name):
            notices.append(
                f"note: {judge.endpoint} says that {judge.model!r} is {shorten(identity)}, which is kept from this run "
                f"on. Replies of {judge.name} on record are from before: they are taken for this model's; "
                f"{name_setting('fresh')} asks again."
            )
    reports = {id(judge): (serving.identity, serving.window) for judge, serving in zip(own, servings, strict=True)}
    served = []
    for outer in judges:
        identity, window = reports.get(id(getattr(outer, "made", outer)), (None, None))
        if outer.endpoint is not None:
            model = ServedModel(judge=outer.name, endpoint=outer.endpoint, model=outer.model)
            served.append(replace(model, identity=identity, context_window=window))
    if served:
        write_served_models(warehouse, run_id, served)
    return notices


def recall_servers(judges: Sequence[Judge], run_id: str, warehouse: Warehouse) -> None:
    """Give these judges the stored answers of their servers, if these are not asked now."""
    for judge in _list_own_servers(judges):
        if not judge.is_known:
            known = fetch_known_model(warehouse, run_id, judge.endpoint, judge.model)
            _settle_model(judge, known, known.of_run or known.last, known.context_window)


def _list_own_servers(judges: Sequence[Judge]) -> "list[ChatModelJudge]":
    from evalhouse.tasks.models.chat import ChatModelJudge  # noqa: PLC0415  # imported by what made such a judge
    from evalhouse.tasks.models.serving import is_own  # noqa: PLC0415

    made = [getattr(judge, "made", judge) for judge in judges if is_own(judge)]
    return [judge for judge in made if isinstance(judge, ChatModelJudge)]


def _settle_model(judge: "ChatModelJudge", known: KnownModel, identity: str | None, window: int | None) -> None:
    judge.is_known = True
    judge.window = window or judge.window
    judge.other_model = identity if known.first not in (None, identity) else None
