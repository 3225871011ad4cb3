"""Warnings about the section ``remediation``: settings that are valid, and have an effect that few would expect."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path

from outrider.errors import ConfigError, ConfigProblem
from outrider.model import ActionKind, EntityKind
from outrider.text import yaml_file
from outrider.vocabulary.faults import faults
from remediation.playbooks import files as playbook_files
from remediation.playbooks.model import Playbook
from remediation.playbooks.selectors import kinds_selected
from service.config.remediation_settings import ActuatorName, RemediationSettings
from service.config.scaling_settings import ScalingSettings

_ACT = "act"


def remediation_warnings(
    settings: RemediationSettings, scaling: ScalingSettings, document: yaml_file.Document
) -> Iterator[ConfigProblem]:
    """Warns of what would not be performed, of a kill switch that is on, and of times without a zone."""
    yield from _unused_performers(settings, document)
    yield from _unreachable_clusters(settings, scaling, document)
    yield from _services_without_route(settings, document)
    if settings.kill_switch_file is not None and (text := kill_switch_warning(settings.kill_switch_file)):
        yield document.problem(("remediation", "kill_switch_file"), text)
    for key, windows in (("maintenance_windows", settings.maintenance_windows), ("freezes", settings.freezes)):
        for index, window in enumerate(windows):
            if "timezone" not in window.model_fields_set:
                where = ("remediation", key, index)
                yield document.problem(where, "has no timezone, so start and end are read as UTC")


def _unused_performers(settings: RemediationSettings, document: yaml_file.Document) -> Iterator[ConfigProblem]:
    """Hooks and a gslb that no action uses, and a reboot that cannot work on every node."""
    for kind, hook in settings.hooks.items():
        path = ("remediation", "hooks", kind.value)
        if settings.performer(kind) != "hook":
            yield document.problem(path, _unused(kind, "hook", settings))
        elif kind is ActionKind.REBOOT_NODE and hook.job is not None:
            message = "no Job can run on an unreachable node; node-lost needs webhook or nvsentinel for its reboot"
            yield document.problem((*path, "job"), message)
    if settings.gslb is not None and settings.performer(ActionKind.SWITCH_CLUSTER) != "gslb":
        message = _unused(ActionKind.SWITCH_CLUSTER, "gslb", settings)
        yield document.problem(("remediation", "gslb"), message)


def _unused(kind: ActionKind, performer: ActuatorName, settings: RemediationSettings) -> str:
    present = settings.performer(kind)
    return f"is not used: {present} performs {kind.value}; set remediation.actuators.{kind.value} to {performer}"


def _unreachable_clusters(
    settings: RemediationSettings, scaling: ScalingSettings, document: yaml_file.Document
) -> Iterator[ConfigProblem]:
    """The level act where no performer changes anything, or where the API server of one is not configured."""
    acting = next(_acting(settings), None)
    if acting is None:
        return
    performers = {kind: settings.performer(kind) for kind in ActionKind}
    if not settings.dry_run and set(performers.values()) == {"dry_run"}:
        yield document.problem(acting, "is act, but nothing is performed: remediation.actuator is dry_run")
    lacking = dict.fromkeys(name for kind, name in performers.items() if _needs_server(kind, name, settings))
    if lacking and settings.kubernetes.server()[0] is None:
        yield document.problem(acting, _without_server("remediation.kubernetes.url", *lacking))
    scales = performers[ActionKind.SCALE] == "autoscalers" and scaling.patches_kubernetes
    if scales and scaling.kubernetes.server()[0] is None:
        yield document.problem(acting, _without_server("planner.scaling.kubernetes.url", "autoscalers"))


def _without_server(key: str, *performers: str) -> str:
    return (
        f"is act, but {key} is not set: the performers {', '.join(performers)} can change "
        "nothing, unless Outrider runs in a pod of the cluster"
    )


def _acting(settings: RemediationSettings) -> Iterator[yaml_file.Path_]:
    """The keys that let actions be performed without approval."""
    if settings.autonomy == _ACT:
        yield ("remediation", "autonomy")
    named = settings.autonomy_for
    by_section = {"playbooks": named.playbooks, "services": named.services, "environments": named.environments}
    for section, levels in by_section.items():
        yield from (("remediation", "autonomy_for", section, name) for name in levels if levels[name] == _ACT)


def _needs_server(kind: ActionKind, performer: ActuatorName, settings: RemediationSettings) -> bool:
    """True if a performer cannot work without the API server of ``remediation.kubernetes``."""
    if performer == "degrade":
        return settings.degrade.needs_api_server
    if performer == "hook":
        hook = next((hook for named, hook in settings.hooks.items() if named is kind), None)
        return hook is not None and hook.webhook is None
    return performer in ("kubernetes", "traffic")


def _services_without_route(settings: RemediationSettings, document: yaml_file.Document) -> Iterator[ConfigProblem]:
    """Own playbooks that divert a whole service, which only an outlier detection can do."""
    routes = settings.traffic.routes.values()
    if settings.performer(ActionKind.SHIFT_TRAFFIC) != "traffic" or any(r.kind == "destination_rule" for r in routes):
        return
    for playbook in _own(settings.playbooks):
        if _diverts_services(playbook):
            message = (
                f"{playbook.fault}: shift_traffic on a service needs a route of kind destination_rule in "
                "remediation.traffic.routes; other kinds divert its replicas"
            )
            yield document.problem(("remediation", "playbooks"), message)


def _own(files: Sequence[Path]) -> list[Playbook]:
    """The playbooks of the operator's files; none if they have mistakes, which are reported as such."""
    try:
        loaded = playbook_files.load(files)
    except ConfigError:
        return []
    return [playbook for fault, playbook in loaded.items() if playbook is not playbook_files.packaged().get(fault)]


def _diverts_services(playbook: Playbook) -> bool:
    cause = faults()[playbook.fault].entity
    shifts = (step.target for step in playbook.steps if step.kind is ActionKind.SHIFT_TRAFFIC)
    return EntityKind.SERVICE in chain.from_iterable(kinds_selected(target, cause) for target in shifts)


def kill_switch_warning(file: Path, access: Callable[[Path, int], bool] = os.access) -> str:
    """What is unexpected about the kill switch on this machine; empty if nothing is. ``access`` is that of ``os``."""
    folder = file.parent
    if not os.path.isdir(folder):  # noqa: PTH112 - Path.is_dir raises if a parent cannot be searched
        return f"the folder {folder} does not exist here; while it is missing, the kill switch is on: create it"
    if not access(folder, os.X_OK):
        return f"the folder {folder} cannot be read by this account; while it cannot, the kill switch is on"
    if os.path.lexists(file):
        return f"{file} exists, so the kill switch is on: nothing is performed"
    if not access(folder, os.W_OK):
        return f"this account cannot create a file in {folder}; check that whoever stops Outrider can"
    return ""
