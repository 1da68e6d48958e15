#include <array>
#include <exception>

#include <fmt/format.h>

#include "pg/spi.hpp"

namespace jobq::pg {

namespace {
constexpr std::size_t max_params = 32;

[[noreturn]] void refused(const char* what, int code) {
    throw Error(ERRCODE_INTERNAL_ERROR,
                fmt::format("{} failed: {}", what, SPI_result_code_string(code)));
}
} // namespace

Spi::Spi() : exceptions_(std::uncaught_exceptions()) {
    int code = guarded([] { return SPI_connect(); });
    if (code != SPI_OK_CONNECT)
        refused("SPI_connect", code);
}

Spi::~Spi() {
    // On the way out of an error the abort that follows cleans up: SPI's state is not to be
    // trusted.
    if (std::uncaught_exceptions() == exceptions_)
        SPI_finish();
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
    int code =
        guarded([&] { return SPI_execute_plan(plan_, values.data(), nulls.data(), false, 0); });
    if (code < 0)
        refused("SPI_execute_plan", code);
    return {SPI_tuptable, SPI_processed};
}

} // namespace jobq::pg
