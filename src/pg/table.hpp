// Rows of jobq's tables, read by index and written without the executor: for what happens once a
// job, where planning and running a statement would cost several times what it does. As COPY and
// logical replication write: indexes are kept, triggers do not fire.
//
// Everything here lives in a transaction, and in the memory context that was current when it began.
#pragma once

#include <array>
#include <initializer_list>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "pg/values.hpp"

extern "C" {
#include "access/genam.h"
#include "access/relscan.h"
#include "access/skey.h"
#include "access/xlogdefs.h"
#include "executor/tuptable.h"
#include "nodes/execnodes.h"
#include "utils/rel.h"
#include "utils/snapshot.h"
}

namespace jobq::pg {

// What a READ COMMITTED statement that begins now would see, at every isolation level: all that is
// committed, and what its transaction did.
class FreshSnapshot {
public:
    FreshSnapshot();
    ~FreshSnapshot();
    FreshSnapshot(const FreshSnapshot&) = delete;
    FreshSnapshot& operator=(const FreshSnapshot&) = delete;

    Snapshot get() const { return snapshot_; }
    // Whether both see the same of what others did: no transaction that writes has ended between
    // them. What this transaction did in between does not count.
    bool same(const FreshSnapshot& other) const {
        return completions_ != 0 && completions_ == other.completions_;
    }

private:
    Snapshot snapshot_;
    uint64 completions_; // transactions that had ended, as PostgreSQL counts them
    int exceptions_;
};

// A row's columns, by number from 1, on their way into a table. Unset ones are NULL.
template <std::size_t columns>
class Values {
public:
    Values() { nulls_.fill(true); }
    void set(std::size_t column, const Param& value) { set(column, value.value, value.null); }
    void set(std::size_t column, Datum value, bool null) {
        values_[column - 1] = value;
        nulls_[column - 1] = null;
    }
    std::span<const Datum> values() const { return values_; }
    std::span<const bool> nulls() const { return nulls_; }

private:
    std::array<Datum, columns> values_{};
    std::array<bool, columns> nulls_{};
};

// A row that was read, or one that was made for a table.
class Tuple {
public:
    Tuple() = default;
    Tuple(HeapTuple tuple, TupleDesc columns) : tuple_(tuple), columns_(columns) {}
    // A row in a slot, which remembers what was taken out of the tuple.
    Tuple(HeapTuple tuple, TupleTableSlot* slot)
        : tuple_(tuple), columns_(slot->tts_tupleDescriptor), slot_(slot) {}

    bool null(int column) const { return heap_attisnull(tuple_, column, columns_); }
    // As many of its first columns as there is room for.
    void take(std::span<Datum> values, std::span<bool> nulls) const;
    Datum datum(int column) const { return get(column).value_or(0); } // 0 where NULL
    std::optional<Datum> maybe(int column) const { return get(column); }

    bool boolean(int column) const { return DatumGetBool(datum(column)); }
    int16 int2(int column) const { return DatumGetInt16(datum(column)); }
    int32 int4(int column) const { return DatumGetInt32(datum(column)); }
    int64 int8(int column) const { return DatumGetInt64(datum(column)); }
    TimestampTz timestamp(int column) const { return DatumGetTimestampTz(datum(column)); }
    core::Uuid uuid(int column) const { return uuid_of(datum(column)); }
    std::string_view text(int column) const { return text_of(datum(column)); } // not for NULL
    std::optional<std::string_view> maybe_text(int column) const {
        auto value = get(column);
        return value ? std::optional(text_of(*value)) : std::nullopt;
    }
    Param param(int column, Oid type) const {
        auto value = get(column);
        return value ? Param{type, *value} : null_param(type);
    }

    // Memory of its own, for a row of a Scan that is to outlive it.
    Tuple copy() const;
    // The same for one that is to outlive the transaction: nothing of it stays in the table.
    Tuple keep(MemoryContext memory) const;
    // Whether this version of the row is of the running transaction.
    bool written_by_us() const;
    // Once the WAL is flushed up to here, no crash undoes the commit that made this version of the
    // row. 0: it is so already.
    XLogRecPtr durable_at() const;

    HeapTuple raw() const { return tuple_; }
    ItemPointerData place() const { return tuple_->t_self; }

private:
    std::optional<Datum> get(int column) const {
        bool null;
        Datum value = slot_ != nullptr ? slot_getattr(slot_, column, &null)
                                       : heap_getattr(tuple_, column, columns_, &null);
        return null ? std::nullopt : std::optional(value);
    }

