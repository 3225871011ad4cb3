"""PodDisruptionBudgets: the pods whose eviction the API server would refuse now. Pure.

Follows the rules of the eviction API: a budget without allowed disruptions refuses the eviction of a ready pod, and of
one that is not ready unless its policy or enough healthy pods allow that. A pending pod is always evicted.
"""

from __future__ import annotations

from collections.abc import Mapping

from collectors.kubernetes.api import Json, items, mapping, text
from collectors.kubernetes.objects import DISRUPTION_BUDGETS, PODS, Objects, key_of, selects, uid_of
from collectors.kubernetes.pods import PodFacts
from outrider.topology import EVICTION_BLOCKED_BY, NOT_READY

_NOT_EVICTED = frozenset({"", "DaemonSet"})  # a drain leaves these pods


def is_exhausted(budget: Json) -> bool:
    """True if the budget allows no disruption."""
    return bool(budget) and _count(budget, "disruptionsAllowed") <= 0


def allows_unready(budget: Json) -> bool:
    """True if the budget lets pods be evicted that are not ready."""
    if text(mapping(budget.get("spec")).get("unhealthyPodEvictionPolicy")) == "AlwaysAllow":
        return True
    desired = _count(budget, "desiredHealthy")
    return _count(budget, "currentHealthy") >= desired > 0


def summary(budget: Json) -> tuple[bool, bool, object]:
    """The parts of a budget that decide which evictions it refuses."""
    return is_exhausted(budget), allows_unready(budget), mapping(budget.get("spec")).get("selector")


def blocked_pods(objects: Objects, pods: Mapping[str, PodFacts]) -> dict[str, dict[str, str]]:
    """Labels of each pod, by uid, whose eviction is refused: the budgets, and whether the pod is not ready."""
    result: dict[str, dict[str, str]] = {}
    exhausted = [budget for budget in objects.all(DISRUPTION_BUDGETS) if is_exhausted(budget)]
    if not exhausted:
        return result
    states = {uid_of(pod): _state(pod) for pod in objects.all(PODS)}
    for budget in exhausted:
        namespace, name = key_of(budget)
        selector = mapping(budget.get("spec")).get("selector")
        for uid, pod in pods.items():
            phase, ready = states.get(uid, ("", True))
            if pod.namespace != namespace or pod.is_over or phase == "Pending" or pod.owner_kind in _NOT_EVICTED:
                continue
            covered = isinstance(selector, dict) and selects(selector, pod.labels)
            if not covered or (not ready and allows_unready(budget)):
                continue
            known = result.setdefault(uid, {} if ready else {NOT_READY: "true"})
            known[EVICTION_BLOCKED_BY] = ",".join(filter(None, (known.get(EVICTION_BLOCKED_BY), f"{namespace}/{name}")))
    return result


def _state(pod: Json) -> tuple[str, bool]:
    """Phase and readiness of a pod."""
    status = mapping(pod.get("status"))
    conditions = {text(item.get("type")): text(item.get("status")) for item in items(status.get("conditions"))}
    return text(status.get("phase")), conditions.get("Ready") == "True"


def _count(budget: Json, name: str) -> int:
    value = mapping(budget.get("status")).get(name)
    return value if isinstance(value, int) else 0
