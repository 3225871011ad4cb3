"""Every fault file on a small fleet: it begins, its first symptom changes, it ends and leaves nothing behind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from outrider.model import Floats
from simulator.exporters.targets import Pages, Status, every_target
from simulator.faults import FAULTS, inject
from simulator.faults.scope import Scope, scope_of
from simulator.fleet import Fleet
from simulator.spec.fleets import H100, drill_spec
from simulator.spec.parts import FleetSpec, PoolSpec, StartupSpec, TrafficSpec

NOON = datetime(2026, 11, 18, 12, tzinfo=UTC)
LASTS, WINDOW = timedelta(minutes=6), timedelta(seconds=40)
CALM = TrafficSpec(peak_ratio=0.1, trough_ratio=0.9)  # few requests simulate quickly
STARTUP = StartupSpec(4.0, 12.0, 40.0, 20.0)
Reader = Callable[[Fleet, Scope], "float | Floats"]


def spec() -> FleetSpec:
    chat, code = drill_spec().services
    return FleetSpec(
        "small",
        (PoolSpec("h100-a", H100, 2), PoolSpec("h100-b", H100, 1)),
        (
            replace(chat, replicas=3, ceiling=5, tenants=(), traffic=CALM),
            replace(code, replicas=3, ceiling=4, traffic=CALM),
        ),
        startup=STARTUP,
        slice_seconds=5.0,
        tick_seconds=5.0,
    )


@pytest.fixture(scope="module")
def fleet() -> Fleet:
    return Fleet(spec(), seed=5, start=NOON)


# --- readers of symptoms: a gauge, an increasing counter, or an increasing sum and count ----------------------------


def counted(name: str) -> Reader:
    return lambda fleet, here: np.array([fleet.bank.counters.plain[name][here.slots].sum()])


def meaned(name: str) -> Reader:
    def read(fleet: Fleet, here: Scope) -> Floats:
        counters = fleet.bank.counters
        return np.array([counters.sums[name][here.slots].sum(), counters.buckets[name][here.slots].sum()])

    return read


def gpu(name: str) -> Reader:
    return lambda fleet, here: float(getattr(fleet.gpus, name)[here.gpus].max())


def gpu_counter(name: str) -> Reader:
    return lambda fleet, here: np.array([getattr(fleet.gpus, name)[here.gpus].sum()])


def node(name: str) -> Reader:
    return lambda fleet, here: float(np.abs(getattr(fleet.nodes, name)[here.nodes]).max())


def node_counter(name: str) -> Reader:
    return lambda fleet, here: np.array([getattr(fleet.nodes, name)[here.nodes].sum()])


def slot_effect(name: str) -> Reader:
    return lambda fleet, here: float(getattr(fleet.effects.slots, name)[here.slots].max(initial=0.0))


def of_edge(name: str) -> Reader:
    return lambda fleet, here: np.array([getattr(fleet.traffic.edge, name)[here.services].sum()])


def down(fleet: Fleet, here: Scope) -> float:
    """Returns the number of targets on these hosts without a page."""
    pages = Pages(fleet)
    in_scope = [target for target in every_target(fleet) if target.node is None or target.node in here.nodes]
    return float(sum(pages.answer(target).status is not Status.OK for target in in_scope))


def unready(fleet: Fleet, here: Scope) -> float:
    return float((fleet.pods.existing & ~fleet.pods.ready).sum())


def serving(fleet: Fleet, here: Scope) -> float:
    return float(fleet.pods.ready[np.isin(fleet.pods.service_of_slot, here.services)].sum())


def slowest(word: str, usual_seconds: float) -> Reader:
    """Returns a reader of the longest time of a start in a phase so far."""
    return lambda fleet, here: max([usual_seconds, *(pod.phase_seconds.get(word, 0.0) for pod in fleet.pods.pods)])


def published_tokens(fleet: Fleet, here: Scope) -> Floats:
    """Returns tokens on the pages of these engines, without those of frozen pages."""
    generated = fleet.bank.counters.plain["generation_tokens"][here.slots]
    return np.array([np.where(fleet.effects.slots.page_frozen[here.slots] > 0.5, 0.0, generated).sum()])


def probed(fleet: Fleet, here: Scope) -> float:
    """Returns 1 if an external client gets a response, else 0."""
    return float(fleet.effects.cluster.alive[0] - fleet.effects.services.entry_fails[here.services].max())


READERS: dict[str, Reader] = {
    "autoscaler_errors_per_second": lambda fleet, here: np.array([fleet.autoscaler.errors[here.services].sum()]),
    "container_cpu_throttled_ratio": lambda fleet, here: np.array([fleet.containers.throttled_periods.sum()]),
    "container_memory_working_set_bytes": lambda fleet, here: float(
        fleet.containers.working_set_bytes[here.slots].max(initial=0.0)
    ),
    "engine_error_ratio": counted("finished_error"),
    "engine_generation_tokens_total": published_tokens,
    "engine_health_ok": slot_effect("core_dead"),
    "engine_itl_seconds": meaned("itl"),
    "engine_kv_cache_usage_ratio": lambda fleet, here: float(fleet.bank.kv_used_ratio[here.slots].max(initial=0.0)),
    "engine_kv_transfer_failures_per_second": counted("kv_transfer_failures"),
    "engine_prefix_cache_hit_ratio": counted("cached_tokens"),
    "engine_prompt_length_tokens": meaned("prompt_length"),
    "engine_requests_per_second": lambda fleet, here: float(fleet.requests_per_second[here.slots].sum()),
    "engine_requests_running": lambda fleet, here: float(fleet.bank.running[here.slots].sum()),
    "engine_sleep_state": slot_effect("asleep"),
    "engine_startup_seconds": slowest("load", STARTUP.load_seconds),
    "engine_up": unready,
    "hw_accel_ecc_correctable_total": gpu_counter("ecc_correctable"),
    "hw_accel_ecc_uncorrectable_total": gpu_counter("ecc_uncorrectable"),
    "hw_accel_fault_code": gpu("xid"),
    "hw_accel_fault_events": gpu("xid"),
    "hw_accel_interconnect_bytes_per_second": gpu("nvlink"),
    "hw_accel_interconnect_errors_total": gpu_counter("link_errors"),
    "hw_accel_memory_used_bytes": gpu("memory_used"),
    "hw_accel_memory_used_ratio": gpu("memory_used"),
    "hw_accel_pcie_replay_total": gpu_counter("pcie_replays"),
    "hw_accel_power_limit_watts": lambda fleet, here: float(fleet.gpus.power_limit[here.gpus].min()),
    "hw_accel_temperature_celsius": gpu("temperature"),
    "hw_link_up": lambda fleet, here: float(fleet.nodes.port_up[here.nodes].sum()),
    "node_accel_allocated_ratio": lambda fleet, here: float((fleet.pods.owner[here.gpus] >= 0).mean()),
    "node_clock_offset_seconds": node("clock_offset"),
    "node_cpu_utilization_ratio": node("cpu_busy_ratio"),
    "node_disk_busy_ratio": node_counter("disk_seconds"),
    "node_filesystem_available_ratio": node("filesystem_available_ratio"),
    "node_network_errors_per_second": node_counter("receive_errors"),
    "pod_phase": unready,
    "pod_ready": unready,
    "pod_waiting_reason": slowest("pull", STARTUP.pull_seconds),
    "probe_success": probed,
    "svc_client_disconnects": of_edge("disconnects"),
    "svc_output_invalid_ratio": slot_effect("invalid_output_ratio"),
    "svc_ready_backends": serving,
    "svc_requests_per_second": lambda fleet, here: float(fleet.traffic.rates(fleet.at)[here.services].sum()),
    "svc_success_ratio": lambda fleet, here: (
        of_edge("answered_4xx")(fleet, here) + of_edge("answered_5xx")(fleet, here)
    ),
    "target_samples": slot_effect("names_changed"),
    "target_up": down,
}
LEAST_MOVE = 0.08  # relative to the window before; a gauge at 0 must leave it
MOVES = {
    "hw_accel_memory_used_bytes": 0.015,  # the engine reserves most of the device from the start
    "hw_accel_memory_used_ratio": 0.015,
    "engine_startup_seconds": 0.7,  # more than the scatter of starts
    "pod_waiting_reason": 0.7,
}


class Watch:
    """Reads a symptom, window by window."""

    def __init__(self, fleet: Fleet, read: Reader, here: Scope) -> None:
        self._fleet, self._look, self._here = fleet, read, here
        self._last = read(fleet, here)

    def window(self) -> float:
        """Returns the gauge after the next window, or the increase or mean in it."""
        self._fleet.step(WINDOW)
        now, last = self._look(self._fleet, self._here), self._last
        self._last = now
        if isinstance(now, float) or isinstance(last, float):
            return float(now)
        grown = now - last
        return float(grown[0]) if grown.size == 1 else float(grown[0] / max(grown[1], 1.0))


def left_behind(fleet: Fleet) -> list[str]:
    """Returns the differences to a fleet without any fault."""
    result = [
        f"{group}.{effects}"
        for group, table in fleet.effects.tables().items()
        for effects, neutral in table.NEUTRAL.items()
        if (getattr(table, effects) != neutral).any()
    ]
    result += [name for name in ("healthy", "visible") if not getattr(fleet.gpus, name).all()]
    result += ["xid"] if fleet.gpus.xid.any() else []
    result += [f"{name} down" for name in fleet.exporters_down]
    result += [name for name, wanted in fleet.desired.items() if wanted != fleet.spec.service(name).replicas]
    return result


def settle(fleet: Fleet) -> None:
    """Restores the fleet and waits until every replica serves without a queue."""
    fleet.restore()
    fleet.step(WINDOW)
    while not (fleet.pods.ready == fleet.pods.existing).all() or fleet.bank.waiting.sum() > 5:
        fleet.step(WINDOW)
    for pod in fleet.pods.pods:
        pod.phase_seconds.clear()  # remove durations of the previous fault


@pytest.mark.parametrize("name", sorted(FAULTS))
def test_it_begins_shows_its_first_symptom_ends_and_leaves_nothing(fleet: Fleet, name: str) -> None:
    settle(fleet)
    declared, start = FAULTS[name], fleet.now + WINDOW
    truth = inject(fleet, name, start=start, duration=LASTS, seed=3)
    injection = fleet.injections[-1]
    assert truth.touches[0] == truth.entity
    assert (truth.start, truth.end, truth.negative) == (start, start + LASTS, declared.negative)
    signal = declared.symptoms[0]
    watch = Watch(fleet, READERS[signal], scope_of(fleet, truth.entity))
    before, least, change = watch.window(), MOVES.get(signal, LEAST_MOVE), 0.0
    assert not injection.started
    assert left_behind(fleet) == []
    while fleet.now < truth.end and change <= least:
        change = abs(watch.window() - before) / (abs(before) or 1e-9)
    assert change > least, f"{signal} was {before:g} and did not change"
    assert injection.started
    assert injection.impact(fleet).dtype.kind == "i"
    injection.stop(fleet)
    assert start < injection.truth.end <= truth.end
    fleet.step(timedelta(seconds=5))
    assert fleet.injections == []
    assert left_behind(fleet) == []
