"""Imports results of other load testers as steps of a load test: ``vllm bench serve``, LLMPerf and K6.

A file holds one result, a list of them, or one a line. Figures that a tool does not measure stay unknown; required ones
(concurrency, tokens) are requested by name.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from math import isfinite
from typing import Any

from outrider.errors import UsageError
from planner.performance.saturation_point import LoadPoint, bootstrap_mean


def load_points(text: str, source: str, *, tokens: float | None = None) -> tuple[str, list[LoadPoint]]:
    """Returns the tool that wrote ``text``, and its steps.

    ``tokens`` generated per request are required for K6, which does not count them, unless its script kept a trend
    named ``output_tokens``. Raises UsageError with ``source`` and the missing or wrong field.
    """
    points, tools = [], set()
    for number, document in enumerate(_documents(text, source), start=1):
        location = f"{source}, result {number}"
        tool = _tool(document)
        if tool is None:
            raise UsageError(
                f"{location} is not a result of vllm bench serve, LLMPerf or K6",
                hint="give vllm's --save-result file, LLMPerf's _summary.json, or K6's --summary-export file",
            )
        tools.add(tool)
        points.append(_READERS[tool](document, location, tokens))
    if not points:
        raise UsageError(f"{source} has no result", hint="give the JSON file that the load tester wrote")
    if len(tools) > 1:
        raise UsageError(f"{source} has results of {' and '.join(sorted(tools))}", hint="give one file per tool")
    return tools.pop(), points


def _documents(text: str, source: str) -> Iterator[Mapping[str, Any]]:
    try:
        document = json.loads(text)
        entries = document if isinstance(document, list) else [document]
    except json.JSONDecodeError:
        entries = []
        for number, line in enumerate(text.splitlines(), start=1):
            if not line.strip():
                continue
            try:
                entries.append(json.loads(line))
            except json.JSONDecodeError as error:
                raise UsageError(
                    f"{source}:{number}: not JSON: {error.msg}", hint="give the file as the load tester wrote it"
                ) from error
    for entry in entries:
        if not isinstance(entry, Mapping):
            raise UsageError(
                f"{source}: a result must be an object, not {type(entry).__name__}", hint="give it unchanged"
            )
        yield entry


def _tool(document: Mapping[str, Any]) -> str | None:
    if "output_throughput" in document and "request_throughput" in document:
        return "vllm"
    if any(str(key).startswith("results_") for key in document) and "num_concurrent_requests" in document:
        return "llmperf"
    metrics = document.get("metrics")
    if isinstance(metrics, Mapping) and "http_reqs" in metrics:
        return "k6"
    return None


def _vllm(document: Mapping[str, Any], location: str, tokens: float | None) -> LoadPoint:
    """``vllm bench serve --save-result``: milliseconds, with the requested percentiles (99 by default)."""
    del tokens
    completed = int(_number(document, "completed", location))
    rate = _number(document, "request_throughput", location)
    quantile = next((q for q in (95, 99, 90) if f"p{q}_ttft_ms" in document), None)
    concurrency = document.get("max_concurrency")
    if concurrency is None:  # an open loop: concurrency is the rate times the time in service
        seconds = document.get("mean_e2el_ms")
        if seconds is None:
            seconds = float(document.get("mean_ttft_ms") or 0.0) + float(document.get("mean_tpot_ms") or 0.0) * (
                _number(document, "total_output_tokens", location) / max(completed, 1) - 1.0
            )
        concurrency = max(rate * float(seconds) / 1000.0, 1e-3)
    failed = int(document.get("failed") or 0)
    lengths = document.get("output_lens")  # of --save-detailed, one per request, 0 for a failed one
    whole = [float(n) for n in lengths if isinstance(n, (int, float)) and n > 0] if isinstance(lengths, list) else []
    per_request = bootstrap_mean(whole)
    return LoadPoint(
        intervals={} if per_request is None else {"tokens_per_request": per_request},
        concurrency=float(concurrency),
        requests_per_second=rate,
        tokens_per_second=_number(document, "output_throughput", location),
        tokens_per_request=_number(document, "total_output_tokens", location) / max(completed, 1),
        samples=completed,
        ttft=_milliseconds(document, f"p{quantile}_ttft_ms"),
        tpot=_milliseconds(document, f"p{quantile}_tpot_ms"),
        tpot_mean=_milliseconds(document, "mean_tpot_ms"),
        error_ratio=failed / max(failed + completed, 1),
        prompt_tokens=_number(document, "total_input_tokens", location) / max(completed, 1),
        quantile=(quantile or 95) / 100.0,
    )


def _llmperf(document: Mapping[str, Any], location: str, tokens: float | None) -> LoadPoint:
    """LLMPerf's ``_summary.json``.

    Its inter-token latency is E2E latency over tokens, so it includes the first token.
    """
    del tokens
    per_minute = _number(document, "results_num_completed_requests_per_min", location)
    return LoadPoint(
        concurrency=_number(document, "num_concurrent_requests", location),
        requests_per_second=per_minute / 60.0,
        tokens_per_second=_number(document, "results_mean_output_throughput_token_per_s", location),
        tokens_per_request=_number(document, "results_number_output_tokens_mean", location),
        samples=int(_number(document, "results_num_completed_requests", location)),
        ttft=_plain(document, "results_ttft_s_quantiles_p95"),
        tpot=_plain(document, "results_inter_token_latency_s_quantiles_p95"),
        tpot_mean=_plain(document, "results_inter_token_latency_s_mean"),
        error_ratio=float(document.get("results_error_rate") or 0.0),
        prompt_tokens=_plain(document, "results_number_input_tokens_mean"),
    )


def _k6(document: Mapping[str, Any], location: str, tokens: float | None) -> LoadPoint:
    """K6's ``--summary-export`` or ``handleSummary``. Time to first byte is used as TTFT.

    That holds for streamed answers; otherwise K6 waits for the whole body, and TTFT is unknown.
    """
    metrics = document["metrics"]
    own = _k6_values(metrics, "output_tokens")
    per_request = own.get("avg", tokens)
    if per_request is None:
        raise UsageError(
            f"{location}: K6 counts no tokens",
            hint="give --tokens, or keep a Trend named output_tokens in the script",
        )
    users = _k6_values(metrics, "vus_max").get("value") or _k6_values(metrics, "vus").get("value")
    if not users:
        raise UsageError(
            f"{location}: metrics.vus_max is missing", hint="export the summary of a run with virtual users"
        )
    requests, waiting = _k6_values(metrics, "http_reqs"), _k6_values(metrics, "http_req_waiting")
    failed = _k6_values(metrics, "http_req_failed")
    errors = float(failed.get("rate", failed.get("value", 0.0)) or 0.0)
    rate, count = float(requests.get("rate", 0.0)), int(requests.get("count", 0))
    receiving = _k6_values(metrics, "http_req_receiving").get("avg")
    return LoadPoint(
        concurrency=float(users),
        requests_per_second=rate * (1.0 - errors),
        tokens_per_second=rate * (1.0 - errors) * float(per_request),
        tokens_per_request=float(per_request),
        samples=round(count * (1.0 - errors)),
        ttft=float(waiting["p(95)"]) / 1000.0 if "p(95)" in waiting else None,
        tpot_mean=float(receiving) / 1000.0 / max(float(per_request) - 1.0, 1.0) if receiving else None,
        error_ratio=errors,
    )


def _k6_values(metrics: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    metric = metrics.get(name) or {}
    inner = metric.get("values")
    return inner if isinstance(inner, Mapping) else metric


def _number(document: Mapping[str, Any], key: str, location: str) -> float:
    value = document.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not isfinite(value) or value < 0:
        raise UsageError(
            f"{location}: {key} must be a number, not {value!r}", hint="give the file as the load tester wrote it"
        )
    return float(value)


def _plain(document: Mapping[str, Any], key: str) -> float | None:
    value = document.get(key)
    return float(value) if isinstance(value, (int, float)) and isfinite(value) else None


def _milliseconds(document: Mapping[str, Any], key: str) -> float | None:
    value = _plain(document, key)
    return None if value is None else value / 1000.0


_READERS = {"vllm": _vllm, "llmperf": _llmperf, "k6": _k6}
