#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <vector>

namespace test {

// Lookups of names that end in ".test", as the program's own getaddrinfo answers them, for libcurl
// too. It is 127.0.0.1 for
//   cold.test, *.cold.test   after 20 ms
//   tls.test, elsewhere.test, *.quick.test  at once
// and
//   dead.test   is not found, after 20 ms
//   *.hang.test is not found, but only when let_go() is called
//   sometimes.test is 127.0.0.1, unless it hangs as these do after break_down()
//   both.test   is 127.0.0.2 and 127.0.0.1, in this order
// and all others are not found at once.
class Names {
public:
    std::atomic<int> made = 0, now = 0, peak = 0;
    std::atomic<bool> down = false;
    std::vector<int> at_once() const; // how many there were with each, in the order they began

    void reset(); // counts from here on; hanging ones hang again
    void break_down() { down = true; }
    void let_go();

    struct Lookup { // one that is under way
        explicit Lookup(Names& names);
        ~Lookup() { --names.now; }
        Names& names;
    };
    void hang();

private:
    mutable std::mutex mutex_;
    std::condition_variable changed_;
    bool hanging_ = true;
    std::vector<int> at_once_;
};

extern Names names;

} // namespace test
