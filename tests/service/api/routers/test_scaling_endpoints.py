"""Autoscalers read the target once it is due, and nothing if the plan is stale."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta

import httpx
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from outrider.model import CycleRecord, Plan, Recommendation
from outrider.ports import CycleCommit
from outrider.testing.story import Story
from service.api.app import create_app
from service.api.routers import plan as plan_api
from service.api.routers.own_metrics import StateCollector
from service.config.api_settings import ApiSettings
from store.memory import MemoryMetricStore, MemoryStateStore


@pytest.fixture
def state():
    found = MemoryStateStore()
    Story().fill(found, MemoryMetricStore())
    return found


def _recommended(state, **changes) -> Recommendation:
    """The story's plan with changes, of the newest cycle's instant, committed anew."""
    newest = state.cycles(1)[0]
    known = next(one for one in state.plan().recommendations if isinstance(one, Recommendation))
    made = replace(known, **{"made_at": newest.at, **changes})
    cycle = CycleRecord("next", newest.at + timedelta(seconds=1), 0.0, 0, 0, 0, 0, 0, 0)
    state.commit(CycleCommit(cycle=cycle, plan=Plan(recommendations=(made,))))
    return made


def _ask(state, path):
    app = create_app(state, MemoryMetricStore(), ApiSettings(token="t"))
    transport = httpx.ASGITransport(app, client=("127.0.0.1", 1))

    async def ask():
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return await client.get(f"/api/v1{path}")

    return asyncio.run(ask())


def _page(state):
    registry = CollectorRegistry()
    registry.register(StateCollector(state))
    return generate_latest(registry).decode()


def _where(made):
    return f"/scaling/{made.service.namespace or '-'}/{made.service.name}"


def test_a_scale_out_is_returned_once_its_start_is_due(state):
    at = state.cycles(1)[0].at
    made = _recommended(state, current_replicas=4, target_replicas=7, needed_by=at + timedelta(minutes=30))
    assert _ask(state, _where(made)).json()["value"] == 4
    due = replace(made, needed_by=at - timedelta(minutes=1))
    assert plan_api.replicas_wanted(due, at) == 7
    fewer = replace(made, target_replicas=3, needed_by=at + timedelta(hours=1))
    assert plan_api.replicas_wanted(fewer, at) == 3
    page = _page(state)
    assert f'outrider_plan_replicas{{gpu_type="{made.gpu_type}"' in page
    assert "outrider_plan_target_replicas" in page


def test_a_stale_plan_is_not_returned(state):
    at = state.cycles(1)[0].at
    made = _recommended(state, made_at=at - timedelta(hours=2))
    assert _ask(state, _where(made)).status_code == 503
    assert not [line for line in _page(state).splitlines() if line.startswith("outrider_plan_replicas{")]


def test_an_unknown_service_returns_404(state):
    answer = _ask(state, "/scaling/-/nobody")
    assert answer.status_code == 404
    assert "nobody" in answer.json()["error"]["message"]
