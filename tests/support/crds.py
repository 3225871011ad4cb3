"""The real definitions of KEDA, Knative, Gateway API with its inference extension and Istio, from their Go modules.

Downloaded once by ``go mod download`` into the cache (40 MB). Each module is checked against its go.sum hash. They are
not in go.mod, because they would change the Kubernetes versions there.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import yaml

from tests.support import kube
from tests.support.waiting import until

MODULES = {
    "github.com/kedacore/keda/v2@v2.21.0": (
        "h1:R6z2HZvstK4RLUMxroNACzBj74xGxt3kG59b5Xc+Xps=",
        ("config/crd/bases/keda.sh_scaledobjects.yaml",),
    ),
    "knative.dev/serving@v0.51.0": (
        "h1:yN2Q7eYqJgoPfZkATjoBZyGbZ2P1Qhns9HIMU4mF+to=",
        ("config/core/300-resources/service.yaml", "config/core/300-resources/revision.yaml"),
    ),
    "sigs.k8s.io/gateway-api@v1.4.1": (
        "h1:NPxFutNkKNa8UfLd2CMlEuhIPMQgDQ6DXNKG9sHbJU8=",
        ("config/crd/standard/gateway.networking.k8s.io_httproutes.yaml",),
    ),
    "sigs.k8s.io/gateway-api-inference-extension@v1.1.0": (
        "h1:MqRYk+3LNUWB0MbTgTZVhmJGNDTvm8l3ze4MOlzR7MU=",
        ("config/crd/bases/inference.networking.k8s.io_inferencepools.yaml",),
    ),
    "istio.io/api@v1.28.1": (
        "h1:A1DzBrL6PUmDDT8uvs43wxmlg6FvdKNiZvZC1PdA50M=",
        ("kubernetes/customresourcedefinitions.gen.yaml",),
    ),
}
CHANGED_BY_PLANS = ("github.com/kedacore/keda/v2@v2.21.0", "knative.dev/serving@v0.51.0")
ROUTES = ("sigs.k8s.io/gateway-api@v1.4.1", "istio.io/api@v1.28.1")
POOLS = ("sigs.k8s.io/gateway-api-inference-extension@v1.1.0",)
_KINDS = frozenset(
    {"ScaledObject", "Service", "Revision", "HTTPRoute", "VirtualService", "DestinationRule", "InferencePool"}
)
_FETCH_SECONDS = 600


def definitions(*modules: str) -> list[dict[str, Any]]:
    """Returns the definitions of modules that tests use. Raises kube.MissingError if they are not available."""
    texts = [_kept(module, MODULES[module][0], path) for module in modules for path in MODULES[module][1]]
    found = [one for text in texts for one in yaml.safe_load_all(text) if one]
    return [one for one in found if one["spec"]["names"]["kind"] in _KINDS]


def install(cluster: kube.Cluster, *modules: str) -> tuple[str, ...]:
    """Installs them in the API server (idempotent); returns their kinds. Raises kube.MissingError."""
    kinds = []
    for definition in definitions(*modules):
        path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{definition['metadata']['name']}"
        # KEDA's is too long for the annotation of a client-side apply
        answer = cluster.http.patch(
            path,
            content=json.dumps(definition),
            params={"fieldManager": "tests", "force": "true"},
            headers={"Content-Type": "application/apply-patch+yaml"},
        )
        assert answer.status_code in (200, 201), answer.text
        spec = definition["spec"]
        for version in (one["name"] for one in spec["versions"] if one["served"]):
            listed = f"/apis/{spec['group']}/{version}/{spec['names']['plural']}"
            until(lambda where=listed: cluster.http.get(where).status_code == 200, f"{listed} is served")  # type: ignore[misc]
        kinds.append(str(spec["names"]["kind"]))
    return tuple(kinds)


def _kept(module: str, digest: str, path: str) -> str:
    cached = kube.cache_folder() / "definitions" / module.replace("/", "_") / Path(path).name
    if not cached.exists():
        text = (_fetched(module, digest) / path).read_text(encoding="utf-8")
        cached.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=cached.parent, delete=False, encoding="utf-8") as temporary:
            temporary.write(text)
        Path(temporary.name).rename(cached)  # atomic: another worker may do the same
    return cached.read_text(encoding="utf-8")


def _fetched(module: str, digest: str) -> Path:
    go = kube.go_program()
    with tempfile.TemporaryDirectory() as folder:  # outside any module, so that no go.mod is read
        try:
            done = subprocess.run(
                [go, "mod", "download", "-json", module],
                cwd=folder,
                capture_output=True,
                text=True,
                timeout=_FETCH_SECONDS,
                check=True,
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise kube.MissingError(f"{module} cannot be fetched: {error}") from error
    module_info = json.loads(done.stdout)
    assert module_info["Sum"] == digest, f"{module} has another hash: {module_info['Sum']}"
    return Path(module_info["Dir"])
