// jobq.queue_stats.

#include "pg/call.hpp"
#include "pg/spi.hpp"
#include "pg/xact.hpp"

JOBQ_FUNCTION(jobq_queue_stats) {
    namespace pg = jobq::pg;
    static pg::Statement count("SELECT c.* FROM jobq.count_queue($1) AS c");
    constexpr Oid types[] = {INT8OID,     INT8OID, INT8OID,     INT8OID,     INT8OID,
                             INTERVALOID, INT8OID, INTERVALOID, INTERVALOID, BOOLOID};
    call.require(0, "queue_id");
    pg::require_select("stats");
    pg::RowSink rows(call);
    pg::AsRole as_owner(pg::owner_of(call.function()));
    pg::Spi spi;
    for (auto row : count.run(spi, {pg::param(call.int4(0))})) {
        pg::Param values[std::size(types)];
        for (std::size_t i = 0; i < std::size(types); ++i) {
            auto value = row.maybe(static_cast<int>(i) + 1);
            values[i] = value ? pg::Param{types[i], *value} : pg::null_param(types[i]);
        }
        rows.put(values);
    }
    return call.return_null();
}
