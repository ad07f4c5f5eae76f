"""A database of the campaign's own, on a port that it keeps, to be killed and started again."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pymongo

from classifier.demo import servers

_START_SECONDS = 60.0


class Database:
    """SecantusDB with fail points; what it acknowledged is on its disk."""

    def __init__(self, directory: Path) -> None:
        self.port = servers.free_port()
        self._directory = directory
        self.uri = f"mongodb://127.0.0.1:{self.port}/?directConnection=true"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts it with the data that it had, and waits until it takes writes."""
        with (self._directory / "database.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *servers.tied("SIGKILL"),
                    *(sys.executable, "-m", "secantus", "--sync-on-commit"),
                    *("--enable-test-commands", "--log-level", "ERROR"),
                    *("--port", str(self.port), "--storage-path", str(self._directory / "data")),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + _START_SECONDS
        while not servers.database_answers(self.uri):
            assert self._process.poll() is None, "the database ended"
            assert time.monotonic() < deadline, "the database does not start"

    def kill(self) -> None:
        """As a machine that loses its power."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def fail(self, mode: object, **data: object) -> None:
        """Sets the fail point of the workers' updates; the mode "off" ends it.

        https://github.com/mongodb/mongo/wiki/The-failCommand-Fail-Point
        """
        point = {"failCommands": ["update"], "appName": "offer-classifier"} | data
        with pymongo.MongoClient[dict[str, Any]](self.uri) as client:
            client.admin.command("configureFailPoint", "failCommand", mode=mode, data=point)

    def documents(self, database: str) -> Iterator[tuple[str, dict[str, Any]]]:
        with pymongo.MongoClient[dict[str, Any]](self.uri) as client:
            fields = {"source": 1, "status": 1, "category_id": 1, "revision": 1}
            for document in client[database]["classifications"].find({}, fields):
                yield document["_id"], document
