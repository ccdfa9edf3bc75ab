# What developers run: the Makefile includes this file.
#
# A demo:
#   make demo             watch 4 workers, a crash and a zombie; needs nothing installed
#   make cluster-demo     4 servers that are one queue: one killed, a shard moved, every key one effect
#   make ui-demo          the web page on a private server with jobs, until Ctrl-C
#
# Tests:
#   make test             lint and the quick tests: regression, isolation, TAP, clients; six minutes at most
#   make test-all         every test, also on PostgreSQL 17; half an hour
#   make lint | test-regress | test-isolation | test-tap | test-clients
#                         one of them; REGRESS='a b' ISOLATION=c TAP='d' CLIENTS='e'
#                         choose tests, ACCEPT=1 takes the actual output as the expected one;
#                         LANES=1: one at a time; CI=true: what is not installed fails (script/test);
#                         NO_INSTALL=1: no Debian package is installed
#
# Their long forms (test/README.md):
#   make chaos            TAP tests chaos_flows (SOAK=seconds, 300), chaos (100,000 jobs, JOBS=n), soak (SOAK)
#                         and those of stress, in a build that sleeps at random between what is
#                         visible and what shared memory knows of it (src/base/base.h)
#   make test-random-delays
#                         isolation and TAP tests but those that assert times, in that build, on one processor
#                         that others take for up to a third of a second at a time; ROUNDS=n, TAP='a b'
#   make soak             everything at once for ten minutes (SOAK=seconds): the long form
#                         of TAP test soak
#   make failover         fails over for real, under traffic, and accounts for every job: standbys
#                         by hand, a primary that hangs, repmgr, Patroni, pgbouncer and HAProxy;
#                         SCENARIO='sync patroni', PAGE=1 (test/failover/README.md)
#   make once             the clients' workers, killed and cut off, and the account of every effect: the long
#                         form of clients/once (KILLS=100, TERMINATIONS=500) and clients/flat (JOBS=200000, WAITS=20000)
#   make conformance      conformance tests of the clients (test/conformance), alone and mixed; ADAPTER='cmd' runs the adapter of another client,
#                         OMIT='16 17' says what it leaves out, ONLY='1 6' chooses scenarios, MUTANTS=1 runs only the mutants
#   make fuzz             100,000 calls (FUZZ_CALLS=n) of every SQL function with arguments of
#                         every kind: the long form of TAP test fuzz; FUZZ_SEED=n repeats one
#   make check-languages  endpoints in Ruby, PHP, Perl and Go with idemq-work --http, killed, cut off and failed
#                         over; installs Go
#   make check-writes     test, and what it has written outside its directories; as root, where nobody else is at work
#
# What the tests and proofs are worth:
#   make mutants          changes one line at a time: which changes do the tests not notice?
#                         MUTANTS=170, MUTANTS_SEED=n, AREA='leases' (test/mutants/README.md)
#   make model            proofs of src/shared as models, exhaustively, by spin, each with mutants that must
#                         be found; some three minutes; MODELS='wake' (test/model/README.md)
#   make coverage         which lines of src no test runs; below 95 % it fails (COVERAGE=n)
#   make sanitize         regression, isolation and TAP tests with undefined behaviour and
#                         assertions checked, the first two under valgrind (TOOLS=ubsan)
#
# A release, and what proves it:
#   make deb              Debian packages, one for each PostgreSQL with server headers, in dist/
#   make dist             all that a release consists of, of the last commit, in dist/, with SHA256SUMS: source, PGXN's archive,
#                         Debian packages, the clients' and the page's, images; PARTS='source deb' (script/release/make-dist)
#   make check-packages   all of it: reproducible, lintian clean, installed, a job done by its worker, removed; as root;
#                         CHECKS='clients'
#   make check-install    what doc/operations/install.md says, to the letter, on a clean Debian with PostgreSQL 17, in
#                         a chroot; as root
#   make check-versions   the suites on each version of PostgreSQL that Debian has, in chroots, and
#                         on those of PG_CONFIGS='...'; as root (VERSIONS='17 18', SUITES='regress')
#   make check-postgres   PostgreSQL's own suites with idemq preloaded; as root (SUITES='regress')
#   make check-compilers  builds by gcc and clang at each level of optimization, without a warning,
#                         and the regression tests on each (COMPILERS='gcc clang' LEVELS='-O2 -flto')
#
# Measurements:
#   make bench            the measurements of test/bench
#   make bench-quick      the ratios that have a target, in five minutes
#   make bench-peers      idemq beside what people use today
#   make bench-workers    the clients' workers beside those of others, and those of another commit
#                         (ROUNDS=5, JOBS=10000, SAMPLES=1000, ONLY='node-run latency', BASE=commit)
#
# What is made, and committed:
#   make doc              what is made in doc/: the reference, from the catalog, and the pictures
#   make account          writes doc/guarantees.md: each promise, its tests, models and mutants, and its longest run
#   make format           run clang-format over src and idemq-work
#
# demo, test, lint and bench install missing Debian packages when run as root,
# and work on a private copy of PostgreSQL: no server of this machine is touched.

