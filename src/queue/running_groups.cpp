#include "queue/running_groups.hpp"
#include "queue/job_row.hpp"

namespace jobq::queue {

using pg::Key;

bool RunningGroups::runs(const pg::Table& jobs, const pg::FreshSnapshot& snapshot, int32 queue_id,
                         std::string_view group) {
    auto found = find(snapshot, queue_id, group);
    if (!found)
        return false;
    pg::Scan job(jobs, "job_pkey", snapshot,
                 {{1, Key::Is::equal, pg::param(found->uuid(Column::job_id))}});
    if (job.next() && !job.row().null(JobColumn::lease_until))
        return true;
    table().remove(*found, pg::OnBusy::wait);
    return false;
}

void RunningGroups::begun(int32 queue_id, std::string_view group, const core::Uuid& job) {
    pg::Values<Column::count> row;
    row.set(Column::queue_id, pg::param(queue_id));
    row.set(Column::group_key, pg::param(group));
    row.set(Column::job_id, pg::param(job));
    pg::Tuple made = table().make(row);
    table().insert({&made, 1});
}

void RunningGroups::ended(const pg::FreshSnapshot& snapshot, int32 queue_id, std::string_view group,
                          const core::Uuid& job) {
    auto found = find(snapshot, queue_id, group);
    if (found && found->uuid(Column::job_id) == job)
        table().remove(*found, pg::OnBusy::wait);
}

std::optional<pg::Tuple> RunningGroups::find(const pg::FreshSnapshot& snapshot, int32 queue_id,
                                             std::string_view group) {
    Key keys[] = {{1, Key::Is::equal, pg::param(queue_id)}, {2, Key::Is::equal, pg::param(group)}};
    if (scan_) {
        scan_->look_through(snapshot);
        scan_->start(keys);
    } else {
        scan_.emplace(table(), "running_group_pkey", snapshot, keys);
    }
    return scan_->next() ? std::optional(scan_->row()) : std::nullopt;
}

pg::Table& RunningGroups::table() {
    if (!table_)
        table_.emplace("running_group");
    return *table_;
}

} // namespace jobq::queue
