"""An environment for programs that read tables: their packages from the index, without ours, shared by all.

Made once a machine, beside the jars, and anew where what it is made of has changed.
"""

from __future__ import annotations

import os
import shutil
import sys
from hashlib import sha256
from importlib.metadata import version

from filelock import FileLock

from kafka_liveness_dagster.embedded.jars import jars_folder
from tests.end_to_end.dist import OURS, ROOT, UV, ran

DUCKDB = "1.5.5"  # its extensions are on the index up to here; duckdb loads none that DuckDB has not signed
PACKAGES = (  # the rest by requirements.lock
    "pyiceberg[pyarrow,sql-sqlite]",
    "pandas",
    "polars==2.1.0",
    "polars_iceberg==0.1.0",
    f"duckdb=={DUCKDB}",
    f"duckdb-extension-iceberg=={DUCKDB}",
    f"duckdb-extension-avro=={DUCKDB}",
    f"pyspark-client=={version('pyspark')}",
)
EXTENSIONS = """
import duckdb, importlib.util, pathlib
for name in ("avro", "iceberg"):
    [package] = importlib.util.find_spec(f"duckdb_extension_{name}").submodule_search_locations
    [file] = pathlib.Path(package).rglob("*.duckdb_extension")
    duckdb.install_extension(str(file))
"""


class ReaderEnvironment:
    """A Python with these packages, in whose home DuckDB's extensions are installed."""

    def __init__(self):
        lock = ROOT / "requirements.lock"
        made_of = "\n".join([sys.version, *PACKAGES, EXTENSIONS, lock.read_text(encoding="utf-8")])
        self.home = jars_folder().parent / f"readers-{sha256(made_of.encode()).hexdigest()[:12]}"
        self.python = self.home / "venv" / "bin" / "python"
        command = os.pathsep.join([os.environ["PATH"], os.path.dirname(sys.executable)])  # noqa: PTH120 - kafka-liveness
        # Of `kafka-liveness up`; who is isolated looks at neither
        commands = ("PYTHONPATH", "KAFKA_LIVENESS_HOME")
        kept = {name: value for name, value in os.environ.items() if name not in OURS or name in commands}
        self.env = {**kept, "HOME": str(self.home), "PATH": command}
        self.home.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{self.home}.lock"):
            if not (self.home / "complete").exists():
                self._make(lock)

    def _make(self, lock):
        shutil.rmtree(self.home, ignore_errors=True)
        ran(UV, "venv", "--quiet", "--python", sys.executable, self.home / "venv")
        ran(UV, "pip", "install", "--quiet", "--python", self.python, "--constraint", lock, *PACKAGES)
        ran(self.python, "-I", "-c", EXTENSIONS, env=self.env)
        (self.home / "complete").touch()

    def run_program(self, program, *arguments):
        """What a program prints there."""
        return ran(self.python, "-I", program, *arguments, env=self.env, cwd=self.home)
