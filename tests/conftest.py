"""For every test: in CI a test that skips because something is missing fails.

Write ``pytest.skip("missing: prometheus is not installed")`` where a test needs a program or a
folder that a machine may lack. With ``OUTRIDER_CI=1`` such a skip is a failure, because there the
machine is ours to set up; other skips stay skips.
"""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest
import structlog
from hypothesis import settings

from tests.support import kube, metric_servers, postgres

MISSING = "missing:"
settings.register_profile("ours", deadline=None)  # a busy machine is no fault of what is tested
settings.load_profile("ours")


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    found = report.longrepr
    text = found[2] if isinstance(found, tuple) else str(found)
    return text.removeprefix("Skipped: ")


def _judge(report: pytest.TestReport | pytest.CollectReport) -> None:
    if os.environ.get("OUTRIDER_CI") == "1" and report.skipped and _reason(report).startswith(MISSING):
        report.outcome = "failed"
        report.longrepr = f"In CI nothing may be missing: {_reason(report)}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _judge(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _judge(report)
    return report


@pytest.fixture(autouse=True)
def _logs_as_they_come() -> Generator[None]:
    """A command run by one test sets up logs on that test's own streams: give the next one a fresh start."""
    yield
    structlog.reset_defaults()


@pytest.fixture(scope="session")
def postgres_server() -> Generator[postgres.Server]:
    """A real PostgreSQL of the run's own, one for all tests: each works in a database of its own."""
    try:
        with postgres.server() as found:
            yield found
    except postgres.MissingError as error:
        pytest.skip(f"missing: {error}")


@pytest.fixture
def postgres_url(postgres_server: postgres.Server) -> Generator[str]:
    """The URL of a fresh database on it."""
    with postgres_server.database() as url:
        yield url


@pytest.fixture(scope="session")
def victoria_server(tmp_path_factory: pytest.TempPathFactory) -> Generator[metric_servers.MetricServer]:
    """A real VictoriaMetrics of the run's own, one for all tests: each writes as an owner of its own."""
    why = metric_servers.missing(("victoria-metrics",))
    if why is not None:
        pytest.skip(why)
    with metric_servers.victoria(tmp_path_factory.mktemp("victoria")) as found:
        yield found


@pytest.fixture(scope="session")
def prometheus_server(tmp_path_factory: pytest.TempPathFactory) -> Generator[metric_servers.MetricServer]:
    """The same with a real Prometheus that takes remote write."""
    why = metric_servers.missing(("prometheus",))
    if why is not None:
        pytest.skip(why)
    with metric_servers.prometheus(tmp_path_factory.mktemp("prometheus")) as found:
        yield found


@pytest.fixture(scope="session")
def control_plane() -> Generator[kube.Cluster]:
    """A real Kubernetes control plane, one for all tests of a run: each works in namespaces of its own."""
    try:
        with kube.cluster() as found:
            yield found
    except kube.MissingError as error:
        pytest.skip(f"missing: {error}")
