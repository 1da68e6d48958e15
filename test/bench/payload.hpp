#pragma once

#include <cstdio>
#include <string>

namespace bench {

// The payload of a job: 200 bytes of JSON with the job's number, as PostgreSQL writes a jsonb.
inline std::string payload(unsigned long long number) {
    constexpr std::size_t size = 200;
    char head[48];
    std::snprintf(head, sizeof head, R"({"n": "%012llu", "pad": ")", number);
    std::string text = head;
    text.append(size - 2 - text.size(), 'x');
    return text += "\"}";
}

} // namespace bench
