#include "core/agenda.hpp"

namespace jobq::core {

void Agenda::leave(Stream stream, const Entry& entry) {
    switch (entry.state) {
    case State::timed:
        times_.erase({entry.at, stream});
        break;
    case State::ready:
        ready_.erase(stream);
        break;
    case State::blocked:
        if (auto blocked = blocked_.find(entry.endpoint); blocked != blocked_.end()) {
            blocked->second.erase(stream);
            if (blocked->second.empty())
                blocked_.erase(blocked);
        }
        break;
    }
}

void Agenda::make_ready(Stream stream, Entry& entry) {
    entry.state = State::ready;
    ready_.insert(stream);
}

void Agenda::look_at(Stream stream) {
    auto [found, idle] = streams_.try_emplace(stream, Entry{State::ready});
    Entry& entry = found->second;
    if (!idle && entry.state != State::timed)
        return;
    if (!idle)
        leave(stream, entry);
    make_ready(stream, entry);
}

void Agenda::look_at(Stream stream, Time at) {
    auto [found, idle] = streams_.try_emplace(stream, Entry{State::timed, at});
    Entry& entry = found->second;
    if (!idle) {
        if (entry.state != State::timed || entry.at <= at)
            return;
        leave(stream, entry);
        entry.at = at;
    }
    times_.insert({at, stream});
}

void Agenda::ring(Time now) {
    while (!times_.empty() && times_.begin()->first <= now)
        look_at(Stream(times_.begin()->second));
}

std::optional<Stream> Agenda::next() {
    if (ready_.empty())
        return std::nullopt;
    auto found = ready_.upper_bound(last_);
    last_ = found == ready_.end() ? *ready_.begin() : *found;
    return last_;
}

void Agenda::done(Stream stream, std::optional<Time> at) {
    forget(stream);
    if (at)
        look_at(stream, *at);
}

void Agenda::block(Stream stream, std::int32_t endpoint) {
    forget(stream);
    streams_.insert({stream, Entry{State::blocked, 0, endpoint}});
    blocked_[endpoint].insert(stream);
}

void Agenda::unblock(std::int32_t endpoint) {
    auto blocked = blocked_.extract(endpoint);
    if (blocked.empty())
        return;
    for (const Stream& stream : blocked.mapped())
        make_ready(stream, streams_.at(stream));
}

void Agenda::unblock_all() {
    for (const auto& [endpoint, blocked] : std::exchange(blocked_, {}))
        for (const Stream& stream : blocked)
            make_ready(stream, streams_.at(stream));
}

void Agenda::forget(Stream stream) {
    auto found = streams_.find(stream);
    if (found == streams_.end())
        return;
    leave(stream, found->second);
    streams_.erase(found);
}

std::optional<Agenda::Time> Agenda::next_time() const noexcept {
    return times_.empty() ? std::nullopt : std::optional(times_.begin()->first);
}

std::vector<Stream> Agenda::wanting(std::size_t most) const {
    std::vector<Stream> streams;
    auto take = [&](const std::set<Stream>& from) {
        for (auto at = from.begin(); at != from.end() && streams.size() < most; ++at)
            streams.push_back(*at);
    };
    take(ready_);
    for (const auto& [endpoint, blocked] : blocked_) {
        if (streams.size() == most)
            break;
        take(blocked);
    }
    return streams;
}

} // namespace jobq::core
