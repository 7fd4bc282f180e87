# Cellrun's commands. `make help` lists them; each is explained by the comment behind it.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

VENV := .venv
PYTHON ?= python3
BIN := $(VENV)/bin
STAMP := $(VENV)/.stamp

# What `make up` honours; exported so that the stack sees them.
WEB_PORT ?= 8000
FLOWER_PORT ?= 5555
CELLS ?= 2
ENGINE ?= docker
CELLRUN_HOME ?= .cellrun
export WEB_PORT FLOWER_PORT CELLS ENGINE CELLRUN_HOME
# A dozen processes of a stack import the same modules: without bytecode each compiles them.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup
help: ## list these commands
	@sed -nE 's/^([a-z]+):.*## ?(.*)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 15

setup: $(STAMP) ## install everything into .venv (does nothing when it is up to date)

$(STAMP): requirements/dev.txt pyproject.toml slurm/pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) was not found: install Python 3.11 or newer"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Cellrun needs Python 3.11 or newer"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) \
		|| { echo "python3 -m venv failed: on Debian, apt-get install python3-venv"; exit 1; }
	@echo "setup: installing pinned requirements into $(VENV)"
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --require-hashes \
		--requirement requirements/dev.txt
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps \
		--no-build-isolation --no-index --config-settings editable_mode=compat --editable . --editable ./slurm
	@touch $@

# ------------------------------------------------------------------------------------ the stack

STACK := $(BIN)/python -m controlplane.config.stack
TOOLS := $(BIN)/python -m tests.harness.tools

.PHONY: up wait down demo
up: setup ## run the stack in the foreground: WEB_PORT FLOWER_PORT CELLS ENGINE CELLRUN_HOME
	@exec $(STACK) up

wait: setup ## return once the stack that is being started in CELLRUN_HOME works
	@exec $(STACK) wait

down: setup ## stop the stack that runs in CELLRUN_HOME
	@exec $(STACK) down

demo: setup ## run the examples on an own stack: ENGINE=docker, process
	@exec $(STACK) demo

# ------------------------------------------------------------------------------- tests and tools

PYTEST := $(BIN)/python -m pytest

.PHONY: test soak check format docs bench plans compare lock sbom tools
test: setup ## everything CI runs; ENGINE=none skips, and says so, what needs an engine
	@test "$(ENGINE)" = none || $(STACK) engine
	@$(MAKE) tools
	@$(MAKE) check
	@code=0; \
	$(PYTEST) -n 3 --dist worksteal -m "not stack and not serial" || code=1; \
	$(PYTEST) -n 2 --dist loadfile -m stack || code=1; \
	$(PYTEST) -m serial || code=1; \
	exit $$code
	@test "$(ENGINE)" != none || echo "ENGINE=none: the tests that need a container engine were skipped"

soak: setup ## the long suite: thousands of seeds, all mutants, full-length outages
	@test "$(ENGINE)" = none || $(STACK) engine
	@$(MAKE) tools
	@code=0; export SIMULATION_BASE=$${SIMULATION_BASE:-$$(shuf -i 0-9999999 -n 1)000}; \
	$(PYTEST) --soak -n 3 --dist worksteal -m "not stack and not serial" || code=1; \
	$(PYTEST) --soak -n 2 --dist loadfile -m stack || code=1; \
	$(PYTEST) --soak -m serial || code=1; \
	exit $$code
	@test "$(ENGINE)" != none || echo "ENGINE=none: the tests that need a container engine were skipped"

check: setup ## linters, types, import contracts, migrations, known vulnerabilities
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check . || { echo "run make format"; exit 1; }
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo
	@DJANGO_SETTINGS_MODULE=tests.lint_settings $(BIN)/python -W ignore manage.py makemigrations --check --dry-run
	@$(BIN)/python -m tests.harness.audit requirements/run.txt

format: setup ## write the code the way `make check` wants it
	@$(BIN)/ruff check --quiet --fix-only .
	@$(BIN)/ruff format --quiet .

docs: setup ## write the pages and the client's types that follow from the code
	@DJANGO_SETTINGS_MODULE=tests.lint_settings $(BIN)/python -W ignore manage.py spectacular --file docs/openapi.yaml
	@$(BIN)/python -m docgen.generate

bench: setup ## print the benchmarks' tables: ONLY=B1,B6 RUNS=3 SIZE=tiny, short, full BUDGET=60 RESULTS=folder
	@$(BIN)/python -m benchmarks $(if $(ONLY),--only $(ONLY)) $(if $(RUNS),--runs $(RUNS)) \
		$(if $(SIZE),--size $(SIZE)) $(if $(BUDGET),--budget $(BUDGET)) $(if $(RESULTS),--results $(RESULTS))

plans: setup ## record the plans of the hottest statements with a million tasks: SIZE=full RESULTS=folder
	@$(BIN)/python -m benchmarks.plans $(if $(SIZE),--size $(SIZE)) $(if $(RESULTS),--results $(RESULTS))

compare: setup ## report what got slower since a commit: BASE=main~1 CHANGE=HEAD ONLY=B1,B6 ROUNDS=6
	@test -n "$(BASE)" || { echo "BASE is missing: the commit to compare with"; exit 1; }
	@$(BIN)/python -m benchmarks.compare $(BASE) $(CHANGE) $(if $(ONLY),--only $(ONLY)) \
		$(if $(ROUNDS),--rounds $(ROUNDS))

# A browser, Prometheus, an image registry, an SSH server and programs that drive Cellrun, where the tests want them and
# installing them is ours to do.
tools: setup
	@$(TOOLS) promtool
	@grep -rqs 'mark.browser' tests && $(TOOLS) browser || true
	@test "$(ENGINE)" = none || $(TOOLS) registry || true
	@test "$(ENGINE)" = none || $(TOOLS) dropbear
	@$(BIN)/python -m tests.harness.clients

SBOM ?= build/sbom

sbom: setup ## write CycloneDX bills of materials of control plane and cell to SBOM (build/sbom)
	@mkdir -p $(SBOM)
	@for part in run cell; do \
		$(BIN)/python -W ignore -m cyclonedx_py requirements requirements/$$part.txt \
			--pyproject pyproject.toml --output-reproducible --of JSON -o $(SBOM)/$$part.cdx.json; \
	done
	@echo "wrote $(SBOM)/run.cdx.json (control plane) and $(SBOM)/cell.cdx.json"

lock: setup ## compile requirements/*.txt from pyproject.toml; UPGRADE=1 takes newer versions
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --require-hashes \
		--requirement requirements/lock.txt
	@compile() { \
		$(BIN)/uv pip compile --quiet --generate-hashes --universal --python-version 3.11 \
			--no-emit-index-url --custom-compile-command "make lock" $(if $(UPGRADE),--upgrade) \
			--output-file "requirements/$$1.txt" "$${@:2}"; \
	}; \
	compile dev pyproject.toml --extra control --extra cell --extra tracing --group dev; \
	compile run pyproject.toml --extra control --extra cell --extra tracing --constraints requirements/dev.txt; \
	compile cell pyproject.toml --extra cell --constraints requirements/dev.txt; \
	compile slurm-clients --group slurm-clients; \
	compile hyperqueue --group hyperqueue; \
	compile airflow pyproject.toml --extra client --group airflow; \
	compile prefect pyproject.toml --extra client --group prefect; \
	echo uv | compile lock -
	@echo "locked: commit requirements/*.txt"
