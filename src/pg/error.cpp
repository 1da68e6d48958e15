#include "pg/error.hpp"

#include <new>

extern "C" {
#include "utils/memutils.h"
}

namespace jobq::pg {

namespace {

// What is raised where there is no memory to say anything else.
ErrorData memory_ran_out = [] {
    ErrorData error{};
    error.elevel = ERROR;
    error.sqlerrcode = ERRCODE_OUT_OF_MEMORY;
    error.message = const_cast<char*>("out of memory");
    return error;
}();

std::string text(const char* field) {
    return field == nullptr ? std::string() : std::string(field);
}

char* field(const std::string& text) {
    return text.empty() ? nullptr : pstrdup(text.c_str());
}

ErrorData* copy_of(const Error& error) {
    auto* out = static_cast<ErrorData*>(palloc0(sizeof(ErrorData)));
    out->elevel = ERROR;
    out->sqlerrcode = error.sqlstate;
    out->message = pstrdup(error.message.c_str());
    out->detail = field(error.detail);
    out->hint = field(error.hint);
    out->context = field(error.context);
    out->schema_name = field(error.schema);
    out->table_name = field(error.table);
    out->column_name = field(error.column);
    out->datatype_name = field(error.datatype);
    out->constraint_name = field(error.constraint);
    out->internalquery = field(error.internal_query);
    return out;
}

} // namespace

ErrorData* Error::copy() const noexcept {
    struct Frame {
        const Error* from;
        ErrorData* to;
    } frame{this, nullptr};
    auto call = [](void* g) {
        auto* f = static_cast<Frame*>(g);
        f->to = copy_of(*f->from);
    };
    if (detail::run(call, &frame))
        return frame.to;
    FlushErrorState();
    return &memory_ran_out;
}

namespace detail {

bool run(void (*call)(void*), void* argument) noexcept {
    MemoryContext context = CurrentMemoryContext;
    sigjmp_buf* exception_stack = PG_exception_stack;
    ErrorContextCallback* context_stack = error_context_stack;
    sigjmp_buf here;

    if (sigsetjmp(here, 0) == 0) {
        PG_exception_stack = &here;
        // The callers' context lines are added when enter() raises the error again, not twice.
        error_context_stack = nullptr;
        call(argument);
        PG_exception_stack = exception_stack;
        error_context_stack = context_stack;
        return true;
    }
    PG_exception_stack = exception_stack;
    error_context_stack = context_stack;
    MemoryContextSwitchTo(context);
    return false;
}

Error taken() {
    // CopyErrorData refuses to run in ErrorContext and may itself run out of memory.
    ErrorData* data = nullptr;
    bool copied = run([](void* out) { *static_cast<ErrorData**>(out) = CopyErrorData(); }, &data);
    FlushErrorState();
    if (!copied)
        return Error(ERRCODE_OUT_OF_MEMORY, "out of memory");

    Error error(data->sqlerrcode, text(data->message));
    error.detail = text(data->detail);
    error.hint = text(data->hint);
    error.context = text(data->context);
    error.schema = text(data->schema_name);
    error.table = text(data->table_name);
    error.column = text(data->column_name);
    error.datatype = text(data->datatype_name);
    error.constraint = text(data->constraint_name);
    error.internal_query = text(data->internalquery);
    FreeErrorData(data);
    return error;
}

void raise(ErrorData* error) {
    ThrowErrorData(error);
    pg_unreachable();
}

ErrorData* current_exception() noexcept {
    try {
        try {
            throw;
        } catch (const Error& error) {
            return error.copy();
        } catch (const std::bad_alloc&) {
            return &memory_ran_out;
        } catch (const std::exception& error) {
            return Error(ERRCODE_INTERNAL_ERROR, error.what()).copy();
        } catch (...) {
            return Error(ERRCODE_INTERNAL_ERROR, "unknown C++ exception").copy();
        }
    } catch (...) {
        return &memory_ran_out;
    }
}

} // namespace detail

} // namespace jobq::pg
