"""Requirements of every installation of Outrider; scripts/wheel_test.py runs these tests on the wheel."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import shutil
import subprocess
import sys
from importlib import metadata, resources
from pathlib import Path

import pytest

PACKAGES = (
    "outrider",
    "store",
    "collectors",
    "detectors",
    "planner",
    "remediation",
    "alerts",
    "reports",
    "dashboards",
    "simulator",
    "service",
)
RUN_ON_IMPORT = (
    "dashboards.app",
    "store.migrations",
    "service.capacity.locust_stream",
)  # scripts of Streamlit, alembic and Locust
OF_AN_EXTRA = {"planner.forecast.lstm_training": "equinox"}  # module -> its first import of the extra


@pytest.mark.parametrize("name", PACKAGES)
def test_every_module_can_be_imported(name: str) -> None:
    package = importlib.import_module(name)
    modules = [module.name for module in pkgutil.walk_packages(package.__path__, f"{name}.")]
    for module in modules:
        if module.startswith(RUN_ON_IMPORT) or module.endswith("__main__"):
            continue
        if module in OF_AN_EXTRA and importlib.util.find_spec(OF_AN_EXTRA[module]) is None:
            with pytest.raises(ImportError, match=OF_AN_EXTRA[module]):
                importlib.import_module(module)
            continue
        importlib.import_module(module)


@pytest.mark.parametrize("name", PACKAGES)
def test_no_other_distribution_provides_our_names(name: str) -> None:
    assert set(metadata.packages_distributions().get(name, [])) <= {"outrider"}


@pytest.mark.parametrize("name", PACKAGES)
def test_the_types_are_published(name: str) -> None:
    assert resources.files(name).joinpath("py.typed").is_file()


@pytest.mark.slow
def test_the_command_runs(tmp_path: Path) -> None:
    beside = Path(sys.executable).with_name("outrider")
    command = str(beside) if beside.exists() else shutil.which("outrider")
    if command is None:
        pytest.skip("missing: the outrider command is not installed")
    done = subprocess.run([command, "version", "-o", "json"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert metadata.version("outrider") in done.stdout


@pytest.mark.parametrize(
    ("package", "folder", "suffix"),
    [
        ("outrider", "vocabulary", ".yaml"),
        ("outrider", "text/i18n/en", ".yaml"),
        ("outrider", "text/i18n/zh", ".yaml"),
        ("collectors", "adapters", ".yaml"),
        ("detectors", "knowledge", ".yaml"),
        ("alerts", "rules", ".yaml"),
        ("remediation", "playbooks", ".yaml"),
        ("reports", "document/templates", ".j2"),
        ("store", "migrations/versions/metrics", ".py"),
        ("store", "migrations/versions/state", ".py"),
    ],
)
def test_data_files_of_a_package_are_installed(package: str, folder: str, suffix: str) -> None:
    data = resources.files(package).joinpath(folder)
    assert any(entry.name.endswith(suffix) for entry in data.iterdir())


def test_a_store_can_be_created(tmp_path: Path) -> None:
    from store import factory

    url = f"sqlite:///{tmp_path}/x.db"
    assert factory.upgrade(url) == factory.revision(url)
