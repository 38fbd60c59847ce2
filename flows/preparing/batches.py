"""Whether a run goes by batch, at which price, and what its requests then wait in."""

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from evalhouse.tasks.asking.asker import Asker
from evalhouse.tasks.asking.parking import Parking
from evalhouse.tasks.asking.usage import load_batch_rates
from evalhouse.tasks.judge.errors import FatalJudgeError
from evalhouse.tasks.judge.names import list_judges
from evalhouse.tasks.judge.protocol import Judge, find_batches
from evalhouse.tasks.settings.run import RunSettings, find_deadline
from evalhouse.warehouse.messages import shorten
from evalhouse.warehouse.names import name_setting
from evalhouse.warehouse.rows.calls import BatchLedger, KnownModel, ServedModel, find_known, has_answered, note_served
from evalhouse.warehouse.store import Warehouse

if TYPE_CHECKING:
    from evalhouse.tasks.models.chat import ChatModelJudge
    from evalhouse.tasks.models.serving import Serving


def check_batch(settings: RunSettings) -> None:
    """Refuse a batch that nobody takes, and a deadline for nothing; raises FatalJudgeError."""
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
    if not any(_find_rate(name, rates) for name in list_judges(settings.judge)):
        raise FatalJudgeError(
            f"{settings.judge!r} takes no batches; judges that do: {', '.join(f'{name}:MODEL' for name in rates)}; "
            f"name one of them with {name_setting('judge')}, or leave {name_setting('batch')} out"
        )


def price_as_batches(askers: Sequence[Asker], settings: RunSettings) -> None:
    """Let those whose judges take batches count with the price of these, for requests that only stand for some."""
    rates = load_batch_rates(settings.prices)
    for asker in askers:
        rate = _find_rate(asker.judge.name, rates)
        asker.price = asker.price.at_rate(rate) if asker.price and rate else asker.price


def add_parking(
    asker: Asker, settings: RunSettings, run_id: str, warehouse: Warehouse, *, since: datetime | None = None
) -> None:
    """Let what asks go by batch, where its judge has a service for that; `since` (UTC) the deadline counts, or now."""
    judge = asker.judge
    service = find_batches(judge)
    if service is None or judge.endpoint is None:
        return
    rate = _find_rate(judge.name, load_batch_rates(settings.prices)) or 1.0
    asker.batch_price = asker.price and asker.price.at_rate(rate)
    begun = since.replace(tzinfo=UTC).astimezone() if since else datetime.now().astimezone()
    deadline = find_deadline(settings.deadline, begun) if settings.deadline else None
    ledger = BatchLedger(
        warehouse=warehouse, run_id=run_id, judge=judge.name, endpoint=judge.endpoint, only_run=settings.fresh
    )
    asker.parking = Parking(
        service,
        ledger,
        asker.activity,
        folder=warehouse.location.journal_path / "batches" / run_id,
        afford=asker.count_affordable,
        stop=asker.stop,
        deadline=deadline.timestamp() if deadline else None,
    )
    asker.stop_sign.listen(asker.parking.stopped)


def _find_rate(judge: str, rates: Mapping[str, float]) -> float | None:
    return rates.get(judge.partition(":")[0])


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
        f"Replies of {judge.name} on record are from before: they are taken for this model's; "
        f"{name_setting('fresh')} asks again."
    ]
