"""A real PostgreSQL from Debian's packages, on a free loopback port, in a folder of its own."""

from __future__ import annotations

import itertools
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

_USER = "postgres"  # Debian's package makes it; the server refuses to run as root
# For tests, not for benchmarks: a test crashes the server, never the machine.
UNSYNCED = ("-c fsync=off", "-c full_page_writes=off")


class MissingError(Exception):
    """The programs are not there."""


def programs() -> Path:
    """The folder of initdb and postgres. Raises MissingError."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: float(path.parts[4]))
    if found:
        return found[-1].parent
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
        """Make the folder of data."""
        self._run("initdb", "-D", str(self.folder / "data"), "-A", "trust", "-U", "outrider", "-E", "UTF8", "-N")

    def start(self) -> None:
        """Start and wait until it answers."""
        options = [
            f"-c port={self.port}", "-c listen_addresses=127.0.0.1", f"-c unix_socket_directories={self.folder}",
            *self.options,
        ]  # fmt: skip
        log = str(self.folder / "log")
        self._run("pg_ctl", "-D", str(self.folder / "data"), "-l", log, "-w", "-o", " ".join(options), "start")

    def stop(self, mode: str = "fast") -> None:
        """Stop: ``fast`` ends sessions, ``immediate`` is a crash that leaves recovery to the next start."""
        self._run("pg_ctl", "-D", str(self.folder / "data"), "-w", "-m", mode, "stop")

    @property
    def running(self) -> bool:
        """True while the server has a process."""
        return (self.folder / "data" / "postmaster.pid").exists()

    def sql(self, statement: str, database: str = "postgres") -> str:
        """What psql answers, unaligned."""
        where = ["-h", "127.0.0.1", "-p", str(self.port), "-U", "outrider", "-d", database]
        return self._run("psql", *where, "-v", "ON_ERROR_STOP=1", "-Atqc", statement).stdout.strip()

    def url(self, database: str) -> str:
        """How outrider names a database of it."""
        return f"postgresql://outrider@127.0.0.1:{self.port}/{database}"

    @contextmanager
    def database_in(self, folder: Path) -> Iterator[str]:
        """A fresh database whose tables lie in a folder that the server may reach; yields its URL."""
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
    def database(self) -> Iterator[str]:
        """A fresh database, dropped afterwards; yields its URL."""
        name = f"test_{next(self._numbers)}"
        self.sql(f"CREATE DATABASE {name}")
        try:
            yield self.url(name)
        finally:
            self.sql(f"DROP DATABASE {name} WITH (FORCE)")


@contextmanager
def server(*options: str) -> Iterator[Server]:
    """A server that is stopped and removed afterwards. Raises MissingError."""
    programs()
    folder = Path(tempfile.mkdtemp(prefix="outrider-postgres-"))
    try:
        if os.geteuid() == 0:
            owner = pwd.getpwnam(_USER)
            os.chown(folder, owner.pw_uid, owner.pw_gid)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            found = Server(folder, int(free.getsockname()[1]), options)
        found.create()
        found.start()
        try:
            yield found
        finally:
            if found.running:
                found.stop("immediate")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
