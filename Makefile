# `make` lists the targets. ARGS are passed on: make demo ARGS=--keep, make test ARGS="-k reset tests/unit"
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
BIN := .venv/bin
RUNTIME := .venv/runtime
INSTALLED := .venv/installed
# More than one for each core, since tests wait for processes; each worker costs its imports and a Postgres.
WORKERS ?= $(shell echo $$((2 * $$(nproc 2>/dev/null || echo 2))))
# Tests delete many files, which takes minutes on some disks: they go into memory where that has room and may hold programs.
ROOMY = $(shell cd /dev/shm 2>/dev/null && test "$$(df --output=avail -BM . | tail -n 1 | tr -dc 0-9)" -ge 8000 && \
    awk '/^MemAvailable/ {exit $$2 < 8000000}' /proc/meminfo && cp /bin/true .threadtree && ./.threadtree && echo /dev/shm; \
    rm -f /dev/shm/.threadtree)
IN_MEMORY = $(if $(TMPDIR),,$(if $(ROOMY),TMPDIR=/dev/shm))
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# The cache of bytecode saves every process of the tests from compiling the bot again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help install venv wheel release released demo pictures test fuzz histories test-agents test-fresh chaos lint bench lock \
    clean payloads

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 8

install: $(RUNTIME) ## install the bot with its pinned packages into .venv

# A line for every tenth package, and for what pip does then.
PROGRESS = awk '/^Collecting/ && ++n % 10 == 0 { print "  " n " packages …" } /^Installing/ { print "  unpacking " n " packages …" } \
    { fflush() }'

$(RUNTIME): pyproject.toml requirements/runtime.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	    echo "Threadtree needs Python 3.11 or later, and $(PYTHON) is: $$($(PYTHON) --version 2>&1 || true)." \
	         "Name another: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	    echo "$(PYTHON) cannot make virtual environments; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	@echo 'Installing the pinned packages into .venv (half a minute to three minutes, once)'
	@$(BIN)/python -m pip install --require-hashes -r requirements/runtime.txt | $(PROGRESS)
	$(BIN)/python -m pip install --quiet --no-build-isolation --no-deps -e .
	@touch $@

venv: $(INSTALLED) ## install that and the tools of developers

$(INSTALLED): $(RUNTIME) requirements/dev.txt
	@echo 'Installing the tools of developers into .venv (a minute or two, once)'
	@$(BIN)/python -m pip install --require-hashes -r requirements/dev.txt | $(PROGRESS)
	@touch $@

wheel: venv ## build dist/threadtree-VERSION-py3-none-any.whl, to install anywhere
	$(BIN)/python -m build --wheel --no-isolation

release: venv ## make wheel, sdist, image, SBOM and checksums in dist/ and try them on fresh Debian systems; needs root
	.ci/release

released: ## record this release's migrations, which nobody changes from its tag on
	@cd migrations; last=$$(git describe --tags --abbrev=0 --match 'v*' 2>/dev/null || true); \
	    { test -z "$$last" || git show "$$last:./RELEASED" | sha256sum --check --quiet; } && sha256sum [0-9]*.sql >RELEASED

demo: install ## play the demo on this machine, with a simulated GitHub and agent
	@$(BIN)/threadtree demo $(ARGS)

pictures: venv ## make docs/img anew from the demo; needs chromium and pillow
	$(BIN)/python -m docs.img.make

test: venv payloads ## run unit, integration and end-to-end tests
	$(IN_MEMORY) $(BIN)/pytest -n $(WORKERS) -o tmp_path_retention_policy=failed $(ARGS)

FUZZ ?= 100
fuzz: venv ## play FUZZ times the random input of tests, new each time, and the worst input in full size
	THREADTREE_FUZZ=$(FUZZ) $(BIN)/pytest tests/unit tests/integration/test_gate.py -n $(WORKERS) $(ARGS)

histories: venv ## play new random histories of worktrees: make histories ARGS="--count 10000 --seed 2"
	$(IN_MEMORY) $(BIN)/pytest tests/histories -n $(WORKERS) -v -o tmp_path_retention_policy=failed $(ARGS)

.venv/agents: requirements/agents.txt $(INSTALLED)
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements/agents.txt
	@touch $@

test-agents: .venv/agents ## install the real agents (about 1 GB, or AGENT_PACKAGES) and test them against simulated models
	$(BIN)/python tests/agents/install.py $(AGENT_PACKAGES)
	$(BIN)/pytest -n 0 tests/agents $(ARGS)

test-fresh: venv ## try demo, image and units on fresh Debian systems; needs root, mmdebstrap, bubblewrap; buildah, crun
	$(BIN)/pytest -n 0 tests/fresh $(ARGS)

payloads: venv # GitHub's recorded webhooks, which tests send
	@$(BIN)/python tests/recorded/install.py

chaos: venv ## kill, suspend and cut off processes at random and check every promise: ARGS="--kills 1000 --seed 7 --nodes 2"
	$(BIN)/python -m tests.chaos $(ARGS)

lint: venv .venv/agents ## run ruff, mypy, the import rules, and measure the house
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tests.house

PARTS ?= wait receive sweep removal worktree flood turn claim decide lists plans fair
bench: venv ## measure what people wait for, then single steps; some of it: make bench PARTS=wait ARGS="--short --list"
	@over=; for part in $(PARTS); do echo "== $$part"; $(BIN)/python -m bench $$part $(ARGS) || over+=" $$part"; done; \
	    test -z "$$over" || { echo "over a limit:$$over" >&2; exit 1; }

PIN = $(BIN)/uv pip compile pyproject.toml --quiet --universal --python-version 3.11 --generate-hashes \
    --no-emit-index-url --no-header

lock: venv ## pin the newest versions that pyproject.toml allows in requirements/
	$(PIN) --upgrade --extra embedded --extra build --extra dev --output-file requirements/dev.txt
	$(PIN) --upgrade --extra embedded --extra build --constraint requirements/dev.txt --output-file requirements/runtime.txt
	$(PIN) --upgrade --extra claude --constraint requirements/dev.txt --output-file requirements/agents.txt

clean: ## delete all generated files
	rm -rf .venv .node dist build .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
