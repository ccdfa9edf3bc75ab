# idemq: built by PGXS.
#
#   make, make install    build; install into the PostgreSQL of PG_CONFIG, documents too
#   make installcheck     regression and isolation tests on the installed, running server that
#                         PGHOST, PGPORT ... name, which preloads idemq; as a superuser.  REGRESS='a b'
#                         ISOLATION=c choose tests; TAP_TESTS=1: the TAP tests too, which start
#                         servers of their own (PROVE_TESTS='test/t/a.pl' chooses)
#   make demo             watch 4 workers, a crash and a zombie; needs nothing installed
#   make cluster-demo     4 servers that are one queue: one killed, a shard moved, every key one effect
#   make test             lint and the quick tests: regression, isolation, TAP, clients; six minutes at most
#   make test-all         every test, also on PostgreSQL 17; half an hour
#   make lint | test-regress | test-isolation | test-tap | test-clients
#                         one of them; REGRESS='a b' ISOLATION=c TAP='d' CLIENTS='e'
#                         choose tests, ACCEPT=1 takes the actual output as the expected one;
#                         LANES=1: one at a time; CI=true: what is not installed fails (script/test);
#                         NO_INSTALL=1: no Debian package is installed
#   make check-writes     test, and what it has written outside its directories; as root, where nobody else is at work
#   make ui-demo          the web page on a private server with jobs, until Ctrl-C
#   make deb              Debian packages, one for each PostgreSQL with server headers, in dist/
#   make dist             all that a release consists of, of the last commit, in dist/, with SHA256SUMS: source, PGXN's archive,
#                         Debian packages, the clients' and the page's, images; PARTS='source deb' (script/release/make-dist)
#   make check-packages   all of it: reproducible, lintian clean, installed, a job done by its worker, removed; as root;
#                         CHECKS='clients'
#   make check-compilers  builds by gcc and clang at each level of optimization, without a warning,
#                         and the regression tests on each (COMPILERS='gcc clang' LEVELS='-O2 -flto')
#   make check-languages  endpoints in Ruby, PHP, Perl and Go with idemq-work --http, killed, cut off and failed
#                         over; installs Go
#   make check-install    what doc/operations/install.md says, to the letter, on a clean Debian with PostgreSQL 17, in
#                         a chroot; as root
#   make check-versions   the suites on each version of PostgreSQL that Debian has, in chroots, and
#                         on those of PG_CONFIGS='...'; as root (VERSIONS='17 18', SUITES='regress')
#   make chaos            TAP tests chaos_flows (SOAK=seconds, 300), chaos (100,000 jobs, JOBS=n), soak (SOAK)
#                         and those of stress, in a build that sleeps at random between what is
#                         visible and what shared memory knows of it (src/base/base.h)
#   make test-random-delays        isolation and TAP tests but those that assert times, in that build, on one processor
#                         that others take for up to a third of a second at a time; ROUNDS=n, TAP='a b'
#   make soak             everything at once for ten minutes (SOAK=seconds): the long form
#                         of TAP test soak
#   make failover         fails over for real, under traffic, and accounts for every job: standbys
#                         by hand, a primary that hangs, repmgr, Patroni, pgbouncer and HAProxy;
#                         SCENARIO='sync patroni', PAGE=1 (test/failover/README.md)
#   make once             the clients' workers, killed and cut off, and the account of every effect: the long
#                         form of clients/once (KILLS=100, TERMINATIONS=500) and clients/flat (JOBS=200000, WAITS=20000)
#   make fuzz             100,000 calls (FUZZ_CALLS=n) of every SQL function with arguments of
#                         every kind: the long form of TAP test fuzz; FUZZ_SEED=n repeats one
#   make mutants          changes one line at a time: which changes do the tests not notice?
#                         MUTANTS=170, MUTANTS_SEED=n, AREA='leases' (test/mutants/README.md)
#   make model            proofs of src/shared as models, exhaustively, by spin, each with mutants that must
#                         be found; some three minutes; MODELS='wake' (test/model/README.md)
#   make account          writes doc/guarantees.md: each promise, its tests, models and mutants, and its longest run
#   make coverage         which lines of src no test runs; below 95 % it fails (COVERAGE=n)
#   make sanitize         regression, isolation and TAP tests with undefined behaviour and
#                         assertions checked, the first two under valgrind (TOOLS=ubsan)
#   make bench            the measurements of test/bench
#   make bench-quick      the ratios that have a target, in five minutes
#   make bench-peers      idemq beside what people use today
#   make bench-workers    the clients' workers beside those of others, and those of another commit
#                         (ROUNDS=5, JOBS=10000, SAMPLES=1000, ONLY='node-run latency', BASE=commit)
#   make doc              what is made in doc/: the reference, from the catalog, and the pictures
#   make format           run clang-format over src and idemq-work
#
# demo, test, lint and bench install missing Debian packages when run as root,
# and work on a private copy of PostgreSQL: no server of this machine is touched.
#
# make -f this/Makefile in an empty directory builds there and leaves the tree as it is.

