# `make` lists the targets. ARGS are handed on: make demo ARGS=--keep, make test ARGS="-k reset tests/unit"
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/installed
# Tests wait for processes part of the time: one more than there are cores.
WORKERS ?= $(shell echo $$(($$(nproc 2>/dev/null || echo 2) + 1)))
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Without its cache of bytecode, every process of the tests would compile the bot again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help venv demo test test-agents lint bench lock clean payloads

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 8

venv: $(INSTALLED) ## the virtual environment with the pinned versions, in .venv

$(INSTALLED): pyproject.toml requirements/dev.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	    echo "Threadtree needs Python 3.11 or later, and $(PYTHON) is: $$($(PYTHON) --version 2>&1 || true)." \
	         "Name another: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	    echo "$(PYTHON) cannot make virtual environments; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	@echo 'Installing the pinned packages into .venv (a minute or two, once)'
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements/dev.txt
	$(BIN)/python -m pip install --quiet --no-build-isolation --no-deps -e .
	@touch $@

demo: venv ## the whole story on this machine
	@$(BIN)/threadtree demo $(ARGS)

test: venv payloads ## unit, integration and end-to-end tests
	$(BIN)/pytest -n $(WORKERS) $(ARGS)

test-agents: venv ## the known agents, for real, against simulated models (installs them: about 1 GB)
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements/agents.txt
	$(BIN)/python tests/agents/install.py
	$(BIN)/pytest -n 0 tests/agents $(ARGS)

payloads: venv # GitHub's recorded webhooks, which tests send in
	@$(BIN)/python tests/recorded/install.py

lint: venv ## ruff, mypy, import rules
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: venv ## webhooks acknowledged, worktrees rescued, removed and swept: figures beside a known program's
	$(BIN)/python -m bench receive $(ARGS)
	$(BIN)/python -m bench sweep
	$(BIN)/python -m bench removal

lock: venv ## newest versions that pyproject.toml allows, into requirements/
	$(BIN)/uv pip compile pyproject.toml --upgrade --quiet --extra dev --extra embedded --universal --python-version 3.11 \
	    --generate-hashes --no-emit-index-url --no-header --output-file requirements/dev.txt
	$(BIN)/uv pip compile pyproject.toml --upgrade --quiet --extra claude --constraint requirements/dev.txt --universal \
	    --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --output-file requirements/agents.txt

clean: ## everything that was made here
	rm -rf .venv .node dist build .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
