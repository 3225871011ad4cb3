"""The SDK page of a service, published by its owner: output validity, votes, a business KPI, tokens by tenant."""

from __future__ import annotations

from collections.abc import Iterator

from simulator.exporters.blackbox import KPI, REASONS, SdkCounters
from simulator.exporters.numbers import python_number
from simulator.exporters.text import header, labels
from simulator.fleet import Fleet

_ANSWERS = ("outrider_sdk_answers_total", "counter", "Answers given.")
_INVALID = ("outrider_sdk_invalid_answers_total", "counter", "Answers that were empty, endlessly repeated or garbled.")
_TOKENS = ("outrider_sdk_tokens_total", "counter", "Tokens by kind: input, output.")
_FEEDBACK = ("outrider_sdk_feedback_total", "counter", "Votes of users on answers.")
_KPI = ("outrider_sdk_kpi", "gauge", "A business KPI of the service.")


class SdkPages:
    """Writes the page of any service."""

    def __init__(self) -> None:
        self._count: SdkCounters | None = None

    def page(self, fleet: Fleet, service: int) -> bytes:
        """Returns the page of a service, by its index in the fleet specification."""
        if self._count is None:
            self._count = SdkCounters(fleet)
        count = self._count
        count.update()
        invalid, votes = count.invalid_by_reason[service].tolist(), count.votes[service].tolist()
        lines = [
            header(*_ANSWERS),
            _line(_ANSWERS[0], {}, float(count.answers[service])),
            header(*_INVALID),
            *(_line(_INVALID[0], {"reason": name}, number) for name, number in zip(REASONS, invalid, strict=True)),
            header(*_FEEDBACK),
            *(_line(_FEEDBACK[0], {"vote": name}, number) for name, number in zip(("up", "down"), votes, strict=True)),
            header(*_KPI),
            _line(_KPI[0], {"kpi": KPI}, float(count.kpi[service])),
            header(*_TOKENS),
            *_prompt_tokens(fleet, service),
        ]
        return "".join(lines).encode()


def _prompt_tokens(fleet: Fleet, service: int) -> Iterator[str]:
    """Yields the prompt tokens of each tenant; the SDK names requests without a tenant ``none``."""
    spec, tokens = fleet.spec.services[service], fleet.traffic.prompt_tokens[service].tolist()
    for tenant, count in zip([tenant.name for tenant in spec.tenants] or ["none"], tokens, strict=False):
        yield _line(_TOKENS[0], {"model": spec.engine.model, "tenant": tenant, "kind": "input"}, count)


def _line(name: str, pairs: dict[str, str], number: float) -> str:
    return f"{name}{labels(pairs)} {python_number(number)}\n"
