# idemq: built by PGXS.
#
#   make, make install    build; install into the PostgreSQL of PG_CONFIG
#   make demo             watch 4 workers, a crash and a zombie; needs nothing installed
#   make test             lint + regression + isolation + TAP + real clients
#   make lint | test-regress | test-isolation | test-tap | test-clients
#                         one of them; REGRESS='a b' ISOLATION=c TAP='d' CLIENTS='e'
#                         choose tests, ACCEPT=1 takes the actual output as the expected one
#   make chaos            100,000 jobs (JOBS=n) under stalls, kills and crashes: the
#                         long form of TAP test 017_chaos, some minutes
#   make soak             everything at once for ten minutes (SOAK=seconds): the long form
#                         of TAP test 023_soak
#   make bench            the measurements of test/bench
#   make format           run clang-format over src
#
# demo, test, lint and bench install missing Debian packages when run as root,
# and work on a private copy of PostgreSQL: no server of this machine is touched.

EXTENSION = idemq
MODULE_big = idemq
EXTVERSION := $(shell sed -n "s/^default_version *= *'\(.*\)'/\1/p" idemq.control)

# The rooms of src/, from the upper to the lower: an include may go down or stay, never up
# (script/lint).  A folder that is not named here is not built.
ROOMS = api worker observe hooks schedule job table txn queue shared base
UNITS = $(sort $(wildcard src/*.c $(ROOMS:%=src/%/*.c)))
OBJS = $(UNITS:.c=.o)
SCRIPT_BUILT = sql/idemq--$(EXTVERSION).sql
UPDATES = $(wildcard sql/idemq--*--*.sql)
DATA = $(UPDATES)
DATA_built = $(SCRIPT_BUILT)
EXTRA_CLEAN = src/.flags $(OBJS:.o=.d) $(OBJS:.o=.gcno) $(OBJS:.o=.gcda) \
	$(filter-out $(UPDATES),$(wildcard sql/idemq--*.sql))

WERROR ?= -Werror
PG_CFLAGS = -Wall -Wextra -Wshadow -Wmissing-prototypes -Wno-unused-parameter $(WERROR) -MMD -MP
# PostgreSQL's own PG_FINALLY trips gcc's -Wclobbered; PGXS hands clang gcc's flags.
PG_CFLAGS += $(if $(findstring clang,$(CC)),-Wno-unknown-warning-option,-Wno-clobbered)
# -isystem: our warnings are for our files, not for PostgreSQL's headers.
PG_CPPFLAGS = -I$(srcdir)/src -isystem $(includedir_server) -isystem $(pkgincludedir)/internal
override with_llvm = no

ifndef PG_CONFIG
PG_CONFIG := $(shell script/pg-config)
endif
PGXS := $(if $(PG_CONFIG),$(shell $(PG_CONFIG) --pgxs 2>/dev/null))

.DEFAULT_GOAL = all

ifneq ($(wildcard $(PGXS)),)
include $(PGXS)

$(SCRIPT_BUILT): $(sort $(wildcard sql/parts/*.sql)) sql/parts idemq.control
	cat $(filter sql/parts/%.sql,$^) > $@

# Objects made by another compiler, for another PostgreSQL or with other flags
# are never linked together.
FLAGS := $(CC) $(CFLAGS) for PostgreSQL $(VERSION)
$(shell echo '$(FLAGS)' | cmp -s - src/.flags || echo '$(FLAGS)' > src/.flags)
$(OBJS): src/.flags
-include $(wildcard $(OBJS:.o=.d))
else
all install uninstall installcheck:
	@echo "no pg_config with PGXS found: install postgresql-server-dev-15 (as root: script/install-packages build)," >&2
	@echo "or name one with: make PG_CONFIG=/path/to/pg_config" >&2
	@exit 1
clean:
	rm -f $(OBJS) $(SCRIPT_BUILT) idemq.so
	rm -f $(EXTRA_CLEAN)
endif

# For script/check-rooms.
print-compiler:
	@echo '$(CC) $(CPPFLAGS)'

.PHONY: print-compiler demo test lint test-regress test-isolation test-tap test-clients chaos soak bench format

test:
	@script/test lint regress isolation tap clients
lint test-regress test-isolation test-tap test-clients:
	@script/test $(@:test-%=%)
chaos:
	@IDEMQ_CHAOS=$(or $(JOBS),100000) TEST_TIMEOUT=$(or $(TEST_TIMEOUT),3600) TAP=017_chaos script/test tap
soak:
	@IDEMQ_SOAK=$(or $(SOAK),600) TEST_TIMEOUT=$(or $(TEST_TIMEOUT),3600) TAP=023_soak script/test tap
demo:
	@demo/run
bench:
	@test/bench/run
format:
	clang-format -i $(UNITS) $(wildcard src/*.h $(ROOMS:%=src/%/*.h))
