"""A drill on a running platform that monitors a simulated fleet: started and followed over its API."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from typing import Any

import httpx

from outrider.clock import parse_rfc3339
from outrider.errors import ConfigError, UnavailableError, UsageError
from service.config.settings import Settings, read_secret
from service.config.tokens import token_file
from service.drills.interrupts import DeferredSignals
from simulator.scenarios import Scenario
from simulator.scenarios.entity_choice import is_name
from simulator.scoring.score import GRACE, has_remedy

POLL_SECONDS = 1.0
_TIMEOUT_SECONDS = 10
_WITHOUT_API = "name a single fault, or omit --api"


class Api:
    """Client of the API of one platform."""

    def __init__(self, url: str, token: str) -> None:
        """``url`` is the base URL, such as http://127.0.0.1:8600."""
        self._url = url.rstrip("/") + "/api/v1"
        self._headers = {"X-Outrider-User": "drill", **({"Authorization": f"Bearer {token}"} if token else {})}

    def get(self, path: str, **query: Any) -> Any:
        """Returns the JSON at a path. Raises UnavailableError without a response, UsageError on refusal."""
        return self._request("GET", path, params=query)

    def post(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """Posts to a path. Raises as ``get`` does."""
        return self._request("POST", path, json=body)

    def _request(self, method: str, path: str, **more: Any) -> Any:
        try:
            url = self._url + path
            response = httpx.request(method, url, headers=self._headers, timeout=_TIMEOUT_SECONDS, **more)
            document = response.json()
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            hint = "start one with: outrider demo, and set its address with --api http://127.0.0.1:8600"
            raise UnavailableError(f"no API responds at {self._url}", hint=hint) from error
        if response.is_success:
            return document
        error_fields = document.get("error", {}) if isinstance(document, dict) else {}
        message = error_fields.get("message") or f"the API returned {response.status_code}"
        failure = UnavailableError if response.status_code >= httpx.codes.INTERNAL_SERVER_ERROR else UsageError
        raise failure(message, hint=error_fields.get("hint", ""))


def token_for(api: str, settings: Callable[[], Settings]) -> str:
    """Returns the admin token of the platform at ``api``, from the file in the configuration.

    Raises UnavailableError if the API does not respond, UsageError if the file cannot be read.
    """
    with suppress(UsageError):  # the API may require the token
        Api(api, "").get("/overview")
    file = token_file(settings())
    try:
        return read_secret(file)
    except ConfigError as error:
        raise UsageError(
            f"a drill on a running platform needs its admin token: {error.message}",
            hint="name the configuration of that platform with --config or OUTRIDER_CONFIG (outrider demo writes "
            ".outrider/demo.yaml in its folder), or set the token file in api.token_file",
        ) from error


def drill(
    scenario: Scenario,
    *,
    api: str,
    token: str,
    seed: int,
    progress: Callable[[str, float], None],
    sleep: Callable[[float], None] = time.sleep,
) -> dict[str, Any]:
    """Injects the fault of a scenario, waits in fleet time until it is over, and returns the result.

    The fault starts at once, under the current load. An interrupt or SIGTERM ends the fault and restores the fleet.
    Raises UsageError for a scenario that a running platform cannot run.
    """
    order = _order(scenario, seed)
    client = Api(api, token)
    with DeferredSignals() as signals:
        started = client.post("/drills", order)
        try:
            signals.release()
            start, end = parse_rfc3339(started["starts_at"]), parse_rfc3339(started["ends_at"])
            _wait(client, started["id"], start, end + GRACE, progress, sleep)
        except BaseException as error:
            signals.defer()
            with suppress(UsageError):  # already over
                client.post(f"/drills/{started['id']}/stop")
            if isinstance(error, KeyboardInterrupt):
                message = f"the drill {started['id']} ended early; its fault was removed"
                raise KeyboardInterrupt(message) from error
            raise
    return result(client.get(f"/drills/{started['id']}"), client, seed)


def _order(scenario: Scenario, seed: int) -> dict[str, Any]:
    """Returns the request body. Raises UsageError for a scenario that the API cannot express."""
    if scenario.world != "single":
        raise UsageError(
            f"{scenario.id} needs a second cluster, which a running platform may not have", hint=_WITHOUT_API
        )
    if len(scenario.faults) != 1:
        raise UsageError(
            f"{scenario.id} has {len(scenario.faults)} faults; a running platform runs one at a time",
            hint=_WITHOUT_API,
        )
    (planned,) = scenario.faults
    order = {"fault": planned.fault, "seconds": planned.lasts.total_seconds(), "seed": seed}
    if is_name(planned.entity):
        order["entity"] = planned.entity
    elif planned.entity:
        raise UsageError(
            f"{scenario.id} chooses its entity by {planned.entity!r}, which only private fleets support",
            hint=f"omit --api, or let the seed choose: outrider drill run {planned.fault} --api URL",
        )
    return order


def _wait(
    client: Api,
    drill: str,
    start: datetime,
    until: datetime,
    progress: Callable[[str, float], None],
    sleep: Callable[[float], None],
) -> None:
    now = start
    while now < until and not client.get(f"/drills/{drill}")["stopped"]:  # another user may end it
        sleep(POLL_SECONDS)
        now = parse_rfc3339(client.get("/overview")["as_of"])
        progress("wait", min(1.0, (now - start) / (until - start)))


def result(drill: dict[str, Any], client: Api, seed: int) -> dict[str, Any]:
    """Returns the JSON of ``drill run`` for a finished drill of the API."""
    since, negative = parse_rfc3339(drill["starts_at"]), drill["negative"]
    listed = client.get("/incidents", since=drill["starts_at"], limit=100)["incidents"]
    opened = [incident for incident in listed if parse_rfc3339(incident["opened_at"]) >= since]
    matched = None if negative else drill["incident"]
    fault = {"fault": None, "state": drill["fault"]} if negative else {"fault": drill["fault"]}
    truth = {**fault, "entity": drill["entity"], "start": drill["starts_at"], "end": drill["ends_at"]}
    return {
        "fault": drill["fault"],
        "seed": seed,
        **{name: drill[name] for name in ("detected", "detect_seconds", "named_entity_correct", "named_fault_correct")},
        **{name: drill[name] for name in ("notified", "remediated", "recover_seconds")},
        "pages": sum(incident["pages"] for incident in opened),
        "false_pages": sum(incident["pages"] for incident in opened if incident["id"] != matched),
        "passed": drill["passed"],
        "stopped": drill["stopped"],
        "negative": negative,
        "truth": {**truth, "others": []},
        **({} if negative else {"verdicts": [_verdict(drill)]}),
    }


def _verdict(drill: dict[str, Any]) -> dict[str, Any]:
    cause = drill["suspected_cause"]
    return {
        "fault": drill["fault"],
        "named": None if cause is None else {"fault": cause["fault"], "entity": cause["entity"]},
        "has_remedy": has_remedy(drill["fault"]),
        "remediated": drill["remediated"],
        "passed": drill["passed"],
    }
