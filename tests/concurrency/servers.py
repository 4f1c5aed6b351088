"""A database server of a test's own, which it may stop and kill."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from tests import databases

STARTS = 30
"""Seconds in which the processes that a killed server leaves behind have seen that it is gone."""


@dataclass
class OwnServer:
    url: str
    command: list
    how: dict
    folder: Path
    ask_version: Callable[[str], str]
    stop_signal: signal.Signals
    """It ends in order, however many clients are connected."""

    @property
    def address(self) -> dict[str, str]:
        """As Django's settings have it."""
        at = urlsplit(self.url)
        return {"HOST": at.hostname, "PORT": str(at.port), "USER": at.username, "PASSWORD": ""}

    @contextmanager
    def alive_until(self, end: signal.Signals) -> Iterator[None]:
        """One life of the server; what it keeps is what the lives before have left."""
        with ExitStack() as stack:
            self._start(stack, end)
            yield

    def _start(self, stack: ExitStack, end: signal.Signals) -> None:
        deadline = time.monotonic() + STARTS
        while True:
            life = databases.running(self.command, self.how, self.folder, lambda: self.ask_version(self.url), stop=end)
            try:
                stack.enter_context(life)
            except databases.Missing:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
            else:
                return


@contextmanager
def own_postgres() -> Iterator[OwnServer]:
    initdb = Path(databases.program("initdb", folders=databases.debian_postgres_folders())).resolve()
    with databases.scratch_folder(account="postgres") as (folder, how):
        databases.run([initdb, "-D", "data", "-U", "postgres", "--auth=trust", "--encoding=UTF8", "--no-locale"], how)
        port = databases.free_port()
        command = [initdb.with_name("postgres"), "-D", "data", "-p", str(port)]
        # Without fsync: what was written outlives the server, only not the machine.
        for setting in ("listen_addresses=127.0.0.1", "unix_socket_directories=", "fsync=off"):
            command += ["-c", setting]
        url = f"postgresql://postgres@127.0.0.1:{port}/postgres"
        yield OwnServer(url, command, how, folder, databases.postgres_version, signal.SIGINT)


@contextmanager
def own_mariadb() -> Iterator[OwnServer]:
    install = databases.program("mariadb-install-db", "mysql_install_db")
    server = databases.program("mariadbd", "mysqld")
    with databases.scratch_folder(account="mysql") as (folder, how):
        data = f"--datadir={folder / 'data'}"
        databases.run([install, "--no-defaults", data, "--auth-root-authentication-method=normal"], how)
        port = databases.free_port()
        command = [
            server,
            "--no-defaults",
            data,
            f"--port={port}",
            "--bind-address=127.0.0.1",
            f"--socket={folder / 'socket'}",
            f"--pid-file={folder / 'pid'}",
            "--character-set-server=utf8mb4",
            # Written at each commit, so that it outlives the server, only not the machine.
            "--innodb-flush-log-at-trx-commit=2",
        ]
        url = f"mysql://root@127.0.0.1:{port}/"
        yield OwnServer(url, command, how, folder, databases.mariadb_version, signal.SIGTERM)


OWN = {"postgres": own_postgres, "mariadb": own_mariadb}
