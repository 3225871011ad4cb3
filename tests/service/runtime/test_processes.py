"""One engine per store; children that are restarted; a token readable by its owner only."""

import asyncio
import os
import signal
import socket
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from outrider.errors import ConfigError, UnavailableError
from service.config import tokens
from service.config.settings import ApiSettings, Settings, StoreSettings
from service.ops import demo, port_check
from service.runtime.leader import FileLeader
from service.runtime.supervise import Child, Supervisor
from simulator.fleet import Fleet
from simulator.spec.fleets import default_spec
from tests.support.waiting import until

FOREVER = [sys.executable, "-c", "import time; time.sleep(600)"]


def test_a_second_engine_on_a_store_is_refused_and_named(tmp_path):
    first, second = FileLeader(tmp_path / "lock"), FileLeader(tmp_path / "lock")
    first.acquire()
    with pytest.raises(UnavailableError, match=str(os.getpid())):
        second.acquire()
    first.release()
    second.acquire()
    second.release()


@pytest.mark.slow
def test_the_lock_is_released_with_its_process(tmp_path):
    script = (
        "import sys, time; from pathlib import Path; from service.runtime.leader import FileLeader\n"
        "leader = FileLeader(Path(sys.argv[1])); leader.acquire(); print('held', flush=True); time.sleep(600)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "lock")],
        stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(Path.cwd())},
    ) as holder:  # fmt: skip
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(UnavailableError):
            FileLeader(tmp_path / "lock").acquire()
        holder.kill()
        holder.wait()
    leader = FileLeader(tmp_path / "lock")
    leader.acquire()
    leader.release()


def test_a_child_that_dies_is_restarted_with_backoff():
    child = Child("api", FOREVER)
    child.start(0.0)
    first = child.running.pid
    for wait in (2.0, 4.0):
        child.running.kill()
        child.running.wait()
        child.check(10.0)
        assert child.running is None
        assert child.wait == wait
        child.check(10.0 + wait - 0.1)
        assert child.running is None
        child.check(10.0 + wait)
        assert child.running is not None
    assert child.running.pid != first
    Supervisor([child]).stop()
    assert child.running.returncode is not None


def test_wrong_usage_is_not_retried():
    child = Child("api", [sys.executable, "-c", "raise SystemExit(2)"])
    child.start(0.0)
    child.running.wait()
    child.check(1.0)
    assert child.given_up
    child.check(1000.0)
    assert child.running is None


def catches(pid, number):
    """Returns True if a process has a handler for a signal."""
    status = Path(f"/proc/{pid}/status").read_text()
    caught = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught, 16) >> (number - 1) & 1)


def test_a_supervisor_ends_its_children_on_sigterm():
    script = (
        "import sys; from service.runtime.supervise import Child, Supervisor\n"
        "child = Child('x', [sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "s = Supervisor([child]); s.start(); print(child.running.pid, flush=True); sys.exit(s.watch())"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(Path.cwd())}
    ) as supervisor:
        grandchild = int(supervisor.stdout.readline())
        until(lambda: catches(supervisor.pid, signal.SIGTERM), "the supervisor watches its children")
        supervisor.send_signal(signal.SIGTERM)
        assert supervisor.wait(timeout=30) == 0
    with pytest.raises(ProcessLookupError):
        os.kill(grandchild, 0)


def test_the_token_is_generated_once_and_readable_by_its_owner_only(tmp_path):
    settings = Settings(store=StoreSettings(url=f"sqlite:///{tmp_path}/o.db"))
    token = tokens.admin_token(settings)
    assert len(token) >= 32
    assert tokens.admin_token(settings) == token
    assert stat.S_IMODE((tmp_path / "admin.token").stat().st_mode) == 0o600


def test_the_key_of_buttons_is_generated_once_beside_the_token_and_readable_by_its_owner_only(tmp_path):
    store = StoreSettings(url=f"sqlite:///{tmp_path}/o.db")
    settings = Settings(store=store, api=ApiSettings(public_url="https://api.example"))
    with ThreadPoolExecutor(8) as starting:
        keys = set(starting.map(lambda _: tokens.button_key(settings), range(8)))
    assert len(keys) == 1
    assert len(keys.pop()) >= 32
    assert [file.name for file in tmp_path.iterdir()] == ["button.key"]
    assert stat.S_IMODE((tmp_path / "button.key").stat().st_mode) == 0o600


def test_the_key_of_buttons_is_not_generated_beside_a_configured_token(tmp_path):
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    (secrets / "token").write_text("an admin token of the operator")
    api = ApiSettings(public_url="https://api.example", token_file=secrets / "token")
    tokens.button_key(Settings(store=StoreSettings(url=f"sqlite:///{tmp_path}/o.db"), api=api))
    assert [file.name for file in secrets.iterdir()] == ["token"]
    assert (tmp_path / "button.key").exists()


def test_without_a_public_address_no_key_of_buttons_is_generated(tmp_path):
    assert tokens.button_key(Settings(store=StoreSettings(url=f"sqlite:///{tmp_path}/o.db"))) == ""
    assert list(tmp_path.iterdir()) == []


def test_a_configured_token_file_must_exist_and_not_be_empty(tmp_path):
    settings = Settings(api=ApiSettings(token_file=tmp_path / "token"))
    with pytest.raises(ConfigError, match="cannot be read"):
        tokens.admin_token(settings)
    (tmp_path / "token").write_text("\n")
    with pytest.raises(ConfigError, match="is empty"):
        tokens.admin_token(settings)


def test_a_port_in_use_is_reported_first():
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with pytest.raises(UnavailableError, match=str(port)) as caught:
            port_check.require_free({"--port": ("127.0.0.1", port)})
        assert "--port" in caught.value.hint
    port_check.require_free({"--port": ("127.0.0.1", port), "any": ("127.0.0.1", 0)})


def test_one_child_is_restarted_at_once():
    api, dashboard = Child("api", FOREVER), Child("dashboard", FOREVER)
    supervisor = Supervisor([api, dashboard])
    supervisor.start()
    before = api.running, dashboard.running
    supervisor.restart("api")
    assert before[0].returncode is not None
    assert api.running.poll() is None
    assert dashboard.running is before[1]
    supervisor.stop()


@pytest.mark.slow
def test_a_second_demo_does_not_touch_the_store(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    leader = FileLeader(demo.LOCK)
    leader.acquire()
    store = demo.FOLDER / "demo.db"
    store.write_text("kept")
    with pytest.raises(UnavailableError, match="another engine"):
        asyncio.run(demo.monitor(Fleet(default_spec(), seed=1)))
    assert store.read_text() == "kept"
    leader.release()
