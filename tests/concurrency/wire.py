"""A wire between processes and their database server that can be cut while a COMMIT is on it.

Cut behind the COMMIT, the server has done it and nobody hears of that; cut before it, the server undoes everything.
To whoever sent it, both look the same.
"""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from select import select
from socketserver import BaseRequestHandler, ThreadingTCPServer

CHUNK = 65536


class Wire(ThreadingTCPServer):
    daemon_threads = True

    def __init__(self, server: tuple[str, int]) -> None:
        super().__init__(("127.0.0.1", 0), _Connection)
        self.database = server
        self.cuts = 0
        self.mend()

    @property
    def port(self) -> int:
        return self.server_address[1]

    def cut(self, at: Callable[[int], bool], *, arrives: bool) -> None:
        """From now on, at the COMMITs whose numbers fit, counted from 1 over all connections."""
        self.commits = 0
        self.is_cut_at, self.arrives = at, arrives

    def mend(self) -> None:
        self.cut(lambda number: False, arrives=True)


class _Connection(BaseRequestHandler):
    """One connection of a client, and its own to the server."""

    counting = threading.Lock()

    def handle(self) -> None:
        client = self.request
        with socket.create_connection(self.server.database) as database:
            while True:
                for end in select([client, database], [], [])[0]:
                    try:
                        data = end.recv(CHUNK)
                    except ConnectionResetError:
                        return
                    if not data:
                        return
                    if end is client and is_commit(data) and self.is_to_be_cut():
                        if self.server.arrives:
                            database.sendall(data)
                            database.recv(CHUNK)  # The answer: by then it is done.
                        return
                    (database if end is client else client).sendall(data)

    def is_to_be_cut(self) -> bool:
        wire = self.server
        with self.counting:
            wire.commits += 1
            is_cut = wire.is_cut_at(wire.commits)
            wire.cuts += is_cut
        return is_cut


def is_commit(sent: bytes) -> bool:
    """Both protocols send a statement without values as its text, PostgreSQL's with a zero at the end."""
    return sent.rstrip(b"\0").endswith(b"COMMIT")


@contextmanager
def wire_to(server: tuple[str, int]) -> Iterator[Wire]:
    with Wire(server) as wire:
        carrying = threading.Thread(target=wire.serve_forever, kwargs={"poll_interval": 0.05})
        carrying.start()
        try:
            yield wire
        finally:
            wire.shutdown()
            carrying.join()
