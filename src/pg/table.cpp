#include <algorithm>
#include <cstring>
#include <exception>
#include <unordered_map>

#include "pg/table.hpp"

extern "C" {
#include "access/heapam.h"
#include "access/heaptoast.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/transam.h"
#include "access/xact.h"
#include "catalog/index.h"
#include "catalog/namespace.h"
#include "catalog/pg_enum.h"
#include "commands/sequence.h"
#include "executor/executor.h"
#include "nodes/primnodes.h"
#include "tcop/utility.h"
#include "utils/fmgroids.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"
}

namespace jobq::pg {

namespace {

Oid relation_oid(const char* name) {
    Oid oid = get_relname_relid(name, get_namespace_oid("jobq", false));
    if (!OidIsValid(oid))
        ereport(ERROR, errcode(ERRCODE_UNDEFINED_TABLE),
                errmsg("relation \"jobq.%s\" does not exist", name));
    return oid;
}

// What raised the error also cleans up: an abort, of which nothing may be undone before.
bool unwinding(int exceptions) {
    return std::uncaught_exceptions() != exceptions;
}

// A lock of the running transaction's own does not keep it from writing the row, but for that
// PostgreSQL wants to be allowed to wait.
bool locked_by_us(const HeapTuple& row) {
    HeapTupleHeader header = row->t_data;
    return (header->t_infomask & (HEAP_XMAX_INVALID | HEAP_XMAX_IS_MULTI)) == 0 &&
           HEAP_XMAX_IS_LOCKED_ONLY(header->t_infomask) &&
           TransactionIdIsCurrentTransactionId(HeapTupleHeaderGetRawXmax(header));
}

bool changed_under_us(TM_Result result) {
    switch (result) {
    case TM_Updated:
    case TM_Deleted:
    case TM_SelfModified:
    case TM_Invisible:
        return true;
    default:
        return false;
    }
}

} // namespace

FreshSnapshot::FreshSnapshot() : exceptions_(std::uncaught_exceptions()) {
    snapshot_ = guarded([&] {
        CommandCounterIncrement();
        Snapshot latest = GetLatestSnapshot();
        completions_ = latest->snapXactCompletionCount; // a copy does not have it
        PushActiveSnapshot(latest);
        return GetActiveSnapshot();
    });
}

FreshSnapshot::~FreshSnapshot() {
    if (!unwinding(exceptions_))
        PopActiveSnapshot();
}

Table::Table(const char* name, For use) : exceptions_(std::uncaught_exceptions()) {
    relation_ = guarded([&] {
        if (use == For::writing)
            PreventCommandIfReadOnly("this function");
        return table_open(relation_oid(name),
                          use == For::reading ? AccessShareLock : RowExclusiveLock);
    });
}

Table::~Table() {
    if (unwinding(exceptions_))
        return;
    for (Index& index : indexes_) {
        if (index.relation == nullptr)
            continue;
#if PG_VERSION_NUM >= 170000
        index_insert_cleanup(index.relation, index.info);
#endif
        index_close(index.relation, NoLock);
    }
    if (slot_ != nullptr)
        ExecDropSingleTupleTableSlot(slot_);
    if (executor_ != nullptr)
        FreeExecutorState(executor_);
    table_close(relation_, NoLock);
}

Tuple Tuple::copy() const {
    return guarded([&] { return Tuple(heap_copytuple(tuple_), columns_); });
}

Tuple Tuple::keep(MemoryContext memory) const {
    return guarded([&] {
        MemoryContext before = MemoryContextSwitchTo(memory);
        HeapTuple kept = HeapTupleHasExternal(tuple_) ? toast_flatten_tuple(tuple_, columns_)
                                                      : heap_copytuple(tuple_);
        MemoryContextSwitchTo(before);
        return Tuple(kept, columns_);
    });
}

void Tuple::take(std::span<Datum> values, std::span<bool> nulls) const {
    Datum all[MaxHeapAttributeNumber];
    bool all_nulls[MaxHeapAttributeNumber];
    auto n = std::min(static_cast<int>(values.size()), columns_->natts);
    if (slot_ == nullptr)
        heap_deform_tuple(tuple_, columns_, all, all_nulls);
    else
        slot_getsomeattrs(slot_, n);
    std::copy_n(slot_ == nullptr ? all : slot_->tts_values, n, values.data());
    std::copy_n(slot_ == nullptr ? all_nulls : slot_->tts_isnull, n, nulls.data());
}

bool Tuple::written_by_us() const {
    return TransactionIdIsCurrentTransactionId(HeapTupleHeaderGetXmin(tuple_->t_data));
}

XLogRecPtr Tuple::durable_at() const {
    TransactionId writer = HeapTupleHeaderGetXmin(tuple_->t_data);
    if (!TransactionIdIsNormal(writer) || TransactionIdIsCurrentTransactionId(writer))
        return InvalidXLogRecPtr;
    return guarded([&] { return TransactionIdGetCommitLSN(writer); });
}

Tuple Table::make(std::span<const Datum> values, std::span<const bool> nulls) {
    return guarded([&] {
        int natts = columns()->natts;
        if (static_cast<int>(values.size()) > natts)
            ereport(ERROR, errcode(ERRCODE_UNDEFINED_COLUMN),
                    errmsg("table \"%s\" has %d columns instead of %d",
                           RelationGetRelationName(relation_), natts,
                           static_cast<int>(values.size())));
        // Columns that somebody has added are NULL.
        Datum all[MaxHeapAttributeNumber];
        bool all_nulls[MaxHeapAttributeNumber];
        std::fill_n(all_nulls, natts, true);
        std::copy(values.begin(), values.end(), all);
        std::copy(nulls.begin(), nulls.end(), all_nulls);
        return Tuple(heap_form_tuple(columns(), all, all_nulls), columns());
    });
}

// Opening an index, and working out which rows it has, costs as much as putting a row into it. Most
// rows are in few of their table's indexes.
class Table::Shapes {
public:
    std::optional<Shape> find(Oid index) {
        if (!std::exchange(registered_, true))
            guarded([&] { CacheRegisterRelcacheCallback(changed, PointerGetDatum(this)); });
        auto found = shapes_.find(index);
        return found == shapes_.end() ? std::nullopt : std::optional(found->second);
    }
    void keep(const Shape& shape) { shapes_.insert_or_assign(shape.oid, shape); }

private:
    // An index keeps its shape, but its number may be another's once it is dropped.
    static void changed(Datum shapes, Oid relation) {
        auto& known = reinterpret_cast<Shapes*>(DatumGetPointer(shapes))->shapes_;
        if (relation == InvalidOid)
            known.clear();
        else
            known.erase(relation);
    }

