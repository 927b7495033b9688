// One native operation: how many independent chunks it has, and how to do one of them.
//
// Arguments are a flat array of 8-byte words (pointers, int64, double), packed by Python's struct
// module: the same bytes are run at once (eager) or kept in a graph (captured). The first word is
// always the number of rows, so that a graph can be replayed with fewer rows than were captured.
#pragma once
#include <cstddef>
#include <cstdint>

namespace vivace {

// Memory of one thread that grows and is never given back. Contents do not survive a chunk, or only to the next
// chunks of the same call: `kept` is what the operation says of them, and NOTHING when a call begins.
struct Scratch {
    static constexpr int64_t NOTHING = -1;
    void* data = nullptr;
    size_t size = 0;
    int64_t kept = NOTHING;
    void* get(size_t bytes);
};

// Instead of a number of threads: an operation within another one, whose chunks one thread does all. They need not be
// small then.
constexpr int WITHIN = 0;

struct Op {
    const char* name;
    int64_t words;                                     // length of its arguments
    int64_t (*chunks)(const void* args, int threads);  // 0 = nothing to do
    void (*run)(const void* args, int64_t chunk, int threads, Scratch& scratch);
};

// A table compiled for one instruction set; `name` is null in the last entry.
using OpTable = const Op*;

// The rows of this chunk when `rows` are divided into chunks of `chunk_size`.
struct Range {
    int64_t begin, end;
};
inline Range chunk_range(int64_t rows, int64_t chunk_size, int64_t chunk) {
    const int64_t begin = chunk * chunk_size;
    return {begin, begin + chunk_size < rows ? begin + chunk_size : rows};
}
inline int64_t ceil_div(int64_t x, int64_t y) { return (x + y - 1) / y; }

}  // namespace vivace
