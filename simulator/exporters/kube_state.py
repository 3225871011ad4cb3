"""The page of kube-state-metrics 2.x: nodes, pods, deployments and their autoscalers."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from operator import attrgetter

import numpy as np

from simulator.exporters.kube_nodes import KubeNodes
from simulator.exporters.kube_pods import KubePods
from simulator.exporters.kube_table import CachedLines, KubeFamily, Lines, one_of, pairs
from simulator.fleet import Fleet


@dataclass(frozen=True, slots=True)
class ServiceView:
    """A service's Deployment and autoscaler as the API server has them."""

    ordered: int
    present: int
    ready: int
    updated: int
    wanted: int  # desired by the autoscaler
    least: int
    most: int
    limited: bool
    blind: bool

    @property
    def unavailable(self) -> int:
        """Replicas that are ordered but not ready."""
        return max(0, self.ordered - self.ready)


class KubeStatePage:
    """Writes the page; it is reused until the fleet changes."""

    def __init__(self) -> None:
        self._nodes, self._pods = KubeNodes(), KubePods()
        self._deployments, self._autoscalers = CachedLines(_DEPLOYMENTS), CachedLines(_AUTOSCALERS)
        self._at: float | None = None
        self._page = b""

    def page(self, fleet: Fleet) -> bytes:
        """Returns the page."""
        if self._at == fleet.at:
            return self._page
        views = _views(fleet)
        keys: list[Hashable] = list(views)
        base = [f'namespace="{service.namespace}"' for service in fleet.spec.services]
        names = [service.name for service in fleet.spec.services]
        changed = [
            self._nodes.update(fleet),
            self._pods.update(fleet),
            self._deployments.update(keys, lambda n: (f'{base[n]},deployment="{names[n]}"', views[n])),
            self._autoscalers.update(keys, lambda n: (f'{base[n]},horizontalpodautoscaler="{names[n]}"', views[n])),
        ]
        if any(changed):
            parts = (self._nodes, self._pods, self._deployments, self._autoscalers)
            self._page = "".join(part.text() for part in parts).encode()
        self._at = fleet.at
        return self._page


def _views(fleet: Fleet) -> list[ServiceView]:
    services, pods, scaler = fleet.spec.services, fleet.pods, fleet.autoscaler
    current = np.array([pod.revision == pods.revisions[pod.service.name] for pod in pods.pods])

    def count(slots: np.ndarray) -> list[int]:
        result: list[int] = np.bincount(pods.service_of_slot[slots], minlength=len(services)).tolist()
        return result

    columns = (
        [fleet.desired[service.name] for service in services],
        count(pods.existing),
        count(fleet.kubelets.pod_ready),
        count(pods.existing & current),
        scaler.desired.astype(int).tolist(),
        scaler.minimum.astype(int).tolist(),
        # If a fault set the maximum to the current replicas, that value applies.
        np.where(scaler.at_maximum, scaler.desired, scaler.maximum).astype(int).tolist(),
        scaler.at_maximum.tolist(),
        scaler.blind.tolist(),
    )
    return [ServiceView(*row) for row in zip(*columns, strict=True)]


def _conditions(view: ServiceView) -> Lines:
    conditions = {"AbleToScale": True, "ScalingActive": not view.blind, "ScalingLimited": view.limited}
    for condition, holds in conditions.items():
        for more, value in one_of("status", ("true", "false", "unknown"), "true" if holds else "false"):
            yield pairs(condition=condition) + more, value


def _gauges(*rows: tuple[str, str, str]) -> tuple[KubeFamily, ...]:
    """Families of one value per object, each as metric name, attribute of the view, and help text."""
    return tuple(KubeFamily(name, "gauge", text, partial(_value, attrgetter(read))) for name, read, text in rows)


def _value(read: Callable[[ServiceView], int], view: ServiceView) -> Lines:
    return [("", read(view))]


_DEPLOYMENTS = _gauges(
    ("kube_deployment_spec_replicas", "ordered", "[STABLE] Number of desired pods for a deployment."),
    ("kube_deployment_status_replicas", "present", "[STABLE] The number of replicas per deployment."),
    ("kube_deployment_status_replicas_ready", "ready", "[STABLE] The number of ready replicas per deployment."),
    (
        "kube_deployment_status_replicas_available",
        "ready",
        "[STABLE] The number of available replicas per deployment.",
    ),
    (
        "kube_deployment_status_replicas_unavailable",
        "unavailable",
        "[STABLE] The number of unavailable replicas per deployment.",
    ),
    (
        "kube_deployment_status_replicas_updated",
        "updated",
        "[STABLE] The number of updated replicas per deployment.",
    ),
)
_AUTOSCALERS = (
    *_gauges(
        (
            "kube_horizontalpodautoscaler_spec_min_replicas",
            "least",
            "[STABLE] Lower limit for the number of pods that can be set by the autoscaler, default 1.",
        ),
        (
            "kube_horizontalpodautoscaler_spec_max_replicas",
            "most",
            (
                "[STABLE] Upper limit for the number of pods that can be set by the autoscaler; "
                "cannot be smaller than MinReplicas."
            ),
        ),
        (
            "kube_horizontalpodautoscaler_status_current_replicas",
            "present",
            "[STABLE] Current number of replicas of pods managed by this autoscaler.",
        ),
        (
            "kube_horizontalpodautoscaler_status_desired_replicas",
            "wanted",
            "[STABLE] Desired number of replicas of pods managed by this autoscaler.",
        ),
    ),
    KubeFamily(
        "kube_horizontalpodautoscaler_status_condition",
        "gauge",
        "[STABLE] The condition of this autoscaler.",
        _conditions,
    ),
)
