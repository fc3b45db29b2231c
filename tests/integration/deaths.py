"""Real deaths of Ray's processes that this one has started."""

from __future__ import annotations

import os
import signal

import psutil


def command_of(process):
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:  # it has ended, or is a zombie
        return ""


def kill(name):
    pids = [child.pid for child in psutil.Process().children(recursive=True) if f"ray::{name}" in command_of(child)]
    assert pids, name
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def alive(name):
    """Whether there is such a process."""
    return any(f"ray::{name}" in command_of(child) for child in psutil.Process().children(recursive=True))
