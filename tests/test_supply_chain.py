"""The list of components against its files and CycloneDX's schema.

The audit against a database on loopback.
"""

from __future__ import annotations

import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from supply_chain import audit, components, sbom

PACKAGES = re.findall(r"^([\w.-]+)==([^ ;\n]+)", components.LOCK.read_text(encoding="utf-8"), re.MULTILINE)
JARS = components.JARS.read_text(encoding="utf-8").splitlines()
CANARIES = {
    ("PyPI", "jinja2", "2.4.1"): [["A-1"]],
    ("Maven", "org.apache.logging.log4j:log4j-core", "2.14.1"): [["A-2"]],
}
FLAWED = {**CANARIES, ("Maven", "org.apache.kafka:kafka-clients", "4.3.1"): [["GHSA-0000"], ["CVE-2026-1"]]}
FLAWED[("PyPI", "requests", dict(PACKAGES)["requests"])] = [["PYSEC-2026-7"]]


class _Database(ThreadingHTTPServer):
    """Answers like OSV.

    A batch of queries with a page of identifiers each, and the summary of one vulnerability.
    """

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.pages = CANARIES  # (ecosystem, name, version): the identifiers of each page
        self.refused_batches = ()
        self.body = None  # instead of the right one
        self.queried = []
        self.batches = 0

    @property
    def address(self):
        return f"http://127.0.0.1:{self.server_port}"

    def answer(self, query):
        of = (query["package"]["ecosystem"], query["package"]["name"], query["version"])
        self.queried.append(of)
        page = int(query.get("page_token", 0))
        pages = self.pages.get(of, [[]])
        more = {"next_page_token": str(page + 1)} if page + 1 < len(pages) else {}
        return {"vulns": [{"id": name} for name in pages[page]], **more} if pages[page] else more


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.batches += 1
        if self.path != "/v1/querybatch" or self.server.batches in self.server.refused_batches:
            self._send(503, b"")
            return
        results = [self.server.answer(query) for query in asked["queries"]]
        self._send(200, self.server.body or json.dumps({"results": results}).encode())

    def do_GET(self):
        name = self.path.removeprefix("/v1/vulns/")
        has_page = name != "CVE-2026-1"
        self._send(
            200 if has_page else 404, json.dumps({"id": name, "summary": f"{name}\n in \x1b[31mred"}).encode()
        )

    def _send(self, status, body):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def database(monkeypatch):
    """A database that has no vulnerability; `make audit` queries it."""
    with _Database() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("OSV_URL", f"{server.address}/")
        yield server
        server.shutdown()


@pytest.fixture
def audited(capsys):
    """Audit all components; gives the exit code and the lines of the report."""
    return lambda: (audit.main([]), capsys.readouterr().out.splitlines())


def test_the_list_has_each_package_and_each_jar_with_its_hashes(tmp_path, capsys):
    """As the files have them; the file is one of CycloneDX, and each dependency in it is listed."""
    file = tmp_path / "build" / "sbom.cdx.json"
    sbom.main([str(file)])
    sbom.main([str(file)])  # in place of the earlier one
    text = file.read_text(encoding="utf-8")
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    counts = f"{len(PACKAGES)} Python packages and {len(JARS)} jars"
    assert counts in capsys.readouterr().out
    listed = json.loads(text)
    by_purl = {one["purl"]: one for one in listed["components"]}
    jars = {
        f"{one['hashes'][0]['content']}  {one['name']}-{one['version']}.jar"
        for one in by_purl.values()
        if one.get("hashes")
    }
    assert jars == set(JARS)
    packages = [one for one in by_purl.values() if one["purl"].startswith("pkg:pypi/")]
    assert {(one["name"], one["version"]) for one in packages} == set(PACKAGES)
    hashes = [
        each["content"] for one in packages for file in one["externalReferences"] for each in file["hashes"]
    ]
    locked = re.findall(r"--hash=sha256:(\w+)", components.LOCK.read_text(encoding="utf-8"))
    assert sorted(set(hashes)) == sorted(set(locked))
    assert by_purl[f"pkg:pypi/pyspark@{dict(PACKAGES)['pyspark']}"]["scope"] == "required"
    assert by_purl[f"pkg:pypi/dagster-webserver@{dict(PACKAGES)['dagster-webserver']}"]["scope"] == "optional"
    assert by_purl[f"pkg:pypi/pytest@{dict(PACKAGES)['pytest']}"]["scope"] == "excluded"
    product = listed["metadata"]["component"]["bom-ref"]
    edges = {one["ref"]: set(one.get("dependsOn", ())) for one in listed["dependencies"]}
    assert set(edges) == {product, *by_purl}
    assert set().union(*edges.values()) <= set(by_purl)
    assert {ref for ref in by_purl if ref.startswith("pkg:maven/")} <= edges[product]
    [dagster] = [ref for ref in by_purl if re.match("pkg:pypi/dagster@", ref)]
    assert dagster in edges[product]
    assert any("sqlalchemy" in ref for ref in edges[dagster])


@pytest.mark.parametrize(
    ("read", "text", "error"),
    [
        pytest.param(components.read_lock, "six==1.17.0\n", "requirements.lock:1 .*make lock", id="no hash"),
        pytest.param(components.read_lock, "-e .\n", "requirements.lock:1 ", id="no version"),
        pytest.param(
            components.read_lock, f"    --hash=sha256:{'0' * 64}\n", "requirements.lock:1 ", id="no package"
        ),
        pytest.param(
            components.read_jars, f"{'0' * 64}  unknown-1.0.jar\n", "SHA256SUMS:1 .*_GROUPS", id="no group"
        ),
        pytest.param(
            components.read_jars, f"{'0' * 64}  kafka-raft-x-1.jar\n", "SHA256SUMS:1 ", id="another jar"
        ),
    ],
)
def test_a_component_that_cannot_be_listed_is_an_error(read, text, error):
    """A list without it would be green and wrong."""
    with pytest.raises(ValueError, match=error):
        read(text)


