#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "http/lookups.hpp"

namespace jobq::http {

struct Lane;
struct Request;
struct Transfer;

// Requests to a host that none has reached: of them so many connect at once, after a first one.
constexpr std::size_t most_to_unreached = 8;

// More requests than that libcurl does not send over a connection at a time.
constexpr std::size_t most_streams = 100;

// The requests in flight that may share connections: to one scheme, name and port, with the same
// TLS settings and proxy.
struct Host {
    // With HTTP/2 a connection takes many requests. libcurl has none wait for a connection that is
    // being opened, so that each request would open one: who speaks it must be known.
    enum class Speaks : std::uint8_t {
        unknown,     // requests begin one after another
        serial,      // all at once
        multiplexed, // as many as its connections take, and a few more for new ones
    };

    // Whether one of those that wait may begin.
    bool admits() const noexcept;
    std::size_t most_lookups() const noexcept { return lookup_failed ? most_to_unreached : 1; }

    std::string_view key;
    bool may_multiplex = false;
    bool named = true;          // its name is looked up
    std::size_t requests = 0;   // those that wait included
    std::size_t begun = 0;      // given to libcurl
    std::size_t connecting = 0; // of them, not connected
    std::size_t lookups = 0;    // under way or granted
    bool reached = false;       // the last to try has connected
    bool failed = false;        // the last to try has not
    bool lookup_failed = false; // the last one
    bool needs_lookup = false;  // one was turned away without one...
    std::size_t width = 0;      // ...when so many others were begun
    Speaks speaks = Speaks::unknown;
    std::size_t streams = 1;    // a connection takes, as far as is known
    bool streams_found = false; // more did not go into one
    std::unordered_map<std::uint64_t, std::size_t> connections; // and the requests in each
    Lane* lane = nullptr; // where its connections are, unless serial
    std::list<Transfer*> waiting;

    // Its places in the gate's lines: nodes that are moved there and back, so that it costs no
    // memory.
    std::list<Host*> ready_place, lookup_place;
    bool ready = false, wants_lookup = false; // stands in the line
};

// Says which of the requests in flight may begin. A request waits, connects, is connected and
// leaves; between these it goes by:
//
//     enter           -> waiting
//     next            waiting -> connecting     libcurl gets it
//     turned_away     connecting -> waiting     libcurl gave it back: it had no lookup, or no
//     socket connected       connecting -> connected   or again, over another connection leave any
//     -> gone
//
// A host's requests wait in the order in which they came. A host with some that may begin stands in
// the line of the ready, one request a turn. A request that is connecting may find that its name
// has to be looked up (may_look_up). If there is no lookup for it, then it is turned away, and its
// host also stands in the line of those that want one: until next gives it one, or another's lookup
// has ended well (found). While it waits there, as many of its requests may go on as were running,
// over the connections that are there.
class Gate {
public:
    using Clock = Lookups::Clock;

    enum class Stage : std::uint8_t { outside, waiting, connecting, connected };
    enum class Lookup : std::uint8_t { none, granted, under_way };

    // What of a request this is about.
    struct Place {
        Host* host = nullptr;
        Stage stage = Stage::outside;
        Lookup lookup = Lookup::none;
        bool lookup_failing = false;  // what it was counted as
        bool rides = false;           // a connection that is there should take it
        std::uint64_t connection = 0; // of those that can be shared
        std::list<Transfer*> node;    // while it does not wait
        std::list<Transfer*>::iterator position;
    };
    enum class End : std::uint8_t { connected, not_connected, name_not_found, cancelled };

    // Throws std::bad_alloc; then it has not entered.
    void enter(Transfer& t);
    // One that may begin now, if any.
    Transfer* next(Clock::time_point now) noexcept;
    // Its name is not known: whether it may be looked up. If not, it must be turned away.
    bool may_look_up(Transfer& t, Clock::time_point now) noexcept;
    // Its name was found, and it opens a connection.
    void found(Transfer& t) noexcept;
    // connection: the same for requests in the same one, not 0.
    void connected(Transfer& t, std::uint64_t connection) noexcept;
    void turned_away(Transfer& t) noexcept;
    // The last response from its host was over HTTP/2, or not.
    void answered(Transfer& t, bool http2) noexcept;
    void leave(Transfer& t, End end, Clock::time_point now) noexcept;

    // Whether next might give one now; if not, when though nothing else happens.
    bool any_ready() const noexcept { return !ready_.empty() || any_wants_lookup(); }
    std::optional<Clock::time_point> next_change() const noexcept;

private:
    bool any_wants_lookup() const noexcept {
        return !wants_lookup_[0].empty() || !wants_lookup_[1].empty();
    }
    Host& host_of(const Request& request);
    void line_up(Host& host) noexcept;
    void begin(Host& host, Transfer& t) noexcept;
    void take_back(Transfer& t) noexcept;
    void end_lookup(Transfer& t, End end, Clock::time_point now) noexcept;
    void leave_connection(Transfer& t) noexcept;
    void forget_unused(Host& host) noexcept;

    struct Hash : std::hash<std::string_view> {
        using is_transparent = void;
    };
    std::unordered_map<std::string, Host, Hash, std::equal_to<>> hosts_;
    std::size_t remembered_ = 0; // hosts without requests
    std::list<Host*> ready_;
    std::list<Host*> wants_lookup_[2]; // [1]: the last one failed
    Lookups lookups_;
};

} // namespace jobq::http
