"""A SOCKS5 proxy in a thread, which sends every connection to one address, for every host."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass
class Socks:
    url: str
    hosts: list[str] = field(default_factory=list)


def _receive(connection: socket.socket, n: int) -> bytes:
    got = b""
    while len(got) < n:
        piece = connection.recv(n - len(got))
        if not piece:
            raise ConnectionError
        got += piece
    return got


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while piece := source.recv(65536):
            sink.sendall(piece)
        sink.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def running_socks(port: int) -> Iterator[Socks]:
    """Serve for this block; every connection goes to this port of this machine."""
    listener = socket.create_server(("127.0.0.1", 0))
    socks = Socks(url=f"socks5://127.0.0.1:{listener.getsockname()[1]}")

    def answer(connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            _receive(connection, _receive(connection, 2)[1])  # the ways to log in that the client knows
            connection.sendall(b"\x05\x00")
            kind = _receive(connection, 4)[3]
            size = {1: 4, 4: 16}.get(kind) or _receive(connection, 1)[0]
            host = _receive(connection, size)
            socks.hosts.append(host.decode() if kind == 3 else f"address {socket.inet_ntop(2, host)}")
            _receive(connection, 2)
            with socket.create_connection(("127.0.0.1", port)) as upstream:
                connection.sendall(b"\x05\x00\x00\x01\x00\x00\x00\x00\x00\x00")
                back = threading.Thread(target=_pump, args=(upstream, connection), daemon=True)
                back.start()
                _pump(connection, upstream)
                back.join()

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield socks
    finally:
        listener.close()
