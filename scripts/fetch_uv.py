"""Provides uv as .tools/uv: the one on PATH if it is new enough, else the wheel pinned in uv.lock.

Needs only Python 3.11: no pip, venv or curl. The wheel comes from the package index of $UV_DEFAULT_INDEX, $UV_INDEX_URL
or $PIP_INDEX_URL, else from the URL in uv.lock, and must match the hash in uv.lock. Proxies come from the environment;
certificates from $SSL_CERT_FILE, $PIP_CERT or the system.
"""

from __future__ import annotations

import hashlib
import io
import os
import platform
import re
import shutil
import ssl
import stat
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TOOL = ROOT / ".tools" / "uv"
OLDEST = (0, 7, 0)  # the oldest version that reads this uv.lock
TIMEOUT_SECONDS = 60


def report(message: str) -> None:
    """Prints one line of progress."""
    print(f"uv: {message}", file=sys.stderr)


def fail(message: str, hint: str) -> SystemExit:
    """Ends the script with an error and its remedy."""
    return SystemExit(f"uv: {message}\n    {hint}")


def version_of(command: str) -> tuple[int, ...]:
    """Returns the version of a uv; empty if it does not run."""
    try:
        output = subprocess.run([command, "--version"], capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ()
    result = re.search(r"\d+\.\d+\.\d+", output)
    return tuple(map(int, result.group().split("."))) if result else ()


def pinned() -> dict[str, tuple[str, str]]:
    """Returns URL and sha256 of every uv wheel in uv.lock, by file name."""
    import tomllib  # noqa: PLC0415 - the version check in main comes first

    packages = tomllib.loads((ROOT / "uv.lock").read_text(encoding="utf-8"))["package"]
    wheels = next(package["wheels"] for package in packages if package["name"] == "uv")
    return {wheel["url"].rsplit("/", 1)[1]: (wheel["url"], wheel["hash"].removeprefix("sha256:")) for wheel in wheels}


def platform_tag() -> str:
    """Returns the platform tag of the wheel for this host."""
    machine = {"AMD64": "x86_64", "amd64": "x86_64", "arm64": "aarch64"}.get(platform.machine(), platform.machine())
    if sys.platform == "darwin":
        return f"macosx_.*_{'arm64' if machine == 'aarch64' else machine}"
    if sys.platform.startswith("linux"):
        return f"{'manylinux' if platform.libc_ver()[0] == 'glibc' else 'musllinux'}.*_{machine}"
    raise fail(f"{sys.platform} is not supported.", "Install uv yourself, then run make again.")


def certificates() -> ssl.SSLContext:
    """Returns the trusted certificates."""
    bundle = os.environ.get("SSL_CERT_FILE") or os.environ.get("PIP_CERT")
    return ssl.create_default_context(cafile=bundle if bundle and Path(bundle).exists() else None)


def read(url: str) -> bytes:
    """Returns the body of a URL."""
    if not url.startswith(("https://", "http://")):
        raise fail(f"{url} is not an HTTP URL.", "Set UV_INDEX_URL to a URL that begins with https://")
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS, context=certificates()) as answer:
            body: bytes = answer.read()
    except (urllib.error.URLError, OSError) as error:
        raise fail(
            f"Cannot fetch {url}: {error}.",
            "Check the network, set HTTPS_PROXY or UV_INDEX_URL, or install uv yourself and run make again.",
        ) from error
    return body


def address_of(name: str, locked: str) -> str:
    """Returns the URL of a wheel: from the configured index, else as locked."""
    index = next(filter(None, map(os.environ.get, ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL"))), None)
    if index is None:
        return locked
    page = f"{index.rstrip('/')}/uv/"
    links = re.findall(r'href="([^"#]+)', read(page).decode("utf-8", "replace"))
    result = next((link for link in links if link.rsplit("/", 1)[-1] == name), None)
    if result is None:
        raise fail(f"{page} does not list {name}.", "Set UV_INDEX_URL to a complete index, or install uv yourself.")
    return urllib.parse.urljoin(page, result)


def download() -> bytes:
    """Downloads the pinned wheel and returns its uv program."""
    tag = re.compile(platform_tag())
    name = next((name for name in pinned() if tag.search(name)), None)
    if name is None:
        raise fail(f"uv.lock has no uv wheel for {platform.machine()}.", "Install uv yourself, then run make again.")
    locked, expected = pinned()[name]
    url = address_of(name, locked)
    report(f"fetching {name} from {urllib.parse.urlsplit(url).netloc}")
    wheel = read(url)
    got = hashlib.sha256(wheel).hexdigest()
    if got != expected:
        raise fail(f"{name} has hash {got}, expected {expected}.", "The download was modified: do not use it.")
    with zipfile.ZipFile(io.BytesIO(wheel)) as archive:
        program = next(entry for entry in archive.namelist() if entry.endswith(("/scripts/uv", "/bin/uv")))
        return archive.read(program)


def write_program(content: bytes) -> None:
    """Writes .tools/uv atomically, so that an interrupted run leaves no partial file."""
    TOOL.parent.mkdir(exist_ok=True)
    draft = TOOL.with_suffix(".new")
    draft.write_bytes(content)
    draft.chmod(draft.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    draft.replace(TOOL)


def main() -> None:
    """Provides .tools/uv unless it exists and runs."""
    if sys.version_info < (3, 11):  # noqa: UP036 - runs on any python3 of the system
        raise fail(f"Python {platform.python_version()} is too old.", "Install Python 3.11 or newer.")
    if version_of(str(TOOL)) >= OLDEST:
        return
    present = shutil.which("uv")
    if present and version_of(present) >= OLDEST:
        report(f"using {present} {'.'.join(map(str, version_of(present)))}")
        write_program(f'#!/bin/sh\nexec "{present}" "$@"\n'.encode())
        return
    write_program(download())
    if version_of(str(TOOL)) < OLDEST:
        TOOL.unlink()
        raise fail("The downloaded uv does not run on this host.", "Install uv yourself, then run make again.")
    report("ready in .tools/uv")


if __name__ == "__main__":
    main()
