"""Remote metric store: request format, retries, logged rejections, and the markers that make a cycle count."""

from __future__ import annotations

import ssl
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from time import monotonic

import cramjam
import numpy as np
import pytest
import structlog
import trustme

from outrider.errors import StoreError, StoreUnavailableError
from outrider.model import CellStatus, EntityKind, EntityRef, Event, EventKind, SampleBatch, SignalKey
from outrider.vocabulary import catalog
from outrider.wire.http_auth import Access, Tls
from outrider.wire.remote_write import WriteRequest
from store.remote import unflushed_cycles
from store.remote.api_responses import matrix
from store.remote.client import Server
from store.remote.metric_store import PrometheusMetricStore, Remote
from tests.support import metric_servers
from tests.support.metric_servers import MetricServer
from tests.support.remote_store import Searchable, remote_of, searchable

T0 = datetime(2026, 3, 1, 12, tzinfo=UTC)
MS = round(T0.timestamp() * 1000)
STEP, MINUTE = timedelta(seconds=15), timedelta(minutes=1)
POWER, ECC = SignalKey("hw_accel_power_watts"), SignalKey("hw_accel_ecc_uncorrectable_total")
GPUS = tuple(EntityRef("prod", EntityKind.GPU, None, f"gpu-{index}") for index in range(4))
NOTHING = b'{"status":"success","data":{"resultType":"%s","result":[]}}'
NAN = float("nan")


def cycle(at: datetime, *power: float, status: CellStatus = CellStatus.PRESENT) -> list[SampleBatch]:
    cells = np.array([[watts, 1.0] for watts in power])
    marks = np.zeros(cells.shape, dtype=np.uint8)
    cells[:, 1], marks[:, 1] = (1.0, 0) if status is CellStatus.PRESENT else (NAN, status)
    return [SampleBatch("t", at, EntityKind.GPU, (POWER, ECC), GPUS[: len(power)], cells, marks)]


class Scripted:
    """A server that returns scripted responses to writes, then 204. It has no samples."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, dict[str, str], bytes]] = []
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def secure(self, authority: trustme.CA) -> None:
        """Switches to TLS."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        authority.issue_cert("127.0.0.1").configure_cert(context)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.requests.append((self.path, dict(self.headers), body))
                status, headers, payload = 200, {}, NOTHING % (b"vector" if b"count" in body else b"matrix")
                if self.path == "/write":
                    status, headers, payload = outer.answers.pop(0) if outer.answers else (204, {}, b"")
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(payload)))
                self.end_headers()
                self.wfile.write(payload)

            def log_message(self, *_: object) -> None:
                pass

        return Handler

    @property
    def series(self) -> list[tuple[dict[str, str], list[tuple[int, float]]]]:
        """Every received series with its samples."""
        result = []
        for path, _, body in self.requests:
            if path == "/write":
                for series in WriteRequest.FromString(bytes(cramjam.snappy.decompress_raw(body))).timeseries:
                    names = [label.name for label in series.labels]
                    assert names == sorted(names)
                    labels = {label.name: label.value for label in series.labels}
                    result.append((labels, [(sample.timestamp, sample.value) for sample in series.samples]))
        return result

    def remote(self, scheme: str = "http", **more: object) -> Remote:
        base = f"{scheme}://127.0.0.1:{self.port}"
        remote = Remote(f"{base}/write", base, "me", timeout=timedelta(seconds=5), retry_for=timedelta(seconds=1))
        return replace(remote, **more)  # type: ignore[arg-type]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def scripted() -> Iterator[Scripted]:
    server = Scripted()
    yield server
    server.close()


Opened = Callable[[Remote], PrometheusMetricStore]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    stores: list[PrometheusMetricStore] = []

    def open_(remote: Remote) -> PrometheusMetricStore:
        stores.append(PrometheusMetricStore(remote, f"sqlite:///{tmp_path}/x-metrics.db"))
        return stores[-1]

    yield open_
    for store in stores:
        assert store.connections_in_use == 0
        store.close()


