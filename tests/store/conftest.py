from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from store.factory import SqlMetricStore, SqlStateStore, open_metrics, open_state, urls_of
from store.memory import MemoryMetricStore
from tests.store import full_store
from tests.store.aged_store import fill
from tests.support import postgres

FILLED_CYCLES = 62  # more than an hour, so that one is compacted and rolled up


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/deep/outrider.db"


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "postgres_url"))


@pytest.fixture
def metrics(store_url: str) -> Iterator[SqlMetricStore]:
    store = open_metrics(urls_of(store_url)[1])
    yield store
    assert store.connections_in_use == 0
    store.close()


@pytest.fixture
def state(store_url: str) -> Iterator[SqlStateStore]:
    store = open_state(urls_of(store_url)[0])
    yield store
    assert store.connections_in_use == 0
    store.close()


@pytest.fixture(scope="session")
def filled_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SQLite files of 62 cycles, to be copied."""
    folder = tmp_path_factory.mktemp("filled") / "deep"
    full_store.fill(f"sqlite:///{folder}/outrider.db", count=FILLED_CYCLES)
    return folder


@pytest.fixture(scope="session")
def filled_database(postgres_server: postgres.Server) -> Iterator[str]:
    """Name of a PostgreSQL database of 62 cycles, to be copied."""
    with postgres_server.database() as url:
        full_store.fill(url, count=FILLED_CYCLES)
        yield url.rpartition("/")[2]


@pytest.fixture
def filled_sqlite(filled_folder: Path, sqlite_url: str) -> str:
    """URL of a copy of the filled SQLite files."""
    shutil.copytree(filled_folder, Path(sqlite_url.removeprefix("sqlite:///")).parent)
    return sqlite_url


@pytest.fixture
def filled_postgres(postgres_server: postgres.Server, filled_database: str) -> Iterator[str]:
    """URL of a copy of the filled PostgreSQL database."""
    with postgres_server.database(template=filled_database) as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def filled(request: pytest.FixtureRequest) -> str:
    """URL of a filled store of each engine."""
    return str(request.getfixturevalue("filled_sqlite" if request.param == "sqlite" else "filled_postgres"))


@pytest.fixture(scope="session")
def full(tmp_path_factory: pytest.TempPathFactory) -> str:
    url = f"sqlite:///{tmp_path_factory.mktemp('full')}/x.db"
    full_store.fill(url)
    return url


@pytest.fixture(scope="session")
def full_backup(full: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("backup") / "full.tar.zst"
    full_store.back_up(full, file)
    return file


@pytest.fixture
def truth() -> MemoryMetricStore:
    store = MemoryMetricStore()
    fill(store)
    return store
