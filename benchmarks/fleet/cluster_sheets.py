"""Signals of kube-state-metrics: rows of nodes, pods and workloads."""

from __future__ import annotations

import numpy as np

from benchmarks.fleet.sheets import Increases, Sheet, ratio
from outrider.model import EntityKind, Floats
from simulator.cluster.pod import Phase
from simulator.exporters.kube_pods import FIRST_RESTART_SECONDS
from simulator.fleet import Fleet

# codes of pod_waiting_reason
_CREATING, _LOOPING = 1.0, 3.0


def node_sheet(fleet: Fleet) -> Sheet:
    """Returns the nodes of the API server."""
    hosts, effects, pods = fleet.nodes, fleet.effects.nodes, fleet.pods
    healthy = np.bincount(fleet.gpus.node, pods.healthy & fleet.gpus.visible, hosts.size).astype(np.float64)
    reporting = hosts.ready | ((effects.alive > 0.5) & (effects.reachable > 0.5))
    placed = pods.existing & (pods.node_of_slot >= 0)
    requested = np.bincount(pods.node_of_slot[placed], pods.group[placed], hosts.size).astype(np.float64)
    gauges = {
        "node_ready": (hosts.ready & reporting).astype(np.float64),
        "node_pressure": ((hosts.disk_pressure | hosts.memory_pressure) & reporting).astype(np.float64),
        "node_unschedulable": pods.cordoned.astype(np.float64),
        "node_accel_capacity": hosts.gpus.astype(np.float64),
    }
    # Without an allocatable device the ratio has no value.
    return Sheet(EntityKind.NODE, "kube-state", gauges, {"node_accel_allocated_ratio": ratio(requested, healthy)})


def pod_restarts(fleet: Fleet) -> Floats:
    """Returns container restarts of every slot's pod, shape (slots, 1)."""
    return np.array([[float(pod.restarts)] for pod in fleet.pods.pods])


def pod_sheet(fleet: Fleet, grown: Increases) -> Sheet:
    """Returns the pod of every slot in the API server."""
    pods, at = fleet.pods.pods, fleet.at
    gauges = {
        "pod_phase": np.array([float(pod.phase not in (Phase.PENDING, Phase.PULLING)) for pod in pods]),
        "pod_ready": fleet.kubelets.pod_ready.astype(np.float64),
        "pod_waiting_reason": np.array([_waiting(pod.phase, at - (pod.crashed_at or 0.0)) for pod in pods]),
        "pod_last_terminated_oom": np.array([float(pod.last_terminated == "OOMKilled") for pod in pods]),
        "pod_unschedulable": np.array([float(pod.phase is Phase.PENDING and pod.unschedulable) for pod in pods]),
        "pod_startup_seconds": np.array(
            [np.nan if pod.ready_at is None else np.floor(pod.ready_at) - np.floor(pod.created_at) for pod in pods]
        ),
    }
    return Sheet(EntityKind.POD, "kube-state", gauges, {"pod_restarts": grown.increases[:, 0]})


def _waiting(phase: Phase, since_crash: float) -> float:
    if phase is Phase.CRASHED:
        return _LOOPING if since_crash >= FIRST_RESTART_SECONDS else 0.0
    return _CREATING if phase is Phase.PULLING else 0.0


def workload_sheet(fleet: Fleet) -> Sheet:
    """Returns every service's Deployment and autoscaler in the API server."""
    services, pods, scaler = fleet.spec.services, fleet.pods, fleet.autoscaler
    wanted = np.array([float(fleet.desired[service.name]) for service in services])
    available = np.bincount(pods.service_of_slot[fleet.kubelets.pod_ready], minlength=len(services)).astype(np.float64)
    present = np.bincount(pods.service_of_slot[pods.existing], minlength=len(services)).astype(np.float64)
    desired = np.floor(scaler.desired)
    most = np.where(scaler.at_maximum, desired, np.floor(scaler.maximum))
    gauges = {
        "autoscaler_at_max": (present >= most).astype(np.float64),
        "autoscaler_gap_replicas": desired - present,
        "autoscaler_errors_per_second": scaler.blind.astype(np.float64),
    }
    return Sheet(EntityKind.WORKLOAD, "kube-state", gauges, {"workload_available_ratio": ratio(available, wanted)})
