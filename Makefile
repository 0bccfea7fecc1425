# make demo and make test are all a newcomer needs; both build .venv first.
# pip, not uv: with the constraints file pip takes the CPU build of torch where one lies ready.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test check bench clean

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: .venv/installed
	$(BIN)/rueda demo

test: .venv/installed
	$(BIN)/python -m pytest --numprocesses auto --dist loadfile --no-loadscope-reorder

check: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: .venv/installed
	@git diff --quiet HEAD -- . ':!docs/results' ':!benchmarks/results' || { echo "commit first: results name a clean commit"; exit 2; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,bench]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --no-deps timm \
		loss-landscapes pyhessian curvlinops-for-pytorch backpack-for-pytorch einconv einops linear_operator jaxtyping \
		wadler_lindig  # they want torchvision, or another torch
	for file in benchmarks/[a-z]*.py; do $(BIN)/python $$file || exit 1; done

clean:
	rm -rf .venv build dist
