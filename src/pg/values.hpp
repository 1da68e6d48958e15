// Values on their way in and out of PostgreSQL. Everything here is allocated in the current memory
// context and lives as long as that does.
#pragma once

#include <array>
#include <chrono>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/uuid.hpp"
#include "pg/error.hpp"

namespace jobq::pg {

// A value with its type and its NULL, as a statement takes it.
struct Param {
    Oid type;
    Datum value = 0;
    bool null = false;
};

Param null_param(Oid type);
Param param(bool value);
Param param(int32 value);
Param param(int64 value);
Param param(double value);
Param param(std::string_view value); // text
Param param(const core::Uuid& value);
Param timestamp_param(TimestampTz value);
Param interval_param(std::chrono::microseconds value); // in hours, minutes and seconds
Param jsonb_param(Datum value);
Param bytea_param(Datum value);

template <class T>
Param param(const std::optional<T>& value, Oid type_if_null) {
    return value ? param(*value) : null_param(type_if_null);
}
inline Param text_param(const std::optional<std::string_view>& value) {
    return param(value, TEXTOID);
}

// An array parameter of the element type given. nulls may be empty: none is null.
Param array_param(Oid element, std::span<Datum> values, std::span<bool> nulls = {});

// Collects the elements of an array parameter. capacity is the number of elements that will be
// added.
class ArrayBuilder {
public:
    ArrayBuilder(Oid element, std::size_t capacity);
    void add(const Param& value);
    void add_null() { add(null_param(element_)); }
    std::size_t size() const { return size_; }
    Param param() const;

private:
    Oid element_;
    Datum* values_;
    bool* nulls_;
    std::size_t size_ = 0, capacity_;
};

// The elements of an array, NULLs included. Not for arrays of more than one dimension: an error
// 2202E.
struct Elements {
    Datum* values;
    bool* nulls;
    std::size_t size;

    bool null(std::size_t i) const { return nulls[i]; }
};
Elements elements(Datum array, Oid element);

std::string_view text_of(Datum value);
std::string_view bytea_of(Datum value);
core::Uuid uuid_of(Datum value);

// at + by, as SQL's operator does it: months and days by the calendar. Error 22008 out of range.
TimestampTz add(TimestampTz at, Datum interval);
// Months count as 30 days, days as 24 hours.
std::chrono::microseconds length_of(Datum interval);

inline TimestampTz clock() { // never the transaction's time: see Leases in docs
    return GetCurrentTimestamp();
}

constexpr std::chrono::seconds postgres_epoch{946684800};
inline std::chrono::microseconds unix_time(TimestampTz at) {
    return std::chrono::microseconds(at) + postgres_epoch;
}
inline TimestampTz timestamp_of(std::chrono::microseconds unix) {
    return (unix - postgres_epoch).count();
}

// Text of the database as UTF-8, which is what goes out. Where the database knows no encoding, what
// is not UTF-8 is replaced.
std::string_view to_utf8(std::string_view text);

// Text from outside, in UTF-8 if it keeps to the rules, as text of the database: what is not valid,
// or has no place in the database's encoding, is replaced.
std::string from_utf8(std::string_view text);

// The value of a JSON text in UTF-8 as jsonb, or nothing where PostgreSQL would refuse it.
std::optional<Datum> try_jsonb(std::string_view text);

// The text form of a jsonb value.
std::string_view json_text(Datum jsonb);
// How long that is. A number of a few bytes can have 147,000 digits, so what is longer than `most`
// is not looked at to its end: then something over `most`.
std::size_t json_text_size(Datum jsonb, std::size_t most);

// One key of a JSON object, with the scalars as text; arrays and objects as JSON text.
struct JsonField {
    enum class Kind { null, string, number, boolean, object, array };
    std::string_view key;
    Kind kind;
    std::string_view text;
};
// The fields of a jsonb object in its order; nothing where it is not an object.
std::optional<std::vector<JsonField>> json_object(Datum jsonb);
// The elements of a jsonb array (keys empty); nothing where it is not an array.
std::optional<std::vector<JsonField>> json_array(Datum jsonb);

// What an object has under a key, as jsonb; nothing where it has not, or is no object.
std::optional<Datum> json_field(Datum jsonb, std::string_view key);
// Two objects as one; where both have a key, the second's value.
Datum joined(Datum jsonb, Datum with);
// Whether it is {}.
bool is_empty_object(Datum jsonb);

// The value of a field as jsonb.
Datum json_value(const JsonField& field);

// Error 22007 or 22008 where it is none.
TimestampTz parse_timestamp(std::string_view text);
Datum parse_interval(std::string_view text);

// As an SQL literal, in quotes.
std::string quoted(std::string_view text);

} // namespace jobq::pg
