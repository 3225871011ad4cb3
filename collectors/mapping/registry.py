"""Registry of adapters by name, and the two kinds of source."""

from __future__ import annotations

from functools import cache
from importlib import resources
from pathlib import Path

from collectors.mapping.loader import read_adapter
from collectors.mapping.model import Adapter
from outrider.errors import UsageError
from outrider.text import yaml_file

# File by name; a user's file (see ``add``) by its absolute path.
ADAPTERS: dict[str, str] = {
    "vllm": "vllm.yaml",
    "sglang": "sglang.yaml",
    "tgi": "tgi.yaml",
    "trtllm_serve": "trtllm_serve.yaml",
    "triton": "triton.yaml",
    "triton_trtllm": "triton_trtllm.yaml",
    "mindie": "mindie.yaml",
    "nim": "nim.yaml",
    "lmdeploy": "lmdeploy.yaml",
    "llamacpp": "llamacpp.yaml",
    "ray_serve": "ray_serve.yaml",
    "kserve": "kserve.yaml",
    "dcgm": "dcgm.yaml",
    "npu_exporter": "npu_exporter.yaml",
    "amd": "amd.yaml",
    "nvidia_gpu_exporter": "nvidia_gpu_exporter.yaml",
    "node_exporter": "node_exporter.yaml",
    "kube_state_metrics": "kube_state_metrics.yaml",
    "cadvisor": "cadvisor.yaml",
    "knative": "knative.yaml",
    "keda": "keda.yaml",
    "istio": "istio.yaml",
    "envoy": "envoy.yaml",
    "epp": "epp.yaml",
    "dynamo": "dynamo.yaml",
    "vllm_router": "vllm_router.yaml",
    "otel_genai": "otel_genai.yaml",
    "litellm": "litellm.yaml",
    "obi": "obi.yaml",
    "hubble": "hubble.yaml",
    "coroot": "coroot.yaml",
    "probe": "probe.yaml",
    "sdk": "sdk.yaml",
}
SOURCES: dict[str, str] = {
    "scrape": "collectors.scrape.scraper.Scraper: GET the page of every target",
    "prometheus": "collectors.prometheus.source.PrometheusSource: read raw samples from an existing Prometheus",
}


@cache
def adapter(name: str) -> Adapter:
    """Returns the adapter of that name, packaged or added. Raises UsageError that lists the known ones."""
    if name not in ADAPTERS:
        raise UsageError(
            f"unknown adapter {name!r}{yaml_file.near(name, ADAPTERS)}", hint=f"valid adapters: {', '.join(ADAPTERS)}"
        )
    own = Path(ADAPTERS[name])
    if own.is_absolute():
        return adapter_from_file(own)
    text = resources.files("collectors.adapters").joinpath(ADAPTERS[name]).read_text(encoding="utf-8")
    return read_adapter(text, f"collectors/adapters/{ADAPTERS[name]}")


def adapter_from_file(path: Path) -> Adapter:
    """Reads a user's adapter. Raises ConfigError, or UsageError if the file cannot be read."""
    try:
        return read_adapter(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        cause = error.strerror if isinstance(error, OSError) else "it is not valid UTF-8 text"
        raise UsageError(f"cannot read adapter {path}: {cause}", hint="check the path") from error


def add(path: Path) -> Adapter:
    """Registers a user's adapter under its own name, for this process.

    It replaces a packaged adapter of the same name. Raises ConfigError with every problem of the file, UsageError if
    it cannot be read.
    """
    added = adapter_from_file(path)
    ADAPTERS[added.name] = str(path.resolve())
    adapter.cache_clear()
    return added
