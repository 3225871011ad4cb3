"""Audits the workloads of every configured cluster once, without a store: ``outrider audit workloads``."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from collectors.kubernetes.audit import WorkloadFinding, audit
from collectors.kubernetes.event_source import KubernetesEventSource
from outrider.clock import rfc3339
from outrider.errors import UnavailableError, UsageError
from outrider.text.i18n import Language
from service.config.settings import Settings
from service.sources.event_source import event_source
from service.sources.kube_clients import KubeClientPool


async def once(settings: Settings, at: datetime, language: Language) -> dict[str, Any]:
    """Returns the findings of all clusters. Raises UsageError without a cluster, UnavailableError if one fails."""
    clusters = [configured for configured in settings.events if configured.type == "kubernetes"]
    if not clusters:
        raise UsageError(
            "no Kubernetes API is configured",
            hint="add {type: kubernetes, url: https://...} under events:; see docs/howto/watch-kubernetes.md",
        )
    findings: list[WorkloadFinding] = []
    for cluster in clusters:
        source = event_source(cluster, settings.cluster, KubeClientPool([cluster]))
        assert isinstance(source, KubernetesEventSource)  # by its type
        try:
            _, errors = await source.read(at, [])
            if errors:
                raise UnavailableError(errors[0].message, hint=errors[0].hint)
            findings += audit(source.objects, source.replicas, source.cluster)
        finally:
            await source.close()
    rows = [
        finding.as_dict() | {"found": finding.message(language), "do": finding.advice(language)} for finding in findings
    ]
    return {"at": rfc3339(at), "findings": rows}
