"""The address is taken as told, and is told as it was taken."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from classifier import address
from classifier.address import AddressError


def test_port_0_is_any_free_one_and_the_url_names_it() -> None:
    with address.listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        assert port > 0
        assert address.url(listener) == f"http://127.0.0.1:{port}"
        socket.create_connection(("127.0.0.1", port)).close()


def test_localhost_is_the_older_address() -> None:
    with address.listen("localhost", 0) as listener:
        assert listener.getsockname()[0] == "127.0.0.1"


@pytest.mark.parametrize(("host", "shown"), [("0.0.0.0", "127.0.0.1"), ("::1", "[::1]")])
def test_the_url_works_from_this_machine(host: str, shown: str) -> None:
    try:
        listener = address.listen(host, 0)
    except AddressError:
        pytest.skip(f"no address {host} on this machine")
    with listener:
        port = listener.getsockname()[1]
        assert address.url(listener) == f"http://{shown}:{port}"


def test_a_port_that_is_taken_is_said_in_one_line() -> None:
    with address.listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(AddressError) as caught:
            address.listen("127.0.0.1", port)
    assert str(caught.value) == (
        f"cannot listen on 127.0.0.1, port {port}: Address already in use;"
        " set HTTP_HOST and HTTP_PORT (port 0: any free one)"
    )


@pytest.mark.parametrize("host", ["no-such-host.invalid", "192.0.2.1", "a" * 300, "\udc80"])
def test_a_host_that_is_not_ours_is_said_in_one_line(host: str) -> None:
    with pytest.raises(AddressError, match=r"^cannot listen on .*; set HTTP_HOST") as caught:
        address.listen(host, 8080)
    assert "\n" not in str(caught.value)


def test_the_file_holds_the_url_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "endpoint"
    path.write_text("http://127.0.0.1:1\n")
    address.publish(path, "http://127.0.0.1:2")
    assert path.read_text() == "http://127.0.0.1:2\n"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_cannot_be_written_is_said_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(AddressError, match=r"^cannot write CLASSIFIER_ENDPOINT_FILE=.*/none/file"):
        address.publish(tmp_path / "none" / "file", "http://127.0.0.1:2")
