from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from store.factory import SqlMetricStore, SqlStateStore, open_metrics, open_state, urls_of
from store.memory import MemoryMetricStore
from tests.store import full_store
from tests.store.aged_store import fill


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
