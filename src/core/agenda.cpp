#include "core/agenda.hpp"

namespace jobq::core {

void Agenda::leave(Stream stream, const Entry& entry) {
    switch (entry.state) {
    case State::timed:
        times_.erase({entry.at, stream});
        break;
    case State::ready:
        ready_.erase(stream);
        if (entry.endpoint != 0) {
            --blocked_.at(entry.endpoint).let_go;
            let_go(entry.endpoint);
        }
        break;
    case State::blocked:
        blocked_.at(entry.endpoint).streams.erase(stream);
        let_go(entry.endpoint);
        break;
    }
}

// As many as there is room for, and forgets the endpoint when it has none left.
void Agenda::let_go(std::int32_t endpoint) {
    auto found = blocked_.find(endpoint);
    Blocked& blocked = found->second;
    while (blocked.let_go < blocked.room && !blocked.streams.empty()) {
        auto next = blocked.streams.upper_bound(blocked.last);
        if (next == blocked.streams.end())
            next = blocked.streams.begin();
        blocked.last = *next;
        blocked.streams.erase(next);
        make_ready(blocked.last, streams_.at(blocked.last));
        streams_.at(blocked.last).endpoint = endpoint;
        ++blocked.let_go;
    }
    if (blocked.streams.empty() && blocked.let_go == 0)
        blocked_.erase(found);
}

void Agenda::make_ready(Stream stream, Entry& entry) {
    entry.state = State::ready;
    entry.endpoint = 0;
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
    if (auto blocked = blocked_.find(endpoint); blocked != blocked_.end())
        blocked->second.room = 0;
    forget(stream);
    streams_.insert({stream, Entry{State::blocked, 0, endpoint}});
    blocked_[endpoint].streams.insert(stream);
}

void Agenda::unblock(std::int32_t endpoint, std::size_t room) {
    auto blocked = blocked_.find(endpoint);
    if (blocked == blocked_.end())
        return;
    blocked->second.room = room;
    let_go(endpoint);
}

void Agenda::unblock_all() {
    blocked_.clear();
    for (auto& [stream, entry] : streams_) {
        if (entry.state == State::blocked)
            make_ready(stream, entry);
        entry.endpoint = 0;
    }
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

std::optional<Stream> Agenda::next_timed() const noexcept {
    return times_.empty() ? std::nullopt : std::optional(times_.begin()->second);
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
        take(blocked.streams);
    }
    return streams;
}

} // namespace jobq::core
