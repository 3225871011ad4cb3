"""A real PostgreSQL from Debian's packages, on a free loopback port, in its own folder."""

from __future__ import annotations

import itertools
import os
import pwd
import re
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import sqlalchemy as sa

_HOW_TO = Path(__file__).parents[2] / "docs" / "howto" / "read-the-store-with-sql.md"
_USER = "postgres"  # Debian's package makes it; the server refuses to run as root
# For tests, not for benchmarks: a test crashes the server, never the machine.
UNSYNCED = ("-c fsync=off", "-c full_page_writes=off")


class MissingError(Exception):
    """PostgreSQL is not installed."""


def programs() -> Path:
    """Returns the folder of initdb and postgres. Raises MissingError."""
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: float(path.parts[4]))
    if installed:
        return installed[-1].parent
    path = shutil.which("postgres")
    if path is None:
        raise MissingError("PostgreSQL is not installed (Debian package postgresql)")
    return Path(path).resolve().parent


@dataclass(slots=True)
class Server:
    """A server that tests may stop and start."""

    folder: Path
    port: int
    options: tuple[str, ...] = ()
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def _run(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        owner = _USER if os.geteuid() == 0 else None
        command = [str(programs() / program), *arguments]
        done = subprocess.run(command, user=owner, cwd="/", capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{program}: {done.stdout}{done.stderr}"
        return done

    def create(self) -> None:
        """Creates the data folder."""
        self._run("initdb", "-D", str(self.folder / "data"), "-A", "trust", "-U", "outrider", "-E", "UTF8", "-N")

    def start(self) -> None:
        """Starts the server and waits until it responds."""
        options = [
            f"-c port={self.port}", "-c listen_addresses=127.0.0.1", f"-c unix_socket_directories={self.folder}",
            *self.options,
        ]  # fmt: skip
        log = str(self.folder / "log")
        self._run("pg_ctl", "-D", str(self.folder / "data"), "-l", log, "-w", "-o", " ".join(options), "start")

    def stop(self, mode: str = "fast") -> None:
        """Stops the server: ``fast`` ends sessions, ``immediate`` is a crash with recovery at the next start."""
        self._run("pg_ctl", "-D", str(self.folder / "data"), "-w", "-m", mode, "stop")

    @property
    def running(self) -> bool:
        """True while the server has a process."""
        return (self.folder / "data" / "postmaster.pid").exists()

    def sql(self, statement: str, database: str = "postgres") -> str:
        """Returns the unaligned output of psql."""
        where = ["-h", "127.0.0.1", "-p", str(self.port), "-U", "outrider", "-d", database]
        return self._run("psql", *where, "-v", "ON_ERROR_STOP=1", "-Atqc", statement).stdout.strip()

    def url(self, database: str) -> str:
        """Returns the store URL of a database."""
        return f"postgresql://outrider@127.0.0.1:{self.port}/{database}"

    @contextmanager
    def database_in(self, folder: Path) -> Iterator[str]:
        """Creates a database whose tables are in a folder accessible to the server; yields its URL."""
        if os.geteuid() == 0:
            owner = pwd.getpwnam(_USER)
            os.chown(folder, owner.pw_uid, owner.pw_gid)
        name = f"elsewhere_{next(self._numbers)}"
        self.sql(f"CREATE TABLESPACE {name} LOCATION '{folder}'")
        try:
            self.sql(f"CREATE DATABASE {name} TABLESPACE {name}")
            yield self.url(name)
        finally:
            self.sql(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
            self.sql(f"DROP TABLESPACE {name}")

    @contextmanager
    def database(self, template: str = "template1") -> Iterator[str]:
        """Yields the URL of a new database, a copy of ``template``; drops it afterwards."""
        name = f"test_{next(self._numbers)}"
        self.sql(f"CREATE DATABASE {name} TEMPLATE {template}")
        try:
            yield self.url(name)
        finally:
            self.sql(f"DROP DATABASE {name} WITH (FORCE)")


@contextmanager
def documented_reader(server: Server, url: str) -> Iterator[sa.Engine]:
    """Creates the role of docs/howto/read-the-store-with-sql.md in the database of a URL; yields its connections."""
    name = url.rsplit("/", 1)[-1]
    blocks = re.findall(r"```sql\n(.*?)```", _HOW_TO.read_text(encoding="utf-8"), re.DOTALL)
    (statements,) = (block for block in blocks if "CREATE ROLE" in block)
    reader = url.replace("outrider@", "outrider_reader@").replace("postgresql:", "postgresql+psycopg:")
    engine = sa.create_engine(reader)
    try:
        server.sql(statements, name)
        yield engine
    finally:
        engine.dispose()
        server.sql("DROP OWNED BY outrider_reader", name)
        server.sql("DROP ROLE IF EXISTS outrider_reader")


@contextmanager
def server(*options: str) -> Iterator[Server]:
    """Runs a server that is stopped and removed afterwards. Raises MissingError."""
    programs()
    folder = Path(tempfile.mkdtemp(prefix="outrider-postgres-"))
    try:
        if os.geteuid() == 0:
            owner = pwd.getpwnam(_USER)
            os.chown(folder, owner.pw_uid, owner.pw_gid)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            running = Server(folder, int(free.getsockname()[1]), options)
        running.create()
        running.start()
        try:
            yield running
        finally:
            if running.running:
                running.stop("immediate")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
