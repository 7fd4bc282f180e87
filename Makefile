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

.PHONY: help setup
help:  ## list these commands
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## */\t/' | expand -t 10

setup: $(STAMP)  ## install everything into .venv (does nothing when it is up to date)

$(STAMP): requirements/dev.txt
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) was not found: install Python 3.11 or newer"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Cellrun needs Python 3.11 or newer"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) \
		|| { echo "python3 -m venv failed: on Debian, apt-get install python3-venv"; exit 1; }
	@echo "setup: installing pinned requirements into $(VENV)"
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --require-hashes \
		--requirement requirements/dev.txt
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps \
		--no-build-isolation --no-index --config-settings editable_mode=compat --editable .
	@touch $@
