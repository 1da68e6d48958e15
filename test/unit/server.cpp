#include "server.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <optional>
#include <system_error>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>

namespace test {

using jobq::http::Fd;

namespace {

constexpr std::size_t chunk = 1 << 16;

int checked(int result) {
    if (result < 0)
        throw std::system_error(errno, std::system_category());
    return result;
}

Fd bound_to_loopback(int& port) {
    Fd fd(checked(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    checked(::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), size));
    checked(::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size));
    port = ntohs(address.sin_port);
    return fd;
}

bool same_name(std::string_view a, std::string_view b) {
    return a.size() == b.size() && ::strncasecmp(a.data(), b.data(), a.size()) == 0;
}

// Takes the first request out of the input, if it is there as a whole.
std::optional<Received> parse(std::string& input) {
    const std::size_t end = input.find("\r\n\r\n");
    if (end == std::string::npos)
        return std::nullopt;
    Received r;
    std::size_t body_size = 0;
    std::string_view head(input.data(), end + 2);
    const auto next_line = [&head] {
        const std::string_view line = head.substr(0, head.find("\r\n"));
        head.remove_prefix(line.size() + 2);
        return line;
    };
    const std::string_view first = next_line();
    const std::size_t space = first.find(' ');
    r.method = first.substr(0, space);
    r.target = first.substr(space + 1, first.rfind(' ') - space - 1);
    while (!head.empty()) {
        const std::string_view line = next_line();
        const std::size_t colon = line.find(':');
        const std::string_view value = line.substr(colon + 1);
        const std::size_t start = std::min(value.find_first_not_of(' '), value.size());
        r.headers.emplace_back(line.substr(0, colon), value.substr(start));
        const std::string& text = r.headers.back().second;
        if (same_name(r.headers.back().first, "content-length"))
            std::from_chars(text.data(), text.data() + text.size(), body_size);
    }
    if (input.size() < end + 4 + body_size)
        return std::nullopt;
    r.body = input.substr(end + 4, body_size);
    input.erase(0, end + 4 + body_size);
    return r;
}

} // namespace

std::string Received::header(std::string_view name) const {
    std::string values;
    bool found = false;
    for (const auto& [key, value] : headers) {
        if (!same_name(key, name))
            continue;
        values += (found ? "|" : "") + value;
        found = true;
    }
    return found ? values : "(none)";
}

struct Server::Connection {
    Fd fd;
    std::uint64_t id;
    std::string input, output;
    std::size_t sent = 0;
    std::uint64_t more_body = 0;
    bool busy = false; // a request is being answered: the next one waits
    bool waiting_to_write = false;
    Answer::Then then = Answer::Then::keep_open;
};

Server::Server(Handler handler) : handler_(std::move(handler)) {
    listener_ = bound_to_loopback(port_);
    checked(::listen(listener_.get(), 4096));
    epoll_ = Fd(checked(::epoll_create1(EPOLL_CLOEXEC)));
    stop_ = Fd(checked(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)));
    for (const int fd : {listener_.get(), stop_.get()}) {
        epoll_event event{};
        event.events = EPOLLIN;
        event.data.fd = fd;
        checked(::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event));
    }
    thread_ = std::thread([this] { serve(); });
}

Server::~Server() {
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto n = ::write(stop_.get(), &one, sizeof one);
    thread_.join();
}

std::string Server::url(std::string_view path) const {
    return "http://127.0.0.1:" + std::to_string(port_) + std::string(path);
}

std::vector<Received> Server::received() const {
    const std::lock_guard lock(mutex_);
    return received_;
}

void Server::serve() {
    std::array<epoll_event, 256> events;
    for (;;) {
        int wait_ms = -1;
        if (!delayed_.empty()) {
            const auto left = delayed_.begin()->first - Clock::now();
            wait_ms = std::max(0, static_cast<int>(left / std::chrono::milliseconds(1)) + 1);
        }
        const int count = ::epoll_wait(epoll_.get(), events.data(), events.size(), wait_ms);
        for (int i = 0; i < count; ++i) {
            const int fd = events[i].data.fd;
            if (fd == stop_.get())
                return;
            if (fd == listener_.get()) {
                accept_all();
                continue;
            }
            // Each step may close the connection.
            if (const auto c = connections_.find(fd); c != connections_.end())
                if (events[i].events & (EPOLLIN | EPOLLERR | EPOLLHUP))
                    read_from(*c->second);
            if (const auto c = connections_.find(fd); c != connections_.end())
                if (events[i].events & EPOLLOUT)
                    write_to(*c->second);
        }
        while (!delayed_.empty() && delayed_.begin()->first <= Clock::now()) {
            const auto [id, a] = std::move(delayed_.begin()->second);
            delayed_.erase(delayed_.begin());
            const auto c =
                std::find_if(connections_.begin(), connections_.end(),
                             [wanted = id](const auto& each) { return each.second->id == wanted; });
            if (c != connections_.end())
                answer(*c->second, a);
        }
    }
}

