// The request that delivers a job.
#pragma once

#include <cstdint>

#include "http/client.hpp"
#include "queue/claim.hpp"
#include "worker/endpoint.hpp"
#include "worker/settings_rows.hpp"

namespace jobq::worker {

// Headers, in the order in which a later one of a name wins: content type and those of CloudEvents,
// the endpoint's, the push's. Nobody but jobq sets webhook-... and jobq-...
//
// It is signed as Standard Webhooks 1.0.0 says, at `at` (unix time). What is signed is the payload
// itself, which is what a receiver has in its hands when it has undone content-encoding.
//
// Errors: those of conversions; the job is not fit to be sent then.
http::Request make_request(const queue::ClaimedJob& job, const QueueSettings& queue,
                           const EndpointSettings& endpoint, std::chrono::microseconds at);

// jobq.send_test()'s.
http::Request make_test_request(const EndpointSettings& endpoint, std::string_view id,
                                std::chrono::microseconds at);

} // namespace jobq::worker
