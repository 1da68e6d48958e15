// SQL functions in C++: arguments in, one value or a set of rows out.
#pragma once

#include "pg/values.hpp"

namespace jobq::pg {

// The arguments of one call, counted from 0. Values live in the caller's memory context.
class Call {
public:
    explicit Call(FunctionCallInfo info) : info_(info) {}

    FunctionCallInfo info() const { return info_; }
    Oid function() const { return info_->flinfo->fn_oid; }

    bool null(int i) const { return i >= info_->nargs || info_->args[i].isnull; }
    // Not for NULLs:
    Datum datum(int i) const { return info_->args[i].value; }
    bool boolean(int i) const { return DatumGetBool(datum(i)); }
    int32 int4(int i) const { return DatumGetInt32(datum(i)); }
    int64 int8(int i) const { return DatumGetInt64(datum(i)); }
    double float8(int i) const { return DatumGetFloat8(datum(i)); }
    TimestampTz timestamp(int i) const { return DatumGetTimestampTz(datum(i)); }
    core::Uuid uuid(int i) const { return uuid_of(datum(i)); }
    std::string_view text(int i) const { return text_of(datum(i)); }

    std::optional<Datum> maybe(int i) const {
        return null(i) ? std::nullopt : std::optional(datum(i));
    }
    std::optional<std::string_view> maybe_text(int i) const {
        return null(i) ? std::nullopt : std::optional(text(i));
    }
    std::optional<TimestampTz> maybe_timestamp(int i) const {
        return null(i) ? std::nullopt : std::optional(timestamp(i));
    }

    // An argument as a statement's parameter; the type is that of a NULL too.
    Param param(int i, Oid type) const {
        return null(i) ? null_param(type) : Param{type, datum(i)};
    }

    // Error 22004 naming the argument if it is NULL.
    void require(int i, std::string_view name) const;

    Datum return_null() const { return info_->isnull = true, 0; }

private:
    FunctionCallInfo info_;
};

// The rows of a set-returning function, kept by the executor.
class RowSink {
public:
    explicit RowSink(const Call& call);
    void put(std::span<const Param> values);
    void put(std::initializer_list<Param> values) { put(std::span(values.begin(), values.size())); }

private:
    ReturnSetInfo* result_;
};

// The role that owns a function, and with it the extension's tables.
Oid owner_of(Oid function);
std::string role_name(Oid role);
// Error 42501 if the current role may not SELECT from this relation of schema jobq.
void require_select(const char* relation);

} // namespace jobq::pg

// Defines the C function `name` of the install script; the body gets `const pg::Call& call`.
#define JOBQ_FUNCTION(name)                                                                        \
    static Datum name##_body(const ::jobq::pg::Call& call);                                        \
    extern "C" {                                                                                   \
    PG_FUNCTION_INFO_V1(name);                                                                     \
    PGDLLEXPORT Datum name(PG_FUNCTION_ARGS) {                                                     \
        return ::jobq::pg::enter([&] { return name##_body(::jobq::pg::Call(fcinfo)); });           \
    }                                                                                              \
    }                                                                                              \
    static Datum name##_body([[maybe_unused]] const ::jobq::pg::Call& call)
