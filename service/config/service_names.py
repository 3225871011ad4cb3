"""Names of services in limits of remediation: a limit with a misspelt name would never apply."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from outrider.errors import ConfigProblem
from outrider.model import EntityKind
from outrider.text import yaml_file
from service.config.collect_settings import CollectSettings
from service.config.event_settings import EventSettings
from service.config.probe_settings import ProbeSettings
from service.config.receive_settings import ReceiveSettings
from service.config.remediation_settings import RemediationSettings
from service.config.service_settings import ServiceSettings

_ROLES = ("-prefill", "-decode")  # pools of a service have names of their own
# Pages about these entities name services themselves, such as those of gateways and kube-state-metrics.
_NAMING_SERVICES = frozenset({EntityKind.WORKLOAD, EntityKind.CLUSTER})


@dataclass(frozen=True, slots=True)
class KnownServices:
    """Services of the configuration as (namespace, name); the namespace None is any.

    ``complete`` is False if further services are known at run time only.
    """

    services: frozenset[tuple[str | None, str]]
    complete: bool

    @property
    def names(self) -> tuple[str, ...]:
        """Their names, without the namespace and with it."""
        full = {f"{namespace}/{name}" for namespace, name in self.services if namespace is not None}
        return tuple(sorted({name for _, name in self.services} | full))

    def includes(self, text: str) -> bool:
        """True for the name of a service or of one of its pools, as name, namespace/name or key."""
        namespace, _, name = text.rpartition("/")
        namespace = namespace.rpartition("/")[2]
        names = {name, *(name.removesuffix(role) for role in _ROLES)}
        return any(own in names and namespace in ("", space or namespace) for space, own in self.services)


def known_services(
    services: Sequence[ServiceSettings],
    collect: CollectSettings,
    probes: Sequence[ProbeSettings],
    events: Sequence[EventSettings],
    receive: ReceiveSettings,
    *,
    simulated: bool,
) -> KnownServices:
    """Returns the services that a configuration names. ``simulated``: a fleet brings its own ones."""
    named: set[tuple[str | None, str]] = {(service.namespace, service.name) for service in services}
    named |= {(probe.namespace, probe.service) for probe in probes}
    named |= {(None, name) for name in receive.kpi_services}
    for target in collect.targets:
        if "service" in target.labels:
            named.add((target.entity.namespace, target.labels["service"]))
        if target.entity.kind is EntityKind.SERVICE:
            named.add((target.entity.namespace, target.entity.name))
    discovers = (
        simulated
        or bool(collect.discover)
        or collect.prometheus is not None
        or receive != ReceiveSettings()
        or any(source.type == "kubernetes" for source in events)
        or any(target.entity.kind in _NAMING_SERVICES for target in collect.targets)
    )
    return KnownServices(frozenset(named), complete=bool(named) and not discovers)


def unknown_services(
    remediation: RemediationSettings, known: KnownServices, document: yaml_file.Document
) -> Iterator[ConfigProblem]:
    """Yields each name in freezes, windows, levels, minimums and ladders that is not that of a known service."""
    for path, name in _named(remediation):
        if path[0] == "degrade" and "/" in name:
            yield document.problem(("remediation", *path), "expected the name of a service without its namespace")
        elif not known.includes(name):
            yield document.problem(("remediation", *path), _message(name, known))


def _message(name: str, known: KnownServices) -> str:
    hint = yaml_file.near(name, known.names)
    if known.complete:
        return f"no service is named {name!r}{hint or '; name it under services'}"
    return f"no configured service is named {name!r}{hint or '; it applies only if one of that name is discovered'}"


def _named(remediation: RemediationSettings) -> Iterator[tuple[yaml_file.Path_, str]]:
    """Yields (key, name) of each setting that applies to named services only."""
    for key, windows in (("maintenance_windows", remediation.maintenance_windows), ("freezes", remediation.freezes)):
        for index, window in enumerate(windows):
            yield from (((key, index, "services", place), name) for place, name in enumerate(window.services))
    by_section: Mapping[str, Iterable[str]] = {
        "autonomy_for": remediation.autonomy_for.services,
        "service_minimum": remediation.service_minimum.services,
        "degrade": remediation.degrade.services,
    }
    for section, names in by_section.items():
        yield from (((section, "services", name), name) for name in names)
