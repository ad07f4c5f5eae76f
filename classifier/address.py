"""Where the HTTP endpoints are: the address that is taken, and how others learn of it."""

from __future__ import annotations

import ipaddress
import os
import socket
import tempfile
from pathlib import Path
from typing import Final

ENDPOINT_FILE: Final = "CLASSIFIER_ENDPOINT_FILE"
"""The environment variable that names the file which `publish` writes."""


class AddressError(Exception):
    """The endpoints cannot be where the settings say; one line says why."""


def listen(host: str, port: int) -> socket.socket:
    """Take the address. Raises AddressError with one line where it cannot be had."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        # "localhost" has two addresses, and what people and probes type is the older one.
        family, _, _, _, address = min(found, key=lambda entry: entry[0] != socket.AF_INET)
        return socket.create_server((str(address[0]), port), family=family, backlog=512)
    except (OSError, UnicodeError) as error:
        why = str(error)
        if isinstance(error, socket.gaierror):
            why = error.strerror or why
        elif isinstance(error, OSError) and error.errno:
            why = os.strerror(error.errno)
        raise AddressError(
            f"cannot listen on {host}, port {port}: {why}; set HTTP_HOST and HTTP_PORT"
            " (port 0: any free one)"
        ) from None


def url(listener: socket.socket) -> str:
    """Give the base URL under which the listener answers on this machine."""
    host, port = listener.getsockname()[:2]
    address = ipaddress.ip_address(host.partition("%")[0])
    if address.is_unspecified:  # all addresses; this is the one that works from here
        address = ipaddress.ip_address("127.0.0.1" if address.version == 4 else "::1")
    return f"http://[{address}]:{port}" if address.version == 6 else f"http://{address}:{port}"


def publish(path: Path, base: str) -> None:
    """Write the URL so that a reader sees all of it or no file."""
    try:
        descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
        with os.fdopen(descriptor, "w") as file:
            file.write(base + "\n")
        Path(temporary).replace(path)
    except OSError as error:
        raise AddressError(f"cannot write {ENDPOINT_FILE}={path}: {error.strerror}") from None
