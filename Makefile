# `make` lists what can be done. Everything runs in .venv, which is made when it is needed.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help venv test matrix lint format run docs bench soak clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' Makefile

venv: $(VENV)/.installed ## Make .venv with everything that development needs

test: venv ## Run checks, the suite on every database, and the matrix (ARGS="--only sqlite -k pump")
	$(BIN)/python -m tests $(ARGS)

matrix: venv ## Run the fast suite on the other Pythons found here, each with another Django
	$(BIN)/python -m tests --only matrix $(ARGS)

lint: venv ## Check style, types, import rules and migrations
	$(BIN)/python -m tests --only checks

format: venv ## Put the code in its one format, and fix what can be fixed by itself
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

run: $(VENV)/.installed-package ## Start the example project (ARGS="--port 8001")
	@$(BIN)/python -m example_project $(ARGS)

docs: $(VENV)/.installed-docs ## Build the documentation into docs/_build/html
	$(BIN)/python -m sphinx -W --keep-going -b html docs docs/_build/html

bench: venv ## Run the benchmarks
	$(BIN)/python -m benchmarks $(ARGS)

soak: venv ## Play random histories of the simulated world (ARGS="--seeds 1-500")
	$(BIN)/python -m tests.sim.soak $(ARGS)

clean: ## Remove everything that can be made again, the virtual environments too
	rm -rf $(VENV) .venvs build dist docs/_build .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamps are newer than pyproject.toml for as long as what it asks for is installed.

$(VENV)/.installed: pyproject.toml | $(BIN)/pip
	$(PIP) install -qq --editable '.[test,dev]'
	@touch $@ $(VENV)/.installed-package

# The example needs neither the tests' packages nor the developers'.
$(VENV)/.installed-package: pyproject.toml | $(BIN)/pip
	$(PIP) install -qq --editable .
	@touch $@

# pip is the last that a new environment gets: where it is missing, the environment is not whole.
$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("django_semq needs Python 3.11 or newer; $(PYTHON) is %d.%d. Name another: make venv PYTHON=python3.12" % sys.version_info[:2])'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed-docs: $(VENV)/.installed
	$(PIP) install -qq --editable '.[docs]'
	@touch $@
