"""``outrider capacity what-if buy`` on a store: whole replicas, the coming hours, and a stored load test."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from outrider.errors import UsageError
from outrider.model import Calibration, CycleRecord, EntityKind, EntityRef, SignalKey
from outrider.ports import CycleCommit
from outrider.topology import Topology
from planner.cost.offers import Offer
from planner.performance.gpu_catalog import gpu
from service.capacity.purchasing import Demand, prices_of
from service.config.settings import Settings, StoreSettings
from service.wiring import stores as wiring_stores
from tests.service.cli.test_cli import answer, run

NOW = datetime(2026, 5, 18, 14, 50, tzinfo=UTC)  # a Monday, after a Sunday without load
CHAT = EntityRef("default", EntityKind.SERVICE, "serving", "chat")
REPLICAS = [EntityRef("default", EntityKind.REPLICA, "serving", f"chat-{n}") for n in range(6)]
BUY = ("capacity", "buy", "--service", "chat", "--lead", "1h", "--burst-price", "2")
QUIET, BUSY = 2.0, 12.0


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fifteen days: busy from 8 to 20 except on Sundays. No engine shows a value; a load test is kept."""
    folder = tmp_path_factory.mktemp("buying")
    url = f"sqlite:///{folder}/s.db"
    (folder / "outrider.yaml").write_text(
        f"store: {{url: '{url}'}}\nservices:\n  - {{name: chat, namespace: serving, gpu_type: H100, ceiling: 60}}\n"
    )
    times = NOW.timestamp() - 600.0 * np.arange(15 * 144, 0, -1)
    hour, weekday = times // 3600 % 24, (times // 86400 + 3) % 7  # the epoch began on a Thursday
    load = np.where((hour >= 8) & (hour < 20) & (weekday < 6), BUSY, QUIET)
    test = Calibration(
        CHAT, "H100", 300.0, 32.0, 25.0, 8, 1, 300.0, 100, "measured", source="load_test",
        measured_at=NOW - timedelta(days=1), valid_until=NOW + timedelta(days=30),
    )  # fmt: skip
    labels = {replica: {"tensor_parallel": "8", "gpu_type": "H100"} for replica in REPLICAS}
    with wiring_stores.stores(Settings(store=StoreSettings(url=url))) as (state, metrics):
        keys = [SignalKey("svc_requests_per_second")]
        metrics.write_block(EntityKind.SERVICE, times, keys, [CHAT], load[None, :, None])
        topology = Topology.build([(replica, CHAT) for replica in REPLICAS], labels=labels)
        state.commit(CycleCommit(CycleRecord("c", NOW, 1.0, 2, 2, 0, 0, 0, 0), topology=topology))
        state.save_load_test(test)
    return folder


def test_a_kept_load_test_and_the_buffer_of_the_plan_count(stored):
    (planned,) = answer("capacity", "plan", cwd=stored)
    found = answer(*BUY, "--held-price", "1", cwd=stored)["load"]
    buffer = planned["derivation"]["buffer"]["value"]
    assert found["gpus_per_replica"] == 8
    assert found["requests_per_second_per_gpu"] == pytest.approx(32 * 25 / 300 / (1 + buffer) / 8)


@pytest.mark.slow
def test_reserved_and_rented_gpus_are_whole_replicas(stored):
    for held_price in ("0.1", "0.9", "1.3"):
        found = answer(*BUY, "--held-price", held_price, cwd=stored)
        assert found["held_gpus"] % 8 == found["burst_gpus"] % 8 == 0
        assert all(one["gpus"] % 8 == 0 for one in found["offline"])
    assert found["burst_gpus"] > 0
    assert answer(*BUY, "--held-price", "0.1", "--quota", "20", cwd=stored)["held_gpus"] == 16


def test_troughs_are_those_of_the_coming_hours_of_the_week(stored):
    """On Monday at 14:50 the hours to 20:00 are busy, however quiet Sunday was."""
    found = answer(*BUY, "--held-price", "0.1", cwd=stored)
    (window,) = found["offline"]
    assert (window["start"], window["back_by"]) == ("2026-05-18T20:00:00Z", "2026-05-19T07:52:00Z")
    assert 0 < window["gpus"] < found["held_gpus"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "reason", "expected"),
    [
        (("--held-price", "0.1", "--quota", "0"), "quota", "the quota of 0 GPUs limits the commitment to 0; "),
        (("--held-price", "0.1", "--quota", "1"), "quota", "the quota of 1 GPU limits the commitment to 0; "),
        (("--held-price", "2"), "never_pays", "a commitment never pays off"),
    ],
)
def test_without_reservations_no_order_is_due_and_the_reason_is_printed(stored, options, reason, expected):
    found = answer(*BUY, *options, cwd=stored)
    assert (found["held_gpus"], found["order_by"], found["reason"]) == (0, None, reason)
    shown = " ".join(run(*BUY, *options, "-o", "table", cwd=stored).stdout.split())
    assert expected in shown
    assert "order by" not in shown
    assert "more than 100%" not in shown


def test_a_quota_that_limits_reservations_is_named(stored):
    cut = (*BUY, "--held-price", "0.1", "--quota", "20", "-o", "table")
    shown = " ".join(run(*cut, cwd=stored).stdout.split())
    assert "the quota of 20 GPUs limits the commitment to 16" in shown
    assert "order by" in shown


def priced(*offers, held=None, burst=None, price=None, currency=None):
    demand = Demand(np.ones(168), NOW, 1.0, 1.0, "H100", 1, price, currency)
    return prices_of(demand, gpu("H100"), offers, held, burst)


def test_the_currency_is_that_of_the_prices_used():
    euro = Offer(gpu("H100"), price=3.0, currency="EUR")
    assert priced(euro).currency == "EUR"
    assert priced(euro, price=2.0, currency="CNY").currency == "EUR"
    assert priced(price=2.0, currency="CNY").currency == "CNY"
    assert priced(price=2.0, currency="CNY", held=1.0, burst=2.0).currency == "CNY"
    reserved = Offer(gpu("H100"), "reserved", price=1.0, currency="USD")
    with pytest.raises(UsageError, match="EUR and USD"):
        priced(euro, reserved)
    assert priced(euro, reserved, held=1.5).currency == "EUR"


def test_ambiguous_regional_offers_are_rejected():
    here, there = (Offer(gpu("H100"), price=price, region=region) for price, region in ((3.0, "eu"), (2.0, "us")))
    with pytest.raises(UsageError, match="3 USD in eu and 2 USD in us") as caught:
        priced(here, there)
    assert "--burst-price" in caught.value.hint
    assert priced(here, there, held=1.0, burst=2.5).burst == 2.5
    assert priced(here, Offer(gpu("H100"), price=3.0, region="us")).burst == 3.0
