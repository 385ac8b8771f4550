# make study [STUDY=configs/cpu.yaml]   the main job      make test   the tests
# make reference [STUDY=...]   the study, then results/reference/NAME from it
# make ui   MLflow on what ran          make lint   style, types, workflow      make lock   pin anew
STUDY ?= configs/quick.yaml
VENV ?= .venv
BIN := $(VENV)/bin
PYTHON := $(shell for p in python3 python3.14 python3.13 python3.12 python3.11 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
export PATH := $(abspath $(BIN)):$(PATH)

.PHONY: study test reference ui lint format lock bench clean
.DEFAULT_GOAL := study

study: $(VENV)/.run
	snakemake --cores all --configfile $(STUDY)

test: $(VENV)/.dev
	pytest -n 2 --dist worksteal

# The study, and from it what is committed: tables, plots, provenance
reference: study
	capsbench reference $(STUDY)

ui: $(VENV)/.run
	@case "$$MLFLOW_TRACKING_URI" in http*) echo "the runs are on the server at $$MLFLOW_TRACKING_URI";; \
	*) MLFLOW_DISABLE_TELEMETRY=true mlflow ui --backend-store-uri $${MLFLOW_TRACKING_URI:-sqlite:///results/mlflow.db};; esac

lint: $(VENV)/.dev
	ruff check .
	ruff format --check .
	mypy
	snakefmt --check Snakefile workflow
	python -m tests.workflow.lint

format: $(VENV)/.dev
	ruff check --fix .
	ruff format .
	snakefmt Snakefile workflow

bench: $(VENV)/.run
	capsbench bench

# The environment of a run, and on top of it the tools for tests and style. A stamp says that an install ended.
$(VENV)/.run: requirements.txt pyproject.toml
	@test -n "$(PYTHON)" || { echo "capsbench needs Python 3.11 or newer, and there is none on the PATH" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $@

$(VENV)/.dev: requirements-dev.txt $(VENV)/.run
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	@touch $@

lock: $(VENV)/.dev
	uv pip compile pyproject.toml --universal --python-version 3.11 --upgrade --quiet \
		--no-header --no-annotate --output-file requirements.txt
	uv pip compile pyproject.toml --universal --python-version 3.11 --upgrade --quiet --extra dev \
		--constraints requirements.txt --no-header --no-annotate --output-file requirements-dev.txt

clean:
	rm -rf .snakemake results/quick
