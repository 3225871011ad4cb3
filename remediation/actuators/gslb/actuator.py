"""Switches the clusters of a service with one configured request, and reads the result back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from outrider.clock import Clock, SystemClock
from outrider.errors import ActuationError
from outrider.model import Action, ActionKind, ActionRequest, EntityKind, Outcome, OutcomeStatus
from outrider.wire.http_auth import Access
from remediation.actuators.gslb.request_template import Values, filled, filled_text
from remediation.actuators.gslb.verification import ApiRead, DnsRead, is_share, served_by_dns, share_by_api
from remediation.actuators.http_endpoint import TIMEOUT, HttpEndpoint, host_of


@dataclass(frozen=True, slots=True)
class SwitchRequest:
    """The provider's request. ``names`` are the provider's names of clusters that it calls differently."""

    url: str
    method: str = "POST"
    body: Any = None
    names: Mapping[str, str] = field(default_factory=dict)


class GslbActuator:
    """Performs SWITCH_CLUSTER: sends ``params["share"]`` (default 1) of the traffic to ``params["cluster"]``.

    The request is sent once per process; until the change can be read back, an attempt only reads.
    """

    def __init__(
        self,
        request: SwitchRequest,
        access: Access | None = None,
        *,
        read: ApiRead | None = None,
        dns: DnsRead | None = None,
        timeout: timedelta = TIMEOUT,
        clock: Clock | None = None,
    ) -> None:
        """``read`` or ``dns`` verify the change; without both, the provider's 2xx counts."""
        self._request, self._read, self._dns = request, read, dns
        self._endpoint, self._timeout = HttpEndpoint(access, timeout), timeout
        self._clock = clock or SystemClock()
        self._sent: set[str] = set()

    def perform(self, action: Action) -> Outcome:
        """Switches, or raises ActuationError. IN_PROGRESS until the change can be read back."""
        started = self._clock.now()
        status, detail = self._attempt(action)
        return Outcome(action.id, status, detail, started, self._clock.now())

    def requests(self, action: Action) -> tuple[ActionRequest, ...]:
        """Returns the request that ``perform`` would send now; none if it reads the share already."""
        values = _values(action, self._request.names)
        if action.id in self._sent or self._is_verified(action, values):
            return ()
        return (self._rendered(values),)

    def _attempt(self, action: Action) -> tuple[OutcomeStatus, str]:
        values = _values(action, self._request.names)
        sentence = f"{values['percent']} % of {action.target.name} to {action.params['cluster']}"
        request = self._rendered(values)
        if action.dry_run:
            return OutcomeStatus.DRY_RUN, f"would send {request.method} {host_of(request.url)}: {sentence}"
        before = self._is_verified(action, values)
        if before:
            is_ours = action.id in self._sent
            self._sent.discard(action.id)
            return OutcomeStatus.DONE if is_ours else OutcomeStatus.ALREADY, f"{sentence}, read back"
        if action.id in self._sent:
            return OutcomeStatus.IN_PROGRESS, f"{sentence}: sent, not visible yet"
        self._endpoint.send(request, {"Idempotency-Key": action.id})
        after = self._is_verified(action, values)
        if after is None:
            return OutcomeStatus.DONE, f"{sentence}: accepted by {host_of(request.url)}, not read back"
        if after:
            return OutcomeStatus.DONE, f"{sentence}, read back"
        self._sent.add(action.id)
        return OutcomeStatus.IN_PROGRESS, f"{sentence}: sent, not visible yet"

    def _is_verified(self, action: Action, values: Values) -> bool | None:
        """True if the traffic already goes there; None if nothing is configured to read."""
        share = float(values["share"])
        if self._read is not None:
            return is_share(share_by_api(self._read, self._endpoint, values), share)
        if self._dns is not None:
            return served_by_dns(self._dns, str(action.params["cluster"]), share, self._timeout)
        return None

    def _rendered(self, values: Values) -> ActionRequest:
        request = self._request
        return ActionRequest(request.method, filled_text(request.url, values), filled(request.body, values))


def _values(action: Action, names: Mapping[str, str]) -> Values:
    """The placeholders' values. Raises ActuationError for another action, or wrong parameters."""
    if action.kind is not ActionKind.SWITCH_CLUSTER:
        sentence = f"the actuator gslb does not support {action.kind.value}"
        hint = f"name another actuator in remediation.actuators.{action.kind.value}"
        raise ActuationError(sentence, retryable=False, hint=hint)
    cluster, share = action.params.get("cluster"), action.params.get("share", 1.0)
    if not isinstance(cluster, str) or not cluster:
        raise ActuationError("the action names no cluster", retryable=False, hint="set params.cluster")
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0.0 <= share <= 1.0:
        raise ActuationError(f"share {share!r} is not between 0 and 1", retryable=False)
    target = action.target
    return {
        "id": action.id,
        "service": target.name if target.kind is EntityKind.SERVICE else "",
        "namespace": target.namespace or "default",
        "cluster": names.get(cluster, cluster),
        "share": float(share),
        "percent": round(share * 100),
    }
