"""Checks that ports are free, before a platform is prepared."""

from __future__ import annotations

import socket

from outrider.errors import UnavailableError


def require_free(addresses: dict[str, tuple[str, int]]) -> None:
    """Raises UnavailableError for the first port in use. ``addresses`` are (host, port) by option or key."""
    for option, (host, port) in addresses.items():
        if port == 0:
            continue
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError as error:
                raise UnavailableError(
                    f"port {port} on {host} is in use", hint=f"select another with {option}"
                ) from error
