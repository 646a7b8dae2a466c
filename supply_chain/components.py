"""The Python packages of requirements.lock and the jars of SHA256SUMS, with their purls and checksums.

Must not use the network: both files are in the checkout.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

from packageurl import PackageURL
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "requirements.lock"
JARS = ROOT / "kafka_liveness_dagster" / "embedded" / "SHA256SUMS"
PRODUCT = "kafka-liveness-dagster"

_PINNED = re.compile(r"^(?P<name>[\w.-]+)==(?P<version>[^\s;]+)(?: ; (?P<marker>[^\\\n]+?))? \\$")
_HASH = re.compile(r"^    --hash=sha256:(?P<sha256>[0-9a-f]{64})(?: \\)?$")
_EXTRA = re.compile(r"extra == ['\"]([^'\"]+)['\"]")
# A jar's name has no groupId, and not each jar has a pom.properties; these are those that Ivy resolved
_GROUPS = {
    "at.yawk.lz4": ("lz4-java",),
    "com.dynatrace.hash4j": ("hash4j",),
    "com.fasterxml.jackson.core": ("jackson-annotations", "jackson-core", "jackson-databind"),
    "com.fasterxml.jackson.dataformat": ("jackson-dataformat-csv", "jackson-dataformat-yaml"),
    "com.fasterxml.jackson.datatype": ("jackson-datatype-jdk8",),
    "com.github.ben-manes.caffeine": ("caffeine",),
    "com.github.luben": ("zstd-jni",),
    "com.globalmentor": ("hadoop-bare-naked-local-fs",),
    "com.google.re2j": ("re2j",),
    "com.typesafe.scala-logging": ("scala-logging_2.13",),
    "com.yammer.metrics": ("metrics-core",),
    "commons-beanutils": ("commons-beanutils",),
    "commons-collections": ("commons-collections",),
    "commons-digester": ("commons-digester",),
    "commons-logging": ("commons-logging",),
    "commons-validator": ("commons-validator",),
    "net.sf.jopt-simple": ("jopt-simple",),
    "net.sourceforge.argparse4j": ("argparse4j",),
    "org.apache.commons": ("commons-pool2",),
    "org.apache.iceberg": ("iceberg-spark-runtime-4.0_2.13", "iceberg-spark-runtime-4.1_2.13"),
    "org.apache.kafka": (
        "kafka-clients",
        "kafka-coordinator-common",
        "kafka-group-coordinator",
        "kafka-group-coordinator-api",
        "kafka-metadata",
        "kafka-raft",
        "kafka-server",
        "kafka-server-common",
        "kafka-share-coordinator",
        "kafka-storage",
        "kafka-storage-api",
        "kafka-tools-api",
        "kafka-transaction-coordinator",
        "kafka_2.13",
    ),
    "org.apache.logging.log4j": ("log4j-api", "log4j-core"),
    "org.apache.spark": (
        "spark-avro_2.13",
        "spark-sql-kafka-0-10_2.13",
        "spark-token-provider-kafka-0-10_2.13",
    ),
    "org.bitbucket.b_c": ("jose4j",),
    "org.hdrhistogram": ("HdrHistogram",),
    "org.jspecify": ("jspecify",),
    "org.pcollections": ("pcollections",),
    "org.scala-lang": ("scala-library", "scala-reflect"),
    "org.slf4j": ("slf4j-api", "slf4j-simple"),
    "org.xerial": ("sqlite-jdbc",),
    "org.xerial.snappy": ("snappy-java",),
    "org.yaml": ("snakeyaml",),
}
_GROUP_OF = {artifact: group for group, artifacts in _GROUPS.items() for artifact in artifacts}
_JAR = re.compile(  # only a known name says where the version begins: spark-sql-kafka-0-10_2.13-4.1.3
    rf"^(?P<sha256>[0-9a-f]{{64}})  "
    rf"(?P<name>{'|'.join(map(re.escape, _GROUP_OF))})-(?P<version>\d[\w.-]*)\.jar$"
)


@dataclass(frozen=True)
class Component:
    """A Python package or a jar of exactly one version.

    Attributes:
        purl: its package URL, by which vulnerability databases and other lists name it.
        sha256: the SHA-256 of each file of this version: one of a jar, one per wheel and sdist of a Python
            package.
        marker: the environments in which the lock installs it; empty means all.
    """

    purl: PackageURL
    sha256: tuple[str, ...] = field(repr=False)
    marker: str = ""

    @property
    def is_jar(self) -> bool:
        """Return whether it is a jar."""
        return bool(self.purl.type == "maven")


def read_components() -> list[Component]:
    """Return all packages of the lock and all jars.

    Raises:
        ValueError: a line of a file is not in the form that this module reads, or a jar has no groupId here.
    """
    return [*read_lock(LOCK.read_text(encoding="utf-8")), *read_jars(JARS.read_text(encoding="utf-8"))]


def read_lock(text: str) -> list[Component]:
    """Return the packages of a lock.

    A line of another form is an error, because a package would be left out.
    """
    packages: list[tuple[re.Match[str], list[str]]] = []
    for number, line in enumerate(text.splitlines(), 1):
        if pinned := _PINNED.match(line):
            packages.append((pinned, []))
        elif packages and (checksum := _HASH.match(line)):
            packages[-1][1].append(checksum["sha256"])
        else:
            raise ValueError(f"{LOCK.name}:{number} is no package with hashes: {line!r}. Fix: make lock")
    return [
        Component(
            PackageURL("pypi", name=pinned["name"], version=pinned["version"]),
            tuple(sums),
            pinned["marker"] or "",
        )
        for pinned, sums in packages
    ]


def read_jars(text: str) -> list[Component]:
    """Return the jars of a file in the format of `sha256sum`."""
    jars = []
    for number, line in enumerate(text.splitlines(), 1):
        jar = _JAR.match(line)
        if not jar:
            raise ValueError(
                f"{JARS.name}:{number} has no jar with a known groupId: {line!r}. "
                "Fix: add the artifact to _GROUPS in supply_chain/components.py"
            )
        purl = PackageURL("maven", _GROUP_OF[jar["name"]], jar["name"], jar["version"])
        jars.append(Component(purl, (jar["sha256"],)))
    return jars


def reachable(extras: frozenset[str]) -> dict[str, set[str]]:
    """Return the packages that the product needs with these extras: name to the names that each requires.

    Reads the metadata of the installed packages, for any platform and any Python. A package that is not
    installed here, because it is for another platform or Python, has no requirements.
    """
    edges: dict[str, set[str]] = defaultdict(set)
    waiting, done = [(PRODUCT, extras)], set()
    while waiting:
        name, chosen = node = waiting.pop()
        if node not in done:
            done.add(node)
            needed = _requirements(name, chosen)
            edges[name] |= {canonicalize_name(one.name) for one in needed}
            waiting += [(canonicalize_name(one.name), frozenset(one.extras)) for one in needed]
    return dict(edges)


def _requirements(name: str, extras: frozenset[str]) -> list[Requirement]:
    try:
        found = [Requirement(line) for line in requires(name) or ()]
    except PackageNotFoundError:
        return []
    return [one for one in found if _is_for(str(one.marker or ""), extras)]


def _is_for(marker: str, extras: frozenset[str]) -> bool:
    """Return whether a marker names a chosen extra, or no extra at all."""
    named = set(_EXTRA.findall(marker))
    return not named or bool(named & extras)
