"""Chooses the actuator of each action by its kind. Refuses targets of a wrong kind or in another cluster."""

from __future__ import annotations

from collections.abc import Mapping

from outrider.errors import ActuationError
from outrider.model import TARGET_KINDS, Action, ActionKind, ActionRequest, Outcome
from outrider.ports import Actuator


class ActuatorRouter:
    """One actuator per action kind: a cluster has autoscalers, node actions and traffic at once."""

    def __init__(
        self,
        default: Actuator,
        by_kind: Mapping[ActionKind, Actuator],
        clusters: Mapping[ActionKind, str] | None = None,
    ) -> None:
        """``default`` performs the kinds that ``by_kind`` lacks.

        ``clusters`` are by kind: the only cluster that the actuator of this kind reaches. Others reach every cluster.
        """
        self._default, self._by_kind, self._clusters = default, dict(by_kind), dict(clusters or {})

    def perform(self, action: Action) -> Outcome:
        """Performs the action through its actuator, or raises ActuationError."""
        return self._of(action).perform(action)

    def requests(self, action: Action) -> tuple[ActionRequest, ...]:
        """Returns the requests that its actuator would send now. Raises ActuationError."""
        return self._of(action).requests(action)

    def _of(self, action: Action) -> Actuator:
        check_kind(action)
        check_cluster(action, self._clusters.get(action.kind))
        return self._by_kind.get(action.kind, self._default)


def check_kind(action: Action) -> None:
    """Raises ActuationError for a target on which the action cannot be performed: no object of that name may exist."""
    known = TARGET_KINDS[action.kind]
    if action.target.kind not in known:
        sentence = f"{action.kind.value} cannot be performed on a {action.target.kind.value}"
        raise ActuationError(sentence, retryable=False, hint=f"its targets are: {', '.join(sorted(known))}")


def check_cluster(action: Action, cluster: str | None) -> None:
    """Raises ActuationError for a target outside ``cluster``: an object of the same name there may be healthy.

    None reaches every cluster.
    """
    target = action.target
    if cluster is None or target.cluster == cluster:
        return
    sentence = f"{target} is in the cluster {target.cluster}, but {action.kind.value} reaches only {cluster}"
    hint = "run an Outrider for that cluster, or name the cluster of the API server in its setting cluster"
    raise ActuationError(sentence, retryable=False, hint=hint)
