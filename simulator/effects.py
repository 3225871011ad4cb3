"""Effects of faults on a fleet: one array per effect, neutral without faults.

Effects are rebuilt every tick: after ``reset``, every active fault multiplies, adds or sets its own. So faults compose,
and a fault that ends leaves nothing behind. The reader of an effect defines its meaning (devices, nodes, engines, load
balancer, traffic, pages); nothing else may keep a copy.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from outrider.model import Floats


class _EffectTable:
    """Arrays of one length. Subclasses define the neutral value of each effect in ``NEUTRAL``."""

    NEUTRAL: ClassVar[dict[str, float]]

    def __init__(self, size: int) -> None:
        for name, neutral in self.NEUTRAL.items():
            setattr(self, name, np.full(size, neutral))

    def reset(self) -> None:
        """Resets all arrays to neutral, in place."""
        for name, neutral in self.NEUTRAL.items():
            getattr(self, name).fill(neutral)


class GpuEffects(_EffectTable):
    """Shape (gpus,). ``step_factor`` slows a device without any change in its counters."""

    cooling_factor: Floats
    power_limit_ratio: Floats
    step_factor: Floats
    link_factor: Floats
    link_errors_per_second: Floats
    pcie_factor: Floats
    pcie_replays_per_second: Floats
    ecc_correctable_per_second: Floats
    ecc_uncorrectable_per_second: Floats
    row_remap_pending: Floats
    row_remap_failed: Floats
    extra_memory_mebibytes: Floats

    NEUTRAL: ClassVar[dict[str, float]] = {
        "cooling_factor": 1.0,  # > 1: less cooling
        "power_limit_ratio": 1.0,
        "step_factor": 1.0,
        "link_factor": 1.0,  # remaining share of the NVLink or HCCS bandwidth
        "link_errors_per_second": 0.0,
        "pcie_factor": 1.0,
        "pcie_replays_per_second": 0.0,
        "ecc_correctable_per_second": 0.0,
        "ecc_uncorrectable_per_second": 0.0,
        "row_remap_pending": 0.0,
        "row_remap_failed": 0.0,
        "extra_memory_mebibytes": 0.0,
    }


class NodeEffects(_EffectTable):
    """Shape (nodes,)."""

    reachable: Floats
    alive: Floats
    disk_lost_ratio: Floats
    disk_factor: Floats
    storage_factor: Floats
    pull_factor: Floats
    clock_offset_seconds: Floats
    packet_loss_ratio: Floats
    port_up: Floats
    rdma_errors_per_second: Floats
    neighbor_cpu_ratio: Floats
    neighbor_factor: Floats
    fan_factor: Floats
    supplies_failed: Floats

    NEUTRAL: ClassVar[dict[str, float]] = {
        "reachable": 1.0,  # 0: connections to the node time out; its pods keep running
        "alive": 1.0,  # 0: the node and its pods are down
        "disk_lost_ratio": 0.0,  # share of the file system filled by other data
        "disk_factor": 1.0,  # > 1: factor of local disk time
        "storage_factor": 1.0,  # > 1: factor of read time from the shared storage
        "pull_factor": 1.0,  # > 1: factor of image pull time
        "clock_offset_seconds": 0.0,
        "packet_loss_ratio": 0.0,
        "port_up": 1.0,  # 0: the scale-out (InfiniBand, RoCE) ports are down
        "rdma_errors_per_second": 0.0,
        "neighbor_cpu_ratio": 0.0,  # CPU used by another pod
        "neighbor_factor": 1.0,  # > 1: factor of engine step time on the node
        "fan_factor": 1.0,  # remaining share of the fan speed
        "supplies_failed": 0.0,
    }


class SlotEffects(_EffectTable):
    """Shape (slots,): a replica and its pod."""

    step_factor: Floats
    prefill_factor: Floats
    kv_factor: Floats
    batch_factor: Floats
    load_factor: Floats
    load_fails: Floats
    hung: Floats
    core_dead: Floats
    asleep: Floats
    weight_factor: Floats
    error_ratio: Floats
    invalid_output_ratio: Floats
    kv_transfer_failures_per_second: Floats
    host_memory_bytes: Floats
    cpu_throttled_ratio: Floats
    page_frozen: Floats
    names_changed: Floats

    NEUTRAL: ClassVar[dict[str, float]] = {
        "step_factor": 1.0,  # > 1: factor of step time
        "prefill_factor": 1.0,  # > 1: factor of prefill time
        "kv_factor": 1.0,  # usable share of the KV blocks
        "batch_factor": 1.0,  # usable share of max_num_seqs
        "load_factor": 1.0,  # > 1: factor of model load time
        "load_fails": 0.0,  # 1: every load fails
        "hung": 0.0,  # 1: the engine core is hung; the HTTP server responds
        "core_dead": 0.0,  # 1: no engine core: /metrics and /health return 503, requests fail
        "asleep": 0.0,  # 1: put to sleep: /health returns 200, requests hang
        "weight_factor": 1.0,  # factor of its traffic share, for wrong routing
        "error_ratio": 0.0,  # share of requests with an immediate 500
        "invalid_output_ratio": 0.0,  # share of empty, repeated or garbled outputs
        "kv_transfer_failures_per_second": 0.0,
        "host_memory_bytes": 0.0,  # container memory beyond its normal use
        "cpu_throttled_ratio": 0.0,
        "page_frozen": 0.0,  # 1: its exposition page stays frozen
        "names_changed": 0.0,  # 1: its page uses the metric names of another release
    }


class ServiceEffects(_EffectTable):
    """Shape (services,): the traffic of a service and its gateway."""

    rate_factor: Floats
    prompt_factor: Floats
    tenant_prompt_factor: Floats
    output_factor: Floats
    cached_factor: Floats
    retry_ratio: Floats
    abort_ratio: Floats
    bad_request_ratio: Floats
    gateway_error_ratio: Floats
    entry_fails: Floats
    kpi_factor: Floats
    autoscaler_stuck: Floats
    desired_extra: Floats

    NEUTRAL: ClassVar[dict[str, float]] = {
        "rate_factor": 1.0,
        "prompt_factor": 1.0,
        "tenant_prompt_factor": 1.0,  # the same, from uncached tokens in prompts of the largest tenant
        "output_factor": 1.0,
        "cached_factor": 1.0,  # factor of the prefix-cache hit ratio
        "retry_ratio": 0.0,  # retries per failed or slow request
        "abort_ratio": 0.0,  # share of requests aborted by the client
        "bad_request_ratio": 0.0,  # share with a 4xx response
        "gateway_error_ratio": 0.0,  # share with a 5xx of the gateway, which never reach an engine
        "entry_fails": 0.0,  # 1: TLS or DNS fails for every client
        "kpi_factor": 1.0,
        "autoscaler_stuck": 0.0,  # 1: at its maximum, 2: cannot read its metric
        "desired_extra": 0.0,  # desired replicas beyond the ordered ones
    }


class ClusterEffects(_EffectTable):
    """Shape (1,): the whole cluster."""

    alive: Floats
    seen: Floats

    NEUTRAL: ClassVar[dict[str, float]] = {
        "alive": 1.0,  # 0: the whole cluster is unreachable
        "seen": 1.0,  # 0: it works, but the monitoring cannot reach it
    }


class FleetEffects:
    """All effects of one fleet."""

    def __init__(self, gpus: int, nodes: int, slots: int, services: int) -> None:
        self.gpus = GpuEffects(gpus)
        self.nodes = NodeEffects(nodes)
        self.slots = SlotEffects(slots)
        self.services = ServiceEffects(services)
        self.cluster = ClusterEffects(1)
        self._touched = False

    def tables(self) -> dict[str, _EffectTable]:
        """Returns the groups by the name that fault files use."""
        return {
            "gpus": self.gpus,
            "nodes": self.nodes,
            "slots": self.slots,
            "services": self.services,
            "cluster": self.cluster,
        }

    def reset(self) -> None:
        """Resets everything to neutral; does nothing if nothing has changed since the last call."""
        if self._touched:
            for table in self.tables().values():
                table.reset()
            self._touched = False

    def adjust(self, group: str, effect_name: str) -> Floats:
        """Returns the array of an effect for changes in place. Raises KeyError or AttributeError for unknown names."""
        self._touched = True
        values: Floats = getattr(self.tables()[group], effect_name)
        return values
