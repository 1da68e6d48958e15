#include "resolver.hpp"

#include <algorithm>
#include <chrono>
#include <string_view>
#include <thread>

#include <dlfcn.h>
#include <netdb.h>

namespace test {

Names names;

Names::Lookup::Lookup(Names& n) : names(n) {
    ++names.made;
    const int now = ++names.now;
    const std::lock_guard lock(names.mutex_);
    names.at_once_.push_back(now);
    names.peak = std::max<int>(names.peak, now);
}

std::vector<int> Names::at_once() const {
    const std::lock_guard lock(mutex_);
    return at_once_;
}

void Names::reset() {
    const std::lock_guard lock(mutex_);
    made = peak = 0;
    at_once_.clear();
    hanging_ = true;
    down = false;
}

void Names::let_go() {
    const std::lock_guard lock(mutex_);
    hanging_ = false;
    changed_.notify_all();
}

void Names::hang() {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(60), [this] { return !hanging_; });
}

} // namespace test

extern "C" int getaddrinfo(const char* node, const char* service, const addrinfo* hints,
                           addrinfo** result) {
    using Function = int (*)(const char*, const char*, const addrinfo*, addrinfo**);
    static const auto real = reinterpret_cast<Function>(::dlsym(RTLD_NEXT, "getaddrinfo"));
    const std::string_view name = node ? node : "";
    if (!name.ends_with(".test"))
        return real(node, service, hints, result);
    const test::Names::Lookup lookup(test::names);
    const auto is = [&](std::string_view suffix) {
        return name.ends_with(suffix) || name == suffix.substr(1);
    };
    if (is(".hang.test") || (is(".sometimes.test") && test::names.down))
        test::names.hang();
    else if (is(".cold.test") || is(".dead.test"))
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
    if (is(".both.test")) {
        addrinfo* second = nullptr;
        int error = real("127.0.0.2", service, hints, result);
        if (error == 0 && (error = real("127.0.0.1", service, hints, &second)) != 0)
            ::freeaddrinfo(*result);
        if (error == 0) {
            addrinfo* last = *result;
            while (last->ai_next)
                last = last->ai_next;
            last->ai_next = second;
        }
        return error;
    }
    if (is(".sometimes.test") && !test::names.down)
        return real("127.0.0.1", service, hints, result);
    if (is(".cold.test") || is(".quick.test") || is(".tls.test") || is(".elsewhere.test"))
        return real("127.0.0.1", service, hints, result);
    return EAI_NONAME;
}
