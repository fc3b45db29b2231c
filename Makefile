# From a fresh clone, with nothing but Python 3.11 to 3.13: `make demo`, `make test`.

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check --no-input
STAMP := $(VENV)/.installed
AZURITE := $(VENV)/azurite/.installed
TORCH ?= torch>=2.6

.DEFAULT_GOAL := help
.PHONY: help setup setup-torch test test-slow test-gpu lint format demo demo-clicks clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## create .venv with the pinned versions; again only when pyproject.toml or constraints.txt change
	@:

$(STAMP): pyproject.toml constraints.txt
	@command -v "$(PYTHON)" >/dev/null || \
		{ echo "error: '$(PYTHON)' is not there. Install Python 3.11, 3.12 or 3.13, or say where one is: make PYTHON=/path/to/python3.12" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || \
		{ echo "error: Python 3.11 to 3.13 is needed, and '$(PYTHON)' is $$("$(PYTHON)" -V 2>&1). Say where one is: make PYTHON=/path/to/python3.12" >&2; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || \
		{ echo "error: '$(PYTHON)' cannot make virtual environments. Install its venv package (Debian, Ubuntu: apt-get install python3-venv)" >&2; exit 1; }
	@# A .venv that does not run, of an interpreter since removed, is made anew; any other is brought up to date.
	@$(PY) -m pip --version >/dev/null 2>&1 || { echo "Creating $(VENV)"; "$(PYTHON)" -m venv --clear $(VENV); }
	@echo "Installing into $(VENV) (the first time about 2 GB: a few minutes)"
	@$(PIP) install -qq -c constraints.txt -e '.[test,lint]'
	@touch $@

setup-torch: setup ## add PyTorch, for the tests and the demo's model; TORCH='torch==2.13.0' picks a version
	$(PIP) install -c constraints.txt '$(TORCH)'

# An Azure server for the tests of object storage; they are skipped, and say so, where it cannot be had.
$(AZURITE): $(STAMP)
	@if command -v npm >/dev/null; then \
		npm install --silent --no-fund --no-audit --prefix $(VENV)/azurite azurite@3.37.0 && touch $@; \
	else echo "npm is not there: the tests against Azure's emulator will be skipped"; fi

# Those of the integration tests start clusters of their own, which fill the cores by themselves.
test: lint $(AZURITE) ## lint and the default tests
	$(PY) -m pytest -n auto --dist loadfile tests/unit tests/property
	$(PY) -m pytest tests/integration tests/gpu

test-slow: setup ## the tests that take minutes or gigabytes
	$(PY) -m pytest -m slow

test-gpu: setup ## the tests of a GPU, which skip, and say so, where there is none; PyTorch with CUDA adds its own
	$(PY) -m pytest tests/gpu

lint: setup ## ruff's rules and format, mypy's types
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

format: setup ## put the code into ruff's format
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

demo: setup ## the whole flow on this machine, against an embedded S3 server
	$(PY) -m jobs.demo

demo-clicks: setup ## the same with click logs as TFRecord and an embedding model
	$(PY) -m jobs.demo_clicks

clean: ## remove .venv and every cache
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
