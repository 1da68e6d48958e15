#include "node_server.hpp"

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <system_error>

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

namespace test {

using jobq::http::Fd;

namespace {

constexpr int patience_ms = 30'000;

void run(const std::string& command) {
    if (std::system((command + " >/dev/null 2>&1").c_str()) != 0)
        throw std::runtime_error("failed: " + command);
}

} // namespace

const Certificates& Certificates::get() {
    static const Certificates certificates;
    return certificates;
}

Certificates::Certificates() {
    std::string name = std::filesystem::temp_directory_path() / "jobq-unit-XXXXXX";
    if (!::mkdtemp(name.data()))
        throw std::system_error(errno, std::system_category(), "mkdtemp");
    directory_ = name;
    const std::string new_key = " -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes ";
    for (const std::string ca : {"ca", "other-ca"})
        run("openssl req -x509 -days 2 -subj '/CN=" + ca + "'" + new_key + "-keyout " + file(ca) +
            ".key -out " + file(ca) + ".pem");
    const auto make = [&](const std::string& who, const std::string& names, int days) {
        run("openssl req -new -subj /CN=" + who + new_key + "-keyout " + file(who) + ".key -out " +
            file(who) + ".csr -addext subjectAltName=" + names);
        run("openssl x509 -req -copy_extensions copy -days " + std::to_string(days) + " -in " +
            file(who) + ".csr -CA " + ca() + " -CAkey " + file("ca.key") +
            " -CAcreateserial -out " + file(who) + ".pem");
    };
    make("server", "IP:127.0.0.1,DNS:tls.test", 2);
    make("elsewhere", "DNS:elsewhere.test", 2);
    make("expired", "IP:127.0.0.1", -1);
    make("alice", "DNS:alice.test", 2);
    make("bob", "DNS:bob.test", 2);
    run("openssl pkey -aes256 -passout pass:secret -in " + key("alice") + " -out " +
        file("alice-encrypted.key"));
    std::ifstream certificate(file("bob.pem")), key(file("bob.key"));
    std::ofstream(file("bob-both.pem")) << certificate.rdbuf() << key.rdbuf();
}

Certificates::~Certificates() {
    std::error_code ignored;
    std::filesystem::remove_all(directory_, ignored);
}

NodeServer::NodeServer(std::string_view options) {
    std::array<int, 2> in{}, out{};
    if (::pipe2(in.data(), O_CLOEXEC) != 0)
        throw std::system_error(errno, std::system_category(), "pipe2");
    const Fd its_input(in[0]);
    input_ = Fd(in[1]);
    if (::pipe2(out.data(), O_CLOEXEC) != 0)
        throw std::system_error(errno, std::system_category(), "pipe2");
    const Fd its_output(out[1]);
    output_ = Fd(out[0]);

    std::string argument = "{" + std::string(options) + "}";
    std::string script = TEST_DIRECTORY "node_server.js";
    std::string program = "node";
    std::array<char*, 4> arguments{program.data(), script.data(), argument.data(), nullptr};
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, in[0], 0);
    ::posix_spawn_file_actions_adddup2(&actions, out[1], 1);
    const int error =
        ::posix_spawnp(&pid_, program.c_str(), &actions, nullptr, arguments.data(), environ);
    ::posix_spawn_file_actions_destroy(&actions);
    if (error)
        throw std::system_error(error, std::system_category(), "node");

    while (text_.find('\n') == std::string::npos) {
        pollfd ready{output_.get(), POLLIN, 0};
        if (::poll(&ready, 1, patience_ms) != 1)
            throw std::runtime_error("node says nothing");
        const std::size_t before = text_.size();
        read_more();
        if (text_.size() == before)
            throw std::runtime_error("node ended");
    }
    port_ = std::stoi(text_);
    text_.erase(0, text_.find('\n') + 1);
    ::fcntl(output_.get(), F_SETFL, O_NONBLOCK);
}

NodeServer::~NodeServer() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
}

void NodeServer::read_more() {
    std::array<char, 4096> buffer;
    ssize_t n;
    do {
        n = ::read(output_.get(), buffer.data(), buffer.size());
        if (n > 0)
            text_.append(buffer.data(), static_cast<std::size_t>(n));
    } while (n == static_cast<ssize_t>(buffer.size()));
}

std::vector<std::string> NodeServer::lines() {
    read_more();
    std::vector<std::string> lines;
    for (std::size_t begin = 0, end; (end = text_.find('\n', begin)) != std::string::npos;
         begin = end + 1)
        lines.push_back(text_.substr(begin, end - begin));
    return lines;
}

std::string NodeServer::url(std::string_view path, std::string_view host) const {
    return "https://" + std::string(host) + ":" + std::to_string(port_) + std::string(path);
}

std::string tls(std::string_view kind, std::string_view certificate) {
    const Certificates& certificates = Certificates::get();
    return R"("kind": ")" + std::string(kind) + R"(", "key": ")" + certificates.key(certificate) +
           R"(", "cert": ")" + certificates.certificate(certificate) + "\"";
}

} // namespace test
