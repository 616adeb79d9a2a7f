# One command each; `make help` lists them. Everything runs in .venv, which `make setup` makes.

SHELL := /bin/sh
PY := .venv/bin/python

# For .ci/setup: which interpreter, which torch. Empty means its defaults.
PYTHON ?=
TORCH ?=
export PYTHON TORCH

IMAGES ?=
SUITE ?= imagenet-train
DATA ?=
PEERS ?=
LIBRARIES ?=
ARGS ?=
# With it every process of the tests compiles the tests, fastload and pytest's plugins anew.
unexport PYTHONDONTWRITEBYTECODE
# A process of tests for each CPU and one more, at most 4 (tests/conftest.py); -n 0: one.
SPREAD := -n auto --dist loadfile --no-loadscope-reorder
# Each process of tests has as many threads of torch as there are CPUs. Those that wait would spin.
test test-long check-coverage: export OMP_WAIT_POLICY := passive

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-long test-versions check check-coverage format wheel ci clean distclean
.PHONY: docs bench bench-peers bench-publish sanitize

help:
	@echo 'make demo [IMAGES=DIR]    pack images and train from them, against torch'"'"'s DataLoader'
	@echo 'make test [ARGS=...]      the test suite (ARGS go to pytest)'
	@echo 'make test-long [PEERS=VENV]   the same with full counts, and the long tests'
	@echo 'make test-versions        exactness with older and newer releases of torch and others'
	@echo 'make check                ruff, mypy, clang-format, C++ warnings as errors'
	@echo 'make sanitize [ARGS=...]  tests with the core compiled with AddressSanitizer and UBSan'
	@echo 'make check-coverage       the tests, and which lines and branches they run'
	@echo 'make format               let ruff and clang-format lay out the code'
	@echo 'make bench [SUITE=NAME] [DATA=DIR] [ARGS=...]   one benchmark suite'
	@echo 'make bench-peers [PEERS=VENV]   every suite against other loaders (installs them)'
	@echo 'make bench-publish        the same into bench/results, README and docs/benchmarks.md'
	@echo 'make wheel [LIBRARIES=DIR] a wheel with the libraries inside, tried in an empty environment'
	@echo 'make docs                 the site of the documents, in build/site'
	@echo 'make ci                   what CI runs: check, docs, the wheel, test'
	@echo 'make setup                only the set-up that every command does first'
	@echo 'make clean | distclean    remove what was built | and .venv'
	@echo
	@echo 'PYTHON=python3.12 chooses the interpreter, TORCH="torch==2.13.0 torchvision==0.28.0"'
	@echo 'another torch; FASTLOAD_NO_NATIVE=1 does without the C++ core.'

setup:
	@sh .ci/setup

demo: setup
	@$(PY) -m bench.demo $(if $(IMAGES),--images "$(IMAGES)") $(ARGS)

test: setup
	@$(PY) -m pytest $(SPREAD) $(ARGS)

test-long: setup
	@PEERS="$(PEERS)" $(PY) -m pytest --long -o timeout=900 -o faulthandler_timeout=2400 $(ARGS)

# Makes environments of its own.
test-versions:
	@python3 .ci/versions.py $(ARGS)

check: setup
	@sh .ci/check

# The core with sanitizers in a copy of the tree, so that the one in use stays as it is. The sanitizer
# has to be loaded before Python, and libstdc++ with it: else it does not know how exceptions are thrown.
# The sanitizer keeps freed memory for a while, behind it DALI finds no library of its own, nor Python's
# crypt, which the tests' FTP server imports, any function, and the child of a process that allocates in
# another thread at the fork waits for the sanitizer's own lock.
SANITIZE ?= address,undefined
UNFIT := not memory_stays and not kept_in_memory and not dali and not ftp and not forked_during_the_first_decode
SANITIZED := tests/native tests/transforms tests/engine tests/storage tests/sources/deferred/test_t*.py -k '$(UNFIT)'
RUNTIME = $(if $(findstring thread,$(SANITIZE)),libtsan.so,libasan.so)
sanitize: setup
	@mkdir -p build/sanitize
	@git ls-files -z --cached --others --exclude-standard | xargs -0 cp -Pup --parents -t build/sanitize
	@cd build/sanitize && FASTLOAD_SANITIZE=$(SANITIZE) FASTLOAD_REQUIRE_NATIVE=1 \
	    $(CURDIR)/$(PY) setup.py -q build_ext --inplace
	@cd build/sanitize && export PYTHONPATH=$$PWD TSAN_OPTIONS=log_path=$$PWD/sanitizer && \
	    export ASAN_OPTIONS=detect_leaks=0:log_path=$$PWD/sanitizer && \
	    LD_PRELOAD="$$(g++ -print-file-name=$(RUNTIME)) $$(g++ -print-file-name=libstdc++.so.6)" \
	    $(CURDIR)/$(PY) -m pytest $(SPREAD) $(or $(ARGS),$(SANITIZED))

# Lines and branches of Python that the tests run, their child processes too. Takes twice as long.
check-coverage: setup
	@mkdir -p build
	@$(PY) -m pytest $(SPREAD) --cov --cov-report=term:skip-covered --cov-report=html:build/coverage $(ARGS)

format: setup
	@sh .ci/check --format

docs: setup
	@$(PY) .ci/docs.py

wheel: setup
	@LIBRARIES="$(LIBRARIES)" $(PY) .ci/wheel.py

bench: setup
	@$(PY) -m bench run $(SUITE) $(if $(DATA),--data "$(DATA)") $(ARGS)

# The set-up brings what fastload is compiled with; an environment that is there needs nothing.
bench-peers: $(if $(PEERS),,setup)
	@PEERS="$(PEERS)" sh bench/peers.sh $(ARGS)

bench-publish: $(if $(PEERS),,setup)
	@PEERS="$(PEERS)" sh bench/peers.sh --publish $(ARGS)

ci:
	@bash .ci/run

clean:
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	rm -f fastload/_native/*.so .venv/.fastload-core
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +

distclean: clean
	rm -rf .venv
