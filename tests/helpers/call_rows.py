"""Rows of `llm_calls` as the journal and the warehouse take them."""

import hashlib

from evalhouse.warehouse.rows.calls import make_request_key


def make_row(number: int, **columns: object) -> dict[str, object]:
    digest = f"{number:064x}"
    row: dict[str, object] = {
        "call_id": f"c{number}",
        "run_id": "r",
        "step": "classify",
        "judge": "j",
        "request_hash": digest,
        "request_key": make_request_key(digest),
        "request": "{}",
        "reply": "yes",
        "status": "ok",
        "attempts": 1,
        "started_at": 1_767_225_600_000_000 + number,
    }
    return {**row, **columns}


def hash_request(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def make_call(number: int, text: str, **columns: object) -> dict[str, object]:
    request_hash = hash_request(text)
    return make_row(number, request_hash=request_hash, request_key=make_request_key(request_hash), **columns)
