"""DCGM through bindings with the layout and names of NVIDIA's.

Covers the search paths, the calls and the handling of results. NVIDIA's own code behind the bindings is not covered:
that needs a host with DCGM.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

pytest.importorskip("pynvml", reason="missing: nvidia-ml-py")
sys.path.insert(0, str(Path(__file__).parents[2] / "support"))

from nvml_fake import ROOT, Probe

from collectors.accelerators.dcgm import BINDINGS_FOLDERS, Dcgm, bindings_folders, find_bindings
from collectors.accelerators.snapshot import AcceleratorsUnavailableError
from outrider.clock import SystemClock

HOME = ROOT / "tests" / "support" / "dcgm_home"
FIRST, SECOND = "GPU-aaaa", "GPU-bbbb"
TEMPERATURE, USED, FREE, ACTIVE, SENT = "150", "252", "251", "1002", "1009"


class HostEngine:
    def __init__(self, path: Path) -> None:
        self._path = path
        self.state = {
            "run": 1, "gpus": {"0": FIRST, "1": SECOND}, "status": {}, "instances": [], "profiling": True, "xids": [],
            "values": {"1.0": {TEMPERATURE: 41, USED: 1000, FREE: 9000}, "1.1": {TEMPERATURE: 42, SENT: 5e9}},
        }  # fmt: skip
        self.environment = {
            **os.environ, "DCGM_HOME": str(HOME), "FAKE_DCGM_STATE": str(path),
            "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
        }  # fmt: skip
        self.set()

    def set(self, **state: object) -> None:
        self.state |= state
        whole = self._path.with_suffix(".new")
        whole.write_text(json.dumps(self.state))
        whole.replace(self._path)


@pytest.fixture
def engine(tmp_path):
    return HostEngine(tmp_path / "state.json")


@pytest.fixture
def probe(engine):
    one = Probe(engine.environment, "dcgm")
    yield one
    assert one.close() == 0


def by_uuid(reading):
    return {device["name"]["uuid"]: device for device in reading["devices"]}


def test_bindings_are_loaded_from_the_nvidia_package_paths(tmp_path) -> None:
    assert [str(place) for place in BINDINGS_FOLDERS[:2]] == [
        "/usr/share/datacenter-gpu-manager-4/bindings/python3", "/usr/local/dcgm/bindings/python3",
    ]  # fmt: skip
    assert bindings_folders({"DCGM_HOME": "/opt/dcgm"})[0] == Path("/opt/dcgm/bindings/python3")
    third, fourth = tmp_path / "3", tmp_path / "4"
    assert find_bindings([fourth, third]) is None
    third.mkdir()
    (third / "pydcgm.py").write_text("")
    assert find_bindings([fourth, third]) == third
    fourth.mkdir()
    (fourth / "pydcgm.py").write_text("")
    assert find_bindings([fourth, third]) == fourth


def test_missing_bindings_give_one_error_message(tmp_path) -> None:
    (tmp_path / "pydcgm.py").write_text("import a_module_that_nobody_has\n")
    with pytest.raises(
        AcceleratorsUnavailableError, match="cannot be imported: No module named 'a_module_that_nobody_has'"
    ):
        Dcgm(SystemClock(), tmp_path)
    sys.path.remove(str(tmp_path))


def test_fields_have_their_names_and_blank_ones_are_absent(engine, probe) -> None:
    reading = probe.read()
    assert reading["driver"] == "580.95.05"
    first, second = by_uuid(reading)[FIRST], by_uuid(reading)[SECOND]
    assert first["values"] == {
        "DCGM_FI_DEV_GPU_TEMP": 41.0,
        "DCGM_FI_DEV_FB_USED": 1000.0,
        "DCGM_FI_DEV_FB_FREE": 9000.0,
    }
    assert second["values"] == {"DCGM_FI_DEV_GPU_TEMP": 42.0, "DCGM_FI_PROF_PCIE_TX_BYTES": 5e9}
    page = probe.page()
    assert "# TYPE DCGM_FI_PROF_PCIE_TX_BYTES gauge" in page
    assert f'DCGM_FI_DEV_GPU_TEMP{{gpu="1",UUID="{SECOND}"' in page


def test_gpus_without_the_profiling_module_are_read_without_it(engine, probe) -> None:
    engine.set(profiling=False)
    assert by_uuid(probe.read())[SECOND]["values"] == {"DCGM_FI_DEV_GPU_TEMP": 42.0}


def test_mig_instances_have_their_own_values(engine, probe) -> None:
    values = {**engine.state["values"], "4.12": {USED: 300, FREE: 700, ACTIVE: 0.5}}
    engine.set(instances=[[12, 0, 9, 1]], values=values)
    device = by_uuid(probe.read())[FIRST]
    assert device["instances"] == [
        {
            "number": 9, "uuid": "", "profile": "1g",
            "values": {"DCGM_FI_DEV_FB_USED": 300.0, "DCGM_FI_DEV_FB_FREE": 700.0, "DCGM_FI_PROF_SM_ACTIVE": 0.5},
        }
    ]  # fmt: skip
    assert device["values"] == {"DCGM_FI_DEV_GPU_TEMP": 41.0}
    values["4.12"]["50"] = "1g.10gb"
    engine.set(values=values)
    assert by_uuid(probe.read())[FIRST]["instances"][0]["profile"] == "1g.10gb"
    engine.set(instances=[])
    assert by_uuid(probe.read())[FIRST]["instances"] == []


@pytest.mark.parametrize("how", [{"status": {"1": 4}}, {"values": {"1.0": {TEMPERATURE: 41}, "1.1": {}}}])
def test_a_lost_device_does_not_stop_the_others(engine, probe, how) -> None:
    probe.read()
    before = dict(engine.state)
    engine.set(**how)
    reading = probe.read()
    assert (list(by_uuid(reading)), [name["uuid"] for name in reading["lost"]]) == ([FIRST], [SECOND])
    engine.set(**before)
    assert len(probe.read()["devices"]) == 2


def test_a_restarted_host_engine_is_read_again(engine, probe) -> None:
    assert len(probe.read()["devices"]) == 2
    engine.set(run=0)
    state = probe.read()
    assert state["error"].startswith("cannot read DCGM at 127.0.0.1:5555: The connection to the host engine")
    assert "nv-hostengine" in state["hint"]
    assert probe.read()["error"].endswith("Host engine connection invalid/disconnected")
    engine.set(run=2)
    assert len(probe.read()["devices"]) == 2


def test_xids_are_reported_once_with_the_time_of_dcgm(engine, probe) -> None:
    assert probe.wait() is None
    engine.set(xids=[[0, 1_000_000, 31]])
    probe.read()
    assert probe.wait() is None  # it was there before us: a sticky value
    engine.set(xids=[[0, 1_000_000, 31], [1, 2_000_000, 79], [1, 3_000_000, 79], [0, 4_000_000, 0]])
    assert [(xid["device"]["uuid"], xid["code"], xid["at"]) for xid in probe.wait()] == [
        (SECOND, 79, 2.0), (SECOND, 79, 3.0),
    ]  # fmt: skip
    assert probe.wait() is None
