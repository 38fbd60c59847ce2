"""Errors of providers' own clients, brought into the one shape that `errors.py` reads.

Each client has classes of its own, and LangChain's packages wrap them in more; yet all of them keep the answer that was
sent: its status, its headers, its body. So the error and its causes are looked through for these by name, and no class
of any package is imported.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from evalhouse.tasks.models.completions import StatusError
from evalhouse.tasks.models.errors import ErrorBody, read_error_body, read_error_field


def find_answer(error: BaseException) -> StatusError | None:
    """The provider's answer behind an error; None where there was none, as when no connection was made."""
    for item in _walk(error):
        answer = _read_aws(item) or _read_http(item)
        if answer is not None:
            return answer
    return None


def _walk(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def _read_aws(error: BaseException) -> StatusError | None:
    """An error of botocore, whose answer is a dictionary."""
    answer = getattr(error, "response", None)
    if not isinstance(answer, dict):
        return None
    metadata, said = answer.get("ResponseMetadata") or {}, answer.get("Error") or {}
    status = metadata.get("HTTPStatusCode")
    if not isinstance(status, int):
        return None
    code = str(said.get("Code") or "")
    body = ErrorBody(message=f"{code}: {said.get('Message') or answer.get('message') or ''}", code=code)
    return StatusError(status, metadata.get("HTTPHeaders") or {}, body)


def _read_http(error: BaseException) -> StatusError | None:
    """An error that has a status itself, or whose response has one."""
    response = getattr(error, "response", None)
    # Errors of the connection have a `code` too (aiohttp's), but no `details` of an answer.
    code = getattr(error, "code", None) if hasattr(error, "details") else None
    named = (getattr(error, "status_code", None), code, getattr(response, "status_code", None))
    status = next((value for value in named if isinstance(value, int) and 300 <= value < 600), None)
    if status is None:
        return None
    headers = getattr(response, "headers", None)
    return StatusError(status, headers if isinstance(headers, Mapping) else {}, _read_body(error, response))


def _read_body(error: BaseException, response: object) -> ErrorBody:
    """What was sent, as the client has parsed it, else as it came."""
    for parsed in (getattr(error, "body", None), getattr(error, "details", None)):
        if isinstance(parsed, dict) and parsed:
            return read_error_field(parsed.get("error", parsed))
    content: Any = getattr(response, "content", None)
    if isinstance(content, bytes) and content:
        return read_error_body(content)
    return ErrorBody(message=str(getattr(error, "error", None) or getattr(error, "message", None) or error))
