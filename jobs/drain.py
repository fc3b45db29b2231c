"""Watches for the notice that a cloud takes this node back, and lets Ray empty it in the minutes left.

`python -m jobs.drain --cloud aws|gcp|azure`, beside Ray on spot nodes: no new work comes to the node then, and what it
did is done again elsewhere, since Ray knows that its end is no failure.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence

EVERY_S, ASK_S = 5.0, 2.0
AWS, GCP = "http://169.254.169.254", "http://metadata.google.internal"
# From notice to end, in seconds, as each cloud promises, less a little.
NOTICE_S = {"aws": 110, "gcp": 25, "azure": 25}


def aws(base: str = AWS) -> bool:
    """Whether EC2 has announced the end of this spot instance."""
    asked = urllib.request.Request(  # noqa: S310
        f"{base}/latest/api/token", method="PUT", headers={"X-aws-ec2-metadata-token-ttl-seconds": "60"}
    )
    with urllib.request.urlopen(asked, timeout=ASK_S) as answer:  # noqa: S310
        token = answer.read().decode()
    return _there(f"{base}/latest/meta-data/spot/instance-action", {"X-aws-ec2-metadata-token": token}) is not None


def gcp(base: str = GCP) -> bool:
    """Whether Compute Engine has announced the end of this spot instance."""
    text = _there(f"{base}/computeMetadata/v1/instance/preempted", {"Metadata-Flavor": "Google"})
    return text is not None and text.strip() == "TRUE"


def azure(base: str = AWS) -> bool:
    """Whether Azure has announced the end of this spot instance."""
    text = _there(f"{base}/metadata/scheduledevents?api-version=2020-07-01", {"Metadata": "true"})
    return text is not None and any(event["EventType"] == "Preempt" for event in json.loads(text).get("Events", ()))


CLOUDS: dict[str, Callable[[], bool]] = {"aws": aws, "gcp": gcp, "azure": azure}


def _there(url: str, headers: dict[str, str]) -> str | None:
    """What a metadata server says; None where it has no such page."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=ASK_S) as answer:  # noqa: S310
            return str(answer.read().decode())
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return None
        raise


def watch(noticed: Callable[[], bool], drain: Callable[[], int], every_s: float = EVERY_S) -> int:
    """Ask until there is a notice, then drain; a metadata server that fails to answer once is asked again."""
    pause = threading.Event()
    told = False
    while True:
        try:
            if noticed():
                return drain()
            told = False
        except (OSError, ValueError) as error:
            if not told:
                print(f"the metadata server does not answer: {error}", file=sys.stderr, flush=True)
            told = True
        pause.wait(every_s)


def command(seconds: int) -> list[str]:
    """What tells Ray that this node ends in so many seconds."""
    reason = ["--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "spot node taken back"]
    return ["ray", "drain-node", *reason, "--deadline-remaining-seconds", str(seconds)]


def drain_node(seconds: int) -> int:
    """Tell Ray that this node ends in so many seconds; returns the status of that."""
    print(f"this node is taken back: draining it, {seconds} s are left", flush=True)
    return subprocess.run(command(seconds), check=False).returncode  # noqa: S603


def main(argv: Sequence[str] | None = None) -> int:
    """Watch until the notice comes; returns the status of draining."""
    parser = argparse.ArgumentParser(prog="python -m jobs.drain", description=__doc__.partition("\n")[0])
    parser.add_argument("--cloud", choices=sorted(CLOUDS), required=True)
    args = parser.parse_args(argv)
    return watch(CLOUDS[args.cloud], lambda: drain_node(NOTICE_S[args.cloud]))


if __name__ == "__main__":
    sys.exit(main())
