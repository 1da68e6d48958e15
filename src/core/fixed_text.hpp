#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/text.hpp"

namespace jobq::core {

// A text of at most N bytes of anything; what is longer is cut as by clip(). Plain data for shared
// memory (all zero bytes is the empty text), and nothing here allocates or fails.
template <std::size_t N>
class FixedText {
    static_assert(N <= UINT16_MAX);

public:
    static constexpr std::size_t capacity = N;

    FixedText() = default;
    FixedText(std::string_view text) noexcept { *this = text; }
    FixedText& operator=(std::string_view text) noexcept {
        text = clipped(text, N);
        std::copy(text.begin(), text.end(), bytes_.begin());
        size_ = static_cast<std::uint16_t>(text.size());
        return *this;
    }

    // Valid until the text changes.
    std::string_view view() const noexcept { return {bytes_.data(), size_}; }
    bool empty() const noexcept { return size_ == 0; }

private:
    std::uint16_t size_ = 0;
    std::array<char, N> bytes_{};
};

} // namespace jobq::core
