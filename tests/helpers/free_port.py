"""A port for a server that is started later, and perhaps again and again."""

import secrets
import socket

# Below the range from which the system takes the ports of clients, and of servers that do not care: in between one
# of those would be given the port of a server that is just not running.
_RANGE = range(20_000, 32_000)


def find_free_port() -> int:
    """Return a free port of this machine."""
    while True:
        port = secrets.choice(_RANGE)
        with socket.socket() as listener:
            try:
                listener.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
