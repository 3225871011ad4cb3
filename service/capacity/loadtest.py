"""Load test of one endpoint: rising concurrency up to its saturation point, with Locust in a separate process.

Requests are streaming completions of the OpenAI API. Each step counts the time between its warm-up and its end. Tokens
of an answer are spread evenly between its first and its last token.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import numpy as np

from outrider.errors import UnavailableError, UsageError
from outrider.model import Interval
from outrider.text import install_hints
from planner.performance.queueing import Slo
from planner.performance.saturation_point import (
    LoadPoint,
    NoSaturationPoint,
    SaturationPoint,
    bootstrap_mean,
    is_saturated,
    saturation_point,
)

WARM_RATIO = 0.2
"""Share of a step that is not counted, because the batch fills."""
MAX_USERS = 2000
SLICES = 20
"""Slices of a step for the interval of its throughput; a slice averages out shorter variation."""
_ERRNO = re.compile(r"\[Errno -?\d+\] ")  # removed from error messages
_USER = Path(__file__).with_name("locust_stream.py")


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """Load to send: ``steps`` of concurrency, ``step_seconds`` each, with prompt and output length in tokens."""

    url: str
    model: str | None = None
    steps: Sequence[int] = (1, 2, 4, 8, 16, 32, 64, 128)
    step_seconds: float = 30.0
    prompt_tokens: int = 256
    output_tokens: int = 128
    slo: Slo = field(default_factory=Slo)
    token: str | None = None
    path: str = "/v1/completions"
    timeout_seconds: float = 120.0

    def __post_init__(self) -> None:
        """Raises UsageError for invalid values."""
        if urlsplit(self.url).scheme not in ("http", "https") or not urlsplit(self.url).netloc:
            raise UsageError(f"--endpoint {self.url!r} is not a URL", hint="use a URL such as http://host:8000")
        least = {
            "--step-time": (self.step_seconds, 2, "s"),
            "--prompt": (self.prompt_tokens, 1, "tokens"),
            "--tokens": (self.output_tokens, 2, "tokens"),
        }
        for option, (value, minimum, unit) in least.items():
            if value < minimum:
                message = f"{option} is {value:g}, a load test needs {minimum} {unit} or more"
                raise UsageError(message, hint="30s, 256 and 128 tokens are usual")


def steps_of(text: str) -> tuple[int, ...]:
    """Parses rising concurrency such as ``1,2,4,8``. Raises UsageError."""
    try:
        steps = tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise UsageError(f"--steps {text!r} are not integers", hint="write them as 1,2,4,8") from error
    if not steps or min(steps) < 1 or max(steps) > MAX_USERS or list(steps) != sorted(set(steps)):
        raise UsageError(f"--steps {text!r} must rise from 1 up to {MAX_USERS}", hint="write them as 1,2,4,8")
    return steps


def token_of(path: Path) -> str:
    """Reads a bearer token from a file. Raises UsageError."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the token file {path} cannot be read", hint="give a file with the token alone") from error


def host_of(url: str) -> str:
    """Returns host and port of a URL, the default name of a service."""
    return urlsplit(url).netloc.rpartition("@")[2] or url


def run(
    plan: LoadPlan, on_point: Callable[[LoadPoint], None] | None = None
) -> tuple[SaturationPoint | NoSaturationPoint, list[LoadPoint]]:
    """Runs the steps up to the saturation point; calls ``on_point`` after each.

    Raises UnavailableError without Locust, or if no request succeeds.
    """
    if importlib.util.find_spec("locust") is None:
        raise UnavailableError("a load test needs Locust, which is not installed", hint=install_hints.how("loadtest"))
    model = plan.model or _model(plan)
    points: list[LoadPoint] = []
    for users in plan.steps:
        records = _step(plan, model, users)
        point = point_of(records, users, plan.step_seconds)
        if not points and point.samples == 0:
            message = next((record["error"] for record in records if record["error"]), "no request finished in a step")
            raise UnavailableError(f"{plan.url} answers no request: {message}", hint="check URL, model and --step-time")
        points.append(point)
        if on_point is not None:
            on_point(point)
        if len(points) > 1 and is_saturated(points[-2], point, plan.slo):
            break
    return saturation_point(points, plan.slo), points


