// What is kept in memory of a table's rows, and when it is no longer true.
//
// Changes are announced the way PostgreSQL announces those of its catalogs: the message goes out
// with the commit, after the change can be seen and before the transaction's locks are let go. To
// the session itself it comes at the end of the command, and once more if that is rolled back.
#pragma once

#include <cstdint>

#include "pg/table.hpp"

namespace jobq::pg {

// Tells all sessions that rows of the table have changed. For its triggers.
void announce_change(Relation table);

// Lives as long as the process.
class Watch {
public:
    Watch() = default;
    Watch(const Watch&) = delete;
    Watch& operator=(const Watch&) = delete;

    // From now on changes of this table count.
    void begin(const Table& table);
    // Changes so far, with all that were committed before this call. A row can be kept if it was
    // read from a snapshot that was taken after one call, and another returns the same.
    std::uint64_t changes();

private:
    static void changed(Datum watch, Oid table);

    Oid table_ = InvalidOid;
    std::uint64_t changes_ = 0;
    bool registered_ = false;
};

} // namespace jobq::pg