    std::unordered_map<Oid, Shape> shapes_;
    bool registered_ = false;
};

// Called guarded.
Table::Shape Table::shape_of(Relation index, const IndexInfo* info) {
    using Rows = Shape::Rows;
    if (info->ii_ExclusionOps != nullptr || !index->rd_index->indimmediate)
        ereport(ERROR, errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
                errmsg("\"%s\" is an index of a kind that jobq's tables cannot have",
                       RelationGetRelationName(index)),
                errhint("Drop the constraint: neither exclusion constraints nor deferrable ones "
                        "work here."));
    Shape shape{RelationGetRelid(index), Rows::all, 0, info->ii_Expressions == NIL};
    if (info->ii_Predicate != NIL)
        shape.rows = Rows::where_complex;
    // The conditions of our own indexes are of one column: NULL, NOT NULL, or a true boolean.
    if (list_length(info->ii_Predicate) == 1) {
        Node* of = static_cast<Node*>(linitial(info->ii_Predicate));
        auto rows = Rows::where_true;
        if (IsA(of, NullTest)) {
            auto* test = reinterpret_cast<NullTest*>(of);
            rows = test->nulltesttype == IS_NULL ? Rows::where_null : Rows::where_not_null;
            of = reinterpret_cast<Node*>(test->arg);
        }
        if (IsA(of, Var)) {
            shape.rows = rows;
            shape.column = reinterpret_cast<Var*>(of)->varattno;
        }
    }
    return shape;
}

// Called guarded.
void Table::open(Index& index) {
    if (index.relation != nullptr)
        return;
    index.relation = index_open(index.shape.oid, RowExclusiveLock);
    index.info = BuildIndexInfo(index.relation);
}

void Table::open_indexes() {
    static Shapes shapes;
    if (std::exchange(indexes_open_, true))
        return;
    List* oids = guarded([&] { return RelationGetIndexList(relation_); });
    indexes_.reserve(static_cast<std::size_t>(list_length(oids)));
    bool complex = false;
    ListCell* cell;
    foreach (cell, oids) {
        Oid oid = lfirst_oid(cell);
        Index index{};
        if (auto known = shapes.find(oid)) {
            index.shape = *known;
        } else {
            index.shape.oid = oid;
            guarded([&] {
                open(index);
                index.shape = shape_of(index.relation, index.info);
            });
            shapes.keep(index.shape);
        }
        complex |= !index.shape.simple || index.shape.rows == Shape::Rows::where_complex;
        indexes_.push_back(index);
    }
    if (complex)
        guarded([&] {
            executor_ = CreateExecutorState();
            slot_ = MakeSingleTupleTableSlot(columns(), &TTSOpsHeapTuple);
            GetPerTupleExprContext(executor_)->ecxt_scantuple = slot_;
        });
}

// Called guarded.
bool Table::in_index(Index& index, HeapTuple tuple) {
    using Rows = Shape::Rows;
    bool null;
    switch (index.shape.rows) {
    case Rows::all:
        return true;
    case Rows::where_null:
        return heap_attisnull(tuple, index.shape.column, columns());
    case Rows::where_not_null:
        return !heap_attisnull(tuple, index.shape.column, columns());
    case Rows::where_true: {
        Datum value = heap_getattr(tuple, index.shape.column, columns(), &null);
        return !null && DatumGetBool(value);
    }
    case Rows::where_complex:
        open(index);
        if (index.info->ii_PredicateState == nullptr)
            index.info->ii_PredicateState = ExecPrepareQual(index.info->ii_Predicate, executor_);
        return ExecQual(index.info->ii_PredicateState, GetPerTupleExprContext(executor_));
    }
    return true;
}

// Called guarded. Index by index: the pages and the code of one stay in the processor's caches.
void Table::index_rows(std::span<const Tuple> rows) {
    for (Index& index : indexes_)
        for (const Tuple& row : rows)
            index_row(index, row.raw());
}

// Called guarded.
void Table::index_row(Index& index, HeapTuple tuple) {
    if (executor_ != nullptr) {
        ResetPerTupleExprContext(executor_);
        ExecStoreHeapTuple(tuple, slot_, false);
    }
    if (!in_index(index, tuple))
        return;
    open(index);
    if (!index.info->ii_ReadyForInserts)
        return;
    Datum values[INDEX_MAX_KEYS];
    bool nulls[INDEX_MAX_KEYS];
    if (index.shape.simple)
        for (int i = 0; i < index.info->ii_NumIndexAttrs; ++i)
            values[i] =
                heap_getattr(tuple, index.info->ii_IndexAttrNumbers[i], columns(), &nulls[i]);
    else
        FormIndexDatum(index.info, slot_, executor_, values, nulls);
    index_insert(index.relation, values, nulls, &tuple->t_self, relation_,
                 index.info->ii_Unique ? UNIQUE_CHECK_YES : UNIQUE_CHECK_NO, false, index.info);
}

void Table::insert(std::span<const Tuple> rows) {
    open_indexes();
    guarded([&] {
        CommandId command = GetCurrentCommandId(true);
        if (rows.size() == 1) {
            heap_insert(relation_, rows[0].raw(), command, 0, nullptr);
            index_rows(rows);
            return;
        }
        // As many at once as COPY takes.
        constexpr std::size_t most = 1000;
        TupleTableSlot* slots[most];
        std::size_t room = std::min(rows.size(), most);
        for (std::size_t i = 0; i < room; ++i)
            slots[i] = MakeSingleTupleTableSlot(columns(), &TTSOpsHeapTuple);
        for (std::size_t from = 0; from < rows.size(); from += most) {
            auto part = rows.subspan(from, std::min(most, rows.size() - from));
            for (std::size_t i = 0; i < part.size(); ++i)
                ExecStoreHeapTuple(part[i].raw(), slots[i], false);
            heap_multi_insert(relation_, slots, static_cast<int>(part.size()), command, 0, nullptr);
            for (std::size_t i = 0; i < part.size(); ++i)
                part[i].raw()->t_self = slots[i]->tts_tid;
            index_rows(part);
        }
        for (std::size_t i = 0; i < room; ++i)
            ExecDropSingleTupleTableSlot(slots[i]);
    });
}

std::optional<Tuple> Table::update(const Tuple& row, std::initializer_list<Change> changes) {
    HeapTuple fresh = guarded([&]() -> HeapTuple {
        Datum values[MaxHeapAttributeNumber];
        bool nulls[MaxHeapAttributeNumber];
        row.take(values, nulls);
        for (const Change& change : changes) {
            values[change.column - 1] = change.value.value;
            nulls[change.column - 1] = change.value.null;
        }
        HeapTuple made = heap_form_tuple(columns(), values, nulls);
        ItemPointerData place = row.place();
        TM_FailureData failure;
        LockTupleMode mode;
        bool wait = locked_by_us(row.raw());
#if PG_VERSION_NUM >= 160000
        TU_UpdateIndexes indexes;
        TM_Result result = heap_update(relation_, &place, made, GetCurrentCommandId(true),
                                       InvalidSnapshot, wait, &failure, &mode, &indexes);
#else
        TM_Result result = heap_update(relation_, &place, made, GetCurrentCommandId(true),
                                       InvalidSnapshot, wait, &failure, &mode);
#endif
        return result == TM_Ok ? made : nullptr;
    });
    if (fresh == nullptr)
        return std::nullopt;
    Tuple written(fresh, columns());
    if (!HeapTupleIsHeapOnly(fresh)) {
        open_indexes();
        guarded([&] { index_rows({&written, 1}); });
    }
    return written;
}

Written Table::remove(const Tuple& row, OnBusy busy) {
    return guarded([&] {
        ItemPointerData place = row.place();
        TM_FailureData failure;
        bool wait = busy == OnBusy::wait || locked_by_us(row.raw());
        TM_Result result = heap_delete(relation_, &place, GetCurrentCommandId(true),
                                       InvalidSnapshot, wait, &failure, false);
        if (result == TM_Ok)
            return Written::done;
        return changed_under_us(result) ? Written::changed : Written::locked;
    });
}

Oid Table::index(const char* name) const {
    Oid oid = get_relname_relid(name, RelationGetNamespace(relation_));
    if (!OidIsValid(oid))
        ereport(ERROR, errcode(ERRCODE_UNDEFINED_OBJECT),
                errmsg("index \"jobq.%s\" does not exist", name));
    return oid;
}

namespace {

// The function behind a condition on a column of this type.
RegProcedure comparison(Oid type, Key::Is is) {
    bool equal = is == Key::Is::equal;
    switch (type) {
    case INT2OID:
        return equal ? F_INT2EQ : F_INT2GT;
    case INT4OID:
        return equal ? F_INT4EQ : F_INT4GT;
    case INT8OID:
        return equal ? F_INT8EQ : F_INT8GT;
    case TIMESTAMPTZOID:
        return equal ? F_TIMESTAMPTZ_EQ : F_TIMESTAMPTZ_GT;
    case UUIDOID:
        return equal ? F_UUID_EQ : F_UUID_GT;
    case TEXTOID:
        return equal ? F_TEXTEQ : F_TEXT_GT;
    }
    elog(ERROR, "no comparison for type %u", type);
    return InvalidOid;
}

RegProcedure order(Oid type) {
    switch (type) {
    case INT4OID:
        return F_BTINT4CMP;
    case INT8OID:
        return F_BTINT8CMP;
    case TIMESTAMPTZOID:
        return F_TIMESTAMPTZ_CMP;
    }
    elog(ERROR, "no order for type %u", type);
    return InvalidOid;
}

} // namespace

Scan::Scan(const Table& table, const char* index, const FreshSnapshot& snapshot,
           std::span<const Key> keys, std::optional<From> from)
    : exceptions_(std::uncaught_exceptions()) {
    guarded([&] {
        index_ = index_open(table.index(index), AccessShareLock);
        int n = static_cast<int>(keys.size()) + (from ? 1 : 0);
#if PG_VERSION_NUM >= 180000
        scan_ = index_beginscan(table.relation(), index_, snapshot.get(), nullptr, n, 0);
#else
        scan_ = index_beginscan(table.relation(), index_, snapshot.get(), n, 0);
#endif
        slot_ = table_slot_create(table.relation(), nullptr);
    });
    start(keys, from);
}

void Scan::start(std::span<const Key> keys, std::optional<From> from) {
    guarded([&] {
        ScanKeyData all[INDEX_MAX_KEYS];
        int n = 0;
        auto collation = [&](int column) { return index_->rd_indcollation[column - 1]; };
        for (const Key& key : keys) {
            ScanKeyEntryInitialize(&all[n++], 0, static_cast<AttrNumber>(key.column),
                                   static_cast<StrategyNumber>(key.is), InvalidOid,
                                   collation(key.column), comparison(key.value.type, key.is),
                                   key.value.value);
        }
        if (from) {
            auto member = [&](std::size_t i, const Param& value) {
                int column = from->column + static_cast<int>(i);
                ScanKeyEntryInitialize(&members_[i], SK_ROW_MEMBER | (i == 1 ? SK_ROW_END : 0),
                                       static_cast<AttrNumber>(column),
                                       BTGreaterEqualStrategyNumber, value.type, collation(column),
                                       order(value.type), value.value);
            };
            member(0, from->first);
            member(1, from->second);
            ScanKeyData& header = all[n++];
            std::memset(&header, 0, sizeof header);
            header.sk_flags = SK_ROW_HEADER;
            header.sk_attno = members_[0].sk_attno;
            header.sk_strategy = BTGreaterEqualStrategyNumber;
            header.sk_argument = PointerGetDatum(members_.data());
        }
        std::stable_sort(all, all + n, [](const ScanKeyData& a, const ScanKeyData& b) {
            return a.sk_attno < b.sk_attno;
        });
        index_rescan(scan_, all, n, nullptr, 0);
    });
}

Scan::~Scan() {
    if (unwinding(exceptions_))
        return;
    ExecDropSingleTupleTableSlot(slot_);
    index_endscan(scan_);
    index_close(index_, NoLock);
}

void Scan::look_at_all() {
    scan_->xs_snapshot = SnapshotAny;
}

bool Scan::visible(const FreshSnapshot& snapshot) const {
    return guarded(
        [&] { return table_tuple_satisfies_snapshot(scan_->heapRelation, slot_, snapshot.get()); });
}

bool Scan::next() {
    return guarded([&] {
        CHECK_FOR_INTERRUPTS();
        if (!index_getnext_slot(scan_, ForwardScanDirection, slot_))
            return false;
        tuple_ = ExecFetchSlotHeapTuple(slot_, false, nullptr);
        return true;
    });
}

Oid enum_value(const char* type, const char* label) {
    return guarded([&] {
        Oid oid = GetSysCacheOid2(TYPENAMENSP, Anum_pg_type_oid, CStringGetDatum(type),
                                  ObjectIdGetDatum(get_namespace_oid("jobq", false)));
        Oid value = GetSysCacheOid2(ENUMTYPOIDNAME, Anum_pg_enum_oid, ObjectIdGetDatum(oid),
                                    CStringGetDatum(label));
        if (!OidIsValid(value))
            elog(ERROR, "type jobq.%s has no value \"%s\"", type, label);
        return value;
    });
}

int64 next_value(const char* sequence) {
    return guarded([&] { return nextval_internal(relation_oid(sequence), false); });
}

} // namespace jobq::pg