void Server::accept_all() {
    for (;;) {
        Fd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
        if (!fd)
            return;
        const int on = 1;
        ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        auto c = std::make_unique<Connection>();
        epoll_event event{};
        event.events = EPOLLIN;
        event.data.fd = fd.get();
        checked(::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd.get(), &event));
        c->fd = std::move(fd);
        c->id = ++last_id_;
        const int key = c->fd.get();
        connections_[key] = std::move(c);
        ++connections_made_;
        ++connections_open_;
    }
}

void Server::read_from(Connection& c) {
    static thread_local std::array<char, chunk> buffer;
    for (;;) {
        const auto n = ::recv(c.fd.get(), buffer.data(), buffer.size(), 0);
        if (n == 0 || (n < 0 && errno != EAGAIN))
            return close(c, false);
        if (n > 0)
            c.input.append(buffer.data(), static_cast<std::size_t>(n));
        if (n < static_cast<ssize_t>(buffer.size()))
            break;
    }
    handle_requests(c);
}

void Server::handle_requests(Connection& c) {
    if (c.busy)
        return;
    if (c.input.starts_with('\x16')) { // a TLS handshake: answered as web servers do
        c.busy = true;
        return answer(c, {.then = Answer::Then::close, .raw = "HTTP/1.1 400 Bad Request\r\n\r\n"});
    }
    auto request = parse(c.input);
    if (!request)
        return;
    c.busy = true;
    const Answer a = handler_(*request);
    if (keep_) {
        const std::lock_guard lock(mutex_);
        received_.push_back(std::move(*request));
    }
    if (a.delay > a.delay.zero())
        delayed_.emplace(Clock::now() + a.delay, std::pair(c.id, a));
    else
        answer(c, a);
}

void Server::answer(Connection& c, const Answer& a) {
    const bool answered = a.then == Answer::Then::keep_open || a.then == Answer::Then::close;
    c.output = a.raw;
    if (a.raw.empty() && answered) {
        c.output = "HTTP/1.1 " + std::to_string(a.status) + " Status\r\n";
        for (const std::string& header : a.headers)
            c.output += header + "\r\n";
        c.output += "Content-Length: " + std::to_string(a.body.size() + a.more_body) + "\r\n\r\n";
        c.output += a.body;
    }
    c.more_body = a.more_body;
    c.then = a.then;
    write_to(c);
}

void Server::write_to(Connection& c) {
    for (;;) {
        if (c.sent == c.output.size() && c.more_body > 0) {
            c.output.assign(std::min<std::uint64_t>(c.more_body, chunk), 'x');
            c.more_body -= c.output.size();
            c.sent = 0;
        }
        if (c.sent == c.output.size())
            break;
        const auto n =
            ::send(c.fd.get(), c.output.data() + c.sent, c.output.size() - c.sent, MSG_NOSIGNAL);
        if (n < 0 && errno == EAGAIN)
            return listen_for(c, EPOLLIN | EPOLLOUT);
        if (n < 0)
            return close(c, false);
        c.sent += static_cast<std::size_t>(n);
    }
    if (c.waiting_to_write)
        listen_for(c, EPOLLIN);
    c.output.clear();
    c.sent = 0;
    switch (c.then) {
    case Answer::Then::hang:
        return;
    case Answer::Then::close:
    case Answer::Then::drop:
        return close(c, false);
    case Answer::Then::reset:
        return close(c, true);
    case Answer::Then::keep_open:
        c.busy = false;
        return handle_requests(c);
    }
}

void Server::listen_for(Connection& c, std::uint32_t events) {
    epoll_event event{};
    event.events = events;
    event.data.fd = c.fd.get();
    c.waiting_to_write = events & EPOLLOUT;
    ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, c.fd.get(), &event);
}

void Server::close(Connection& c, bool reset) {
    if (reset) {
        const linger now{1, 0};
        ::setsockopt(c.fd.get(), SOL_SOCKET, SO_LINGER, &now, sizeof now);
    }
    --connections_open_;
    connections_.erase(c.fd.get());
}

void raise_descriptor_limit() {
    rlimit limit{};
    checked(::getrlimit(RLIMIT_NOFILE, &limit));
    limit.rlim_cur = limit.rlim_max;
    checked(::setrlimit(RLIMIT_NOFILE, &limit));
}

int closed_port() {
    int port = 0;
    bound_to_loopback(port);
    return port;
}

} // namespace test
