"""Hook as a Kubernetes Job on the node: created once, followed until it ends."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from outrider.model import Action, ActionKind, ActionRequest, OutcomeStatus
from outrider.wire.http_auth import Access
from remediation.actuators.api_server import ApiServer
from remediation.actuators.hook import diagnostic
from remediation.actuators.hook.actuator import Progress, node_of
from remediation.actuators.hook.job_manifest import ACTION_LABEL, BOOT, HOOK, JobOptions, job_name, manifest
from remediation.actuators.hook.node_check import check_cordoned, check_reachable, read_node, ready_status
from remediation.actuators.kubernetes.actuator import SETTING
from remediation.actuators.kubernetes.change import refused
from remediation.actuators.kubernetes.ownership import Json, label_value, metadata, performed_by

_MESSAGE_CHARACTERS = 600
# FailureTarget precedes Failed, which waits for the kubelet to end the pods: a node that is gone never does.
_FAILURES = ("Failed", "FailureTarget")


class JobHook:
    """Creates the Job of an action and reads how it ended.

    A reboot is judged by the node: its boot id has changed and it is ready again. The reboot may end the Job's pod as
    a failure.
    """

    def __init__(self, url: str | None, access: Access, options: JobOptions) -> None:
        """``url`` is the API server's, None without one."""
        self._url, self._access, self._options = (url or "").rstrip("/"), access, options

    def attempt(self, action: Action, now: datetime) -> Progress:
        """Creates the Job, or reads its state. Raises ActuationError."""
        del now
        with ApiServer(self._url, self._access, setting=SETTING) as server:
            job = server.get(self._path(action), missing_is_empty=True)
            if job:
                return self._followed(server, action, job)
            node = read_node(server, action)
            check_cordoned(action, node)
            request = self._creation(action, node)
            server.send(request, dry_run=action.dry_run)
        name = job_name(action)
        if action.dry_run:
            return Progress(OutcomeStatus.DRY_RUN, f"would create the Job {name} on {node_of(action)}")
        return Progress(OutcomeStatus.IN_PROGRESS, f"the Job {name} runs on {node_of(action)}")

    def requests(self, action: Action, now: datetime) -> tuple[ActionRequest, ...]:
        """Returns the creation of the Job, nothing if it exists. Raises ActuationError."""
        del now
        with ApiServer(self._url, self._access, setting=SETTING) as server:
            if server.get(self._path(action), missing_is_empty=True):
                return ()
            return (self._creation(action, read_node(server, action)),)

    def _path(self, action: Action) -> str:
        return f"{self._jobs()}/{job_name(action)}"

    def _jobs(self) -> str:
        return f"/apis/batch/v1/namespaces/{self._options.namespace}/jobs"

    def _creation(self, action: Action, node: Json) -> ActionRequest:
        check_reachable(action, node)
        boot_id = _boot_id(node) if action.kind is ActionKind.REBOOT_NODE else ""
        return ActionRequest("POST", self._jobs(), manifest(action, self._options, boot_id))

    def _followed(self, server: ApiServer, action: Action, job: Json) -> Progress:
        name = job_name(action)
        if performed_by(job) != action.id:
            raise refused(f"the Job {name} belongs to another action", "delete it")
        if action.dry_run:
            return Progress(OutcomeStatus.DRY_RUN, f"the Job {name} exists already")
        if action.kind is ActionKind.REBOOT_NODE:
            return self._rebooted(server, action, job)
        ended = _ended(job)
        if ended is None:
            return Progress(OutcomeStatus.IN_PROGRESS, f"the Job {name} runs on {node_of(action)}")
        return self._judged(server, action, complete=ended == "Complete", reason=_failure(job))

    def _judged(self, server: ApiServer, action: Action, *, complete: bool, reason: str) -> Progress:
        """The outcome of a Job that has ended."""
        message = self._message(server, action)
        status = OutcomeStatus.DONE if complete else OutcomeStatus.FAILED
        try:
            report = diagnostic.read(message)
        except diagnostic.ReportError as error:
            return Progress(OutcomeStatus.FAILED, f"the report of {job_name(action)} cannot be read: {error}")
        if report is None or (not complete and report.passed):
            text = message or reason or ("it reports nothing" if complete else "its pod left no message")
            return Progress(status, f"the Job {job_name(action)} {'succeeded' if complete else 'failed'}: {text}")
        passed, detail = diagnostic.judge(report, self._peers(server, action), self._options.peer_ratio)
        return Progress(OutcomeStatus.DONE if passed else OutcomeStatus.FAILED, f"{node_of(action)}: {detail}")

    def _message(self, server: ApiServer, action: Action) -> str:
        """The termination message of the Job's newest pod."""
        pods = self._pods(server, f"{ACTION_LABEL}={label_value(action.id)}")
        newest = max(pods, key=lambda pod: str(metadata(pod).get("creationTimestamp")), default={})
        return _terminated_message(newest)

    def _peers(self, server: ApiServer, action: Action) -> list[diagnostic.Report]:
        """The newest report of each other node whose diagnostic of this kind succeeded."""
        pods = self._pods(server, f"{HOOK}={label_value(action.kind.value)}")
        newest: dict[str, Json] = {}
        for pod in sorted(pods, key=lambda pod: str(metadata(pod).get("creationTimestamp"))):
            node = pod.get("spec", {}).get("nodeName")
            if node and node != node_of(action) and pod.get("status", {}).get("phase") == "Succeeded":
                newest[node] = pod
        return [report for pod in newest.values() if (report := _report_of(pod)) is not None]

    def _pods(self, server: ApiServer, selector: str) -> list[dict[str, Any]]:
        path = f"/api/v1/namespaces/{self._options.namespace}/pods"
        return list(server.get(path, query=(("labelSelector", selector),)).get("items", []))

    def _rebooted(self, server: ApiServer, action: Action, job: Json) -> Progress:
        """The outcome of a reboot, from the node."""
        node, name = read_node(server, action), node_of(action)
        before = str((metadata(job).get("annotations") or {}).get(BOOT, ""))
        if before and _boot_id(node) != before:
            if ready_status(node) == "True":
                return Progress(OutcomeStatus.DONE, f"{name} has rebooted and is ready")
            return Progress(OutcomeStatus.IN_PROGRESS, f"{name} has rebooted and is not ready yet")
        if _ended(job) == "Failed":
            return self._judged(server, action, complete=False, reason=_failure(job))
        return Progress(OutcomeStatus.IN_PROGRESS, f"{name} has not rebooted yet")


