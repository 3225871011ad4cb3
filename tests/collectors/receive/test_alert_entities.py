"""The entity of a received alert, by labels as the common rule sets send them."""

from __future__ import annotations

import pytest

from collectors.receive.alert_entities import RECEIVED_NAMESPACE, AlertEntityResolver
from outrider.model import EntityKind, EntityRef
from outrider.topology import Topology

NODE = EntityRef("prod", EntityKind.NODE, None, "n1")
GPU = EntityRef("prod", EntityKind.GPU, None, "GPU-1234")
POD = EntityRef("prod", EntityKind.POD, "llm", "chat-0")
EXPORTER = EntityRef("prod", EntityKind.POD, "monitoring", "node-exporter-x7")
REPLICA = EntityRef("prod", EntityKind.REPLICA, "llm", "chat-0")
SERVICE = EntityRef("prod", EntityKind.SERVICE, "llm", "chat")
FAR_NODE = EntityRef("edge", EntityKind.NODE, None, "n1")
TOPOLOGY = Topology.build(
    [(NODE, GPU), (GPU, POD), (NODE, POD), (NODE, EXPORTER), (POD, REPLICA), (REPLICA, SERVICE)],
    entities=[FAR_NODE],
    labels={GPU: {"index": "3", "pci": "00000000:17:00.0"}, REPLICA: {"workload": "chat"}},
)
RESOLVER = AlertEntityResolver(TOPOLOGY, "prod")
# labels that Prometheus adds to every series of kube-state-metrics
KSM = {
    "container": "kube-state-metrics",
    "job": "kube-state-metrics",
    "namespace": "monitoring",
    "pod": "kube-state-metrics-1",
}


@pytest.mark.parametrize(
    ("labels", "entity"),
    [
        ({"node": "n1"}, NODE),
        ({"node": "n1", **KSM}, NODE),
        ({"instance": "n1:9100", "job": "node-exporter", "pod": "node-exporter-x7"}, NODE),
        (
            {"instance": "10.0.0.1:9100", "job": "node-exporter", "pod": "node-exporter-x7", "namespace": "monitoring"},
            NODE,
        ),
        ({"node": "n1", "cluster": "edge"}, FAR_NODE),
        ({"node": "n1", "cluster": "a-name-of-prometheus"}, NODE),
        ({"namespace": "llm", "pod": "chat-0"}, REPLICA),
        ({"exported_namespace": "llm", "exported_pod": "chat-0", **KSM}, REPLICA),
        ({"gpu_uuid": "GPU-1234", "node": "n1"}, GPU),
        ({"Hostname": "n1", "gpu": "3"}, GPU),
        ({"node": "n1", "pci": "0000:17:00"}, GPU),
        ({"namespace": "llm", "deployment": "chat", **{k: v for k, v in KSM.items() if k != "namespace"}}, SERVICE),
        ({"model_name": "chat", "job": "vllm"}, SERVICE),
        ({"kind": "replica", "entity": "chat-0", "namespace": "llm", "cluster": "prod"}, REPLICA),
    ],
)
def test_labels_name_a_known_entity(labels, entity):
    subject = RESOLVER.subject(labels, None)
    assert (subject.entity, subject.known) == (entity, True)


@pytest.mark.parametrize(
    ("labels", "entity"),
    [
        ({"node": "n9"}, EntityRef("prod", EntityKind.NODE, None, "n9")),
        ({"namespace": "db", "pod": "postgres-0"}, EntityRef("prod", EntityKind.POD, "db", "postgres-0")),
        ({"namespace": "db", "statefulset": "postgres"}, EntityRef("prod", EntityKind.WORKLOAD, "db", "postgres")),
        (
            {"alertname": "X", "instance": "mail:25"},
            EntityRef("prod", EntityKind.WORKLOAD, RECEIVED_NAMESPACE, "mail:25"),
        ),
        ({"switch": "leaf-9"}, EntityRef("prod", EntityKind.SWITCH, None, "leaf-9")),
        ({"kind": "node", "entity": "n9"}, EntityRef("prod", EntityKind.NODE, None, "n9")),
        ({"alertname": "X"}, EntityRef("prod", EntityKind.WORKLOAD, RECEIVED_NAMESPACE, "X")),
        (
            {"service": "kube-prometheus-kubelet", "alertname": "X"},
            EntityRef("prod", EntityKind.WORKLOAD, RECEIVED_NAMESPACE, "X"),
        ),
    ],
)
def test_an_unknown_subject_keeps_the_name_that_the_labels_give(labels, entity):
    subject = RESOLVER.subject(labels, None)
    assert (subject.entity, subject.known) == (entity, False)


def test_the_kind_of_the_fault_decides_between_several_named_entities():
    labels = {"node": "n1", "namespace": "llm", "pod": "chat-0"}
    assert RESOLVER.subject(labels, "node-lost").entity == NODE
    assert RESOLVER.subject(labels, "crash-loop").entity == POD
    assert RESOLVER.subject(labels, "engine-dead").entity == REPLICA


def test_a_fault_that_does_not_fit_the_entity_is_left_out():
    assert RESOLVER.subject({"namespace": "db", "pod": "postgres-0"}, "node-lost").fault is None
    assert RESOLVER.subject({"node": "n1"}, "node-lost").fault == "node-lost"


def test_a_gpu_fault_may_be_reported_for_the_node():
    subject = RESOLVER.subject({"node": "n1", "gpu_uuid": "GPU-1,GPU-2"}, "gpu-lost")
    assert (subject.entity, subject.fault) == (NODE, "gpu-lost")


def test_a_name_with_a_slash_or_markup_is_only_a_name():
    subject = RESOLVER.subject({"node": "<img src=x onerror=alert(1)>"}, None)
    assert subject.entity.name == "<img src=x onerror=alert(1)>"
