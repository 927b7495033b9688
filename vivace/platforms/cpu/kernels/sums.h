// Partial sums of several ranks or segments, added by a tree as a stack sees it.
#pragma once
#include <cstdint>

namespace vivace {

constexpr int64_t MAX_SUMS = 16;  // that wait for others at once; platforms/cpu/native_segments.py lets no more come here

}  // namespace vivace
