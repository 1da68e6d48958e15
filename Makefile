EXTENSION = jobq
EXTVERSION = 0.1.0
MODULE_big = jobq

SOURCES = src/module.cpp $(sort $(wildcard src/pg/*.cpp src/core/*.cpp src/http/*.cpp src/queue/*.cpp src/worker/*.cpp))
OBJS = $(SOURCES:.cpp=.o)
HEADER_DEPS = $(SOURCES:.cpp=.d)

DATA_built = jobq--$(EXTVERSION).sql
REGRESS = $(patsubst sql/%.sql,%,$(sort $(wildcard sql/*.sql)))
ISOLATION = $(patsubst test/specs/%.spec,%,$(sort $(wildcard test/specs/*.spec)))
ISOLATION_OPTS = --inputdir=test --outputdir=output_iso --load-extension=jobq
EXTRA_CLEAN = $(HEADER_DEPS) output_iso

PG_CONFIG ?= pg_config
INCLUDEDIR_SERVER := $(shell $(PG_CONFIG) --includedir-server 2>/dev/null)

# `make test` adds WERROR=-Werror; a compiler newer than ours must not keep anybody from building.
# Up to 15 PGDLLEXPORT is empty; with hidden visibility the SQL functions must say that they are seen.
PG_CPPFLAGS = -isystem $(INCLUDEDIR_SERVER) -Isrc -DJOBQ_VERSION='"$(EXTVERSION)"' \
	-DPGDLLEXPORT='__attribute__((visibility("default")))'
PG_CXXFLAGS = -std=c++20 -Wall -Wextra -Wno-register $(WERROR) -fvisibility=hidden \
	-fvisibility-inlines-hidden -MMD -MP
SHLIB_LINK = -lcurl -lcrypto -lz -lfmt -lstdc++

# Bitcode serves inlining of SQL-callable operators; there is nothing here that a query would inline.
override with_llvm = no

# `make test` and `make demo` work without PGXS too: they install it.
PGXS := $(shell $(PG_CONFIG) --pgxs 2>/dev/null)
ifneq ($(wildcard $(PGXS)),)
include $(PGXS)
else ifneq ($(filter-out test demo bench format,$(or $(MAKECMDGOALS),all)),)
$(error $(PG_CONFIG) is not the pg_config of a server with PGXS: install its development package, or give PG_CONFIG=)
endif

-include $(HEADER_DEPS)

SQL_PIECES = $(sort $(wildcard src/sql/*.sql))
jobq--$(EXTVERSION).sql: $(SQL_PIECES)
	{ printf '%s\n' '\echo Use "CREATE EXTENSION jobq" to load this file. \quit'; cat $^; } > $@

.PHONY: test demo bench format
test:
	@PG_CONFIG='$(PG_CONFIG)' exec test/run

demo:
	@PG_CONFIG='$(PG_CONFIG)' exec test/demo

bench:
	@PG_CONFIG='$(PG_CONFIG)' exec test/bench/run

format:
	clang-format -i $$(git ls-files '*.cpp' '*.hpp')
