"""Whether the ports of a platform are free, asked before anything is prepared."""

from __future__ import annotations

import socket

from outrider.errors import UnavailableError


def need(places: dict[str, tuple[str, int]]) -> None:
    """Raise UnavailableError naming the first port that somebody else holds; ``places`` by option or key."""
    for option, (host, port) in places.items():
        if port == 0:
            continue
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError as error:
                raise UnavailableError(
                    f"port {port} on {host} is taken", hint=f"choose another with {option}"
                ) from error
