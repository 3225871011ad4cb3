"""A platform that reads and acts on a real control plane, with a clock that the test moves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import yaml

from outrider.audit import AuditRecord
from outrider.clock import SystemClock
from outrider.model import Action, ActionKind, ActionStatus
from service.config import settings as settings_file
from service.incidents.remediation_preview import RemediationPreview
from service.wiring import platform as wiring_platform
from service.wiring import remediation
from tests.support.kube import Cluster
from tests.support.kube_fleet import KubeFleet

ROOT = Path(__file__).parents[2]
INTERVAL = timedelta(seconds=15)
_MOST_CYCLES = 120


def configuration(
    fleet: KubeFleet, folder: Path, *, interval: str = "15s", remediation: dict[str, Any] | None = None, **more: Any
) -> Path:
    """Writes the configuration of a platform that discovers the fleet as one account and acts as another.

    ``remediation`` adds settings of that section, ``more`` other sections.
    """
    cluster = fleet.cluster

    def reads(**keys: Any) -> dict[str, Any]:
        return {
            "type": "kubernetes",
            "url": cluster.url,
            "namespaces": [fleet.namespace],
            "bearer_token_file": str(cluster.token_file("reader")),
            "tls": {"insecure_skip_verify": True},
            **keys,
        }

    acts = {"url": cluster.url, "bearer_token_file": str(cluster.token_file("actor")), "insecure_skip_verify": True}
    acting = {"autonomy": "act", "dry_run": False, "actuator": "kubernetes", "kubernetes": acts}
    document = {
        "cluster": "c",
        "store": {"url": f"sqlite:///{folder}/store/outrider.db"},
        "collect": {"interval": interval, "discover": [reads(every="1s")]},
        "events": [reads()],
        "remediation": {**acting, **(remediation or {})},
        **more,
    }
    file = folder / "outrider.yaml"
    file.write_text(yaml.safe_dump(document), encoding="utf-8")
    return file


def apply_roles(cluster: Cluster, *names: str) -> None:
    """Applies manifests of ``deploy``; by default those of the reading and of the acting account."""
    for name in names or ("rbac.yaml", "rbac-act.yaml"):
        cluster.apply((ROOT / "deploy" / name).read_text(encoding="utf-8"))


class _MovedClock(SystemClock):
    """The system clock plus ``ahead``."""

    ahead = timedelta(0)

    def now(self) -> datetime:
        return super().now() + self.ahead


class ActingPlatform:
    """The engine's cycle and dispatcher in this process; each round moves its clock by one interval."""

    def __init__(self, fleet: KubeFleet, file: Path) -> None:
        """Call ``close`` afterwards."""
        self.fleet, self.clock = fleet, _MovedClock()
        fleet.clock = lambda: self.clock.now().timestamp()
        self.platform = wiring_platform.platform(settings_file.load(file), self.clock, lockstep=True)
        self.platform.warm(self.clock.now())
        self.state = self.platform.state
        self._runner = asyncio.Runner()

    def round(self) -> None:
        """Runs one cycle and dispatches its decisions."""
        self._runner.run(self._round())

    async def _round(self) -> None:
        await self.platform.cycle.run()
        await asyncio.to_thread(self.platform.dispatcher.run_once)
        self.clock.ahead += INTERVAL

    def rounds(self, count: int) -> None:
        """Runs several rounds."""
        for _ in range(count):
            self.round()

    def until(self, condition: Callable[[], object], awaited: str) -> None:
        """Runs rounds until a condition is true. Raises AssertionError with ``awaited`` if it never is."""
        for _ in range(_MOST_CYCLES):
            if condition():
                return
            self.round()
        raise AssertionError(f"{_MOST_CYCLES} rounds in vain until {awaited}: {self.story()}")

    def actions(self, kind: ActionKind, *statuses: ActionStatus) -> list[Action]:
        """Returns actions of a kind, oldest first."""
        return [
            action
            for action in self.all_actions()
            if action.kind is kind and (action.status in statuses or not statuses)
        ]

    def all_actions(self) -> list[Action]:
        """Returns all actions, oldest first."""
        return sorted(self.state.actions(limit=1_000), key=lambda action: action.decided_at)

    def audit(self) -> list[AuditRecord]:
        """Returns the audit log, oldest first."""
        return list(reversed(self.state.audit(limit=10_000)))

    def story(self) -> list[str]:
        """Returns the audit log as ``event subject reason``."""
        return [f"{record.event} {record.subject} {record.reason}" for record in self.audit()]

    def preview(self) -> RemediationPreview:
        """Returns the preview of ``outrider remediate plan`` on the stored state."""
        parts, settings = self.platform, self.platform.settings
        acting, policy = remediation.actuator(settings), remediation.policy(settings)
        playbooks, interval = remediation.playbooks(settings), settings.collect.interval
        return RemediationPreview(self.state, parts.metrics, acting, policy, playbooks, interval)

    def close(self) -> None:
        """Releases the stores."""
        self._runner.run(self.platform.close())
        self._runner.close()
