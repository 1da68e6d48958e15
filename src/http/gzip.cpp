#include "http/gzip.hpp"

#include <algorithm>
#include <limits>
#include <new>

#include <zlib.h>

namespace jobq::http {

namespace {

struct Deflate {
    Deflate() {
        constexpr int with_gzip_header = MAX_WBITS + 16;
        constexpr int usual_memory = 8;
        if (deflateInit2(&stream, Z_DEFAULT_COMPRESSION, Z_DEFLATED, with_gzip_header, usual_memory,
                         Z_DEFAULT_STRATEGY) != Z_OK)
            throw std::bad_alloc(); // the only reason, with these values
    }
    ~Deflate() { deflateEnd(&stream); }
    Deflate(const Deflate&) = delete;
    Deflate& operator=(const Deflate&) = delete;

    z_stream stream{};
};

// zlib counts what it is given in an unsigned int.
uInt portion(std::size_t bytes) noexcept {
    return static_cast<uInt>(std::min<std::size_t>(bytes, std::numeric_limits<uInt>::max()));
}

} // namespace

std::string gzip(std::string_view bytes) {
    Deflate deflate;
    z_stream& stream = deflate.stream;
    std::string result(deflateBound(&stream, bytes.size()), '\0');
    std::size_t done = 0, written = 0;
    int code = Z_OK;
    while (code == Z_OK) {
        stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data() + done));
        stream.avail_in = portion(bytes.size() - done);
        stream.next_out = reinterpret_cast<Bytef*>(result.data() + written);
        stream.avail_out = portion(result.size() - written);
        const uInt in = stream.avail_in, out = stream.avail_out;
        code = ::deflate(&stream, done + in == bytes.size() ? Z_FINISH : Z_NO_FLUSH);
        done += in - stream.avail_in;
        written += out - stream.avail_out;
    }
    result.resize(written);
    return result;
}

} // namespace jobq::http
