// Which groups have a job that runs: a narrow row for each, from the claim to the end of the
// attempt. It stands beside the jobs so that a claim changes nothing that is indexed in theirs. Its
// primary key is the net for "at most one".
#pragma once

#include <optional>
#include <string_view>

#include "pg/table.hpp"

namespace jobq::queue {

class RunningGroups {
public:
    // Whether a job of the group runs, as the snapshot sees it. The caller holds the group's lock:
    // what is left of a job that somebody has deleted past jobq goes on the way.
    bool runs(const pg::Table& jobs, const pg::FreshSnapshot& snapshot, int32 queue_id,
              std::string_view group);
    // Error 23505 where one does.
    void begun(int32 queue_id, std::string_view group, const core::Uuid& job);
    // Nothing where it is not this job that ran.
    void ended(const pg::FreshSnapshot& snapshot, int32 queue_id, std::string_view group,
               const core::Uuid& job);

private:
    enum Column : int { queue_id = 1, group_key, job_id, count = job_id };

    // The group's row.
    std::optional<pg::Tuple> find(const pg::FreshSnapshot& snapshot, int32 queue_id,
                                  std::string_view group);
    pg::Table& table();

    std::optional<pg::Table> table_;
    std::optional<pg::Scan> scan_;
};

} // namespace jobq::queue
