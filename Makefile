# make study [STUDY=configs/cpu.yaml]   run a study, print its tables; ONLY="--table T --variant V": only these runs
# make reference [STUDY=...]            the same, then write results/reference/NAME
# make test | test-all | cov            fast tests | all tests | all tests with coverage
# make lint | format                    check style, types, imports, spelling, workflow | fix style
# make docs | ui | bench                build the site | MLflow UI | speed of everything here
# make gpu-check                        on a GPU: its tests, the bench, then S17's Table 1 from wherever it stands
# make verify                           compare the committed results with what they are made of
# make lock | clean                     update the pinned packages | delete build products and results/quick
STUDY ?= configs/quick.yaml
QUOTED = '$(subst ','\'',$(STUDY))'
VENV ?= .venv
BIN := $(VENV)/bin
PYTHON := $(shell for p in python3 python3.14 python3.13 python3.12 python3.11 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
export PATH := $(abspath $(BIN)):$(PATH)

.PHONY: study test test-all cov reference verify ui lint format docs bench gpu-check lock clean
.DEFAULT_GOAL := study

# ONLY: options of `capsbench plan`, which prints the files that these runs consist of
study: $(VENV)/.run
	$(if $(ONLY),targets=$$(capsbench plan $(QUOTED) $(ONLY) --targets) && )snakemake --cores all $(if $(ONLY),$$targets )--configfile $(QUOTED)

test: $(VENV)/.dev
	pytest -n 2 --dist worksteal -m "not slow"

test-all: $(VENV)/.dev
	pytest -n 6 --dist worksteal --durations 25  # with four, a third of the time was waiting, such as for Slurm

cov: $(VENV)/.dev
	pytest -n 2 --dist worksteal --cov

# Runs the study, then writes the files to commit: tables, plots, provenance
reference: study
	capsbench reference $(QUOTED)

verify: $(VENV)/.run
	capsbench verify

ui: $(VENV)/.run
	@case "$$MLFLOW_TRACKING_URI" in http*) echo "the runs are on the server that MLFLOW_TRACKING_URI names";; \
	*) MLFLOW_DISABLE_TELEMETRY=true mlflow ui --backend-store-uri $${MLFLOW_TRACKING_URI:-sqlite:///results/mlflow.db};; esac

lint: $(VENV)/.dev
	ruff check .
	ruff format --check .
	mypy
	lint-imports
	codespell
	hadolint Dockerfile
	snakefmt --check Snakefile workflow
	python -m tests.workflow.lint

format: $(VENV)/.dev
	ruff check --fix .
	ruff format .
	snakefmt Snakefile workflow

docs: $(VENV)/.dev
	NO_MKDOCS_2_WARNING=1 mkdocs build --strict

bench: $(VENV)/.run
	capsbench bench

# pytest is no package of a study, and may be missing on a machine without a network
gpu-check: $(VENV)/.run
	@python -c 'import sys, torch; sys.exit(None if torch.cuda.is_available() else "no GPU here, and nothing else needs one")'
	@if python -c 'import pytest' 2>/dev/null; then CUDA_VISIBLE_DEVICES=$${CUDA_VISIBLE_DEVICES:-0} pytest -m gpu; \
	else echo "pytest is not installed: the tests that need a GPU are left out"; fi
	capsbench bench --device cuda
	snakemake --cores all $$(capsbench plan configs/paper.yaml --table sabour-table1 --experiment mnist --targets) --configfile configs/paper.yaml

# .run: the packages that a study needs. .dev: on top of them, the tools for tests, style and docs. Each file marks a
# completed installation.
$(VENV)/.run: requirements.txt pyproject.toml
	@test -n "$(PYTHON)" || { echo "capsbench needs Python 3.11 or newer, and there is none on the PATH" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $@

$(VENV)/.dev: requirements-dev.txt $(VENV)/.run
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	@touch $@

# Extras stay in the files: without coverage[toml]==V beside the hashes, pip 23 looks at the newest coverage and stops
lock: $(VENV)/.dev
	uv pip compile pyproject.toml --universal --python-version 3.11 --upgrade --quiet --no-strip-extras \
		--generate-hashes --no-header --no-annotate --output-file requirements.txt
	uv pip compile pyproject.toml --universal --python-version 3.11 --upgrade --quiet --no-strip-extras --extra dev --extra docs \
		--generate-hashes --constraints requirements.txt --no-header --no-annotate --output-file requirements-dev.txt

clean:
	rm -rf dist htmlcov site results/quick
