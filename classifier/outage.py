"""Outages: which of the services that the worker needs is away, and since when.

Work that waits for a named outage is neither stuck nor bad; health, readiness and retries ask here.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from classifier import log

_log = log.get("outage")


class Outages:
    """Names of the services that are away now; one log line when each goes and comes back."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}
        self._reason: dict[str, str] = {}
        self.on_change: Callable[[], None] = lambda: None

    def began(self, service: str, reason: str) -> None:
        """Says that a service failed, with one line of why. Repeating it changes only the line."""
        reason = log.mask_uri(reason.split("\n", 1)[0])[:300]
        self._reason[service] = reason
        if service not in self._since:
            self._since[service] = time.monotonic()
            _log.warning("outage began", service=service, reason=reason)
            self.on_change()

    def ended(self, service: str) -> None:
        """Says that a service answered."""
        since = self._since.pop(service, None)
        if since is not None:
            del self._reason[service]
            seconds = round(time.monotonic() - since, 1)
            _log.info("outage ended", service=service, seconds=seconds)
            self.on_change()

    def __contains__(self, service: str) -> bool:
        return service in self._since

    @property
    def services(self) -> list[str]:
        """What is away, by name."""
        return sorted(self._since)

    @property
    def reasons(self) -> list[str]:
        """One line an outage."""
        return [f"{service} is away: {self._reason[service]}" for service in self.services]
