"""The databases a test run can use: found where the environment says, or started for its length.

`serving(name)` gives a `Server`, or raises `Missing` with one line that says why there is none. A server of
ours is a child process on a free port with its files in a temporary folder; both go with the `with` block.
"""

import os
import pwd
import shutil
import signal
import socket
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from urllib.parse import unquote, urlsplit

POSTGRES_URL = "postgresql://postgres@127.0.0.1:5432/postgres"
MARIADB_URL = "mysql://root@127.0.0.1:3306/"

START_SECONDS = 60
"""A server on a loaded machine takes a few; one that needs more is broken."""
STOP_SECONDS = 30


class Missing(Exception):
    """There is no such database here, and none can be started."""


class NoAnswer(Exception):
    """Nobody is there, or whoever is there does not let us in."""


@dataclass(frozen=True)
class Server:
    version: str
    env: dict[str, str] = field(default_factory=dict)
    """What a test process needs in its environment to reach this server."""


@contextmanager
def serving(name: str) -> Iterator[Server]:
    if name == "sqlite":
        yield Server(sqlite3.sqlite_version)
        return
    variable, default, ask_version, installed = SERVERS[name]
    url = os.environ.get(variable, default)
    with found_or_started(url, ask_version, installed) as (url, version):
        yield Server(version, {variable: url})


@contextmanager
def found_or_started(
    url: str,
    ask_version: Callable[[str], str],
    installed: Callable[[], AbstractContextManager["Installed"]],
) -> Iterator[tuple[str, str]]:
    with ExitStack() as stack:
        try:
            version = ask_version(url)
        except NoAnswer as no_answer:
            try:
                server = stack.enter_context(installed())
                stack.enter_context(server.running())
                url = server.url
            except Missing as reason:
                raise Missing(f"{no_answer}; {reason}") from None
            version = ask_version(url)
        yield url, version


def postgres_version(url: str) -> str:
    import psycopg

    try:
        with psycopg.connect(url, connect_timeout=5) as connection:
            return connection.info.parameter_status("server_version").split()[0]
    except psycopg.OperationalError as error:
        raise NoAnswer(first_line(error)) from None


@dataclass
class Installed:
    """An installed server of our own, on a free port; what it keeps outlives it, but not the machine."""

    url: str
    command: list
    how: dict
    folder: Path
    ask_version: Callable[[str], str]
    stop_signal: signal.Signals
    """It ends in order, however many clients are connected."""

    def running(self, stop: signal.Signals | None = None) -> AbstractContextManager[None]:
        """One life of it, until this signal."""
        ask = partial(self.ask_version, self.url)
        return running(self.command, self.how, self.folder, ask, stop=stop or self.stop_signal)


@contextmanager
def installed_postgres() -> Iterator[Installed]:
    initdb = Path(program("initdb", folders=debian_postgres_folders())).resolve()
    with scratch_folder(account="postgres") as (folder, as_account):
        run(
            [initdb, "-D", "data", "-U", "postgres", "--auth=trust", "--encoding=UTF8", "--no-locale"],
            as_account,
        )
        port = free_port()
        command = [initdb.with_name("postgres"), "-D", "data", "-p", str(port)]
        for setting in ("listen_addresses=127.0.0.1", "unix_socket_directories=", "fsync=off"):
            command += ["-c", setting]
        url = f"postgresql://postgres@127.0.0.1:{port}/postgres"
        yield Installed(url, command, as_account, folder, postgres_version, signal.SIGINT)


def debian_postgres_folders() -> list[Path]:
    """Newest first: Debian keeps several versions side by side, none of them in PATH."""
    folders = Path("/usr/lib/postgresql").glob("*/bin")
    return sorted(folders, key=lambda folder: float(folder.parent.name), reverse=True)


