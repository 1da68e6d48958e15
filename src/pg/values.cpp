#include <algorithm>
#include <cstring>

#include "core/text.hpp"
#include "pg/values.hpp"
#include "pg/xact.hpp"

extern "C" {
#include "mb/pg_wchar.h"
#include "utils/json.h"
#include "utils/lsyscache.h"
#include "utils/uuid.h"
}

namespace jobq::pg {

Param null_param(Oid type) {
    return {type, 0, true};
}
Param param(bool value) {
    return {BOOLOID, BoolGetDatum(value)};
}
Param param(int32 value) {
    return {INT4OID, Int32GetDatum(value)};
}
Param param(int64 value) {
    return {INT8OID, Int64GetDatum(value)};
}
Param param(double value) {
    return {FLOAT8OID, Float8GetDatum(value)};
}
Param param(std::string_view value) {
    return {TEXTOID, guarded([&] {
                return PointerGetDatum(
                    cstring_to_text_with_len(value.data(), static_cast<int>(value.size())));
            })};
}
Param param(const core::Uuid& value) {
    auto* copy = static_cast<pg_uuid_t*>(guarded([] { return palloc(sizeof(pg_uuid_t)); }));
    static_assert(sizeof(value.bytes) == sizeof(copy->data));
    std::memcpy(copy->data, value.bytes.data(), sizeof(copy->data));
    return {UUIDOID, UUIDPGetDatum(copy)};
}
Param timestamp_param(TimestampTz value) {
    return {TIMESTAMPTZOID, TimestampTzGetDatum(value)};
}

Param interval_param(std::chrono::microseconds value) {
    return guarded([&] {
        auto* interval = static_cast<Interval*>(palloc0(sizeof(Interval)));
        interval->time = value.count();
        return Param{INTERVALOID, IntervalPGetDatum(interval)};
    });
}
Param jsonb_param(Datum value) {
    return {JSONBOID, value};
}
Param bytea_param(Datum value) {
    return {BYTEAOID, value};
}

Param array_param(Oid element, std::span<Datum> values, std::span<bool> nulls) {
    Datum array = guarded([&] {
        int16 length;
        bool by_value;
        char align;
        get_typlenbyvalalign(element, &length, &by_value, &align);
        int dimensions[1] = {static_cast<int>(values.size())};
        int lower_bounds[1] = {1};
        return PointerGetDatum(
            construct_md_array(values.data(), nulls.empty() ? nullptr : nulls.data(), 1, dimensions,
                               lower_bounds, element, length, by_value, align));
    });
    Oid type = guarded([&] { return get_array_type(element); });
    return {type, array};
}

ArrayBuilder::ArrayBuilder(Oid element, std::size_t capacity)
    : element_(element), capacity_(capacity) {
    guarded([this] {
        values_ =
            static_cast<Datum*>(palloc_extended(sizeof(Datum) * (capacity_ + 1), MCXT_ALLOC_HUGE));
        nulls_ =
            static_cast<bool*>(palloc_extended(sizeof(bool) * (capacity_ + 1), MCXT_ALLOC_HUGE));
    });
}

void ArrayBuilder::add(const Param& value) {
    Assert(size_ < capacity_);
    values_[size_] = value.value;
    nulls_[size_] = value.null;
    ++size_;
}

Param ArrayBuilder::param() const {
    return array_param(element_, {values_, size_}, {nulls_, size_});
}

Elements elements(Datum array, Oid element) {
    return guarded([&] {
        ArrayType* detoasted = DatumGetArrayTypeP(array);
        if (ARR_NDIM(detoasted) > 1)
            ereport(ERROR, errcode(ERRCODE_ARRAY_SUBSCRIPT_ERROR),
                    errmsg("array must have one dimension"));
        int16 length;
        bool by_value;
        char align;
        get_typlenbyvalalign(element, &length, &by_value, &align);
        Elements out{};
        int size;
        deconstruct_array(detoasted, element, length, by_value, align, &out.values, &out.nulls,
                          &size);
        out.size = static_cast<std::size_t>(size);
        return out;
    });
}

std::string_view text_of(Datum value) {
    return guarded([&] {
        text* detoasted = DatumGetTextPP(value);
        return std::string_view(VARDATA_ANY(detoasted), VARSIZE_ANY_EXHDR(detoasted));
    });
}

std::string_view bytea_of(Datum value) {
    return guarded([&] {
        bytea* detoasted = DatumGetByteaPP(value);
        return std::string_view(VARDATA_ANY(detoasted), VARSIZE_ANY_EXHDR(detoasted));
    });
}

core::Uuid uuid_of(Datum value) {
    core::Uuid out;
    std::memcpy(out.bytes.data(), DatumGetUUIDP(value)->data, out.bytes.size());
    return out;
}

TimestampTz add(TimestampTz at, Datum interval) {
    return guarded([&] {
        return DatumGetTimestampTz(
            DirectFunctionCall2(timestamptz_pl_interval, TimestampTzGetDatum(at), interval));
    });
}

std::chrono::microseconds length_of(Datum interval) {
    const Interval* value = DatumGetIntervalP(interval);
    return std::chrono::microseconds(value->time) +
           std::chrono::hours(24) * (static_cast<int64>(value->month) * 30 + value->day);
}

std::string_view to_utf8(std::string_view text) {
    // ASCII is the same in every encoding of a server, also in those that have no conversion.
    if (GetDatabaseEncoding() == PG_UTF8 ||
        std::none_of(text.begin(), text.end(), [](char c) { return IS_HIGHBIT_SET(c); }))
        return text;
    if (GetDatabaseEncoding() == PG_SQL_ASCII && !core::valid_utf8(text)) {
        std::string valid = core::printable(text);
        return guarded(
            [&] { return std::string_view(pnstrdup(valid.data(), valid.size()), valid.size()); });
    }
    return guarded([&] {
        char* converted = pg_server_to_any(text.data(), static_cast<int>(text.size()), PG_UTF8);
        if (converted == text.data())
            return text;
        return std::string_view(converted);
    });
}

std::string from_utf8(std::string_view text) {
    std::string valid = core::printable(text);
    if (GetDatabaseEncoding() == PG_UTF8)
        return valid;
    auto converted = attempt([&] {
        return guarded([&] {
            return std::string_view(
                pg_any_to_server(valid.data(), static_cast<int>(valid.size()), PG_UTF8));
        });
    });
    if (converted)
        return std::string(*converted);
    // A character that the database's encoding lacks, or an encoding that knows no characters.
    for (char& c : valid)
        if (IS_HIGHBIT_SET(c))
            c = '?';
    return valid;
}

std::optional<Datum> try_jsonb(std::string_view text) {
    if (!core::valid_utf8(text) || text.find('\0') != std::string_view::npos)
        return std::nullopt;
    return attempt([&] {
        return guarded([&] {
            char* terminated = pnstrdup(text.data(), text.size());
            char* converted = pg_any_to_server(terminated, static_cast<int>(text.size()), PG_UTF8);
            return DirectFunctionCall1(jsonb_in, CStringGetDatum(converted));
        });
    });
}

std::string_view json_text(Datum jsonb) {
    return guarded([&] {
        Jsonb* value = DatumGetJsonbP(jsonb);
        return std::string_view(JsonbToCString(nullptr, &value->root, VARSIZE(value)));
    });
}

namespace {

// Of a string as JSON, in its quotes.
std::size_t quoted_size(const char* text, int length) {
    std::size_t size = 2 + static_cast<std::size_t>(length);
    for (int i = 0; i < length; ++i)
        if (text[i] == '"' || text[i] == '\\')
            size += 1;
        else if (static_cast<unsigned char>(text[i]) < ' ')
            size += std::strchr("\b\f\n\r\t", text[i]) != nullptr ? 1 : 5;
    return size;
}

// Called guarded.
std::size_t scalar_size(const JsonbValue& value) {
    switch (value.type) {
    case jbvString:
        return quoted_size(value.val.string.val, value.val.string.len);
    case jbvNumeric: {
        char* text =
            DatumGetCString(DirectFunctionCall1(numeric_out, NumericGetDatum(value.val.numeric)));
        std::size_t size = std::strlen(text);
        pfree(text);
        return size;
    }
    case jbvBool:
        return value.val.boolean ? 4 : 5;
    default:
        return 4;
    }
}

} // namespace

std::size_t json_text_size(Datum jsonb, std::size_t most) {
    return guarded([&] {
        Jsonb* root = DatumGetJsonbP(jsonb);
        JsonbIterator* iterator = JsonbIteratorInit(&root->root);
        JsonbValue value;
        JsonbIteratorToken token;
        std::size_t size = 0;
        bool first = true; // nothing before it that a ", " would part it from
        while (size <= most && (token = JsonbIteratorNext(&iterator, &value, false)) != WJB_DONE) {
            bool begins = token == WJB_BEGIN_ARRAY || token == WJB_BEGIN_OBJECT;
            bool ends = token == WJB_END_ARRAY || token == WJB_END_OBJECT;
            size += first || ends ? 0 : 2;
            if (begins)
                size += token == WJB_BEGIN_ARRAY && value.val.array.rawScalar ? 0 : 2;
            else if (!ends)
                size += scalar_size(value) + (token == WJB_KEY ? 2 : 0);
            first = begins || token == WJB_KEY;
        }
        return size;
    });
}

namespace {

JsonField field_of(std::string_view key, const JsonbValue& value) {
    using Kind = JsonField::Kind;
    switch (value.type) {
    case jbvNull:
        return {key, Kind::null, {}};
    case jbvString:
        return {key,
                Kind::string,
                {value.val.string.val, static_cast<std::size_t>(value.val.string.len)}};
    case jbvNumeric: {
        char* text = guarded([&] {
            return DatumGetCString(
                DirectFunctionCall1(numeric_out, NumericGetDatum(value.val.numeric)));
        });
        return {key, Kind::number, text};
    }
    case jbvBool:
        return {key, Kind::boolean, value.val.boolean ? "true" : "false"};
    default: {
        bool array = (value.val.binary.data->header & JB_FARRAY) != 0;
        char* text = guarded(
            [&] { return JsonbToCString(nullptr, value.val.binary.data, value.val.binary.len); });
        return {key, array ? Kind::array : Kind::object, text};
    }
    }
}

std::vector<JsonField> fields(JsonbContainer* root) {
    std::vector<JsonField> out;
    JsonbIterator* iterator = guarded([&] { return JsonbIteratorInit(root); });
    std::string_view key;
    for (;;) {
        JsonbValue value;
        JsonbIteratorToken token =
            guarded([&] { return JsonbIteratorNext(&iterator, &value, true); });
        if (token == WJB_KEY)
            key = {value.val.string.val, static_cast<std::size_t>(value.val.string.len)};
        else if (token == WJB_VALUE || token == WJB_ELEM)
            out.push_back(field_of(key, value));
        else if (token == WJB_DONE)
            return out;
    }
}

} // namespace

std::optional<std::vector<JsonField>> json_object(Datum jsonb) {
    Jsonb* value = guarded([&] { return DatumGetJsonbP(jsonb); });
    if (!JB_ROOT_IS_OBJECT(value))
        return std::nullopt;
    return fields(&value->root);
}

Datum joined(Datum jsonb, Datum with) {
    return guarded([&] { return DirectFunctionCall2(jsonb_concat, jsonb, with); });
}

bool is_empty_object(Datum jsonb) {
    return guarded([&] {
        Jsonb* value = DatumGetJsonbP(jsonb);
        return JB_ROOT_IS_OBJECT(value) && JB_ROOT_COUNT(value) == 0;
    });
}

std::optional<Datum> json_field(Datum jsonb, std::string_view key) {
    Jsonb* found = guarded([&]() -> Jsonb* {
        Jsonb* value = DatumGetJsonbP(jsonb);
        if (!JB_ROOT_IS_OBJECT(value))
            return nullptr;
        JsonbValue* field = getKeyJsonValueFromContainer(&value->root, key.data(),
                                                         static_cast<int>(key.size()), nullptr);
        return field == nullptr ? nullptr : JsonbValueToJsonb(field);
    });
    return found == nullptr ? std::nullopt : std::optional(JsonbPGetDatum(found));
}

std::optional<std::vector<JsonField>> json_array(Datum jsonb) {
    Jsonb* value = guarded([&] { return DatumGetJsonbP(jsonb); });
    if (!JB_ROOT_IS_ARRAY(value) || JB_ROOT_IS_SCALAR(value))
        return std::nullopt;
    return fields(&value->root);
}

namespace {
char* terminated(std::string_view text) {
    return guarded([&] { return pnstrdup(text.data(), text.size()); });
}
} // namespace

Datum json_value(const JsonField& field) {
    char* text = terminated(field.text);
    return guarded([&] {
        if (field.kind == JsonField::Kind::string) {
            StringInfoData json;
            initStringInfo(&json);
            escape_json(&json, text);
            text = json.data;
        }
        return DirectFunctionCall1(
            jsonb_in, CStringGetDatum(field.kind == JsonField::Kind::null ? "null" : text));
    });
}

TimestampTz parse_timestamp(std::string_view text) {
    char* input = terminated(text);
    return guarded([&] {
        return DatumGetTimestampTz(DirectFunctionCall3(timestamptz_in, CStringGetDatum(input),
                                                       ObjectIdGetDatum(InvalidOid),
                                                       Int32GetDatum(-1)));
    });
}

Datum parse_interval(std::string_view text) {
    char* input = terminated(text);
    return guarded([&] {
        return DirectFunctionCall3(interval_in, CStringGetDatum(input),
                                   ObjectIdGetDatum(InvalidOid), Int32GetDatum(-1));
    });
}

std::string quoted(std::string_view text) {
    char* input = terminated(text);
    return guarded([&] { return quote_literal_cstr(input); });
}

} // namespace jobq::pg