def _boot_id(node: Json) -> str:
    return str(node.get("status", {}).get("nodeInfo", {}).get("bootID", ""))


def _ended(job: Json) -> str | None:
    """``Complete`` or ``Failed`` once the Job has ended."""
    types = {condition.get("type") for condition in _true_conditions(job)}
    return "Complete" if "Complete" in types else "Failed" if types & set(_FAILURES) else None


def _failure(job: Json) -> str:
    """The Job controller's reason of a failure."""
    failed = [condition for condition in _true_conditions(job) if condition.get("type") in _FAILURES]
    return f"{failed[0].get('reason', '')} {failed[0].get('message', '')}".strip() if failed else ""


def _true_conditions(job: Json) -> list[Json]:
    conditions = job.get("status", {}).get("conditions") or ()
    return [condition for condition in conditions if condition.get("status") == "True"]


def _terminated_message(pod: Json) -> str:
    """The message, else exit code and reason, of the first container that failed or else has a message."""
    statuses = pod.get("status", {}).get("containerStatuses") or ()
    ended = [status.get("state", {}).get("terminated") or {} for status in statuses]
    ended.sort(key=lambda state: not state.get("exitCode"))
    for state in ended:
        if state.get("message"):
            message = str(state["message"])
            return message if message.lstrip().startswith("{") else message.strip()[-_MESSAGE_CHARACTERS:]
        if state.get("exitCode"):
            return f"exit code {state['exitCode']} ({state.get('reason', 'Error')})"
    return ""


def _report_of(pod: Mapping[str, Any]) -> diagnostic.Report | None:
    try:
        return diagnostic.read(_terminated_message(pod))
    except diagnostic.ReportError:
        return None