def mariadb_version(url: str) -> str:
    import pymysql

    at = urlsplit(url)
    try:
        connection = pymysql.connect(
            host=at.hostname,
            port=at.port or 3306,
            user=unquote(at.username or ""),
            password=unquote(at.password or ""),
            connect_timeout=5,
        )
    except pymysql.OperationalError as error:
        raise NoAnswer(first_line(error.args[-1])) from None
    with connection, connection.cursor() as cursor:
        # Not get_server_info(): there, MariaDB begins with the 5.5.5 that old clients needed to see.
        cursor.execute("SELECT version()")
        return cursor.fetchone()[0].split("-")[0]


@contextmanager
def installed_mariadb() -> Iterator[Installed]:
    install = program("mariadb-install-db", "mysql_install_db")
    server = program("mariadbd", "mysqld")
    with scratch_folder(account="mysql") as (folder, as_account):
        data = f"--datadir={folder / 'data'}"
        run([install, "--no-defaults", data, "--auth-root-authentication-method=normal"], as_account)
        port = free_port()
        command = [
            server,
            "--no-defaults",
            data,
            f"--port={port}",
            "--bind-address=127.0.0.1",
            f"--socket={folder / 'socket'}",
            f"--pid-file={folder / 'pid'}",
            "--character-set-server=utf8mb4",
            "--innodb-flush-log-at-trx-commit=2",
        ]
        url = f"mysql://root@127.0.0.1:{port}/"
        yield Installed(url, command, as_account, folder, mariadb_version, signal.SIGTERM)


SERVERS = {
    "postgres": ("SEMQ_TEST_POSTGRES", POSTGRES_URL, postgres_version, installed_postgres),
    "mariadb": ("SEMQ_TEST_MARIADB", MARIADB_URL, mariadb_version, installed_mariadb),
}
NAMES = ("sqlite", *SERVERS)


def program(*names: str, folders: list[Path] | None = None) -> str:
    # Servers live in sbin, which is not in everybody's PATH.
    path = [os.environ.get("PATH", ""), "/usr/local/sbin", "/usr/sbin", *map(str, folders or [])]
    for name in names:
        if found := shutil.which(name, path=os.pathsep.join(path)):
            return found
    raise Missing(f"{names[0]} is not installed")


@contextmanager
def scratch_folder(account: str) -> Iterator[tuple[Path, dict]]:
    """Make a folder for a server's files, and say how to run the server: PostgreSQL refuses to be root."""
    with tempfile.TemporaryDirectory(prefix="semq-", ignore_cleanup_errors=True) as name:
        how = {"cwd": name}
        if os.geteuid() == 0:
            user = known_account(account)
            how |= {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
            os.chown(name, user.pw_uid, user.pw_gid)
        yield Path(name), how


def known_account(name: str) -> pwd.struct_passwd:
    try:
        return pwd.getpwnam(name)
    except KeyError:
        return pwd.getpwnam("nobody")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def run(command: list, how: dict) -> None:
    done = subprocess.run(command, **how, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        raise Missing(f"{Path(command[0]).name} failed: {last_line(done.stdout)}")


@contextmanager
def running(command: list, how: dict, folder: Path, ask: Callable, *, stop: signal.Signals) -> Iterator[None]:
    log = folder / "log"
    with log.open("wb") as output:
        # In a session of its own, or Ctrl-C would take the server away before the tests have ended.
        server = subprocess.Popen(command, **how, stdout=output, stderr=output, start_new_session=True)
    try:
        wait_until_answering(server, ask, log)
        yield
    finally:
        server.send_signal(stop)
        try:
            server.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def wait_until_answering(server: subprocess.Popen, ask: Callable, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            ask()
        except NoAnswer as no_answer:
            if server.poll() is not None:
                reason = last_line(log.read_text(errors="replace"))
            elif time.monotonic() > deadline:
                reason = str(no_answer)
            else:
                time.sleep(0.1)
                continue
            raise Missing(f"{Path(server.args[0]).name} did not start: {reason}") from None
        return


def first_line(text: object) -> str:
    return str(text).strip().partition("\n")[0]


def last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2]
