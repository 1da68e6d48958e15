// SQL from C++. Statements are prepared once in a process and kept.
#pragma once

#include <initializer_list>
#include <optional>
#include <string_view>

#include "pg/values.hpp"

namespace jobq::pg {

// A connection to SPI. Results live until it ends; what is to live longer is copied out.
//
// While it is open search_path is pinned, so that names and operators mean what they say whoever
// calls, and the planner keeps to nested loops over indexes, whatever the statistics of a table
// that was empty a moment ago say. Plans are made again now and then, so this must hold at every
// run, not at the first.
class Spi {
public:
    Spi();
    ~Spi();
    Spi(const Spi&) = delete;
    Spi& operator=(const Spi&) = delete;

private:
    int exceptions_;
    int settings_level_ = 0; // 0: nothing had to be changed
};

class Row {
public:
    Row(HeapTuple tuple, TupleDesc columns) : tuple_(tuple), columns_(columns) {}

    // Columns count from 1.
    bool null(int column) const;
    Datum datum(int column) const; // 0 where NULL
    std::optional<Datum> maybe(int column) const;

    bool boolean(int column) const { return DatumGetBool(datum(column)); }
    int32 int4(int column) const { return DatumGetInt32(datum(column)); }
    int64 int8(int column) const { return DatumGetInt64(datum(column)); }
    double float8(int column) const { return DatumGetFloat8(datum(column)); }
    TimestampTz timestamp(int column) const { return DatumGetTimestampTz(datum(column)); }
    core::Uuid uuid(int column) const { return uuid_of(datum(column)); }
    std::string_view text(int column) const { return text_of(datum(column)); } // not for NULL
    std::optional<std::string_view> maybe_text(int column) const;

private:
    HeapTuple tuple_;
    TupleDesc columns_;
};

class Rows {
public:
    Rows(SPITupleTable* table, uint64 processed) : table_(table), size_(processed) {}

    // Rows returned, or for a statement without RETURNING rows processed.
    std::size_t size() const { return size_; }
    bool empty() const { return size_ == 0; }
    Row operator[](std::size_t i) const { return Row(table_->vals[i], table_->tupdesc); }

    class Iterator {
    public:
        Iterator(const Rows& rows, std::size_t at) : rows_(rows), at_(at) {}
        Row operator*() const { return rows_[at_]; }
        Iterator& operator++() { return ++at_, *this; }
        bool operator!=(const Iterator& other) const { return at_ != other.at_; }

    private:
        const Rows& rows_;
        std::size_t at_;
    };
    Iterator begin() const { return {*this, 0}; }
    Iterator end() const { return {*this, table_ == nullptr ? 0 : size_}; }

private:
    SPITupleTable* table_;
    std::size_t size_;
};

// One statement with $1... parameters, whose types are those of the first run.
class Statement {
public:
    constexpr explicit Statement(const char* sql) : sql_(sql) {}
    // Each run sees what was committed when it began, at every isolation level, and what its
    // transaction did. Above READ COMMITTED a row that somebody changes meanwhile is error 40001.
    Rows run(const Spi&, std::initializer_list<Param> params = {});

private:
    const char* sql_;
    SPIPlanPtr plan_ = nullptr;
};

} // namespace jobq::pg
