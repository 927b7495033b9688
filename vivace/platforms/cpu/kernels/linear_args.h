// What every linear layer is called with, and the last step of one: bias, and the last columns.
#pragma once
#include "op.h"
#include "simd.h"

namespace vivace {

struct LinearArgs {
    int64_t rows;
    const float* x;
    int64_t x_stride;      // floats from row to row
    const uint8_t* panels;  // [ceil(n / 16)][Format::panel_bytes(k)]
    const float* bias;     // null, or [n]
    float* out;
    int64_t out_stride;
    int64_t n, k;
};

// What a product by other products is called with, whatever its format: others read the first member.
struct Int8LinearArgs {
    LinearArgs linear;
    const uint8_t* quantized;  // of quantize_rows or quantize_groups; null: the product makes rows int8 itself
};

struct PackArgs {
    int64_t rows;       // output columns of the layer
    const uint8_t* in;  // [rows, row_bytes]
    int64_t row_bytes;
    uint8_t* out;  // [panels][panel_bytes(k)]
    int64_t k;
    const float* scales;  // int8: [rows]; fp8: [rows, groups of inputs]
};

namespace VV_ISA {

// A product of its own, by one thread.
inline void run_within(const Op* linear, const Int8LinearArgs& args, Scratch& scratch) {
    scratch.kept = Scratch::NOTHING;
    const int64_t chunks = linear->chunks(&args, WITHIN);
    for (int64_t i = 0; i < chunks; ++i) linear->run(&args, i, WITHIN, scratch);
}

VV_INLINE int valid_columns(const LinearArgs& a, int64_t panel) {
    const int64_t left = a.n - panel * 16;
    return left < 16 ? (int)left : 16;
}

VV_INLINE void finish(const LinearArgs& a, int64_t row, int64_t panel, F16 y) {
    const int columns = valid_columns(a, panel);
    float* out = a.out + row * a.out_stride + panel * 16;
    if (columns == 16) {
        store(out, a.bias ? add(y, load(a.bias + panel * 16)) : y);
    } else {
        store_first(out, a.bias ? add(y, load_first(a.bias + panel * 16, columns)) : y, columns);
    }
}

}  // namespace VV_ISA
}  // namespace vivace
