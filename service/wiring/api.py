"""Builds the settings of the API from a configuration."""

from __future__ import annotations

from service.config import settings as settings_file
from service.config.api_settings import ApiSettings, Webhooks
from service.config.settings import Settings
from service.config.settings_base import LOOPBACK_NAMES
from service.config.tokens import admin_token, button_key, spool_of
from service.sources import receiving
from service.wiring.detectors import rules
from service.wiring.stores import remote_of
from store.write_buffer.segments import CycleFiles


def api_settings(settings: Settings) -> ApiSettings:
    """Returns the values that the API needs."""
    return ApiSettings(
        token=admin_token(settings),
        host=settings.api.host,
        port=settings.api.port,
        hosts=(*LOOPBACK_NAMES, settings.api.host, *settings.api.hosts),
        interval=settings.collect.interval,
        language=settings.notify.language,
        cluster=settings.cluster,
        store_url=settings.store.url,
        spool=CycleFiles(spool_of(settings), settings.store.spool.limit_bytes),
        metrics=remote_of(settings),
        control_url=settings.remediation.control_url if settings.remediation.actuator == "simulated" else None,
        ingest=receiving.ingest_settings(settings),
        webhooks=webhooks(settings),
        slos=settings.resolved_slos,
        external_scaler_port=settings.planner.scaling.external_scaler_port,
        rules=rules(settings),
        autonomy=settings.remediation.autonomy,
        dry_run=settings.remediation.dry_run,
        maintenance=tuple(window.silence() for window in settings.maintenance),
        kill_switch_file=settings.remediation.kill_switch_file,
        oncall=settings.oncall,
        public_url=settings.api.public_url,
        dashboard_url=settings.notify.public_url,
        button_key=button_key(settings),
    )


def webhooks(settings: Settings) -> Webhooks:
    """Returns the secrets of senders of changes, and the services of their repositories.

    Raises ConfigError if a secret file cannot be read.
    """
    changes = settings.changes
    return Webhooks(
        secrets={
            name: settings_file.read_secret(file)
            for name, file in (("github", changes.github_secret_file), ("gitlab", changes.gitlab_secret_file))
            if file is not None
        },
        services=dict(changes.services),
    )
