# idemq: built and installed by PGXS.
#
#   make, make install    build; install into the PostgreSQL of PG_CONFIG, documents too
#   make installcheck     regression and isolation tests on the installed, running server that
#                         PGHOST, PGPORT ... name, which preloads idemq; as a superuser.  REGRESS='a b'
#                         ISOLATION=c choose tests; TAP_TESTS=1: the TAP tests too, which start
#                         servers of their own (PROVE_TESTS='test/t/a.pl' chooses)
#
# dev.mk has the other targets: make demo, make test, make deb and so on.
#
# make -f this/Makefile in an empty directory builds there and leaves the tree as it is.

EXTENSION = idemq
MODULE_big = idemq
# The source tree, seen from where make runs.
TREE := $(patsubst %/,%,$(dir $(lastword $(MAKEFILE_LIST))))
in_tree = $(patsubst $(TREE)/%,%,$(wildcard $(addprefix $(TREE)/,$(1))))
EXTVERSION := $(shell sed -n "s/^default_version *= *'\(.*\)'/\1/p" $(TREE)/idemq.control)
OLDEST_SQL := $(shell sed -n "s/^\# oldest_sql = '\(.*\)'/\1/p" $(TREE)/idemq.control)

# The layers of src/, the highest first: a file includes files of its own layer and of lower ones
# (script/lint).  A directory that is not named here is not built.
LAYERS = handler api worker observe hooks schedule job table txn queue shared base
UNITS := $(sort $(call in_tree,src/*.c $(LAYERS:%=src/%/*.c) $(LAYERS:%=src/%/*/*.c)))
OBJS = $(UNITS:.c=.o)
SCRIPT_BUILT = sql/idemq--$(EXTVERSION).sql
# What was released stays as it was: a dump of it is restored into it, and updated then
# (CREATE EXTENSION ... VERSION).  Here are the install scripts of released versions, and the updates
# from each to the next, which are written by hand (src/README.md, what a version keeps).
RELEASED =
# The router of many servers, an extension of its own; cluster/README.md.
CLUSTER_BUILT = cluster/idemq_cluster.control cluster/idemq_cluster--$(EXTVERSION).sql
CLUSTER_LIBRARY = cluster/idemq_cluster$(DLSUFFIX)
DATA = $(if $(filter .,$(TREE)),$(RELEASED))
DATA_built = $(SCRIPT_BUILT) $(CLUSTER_BUILT) $(if $(filter-out .,$(TREE)),$(RELEASED))
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
	rm -f $(OBJS) $(PROGRAM_OBJS) $(PROGRAM_BUILT) $(SCRIPT_BUILT) idemq.so
	rm -f $(EXTRA_CLEAN)
endif

-include $(TREE)/dev.mk
