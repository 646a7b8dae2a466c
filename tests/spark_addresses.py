"""A Spark Connect address that holds a token, as a resource takes it.

By the name of an environment variable.
"""

from __future__ import annotations

import hashlib
import os
from typing import Any

import dagster as dg

import kafka_liveness_dagster as kl


def spark_at(remote: str, **others: Any) -> kl.SparkConnectResource:
    """A resource for this address; a literal with a token is refused when a code location loads."""
    name = f"REMOTE_{hashlib.sha256(remote.encode()).hexdigest()[:16].upper()}"
    os.environ[name] = remote
    return kl.SparkConnectResource(remote=dg.EnvVar(name), **others)
