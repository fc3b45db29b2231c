"""A spot node that is taken back is drained: each cloud's notice is understood, and asked for until it comes."""

from __future__ import annotations

import http.server
import threading

import pytest

from jobs import drain

pytestmark = pytest.mark.unit


@pytest.fixture
def metadata():
    """A metadata server on loopback; `pages` holds what it serves: (method, path) to text."""
    pages, seen = {}, []

    class Handler(http.server.BaseHTTPRequestHandler):
        def answer(self):
            seen.append((self.command, self.path, dict(self.headers)))
            text = pages.get((self.command, self.path))
            self.send_response(404 if text is None else 200)
            self.end_headers()
            self.wfile.write((text or "").encode())

        do_GET = do_PUT = answer

        def log_message(self, *args):
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", pages, seen
    server.shutdown()
    server.server_close()
    thread.join()


def test_aws_is_asked_with_a_session_token(metadata):
    base, pages, seen = metadata
    pages["PUT", "/latest/api/token"] = "session"
    assert not drain.aws(base)
    pages["GET", "/latest/meta-data/spot/instance-action"] = '{"action": "terminate"}'
    assert drain.aws(base)
    assert seen[-1][2]["X-Aws-Ec2-Metadata-Token"] == "session"


def test_gcp_says_it_in_one_word(metadata):
    base, pages, seen = metadata
    path = "/computeMetadata/v1/instance/preempted"
    for text, expected in [("FALSE", False), ("TRUE\n", True)]:
        pages["GET", path] = text
        assert drain.gcp(base) is expected
    assert seen[-1][2]["Metadata-Flavor"] == "Google"


def test_azure_says_it_among_other_events(metadata):
    base, pages, _ = metadata
    path = "/metadata/scheduledevents?api-version=2020-07-01"
    for text, expected in [
        ('{"Events": []}', False),
        ('{"Events": [{"EventType": "Reboot"}]}', False),
        ('{"Events": [{"EventType": "Reboot"}, {"EventType": "Preempt"}]}', True),
    ]:
        pages["GET", path] = text
        assert drain.azure(base) is expected


def test_a_node_is_drained_at_the_first_notice_and_failures_are_told_once(capsys):
    answers = iter([False, OSError("unreachable"), OSError("unreachable"), False, True])

    def noticed():
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    drained = []
    assert drain.watch(noticed, lambda: drained.append(1) or 7, every_s=0) == 7
    assert drained == [1]
    assert capsys.readouterr().err.count("unreachable") == 1


def test_draining_says_why_and_how_long(monkeypatch):
    calls = []
    monkeypatch.setattr(
        drain.subprocess, "run", lambda command, **_: calls.append(command) or type("R", (), {"returncode": 0})
    )
    monkeypatch.setitem(drain.CLOUDS, "gcp", lambda: True)
    assert drain.main(["--cloud", "gcp"]) == 0
    (command,) = calls
    assert command[:4] == ["ray", "drain-node", "--reason", "DRAIN_NODE_REASON_PREEMPTION"]
    assert command[-1] == "25"
