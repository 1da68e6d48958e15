#include <algorithm>
#include <array>
#include <cstring>
#include <exception>

#include <fmt/format.h>

#include "pg/spi.hpp"

extern "C" {
#include "catalog/namespace.h"
#include "jit/jit.h"
#include "optimizer/cost.h"
#include "utils/guc.h"
#include "utils/snapmgr.h"
}

namespace jobq::pg {

namespace {
constexpr std::size_t max_params = 32;

struct Pin {
    const char* name;
    const char* value;
    bool (*holds)();
};
constexpr const char* search_path = "pg_catalog, pg_temp";
constexpr std::array pins{
    Pin{"search_path", search_path,
        [] { return std::strcmp(namespace_search_path, search_path) == 0; }},
    Pin{"enable_seqscan", "off", [] { return !enable_seqscan; }},
    Pin{"enable_bitmapscan", "off", [] { return !enable_bitmapscan; }},
    Pin{"enable_hashjoin", "off", [] { return !enable_hashjoin; }},
    Pin{"enable_mergejoin", "off", [] { return !enable_mergejoin; }},
    // What is left may look so dear to the planner that it would compile it.
    Pin{"jit", "off", [] { return !jit_enabled; }},
};

[[noreturn]] void refused(const char* what, int code) {
    throw Error(ERRCODE_INTERNAL_ERROR,
                fmt::format("{} failed: {}", what, SPI_result_code_string(code)));
}
} // namespace

Spi::Spi() : exceptions_(std::uncaught_exceptions()) {
    if (!std::all_of(pins.begin(), pins.end(), [](const Pin& pin) { return pin.holds(); }))
        settings_level_ = guarded([] {
            int level = NewGUCNestLevel();
            for (const Pin& pin : pins)
                if (!pin.holds())
                    set_config_option(pin.name, pin.value, PGC_USERSET, PGC_S_SESSION,
                                      GUC_ACTION_SAVE, true, 0, false);
            return level;
        });
    int code = guarded([] { return SPI_connect(); });
    if (code != SPI_OK_CONNECT)
        refused("SPI_connect", code);
}

Spi::~Spi() {
    // On the way out of an error the abort that follows cleans up: SPI's state is not to be
    // trusted.
    if (std::uncaught_exceptions() != exceptions_)
        return;
    SPI_finish();
    if (settings_level_ > 0)
        AtEOXact_GUC(true, settings_level_);
}

bool Row::null(int column) const {
    bool null;
    SPI_getbinval(tuple_, columns_, column, &null);
    return null;
}

Datum Row::datum(int column) const {
    bool null;
    Datum value = SPI_getbinval(tuple_, columns_, column, &null);
    return null ? 0 : value;
}

std::optional<Datum> Row::maybe(int column) const {
    bool null;
    Datum value = SPI_getbinval(tuple_, columns_, column, &null);
    return null ? std::nullopt : std::optional(value);
}

std::optional<std::string_view> Row::maybe_text(int column) const {
    auto value = maybe(column);
    return value ? std::optional(text_of(*value)) : std::nullopt;
}

Rows Statement::run(const Spi&, std::initializer_list<Param> params) {
    Assert(params.size() <= max_params);
    std::array<Datum, max_params> values;
    std::array<char, max_params> nulls;
    std::array<Oid, max_params> types;
    std::size_t n = 0;
    for (const Param& param : params) {
        values[n] = param.value;
        nulls[n] = param.null ? 'n' : ' ';
        types[n++] = param.type;
    }

    if (plan_ == nullptr) {
        plan_ = guarded([&] {
            SPIPlanPtr plan = SPI_prepare_cursor(sql_, static_cast<int>(n), types.data(),
                                                 CURSOR_OPT_GENERIC_PLAN);
            if (plan != nullptr)
                SPI_keepplan(plan);
            return plan;
        });
        if (plan_ == nullptr)
            refused("SPI_prepare", SPI_result);
    }
    int code = guarded([&] {
        // As foreign keys do: what is queued now counts, not what was when the transaction began.
        Snapshot snapshot = InvalidSnapshot;
        if (IsolationUsesXactSnapshot()) {
            CommandCounterIncrement();
            snapshot = GetLatestSnapshot();
        }
        return SPI_execute_snapshot(plan_, values.data(), nulls.data(), snapshot, InvalidSnapshot,
                                    false, true, 0);
    });
    if (code < 0)
        refused("SPI_execute_snapshot", code);
    return {SPI_tuptable, SPI_processed};
}

} // namespace jobq::pg
