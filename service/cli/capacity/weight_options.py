"""Options of the commands that weigh replicas, declared once."""

from __future__ import annotations

from typing import Annotated

from service.cli.core.amounts import amount

Arriving = Annotated[float | None, amount("--arriving", "token/second", "Arriving tokens to generate")]
Tokens = Annotated[float, amount("--tokens", "token/request", "Tokens generated per request, for the replay")]
Watermark = Annotated[float, amount("--watermark", "ratio", "KV-cache utilization above which no request is admitted")]
Prefill = Annotated[float, amount("--prefill", "second", "Prefill time of a typical prompt that misses the cache")]