def test_an_audit_without_findings_queries_for_every_component(database, audited):
    """Each package and each jar, by the names of its ecosystem."""
    code, report = audited()
    assert (code, report[-1]) == (0, "Result: no known vulnerabilities.")
    assert len(database.queried) == len(set(database.queried)) == len(PACKAGES) + len(JARS) + len(CANARIES)
    assert {("PyPI", *package) for package in PACKAGES} < set(database.queried)
    assert ("Maven", "org.apache.spark:spark-sql-kafka-0-10_2.13", "4.1.3") in database.queried
    assert any(line.startswith("Not covered: ") for line in report)


def test_vulnerabilities_are_reported_from_every_page(database, audited):
    """Of a jar and of a package; one whose own page is not there is reported by its identifier."""
    database.pages = FLAWED
    code, report = audited()
    assert code == 1
    begin = report.index("VULNERABLE  pkg:maven/org.apache.kafka/kafka-clients@4.3.1")
    assert report[begin + 1 : begin + 3] == [
        "            GHSA-0000  GHSA-0000 in [31mred",
        "            CVE-2026-1",
    ]
    assert any(re.fullmatch(r"VULNERABLE  pkg:pypi/requests@[\d.]+", line) for line in report)
    assert (
        "vulnerable: 1 Python packages and 1 jars. Not audited: 0 Python packages and 0 jars." in report[-1]
    )


def test_a_database_without_an_ecosystem_makes_nothing_of_it_clean(database, audited):
    """An empty mirror, or one of Python packages alone, returns what a clean component has."""
    database.pages = {("PyPI", "jinja2", "2.4.1"): [["A-1"]]}
    code, report = audited()
    assert code == 2
    assert report[0] == (
        f"NOT AUDITED 0 Python packages and {len(JARS)} jars: the database has no vulnerability of "
        "pkg:maven/org.apache.logging.log4j/log4j-core@2.14.1, which is vulnerable"
    )
    assert f"responded for {len(PACKAGES)} Python packages and 0 jars, of " in report[-2]


def test_without_a_database_nothing_is_called_audited(audited, monkeypatch):
    """The report names the database and every component; the exit code is not 0."""
    with _Database() as closed:
        pass
    monkeypatch.setenv("OSV_URL", closed.address)
    code, report = audited()
    assert code == 2
    assert report[0].startswith(
        f"NOT AUDITED {len(PACKAGES)} Python packages and {len(JARS)} jars: ConnectionError: "
    )
    assert sum(line.startswith("            pkg:") for line in report) == len(PACKAGES) + len(JARS)
    assert f"{closed.address} responded for 0 Python packages and 0 jars" in report[-2]
    assert report[-1].startswith(
        f"Result: not audited: {len(PACKAGES)} Python packages and {len(JARS)} jars. Fix: "
    )


def test_a_batch_that_is_refused_leaves_the_others_audited(database, audited):
    """Its components are named; with a vulnerability among the others, both are in the verdict."""
    database.refused_batches = (1,)
    code, report = audited()
    assert code == 2
    assert (
        report[0]
        == f"NOT AUDITED {audit.PER_REQUEST} Python packages and 0 jars: HTTP 503 Service Unavailable"
    )
    assert len(database.queried) == len(PACKAGES) + len(JARS) + len(CANARIES) - audit.PER_REQUEST
    database.batches, database.pages = 0, FLAWED
    code, report = audited()
    assert code == 1
    assert f"Not audited: {audit.PER_REQUEST} Python packages" in report[-1]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        pytest.param(b"<html>log in</html>", "the response is no JSON", id="a page"),
        pytest.param(b"[]", "the response is no object", id="a list"),
        pytest.param(b'{"results": []}', "no 100 results in the response", id="too few"),
        pytest.param(json.dumps({"results": [{}] * 99 + [None]}).encode(), "has not the form", id="null"),
        pytest.param(
            json.dumps({"results": [{"vulns": [{}]}] * 100}).encode(), "has not the form", id="no id"
        ),
        pytest.param(
            json.dumps({"results": [{"vulns": [{"id": "../x"}]}] * 100}).encode(), "no identifier", id="path"
        ),
        pytest.param(
            json.dumps({"results": [{"next_page_token": "0"}] * 100}).encode(),
            f"more than {audit.MOST_PAGES} pages",
            id="endless",
        ),
    ],
)
def test_another_form_of_response_is_none(database, audited, body, reason):
    """A proxy's page, another program, a response that was cut: none of it reads as without findings."""
    database.body = body
    code, report = audited()
    assert code == 2
    assert any(line.startswith("NOT AUDITED ") and reason in line for line in report)
    assert report[-1].startswith("Result: not audited: ")


def test_a_page_that_is_missing_keeps_the_vulnerabilities_before_it(database, audited):
    """A component may be vulnerable and not audited to its end."""
    [last] = [
        number
        for number, one in enumerate(components.read_components())
        if "kafka-clients@4.3.1" in str(one.purl)
    ]
    database.pages, database.refused_batches = FLAWED, (last // audit.PER_REQUEST + 2,)
    code, report = audited()
    assert code == 1
    assert "VULNERABLE  pkg:maven/org.apache.kafka/kafka-clients@4.3.1" in report
    assert any(re.match("NOT AUDITED .*503", line) for line in report)
