// jobq.push_row: a trigger that pushes the rows of a table.

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "pg/call.hpp"
#include "queue/checks.hpp"
#include "queue/push.hpp"

extern "C" {
#include "commands/trigger.h"
#include "executor/tuptable.h"
#include "nodes/makefuncs.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/tuplestore.h"
}

namespace {

using namespace jobq;
using pg::Error;

// How the rows of one table become jobs: the arguments of the trigger, checked against its columns.
struct Mapping {
    std::vector<int> columns;            // what the payload is made of
    int type = 0, group = 0, unique = 0; // columns that give these; 0: none does
    std::optional<std::string_view> fixed_type;
};

constexpr std::array<std::string_view, 6> trigger_keys{
    "columns", "type_column", "group_column", "unique_column", "delay", "priority"};

// A virtual column has no value when a trigger fires.
bool is_virtual([[maybe_unused]] Form_pg_attribute attribute) {
#if PG_VERSION_NUM >= 180000
    return attribute->attgenerated == ATTRIBUTE_GENERATED_VIRTUAL;
#else
    return false;
#endif
}

int column_named(TupleDesc table, std::string_view name, std::string_view key) {
    std::string terminated(name);
    int column = pg::guarded([&] { return SPI_fnumber(table, terminated.c_str()); });
    if (column <= 0)
        throw Error(ERRCODE_UNDEFINED_COLUMN,
                    fmt::format("column \"{}\" named in options.{} does not exist", name, key));
    if (is_virtual(TupleDescAttr(table, column - 1)))
        throw Error(ERRCODE_FEATURE_NOT_SUPPORTED,
                    fmt::format("column \"{}\" named in options.{} is a virtual generated column",
                                name, key))
            .with_hint("Make it STORED, or compute it where the job is done.");
    return column;
}

std::vector<int> all_columns(TupleDesc table) {
    std::vector<int> columns;
    for (int i = 1; i <= table->natts; ++i)
        if (auto attribute = TupleDescAttr(table, i - 1);
            !attribute->attisdropped && !is_virtual(attribute))
            columns.push_back(i);
    return columns;
}

// to_jsonb's and jsonb_build_object's idea of a value needs the types of the arguments, which they
// look up in the expression that calls them.
class RowToJson {
public:
    RowToJson(TupleDesc table, std::span<const int> columns) {
        pg::guarded([&] {
            List* arguments = NIL;
            for (int column : columns) {
                Form_pg_attribute attribute = TupleDescAttr(table, column - 1);
                arguments = lappend(arguments, makeNullConst(TEXTOID, -1, InvalidOid));
                arguments =
                    lappend(arguments, makeNullConst(attribute->atttypid, attribute->atttypmod,
                                                     attribute->attcollation));
            }
            fmgr_info(F_JSONB_BUILD_OBJECT_ANY, &function_);
            fmgr_info_set_expr(
                reinterpret_cast<Node*>(makeFuncExpr(F_JSONB_BUILD_OBJECT_ANY, JSONBOID, arguments,
                                                     InvalidOid, InvalidOid, COERCE_EXPLICIT_CALL)),
                &function_);
            auto count = static_cast<short>(2 * columns.size());
            call_ = static_cast<FunctionCallInfo>(palloc0(SizeForFunctionCallInfo(count)));
            InitFunctionCallInfoData(*call_, &function_, count, InvalidOid, nullptr, nullptr);
            for (std::size_t i = 0; i < columns.size(); ++i) {
                const char* name = NameStr(TupleDescAttr(table, columns[i] - 1)->attname);
                call_->args[2 * i].value = CStringGetTextDatum(name);
            }
        });
    }

