"""Whether a run goes by batch, at which price, and what its requests then wait in."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from evalhouse.tasks.asking.asker import Asker
from evalhouse.tasks.asking.parking import Parking
from evalhouse.tasks.asking.tokens import load_batch_rates
from evalhouse.tasks.judge.batches import find_batches
from evalhouse.tasks.judge.errors import FatalJudgeError
from evalhouse.tasks.judge.names import list_judges
from evalhouse.tasks.settings.run import RunSettings, find_deadline
from evalhouse.warehouse.rows.calls import BatchLedger
from evalhouse.warehouse.store import Warehouse


def check_batch(settings: RunSettings) -> None:
    """Refuse a batch that nobody takes, and a deadline for nothing; raises FatalJudgeError."""
    if not settings.batch:
        if settings.deadline is not None:
            raise FatalJudgeError("--deadline says how long to wait for a batch; give --batch too, or leave it out")
        return
    if settings.is_spread:
        raise FatalJudgeError(
            "--batch asks for all samples of a run at once, from one process; leave out --pool and --task-runner"
        )
    rates = load_batch_rates(settings.prices)
    if not any(_find_rate(name, rates) for name in list_judges(settings.judge)):
        raise FatalJudgeError(
            f"{settings.judge!r} takes no batches; judges that do: {', '.join(f'{name}:MODEL' for name in rates)}; "
            "name one of them with --judge, or leave --batch out"
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