.PHONY: demo cluster-demo ui-demo test test-all lint test-regress test-isolation test-tap test-clients
demo:
	@$(TREE)/demo/run
cluster-demo:
	@$(TREE)/demo/cluster/run
ui-demo:
	@$(TREE)/script/dev/ui-demo
test:
	@$(TREE)/script/test $(SUITES)
test-all:
	@SCOPE=$(or $(SCOPE),all) $(TREE)/script/test $(SUITES)
lint test-regress test-isolation test-tap test-clients:
	@$(TREE)/script/test $(@:test-%=%)

.PHONY: chaos test-random-delays soak failover once conformance fuzz check-languages check-writes
chaos:
	@COPT='$(COPT) -DIDEMQ_JITTER' IDEMQ_CHAOS=$(or $(JOBS),100000) IDEMQ_SOAK=$(or $(SOAK),300) IDEMQ_FLOWS=$(or $(SOAK),300) STRESS_SECS=$(or $(SOAK),300) \
		TEST_TIMEOUT=$(or $(TEST_TIMEOUT),3600) TAP='$(or $(TAP),chaos_flows chaos soak stress stress_rounds)' $(TREE)/script/test tap
test-random-delays:
	@$(TREE)/script/dev/test-random-delays $(SUITES)
soak:
	@IDEMQ_SOAK=$(or $(SOAK),600) TEST_TIMEOUT=$(or $(TEST_TIMEOUT),3600) TAP=soak $(TREE)/script/test tap
failover:
	@$(TREE)/test/failover/run
once:
	@ONCE_KILLS=$(or $(KILLS),100) ONCE_TERMINATIONS=$(or $(TERMINATIONS),500) FLAT_JOBS=$(or $(JOBS),200000) FLAT_WAITS=$(or $(WAITS),20000) \
		TEST_TIMEOUT=$(or $(TEST_TIMEOUT),7200) CLIENTS='$(or $(CLIENTS),once flat)' $(TREE)/script/test clients
conformance:
	@CONFORMANCE_ADAPTER='$(ADAPTER)' CONFORMANCE_OMIT='$(OMIT)' CONFORMANCE_ONLY='$(ONLY)' CONFORMANCE_MUTANTS='$(MUTANTS)' \
		CONFORMANCE_ALL=1 TEST_TIMEOUT=$(or $(TEST_TIMEOUT),3600) CLIENTS=conformance $(TREE)/script/test clients
fuzz:
	@FUZZ_CALLS=$(or $(FUZZ_CALLS),100000) TEST_TIMEOUT=$(or $(TEST_TIMEOUT),3600) TAP=fuzz $(TREE)/script/test tap
check-languages:
	@$(TREE)/script/install-packages languages
	@LANGUAGES='ruby php perl go java' CLIENTS=languages $(TREE)/script/test clients
check-writes:
	@$(TREE)/script/dev/check-writes $(SUITES)

.PHONY: mutants model coverage sanitize
mutants:
	@$(TREE)/test/mutants/run
model:
	@$(TREE)/script/install-packages model
	@$(TREE)/script/dev/model $(MODELS)
coverage:
	@$(TREE)/script/dev/coverage $(SUITES)
sanitize:
	@$(TREE)/script/dev/sanitize $(TOOLS)

.PHONY: deb dist check-packages check-install check-versions check-postgres check-compilers
deb:
	@$(TREE)/script/release/make-deb $(DIST)
dist:
	@$(TREE)/script/release/make-dist $(or $(DIST),dist) $(PARTS)
check-packages check-compilers:
	@$(TREE)/script/release/$@
check-install:
	@SUITES=install $(TREE)/script/release/check-versions 17
check-versions:
	@$(TREE)/script/release/check-versions $(VERSIONS)
check-postgres:
	@$(TREE)/script/release/check-postgres $(SUITES)

.PHONY: bench bench-quick bench-peers bench-workers
bench:
	@$(TREE)/test/bench/run
bench-quick:
	@QUICK=1 $(TREE)/test/bench/run
bench-peers:
	@$(TREE)/test/bench/peers/run
bench-workers:
	@$(TREE)/test/bench/workers/run

.PHONY: doc account format print-compiler
doc:
	@$(TREE)/script/dev/make-reference
	@$(TREE)/script/dev/make-pictures
account:
	@$(TREE)/script/dev/make-account
format:
	cd $(TREE) && clang-format -i $(UNITS) $(call in_tree,src/*.h $(LAYERS:%=src/%/*.h) $(LAYERS:%=src/%/*/*.h) idemq-work/*.c idemq-work/*.h)
# For script/check/layers.
print-compiler:
	@echo '$(CC) $(CPPFLAGS)'
