// Queues that are pulled from: says on their channels that there is something to pull, and ends
// the leases that nobody else ends.
#pragma once

#include <map>

#include "core/agenda.hpp"
#include "worker/settings_rows.hpp"
#include "worker/trouble.hpp"

namespace jobq::worker {

class Announcements {
public:
    // Jobs came, or may have.
    void look_at(int32 queue) { agenda_.look_at({queue}); }
    void forget(int32 queue);
    // Announces those that have something; each at most every 10 ms.
    void announce(const std::map<int32, QueueSettings>& queues, TimestampTz now);
    // Of pulled jobs of queues to be looked at.
    void end_leases(const std::map<int32, QueueSettings>& queues);

    // When announce() is to be called next; DT_NOEND: not for what is known now.
    TimestampTz next() const;
    // Queues that were announced a moment ago, and so are looked at again soon.
    std::vector<core::Stream> expected(TimestampTz now, std::size_t most) const;

    const Trouble& trouble() const { return announcing_; }
    const Trouble* trouble_with_leases() const;

private:
    void announce(int32 id, const QueueSettings& queue, TimestampTz now);

    core::Agenda agenda_;
    std::map<int32, TimestampTz> announced_; // not again before
    Trouble announcing_;
    std::map<int32, Trouble> ending_leases_;
};

} // namespace jobq::worker