    HeapTuple tuple_ = nullptr;
    TupleDesc columns_ = nullptr;
    TupleTableSlot* slot_ = nullptr;
};

enum class Written {
    done,
    locked,  // somebody else has it locked, or is writing it
    changed, // somebody else has changed or deleted it since the snapshot
};
enum class OnBusy { wait, skip };

class Table {
public:
    enum class For { reading, writing };
    // A table of schema jobq. Locks it (ACCESS SHARE or ROW EXCLUSIVE) until the end of the
    // transaction. Error 42P01 where there is none, 25006 for writing in a read-only transaction.
    explicit Table(const char* name, For use = For::writing);
    ~Table();
    Table(const Table&) = delete;
    Table& operator=(const Table&) = delete;

    TupleDesc columns() const { return RelationGetDescr(relation_); }
    Relation relation() const { return relation_; }

    // A row for this table: values for its first columns, or all.
    template <std::size_t n>
    Tuple make(const Values<n>& values) {
        return make(values.values(), values.nulls());
    }
    Tuple make(std::span<const Datum> values, std::span<const bool> nulls);

    // Error 23505 as an INSERT's.
    void insert(std::span<const Tuple> rows);
    // Replaces some columns of a row that was read. Returns the new row where it was done.
    struct Change {
        int column;
        Param value;
    };
    std::optional<Tuple> update(const Tuple& row, std::initializer_list<Change> changes);
    Written remove(const Tuple& row, OnBusy busy);

    // One of its indexes. Called guarded; error 42704 where there is none.
    Oid index(const char* name) const;

private:
    // Which rows an index has.
    struct Shape {
        Oid oid;
        enum class Rows { all, where_null, where_not_null, where_true, where_complex } rows;
        AttrNumber column; // of the condition, where it is about one
        bool simple;       // columns only
    };
    struct Index {
        Shape shape;
        Relation relation; // null until a row is for it
        IndexInfo* info;
    };
    class Shapes; // those that this process has seen
    static Shape shape_of(Relation index, const IndexInfo* info);
    static void open(Index& index); // unless it is
    void open_indexes();
    void index_rows(std::span<const Tuple> rows);
    void index_row(Index& index, HeapTuple tuple);
    bool in_index(Index& index, HeapTuple tuple);

    Relation relation_;
    int exceptions_;
    bool indexes_open_ = false;
    std::vector<Index> indexes_;
    // For indexes on expressions and complex conditions, which somebody may have added.
    EState* executor_ = nullptr;
    TupleTableSlot* slot_ = nullptr;
};

// A condition on a column of an index; the columns count from 1 in the index.
struct Key {
    int column;
    enum class Is : StrategyNumber {
        equal = BTEqualStrategyNumber,
        after = BTGreaterStrategyNumber,
    } is;
    Param value;
};

// The rows that an index leads to, in its order, as the snapshot sees them.
class Scan {
public:
    // from: two further conditions as one, (column, column + 1) >= (first, second).
    struct From {
        int column;
        Param first, second;
    };
    Scan(const Table& table, const char* index, const FreshSnapshot& snapshot,
         std::span<const Key> keys, std::optional<From> from = {});
    Scan(const Table& table, const char* index, const FreshSnapshot& snapshot,
         std::initializer_list<Key> keys)
        : Scan(table, index, snapshot, std::span(keys.begin(), keys.size())) {}
    ~Scan();
    Scan(const Scan&) = delete;
    Scan& operator=(const Scan&) = delete;

    // Begins again, with conditions on the same columns.
    void start(std::span<const Key> keys, std::optional<From> from = {});
    void start(std::initializer_list<Key> keys) { start(std::span(keys.begin(), keys.size())); }
    // From then on as this snapshot sees it.
    void look_through(const FreshSnapshot& snapshot) { scan_->xs_snapshot = snapshot.get(); }
    // From then on whatever is there, dead rows too.
    void look_at_all();
    bool visible(const FreshSnapshot& snapshot) const; // the row that it is at
    // Goes to the next row; false: there is none.
    bool next();
    // The row it is at, until it goes on.
    Tuple row() const { return {tuple_, slot_}; }

private:
    int exceptions_;
    Relation index_;
    IndexScanDesc scan_;
    TupleTableSlot* slot_;
    HeapTuple tuple_ = nullptr;
    std::array<ScanKeyData, 2> members_;
};

// A value of an enum of schema jobq.
Oid enum_value(const char* type, const char* label);

// The next value of a sequence of schema jobq. No privilege is asked for.
int64 next_value(const char* sequence);

} // namespace jobq::pg
