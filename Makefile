# make demo and make test are all a newcomer needs; both build .venv first.
# pip, not uv: with the constraints file pip takes the CPU build of torch where one lies ready.
PYTHON ?= python3
BIN := .venv/bin
PYTEST = $(BIN)/python -m pytest --numprocesses auto --dist loadfile --no-loadscope-reorder

.PHONY: demo lab test test-slow test-keras test-slurm fuzz forms faults check docs bench clean

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: .venv/installed
	$(BIN)/rueda demo

lab: .venv/installed  # the first lab of the course, in the browser
	$(BIN)/rueda lab 1

test: .venv/installed
	$(PYTEST) -m 'not slow'

test-slow: .venv/installed  # the tests that take longest: galleries of scripts, every pair of parallel forms, compiled optimizers
	$(PYTEST) -m slow $$(grep --recursive --files-with-matches 'pytest\.mark\.slow' tests --include 'test_*.py')

.venv-keras/installed: constraints.txt .ci/keras-environment
	PYTHON=$(PYTHON) .ci/keras-environment

test-keras: .venv-keras/installed  # what needs TensorFlow, Keras 3, JAX, Lightning or transformers, and what takes longest: whole labs, graded scripts, pages in a browser
	$(subst .venv,.venv-keras,$(PYTEST)) tests/frameworks tests/assess tests/report/test_browser.py \
		$(wildcard src/rueda/keras src/rueda/integrations src/rueda/hvd/bridge src/rueda/hvd/tensorflow src/rueda/hvd/keras src/rueda/hvd/jax)

test-slurm: .venv/installed  # jobs on a real Slurm of two nodes, made of network namespaces; needs root, slurm-wlm, munge and iproute2
	RUEDA_SLURM=1 $(BIN)/python -m pytest tests/world/slurm

fuzz: .venv/installed  # 10,000 damaged files and wrong command lines (the tests try 500), and 100 kills in a reduction, twice (3)
	RUEDA_FUZZ=10000 $(BIN)/python -m pytest tests/test_fuzz.py tests/hvd/test_random_collectives.py tests/world/test_random_collectives.py
	RUEDA_FUZZ=1000 $(BIN)/python -m pytest tests/hvd/test_kills.py tests/world/test_shared_memory.py -k killed

forms: .venv/installed  # every parallel form with every model, optimizer, precision and schedule, and each resumed in each (the tests try some)
	RUEDA_EVERY_FORM=1 $(BIN)/python -m pytest --numprocesses 2 --dist loadfile tests/train/parallel

faults: .venv/installed  # more than 200 faults in plain, elastic, rehearsed and hvd jobs, 25 minutes (the tests try 20); as root with hosts and disks
	@git diff --quiet HEAD -- . ':!docs' ':!benchmarks/results' || { echo "commit first: results name a clean commit"; exit 2; }
	PYTHONPATH=tests:benchmarks $(BIN)/python -m faults --seed 0
	PYTHONPATH=tests $(BIN)/python -m faults.table

check: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: .venv/installed  # every warning is an error; links between pages are followed, nothing is fetched
	$(BIN)/python -m sphinx --builder html --fresh-env --fail-on-warning --keep-going --quiet docs build/site
	@echo "the site: build/site/index.html"

bench: .venv/installed
	@git diff --quiet HEAD -- . ':!docs/results' ':!benchmarks/results' || { echo "commit first: results name a clean commit"; exit 2; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,bench]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --no-deps timm \
		loss-landscapes pyhessian curvlinops-for-pytorch backpack-for-pytorch einconv einops linear_operator jaxtyping \
		wadler_lindig  # they want torchvision, or another torch
	for file in benchmarks/[a-z]*.py; do $(BIN)/python $$file || exit 1; done

clean:
	rm -rf .venv .venv-keras build dist
