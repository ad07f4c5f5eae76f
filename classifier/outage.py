"""Outages: which of the services that the worker needs is away, and since when.

Work that waits for a named outage is neither stuck nor bad; health, readiness and retries ask here.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from classifier import log

_log = log.get("outage")


class Outages:
    """Names of the services that are away now; one log line when each goes and comes back.

    A service is away while anybody who uses it says so: what works for one (asking for the lag) may
    fail for another (committing), and only who failed can say that it works again.
    """

    def __init__(self) -> None:
        self._since: dict[str, float] = {}
        self._reasons: dict[str, dict[str, str]] = {}
        self.on_change: Callable[[], None] = lambda: None

    def began(self, service: str, reason: str, user: str = "") -> None:
        """Says that a service failed its user, with one line of why; again changes the line."""
        reason = log.mask_uri(reason.split("\n", 1)[0])[:300]
        self._reasons.setdefault(service, {})[user] = reason
        if service not in self._since:
            self._since[service] = time.monotonic()
            _log.warning("outage began", service=service, reason=reason)
            self.on_change()

    def ended(self, service: str, user: str = "") -> None:
        """Says that a service answered its user, or that this one no longer asks."""
        reasons = self._reasons.get(service)
        if reasons is None:
            return
        reasons.pop(user, None)
        if not reasons:
            del self._reasons[service]
            seconds = round(time.monotonic() - self._since.pop(service), 1)
            _log.info("outage ended", service=service, seconds=seconds)
            self.on_change()

    def handed_over(self, service: str, user: str) -> None:
        """Says that this user gives up waiting: who checks the service says when it is back."""
        reasons = self._reasons.get(service, {})
        if user in reasons:
            reasons[""] = reasons.pop(user)

    def __contains__(self, service: str) -> bool:
        return service in self._since

    @property
    def services(self) -> list[str]:
        """What is away, by name."""
        return sorted(self._since)

    @property
    def reasons(self) -> list[str]:
        """One line an outage."""
        return [
            f"{service} is away: {next(reversed(self._reasons[service].values()))}"
            for service in self.services
        ]
