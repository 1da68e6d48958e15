#include "http/outcome.hpp"

#include <cerrno>

#include "http/curl.hpp"

namespace jobq::http {

Outcome outcome_of(CURLcode code, CURL* easy, bool connected) noexcept {
    // The proxy answered, but not with a tunnel.
    if (code != CURLE_OK && !connected && info<long>(easy, CURLINFO_HTTP_CONNECTCODE) / 100 > 2)
        return Outcome::proxy_error;
    switch (code) {
    case CURLE_OK:
        return Outcome::answered;
    case CURLE_OPERATION_TIMEDOUT:
        return Outcome::timeout;
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_RESOLVE_PROXY:
        return Outcome::dns_error;
    case CURLE_COULDNT_CONNECT:
        return info<long>(easy, CURLINFO_OS_ERRNO) == ECONNREFUSED ? Outcome::connection_refused
                                                                   : Outcome::unreachable;
    case CURLE_GOT_NOTHING:
    case CURLE_SEND_ERROR:
    case CURLE_RECV_ERROR:
    case CURLE_PARTIAL_FILE:
    case CURLE_HTTP2_STREAM:
        return Outcome::connection_reset;
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_SSL_ENGINE_NOTFOUND:
    case CURLE_SSL_ENGINE_SETFAILED:
    case CURLE_SSL_ENGINE_INITFAILED:
    case CURLE_SSL_CERTPROBLEM:
    case CURLE_SSL_CIPHER:
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_USE_SSL_FAILED:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_SHUTDOWN_FAILED:
    case CURLE_SSL_CRL_BADFILE:
    case CURLE_SSL_ISSUER_ERROR:
    case CURLE_SSL_PINNEDPUBKEYNOTMATCH:
    case CURLE_SSL_INVALIDCERTSTATUS:
        return Outcome::tls_error;
    case CURLE_UNSUPPORTED_PROTOCOL:
        // Said of a URL that is not HTTP, and of an answer that is not.
        return info<long>(easy, CURLINFO_REQUEST_SIZE) > 0 ? Outcome::bad_response
                                                           : Outcome::refused_request;
    case CURLE_PROXY:
        return Outcome::proxy_error;
    case CURLE_WEIRD_SERVER_REPLY:
    case CURLE_HTTP2:
        return Outcome::bad_response;
    case CURLE_URL_MALFORMAT:
        return Outcome::refused_request;
    case CURLE_FILESIZE_EXCEEDED:
        return Outcome::response_too_large;
    case CURLE_OUT_OF_MEMORY:
        return Outcome::out_of_memory;
    default:
        return Outcome::other_error;
    }
}

std::string_view name(Outcome outcome) noexcept {
    switch (outcome) {
    case Outcome::answered:
        return "answered";
    case Outcome::timeout:
        return "timeout";
    case Outcome::dns_error:
        return "dns_error";
    case Outcome::connection_refused:
        return "connection_refused";
    case Outcome::unreachable:
        return "unreachable";
    case Outcome::connection_reset:
        return "connection_reset";
    case Outcome::tls_error:
        return "tls_error";
    case Outcome::proxy_error:
        return "proxy_error";
    case Outcome::bad_response:
        return "bad_response";
    case Outcome::response_too_large:
        return "response_too_large";
    case Outcome::refused_request:
        return "refused_request";
    case Outcome::address_not_allowed:
        return "address_not_allowed";
    case Outcome::out_of_memory:
        return "out_of_memory";
    case Outcome::other_error:
        break;
    }
    return "other_error";
}

} // namespace jobq::http
