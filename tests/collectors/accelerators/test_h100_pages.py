"""Pages of ``outrider agent`` on a real H100 (driver 580.159.04, NVML), beside the output of nvidia-smi at that time.

Load: copies of 1 GiB from pinned host memory, products of 16,384 x 16,384 matrices in bf16, and a kernel that writes
outside its memory. Two pages of a load are 5.2 s apart.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider.model import CellStatus
from outrider.vocabulary import catalog

PAGES = Path(__file__).with_name("pages")


def signals(bench, *names: str) -> dict[str, float]:
    """Signals of the GPU after the pages, in order."""
    target = bench("dcgm", entity={"kind": "node", "name": "node-1"})
    for name in names:
        target.scrape((PAGES / f"{name}.txt").read_text(encoding="utf-8"), after=5.2)
    batch = target.batch(catalog.signal("hw_accel_power_watts").entity)
    (row,) = range(len(batch.entities))
    present = batch.status[row] == CellStatus.PRESENT
    return {key.name: batch.values[row, column] for column, key in enumerate(batch.keys) if present[column]}


def test_signals_of_a_loaded_h100_equal_the_output_of_nvidia_smi(bench) -> None:
    found = signals(bench, "matrix_products_1", "matrix_products_2")
    assert found["hw_accel_power_watts"] == pytest.approx(697.62)  # the average of one second, not the present draw
    assert found["hw_accel_power_limit_watts"] == 700.0
    assert found["hw_accel_temperature_celsius"] == 59.0
    assert found["hw_accel_memory_temperature_celsius"] == 51.0
    assert found["hw_accel_memory_used_bytes"] / 2**20 == pytest.approx(23155, abs=1)
    assert found["hw_accel_utilization_ratio"] == 1.0
    assert found["hw_accel_ecc_correctable_total"] == 0.0
    # nvidia-smi does not report these: tensor cores at work nearly all of the time, memory a quarter of it
    assert found["hw_accel_tensor_active_ratio"] == pytest.approx(0.970, abs=0.001)
    assert found["hw_accel_compute_active_ratio"] == pytest.approx(0.981, abs=0.001)
    assert found["hw_accel_memory_bandwidth_ratio"] == pytest.approx(0.240, abs=0.001)


def test_the_share_of_time_at_the_power_limit_is_measured(bench) -> None:
    found = signals(bench, "matrix_products_1", "matrix_products_2")
    assert found["hw_accel_throttle_power_ratio"] == pytest.approx(0.9, abs=0.1)
    assert found["hw_accel_throttle_thermal_ratio"] == 0.0


def test_energy_over_time_equals_the_power(bench) -> None:
    found = signals(bench, "matrix_products_1", "matrix_products_2")
    assert found["hw_accel_energy_joules_total"] / 5.2 == pytest.approx(found["hw_accel_power_watts"], rel=0.02)


def test_pcie_traffic_is_that_of_the_copies_and_their_headers(bench) -> None:
    """The copies moved 54.5 GB/s without headers. The driver's byte counters have 32 bits and wrap in 80 ms."""
    found = signals(bench, "copy_from_host_2")
    assert 54.5e9 < found["hw_accel_pcie_bytes_per_second"] < 63e9  # PCIe 5.0 x16


def test_an_application_xid_is_on_the_page_and_the_device_idle(bench) -> None:
    found = signals(bench, "matrix_products_2", "xid")
    assert (found["hw_accel_fault_code"], found["hw_accel_fault_events"]) == (31.0, 1.0)
    assert found["hw_accel_utilization_ratio"] == 0.0
