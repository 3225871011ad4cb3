"""A small GPU fleet on a real control plane: the test is its kubelets, device plugin, exporters and engines.

Pods get addresses of the loopback network. One HTTP server answers on all of them: it recognises the pod by the address
that was requested, and serves the page of its engine or device exporter.
"""

from __future__ import annotations

import http.server
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import httpx

from outrider.clock import SystemClock, rfc3339
from tests.support.kube import Cluster

SERVICE = "chat-70b"
BAD_IMAGE = "no-such-tag"  # images with this ending cannot be pulled
_GPUS_PER_NODE = 4
_PRODUCT = "NVIDIA H100 80GB HBM3"
_DEVICE_VALUES = {
    "DCGM_FI_DEV_GPU_TEMP": 55,
    "DCGM_FI_DEV_GPU_UTIL": 60,
    "DCGM_FI_DEV_FB_USED": 60_000,
    "DCGM_FI_DEV_FB_FREE": 20_000,
    "DCGM_FI_DEV_POWER_USAGE": 400,
    "DCGM_FI_DEV_SM_CLOCK": 1_700,
}
_KUBELET_SECONDS = 0.2
Json = dict[str, Any]


class KubeFleet:
    """Nodes with GPUs, Deployments of engines and a DaemonSet of device exporters in one namespace."""

    def __init__(self, cluster: Cluster, namespace: str, nodes: tuple[str, ...]) -> None:
        """Call ``start`` before use."""
        self.cluster, self.namespace, self.nodes = cluster, namespace, nodes
        self.xid: dict[str, int] = {}  # the last XID of a GPU
        self.missing: set[str] = set()  # GPUs that left their exporter's page
        self.lost_nodes: set[str] = set()  # their kubelet and exporters do not answer
        self.slow_pods: set[str] = set()
        self._addresses: dict[str, str] = {}  # pod name -> address
        self._pods: dict[str, Json] = {}  # address -> pod
        self._devices: dict[str, str] = {}  # pod name -> GPU
        self._numbers = itertools.count(2)
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._server: http.server.ThreadingHTTPServer | None = None
        self.errors: list[str] = []
        self.clock: Callable[[], float] = time.time  # seconds; counters of pages rise with it

    # --- life -------------------------------------------------------------------------------------

    def start(self, replicas: int = 2, deployments: tuple[str, ...] = ("chat",)) -> None:
        """Creates all objects and plays the kubelets from now on. Each Deployment has so many replicas."""
        fleet = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                page = fleet.page(str(self.connection.getsockname()[0]))
                if page is None:
                    self.close_connection = True  # a dead engine resets the connection
                    self.connection.close()
                    return
                body = page.encode()
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                with suppress(ConnectionError):  # a killed reader
                    self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name of the base class
                del format, args

        self._server = http.server.ThreadingHTTPServer(("0.0.0.0", 0), Handler)
        self._server.daemon_threads = True
        for name in self.nodes:
            self.cluster.node(name, gpus=_GPUS_PER_NODE, **{"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"})
        self.cluster.namespace(self.namespace)
        for name in self.nodes:
            self.cluster.patch(f"/api/v1/nodes/{name}", {"metadata": {"labels": {"fleet": self.namespace}}})
        for name in deployments:
            self._create_deployment(name, replicas)
        self._create_exporters()
        for target in (self._server.serve_forever, self._be_kubelet):
            thread = threading.Thread(target=target, daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        """Stops serving and deletes all objects."""
        self._stop.set()
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
        for thread in self._threads:
            thread.join(10)
        for kind in ("deployments", "daemonsets", "replicasets"):
            self.cluster.delete(f"{self._apps}/{kind}", params={"propagationPolicy": "Background"})
        self.cluster.delete(f"/api/v1/namespaces/{self.namespace}/pods", json={"gracePeriodSeconds": 0})
        for name in self.nodes:
            self.cluster.delete(f"/api/v1/nodes/{name}")
        self.cluster.delete(f"/api/v1/namespaces/{self.namespace}")

    @property
    def _apps(self) -> str:
        return f"/apis/apps/v1/namespaces/{self.namespace}"

    def _create_deployment(self, name: str, replicas: int) -> None:
        engine = {
            "metadata": {
                "labels": {"app": "chat", "deployment": name, "app.kubernetes.io/name": SERVICE},
                "annotations": {"prometheus.io/scrape": "true", "prometheus.io/port": str(self.port)},
            },
            "spec": {
                "containers": [
                    {
                        "name": "vllm",
                        "image": "vllm/vllm-openai:v0.11.0",
                        "args": ["--model=meta-llama/Llama-3.3-70B-Instruct"],
                        "resources": {"limits": {"nvidia.com/gpu": "1", "cpu": "8"}},
                    }
                ],
                "nodeSelector": {"fleet": self.namespace},
                "topologySpreadConstraints": [
                    {
                        "maxSkew": 1,
                        "topologyKey": "kubernetes.io/hostname",
                        "whenUnsatisfiable": "ScheduleAnyway",
                        "labelSelector": {"matchLabels": {"app": "chat"}},
                    }
                ],
            },
        }
        selected = {"matchLabels": {"deployment": name}}
        spec = {"selector": selected, "replicas": replicas, "template": engine}
        self.cluster.create(f"{self._apps}/deployments", {"metadata": {"name": name}, "spec": spec})

    def _create_exporters(self) -> None:
        exporter = {
            "metadata": {
                "labels": {"app": "dcgm-exporter"},
                "annotations": {"prometheus.io/scrape": "true", "prometheus.io/port": str(self.port)},
            },
            "spec": {
                "containers": [{"name": "exporter", "image": "dcgm-exporter"}],
                "nodeSelector": {"fleet": self.namespace},
                "tolerations": [{"operator": "Exists"}],
            },
        }
        self.cluster.create(
            f"{self._apps}/daemonsets",
            {
                "metadata": {"name": "dcgm-exporter"},
                "spec": {"selector": {"matchLabels": {"app": "dcgm-exporter"}}, "template": exporter},
            },
        )

    @property
    def port(self) -> int:
        """The port of all metrics pages."""
        assert self._server is not None
        return int(self._server.server_address[1])

    # --- state ------------------------------------------------------------------------------------

    def gpu_of(self, pod: str) -> str:
        """Returns the GPU of a running pod."""
        return self._devices[pod]

    def engines(self) -> list[Json]:
        """Returns the running engine pods, oldest first."""
        pods = [pod for pod in self.cluster.pods(self.namespace) if pod["metadata"]["labels"].get("app") == "chat"]
        running = [pod for pod in pods if _is_ready(pod) and not pod["metadata"].get("deletionTimestamp")]
        return sorted(running, key=lambda pod: str(pod["metadata"]["creationTimestamp"]))

    def node(self, name: str) -> Json:
        """Returns the object of a node."""
        return self.cluster.get(f"/api/v1/nodes/{name}")

    def gpus_of(self, node: str) -> list[str]:
        """Returns the names of a node's GPUs."""
        index = self.nodes.index(node)
        return [f"GPU-{index:08x}-0000-0000-0000-{number:012x}" for number in range(_GPUS_PER_NODE)]

    # --- kubelets ---------------------------------------------------------------------------------

    def _be_kubelet(self) -> None:
        while not self._stop.wait(_KUBELET_SECONDS):
            try:
                self._kubelet_round()
            except (httpx.HTTPError, AssertionError, KeyError) as error:  # the API server may be away
                self.errors.append(repr(error))

    def _kubelet_round(self) -> None:
        pods = self.cluster.pods(self.namespace)
        alive = {pod["metadata"]["name"] for pod in pods}
        self._devices = {name: gpu for name, gpu in self._devices.items() if name in alive}
        self._pods = {
            self._addresses[name]: pod for pod in pods if (name := pod["metadata"]["name"]) in self._addresses
        }
        for pod in pods:
            node = pod["spec"].get("nodeName")
            if node not in self.nodes or node in self.lost_nodes:
                continue
            if pod["metadata"].get("deletionTimestamp"):
                path = f"/api/v1/namespaces/{self.namespace}/pods/{pod['metadata']['name']}"
                self.cluster.delete(path, json={"gracePeriodSeconds": 0})
            elif pod["spec"]["containers"][0]["image"].endswith(BAD_IMAGE):
                self._fail_to_pull(pod)
            elif not _is_ready(pod):
                self._start(pod)

    def _start(self, pod: Json) -> None:
        name, node = pod["metadata"]["name"], pod["spec"]["nodeName"]
        if name not in self._addresses:
            number = next(self._numbers)
            self._addresses[name] = f"127.{self.nodes.index(node) + 10}.{number // 250}.{number % 250 + 1}"
        if pod["metadata"]["labels"].get("app") == "chat":
            free = [gpu for gpu in self.gpus_of(node) if gpu not in self._devices.values() and not self.xid.get(gpu)]
            self._devices.setdefault(name, free[0])
        now = rfc3339(SystemClock().now())
        self.cluster.pod_status(
            pod,
            phase="Running",
            podIP=self._addresses[name],
            podIPs=[{"ip": self._addresses[name]}],
            startTime=now,
            conditions=[
                {"type": kind, "status": "True", "lastTransitionTime": now}
                for kind in ("PodScheduled", "Initialized", "ContainersReady", "Ready")
            ],
            containerStatuses=[
                {
                    "name": pod["spec"]["containers"][0]["name"],
                    "image": "i",
                    "imageID": "",
                    "ready": True,
                    "restartCount": 0,
                    "state": {"running": {"startedAt": now}},
                }
            ],
        )

    def _fail_to_pull(self, pod: Json) -> None:
        waiting = {"reason": "ImagePullBackOff", "message": "not found"}
        if not pod["status"].get("containerStatuses") or _is_ready(pod):
            name, now = pod["spec"]["containers"][0]["name"], rfc3339(SystemClock().now())
            status = {"name": name, "image": "i", "imageID": "", "ready": False, "restartCount": 0}
            unready = {"status": "False", "reason": "ContainersNotReady", "lastTransitionTime": now}
            self.cluster.pod_status(
                pod,
                conditions=[
                    {"type": "PodScheduled", "status": "True", "lastTransitionTime": now},
                    *({"type": kind, **unready} for kind in ("ContainersReady", "Ready")),
                ],
                containerStatuses=[{**status, "state": {"waiting": waiting}}],
            )

    # --- pages ------------------------------------------------------------------------------------

    def page(self, address: str) -> str | None:
        """Returns the metrics page of the pod at an address, None if nothing answers there."""
        pod = self._pods.get(address)
        if pod is None or pod["spec"]["nodeName"] in self.lost_nodes:
            return None
        if pod["spec"]["containers"][0]["image"].endswith(BAD_IMAGE):
            return None
        name = pod["metadata"]["name"]
        if name not in self._devices:
            return self._device_page(pod["spec"]["nodeName"])
        gpu = self._devices[name]
        return None if self.xid.get(gpu) or gpu in self.missing else self._engine_page()

    def _device_page(self, node: str) -> str:
        pod_of = {gpu: name for name, gpu in self._devices.items()}
        energy = int(self.clock() * 1_000)
        lines = []
        for index, gpu in enumerate(self.gpus_of(node)):
            if gpu in self.missing:
                continue
            labels = f'gpu="{index}",UUID="{gpu}",device="nvidia{index}",modelName="{_PRODUCT}",Hostname="{node}"'
            if gpu in pod_of:
                labels += f',container="vllm",namespace="{self.namespace}",pod="{pod_of[gpu]}"'
            values = {
                **_DEVICE_VALUES,
                "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": energy,
                "DCGM_FI_DEV_XID_ERRORS": self.xid.get(gpu, 0),
            }
            lines += [f"{name}{{{labels}}} {value}" for name, value in values.items()]
        return "\n".join(lines) + "\n"

    def _engine_page(self) -> str:
        labels = 'engine="0",model_name="meta-llama/Llama-3.3-70B-Instruct"'
        done = int(self.clock() - 1_700_000_000)  # one request a second
        counters = {
            "vllm:prompt_tokens_total": done * 500,
            "vllm:generation_tokens_total": done * 200,
            'vllm:request_success_total{finished_reason="stop",': done,
        }
        lines = [
            f"vllm:num_requests_running{{{labels}}} 3",
            f"vllm:num_requests_waiting{{{labels}}} 0",
            f"vllm:kv_cache_usage_perc{{{labels}}} 0.3",
            f"process_cpu_seconds_total {done / 2}",
        ]
        lines += [
            f"{name}{labels}}} {value}" if "{" in name else f"{name}{{{labels}}} {value}"
            for name, value in counters.items()
        ]
        for family, seconds in (
            ("vllm:time_to_first_token_seconds", 0.2),
            ("vllm:inter_token_latency_seconds", 0.03),
            ("vllm:e2e_request_latency_seconds", 6.0),
            ("vllm:request_queue_time_seconds", 0.01),
        ):
            lines += [
                f'{family}_bucket{{{labels},le="{bound}"}} {done if bound == "+Inf" or float(bound) >= seconds else 0}'
                for bound in ("0.05", "0.5", "1", "10", "+Inf")
            ]
            lines += [f"{family}_sum{{{labels}}} {done * seconds}", f"{family}_count{{{labels}}} {done}"]
        return "\n".join(lines) + "\n"


def _is_ready(pod: Json) -> bool:
    conditions = pod["status"].get("conditions") or ()
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


@contextmanager
def kube_fleet(
    cluster: Cluster,
    namespace: str,
    nodes: tuple[str, ...],
    replicas: int = 2,
    deployments: tuple[str, ...] = ("chat",),
) -> Iterator[KubeFleet]:
    """Runs a fleet; all its objects are deleted afterwards."""
    fleet = KubeFleet(cluster, namespace, nodes)
    try:
        fleet.start(replicas, deployments)
        yield fleet
    finally:
        fleet.stop()