    Datum operator()(TupleTableSlot* row, std::span<const int> columns) {
        return pg::guarded([&] {
            for (std::size_t i = 0; i < columns.size(); ++i) {
                auto& argument = call_->args[2 * i + 1];
                argument.value = slot_getattr(row, columns[i], &argument.isnull);
            }
            call_->isnull = false;
            return FunctionCallInvoke(call_);
        });
    }

private:
    FmgrInfo function_;
    FunctionCallInfo call_;
};

// A column as text, by its type's output function; nothing for NULL.
std::optional<std::string_view> column_text(TupleTableSlot* row, int column) {
    if (column == 0)
        return std::nullopt;
    const char* text = pg::guarded([&]() -> const char* {
        bool null;
        Datum value = slot_getattr(row, column, &null);
        if (null)
            return nullptr;
        Oid output;
        bool varlena;
        getTypeOutputInfo(TupleDescAttr(row->tts_tupleDescriptor, column - 1)->atttypid, &output,
                          &varlena);
        return OidOutputFunctionCall(output, value);
    });
    return text == nullptr ? std::nullopt : std::optional<std::string_view>(text);
}

// Reads the options that only a trigger has. delay and priority are the push settings'.
Mapping read_mapping(TupleDesc table, const std::vector<pg::JsonField>& options,
                     std::optional<Datum>& delay, int32& priority) {
    using Kind = pg::JsonField::Kind;
    Mapping mapping;
    mapping.columns = all_columns(table);
    for (const auto& field : options) {
        auto column = [&] {
            if (field.kind != Kind::string)
                throw Error(ERRCODE_INVALID_PARAMETER_VALUE,
                            fmt::format("options.{} must be the name of a column", field.key));
            return column_named(table, field.text, field.key);
        };
        if (field.key == "columns") {
            auto names =
                field.kind == Kind::array ? pg::json_array(pg::json_value(field)) : std::nullopt;
            if (!names || names->empty() ||
                std::any_of(names->begin(), names->end(),
                            [](const auto& n) { return n.kind != Kind::string; }))
                throw Error(ERRCODE_INVALID_PARAMETER_VALUE,
                            "options.columns must be an array of column names");
            mapping.columns.clear();
            for (const auto& name : *names)
                mapping.columns.push_back(column_named(table, name.text, field.key));
        } else if (field.key == "type_column") {
            mapping.type = column();
        } else if (field.key == "group_column") {
            mapping.group = column();
        } else if (field.key == "unique_column") {
            mapping.unique = column();
        } else if (field.key == "delay") {
            delay = pg::parse_interval(field.text);
        } else if (field.key == "priority") {
            auto value = field.kind == Kind::number ? queue::parse_int(field.text) : std::nullopt;
            if (!value)
                throw Error(ERRCODE_INVALID_PARAMETER_VALUE,
                            "options.priority must be a whole number");
            priority = *value;
        }
    }
    return mapping;
}

// The rows of the statement or the one of the row trigger, each handed to take(slot).
template <class F>
void each_row(TriggerData* trigger, F&& take) {
    TupleDesc table = RelationGetDescr(trigger->tg_relation);
    bool deleted = TRIGGER_FIRED_BY_DELETE(trigger->tg_event);
    if (TRIGGER_FIRED_FOR_ROW(trigger->tg_event)) {
        take(TRIGGER_FIRED_BY_UPDATE(trigger->tg_event) ? trigger->tg_newslot
                                                        : trigger->tg_trigslot);
        return;
    }
    Tuplestorestate* rows = deleted ? trigger->tg_oldtable : trigger->tg_newtable;
    if (rows == nullptr)
        throw Error(
            ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED,
            fmt::format("trigger \"{}\" needs a transition table", trigger->tg_trigger->tgname))
            .with_hint(deleted ? "Create it with REFERENCING OLD TABLE AS gone, or FOR EACH ROW."
                               : "Create it with REFERENCING NEW TABLE AS made, or FOR EACH ROW.");
    TupleTableSlot* slot = pg::guarded([&] {
        tuplestore_rescan(rows);
        return MakeSingleTupleTableSlot(table, &TTSOpsMinimalTuple);
    });
    while (pg::guarded([&] { return tuplestore_gettupleslot(rows, true, false, slot); }))
        take(slot);
    pg::guarded([&] { ExecDropSingleTupleTableSlot(slot); });
}

} // namespace

JOBQ_FUNCTION(jobq_push_row) {
    if (!CALLED_AS_TRIGGER(call.info()))
        throw Error(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED,
                    "jobq.push_row must be called as a trigger");
    auto* trigger = reinterpret_cast<TriggerData*>(call.info()->context);
    if (!TRIGGER_FIRED_AFTER(trigger->tg_event))
        throw Error(
            ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED,
            fmt::format("trigger \"{}\" must be an AFTER trigger", trigger->tg_trigger->tgname))
            .with_hint("A BEFORE trigger does not know yet what will be written.");
    if (TRIGGER_FIRED_BY_TRUNCATE(trigger->tg_event))
        throw Error(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED,
                    "jobq.push_row does not work for TRUNCATE");
    std::span arguments(trigger->tg_trigger->tgargs,
                        static_cast<std::size_t>(trigger->tg_trigger->tgnargs));
    if (arguments.empty() || arguments.size() > 3)
        throw Error(
            ERRCODE_INVALID_PARAMETER_VALUE,
            fmt::format("trigger \"{}\" needs one to three arguments", trigger->tg_trigger->tgname))
            .with_hint("They are the queue, the type and the options: jobq.push_row('queue', "
                       "'type', '{...}').");

    TupleDesc table = RelationGetDescr(trigger->tg_relation);
    std::optional<Datum> options, delay;
    int32 priority = 0;
    std::vector<pg::JsonField> fields;
    if (arguments.size() == 3) {
        options = pg::guarded(
            [&] { return DirectFunctionCall1(jsonb_in, CStringGetDatum(arguments[2])); });
        fields = pg::json_object(*options).value_or(std::vector<pg::JsonField>());
    }
    Mapping mapping = read_mapping(table, fields, delay, priority);
    if (arguments.size() >= 2 && arguments[1][0] != '\0')
        mapping.fixed_type = arguments[1];
    auto settings = queue::push_settings(arguments[0], std::nullopt, delay, priority);
    queue::apply_options(settings, options, trigger_keys);

    RowToJson to_json(table, mapping.columns);
    std::vector<queue::NewJob> jobs;
    each_row(trigger, [&](TupleTableSlot* row) {
        auto type = column_text(row, mapping.type);
        jobs.push_back({to_json(row, mapping.columns),
                        type ? type : mapping.fixed_type,
                        column_text(row, mapping.group),
                        column_text(row, mapping.unique),
                        {}});
    });
    if (!jobs.empty())
        queue::push(settings, std::move(jobs), pg::owner_of(call.function()));
    return PointerGetDatum(nullptr);
}
