"""Write the bill of materials, a CycloneDX 1.6 file, of the product, its Python packages and its jars.

`python -m supply_chain.sbom FILE` is `make sbom`. It uses no network.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from cyclonedx.model import ExternalReference, ExternalReferenceType, HashAlgorithm, HashType, Property, XsUri
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component as Listed
from cyclonedx.model.component import ComponentScope, ComponentType
from cyclonedx.model.license import LicenseExpression
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from packageurl import PackageURL

from supply_chain.components import PRODUCT, Component, reachable, read_components

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

_FOR_USERS = frozenset({"metrics", "registry", "ui"})
_ALL = _FOR_USERS | {"dev"}


def build(components: Iterable[Component]) -> Bom:
    """Return the list.

    The product depends on each jar, and each package on those that its metadata requires.
    """
    product = Listed(
        name=PRODUCT,
        version=version(PRODUCT),
        type=ComponentType.APPLICATION,
        licenses=[LicenseExpression("Apache-2.0")],
        purl=(purl := PackageURL("pypi", name=PRODUCT, version=version(PRODUCT))),
        bom_ref=str(purl),
    )
    needed, optional, edges = reachable(frozenset()), reachable(_FOR_USERS), reachable(_ALL)
    listed = {one: _listed(one, _scope(one, needed, optional)) for one in components}
    by_name: dict[str, list[Listed]] = defaultdict(list)  # the lock has several versions of some
    for one, entry in listed.items():
        by_name["a jar" if one.is_jar else one.purl.name].append(entry)
    bom = Bom(components=listed.values())
    bom.metadata.component = product
    edges[PRODUCT].add("a jar")
    by_name[PRODUCT] = [product]
    for name, required in edges.items():
        for entry in by_name[name]:
            bom.register_dependency(entry, chain.from_iterable(by_name[other] for other in sorted(required)))
    return bom


def _scope(component: Component, needed: Container[str], optional: Container[str]) -> ComponentScope:
    """Return whether users get it always, with an extra or the embedded services, or never."""
    if component.purl.name in needed:
        return ComponentScope.REQUIRED
    is_optional = component.is_jar or component.purl.name in optional
    return ComponentScope.OPTIONAL if is_optional else ComponentScope.EXCLUDED


def _listed(component: Component, scope: ComponentScope) -> Listed:
    """Return the entry of a component.

    A jar is one file; a package has several, whose hashes are not its own.
    """
    hashes = [HashType(alg=HashAlgorithm.SHA_256, content=sha256) for sha256 in component.sha256]
    files = ExternalReference(
        type=ExternalReferenceType.DISTRIBUTION,
        url=XsUri(str(component.purl)),
        comment="the SHA-256 of each wheel and sdist that requirements.lock allows",
        hashes=hashes,
    )
    marker = Property(name="kafka-liveness-dagster:marker", value=component.marker)
    return Listed(
        name=component.purl.name,
        group=component.purl.namespace,
        version=component.purl.version,
        type=ComponentType.LIBRARY,
        scope=scope,
        purl=component.purl,
        bom_ref=str(component.purl),
        hashes=hashes if component.is_jar else (),
        external_references=() if component.is_jar else [files],
        properties=[marker] if component.marker else (),
    )


def main(words: list[str] | None = None) -> None:
    """Write the file, in place of an earlier one, and print what it lists."""
    parser = argparse.ArgumentParser(
        prog="python -m supply_chain.sbom", description="Write the bill of materials."
    )
    parser.add_argument(
        "file", type=Path, metavar="FILE", help="a CycloneDX file, such as build/sbom.cdx.json"
    )
    file: Path = parser.parse_args(words).file
    components = read_components()
    output = make_outputter(build(components), OutputFormat.JSON, SchemaVersion.V1_6)
    file.parent.mkdir(parents=True, exist_ok=True)
    output.output_to_file(str(file), allow_overwrite=True, indent=2)
    jars = sum(one.is_jar for one in components)
    print(f"{file}: CycloneDX 1.6, {len(components) - jars} Python packages and {jars} jars")  # noqa: T201 - a command


if __name__ == "__main__":
    main()
