# Everything runs in $(VENV), which `make setup` creates; nothing else is installed anywhere.
# Another Spark minor or another Python: make test SPARK=4.2 VENV=.venv-4.2 PYTHON=python3.12

PYTHON ?= python3
VENV ?= .venv
# What is installed stays; at first it is the newest Spark that the Python can run (4.3 needs 3.11).
ifndef SPARK
SPARK := $(patsubst $(VENV)/.installed-spark-%,%,$(wildcard $(VENV)/.installed-spark-*))
endif
ifeq ($(SPARK),)
SPARK := $(shell $(PYTHON) -c 'import sys; print("4.3" if sys.version_info >= (3, 11) else "4.2")')
endif
SPARK_MINORS := 4.2 4.3
WORKERS ?= 3
ROUNDS ?= 30

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
INSTALLED := $(VENV)/.installed-spark-$(SPARK)
SIDE_SPARKS := $(SPARK_MINORS:%=build/pyspark-%)

empty :=
space := $(empty) $(empty)

.DEFAULT_GOAL := help
.PHONY: help setup jar demo test test-full lint chaos bench flink wheel clean

help:  ## Show this help
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(INSTALLED) jar  ## Create .venv with the package, its jar and the dev tools (SPARK=4.2 or 4.3)

# pyspark comes first: the build hook compiles against the installed one, and without build
# isolation it need not be downloaded a second time.
$(INSTALLED): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "sparkckpt needs Python 3.10 or newer, not " + sys.version.split()[0])'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet "pyspark==$(SPARK).*" "hatchling>=1.26"
	$(PIP) install --quiet --no-build-isolation --editable ".[dev]"
	rm -f $(VENV)/.installed-spark-*
	touch $@

jar: $(INSTALLED)
	@$(BIN)/python jvm-shim/build.py --tests

demo: setup  ## Run a streaming job, restart it from its checkpoint, and look into its state
	$(BIN)/python -m sparkckpt demo

test: setup  ## Run all tests, in WORKERS processes (a Spark each; they wait more than they compute)
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

test-full: setup  ## Every example of every operator, along every chain of rescales, and moved in and out (hours)
	SPARKCKPT_TEST_FULL=1 $(BIN)/python -m pytest -n $(WORKERS) tests/spark/test_operators.py tests/spark/test_python_operators.py tests/spark/test_rescale.py tests/spark/test_transfer.py tests/spark/test_transfer_edges.py tests/spark/test_restore.py tests/spark/test_restore_by_conf.py --timeout 0

lint: setup  ## Check format, style and types (Scala is linted when the jar is compiled)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

chaos: setup  ## Kill drivers, executors and coordinators at random, ROUNDS times
	SPARKCKPT_CHAOS_ROUNDS=$(ROUNDS) $(BIN)/python -m pytest tests/chaos --timeout 0 -s

bench: setup  ## Run all benchmarks at small sizes; tables, figures and plots go to build/bench
	mkdir -p build/bench
	$(BIN)/python -m benchmarks --quick --json build/bench/figures.json \
		--markdown build/bench/figures.md --plots build/bench/plots

flink: setup  ## Install PyFlink into build/flink, for the benchmark that compares with it
	$(BIN)/python -m benchmarks.flink --setup

# Only the jars of these are used, never their Python.
build/pyspark-%: | $(INSTALLED)
	rm -rf $@.partial
	$(PIP) install --quiet --no-deps --ignore-requires-python --target $@.partial "pyspark==$*.*"
	mv $@.partial $@

wheel: setup $(SIDE_SPARKS)  ## Build dist/*.whl with a jar for every supported Spark minor
	SPARKCKPT_SPARK_HOMES="$(subst $(space),:,$(strip $(SIDE_SPARKS)))" \
		$(PIP) wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .
	@ls dist/*.whl

clean:  ## Remove everything that was built, .venv included
	rm -rf $(VENV) build dist sparkckpt/jars .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
