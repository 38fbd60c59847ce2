"""Addresses as they may be shown: without what lets somebody in."""

from urllib.parse import urlsplit, urlunsplit


def hide_credentials(address: str) -> str:
    """An address without user, password and query, which may hold a key."""
    try:
        parts = urlsplit(address)
    except ValueError:
        return "an address that cannot be read"
    if not parts.netloc:
        return address
    return urlunsplit(parts._replace(netloc=parts.netloc.rsplit("@", 1)[-1], query="", fragment=""))
