"""One look at the workloads of every configured cluster, without a store: ``outrider audit workloads``."""

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
    """The findings of every cluster. Raises UsageError without one, UnavailableError when one cannot be read."""
    given = [one for one in settings.events if one.type == "kubernetes"]
    if not given:
        raise UsageError(
            "no Kubernetes API is configured",
            hint="add {type: kubernetes, url: https://...} under events:; docs/howto/watch-kubernetes.md shows how",
        )
    found: list[WorkloadFinding] = []
    for one in given:
        source = event_source(one, settings.cluster, KubeClientPool([one]))
        assert isinstance(source, KubernetesEventSource)  # by its type
        try:
            _, errors = await source.read(at, [])
            if errors:
                raise UnavailableError(errors[0].message, hint=errors[0].hint)
            found += audit(source.objects, source.replicas, source.cluster)
        finally:
            await source.close()
    rows = [one.as_dict() | {"found": one.message(language), "do": one.advice(language)} for one in found]
    return {"at": rfc3339(at), "findings": rows}
