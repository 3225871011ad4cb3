"""The flight recorder over HTTP, and the replay of what it wrote."""

import asyncio
import gzip
import json
from datetime import UTC, datetime, timedelta

import pytest

from collectors.recording import reader
from outrider.clock import ManualClock
from outrider.errors import CollectReason, UsageError
from outrider.model import EntityKind, EventKind
from service.config.settings import Settings
from service.ops import replay
from service.recorder import flight_recorder
from simulator.faults import inject
from simulator.fleet import Fleet
from simulator.servers.http import serve
from simulator.servers.log_and_api_endpoints import event_settings
from simulator.spec.fleets import default_spec

START = datetime(2026, 11, 18, 12, tzinfo=UTC)
STEP = timedelta(seconds=15)
SECRET = "s3cr3t-token"


class FleetClock(ManualClock):
    """Advances the fleet during a sleep."""

    def __init__(self, fleet, server) -> None:
        super().__init__(fleet.now)
        self._fleet, self._server = fleet, server

    async def sleep(self, duration):
        self.advance(duration)
        self._fleet.step(duration)
        await self._server.sync()


def silent(stage, share):
    assert 0 < share <= 1


async def recorded(folder, rounds):
    """Records a fleet in which one engine dies after five rounds. Returns (result, truth)."""
    fleet = Fleet(default_spec(), seed=3, start=START)
    fleet.step(STEP)
    server = await serve(fleet)
    try:
        listed = server.targets()
        for target in listed["targets"]:
            target["headers"] = {"Authorization": f"Bearer {SECRET}"}
            target["url"] += f"?token={SECRET}"
        settings = Settings.model_validate({"cluster": listed["cluster"], "collect": {"targets": listed["targets"]}})
        truth = inject(fleet, "engine-dead", start=fleet.now + 5 * STEP)
        result = await flight_recorder.record(settings, rounds * STEP, folder, FleetClock(fleet, server), silent)
        return result, truth
    finally:
        await server.close()


@pytest.fixture(scope="module")
def flight(tmp_path_factory):
    folder = tmp_path_factory.mktemp("flight") / "new"
    return folder, *asyncio.run(recorded(folder, 12))


@pytest.mark.slow
def test_every_scrape_of_every_target_is_recorded(flight):
    folder, result, _ = flight
    assert result == {"dir": str(folder), "targets": 45, "scrapes": 45 * 12}
    fleet = reader.read_fleet(folder)
    assert len(fleet.targets) == 45
    scrapes = list(fleet.scrapes())
    assert len(scrapes) == 45 * 12
    assert {scrape.at for scrape in scrapes} == {START + STEP + number * STEP for number in range(12)}


@pytest.mark.slow
def test_reasons_of_failed_scrapes_and_results_of_engine_probes_are_recorded(flight):
    folder, _, truth = flight
    victim = [scrape for scrape in reader.read_fleet(folder).scrapes() if scrape.target.name == truth.entity.name]
    assert all(scrape.probed for scrape in victim)
    assert (victim[0].health, victim[0].error) == (200, None)
    assert victim[0].load >= 0
    assert CollectReason.REFUSED in {scrape.error.reason for scrape in victim if scrape.error}


def test_a_recording_has_no_addresses_and_no_secrets(flight):
    folder, _, _ = flight
    texts = [(folder / "targets.yaml").read_text()]
    texts += [gzip.decompress(path.read_bytes()).decode() for path in folder.glob("*.gz")]
    assert len(texts) == 46
    assert not any(SECRET in text or "127.0.0.1" in text for text in texts)


@pytest.mark.slow
def test_replay_detects_the_recorded_fault(flight):
    folder, _, truth = flight
    result = replay.replay([folder], adapter="vllm", emit=["incidents"], settings=Settings(), language="en")
    assert result["cycles"] == 12
    (incident,) = result["incidents"]
    cause = incident["suspected_cause"]
    assert (cause["fault"], cause["entity"]["name"]) == ("engine-dead", truth.entity.name)


@pytest.mark.slow
def test_events_are_recorded_and_read_back(tmp_path):
    async def scene():
        fleet = Fleet(default_spec(), seed=3, start=START)
        server = await serve(fleet)
        listed = server.targets()
        targets = [target for target in listed["targets"] if target["adapter"] == "dcgm"]
        events = event_settings(server.base_url)
        document = {"cluster": "demo", "collect": {"targets": targets}, "events": events}
        inject(fleet, "gpu-lost", seed=3)
        fleet.step(STEP)
        try:
            return await flight_recorder.record(
                Settings.model_validate(document), 2 * STEP, tmp_path / "new", FleetClock(fleet, server), silent
            )
        finally:
            await server.close()

    result = asyncio.run(scene())
    events = reader.read_fleet(tmp_path / "new").events
    assert result["events"] == len(events) >= 2
    (xid,) = [event for event in events if event.kind is EventKind.XID]
    assert (xid.code, xid.entity.kind, xid.attributes["text"]) == ("79", EntityKind.GPU, "GPU has fallen off the bus.")


@pytest.mark.slow
def test_a_folder_that_is_not_empty_is_not_changed(flight):
    folder, _, _ = flight
    before = sorted(path.name for path in folder.iterdir())
    with pytest.raises(UsageError, match="is not empty"):
        asyncio.run(recorded(folder, 1))
    assert sorted(path.name for path in folder.iterdir()) == before


@pytest.mark.parametrize("reason", ["tls", "too_large", "truncated", "not_metrics", "timeout", "http_status"])
def test_every_reason_reads_back(tmp_path, reason):
    from collectors.mapping.target import target_of
    from collectors.recording import recorder as writer
    from collectors.scrape.result import Scrape
    from outrider.errors import CollectError

    target = target_of("c", {"name": "x", "adapter": "vllm", "url": f"http://u:{SECRET}@127.0.0.1/metrics"})
    recorder = writer.FlightRecorder(tmp_path, "c", [target])
    error = CollectError(f"x: {target.url} returned HTTP 503", reason=reason)
    recorder.add([Scrape(target, START, None, error, 0.1)])
    recorder.close()
    (scrape,) = reader.read_fleet(tmp_path).scrapes()
    assert scrape.error.reason == reason
    assert SECRET not in json.dumps(scrape.error.message)


def test_recording_requires_targets(tmp_path):
    with pytest.raises(UsageError, match="no targets"):
        asyncio.run(flight_recorder.record(Settings(), STEP, tmp_path / "x", ManualClock(START), silent))
