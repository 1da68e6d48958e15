// Something of the dispatcher's that fails: it is logged once, waits between its tries, and holds
// up nothing else.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "pg/error.hpp"

namespace jobq::worker {

class Trouble {
public:
    // It failed. what: for the log, "could not ...".
    void met(std::string_view what, const pg::Error& error);
    // It works.
    void over() {
        text_.clear();
        delay_ = 0;
    }

    explicit operator bool() const { return !text_.empty(); }
    // Whether its next try is to wait.
    bool waits(TimestampTz now) const { return !text_.empty() && now < retry_at_; }
    TimestampTz retry_at() const { return retry_at_; }
    const std::string& text() const { return text_; }

private:
    std::string text_;
    TimestampTz delay_ = 0, retry_at_ = 0;
};

// Does what may fail without harm to the rest, unless the last failure was a moment ago.
void try_to(Trouble& trouble, std::string_view what, const std::function<void()>& work);

// Whether an error tells of the server, or of who else is at work there, and not of the rows at
// hand: with others it would be met just so.
bool concerns_all(const pg::Error& error);

} // namespace jobq::worker
