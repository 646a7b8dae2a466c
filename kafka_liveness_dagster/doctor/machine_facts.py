"""Check this machine for the embedded services: Java, the jars, and the catalog's file.

Starts nothing, downloads nothing and writes nothing.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

from kafka_liveness_dagster.core.errors import KafkaLivenessError
from kafka_liveness_dagster.doctor.rules import FAIL, OK, CheckResult, Finding
from kafka_liveness_dagster.embedded import jars, state

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_CATALOG_SECONDS = 5.0


def check_machine() -> Iterator[Finding]:
    """Yield a finding for each check; a failed check does not end the others."""
    checks: dict[str, Callable[[], CheckResult]] = {
        "java": lambda: OK(str(jars.find_java())),
        "jars": _check_jars,
        "catalog": lambda: _check_catalog(state.home_folder()),
    }
    for name, check in checks.items():
        try:
            answer = check()
        except KafkaLivenessError as error:
            answer = FAIL(str(error))
        yield Finding("machine", name, answer)


def _check_jars() -> CheckResult:
    if broken := [jar for name in jars.NAMES for jar in jars.find_damaged(name)]:
        return FAIL(
            f"{', '.join(broken[:3])} in {jars.jars_folder()} are not the release's jars",
            "run `kafka-liveness up`, which downloads them again",
        )
    missing = [name for name in jars.NAMES if not jars.is_downloaded(name)]
    if missing:
        return FAIL(
            f"the jars of {' and '.join(missing)} are not in {jars.jars_folder()}",
            "run `kafka-liveness up`, which downloads them",
        )
    return OK(
        f"complete in {jars.jars_folder()}, with the release's checksums, for pyspark {jars.check_pyspark()}"
    )


def _check_catalog(home: Path) -> CheckResult:
    file = home / state.CATALOG_FILE
    if not file.exists() or file.stat().st_size == 0:
        return OK(f"{file} is created with the first table")
    if not os.access(home / "warehouse", os.W_OK):
        return FAIL(f"{home}/warehouse is not writable", "change its owner, or set KAFKA_LIVENESS_HOME")
    try:
        with closing(sqlite3.connect(file, timeout=_CATALOG_SECONDS)) as catalog:
            (tables,) = catalog.execute("select count(*) from iceberg_tables").fetchone()
    except sqlite3.Error as error:
        return FAIL(
            f"{file} cannot be read ({error})", "move it and the warehouse away to start from scratch"
        )
    return OK(f"{file}, {tables} table(s)")
