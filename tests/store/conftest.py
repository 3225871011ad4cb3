from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from store.sql import SqlMetricStore, SqlStateStore, open_metrics, open_state, urls_of


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
