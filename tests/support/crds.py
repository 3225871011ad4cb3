"""The real definitions of KEDA, Knative, Gateway API and Istio, from the Go modules that publish them.

Fetched by ``go mod download`` into the cache, 40 MB, once. Each module is held to the hash that a go.sum would hold
it to: a go.mod that required them beside Kubernetes would choose its versions for it.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import yaml

from tests.support import kube

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
    "istio.io/api@v1.28.1": (
        "h1:A1DzBrL6PUmDDT8uvs43wxmlg6FvdKNiZvZC1PdA50M=",
        ("kubernetes/customresourcedefinitions.gen.yaml",),
    ),
}
CHANGED_BY_PLANS = ("github.com/kedacore/keda/v2@v2.21.0", "knative.dev/serving@v0.51.0")
ROUTES = ("sigs.k8s.io/gateway-api@v1.4.1", "istio.io/api@v1.28.1")
_KINDS = frozenset({"ScaledObject", "Service", "Revision", "HTTPRoute", "VirtualService", "DestinationRule"})
_FETCH_SECONDS = 600


def definitions(*modules: str) -> list[dict[str, Any]]:
    """The definitions of modules that tests use. Raises kube.MissingError where they cannot be had."""
    texts = [_kept(module, MODULES[module][0], path) for module in modules for path in MODULES[module][1]]
    found = [one for text in texts for one in yaml.safe_load_all(text) if one]
    return [one for one in found if one["spec"]["names"]["kind"] in _KINDS]


def install(cluster: kube.Cluster, *modules: str) -> tuple[str, ...]:
    """Make the API server know them, as often as one likes; returns their kinds. Raises kube.MissingError."""
    kinds = []
    for found in definitions(*modules):
        path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{found['metadata']['name']}"
        # KEDA's is longer than the annotation that a client-side apply keeps
        answer = cluster.http.patch(
            path,
            content=json.dumps(found),
            params={"fieldManager": "tests", "force": "true"},
            headers={"Content-Type": "application/apply-patch+yaml"},
        )
        assert answer.status_code in (200, 201), answer.text
        spec = found["spec"]
        for version in (one["name"] for one in spec["versions"] if one["served"]):
            listed = f"/apis/{spec['group']}/{version}/{spec['names']['plural']}"
            kube.wait_for(listed, lambda where=listed: cluster.http.get(where).status_code == 200)  # type: ignore[misc]
        kinds.append(str(spec["names"]["kind"]))
    return tuple(kinds)


def _kept(module: str, digest: str, path: str) -> str:
    kept = kube.cache_folder() / "definitions" / module.replace("/", "_") / Path(path).name
    if not kept.exists():
        text = (_fetched(module, digest) / path).read_text(encoding="utf-8")
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=kept.parent, delete=False, encoding="utf-8") as made:
            made.write(text)
        Path(made.name).rename(kept)  # whole or not at all: another worker may be at it
    return kept.read_text(encoding="utf-8")


def _fetched(module: str, digest: str) -> Path:
    go = kube.go_program()
    with tempfile.TemporaryDirectory() as folder:  # outside every module, so that none's requirements are read
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
    found = json.loads(done.stdout)
    assert found["Sum"] == digest, f"{module} is not what it was: {found['Sum']}"
    return Path(found["Dir"])