def point_of(records: Sequence[dict[str, Any]], users: int, seconds: float, quantile: float = 0.95) -> LoadPoint:
    """Summarizes one step from the records of its requests."""
    if not records:
        return LoadPoint(users, 0.0, 0.0, 0.0, 0, error_ratio=1.0)
    begin = min(record["start"] for record in records) + WARM_RATIO * seconds
    end = min(record["start"] for record in records) + seconds
    succeeded = [record for record in records if record["error"] is None]
    inside = [record for record in succeeded if begin <= record["end"] <= end] or succeeded
    failed = [record for record in records if record["error"] is not None and record["end"] >= begin]
    generated = sum(record["tokens"] * _share(record, begin, end) for record in succeeded)
    if not inside:
        return LoadPoint(users, 0.0, 0.0, 0.0, 0, error_ratio=1.0)
    ttft = np.array([record["first"] - record["start"] for record in inside])
    multi_token = [record for record in inside if record["tokens"] > 1]
    tpot = np.array([(record["end"] - record["first"]) / (record["tokens"] - 1) for record in multi_token])
    prompts = [record["prompt"] for record in inside if record["prompt"] is not None]
    tokens = float(np.mean([record["tokens"] for record in inside]))
    rate = generated / (end - begin)
    return LoadPoint(
        concurrency=users,
        requests_per_second=rate / tokens if tokens else 0.0,
        tokens_per_second=rate,
        tokens_per_request=tokens,
        samples=len(inside),
        ttft=float(np.quantile(ttft, quantile)),
        tpot=float(np.quantile(tpot, quantile)) if tpot.size else None,
        tpot_mean=float(tpot.mean()) if tpot.size else None,
        error_ratio=len(failed) / (len(failed) + len(inside)),
        prompt_tokens=float(np.mean(prompts)) if prompts else None,
        quantile=quantile,
        intervals=_intervals(succeeded, inside, begin, end),
    )


def _intervals(
    succeeded: Sequence[dict[str, Any]], inside: Sequence[dict[str, Any]], begin: float, end: float
) -> dict[str, Interval]:
    """Bootstrap intervals: tokens per request over requests, tokens per second over slices of the step."""
    edges = np.linspace(begin, end, SLICES + 1)
    slices = [
        sum(record["tokens"] * _share(record, low, high) for record in succeeded) / (high - low)
        for low, high in pairwise(edges.tolist())
    ]
    samples = {"tokens_per_request": [float(record["tokens"]) for record in inside], "tokens_per_second": slices}
    intervals = {name: bootstrap_mean(values) for name, values in samples.items()}
    return {name: interval for name, interval in intervals.items() if interval is not None}


def _share(record: dict[str, Any], begin: float, end: float) -> float:
    """Returns the share of an answer's tokens that were generated between two times."""
    first, last = record["first"], record["end"]
    if last <= first:
        return 1.0 if begin <= first <= end else 0.0
    return float(max(0.0, min(last, end) - max(first, begin)) / (last - first))


def _model(plan: LoadPlan) -> str:
    """Returns the first model that the server lists."""
    headers = {"Authorization": f"Bearer {plan.token}"} if plan.token else {}
    try:
        answer = httpx.get(plan.url.rstrip("/") + "/v1/models", headers=headers, timeout=10.0)
        answer.raise_for_status()
        return str(answer.json()["data"][0]["id"])
    except httpx.TransportError as error:
        raise UnavailableError(
            f"{plan.url} does not answer: {_ERRNO.sub('', str(error)) or type(error).__name__}",
            hint="start the server, or check host and port",
        ) from error
    except (httpx.HTTPError, ValueError, KeyError, IndexError, TypeError) as error:
        raise UnavailableError(
            f"{plan.url} does not report its model: {error or type(error).__name__}", hint="give --model"
        ) from error


def _step(plan: LoadPlan, model: str, users: int) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="outrider-load-") as folder:
        out = Path(folder) / "records.json"
        fields = {
            **{name: value for name, value in asdict(plan).items() if name not in ("slo", "steps")},
            "model": model,
            "out": str(out),
        }
        command = [sys.executable, "-m", "locust", "-f", str(_USER), "--headless", "--only-summary"]
        command += ["-u", str(users), "-r", str(users)]
        command += ["--stop-timeout", "0", "--exit-code-on-error", "0", "--host", plan.url.rstrip("/")]
        environment = {**os.environ, "OUTRIDER_LOADTEST": json.dumps(fields)}
        limit = plan.step_seconds + plan.timeout_seconds + 60.0
        try:
            completed = subprocess.run(  # noqa: S603 - our own interpreter and file
                command, cwd=folder, env=environment, capture_output=True, text=True, timeout=limit, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise UnavailableError(
                f"Locust did not end after {limit:g} s", hint="give a shorter --step-time"
            ) from error
        if not out.exists():
            message = (completed.stderr.strip().splitlines() or ["no error message"])[-1]
            raise UnavailableError(f"Locust failed: {message}", hint="check it with: python -m locust --version")
        records: list[dict[str, Any]] = json.loads(out.read_text(encoding="utf-8"))
        return records
