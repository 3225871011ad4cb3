"""Jobs of hooks on a real control plane: its Job controller and scheduler are real, the test is the kubelet."""

from __future__ import annotations

from typing import Any

from tests.support.kube import Cluster
from tests.support.waiting import until


def pod_of(cluster: Cluster, namespace: str, job: str) -> dict[str, Any]:
    """Returns the pod of a Job once the scheduler has placed it."""

    def placed() -> list[dict[str, Any]]:
        path = f"/api/v1/namespaces/{namespace}/pods?labelSelector=job-name%3D{job}"
        return [pod for pod in cluster.get(path)["items"] if pod["spec"].get("nodeName")]

    return until(placed, f"the pod of {job} is scheduled")[0]


def end_pod(cluster: Cluster, pod: dict[str, Any], *, exit_code: int = 0, message: str = "") -> None:
    """Ends the container of a pod, as its kubelet reports it."""
    name = pod["spec"]["containers"][0]["name"]
    reason = "Error" if exit_code else "Completed"
    state = {"terminated": {"exitCode": exit_code, "reason": reason, "message": message}}
    status = {"name": name, "ready": False, "restartCount": 0, "image": "i", "imageID": "i", "state": state}
    cluster.pod_status(pod, phase="Failed" if exit_code else "Succeeded", containerStatuses=[status])


def await_end(cluster: Cluster, namespace: str, job: str) -> str:
    """Returns Complete or Failed once the Job controller has set it."""

    def condition() -> str:
        conditions = cluster.get(f"/apis/batch/v1/namespaces/{namespace}/jobs/{job}")["status"].get("conditions", [])
        names = [entry["type"] for entry in conditions if entry["status"] == "True"]
        return next((name for name in names if name in ("Complete", "Failed")), "")

    return until(condition, f"{job} has ended")