def test_a_cycle_is_sent_as_numbers_statuses_and_a_marker(scripted: Scripted, opened: Opened) -> None:
    written = opened(scripted.remote()).write(T0, cycle(T0, 100.5, NAN, status=CellStatus.RESET))
    labels, other_labels = (
        {"cluster": "prod", "kind": "gpu", "name": name, "outrider": "me"} for name in ("gpu-0", "gpu-1")
    )
    assert written == 1
    assert sorted(scripted.series[:-1], key=str) == [
        ({"__name__": "outrider_cell_status", **labels, "signal": str(ECC)}, [(MS, float(CellStatus.RESET))]),
        ({"__name__": "outrider_cell_status", **other_labels, "signal": str(ECC)}, [(MS, float(CellStatus.RESET))]),
        ({"__name__": "outrider_hw_accel_power_watts", **labels}, [(MS, 100.5)]),
        ({"__name__": "outrider_scrape_offset_seconds", **labels}, [(MS, 0.0)]),
        ({"__name__": "outrider_scrape_offset_seconds", **other_labels}, [(MS, 0.0)]),
    ]
    end = {"__name__": "outrider_stored_cycle_microseconds", "kind": "gpu", "outrider": "me", "write": "1"}
    assert scripted.series[-1] == (end, [(MS, T0.timestamp() * 1e6)])


def test_a_histogram_is_sent_cumulative_with_one_status_for_all_buckets(scripted: Scripted, opened: Opened) -> None:
    keys = catalog.signal("engine_ttft_seconds").bucket_keys
    replicas = tuple(EntityRef("prod", EntityKind.REPLICA, "llm", name) for name in "ab")
    values, status = np.zeros((2, len(keys))), np.zeros((2, len(keys)), dtype=np.uint8)
    values[0, [2, 5]], values[0, -1] = (3.0, 4.0), 1.25
    values[1], status[1] = NAN, CellStatus.STALE
    opened(scripted.remote(samples=10)).write(
        T0, [SampleBatch("t", T0, EntityKind.REPLICA, keys, replicas, values, status)]
    )
    by_name: dict[str, list[tuple[dict[str, str], float]]] = {}
    for labels, ((_, value),) in scripted.series:
        by_name.setdefault(labels["__name__"], []).append((labels, value))
    buckets = {labels["le"]: value for labels, value in by_name["outrider_engine_ttft_seconds_bucket"]}
    assert len(buckets) == len(keys) - 1
    assert [buckets[le] for le in ("0.005", "0.01", "0.06", "0.25", "+Inf")] == [0.0, 3.0, 7.0, 7.0, 7.0]
    assert [value for _, value in by_name["outrider_engine_ttft_seconds_sum"]] == [1.25]
    ((labels, code),) = by_name["outrider_cell_status"]
    assert (labels["name"], labels["signal"], code) == ("b", "engine_ttft_seconds#*", CellStatus.STALE)
    assert len([path for path, _, _ in scripted.requests if path == "/write"]) == 5, (
        "10 samples per request, then the marker"
    )


