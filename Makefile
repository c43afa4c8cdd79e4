# The words people type. Each sets up what it needs: a virtual environment in .venv, from a hashed lock file.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
WORKERS := $(if $(EVERSTEP_TEST_POSTGRES),0,2)  # a server that is given has one set of tables

# Tests start hundreds of processes: each would compile the package anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test pytest lint bench langgraph-tests lock clean

help:
	@echo "make demo    an agent is killed and resumes; its history is rewound, branched, merged and undone"
	@echo "make test    lint, types and all tests; starts PostgreSQL and Valkey by itself"
	@echo "make lint    lint and types only"
	@echo "make bench   size and speed, beside what they are compared with (PARTS='import search' for some of it)"
	@echo "make langgraph-tests   LangGraph's own tests against our saver; downloads them (LANGGRAPH_STORES='memory sqlite')"
	@echo "make lock    renew requirements-dev.txt"

demo: $(READY)
	@$(BIN)/python examples/demo.py

# Types are looked at beside the first tests, since that takes one core.
test: $(READY)
	@$(MAKE) --jobs 2 lint pytest

pytest: $(READY)
	$(BIN)/python -m pytest -n $(strip $(WORKERS)) --dist worksteal

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(READY)
	@$(BIN)/python -m benchmarks.bench $(PARTS)

langgraph-tests: $(READY)
	$(BIN)/python -m tests.langgraph.own $(LANGGRAPH_STORES)

$(READY): requirements-dev.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Everstep needs Python 3.11 or newer: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --require-hashes -r requirements-dev.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $(READY)

lock:
	$(PYTHON) -m venv --clear .venv-lock
	.venv-lock/bin/python -m pip install --quiet uv
	.venv-lock/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header \
		--no-annotate -o requirements-dev.txt pyproject.toml requirements-dev.in
	rm -r .venv-lock

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .hypothesis
