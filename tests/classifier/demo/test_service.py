from __future__ import annotations

import signal
import sys
import textwrap
from pathlib import Path

import pytest

from classifier.demo import DemoError, service
from classifier.demo.servers import free_port
from classifier.demo.service import Snapshot, snapshot

EXPOSITION = """\
# HELP classifier_offers_total Records done
# TYPE classifier_offers_total counter
classifier_offers_total{outcome="classified"} 900.0
classifier_offers_total{outcome="dead_letter"} 3.0
classifier_offers_total{outcome="removed"} 0.0
# HELP classifier_lag_records Records behind
# TYPE classifier_lag_records gauge
classifier_lag_records{partition="0",topic="offers"} 7.0
classifier_lag_records{partition="1",topic="offers"} 5.0
# HELP classifier_offer_age_seconds age
# TYPE classifier_offer_age_seconds histogram
classifier_offer_age_seconds_bucket{le="0.5"} 0.0
classifier_offer_age_seconds_bucket{le="1.0"} 600.0
classifier_offer_age_seconds_bucket{le="2.0"} 890.0
classifier_offer_age_seconds_bucket{le="+Inf"} 900.0
classifier_offer_age_seconds_count 900.0
classifier_offer_age_seconds_sum 800.0
"""


def test_snapshot_has_outcomes_lag_and_age() -> None:
    now = snapshot(EXPOSITION)
    assert now.outcomes == {"classified": 900, "dead_letter": 3, "removed": 0}
    assert now.done == 903
    assert now.lag == 12
    # 450 of 600 into the bucket from 0.5 to 1
    assert now.age(0.5) == pytest.approx(0.5 + 0.5 * 450 / 600)
    # beyond the last bound nothing is known but that bound
    assert now.age(0.99) == 2.0


def test_snapshot_before_the_first_offer_has_no_age() -> None:
    assert snapshot("").age(0.5) is None
    assert Snapshot({}, 0, ((1.0, 0.0), (float("inf"), 0.0))).age(0.99) is None


def test_reasons_are_those_of_the_workers_too() -> None:
    body = (
        '{"ready":false,"reasons":["no worker"],"workers":[{"reasons":["golden"]},{"reasons":[]}]}'
    )
    assert service.reasons(body) == "no worker; golden"
    assert service.reasons("") == "it does not answer"
    assert service.reasons('{"reasons":[],"workers":[]}') == "it gives no reason"


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The service's command runs this script instead."""
    script = tmp_path / "service.py"
    monkeypatch.setattr(service, "_COMMAND", (sys.executable, str(script)))
    return script


ANSWERING = """
    import http.server, os, signal, sys
    signal.signal(signal.SIGTERM, lambda *_: sys.exit({code}))
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200); self.end_headers(); self.wfile.write(self.path.encode())
        def log_message(self, *_): pass
    http.server.HTTPServer(("127.0.0.1", int(os.environ["HTTP_PORT"])), Handler).serve_forever()
"""


def test_service_is_asked_and_stopped(stand_in: Path) -> None:
    stand_in.write_text(textwrap.dedent(ANSWERING.format(code=0)))
    with service.running({"HTTP_PORT": str(free_port())}) as serving:
        serving.wait_until_ready()
        assert serving.get("/model") == (200, "/model")
        serving.stop()
        assert serving.get("/model") == (0, "")


def test_service_that_does_not_end_well_is_one_line(stand_in: Path) -> None:
    stand_in.write_text(textwrap.dedent(ANSWERING.format(code="'cannot leave the group'")))
    with service.running({"HTTP_PORT": str(free_port())}) as serving:
        serving.wait_until_ready()
        with pytest.raises(DemoError, match="exit code 1: cannot leave the group"):
            serving.stop()


def test_service_that_ends_by_itself_is_one_line(stand_in: Path) -> None:
    stand_in.write_text("import sys; print('first'); sys.exit('no model')")
    with (
        service.running({"HTTP_PORT": str(free_port())}) as serving,
        pytest.raises(DemoError, match="the service ended with exit code 1: no model"),
    ):
        serving.wait_until_ready()


def test_service_that_never_gets_ready_says_why(
    stand_in: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "_READY_SECONDS", 1.0)
    stand_in.write_text("import time; time.sleep(60)")
    with (
        service.running({"HTTP_PORT": str(free_port())}) as serving,
        pytest.raises(DemoError, match="not get ready in 1 s: it does not answer"),
    ):
        serving.wait_until_ready()


def test_service_is_gone_when_the_body_fails(stand_in: Path) -> None:
    stand_in.write_text("import time; time.sleep(60)")
    with (
        pytest.raises(ZeroDivisionError),
        service.running({"HTTP_PORT": str(free_port())}) as serving,
    ):
        raise ZeroDivisionError
    assert serving._process.returncode == -signal.SIGTERM
