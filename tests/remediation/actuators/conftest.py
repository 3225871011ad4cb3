"""An HTTP server on loopback, without proxies."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.json_server import JsonServer, json_server


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[JsonServer]:
    """A server whose responses the test sets."""
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    with json_server() as result:
        yield result