def test_headers_and_credentials_are_sent_with_every_request(
    scripted: Scripted, opened: Opened, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("s3cret\n")
    store = opened(
        scripted.remote(
            access=Access(headers={"X-Scope-OrgID": "ml"}, bearer_token_file=tmp_path / "token"),
        )
    )
    store.write(T0, cycle(T0, 1.0))
    (tmp_path / "token").write_text("other\n")
    store.read_windows(EntityKind.GPU, [POWER], T0, T0 + MINUTE, STEP)
    sent = [(path, headers["X-Scope-OrgID"], headers["Authorization"]) for path, headers, _ in scripted.requests]
    assert Counter(sent) == {
        ("/api/v1/query", "ml", "Bearer s3cret"): 1,
        ("/write", "ml", "Bearer s3cret"): 2,
        ("/api/v1/query", "ml", "Bearer other"): 1,
    }
    (tmp_path / "token").unlink()
    with pytest.raises(StoreUnavailableError, match="token"):
        store.write(T0 + STEP, cycle(T0 + STEP, 1.0))


def test_tls_with_a_private_certificate_authority(scripted: Scripted, opened: Opened, tmp_path: Path) -> None:
    authority = trustme.CA()
    scripted.secure(authority)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    trusting = Access(tls=Tls(ca_file=tmp_path / "ca.pem"))
    assert opened(scripted.remote("https", access=trusting)).write(T0, cycle(T0, 1.0)) == 2
    with pytest.raises(StoreUnavailableError, match="CERTIFICATE_VERIFY_FAILED"):
        opened(scripted.remote("https")).write(T0, cycle(T0, 1.0))


def test_retryable_responses_are_retried(scripted: Scripted, opened: Opened) -> None:
    scripted.answers = [(503, {}, b"busy"), (500, {}, b""), (429, {"Retry-After": "1"}, b"slow down")]
    store = opened(scripted.remote(retry_for=timedelta(seconds=5)))
    begun = monotonic()
    assert store.write(T0, cycle(T0, 1.0)) == 2
    assert monotonic() - begun >= 1.0, "the server requested a wait of one second"
    assert len([path for path, _, _ in scripted.requests if path == "/write"]) == 5
    assert store.condition().refused == {}


def test_a_server_that_stays_busy_is_unavailable(scripted: Scripted, opened: Opened) -> None:
    scripted.answers = [(429, {"Retry-After": "60"}, b"ingestion rate limit (10000) exceeded")]
    with pytest.raises(StoreUnavailableError, match=r"HTTP 429: ingestion rate limit \(10000\) exceeded"):
        opened(scripted.remote()).write(T0, cycle(T0, 1.0))


@pytest.mark.parametrize(("status", "text"), [(401, "no tenant"), (404, "not found"), (413, "too large"), (301, "")])
def test_a_configuration_error_is_reported_and_loses_nothing(
    scripted: Scripted, opened: Opened, status: int, text: str
) -> None:
    scripted.answers = [(status, {}, text.encode())]
    with pytest.raises(StoreUnavailableError, match=f"HTTP {status}.*{text}") as caught:
        opened(scripted.remote()).write(T0, cycle(T0, 1.0))
    assert "store.metrics.url_write" in caught.value.hint


def test_rejected_samples_are_counted_by_reason_and_logged_once(scripted: Scripted, opened: Opened) -> None:
    store = opened(scripted.remote())
    message = 'out of order sample, series={name="gpu-%d"} at 2026-03-01T12:00:%02d'
    with structlog.testing.capture_logs() as logged:
        for number in range(3):
            at = T0 + number * STEP
            scripted.answers = [(400, {}, (message % (number, number)).encode())]
            assert store.write(at, cycle(at, 1.0)) == 0, "that request had two values and the offset"
        scripted.answers = [(400, {}, b"(err-mimir-max-series-per-user) per-user series limit of 150000 exceeded")]
        store.write(T0 + MINUTE, cycle(T0 + MINUTE, 1.0))
    assert store.condition().refused == {
        "HTTP 400: out of order sample, series=… at …": 9,
        "err-mimir-max-series-per-user": 3,
    }
    assert [line["reason"] for line in logged] == list(store.condition().refused)
    assert logged[0]["samples"] == 3


def test_a_cycle_with_a_rejected_marker_is_an_error(scripted: Scripted, opened: Opened) -> None:
    scripted.answers = [(204, {}, b""), (400, {}, b"out of bounds")]
    with pytest.raises(StoreError, match=r"rejects the cycle of 2026-03-01T12:00:00Z.*out of bounds") as caught:
        opened(scripted.remote()).write(T0, cycle(T0, 1.0))
    assert not isinstance(caught.value, StoreUnavailableError), "it would be rejected again"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"<html>", "did not return a matrix: '<html>'"),
        (b'{"status":"error","error":"x"}', "did not return a matrix"),
        (b'{"status":"success","data":{"resultType":"matrix","result":[{"metric":{},"values":[[1,"2"', "truncated"),
        (
            b'{"status":"success","data":{"resultType":"matrix","result":[{"metric":{},"values":[[1,"x"]]}]}}',
            "not a matrix of numbers",
        ),
    ],
)
def test_an_invalid_response_is_an_error(body: bytes, message: str) -> None:
    with pytest.raises(StoreError, match=message):
        matrix(body)


# --- real servers ---------------------------------------------------------------------------------