EXTENSION = idemq
MODULE_big = idemq
# The source tree, seen from where make runs.
TREE := $(patsubst %/,%,$(dir $(lastword $(MAKEFILE_LIST))))
in_tree = $(patsubst $(TREE)/%,%,$(wildcard $(addprefix $(TREE)/,$(1))))
EXTVERSION := $(shell sed -n "s/^default_version *= *'\(.*\)'/\1/p" $(TREE)/idemq.control)
OLDEST_SQL := $(shell sed -n "s/^\# oldest_sql = '\(.*\)'/\1/p" $(TREE)/idemq.control)

# The rooms of src/, from the upper to the lower: an include may go down or stay, never up
# (script/lint).  A folder that is not named here is not built.
ROOMS = handler api worker observe hooks schedule job table txn queue shared base
UNITS := $(sort $(call in_tree,src/*.c $(ROOMS:%=src/%/*.c) $(ROOMS:%=src/%/*/*.c)))
OBJS = $(UNITS:.c=.o)
SCRIPT_BUILT = sql/idemq--$(EXTVERSION).sql
# What was released stays as it was: a dump of it is restored into it, and updated then
# (CREATE EXTENSION ... VERSION).  The update from the last release ends in the parts, so it
# is built of them; it is kept as a file when they go on to the next.
RELEASED = sql/idemq--0.1.0.sql
UPDATE_FROM = 0.1.0
UPDATE_BUILT = sql/idemq--$(UPDATE_FROM)--$(EXTVERSION).sql
# The router of many servers, an extension of its own; cluster/README.md.
CLUSTER_BUILT = cluster/idemq_cluster.control cluster/idemq_cluster--$(EXTVERSION).sql
CLUSTER_LIBRARY = cluster/idemq_cluster$(DLSUFFIX)
DATA = $(if $(filter .,$(TREE)),$(RELEASED))
DATA_built = $(SCRIPT_BUILT) $(UPDATE_BUILT) $(CLUSTER_BUILT) $(if $(filter-out .,$(TREE)),$(RELEASED))
# The runner, which is no part of the library; idemq-work/README.md.
PROGRAM_BUILT = idemq-work/idemq-work
PROGRAM_OBJS := $(patsubst %.c,%.o,$(sort $(call in_tree,idemq-work/*.c)))
# Its --http is built where libcurl is, and libcrypto, which signs.
CURL_LIBS := $(shell pkg-config --libs 'libcurl >= 7.66' libcrypto 2>/dev/null)
CURL_CFLAGS := $(if $(CURL_LIBS),-DHAVE_CURL $(shell pkg-config --cflags libcurl libcrypto))
# With their folders, so that links between them hold; the DOCS of PGXS has none.
DOCUMENTS := $(call in_tree,README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md LICENSE doc/*.md doc/*/*.md doc/*/*.svg \
	doc/*/*.png cluster/README.md deploy/*/*)
EXTRA_CLEAN = src/.flags .test $(if $(filter-out .,$(TREE)),expected) $(OBJS:.o=.d) $(OBJS:.o=.gcno) $(OBJS:.o=.gcda) \
	$(CLUSTER_BUILT) cluster/idemq_cluster.so cluster/idemq_cluster.o cluster/idemq_cluster.d \
	$(PROGRAM_BUILT) $(PROGRAM_OBJS) $(PROGRAM_OBJS:.o=.d) $(PROGRAM_OBJS:.o=.gcno) $(PROGRAM_OBJS:.o=.gcda) \
	$(filter-out $(RELEASED),$(wildcard sql/idemq--*.sql))

# Each test runs in a database of its own, out of reach of the background worker.
REGRESS ?= $(basename $(notdir $(call in_tree,test/sql/*.sql)))
REGRESS_OPTS = --inputdir=$(TREE)/test --launcher='$(TREE)/script/own-database $(bindir)'
ISOLATION ?= $(basename $(notdir $(call in_tree,test/specs/*.spec)))
ISOLATION_OPTS = $(REGRESS_OPTS) --outputdir=.
PROVE_TESTS ?= test/t/*.pl
REGRESS_PREP = preloaded

# A warning that a new compiler thinks of stops no user: script/test, lint and script/dev/server set -Werror.
WERROR ?=
PG_CFLAGS = -Wall -Wextra -Wshadow -Wmissing-prototypes -Wno-unused-parameter $(WERROR) -MMD -MP
# PostgreSQL's own PG_FINALLY trips gcc's -Wclobbered; PGXS hands clang gcc's flags, and an
# attribute of gcc's, gnu_printf, by pg_config.h.  A copied header of a row (struct Job) has an
# array without a length at its end, which nobody reads, and more behind it.
PG_CFLAGS += $(if $(findstring clang,$(CC)),-Wno-unknown-warning-option -Wno-ignored-optimization-argument \
	-Wno-ignored-attributes -Wno-gnu-variable-sized-type-not-at-end,-Wno-clobbered)
# -isystem: our warnings are for our files, not for PostgreSQL's headers.
PG_CPPFLAGS = -DIDEMQ_VERSION=$(EXTVERSION) -DIDEMQ_OLDEST_SQL=$(OLDEST_SQL) -I$(TREE)/src -isystem $(includedir_server) -isystem $(pkgincludedir)/internal
# No bitcode: JIT inlines an extension's functions into an expression with it, which pays for
# functions of a few instructions.  Those of idemq read and write tables.  So neither clang nor
# the LLVM version of the server is needed to build, or to install a package.
override with_llvm = no

ifndef PG_CONFIG
PG_CONFIG := $(shell $(TREE)/script/pg-config)
endif
PGXS := $(if $(PG_CONFIG),$(shell $(PG_CONFIG) --pgxs 2>/dev/null))

.DEFAULT_GOAL = all

ifneq ($(wildcard $(PGXS)),)
include $(PGXS)

# PGXS looks for everything in both places, and would link with objects of the tree.
# pg_buildext names VPATH, of which PGXS makes srcdir.
override VPATH :=
srcdir := $(TREE)
vpath %.c $(TREE)
vpath idemq.control $(TREE)
ifneq ($(TREE),.)
$(shell mkdir -p sql idemq-work cluster $(sort $(dir $(UNITS))))
$(RELEASED): %: $(TREE)/%
	cp $< $@
endif

$(SCRIPT_BUILT): $(sort $(wildcard $(TREE)/sql/parts/*.sql)) $(TREE)/sql/parts $(TREE)/idemq.control
	cat $(filter %.sql,$^) > $@

# Of the types the comments alone: they are there.
$(UPDATE_BUILT): $(TREE)/sql/update/$(UPDATE_FROM)-before.sql $(sort $(wildcard $(TREE)/sql/parts/*.sql)) \
		$(TREE)/sql/update/$(UPDATE_FROM)-after.sql $(TREE)/sql/parts $(TREE)/idemq.control
	{ cat $(filter %-before.sql,$^) && sed -n '/^COMMENT ON TYPE/p' $(filter %/10_types.sql,$^) && \
		sed -E 's/^CREATE (FUNCTION|PROCEDURE|VIEW) /CREATE OR REPLACE \1 /' \
			$(filter-out %/00_guard.sql %/10_types.sql %-before.sql %-after.sql,$(filter %.sql,$^)) && \
		cat $(filter %-after.sql,$^); } > $@

cluster/idemq_cluster--$(EXTVERSION).sql: $(sort $(wildcard $(TREE)/cluster/parts/*.sql)) $(TREE)/cluster/parts \
		$(TREE)/idemq.control
	cat $(filter %.sql,$^) > $@

cluster/idemq_cluster.control: $(TREE)/cluster/idemq_cluster.control.in $(TREE)/idemq.control
	sed "s/VERSION/$(EXTVERSION)/" $< > $@

all: $(CLUSTER_LIBRARY)
$(CLUSTER_LIBRARY): cluster/idemq_cluster.o
	$(CC) $(CFLAGS) $< $(LDFLAGS) $(LDFLAGS_SL) -shared -o $@

.PHONY: install-cluster uninstall-cluster
install: install-cluster
install-cluster: $(CLUSTER_LIBRARY)
	$(MKDIR_P) '$(DESTDIR)$(pkglibdir)' '$(DESTDIR)$(bindir)'
	$(INSTALL_SHLIB) $(CLUSTER_LIBRARY) '$(DESTDIR)$(pkglibdir)'
	$(INSTALL_SCRIPT) $(TREE)/cluster/bin/move-shard '$(DESTDIR)$(bindir)/idemq-move-shard'
uninstall: uninstall-cluster
uninstall-cluster:
	rm -f '$(DESTDIR)$(pkglibdir)/idemq_cluster$(DLSUFFIX)' '$(DESTDIR)$(bindir)/idemq-move-shard'

all: $(PROGRAM_BUILT)
$(PROGRAM_OBJS): override CPPFLAGS := -I$(libpq_srcdir) -DPROGRAM_VERSION='"$(EXTVERSION)"' $(CURL_CFLAGS) $(CPPFLAGS) $(PROGRAM_COPT)
$(PROGRAM_OBJS): $(TREE)/idemq.control
$(PROGRAM_BUILT): $(PROGRAM_OBJS)
	$(CC) $(CFLAGS) $(PROGRAM_COPT) $(PROGRAM_OBJS) $(LDFLAGS) $(LDFLAGS_EX) $(libpq) $(CURL_LIBS) -o $@
	$(if $(CURL_LIBS),,@echo "idemq-work is built without --http: pkg-config finds no libcurl 7.66 and libcrypto")

.PHONY: install-program uninstall-program
program_man = $(DESTDIR)$(mandir)/man1
install: install-program
install-program: $(PROGRAM_BUILT)
	$(MKDIR_P) '$(DESTDIR)$(bindir)' '$(program_man)'
	$(INSTALL_PROGRAM) $(PROGRAM_BUILT) '$(DESTDIR)$(bindir)'
	$(INSTALL_DATA) $(TREE)/idemq-work/idemq-work.1 '$(program_man)'
uninstall: uninstall-program
uninstall-program:
	rm -f '$(DESTDIR)$(bindir)/idemq-work' '$(program_man)/idemq-work.1'

.PHONY: install-documents uninstall-documents preloaded
documents_to = $(DESTDIR)$(docdir)/$(docmoduledir)/idemq
install: install-documents
install-documents:
	$(MKDIR_P) $(patsubst %,'$(documents_to)/%',$(sort $(dir $(DOCUMENTS))))
	$(foreach dir,$(sort $(dir $(DOCUMENTS))),$(INSTALL_DATA) \
		$(foreach file,$(DOCUMENTS),$(if $(filter $(dir),$(dir $(file))),$(TREE)/$(file))) \
		'$(documents_to)/$(dir)' &&) true
uninstall: uninstall-documents
uninstall-documents:
	rm -rf '$(documents_to)'

# The expected output stands beside test/: in the directory of pg_regress's own output.
preloaded:
	@[ "$$('$(bindir)/psql' -XAtqc "SELECT current_setting('idemq.max_leases', true)" postgres)" ] || { \
		echo "the server does not preload idemq: shared_preload_libraries = 'idemq' in postgresql.conf, then restart it" >&2; \
		exit 1; }
	@[ -e expected ] || ln -s '$(abspath $(TREE))/expected' expected
installcheck: export IDEMQ_SOURCE = $(abspath $(TREE))

# Objects made by another compiler, for another PostgreSQL or with other flags
# are never linked together.  WERROR changes no object: script/test and make share them.
FLAGS := $(filter-out -Werror,$(CC) $(CFLAGS)) for PostgreSQL $(VERSION) $(if $(CURL_LIBS),with libcurl)
$(shell echo '$(FLAGS)' | cmp -s - src/.flags || echo '$(FLAGS)' > src/.flags)
$(OBJS) $(PROGRAM_OBJS) cluster/idemq_cluster.o: src/.flags
src/base/version.o: $(TREE)/idemq.control
-include $(wildcard cluster/idemq_cluster.d $(OBJS:.o=.d) $(PROGRAM_OBJS:.o=.d))
else
all install uninstall installcheck:
	@echo "no pg_config with PGXS found: install postgresql-server-dev-17, or of your version (as root: script/install-packages build)," >&2
	@echo "or name one with: make PG_CONFIG=/path/to/pg_config" >&2
	@exit 1
clean:
	rm -f $(OBJS) $(PROGRAM_OBJS) $(PROGRAM_BUILT) $(SCRIPT_BUILT) $(UPDATE_BUILT) idemq.so
	rm -f $(EXTRA_CLEAN)
endif

# For script/check/rooms.
print-compiler:
	@echo '$(CC) $(CPPFLAGS)'

.PHONY: print-compiler demo cluster-demo test test-all check-writes check-install check-versions check-postgres deb dist check-packages check-compilers check-languages lint test-regress test-isolation test-tap test-clients test-random-delays chaos failover soak fuzz mutants model account coverage sanitize bench bench-quick bench-peers bench-workers once format ui-demo

test:
	@$(TREE)/script/test $(SUITES)
test-all:
	@SCOPE=$(or $(SCOPE),all) $(TREE)/script/test $(SUITES)
lint test-regress test-isolation test-tap test-clients:
	@$(TREE)/script/test $(@:test-%=%)
ui-demo:
	@$(TREE)/script/dev/ui-demo
check-install:
	@SUITES=install $(TREE)/script/release/check-versions 17
check-versions:
	@$(TREE)/script/release/check-versions $(VERSIONS)
check-postgres check-writes:
	@$(TREE)/script/$@ $(SUITES)
deb:
	@$(TREE)/script/release/make-deb $(DIST)
dist:
	@$(TREE)/script/release/make-dist $(or $(DIST),dist) $(PARTS)
check-packages check-compilers:
	@$(TREE)/script/$@
chaos:
	@COPT='$(COPT) -DIDEMQ_JITTER' IDEMQ_CHAOS=$(or $(JOBS),100000) IDEMQ_SOAK=$(or $(SOAK),300) IDEMQ_FLOWS=$(or $(SOAK),300) STRESS_SECS=$(or $(SOAK),300) \
		TEST_TIMEOUT=$(or $(TEST_TIMEOUT),3600) TAP='$(or $(TAP),chaos_flows chaos soak stress stress_rounds)' $(TREE)/script/test tap
mutants:
	@$(TREE)/test/mutants/run
test-random-delays:
	@$(TREE)/script/dev/test-random-delays $(SUITES)
model:
	@$(TREE)/script/install-packages model
	@$(TREE)/script/dev/model $(MODELS)
account:
	@$(TREE)/script/dev/make-account
coverage:
	@$(TREE)/script/dev/coverage $(SUITES)
sanitize:
	@$(TREE)/script/dev/sanitize $(TOOLS)
failover:
	@$(TREE)/test/failover/run
check-languages:
	@$(TREE)/script/install-packages languages
	@LANGUAGES='ruby php perl go java' CLIENTS=languages $(TREE)/script/test clients
once:
	@ONCE_KILLS=$(or $(KILLS),100) ONCE_TERMINATIONS=$(or $(TERMINATIONS),500) FLAT_JOBS=$(or $(JOBS),200000) FLAT_WAITS=$(or $(WAITS),20000) \
		TEST_TIMEOUT=$(or $(TEST_TIMEOUT),7200) CLIENTS='$(or $(CLIENTS),once flat)' $(TREE)/script/test clients
soak:
	@IDEMQ_SOAK=$(or $(SOAK),600) TEST_TIMEOUT=$(or $(TEST_TIMEOUT),3600) TAP=soak $(TREE)/script/test tap
fuzz:
	@FUZZ_CALLS=$(or $(FUZZ_CALLS),100000) TEST_TIMEOUT=$(or $(TEST_TIMEOUT),3600) TAP=fuzz $(TREE)/script/test tap
demo:
	@$(TREE)/demo/run
cluster-demo:
	@$(TREE)/demo/cluster/run
bench:
	@$(TREE)/test/bench/run
bench-quick:
	@QUICK=1 $(TREE)/test/bench/run
bench-peers:
	@$(TREE)/test/bench/peers/run
bench-workers:
	@$(TREE)/test/bench/workers/run
.PHONY: doc
doc:
	@$(TREE)/script/dev/make-reference
	@$(TREE)/script/dev/make-pictures
format:
	cd $(TREE) && clang-format -i $(UNITS) $(call in_tree,src/*.h $(ROOMS:%=src/%/*.h) $(ROOMS:%=src/%/*/*.h) idemq-work/*.c idemq-work/*.h)
