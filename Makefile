# Thin targets; BUILD.md has the plain commands behind each.
#   make test PYTHON=python3.13 VENV=.venv313    another interpreter

PYTHON ?= python3
VENV ?= .venv
JOBS ?= 2

# The first working Python 3.12: a pyenv shim named python3.12 may well refuse.
PYTHON312 ?= $(shell \
  for p in python3.12 "$$(pyenv root 2>/dev/null)"/versions/3.12.*/bin/python; \
  do "$$p" -c 'import sys; assert sys.version_info[:2] == (3, 12)' 2>/dev/null \
    && { command -v "$$p"; break; }; done)

FAST := -m pytest -n $(JOBS) --dist worksteal
SLOW := $(FAST) -m slow --timeout 3600
# What CPUs can compute in the forms of GPUs and TPUs.
FORMS := tests/laws_test.py tests/recipes tests/codes tests/exchanges

.PHONY: setup test test-slow demo docs notebooks clean

setup: $(VENV)/.stamp

# Installs again only when one of these two files has changed.
$(VENV)/.stamp: pyproject.toml constraints.txt
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install -c constraints.txt -e '.[dev]'
	touch $@

test: setup
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy gradsparse
	JAX_DISABLE_MOST_OPTIMIZATIONS=1 $(VENV)/bin/python $(FAST)

# The slow tests; the fast ones of schemes in other platforms' forms; and all fast
# ones on Python 3.12, where what they cover is measured: pip gives it a newer JAX
# than Python 3.11. All but the slow ones with every optimisation of XLA's.
test-slow: setup
	@test -n "$(PYTHON312)" || { \
	  echo 'make test-slow: no working Python 3.12 found; I tried python3.12' ;\
	  echo 'and those of pyenv. Install one, or name it: PYTHON312=/path/to/it' ;\
	  exit 1; } >&2
	$(MAKE) setup VENV=.venv312 PYTHON='$(PYTHON312)'
	JAX_DISABLE_MOST_OPTIMIZATIONS=1 $(VENV)/bin/python $(SLOW)
	for form in gpu tpu; do $(VENV)/bin/python $(FAST) --form=$$form $(FORMS) \
	  || exit 1; done
	.venv312/bin/python $(FAST) --cov

demo: setup
	$(VENV)/bin/python -m experiments.demo

# The site, in docs/_build/html. It has an environment of its own; DOCS names
# another one that has the extra `docs`.
DOCS ?= .venv-docs

$(DOCS)/.stamp: pyproject.toml constraints.txt
	test -x $(DOCS)/bin/python || $(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/python -m pip install -c constraints.txt -e '.[docs]'
	touch $@

docs: $(DOCS)/.stamp
	$(DOCS)/bin/python -m sphinx -b html -W --keep-going docs docs/_build/html

# The .ipynb beside each notebook's page, without outputs. What is in place keeps
# the ids of its cells.
notebooks: $(DOCS)/.stamp
	$(DOCS)/bin/python -m jupytext --update --to ipynb docs/notebooks/*.md

# Leaves runs/, the results, alone.
clean:
	rm -rf .venv .venv3* .venv-docs docs/_build build dist *.egg-info
	rm -rf .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
