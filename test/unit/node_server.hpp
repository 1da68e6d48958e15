#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include <sys/types.h>

#include "http/fd.hpp"

namespace test {

// A directory with a certificate authority of its own, and certificates of it for servers and
// clients, as PEM. Made once by the openssl command, and removed at the end.
class Certificates {
public:
    static const Certificates& get();
    ~Certificates();
    Certificates(const Certificates&) = delete;
    Certificates& operator=(const Certificates&) = delete;

    std::string file(std::string_view name) const { return directory_ + "/" + std::string(name); }
    std::string ca() const { return file("ca.pem"); }
    std::string other_ca() const { return file("other-ca.pem"); }
    // Each with a file name.key beside it: "server" is good for 127.0.0.1 and tls.test, "elsewhere"
    // for elsewhere.test, "expired" was good for 127.0.0.1; "alice" and "bob" are clients.
    std::string certificate(std::string_view name) const { return file(name) + ".pem"; }
    std::string key(std::string_view name) const { return file(name) + ".key"; }

private:
    Certificates();
    std::string directory_;
};

// node_server.js on a free port of the loopback, in a process of its own.
class NodeServer {
public:
    // The members of its JSON argument, without the braces.
    explicit NodeServer(std::string_view options);
    ~NodeServer();
    NodeServer(const NodeServer&) = delete;
    NodeServer& operator=(const NodeServer&) = delete;

    int port() const noexcept { return port_; }
    std::string url(std::string_view path = "/", std::string_view host = "127.0.0.1") const;
    // What it has printed since it began.
    std::vector<std::string> lines();

private:
    void read_more();

    pid_t pid_ = -1;
    jobq::http::Fd input_, output_;
    std::string text_;
    int port_ = 0;
};

// A NodeServer's options for TLS with this certificate. kind: "h1" or "h2".
std::string tls(std::string_view kind, std::string_view certificate = "server");

} // namespace test
