"""Routing techniques in the configuration."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from outrider.errors import ActuationError, ConfigError
from outrider.model import ActionKind
from remediation.actuators.traffic.route import OutlierEjection, TrafficRoute
from service.config import settings
from service.wiring import remediation as wiring
from tests.support.actions import claimed_action
from tests.support.traffic_scene import replica_ref


def loaded(tmp_path: Path, routes: str, services: str = "") -> settings.Settings:
    file = tmp_path / "outrider.yaml"
    file.write_text(f"{services}remediation:\n  traffic:\n    routes:\n{routes}", encoding="utf-8")
    return settings.load(file)


def test_routes_are_read_with_their_defaults(tmp_path: Path) -> None:
    routes = loaded(
        tmp_path,
        "      chat: {kind: http_route, name: public, namespace: gateways, backends: {chat-0: chat-a}}\n"
        "      llm/embed: {kind: destination_rule, ejection: {interval: 1m, max_ejection_percent: 50}}\n"
        "      rerank: {kind: service, label: outrider.io/serving, replace: true}\n",
    ).remediation.traffic.by_service()
    assert routes["chat"] == TrafficRoute("http_route", "public", "gateways", backends={"chat-0": "chat-a"})
    assert routes["llm/embed"].ejection == OutlierEjection(5, 60.0, 30.0, 50)
    assert routes["llm/embed"].ejection.fields() == {
        "consecutive5xxErrors": 5, "interval": "60s", "baseEjectionTime": "30s", "maxEjectionPercent": 50
    }  # fmt: skip
    assert routes["rerank"] == TrafficRoute("service", label="outrider.io/serving", replace=True)


@pytest.mark.parametrize(
    ("route", "line", "message"),
    [
        ("{kind: gateway}", 4, "remediation.traffic.routes.chat.kind"),
        ("{name: x}", 4, "remediation.traffic.routes.chat.kind: is missing"),
        ("{kind: service, weight: 3}", 4, "unknown key"),
        ("{kind: service, backends: {a: b}}", 4, "backends: does not apply to service; expected http_route or"),
        (
            "{kind: http_route, ejection: {interval: 5s}}",
            4,
            "ejection: does not apply to http_route; expected destination",
        ),
        ("{kind: ingress_canary}", 4, "name: is required by ingress_canary"),
        ("{kind: destination_rule, ejection: {max_ejection_percent: 0}}", 4, "max_ejection_percent"),
        ("{kind: destination_rule, ejection: {interval: soon}}", 4, "expected a duration"),
    ],
)
def test_a_mistake_is_reported_with_file_line_and_key(tmp_path: Path, route: str, line: int, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        loaded(tmp_path, f"      chat: {route}\n")
    assert f"outrider.yaml:{line}" in str(refused.value)
    assert message in str(refused.value)


def test_a_route_of_an_unknown_service_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no service is named 'chet'; did you mean \"chat\""):
        loaded(tmp_path, "      llm/chet: {kind: service}\n", services="services: [{name: chat}]\n")


def test_traffic_has_its_own_performer(tmp_path: Path) -> None:
    file = tmp_path / "outrider.yaml"
    file.write_text(
        "remediation: {actuators: {shift_traffic: traffic}, kubernetes: {url: 'https://127.0.0.1:9', cluster: c}}\n",
        encoding="utf-8",
    )
    actuator = wiring.actuator(settings.load(file))

    def requests(kind: ActionKind) -> object:
        return actuator.requests(
            claimed_action(kind, replica_ref("chat-0"), id_="a", decided_at=datetime(2026, 11, 23, tzinfo=UTC))
        )

    assert requests(ActionKind.RESTORE_TRAFFIC) == (), "the default performer is a dry run"
    with pytest.raises(ActuationError, match="cannot be reached"):
        requests(ActionKind.SHIFT_TRAFFIC)
