# Everything runs in .venv, which `make setup` builds; the other targets call it when it is out of date.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DIST := build/dist/venv
SITE := build/docs-venv
FUZZ_SECONDS ?= 60
SPARK_KILLS ?= 15
SPARK_RACES ?= 100
PIPELINE_LIVES ?= 5
PIPELINE_PAIRS ?= 20
PIPELINE_DISKS ?= 10
CLUSTER_FAULT_SECONDS ?= 600
SOAK_MINUTES ?= 24
RUNS ?= 5
# Bytecode, as pip writes it for installed packages: without it, where Python may not write any, every start of a node
# would compile the package again, which takes longer than the rest of the start.
COMPILE := $(BIN)/python -m compileall -q src
# The package of Kerberos is compiled against the system's library, so only a machine that has it gets it. What
# does not build is left out: the summary of the tests says so.
KERBEROS := if command -v krb5-config > /dev/null; then $(BIN)/python -m pip install --quiet \
	--constraint packaging/constraints.txt 'ottla[kerberos]' || \
	echo "The extra kerberos could not be installed: Kerberos is not tested."; fi

# More workers than cores: tests wait much of their time. How they share is in tests/support/scheduling.py. Pytest keeps
# the tests that it has compiled, which takes a worker ten seconds.
WORKERS ?= 4
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n $(WORKERS) --dist loadscope

# Jars and programs that tests run beside Ottla, fetched and built once per checkout.
PREPARE = @echo "Fetching what the tests run beside Ottla: this takes some minutes, once." && \
	$(BIN)/python -m tests.support.prepare

# Of several makes that find .venv out of date, the first builds it, with this file locked, and the others wait.
LOCKED := $(PYTHON) -c 'import fcntl, subprocess, sys; lock = open("Makefile"); \
	fcntl.flock(lock, fcntl.LOCK_EX); sys.exit(subprocess.call(sys.argv[1:]))'

.PHONY: setup demo test witnesses test-all all-tests test-fast steady mutations test-faults test-cluster-faults soak ecosystem lint bench fuzz dist docs clean sbom lock

setup: $(STAMP)

