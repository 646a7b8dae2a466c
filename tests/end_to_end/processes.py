"""What is still there of a folder?"""

from __future__ import annotations

import os

import psutil


def processes_of(folder):
    """Living processes whose command line or environment names the folder."""
    for process in psutil.process_iter(["pid", "cmdline", "environ", "status"]):
        told = [*(process.info["cmdline"] or ()), *(process.info["environ"] or {}).values()]
        ours = process.info["pid"] != os.getpid() and process.info["status"] != psutil.STATUS_ZOMBIE
        if ours and any(str(folder) in text for text in told):
            yield process
