"""Actions of the Kubernetes actuator, for tests on a real control plane."""

from __future__ import annotations

import itertools
from datetime import timedelta
from pathlib import Path
from typing import Any

import yaml

from outrider.clock import SystemClock
from outrider.model import Action, ActionKind, EntityKind, EntityRef
from outrider.wire.http_auth import Access, Tls
from remediation.actuators.kubernetes.actuator import KubernetesActuator
from remediation.actuators.kubernetes.permissions import Permission
from tests.support.actions import claimed_action
from tests.support.kube import Cluster

SPACE = "acting"
ROOT = Path(__file__).resolve().parents[2]
_NUMBERS = itertools.count()


def node_ref(name: str) -> EntityRef:
    return EntityRef("c", EntityKind.NODE, None, name)


def pod_ref(name: str) -> EntityRef:
    return EntityRef("c", EntityKind.POD, SPACE, name)


def service_ref(name: str) -> EntityRef:
    return EntityRef("c", EntityKind.SERVICE, SPACE, name)


def an_action(
    kind: ActionKind, target: EntityRef, *, dry_run: bool = False, session: str = "ses-1", **params: Any
) -> Action:
    """Returns a claimed action, decided a second ago: object times have whole seconds."""
    number, decided = next(_NUMBERS), SystemClock().now() + timedelta(seconds=1)
    return claimed_action(
        kind, target, id_=f"act-{number}", decided_at=decided, session=session, dry_run=dry_run, **params
    )


def actuator_of(cluster: Cluster, token: str = "admin") -> KubernetesActuator:
    """Returns the actuator with the credentials of a test account."""
    access = Access(bearer_token_file=cluster.token_file(token), tls=Tls(insecure_skip_verify=True))
    return KubernetesActuator(cluster.url, access)


def granted_by_manifest() -> set[Permission]:
    """The permissions of the cluster role in ``deploy/rbac-act.yaml``."""
    documents = list(yaml.safe_load_all((ROOT / "deploy" / "rbac-act.yaml").read_text(encoding="utf-8")))
    (role,) = (document for document in documents if document["kind"] == "ClusterRole")
    return {
        Permission(verb, resource, group)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
