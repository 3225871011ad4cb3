"""A drill on a running platform that watches a simulated fleet: ordered and followed over its API."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

import httpx

from outrider.clock import parse_rfc3339
from outrider.errors import UnavailableError, UsageError
from simulator.scenarios import Scenario
from simulator.score import GRACE, has_remedy

POLL_SECONDS = 1.0
_TIMEOUT_SECONDS = 10


class Api:
    """A client of one platform's API."""

    def __init__(self, url: str, token: str) -> None:
        """``url`` is the root, such as http://127.0.0.1:8600."""
        self._url = url.rstrip("/") + "/api/v1"
        self._headers = {"Authorization": f"Bearer {token}", "X-Outrider-User": "drill"}

    def get(self, path: str, **query: Any) -> Any:
        """Read. Raises UnavailableError when nothing answers, UsageError when it refuses."""
        return self._ask("GET", path, params=query)

    def post(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """Write. Raises as ``get`` does."""
        return self._ask("POST", path, json=body)

    def _ask(self, method: str, path: str, **more: Any) -> Any:
        try:
            url = self._url + path
            answer = httpx.request(method, url, headers=self._headers, timeout=_TIMEOUT_SECONDS, **more)
            found = answer.json()
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            hint = "start one with: outrider demo, and give its address with --api http://127.0.0.1:8600"
            raise UnavailableError(f"no API answers at {self._url}", hint=hint) from error
        if answer.is_success:
            return found
        said = found.get("error", {}) if isinstance(found, dict) else {}
        message = said.get("message") or f"the API answered {answer.status_code}"
        failure = UnavailableError if answer.status_code >= httpx.codes.INTERNAL_SERVER_ERROR else UsageError
        raise failure(message, hint=said.get("hint", ""))


def drill(
    scenario: Scenario,
    *,
    api: str,
    token: str,
    seed: int,
    progress: Callable[[str, float], None],
    sleep: Callable[[float], None] = time.sleep,
) -> dict[str, Any]:
    """Order the scenario's fault, wait in the fleet's time until it is over, and tell what was found.

    An interruption ends the fault and puts the fleet right. Raises UsageError for a scenario of several faults.
    """
    if len(scenario.faults) != 1:
        raise UsageError(
            f"{scenario.id} has {len(scenario.faults)} faults; a running platform is drilled with one at a time",
            hint="name a single fault, or leave --api out",
        )
    client, planned = Api(api, token), scenario.faults[0]
    order = {"fault": planned.fault, "seconds": planned.lasts.total_seconds(), "seed": seed}
    begun = client.post("/drills", order)
    try:
        _wait(client, parse_rfc3339(begun["starts_at"]), parse_rfc3339(begun["ends_at"]) + GRACE, progress, sleep)
    except BaseException:
        client.post(f"/drills/{begun['id']}/stop")
        raise
    found = client.get(f"/drills/{begun['id']}")
    return _result(found, client, seed)


def _wait(
    client: Api,
    start: datetime,
    until: datetime,
    progress: Callable[[str, float], None],
    sleep: Callable[[float], None],
) -> None:
    now = start
    while now < until:
        sleep(POLL_SECONDS)
        now = parse_rfc3339(client.get("/overview")["as_of"])
        progress("wait", min(1.0, (now - start) / (until - start)))


def _result(found: dict[str, Any], client: Api, seed: int) -> dict[str, Any]:
    since = found["starts_at"]
    opened = [one for one in client.get("/incidents", since=since, limit=100)["incidents"] if one["opened_at"] >= since]
    repaired = found["remediated"] or not has_remedy(found["fault"])
    named = found["named_entity_correct"] and found["named_fault_correct"]
    return {
        "fault": found["fault"],
        "seed": seed,
        **{name: found[name] for name in ("detected", "detect_seconds", "named_entity_correct", "named_fault_correct")},
        **{name: found[name] for name in ("notified", "remediated", "recover_seconds")},
        "pages": sum(one["pages"] for one in opened),
        "false_pages": sum(one["pages"] for one in opened if one["id"] != found["incident"]),
        "passed": found["detected"] and named and repaired,
        "negative": False,
        "truth": {
            "fault": found["fault"],
            "entity": found["entity"],
            "start": found["starts_at"],
            "end": found["ends_at"],
        },
    }
