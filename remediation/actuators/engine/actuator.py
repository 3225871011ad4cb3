"""Wakes, puts to sleep, drains and resumes an engine, and empties its prefix cache, through its own endpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from string import Formatter

from outrider.clock import Clock, SystemClock
from outrider.errors import ActuationError
from outrider.model import Action, ActionKind, ActionRequest, Outcome, OutcomeStatus
from outrider.wire.http_auth import Access
from remediation.actuators.engine.endpoints import ENGINES, KINDS, LEVEL_2_SAMPLE, Operation, Unsupported
from remediation.actuators.http_endpoint import TIMEOUT, HttpEndpoint, host_of, origin_of

_PAGE_BYTES = 16 * 1024 * 1024  # the level of sleep is read from a metrics page
PLACEHOLDERS = frozenset({"name", "namespace", "host", "cluster"})
_NAMING_CLUSTER = frozenset({"host", "cluster"})


@dataclass(frozen=True, slots=True)
class _Plan:
    """An operation on one engine. ``pending`` False: its state shows that nothing is left to do."""

    adapter: str
    origin: str
    operation: Operation
    pending: bool

    @property
    def request(self) -> ActionRequest:
        """The POST. Engines that read a body accept an empty object."""
        return ActionRequest("POST", self.origin + self.operation.path, {})


class EngineActuator:
    """Sends one POST to the engine of a replica, unless its state shows that it is done.

    The decision names the engine in ``params["engines"]``: origins by adapter. A dry run reads the state only. A
    ``deleted`` engine gets no request: nothing is left to undo.
    """

    def __init__(
        self,
        access: Access | None = None,
        *,
        url: str = "",
        timeout: timedelta = TIMEOUT,
        clock: Clock | None = None,
    ) -> None:
        """``url`` is a template with ``PLACEHOLDERS`` that replaces the known address; empty: none."""
        self._endpoint = HttpEndpoint(access, timeout, limit_bytes=_PAGE_BYTES)
        self._url = url
        self._clock = clock or SystemClock()

    def perform(self, action: Action) -> Outcome:
        """Performs the action, or raises ActuationError: retryable while requests run or the engine is away."""
        started = self._clock.now()
        if action.params.get("deleted"):
            status = OutcomeStatus.DRY_RUN if action.dry_run else OutcomeStatus.ALREADY
            return Outcome(action.id, status, f"{action.target.name} no longer exists", started, started)
        plan = self._plan(action)
        if not plan.pending:
            status, detail = OutcomeStatus.ALREADY, f"{host_of(plan.origin)}: nothing to do, the engine reports so"
        elif action.dry_run:
            status, detail = OutcomeStatus.DRY_RUN, f"would send POST {plan.request.url}"
        else:
            status, detail = self._sent(plan)
        if action.dry_run:
            status = OutcomeStatus.DRY_RUN
        return Outcome(action.id, status, detail, started, self._clock.now())

    def requests(self, action: Action) -> tuple[ActionRequest, ...]:
        """Returns the POST that ``perform`` would send now. Raises ActuationError."""
        if action.params.get("deleted"):
            return ()
        plan = self._plan(action)
        return (plan.request,) if plan.pending else ()

    def _plan(self, action: Action) -> _Plan:
        """Reads the engine's state. Raises ActuationError for an unknown engine or operation."""
        adapter, operation = _operation(action)
        origin = self._origin(action, adapter)
        if action.kind is ActionKind.WAKE_ENGINE and adapter == "vllm":
            self._check_level(origin)
        state = operation.state
        if state is None:
            return _Plan(adapter, origin, operation, pending=True)
        try:
            body = self._endpoint.get(origin + state.path).body
        except ActuationError as error:
            raise _explained(error, adapter, operation) from error
        if not isinstance(body.get(state.key), bool):
            raise ActuationError(
                f"{host_of(origin)}: {state.path} returned no {state.key}",
                retryable=False,
                hint=f"check that it is the address of a {adapter} engine",
            )
        return _Plan(adapter, origin, operation, pending=body[state.key] is not state.done)

    def _sent(self, plan: _Plan) -> tuple[OutcomeStatus, str]:
        """Returns status and one sentence. IN_PROGRESS while the engine still finishes requests."""
        host, operation = host_of(plan.origin), plan.operation
        try:
            reply = self._endpoint.send(plan.request)
        except ActuationError as error:
            if error.status is not None and error.status == operation.busy:
                return OutcomeStatus.IN_PROGRESS, f"{host} is busy: requests are running"
            if operation.blocks and error.status is None and error.retryable:
                return OutcomeStatus.IN_PROGRESS, f"{host}: waits for running requests ({error.message})"
            raise _explained(error, plan.adapter, operation) from error
        if operation.confirms and reply.body.get(operation.confirms) is False:
            return OutcomeStatus.IN_PROGRESS, f"{host} is busy: requests are running"
        return OutcomeStatus.DONE, f"{host}: POST {operation.path} returned {reply.status}"

    def _check_level(self, origin: str) -> None:
        """Raises ActuationError for an engine at sleep level 2: woken without its weights, it would return garbage."""
        metric, label = LEVEL_2_SAMPLE
        try:
            text = self._endpoint.get(origin + "/metrics").text
        except ActuationError:
            return  # a page that is too long or disabled decides nothing; the wake-up itself reports other errors
        for line in text.splitlines():
            if line.startswith(metric) and label in line and line.rsplit(" ", 1)[-1] in ("1", "1.0"):
                raise ActuationError(
                    f"{host_of(origin)} sleeps at level 2: its weights are gone",
                    retryable=False,
                    hint="restart the pod",
                )

    def _origin(self, action: Action, adapter: str) -> str:
        known = str(_engines(action).get(adapter) or "")
        if self._url:
            target = action.target
            host = host_of(known).rpartition(":")[0] or host_of(known)
            namespace = target.namespace or "default"
            filled = self._url.format(name=target.name, namespace=namespace, host=host, cluster=target.cluster)
            return filled.rstrip("/")
        origin = origin_of(known)
        if not origin.startswith(("http://", "https://")):
            raise ActuationError(
                f"no address of the engine of {action.target.name} is known",
                retryable=False,
                hint="set remediation.engine.url, for example http://{name}.{namespace}:8000",
            )
        return origin


