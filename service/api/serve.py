"""The API process: opens the store, builds the application, runs it with uvicorn."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import uvicorn

from outrider import gc_tuning
from service.api.app import create_app
from service.api.dependencies import ApiExtras
from service.api.routers import plan
from service.config.api_settings import ApiSettings
from service.scaling.keda_scaler import KedaScaler
from store import factory


def run(settings: ApiSettings, extras: ApiExtras | None = None) -> None:
    """Serves until the process is stopped. Raises StoreError if the store cannot be opened."""
    state_url, metrics_url = factory.urls_of(settings.store_url)
    state, metrics = factory.open_state(state_url), factory.open_metrics(metrics_url, settings.metrics)
    buffer, changes = factory.open_ingest_buffer(state_url), factory.open_change_log(state_url)
    scaler = None
    try:
        if settings.external_scaler_port is not None:
            wanted = partial(plan.wanted_of, state)
            scaler = KedaScaler(wanted, settings.host, settings.external_scaler_port)
        parts = extras or ApiExtras()
        parts = replace(parts, ingest_buffer=parts.ingest_buffer or buffer, change_log=parts.change_log or changes)
        app = create_app(state, metrics, settings, parts)
        gc_tuning.settle()
        uvicorn.run(app, host=settings.host, port=settings.port, log_level="warning", access_log=False)
    finally:
        if scaler is not None:
            scaler.stop()
        changes.close()
        buffer.close()
        state.close()
        metrics.close()