def test_a_server_accepts_the_same_cycle_after_an_outage(tmp_path: Path) -> None:
    reason = metric_servers.missing(("victoria-metrics",))
    if reason is not None:
        pytest.skip(reason)
    event = Event("1", EventKind.XID, GPUS[0], T0 + STEP, "dcgm", "79", {})
    with metric_servers.victoria(tmp_path) as server:
        store = searchable(server, tmp_path)
        store.write(T0, cycle(T0, 1.0, 2.0))
        server.stop()
        with pytest.raises(StoreUnavailableError, match="does not answer"):
            store.write(T0 + STEP, cycle(T0 + STEP, 3.0, 4.0), [event])
        assert store.events(T0, T0 + MINUTE) == (event,), "events are stored at once"
        with pytest.raises(StoreUnavailableError):
            store.read_windows(EntityKind.GPU, [POWER], T0, T0 + MINUTE, STEP)
        server.start()
        store.write(T0 + STEP, cycle(T0 + STEP, 3.0, 4.0), [event])
        window = store.read_windows(EntityKind.GPU, [POWER], T0, T0 + 2 * STEP, STEP)
        assert window.column(POWER).tolist() == [[1.0, 3.0], [2.0, 4.0]]
        assert window.events == (event,)
        store.close()


def test_cycles_lost_by_a_killed_server_are_sent_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """VictoriaMetrics acknowledges samples before they are on disk."""
    reason = metric_servers.missing(("victoria-metrics",))
    if reason is not None:
        pytest.skip(reason)
    monkeypatch.setattr(unflushed_cycles, "SEARCHABLE_AFTER", 0.0)
    with metric_servers.victoria(tmp_path) as server:
        store = searchable(server, tmp_path)
        store.write(T0, cycle(T0, 1.0, 2.0))
        server.kill()
        server.start()
        assert store.latest(EntityKind.GPU, [POWER]).values.size == 0, "precondition: the server lost the cycle"
        with structlog.testing.capture_logs() as logged:
            for number in (1, 2):
                store.write(T0 + number * STEP, cycle(T0 + number * STEP, 3.0, 4.0))
        assert [line["event"] for line in logged] == ["server_lost_cycles"]
        window = store.read_windows(EntityKind.GPU, [POWER], T0, T0 + 3 * STEP, STEP)
        assert window.column(POWER).tolist() == [[1.0, 3.0, 3.0], [2.0, 4.0, 4.0]]
        store.close()


def test_an_incomplete_cycle_is_not_read(
    victoria_server: MetricServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Searchable(
        victoria_server, f"sqlite:///{tmp_path}/x.db", replace(remote_of(victoria_server), samples=3, connections=1)
    )
    store.write(T0, cycle(T0, 1.0, 2.0, 3.0))
    sent = 0

    write = Server.write

    def write_two(server: Server, body: bytes, samples: int, deadline: float) -> int:
        nonlocal sent
        sent += 1
        if sent > 2:
            raise StoreUnavailableError("unreachable")
        return write(server, body, samples, deadline)

    monkeypatch.setattr(Server, "write", write_two)
    with pytest.raises(StoreUnavailableError, match="unreachable"):
        store.write(T0 + STEP, cycle(T0 + STEP, 4.0, 5.0, 6.0))
    victoria_server.flush()
    assert sent >= 3
    assert store.latest(EntityKind.GPU, [POWER]).values.ravel().tolist() == [1.0, 2.0, 3.0]
    monkeypatch.undo()
    store.write(T0 + STEP, cycle(T0 + STEP, 4.0, 5.0, 6.0))
    assert store.latest(EntityKind.GPU, [POWER]).values.ravel().tolist() == [4.0, 5.0, 6.0]
    store.close()


def test_a_server_without_an_out_of_order_window_is_an_error(tmp_path: Path) -> None:
    reason = metric_servers.missing(("prometheus",))
    if reason is not None:
        pytest.skip(reason)
    with metric_servers.prometheus(tmp_path, out_of_order="0s") as server:
        store = searchable(server, tmp_path)
        store.write(T0, cycle(T0, 1.0))
        store.write(T0 + STEP, cycle(T0 + STEP, 2.0))
        with pytest.raises(StoreError, match="out of order") as caught:
            store.write(T0 - STEP, cycle(T0 - STEP, 3.0))
        assert "out_of_order_time_window" in caught.value.hint
        assert store.condition().refused == {"HTTP 400: out of order sample": 4}
        window = store.read_windows(EntityKind.GPU, [POWER], T0 - MINUTE, T0 + MINUTE, 2 * MINUTE)
        assert window.column(POWER).tolist() == [[2.0]]
        store.close()
