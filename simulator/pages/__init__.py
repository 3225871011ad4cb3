"""The pages real exporters publish, written from the fleet's state. One file an exporter."""

from __future__ import annotations

from simulator.pages.dcgm import DcgmPages
from simulator.pages.kube_state import KubeStatePage
from simulator.pages.node import NodePages
from simulator.pages.vllm import VllmPages

__all__ = ["DcgmPages", "KubeStatePage", "NodePages", "VllmPages"]
