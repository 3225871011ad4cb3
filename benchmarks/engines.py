"""Database engines for a store, each empty: SQLite in a folder, PostgreSQL as a private server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common import Result, result
from outrider.errors import StoreError
from store.factory import urls_of
from tests.support import postgres


@dataclass(frozen=True, slots=True)
class Engine:
    """``url`` is the ``store.url`` of an empty store, None if it cannot run here; ``reason`` gives the cause."""

    name: str
    url: str | None
    reason: str = ""

    @property
    def suffix(self) -> str:
        """Suffix of its result names; empty for SQLite."""
        return "" if self.name == "sqlite" else f"_{self.name}"

    def skipped(self, name: str, unit: str, target: float | None) -> Result:
        """Returns the result of a benchmark that cannot run on this engine."""
        return result(name + self.suffix, None, unit, target, None, note=self.reason)


@contextmanager
def engines(folder: Path) -> Iterator[list[Engine]]:
    """Provides SQLite and PostgreSQL. The server is stopped and removed afterwards."""
    results = [Engine("sqlite", f"sqlite:///{folder}/store.db")]
    with ExitStack() as stack:
        try:
            server = stack.enter_context(postgres.server())
            url = stack.enter_context(server.database())
            urls_of(url)
        except postgres.MissingError as error:
            results.append(Engine("postgresql", None, f"{error}."))
        except StoreError as error:
            results.append(Engine("postgresql", None, str(error)))
        else:
            results.append(Engine("postgresql", url))
        yield results
