"""Shared fixtures, markers and the rules that hold for every test.

A test that needs a program or a folder that a machine may lack calls ``pytest.skip("missing: prometheus is not
installed")``. With ``OUTRIDER_CI=1`` such a skip is a failure, because CI installs everything; other skips stay skips.
With ``OUTRIDER_CPU_LIMIT=1`` a test without the marker ``slow``, ``server`` or ``fleet`` must not use more than
``UNMARKED_CPU_SECONDS`` of processor time: ``make test-all`` sets it, and ``make test`` leaves the slow ones out.
"""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest
import structlog
from hypothesis import settings

from tests.support import kube, metric_servers, postgres

MISSING = "missing:"
UNMARKED_CPU_SECONDS = 3.0  # processor time, not wall time: it does not depend on what else the machine does
MARKED = ("slow", "server", "fleet", "live", "control_plane")
# Fixtures of servers. Tests of one server run in one worker, so that each server is started once per run.
SERVERS = {
    "postgres_server": "postgresql",
    "postgres_url": "postgresql",
    "victoria_server": "victoria-metrics",
    "prometheus_server": "prometheus",
    "control_plane": "control-plane",
}
SERVER_PARAMETERS = {"postgresql": "postgresql", "postgres": "postgresql", "victoria": "victoria-metrics"}
settings.register_profile("ours", deadline=None, max_examples=25)  # no deadline: the machine may be busy
settings.load_profile("ours")


def _server_of(item: pytest.Item) -> str | None:
    """The server that a test uses: by fixture, or by a parameter that names it."""
    for fixture in getattr(item, "fixturenames", ()):
        if fixture in SERVERS:
            return SERVERS[fixture]
    parameters = getattr(item, "callspec", None)
    names = parameters.id.split("-") if parameters is not None else []
    return next((SERVER_PARAMETERS[name] for name in names if name in SERVER_PARAMETERS), None)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Groups tests by server, else by file, and marks those of servers. Servers come first: they take longest."""
    servers = {}
    for item in items:
        server = servers[item.nodeid] = _server_of(item)
        if server is not None:
            item.add_marker(pytest.mark.server)
        item.add_marker(pytest.mark.xdist_group(server or item.nodeid.partition("::")[0]))
    items.sort(key=lambda item: servers[item.nodeid] is None)  # stable: files stay together


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """With ``OUTRIDER_CPU_LIMIT=1`` an unmarked test that uses too much processor time fails."""
    before = os.times()
    result = yield
    after = os.times()
    used = sum(after[:4]) - sum(before[:4])
    unmarked = not any(item.get_closest_marker(name) for name in MARKED)
    if os.environ.get("OUTRIDER_CPU_LIMIT") == "1" and unmarked and used > UNMARKED_CPU_SECONDS:
        pytest.fail(f"used {used:.1f} s of processor time: mark it slow, or make it faster", pytrace=False)
    return result


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
        with postgres.server(*postgres.UNSYNCED) as found:
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
