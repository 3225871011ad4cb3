"""Drills on a Kubernetes cluster."""

from __future__ import annotations

from datetime import timedelta

from pydantic import Field

from service.config.scaling_settings import KubernetesApiSettings
from service.config.settings_base import Duration, Section


class DrillSettings(Section):
    """Drills on a Kubernetes cluster: `outrider drill run FAULT --kubernetes NAMESPACE`."""

    kubernetes: KubernetesApiSettings = Field(
        KubernetesApiSettings(), description="API server and account of drills; see deploy/rbac-drill.yaml."
    )
    longest: Duration = Field(timedelta(minutes=15), description="Maximum duration of one drill.")
