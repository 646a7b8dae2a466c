# Two commands do everything: `make demo` shows the main job, `make test` runs all tests.

PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check
PACKAGE := kafka_liveness_dagster
DAGSTER_HOME := $(CURDIR)/.kafka_liveness/dagster
BENCH := live_throughput steady_commits time_to_fresh crash_to_fresh drain_crash_lag planner sensor_tick run_overhead records audit ledger_cost snapshots small_commits idle partitions reader_tasks crash_lag_page

# Tests start hundreds of Python processes: each would compile all that it imports anew
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help demo ui docs fast test certify bench lint format check dist sbom audit lock java chromium prometheus systemd-analyze postgresql clean

help: ## list the commands
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: java .venv/installed ## the whole story on real components, with a verdict
	@$(BIN)/kafka-liveness demo $(ARGS)

ui: java .venv/installed ## the Dagster UI on the example, with some orders; Ctrl-C ends it all
	@umask 077 && mkdir -p "$(DAGSTER_HOME)" && cp definitions/dagster.yaml "$(DAGSTER_HOME)/dagster.yaml"
	@trap '$(BIN)/kafka-liveness down' EXIT; trap 'exit 130' INT TERM; \
	$(BIN)/kafka-liveness up && $(BIN)/python -m definitions.feed --seconds 5 && \
	DAGSTER_HOME="$(DAGSTER_HOME)" $(BIN)/dagster dev -w workspace.yaml

docs: .venv/installed ## the documentation as a site, in build/site; the tests build it as strictly
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict && echo "open build/site/index.html"

fast: .venv/installed ## all tests that need no Java, in less than a minute
	@$(BIN)/python -m pytest -q -n 3 --dist loadfile --no-loadscope-reorder -m "not certify" tests/core tests/client tests/test_*.py $(PACKAGE) *.md docs/*.md $(ARGS)

test: java chromium prometheus systemd-analyze postgresql .venv/installed ## the gate, about 20 minutes; ARGS="tests/integration/test_handover.py -k fence" runs some
	$(if $(ARGS),,@$(BIN)/python -m pytest -q -n 2 tests/core --cov --cov-report=term-missing:skip-covered --cov-fail-under=100)
	@$(BIN)/python -m pytest -n 5 --max-worker-restart=0 --dist loadfile --no-loadscope-reorder -m "not certify" $(or $(ARGS),--ignore=tests/core)

certify: java chromium prometheus systemd-analyze postgresql .venv/installed ## what needs hours: kill matrices, object stores, 100,000 histories, mutants, chaos, versions; PARTS="tests chaos" runs some
	@$(BIN)/python -m tests.certify $(PARTS)

bench: java .venv/installed ## measure all, an hour; make bench BENCH=planner measures one
	@set -e; for name in $(BENCH); do $(BIN)/python -m benchmarks.$$name --write benchmarks/RESULTS.md; done

lint: .venv/installed ## ruff, mypy, and the English of pages and texts
	@$(BIN)/ruff check && $(BIN)/ruff format --check && $(BIN)/mypy && $(BIN)/python -m website.prose

format: .venv/installed ## let ruff mend what it can
	@$(BIN)/ruff check --fix; $(BIN)/ruff format

check: lint test ## what CI runs

dist: java .venv/installed ## build wheel and sdist into dist/, install each alone in an empty environment, try it
	@$(BIN)/python -m tests.end_to_end.dist dist

sbom: .venv/installed ## list Python packages and jars, with hashes, in build/sbom.cdx.json (CycloneDX)
	@$(BIN)/python -m supply_chain.sbom build/sbom.cdx.json

audit: .venv/installed ## query OSV for known vulnerabilities of both; fails without a response, too
	@$(BIN)/python -m supply_chain.audit

lock: .venv/installed ## pin the newest allowed versions, and their files' SHA-256, into requirements.lock
	@$(BIN)/uv pip compile --universal --python-version 3.10 --all-extras --no-header --no-annotate \
	  --generate-hashes --upgrade pyproject.toml -o requirements.lock

.venv/installed: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "Python 3.10 or newer is needed, $(PYTHON) is $$($(PYTHON) --version): make PYTHON=python3.11 …"; exit 1; }
	@echo "building .venv from requirements.lock (a minute or two; Spark is 400 MB)"
	@$(PYTHON) -m venv .venv || { echo "Python's venv module is missing: apt-get install python3-venv"; exit 1; }
	@sed -n '/^uv==/,/[^\\]$$/p' requirements.lock >.venv/uv.lock && $(PIP) --require-hashes -r .venv/uv.lock && \
	  $(BIN)/uv pip install --quiet --require-hashes --compile-bytecode --python $(BIN)/python -r requirements.lock || \
	  { echo "uv cannot install the lock (it does not read pip.conf), pip tries"; $(PIP) --no-deps --require-hashes -r requirements.lock; }
	@$(PIP) --no-deps -e .
	@touch $@

java:
	@"$${JAVA_HOME:+$$JAVA_HOME/bin/}java" -version >/dev/null 2>&1 || { \
	  [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
	  echo "Java is missing, installing it" && apt-get update -qq && apt-get install -y -qq openjdk-17-jre-headless; } || { \
	  echo "Java 17 or newer is missing: apt-get install openjdk-17-jre-headless, or set JAVA_HOME"; exit 1; }

chromium: FOR := the tests click through the UI with it
prometheus: FOR := the tests ask it for what the dashboard draws
prometheus: PACKAGED := --no-install-recommends prometheus
systemd-analyze: FOR := the tests judge the units of deploy/systemd with it
systemd-analyze: PACKAGED := systemd
postgresql: FOR := the tests keep the storage of Dagster in it
postgresql: COMMAND := /usr/lib/postgresql/*/bin/postgres
chromium prometheus systemd-analyze postgresql: PACKAGED ?= $@
chromium prometheus systemd-analyze postgresql: COMMAND ?= $@
chromium prometheus systemd-analyze postgresql:
	@command -v $(COMMAND) >/dev/null || { \
	  [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && echo "$@ is missing, installing it" && \
	  apt-get update -qq && apt-get install -y -qq $(PACKAGED); } || { \
	  echo "$@ is missing, $(FOR): apt-get install $(PACKAGED)"; exit 1; }

clean: ## stop the services; remove .venv and all state
	@[ ! -x $(BIN)/kafka-liveness ] || $(BIN)/kafka-liveness down
	@rm -rf .venv .kafka_liveness
