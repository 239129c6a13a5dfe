# Needs only Python 3.11 or newer, make and git. CI runs these same targets (.ci/run).
.DEFAULT_GOAL := help
SHELL := /bin/sh

# The first interpreter that is new enough; `make PYTHON=/path/to/python setup` chooses another.
NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c '$(NEW_ENOUGH)' 2>/dev/null && { echo $$p; exit; }; done; echo python3)

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.up-to-date
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
PEERS := .venv-peers
PEERS_STAMP := $(PEERS)/.up-to-date
# Options for pytest, as in: make test T="tests/unit -k retry"
T ?=
# Tests that run at once. A test waits for servers and leases most of its time, so eight keep two cores busy. 0: in
# pytest's own process, for a debugger.
JOBS ?= 8

.PHONY: help
help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

.PHONY: setup
setup: $(STAMP)  ## make .venv with the project and its tools; quick when nothing changed

# The stamp is written last, so an interrupted install is done again.
$(STAMP): pyproject.toml
	@$(PYTHON) -c '$(NEW_ENOUGH)' 2>/dev/null || { \
		echo "Headrace needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) --version 2>&1 | head -n 1)."; \
		echo "Install one, or name it: make PYTHON=/path/to/python3.11 setup"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
		echo "'$(PYTHON) -m venv' failed. On Debian and Ubuntu: apt-get install python3-venv"; exit 1; }
	@echo "Installing the project and its tools into $(VENV) ..."
	@$(PIP) 'pip>=25.1'  # older ones know no --group
	@$(PIP) --editable '.[all]' --group dev
	@touch $@

.PHONY: demo
demo: setup  ## measure the standard library with a workflow of a few hundred jobs
	@$(BIN)/headrace demo

# The port of an example's site.
PORT ?= 8000
START = $(abspath $(BIN))/python ../start.py $(abspath $(BIN))/

.PHONY: example-django
example-django: setup  ## start the shop of examples/django_shop and its worker (PORT=8000)
	@cd examples/django_shop && $(abspath $(BIN))/python manage.py migrate --verbosity 0 && \
		$(START)python manage.py headrace worker -- \
		$(abspath $(BIN))/python manage.py runserver --noreload 127.0.0.1:$(PORT)

.PHONY: example-fastapi
example-fastapi: setup  ## start the service of examples/fastapi_service and its worker
	@cd examples/fastapi_service && $(START)headrace worker tasks:app -- \
		$(abspath $(BIN))/uvicorn site_app:site --port $(PORT)

.PHONY: example-flask
example-flask: setup  ## start the site of examples/flask_site and its worker
	@cd examples/flask_site && $(START)headrace worker 'site_app:create_app()' -- \
		$(abspath $(BIN))/flask --app site_app run --port $(PORT)

.PHONY: example-pipeline
example-pipeline: setup  ## run the workflow of examples/data_pipeline with a worker
	@cd examples/data_pipeline && $(START)headrace worker pipeline:app -- $(abspath $(BIN))/python pipeline.py

# Tests of the documents and of the code as text, which `make check` runs.
CHECKED := tests/docs tests/unit/test_house.py

.PHONY: test
test: setup  ## run the suite without the tests of `make check` (T="..." passes options to pytest)
	@$(BIN)/python -m pytest -n $(JOBS) --dist worksteal $(or $(T),$(CHECKED:%=--ignore %))

# What calls scripts. Whatever else the suite starts calls them on the newest server.
SCRIPTED := tests/scripts tests/properties tests/store

.PHONY: oldest
oldest: setup  ## run what calls scripts on the oldest server
	@$(BIN)/python -m pytest --servers redis-6.2 -k redis-6.2 -m "not any_server and not soak" -n $(JOBS) --dist worksteal $(or $(T),$(SCRIPTED))

.PHONY: cluster
cluster: setup  ## run the whole suite with each server as a cluster of one node
	@$(BIN)/python -m pytest --cluster -n $(JOBS) --dist worksteal $(T)

# What has shards: tests/scripts plays at one store's scripts, each by the keys of one shard.
SHARDED := store worker schedules dashboard stats kit metrics cache properties system browser

.PHONY: shards
shards: setup  ## run the tests that use a store with three shards on one server
	@$(BIN)/python -m pytest --shards 3 -n $(JOBS) --dist worksteal $(or $(T),$(addprefix tests/,$(SHARDED)))

.PHONY: check
check: setup  ## format, lint, types, layers, and docs in step with the code
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m pytest -q $(CHECKED)

.PHONY: docs
docs: setup  ## make the site of the documentation in docs/_build, with a reference from the docstrings
	@$(BIN)/sphinx-build -W -q -b html docs docs/_build && echo "docs/_build/index.html"

.PHONY: bench
bench: setup  ## print each figure beside its floor, measured in the same run
	@$(BIN)/python -m bench

.PHONY: bench-peers
bench-peers: setup $(PEERS_STAMP)  ## the same beside RQ, Celery, Dramatiq and Huey, installed in a place of their own
	@$(BIN)/python -m bench --peers

$(PEERS_STAMP): $(STAMP)
	@test -x $(PEERS)/bin/python || $(BIN)/python -m venv $(PEERS)
	@$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check rq 'celery[redis]' 'dramatiq[redis]' huey hiredis
	@touch $@

.PHONY: soak
soak: setup  ## kill workers and the server for minutes; every job must end
	@$(BIN)/python -m pytest tests/system tests/databases tests/worker/test_core.py tests/store/test_kth_call.py -m soak --timeout 1800 $(T)
