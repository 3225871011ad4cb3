"""A drill on a running platform that watches a simulated fleet: ordered and followed over its API."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from types import FrameType
from typing import Any, Self

import httpx

from outrider.clock import parse_rfc3339
from outrider.errors import ConfigError, UnavailableError, UsageError
from service.config.settings import Settings, read_secret
from service.config.tokens import token_file
from simulator.scenarios import Scenario
from simulator.scenarios.choosing import is_name
from simulator.scoring.score import GRACE, has_remedy

POLL_SECONDS = 1.0
_TIMEOUT_SECONDS = 10
_LEAVE_OUT = "name a single fault, or leave --api out"


class Api:
    """A client of one platform's API."""

    def __init__(self, url: str, token: str) -> None:
        """``url`` is the root, such as http://127.0.0.1:8600."""
        self._url = url.rstrip("/") + "/api/v1"
        self._headers = {"X-Outrider-User": "drill", **({"Authorization": f"Bearer {token}"} if token else {})}

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


def token_for(api: str, settings: Callable[[], Settings]) -> str:
    """The admin token of the platform at ``api``, read from the file that the configuration names.

    Raises UnavailableError when nothing answers there, for a wrong address is no matter of tokens;
    UsageError when there is no such file.
    """
    with suppress(UsageError):  # it may ask for the token that is still to be found
        Api(api, "").get("/overview")
    file = token_file(settings())
    try:
        return read_secret(file)
    except ConfigError as error:
        raise UsageError(
            f"a drill on a running platform needs its admin token: {error.message}",
            hint="name that platform's configuration with --config (that of outrider demo is .outrider/demo.yaml, "
            "in the folder it was started in) or OUTRIDER_CONFIG, or the token's file as api.token_file",
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
    """Order the scenario's fault, wait in the fleet's time until it is over, and tell what was found.

    It begins at once, under the load that is there. An interruption or SIGTERM ends the fault and puts the fleet
    right. Raises UsageError for a scenario that a running platform cannot be asked for.
    """
    order = _order(scenario, seed)
    client = Api(api, token)
    with _Signals() as signals:
        begun = client.post("/drills", order)
        try:
            signals.release()
            start, end = parse_rfc3339(begun["starts_at"]), parse_rfc3339(begun["ends_at"])
            _wait(client, begun["id"], start, end + GRACE, progress, sleep)
        except BaseException as error:
            signals.hold()
            with suppress(UsageError):  # it is over already
                client.post(f"/drills/{begun['id']}/stop")
            if isinstance(error, KeyboardInterrupt):
                ended = f"the drill {begun['id']} was ended early; its fault is at work no more"
                raise KeyboardInterrupt(ended) from error
            raise
    return _result(client.get(f"/drills/{begun['id']}"), client, seed)


def _order(scenario: Scenario, seed: int) -> dict[str, Any]:
    """What to post. Raises UsageError for what the API cannot express."""
    if scenario.world != "single":
        raise UsageError(
            f"{scenario.id} needs a second cluster, which a running platform may not have", hint=_LEAVE_OUT
        )
    if len(scenario.faults) != 1:
        raise UsageError(
            f"{scenario.id} has {len(scenario.faults)} faults; a running platform is drilled with one at a time",
            hint=_LEAVE_OUT,
        )
    (planned,) = scenario.faults
    order = {"fault": planned.fault, "seconds": planned.lasts.total_seconds(), "seed": seed}
    if is_name(planned.entity):
        order["entity"] = planned.entity
    elif planned.entity:
        raise UsageError(
            f"{scenario.id} chooses its entity by {planned.entity!r}, which only private fleets know",
            hint=f"leave --api out, or let the seed choose: outrider drill run {planned.fault} --api URL",
        )
    return order


class _Signals:
    """SIGTERM interrupts as Ctrl-C does. Held at first: an order whose answer was not heard could not be ended."""

    def __enter__(self) -> Self:
        """Take the signals."""
        self._held, self._came = True, False
        self._before = {number: signal.signal(number, self._hear) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        """Give them back."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def hold(self) -> None:
        """Let nothing interrupt from now on."""
        self._held = True

    def release(self) -> None:
        """Raise KeyboardInterrupt for what came meanwhile, and for what comes."""
        self._held = False
        if self._came:
            raise KeyboardInterrupt

    def _hear(self, _number: int, _frame: FrameType | None) -> None:
        self._came = True
        if not self._held:
            raise KeyboardInterrupt


def _wait(
    client: Api,
    drill: str,
    start: datetime,
    until: datetime,
    progress: Callable[[str, float], None],
    sleep: Callable[[float], None],
) -> None:
    now = start
    while now < until and not client.get(f"/drills/{drill}")["stopped"]:  # somebody else may end it
        sleep(POLL_SECONDS)
        now = parse_rfc3339(client.get("/overview")["as_of"])
        progress("wait", min(1.0, (now - start) / (until - start)))


def _result(found: dict[str, Any], client: Api, seed: int) -> dict[str, Any]:
    since, negative = parse_rfc3339(found["starts_at"]), found["negative"]
    listed = client.get("/incidents", since=found["starts_at"], limit=100)["incidents"]
    opened = [one for one in listed if parse_rfc3339(one["opened_at"]) >= since]
    own = None if negative else found["incident"]
    broken = {"fault": None, "state": found["fault"]} if negative else {"fault": found["fault"]}
    truth = {**broken, "entity": found["entity"], "start": found["starts_at"], "end": found["ends_at"]}
    return {
        "fault": found["fault"],
        "seed": seed,
        **{name: found[name] for name in ("detected", "detect_seconds", "named_entity_correct", "named_fault_correct")},
        **{name: found[name] for name in ("notified", "remediated", "recover_seconds")},
        "pages": sum(one["pages"] for one in opened),
        "false_pages": sum(one["pages"] for one in opened if one["id"] != own),
        "passed": found["passed"],
        "stopped": found["stopped"],
        "negative": negative,
        "truth": {**truth, "others": []},
        **({} if negative else {"verdicts": [_judged(found)]}),
    }


def _judged(found: dict[str, Any]) -> dict[str, Any]:
    cause = found["suspected_cause"]
    return {
        "fault": found["fault"],
        "named": None if cause is None else {"fault": cause["fault"], "entity": cause["entity"]},
        "has_remedy": has_remedy(found["fault"]),
        "remediated": found["remediated"],
        "passed": found["passed"],
    }
