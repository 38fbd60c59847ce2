"""What ends a run through no fault of its own: a warehouse or a Prefect server that was away for too long.

Such a run has no end of its own; `evalhouse serve` takes it up again, as it does one whose process was killed.
"""

import sys

from evalhouse.flows.server.api import PrefectApiError
from evalhouse.flows.server.local import LocalServerError
from evalhouse.warehouse.engine.lake import is_broken_catalogue
from evalhouse.warehouse.errors import WarehouseBusy


def is_outage(error: BaseException | None) -> bool:
    """Whether an error, its cause, or all errors of a group say that the warehouse or the server cannot be reached."""
    if error is None:
        return False
    if isinstance(error, BaseExceptionGroup):
        return all(is_outage(part) for part in error.exceptions)
    if isinstance(error, WarehouseBusy | LocalServerError):
        return True
    if isinstance(error, PrefectApiError):
        return error.is_silence
    return _is_broken_connection(error) or is_broken_catalogue(error) or is_outage(error.__cause__)


def describe_outage(error: BaseException) -> str:
    """In a line, for an error that has no words for a person."""
    text = " ".join(str(error).split())
    return f"the Prefect server cannot be reached ({text or type(error).__name__})"


def _is_broken_connection(error: BaseException) -> bool:
    """Whether it is one of Prefect's client; judges and applications under test have errors of our own."""
    httpx = sys.modules.get("httpx")
    if httpx is None:
        return False
    if isinstance(error, httpx.HTTPStatusError):
        return bool(error.response.status_code >= 500)
    return isinstance(error, httpx.TransportError)