def _engines(action: Action) -> Mapping[str, str]:
    engines = action.params.get("engines")
    return engines if isinstance(engines, Mapping) else {}


def _operation(action: Action) -> tuple[str, Operation]:
    """Returns adapter and operation. Raises ActuationError if the engine cannot perform the action."""
    if action.kind not in KINDS:
        sentence = f"the actuator engine does not support {action.kind.value}"
        hint = f"name another actuator in remediation.actuators.{action.kind.value}"
        raise ActuationError(sentence, retryable=False, hint=hint)
    adapters = [adapter for adapter in _engines(action) if adapter in ENGINES]
    if not adapters:
        seen = ", ".join(sorted(_engines(action))) or "no engine"
        raise ActuationError(
            f"{action.target.name} is watched as {seen}; control endpoints are known for {', '.join(ENGINES)}",
            retryable=False,
            hint="restart the pod instead",
        )
    adapter = adapters[0]
    operation = ENGINES[adapter].get(action.kind) or Unsupported(
        f"{adapter} has no endpoint for {action.kind.value}", "restart the pod, or shift its traffic"
    )
    if isinstance(operation, Unsupported):
        raise ActuationError(operation.reason, retryable=False, hint=operation.hint)
    return adapter, operation


def _explained(error: ActuationError, adapter: str, operation: Operation) -> ActuationError:
    """The error with the remedy for an endpoint that the engine does not serve."""
    if error.status not in (404, 405):
        return error
    sentence = f"the {adapter} engine has no {operation.path.partition('?')[0]} ({error.message})"
    return ActuationError(sentence, retryable=False, hint=operation.hint, status=error.status)


def _placeholders(template: str) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(template) if name is not None}


def names_cluster(template: str) -> bool:
    """True if a URL template distinguishes engines of the same name in several clusters."""
    return bool(_placeholders(template) & _NAMING_CLUSTER)


def template_problem(template: str) -> str:
    """Returns what is wrong with a URL template, empty if nothing is."""
    try:
        names = _placeholders(template)
    except ValueError as error:
        return str(error)
    unknown = sorted(names - PLACEHOLDERS)
    if unknown:
        return f"unknown placeholder {{{unknown[0]}}}; valid: {', '.join(sorted(PLACEHOLDERS))}"
    if not template.startswith(("http://", "https://")):
        return "expected a URL such as http://{name}.{namespace}:8000"
    return ""