$(STAMP): pyproject.toml packaging/constraints.txt setup.py src/ottla/records/_kernel.pyx $(wildcard src/ottla/records/kernel/*.pxi)
ifndef OTTLA_SETUP
	+@$(LOCKED) $(MAKE) --no-print-directory OTTLA_SETUP=1 $@
else
	@echo "Installing what Ottla needs into $(VENV) and compiling its kernel: this takes some minutes, once."
	$(BIN)/python -m pip --version > /dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint packaging/constraints.txt --editable '.[dev]'
	$(KERBEROS)
	$(COMPILE)
	touch $@
endif

demo: $(STAMP)
	$(BIN)/python examples/demo.py

# A witness of everything, with lint and types beside it; `test-all` is all tests there are.
test: $(STAMP)
	$(PREPARE)
	@$(MAKE) --no-print-directory -j 2 witnesses lint

witnesses: $(STAMP)
	$(PYTEST) --witnesses

test-all: $(STAMP)
	$(PREPARE)
	@$(MAKE) --no-print-directory -j 2 all-tests lint

all-tests: $(STAMP)
	$(PYTEST)

# For the inner loop: what the change since origin/main touches, or the last commit where there is no such branch; with
# ALL=1 all that is quick and starts no process.
test-fast: $(STAMP)
	$(PYTEST) --fast $(if $(ALL),,--affected)

# What `test` runs, or TESTS, RUNS times, with its processes paused, its cores taken away and its disk busy; then each
# test that ever failed. make steady TESTS=tests/cluster RUNS=20 SEED=1 OPTIONS='--count 10 --intensity high -- -x'
steady: $(STAMP)
	$(BIN)/python -m tests.support.steady $(TESTS) --workers $(WORKERS) --runs $(RUNS) \
		$(if $(SEED),--seed $(SEED)) $(OPTIONS)

# Thirty faults, each planted in a copy of the product: which test finds it. make mutations OPTIONS='--only NAME'
mutations: $(STAMP)
	$(PREPARE)
	$(BIN)/python -m tests.support.mutations $(OPTIONS)

# Four times SPARK_KILLS kills under a streaming query, half an hour on two idle cores; SPARK_RACES lives of a query
# without Spark, of a quarter of a minute each (SPARK_RACES=1000 for a night); and four or five kills of `ottla pipeline
# run` in each of PIPELINE_LIVES projects, PIPELINE_PAIRS pairs of runs, PIPELINE_DISKS full disks.
test-faults: $(STAMP)
	SPARK_RACES=$(SPARK_RACES) $(BIN)/python -m pytest -s tests/spark/test_sink_races.py
	SPARK_KILLS=$(SPARK_KILLS) $(BIN)/python -m pytest -s -k many_kills \
		tests/spark/test_exactly_once.py
	PIPELINE_LIVES=$(PIPELINE_LIVES) PIPELINE_PAIRS=$(PIPELINE_PAIRS) PIPELINE_DISKS=$(PIPELINE_DISKS) \
		$(BIN)/python -m pytest -s tests/spark/test_pipelines_kills.py

# Ten minutes of kills, pauses and restarts of three nodes under load, and ten with TLS, logins and ACLs, and with
# those ten with tiered storage, a share group and a table besides.
# OTTLA_CLUSTER_FAULT_SEED repeats a choice.
test-cluster-faults: $(STAMP)
	OTTLA_CLUSTER_FAULT_SECONDS=$(CLUSTER_FAULT_SECONDS) $(BIN)/python -m pytest -s \
		tests/cluster/test_faults.py
	OTTLA_CLUSTER_FAULT_SECONDS=$(CLUSTER_FAULT_SECONDS) OTTLA_CLUSTER_FAULT_SECURITY=SASL_SSL \
		$(BIN)/python -m pytest -s tests/cluster/test_faults.py
	OTTLA_CLUSTER_FAULT_SECONDS=$(CLUSTER_FAULT_SECONDS) OTTLA_CLUSTER_FAULT_SECURITY=SASL_SSL \
		OTTLA_CLUSTER_FAULT_FEATURES=tiered,shared,tables \
		$(BIN)/python -m pytest -s tests/cluster/test_faults.py

# Three nodes under load, churn and slow readers: memory stays flat, no turn is long, no task dies, nothing is lost.
soak: $(STAMP)
	$(BIN)/python -m bench.cluster_soak --minutes $(SOAK_MINUTES)

ecosystem: $(STAMP)
	$(BIN)/python -m ecosystem.prepare
	$(BIN)/python -m pytest ecosystem -rs

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(STAMP)
	$(COMPILE)
	$(BIN)/python -m bench

# A night of it: make fuzz FUZZ_SECONDS=28800 FUZZ_SEED=2
fuzz: $(STAMP)
	FUZZ_SECONDS=$(FUZZ_SECONDS) OTTLA_FUZZ_ROUNDS=5 HOSTILE_SCALE=3 KILL_ROUNDS=40 OTTLA_CRASH_SEEDS=5000 \
		OTTLA_SIM_SEEDS=1000 OTTLA_SIM_SECONDS=20 \
		OTTLA_MODEL_SEEDS=3000 OTTLA_CHAOS_SECONDS=$(FUZZ_SECONDS) OTTLA_THOROUGH=1 \
		$(PYTEST) --timeout 0 tests/node/test_fuzz.py \
		tests/security/test_fuzz.py tests/security/tls/test_half_open.py \
		tests/protocol/test_fuzz.py tests/acceptance/test_hostile.py tests/acceptance/test_attack.py \
		tests/acceptance/test_kills.py tests/acceptance/test_metadata_kills.py \
		tests/log/test_crash.py tests/log/test_compaction_crash.py tests/log/test_compaction_model.py \
		tests/coordinator/group/test_random_groups.py tests/coordinator/transaction/test_model.py tests/guarantees tests/kafka tests/sim/test_quorum.py \
		tests/sim/test_cluster.py

# The source distribution and all wheels, checked; the native ones are installed where there is no compiler, and used.
# make dist DIST_OPTIONS='--python 3.11 3.12', or '--headers 3.14=DIRECTORY' for a Python that is not installed.
dist:
	test -x $(DIST)/bin/twine || ($(PYTHON) -m venv --clear $(DIST) && \
		$(DIST)/bin/python -m pip install --quiet --upgrade pip && $(DIST)/bin/python -m pip install --quiet \
		--constraint packaging/constraints-dist.txt --group dist)
	$(DIST)/bin/python packaging/wheels.py $(DIST_OPTIONS)
	$(DIST)/bin/python packaging/check.py
	$(DIST)/bin/python packaging/try_wheels.py $(TRY_OPTIONS)

# The documentation as a site, to be looked at by: python -m http.server --directory build/docs/site
docs:
	test -x $(SITE)/bin/zensical || ($(PYTHON) -m venv --clear $(SITE) && \
		$(SITE)/bin/python -m pip install --quiet --upgrade pip && $(SITE)/bin/python -m pip install --quiet \
		--constraint packaging/constraints-docs.txt --group docs)
	$(SITE)/bin/python packaging/site.py

# What is in an installation with these extras, as CycloneDX JSON: make sbom SBOM_EXTRAS='tables tiered' > sbom.json
SBOM_EXTRAS ?= otel tables tiered zookeeper
sbom: $(STAMP)
	@$(BIN)/python packaging/sbom.py $(SBOM_EXTRAS)

# Takes the newest versions that pyproject.toml allows: run the tests before the change is pushed. The last file has
# hashes, for an image on this platform: pip install --require-hashes.
lock:
	rm -rf build/lock && $(PYTHON) -m venv build/lock/dev && $(PYTHON) -m venv build/lock/dist && \
		$(PYTHON) -m venv build/lock/docs
	build/lock/dev/bin/python -m pip install --quiet --upgrade pip
	build/lock/dev/bin/python -m pip install --quiet --editable '.[dev,kerberos]'
	build/lock/dist/bin/python -m pip install --quiet --upgrade pip
	build/lock/dist/bin/python -m pip install --quiet --group dist
	build/lock/docs/bin/python -m pip install --quiet --upgrade pip
	build/lock/docs/bin/python -m pip install --quiet --group docs
	build/lock/dev/bin/python packaging/lock.py constraints > build/lock/constraints.txt
	build/lock/dist/bin/python packaging/lock.py constraints-dist > build/lock/constraints-dist.txt
	build/lock/docs/bin/python packaging/lock.py constraints-docs > build/lock/constraints-docs.txt
	mv build/lock/constraints*.txt packaging/
	build/lock/dev/bin/python -m pip install --quiet --dry-run --ignore-installed --report - \
		--constraint packaging/constraints.txt '.[otel,tables,tiered,zookeeper]' \
		| build/lock/dev/bin/python packaging/lock.py requirements > build/lock/requirements.txt
	mv build/lock/requirements.txt packaging/requirements.txt

clean:
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis src/ottla/records/_kernel.c
	find src -name '*.so' -delete
