"""Effects of faults on a fleet: one array per effect, neutral without faults.

Effects are rebuilt every tick: ``reset``, then every active fault multiplies, adds or sets its own. Faults therefore
compose, and a fault that ends or is interrupted leaves nothing behind. The meaning of an effect is defined by its
reader (devices, nodes, engines, load balancer, traffic, pages); nothing else may keep a copy.
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
    """Shape (gpus,). ``step_factor`` slows a device without any counter saying why."""

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
        "cooling_factor": 1.0,  # > 1: less heat leaves
        "power_limit_ratio": 1.0,
        "step_factor": 1.0,
        "link_factor": 1.0,  # share of the NVLink or HCCS bandwidth that is left
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
    neighbour_cpu_ratio: Floats
    neighbour_factor: Floats
    fan_factor: Floats
    supplies_failed: Floats

    NEUTRAL: ClassVar[dict[str, float]] = {
        "reachable": 1.0,  # 0: connections to anything on the node time out, its pods go on
        "alive": 1.0,  # 0: the node is down, and its pods with it
        "disk_lost_ratio": 0.0,  # share of the file system filled by something else
        "disk_factor": 1.0,  # > 1: the local disk takes that much longer
        "storage_factor": 1.0,  # > 1: the shared storage it reads weights from does
        "pull_factor": 1.0,  # > 1: images take that much longer to pull
        "clock_offset_seconds": 0.0,
        "packet_loss_ratio": 0.0,
        "port_up": 1.0,  # 0: its scale-out (InfiniBand, RoCE) ports are down
        "rdma_errors_per_second": 0.0,
        "neighbour_cpu_ratio": 0.0,  # CPU that another pod takes
        "neighbour_factor": 1.0,  # > 1: steps of engines on the node stretch by it
        "fan_factor": 1.0,  # share of the fan speed that is left
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
        "step_factor": 1.0,  # > 1: every step takes that much longer
        "prefill_factor": 1.0,  # > 1: only prefill does
        "kv_factor": 1.0,  # share of the KV blocks that can be used
        "batch_factor": 1.0,  # of the most sequences that run at once
        "load_factor": 1.0,  # > 1: the model takes that much longer to load
        "load_fails": 0.0,  # 1: loading ends in an error, again and again
        "hung": 0.0,  # 1: the engine core is hung; the HTTP server responds
        "core_dead": 0.0,  # 1: no engine core: /metrics and /health return 503, requests fail
        "asleep": 0.0,  # 1: put to sleep: /health says 200, requests hang
        "weight_factor": 1.0,  # of its share of the traffic, for routing gone wrong
        "error_ratio": 0.0,  # share of requests answered 500 at once
        "invalid_output_ratio": 0.0,  # share of answers empty, repeated or garbled
        "kv_transfer_failures_per_second": 0.0,
        "host_memory_bytes": 0.0,  # held by the container beyond its usual
        "cpu_throttled_ratio": 0.0,
        "page_frozen": 0.0,  # 1: its page repeats what it said when this began
        "names_changed": 0.0,  # 1: its page spells its metrics as another release does
    }


class ServiceEffects(_EffectTable):
    """Shape (services,): the traffic of a service and its edge."""

    rate_factor: Floats
    prompt_factor: Floats
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
        "output_factor": 1.0,
        "cached_factor": 1.0,  # of the share of prompts found in the prefix cache
        "retry_ratio": 0.0,  # retries per request that fails or is slow
        "abort_ratio": 0.0,  # share of requests whose client leaves early
        "bad_request_ratio": 0.0,  # share answered 4xx
        "gateway_error_ratio": 0.0,  # share answered 5xx by the gateway, never reaching an engine
        "entry_fails": 0.0,  # 1: TLS or name resolution fails for every client
        "kpi_factor": 1.0,
        "autoscaler_stuck": 0.0,  # 1: at its maximum, 2: cannot read its metric
        "desired_extra": 0.0,  # replicas wanted beyond what is ordered
    }


class ClusterEffects(_EffectTable):
    """Shape (1,): the whole cluster."""

    alive: Floats
    seen: Floats

    NEUTRAL: ClassVar[dict[str, float]] = {
        "alive": 1.0,  # 0: nothing of it answers anybody
        "seen": 1.0,  # 0: it works, and nothing of it reaches the monitoring
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
        """The groups by the name that fault files use."""
        return {
            "gpus": self.gpus,
            "nodes": self.nodes,
            "slots": self.slots,
            "services": self.services,
            "cluster": self.cluster,
        }

    def reset(self) -> None:
        """Resets everything to neutral; free if nothing has changed since the last call."""
        if self._touched:
            for table in self.tables().values():
                table.reset()
            self._touched = False

    def adjust(self, group: str, effect_name: str) -> Floats:
        """Returns the array of an effect for changes in place. Raises KeyError or AttributeError for unknown names."""
        self._touched = True
        values: Floats = getattr(self.tables()[group], effect_name)
        return values
