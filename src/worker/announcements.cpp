#include "worker/announcements.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "core/names.hpp"
#include "queue/claim.hpp"
#include "worker/transaction.hpp"

extern "C" {
#include "commands/async.h"
}

namespace jobq::worker {

namespace {

// A listener that pulls until nothing is left needs no more, µs.
constexpr TimestampTz announce_every = 10 * 1000;
constexpr std::size_t leases_at_once = 1000;
constexpr std::size_t most_rows_looked_at = 10000;

} // namespace

void Announcements::forget(int32 queue) {
    agenda_.forget({queue});
    ending_leases_.erase(queue);
}

void Announcements::announce(const std::map<int32, QueueSettings>& queues, TimestampTz now) {
    agenda_.ring(now);
    std::erase_if(announced_, [now](const auto& entry) { return entry.second <= now; });
    if (agenda_.ready() == 0 || announcing_.waits(now))
        return;
    std::vector<std::pair<int32, const QueueSettings*>> due;
    for (std::size_t left = agenda_.ready(); left > 0; --left) {
        auto stream = agenda_.next();
        auto queue = queues.find(stream->queue);
        auto announced = announced_.find(stream->queue);
        if (queue == queues.end() || queue->second.delivered())
            agenda_.forget(*stream);
        else if (announced != announced_.end())
            agenda_.done(*stream, announced->second);
        else
            due.emplace_back(queue->first, &queue->second);
    }
    if (due.empty())
        return;
    std::map<int32, std::optional<TimestampTz>> next_due;
    try_to(announcing_, "announce what can be pulled", [&] {
        in_transaction([&](const pg::Spi&) {
            for (auto [id, queue] : due) {
                announce(id, *queue, now);
                next_due[id] = queue::next_due({id}, now);
            }
            commit_without_flush();
        });
    });
    if (announcing_)
        return;
    for (auto [id, at] : next_due) {
        announced_[id] = now + announce_every;
        agenda_.done({id}, at);
    }
}

void Announcements::announce(int32 id, const QueueSettings& queue, TimestampTz now) {
    if (queue.paused || !queue::has_due({id}, now))
        return;
    std::string channel = core::channel_of(queue.name);
    pg::guarded([&] { Async_Notify(channel.c_str(), ""); });
}

void Announcements::end_leases(const std::map<int32, QueueSettings>& queues) {
    for (std::size_t left = agenda_.ready(); left > 0; --left) {
        auto stream = agenda_.next();
        auto queue = queues.find(stream->queue);
        if (queue == queues.end() || queue->second.delivered())
            continue;
        Trouble& trouble = ending_leases_[stream->queue];
        try_to(trouble, fmt::format("end leases of queue \"{}\"", queue->second.name), [&] {
            in_transaction([&](const pg::Spi&) {
                queue::end_leases(*stream, leases_at_once, most_rows_looked_at);
            });
        });
        if (!trouble)
            ending_leases_.erase(stream->queue);
    }
}

TimestampTz Announcements::next() const {
    if (agenda_.ready() > 0)
        return announcing_ ? announcing_.retry_at() : 0;
    // What is pushed to those of expected() wakes nobody: they are looked at when their time is
    // over.
    TimestampTz next = agenda_.next_time().value_or(DT_NOEND);
    for (auto [queue, until] : announced_)
        next = std::min(next, until);
    return next;
}

std::vector<core::Stream> Announcements::expected(TimestampTz now, std::size_t most) const {
    std::vector<core::Stream> streams;
    for (auto [queue, until] : announced_)
        if (until > now && streams.size() < most)
            streams.push_back({queue});
    return streams;
}

const Trouble* Announcements::trouble_with_leases() const {
    for (const auto& [queue, trouble] : ending_leases_)
        if (trouble)
            return &trouble;
    return nullptr;
}

} // namespace jobq::worker
