"""Performs actions on a Kubernetes cluster: reads the objects, then sends the requests that are left."""

from __future__ import annotations

from collections.abc import Mapping

from outrider.clock import Clock, SystemClock
from outrider.errors import ActuationError
from outrider.model import Action, ActionKind, ActionRequest, Outcome, OutcomeStatus
from outrider.wire.http_auth import Access
from remediation.actuators.api_server import ApiServer, ConflictError, TooManyRequestsError
from remediation.actuators.kept_connection import KeptConnection
from remediation.actuators.kubernetes import nodes, pods, workloads
from remediation.actuators.kubernetes.change import Attempt, Change, ChangeReader

SETTING = "remediation.kubernetes.url"
_RECONNECTED = (None, 401, 403)  # no response; or credentials that may have been replaced
_OF_EVERY_REQUEST = (None, 401)  # the next request would fail alike
_TRIES = 3  # reads again after a concurrent write
CHANGES: Mapping[ActionKind, ChangeReader] = {
    ActionKind.CORDON: nodes.cordon,
    ActionKind.UNCORDON: nodes.uncordon,
    ActionKind.DRAIN: nodes.drain,
    ActionKind.RESTART_POD: pods.restart,
    ActionKind.DELETE_STUCK_POD: pods.delete_stuck,
    ActionKind.ROLLBACK: workloads.rollback,
    ActionKind.PAUSE_ROLLOUT: workloads.pause_rollout,
    ActionKind.RESUME_ROLLOUT: workloads.resume_rollout,
    ActionKind.SCALE: workloads.scale,
}


class KubernetesActuator:
    """Acts through the API server. Idempotent: every attempt reads first and sends only what is left.

    A dry run sends the same requests as server-side dry runs, so that admission, quotas and permissions are checked.
    """

    def __init__(
        self,
        url: str | None,
        access: Access,
        *,
        changes: Mapping[ActionKind, ChangeReader] = CHANGES,
        name: str = "kubernetes",
        clock: Clock | None = None,
    ) -> None:
        """``url`` is the API server's, None without one; ``access`` holds its credentials.

        ``changes`` are the action kinds that it performs, ``name`` is that of the performer.
        """
        self._connection = KeptConnection((url or "").rstrip("/"), access, setting=SETTING)
        self._changes, self._name = changes, name
        self._clock = clock or SystemClock()

    def perform(self, action: Action) -> Outcome:
        """Sends the requests of an action, or raises ActuationError. IN_PROGRESS if more is left to do."""
        started = self._clock.now()
        try:
            change, blocked = self._applied(self._connection.server(), action)
        except ActuationError as error:
            if error.status in _RECONNECTED:
                self._connection.drop()
            raise
        status = _status(action, change, blocked)
        detail = "; ".join([change.detail, *blocked])
        return Outcome(action.id, status, detail, started, self._clock.now())

    def requests(self, action: Action) -> tuple[ActionRequest, ...]:
        """Returns the requests that ``perform`` would send now. Raises ActuationError."""
        return self._change(self._connection.server(), action).requests

    def _applied(self, server: ApiServer, action: Action) -> tuple[Change, list[str]]:
        """Returns the change, and a sentence for each request that the server delays."""
        for _ in range(_TRIES - 1):
            try:
                return self._attempt(server, action)
            except ConflictError:
                continue
        return self._attempt(server, action)

    def _attempt(self, server: ApiServer, action: Action) -> tuple[Change, list[str]]:
        change = self._change(server, action)
        return change, self._sent(server, change, action)

    def _change(self, server: ApiServer, action: Action) -> Change:
        reader = self._changes.get(action.kind)
        if reader is None:
            sentence = f"the actuator {self._name} does not support {action.kind.value}"
            hint = f"name another actuator in remediation.actuators.{action.kind.value}"
            raise ActuationError(sentence, retryable=False, hint=hint)
        return reader(Attempt(server, action, self._clock.now()))

    def _sent(self, server: ApiServer, change: Change, action: Action) -> list[str]:
        """One pod that is blocked or refused does not hold up the others: each request is sent, and repeated later.

        Raises the error of a pod once no other pod is left that its request could still reach.
        """
        blocked: list[str] = []
        failed: list[ActuationError] = []
        accepted = 0
        for request in change.requests:
            try:
                server.send(request, dry_run=action.dry_run)
                accepted += request.method != "PATCH"
            except ActuationError as error:
                if request.method == "PATCH" or error.status in _OF_EVERY_REQUEST:
                    raise
                if isinstance(error, TooManyRequestsError):
                    blocked.append(error.message)
                elif error.status != 404:  # a pod that ended meanwhile needs neither eviction nor deletion
                    failed.append(error)
        if failed and not accepted and not blocked:
            raise failed[0]
        return [*blocked, *(error.message for error in failed)]


def _status(action: Action, change: Change, blocked: list[str]) -> OutcomeStatus:
    if action.dry_run:
        return OutcomeStatus.DRY_RUN
    if change.pending or blocked:
        return OutcomeStatus.IN_PROGRESS
    return OutcomeStatus.DONE if change.requests else OutcomeStatus.ALREADY
