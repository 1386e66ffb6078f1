# `make demo` and `make test` need only Python 3.11+ and a JDK: they set up $(VENV) by themselves, once.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test lint format lock clean

VENV := .venv
LAKE := ./demo-lake
BIN := $(VENV)/bin

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.ready ## evaluate a small real model on this machine (LAKE=./demo-lake)
	@$(BIN)/gym-spark demo --lake $(LAKE)

test: lint ## check style and types, then run every test
	$(BIN)/pytest --numprocesses 2 --dist worksteal

lint: $(VENV)/.ready ## check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.ready ## rewrite the code in the project's style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lock: ## resolve the dependencies anew into conf/constraints.txt
	rm -rf build/lock
	$$(sh .ci/find-python) -m venv build/lock
	build/lock/bin/python -m pip install -qq --disable-pip-version-check --editable '.[local,dev]'
	sed -n '/^#/p' conf/constraints.txt > build/constraints
	build/lock/bin/python -m pip freeze --exclude-editable | grep -v '^certifi==' >> build/constraints
	mv build/constraints conf/constraints.txt

clean: ## remove the virtual environment, caches and the demo's lake
	rm -rf .venv demo-lake build spark-warehouse .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .coverage
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.ready: pyproject.toml conf/constraints.txt
	@sh .ci/set-up $(VENV)
	@touch $@
