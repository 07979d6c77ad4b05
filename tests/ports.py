"""Ports of this machine that tests listen on."""

import socket


def free_port() -> int:
    """One that nobody listens on just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
