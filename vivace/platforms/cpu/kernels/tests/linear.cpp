// Linear layers in every format of weights: the file's bytes are decoded here once more, plainly.
#include "check.h"

namespace check {
namespace {

// One format: bytes of a block of `size` numbers, which of its halves are scales, its decoder.
struct Format {
    const char* name;
    int64_t size, bytes;
    std::vector<int> halves;
    std::function<void(const uint8_t*, double*)> decode;
};

double half_at(const uint8_t* p) {
    uint16_t h;
    std::memcpy(&h, p, 2);
    return from_half(h);
}

void fives(const uint8_t* high, const uint8_t* q, double d, double m, double* out) {
    uint32_t bits;
    std::memcpy(&bits, high, 4);
    for (int j = 0; j < 16; ++j) {
        out[j] = d * ((q[j] & 15) | (bits >> j & 1) << 4) + m;
        out[j + 16] = d * (q[j] >> 4 | (bits >> (j + 16) & 1) << 4) + m;
    }
}

// Scale and minimum of part j of eight, six bits each in twelve bytes.
void k_scale(const uint8_t* s, int j, int& scale, int& minimum) {
    scale = j < 4 ? s[j] & 63 : (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
    minimum = j < 4 ? s[j + 4] & 63 : s[j + 4] >> 4 | (s[j] >> 6) << 4;
}

void k_parts(const uint8_t* block, const uint8_t* q, const uint8_t* high, double* out) {
    const double d = half_at(block), least = half_at(block + 2);
    for (int part = 0; part < 8; ++part)
        for (int i = 0; i < 32; ++i) {
            int scale, minimum;
            k_scale(block + 4, part, scale, minimum);
            const int byte = q[32 * (part / 2) + i], nibble = part % 2 ? byte >> 4 : byte & 15;
            const int fifth = high ? (high[i] >> part & 1) << 4 : 0;
            out[32 * part + i] = d * scale * (nibble | fifth) - least * minimum;
        }
}

void six(const uint8_t* block, double* out) {
    const uint8_t *low = block, *high = block + 128;
    const auto* scales = (const int8_t*)block + 192;
    const double d = half_at(block + 208);
    for (int i = 0; i < 256; ++i) {
        const int half = i / 128, quarter = i % 128 / 32, l = i % 32;
        const int byte = low[64 * half + 32 * (quarter % 2) + l], nibble = quarter < 2 ? byte & 15 : byte >> 4;
        const int top = high[32 * half + l] >> (2 * quarter) & 3;
        out[i] = d * scales[i / 16] * ((nibble | top << 4) - 32);
    }
}

// Two exponent bits and one of fraction, times 2^(e - 127); e is kept small, so that sums are numbers.
void e2m1(const uint8_t* block, double* out) {
    static const double sizes[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    for (int i = 0; i < 32; ++i) {
        const int code = i < 16 ? block[1 + i] & 15 : block[1 + i - 16] >> 4;
        out[i] = std::ldexp(code & 8 ? -sizes[code & 7] : sizes[code], block[0] - 127);
    }
}

// Four exponent bits and three of fraction (float8 e4m3fn).
void e4m3(const uint8_t* p, double* out) {
    const int exponent = *p >> 3 & 15, fraction = *p & 7;
    const double size = exponent ? std::ldexp(8 + fraction, exponent - 10) : std::ldexp(fraction, -9);
    *out = *p & 0x80 ? -size : size;
}

const std::vector<Format>& formats() {
    static const std::vector<Format> list = {
        {"f32",
         1,
         4,
         {},
         [](const uint8_t* p, double* out) {
             float f;
             std::memcpy(&f, p, 4);
             *out = f;
         }},
        {"f16", 1, 2, {0}, [](const uint8_t* p, double* out) { *out = half_at(p); }},
        {"bf16",
         1,
         2,
         {},
         [](const uint8_t* p, double* out) {
             uint16_t b;
             std::memcpy(&b, p, 2);
             *out = from_bf16(b);
         }},
        {"i8", 1, 1, {}, [](const uint8_t* p, double* out) { *out = (int8_t)*p; }},
        {"q8_0",
         32,
         34,
         {0},
         [](const uint8_t* p, double* out) {
             for (int i = 0; i < 32; ++i) out[i] = half_at(p) * (int8_t)p[2 + i];
         }},
        {"q4_0",
         32,
         18,
         {0},
         [](const uint8_t* p, double* out) {
             for (int i = 0; i < 32; ++i) out[i] = half_at(p) * ((i < 16 ? p[2 + i] & 15 : p[2 + i - 16] >> 4) - 8);
         }},
        {"q4_1",
         32,
         20,
         {0, 2},
         [](const uint8_t* p, double* out) {
             for (int i = 0; i < 32; ++i)
                 out[i] = half_at(p) * (i < 16 ? p[4 + i] & 15 : p[4 + i - 16] >> 4) + half_at(p + 2);
         }},
        {"q5_0",
         32,
         22,
         {0},
         [](const uint8_t* p, double* out) { fives(p + 2, p + 6, half_at(p), -16 * half_at(p), out); }},
        {"q5_1",
         32,
         24,
         {0, 2},
         [](const uint8_t* p, double* out) { fives(p + 4, p + 8, half_at(p), half_at(p + 2), out); }},
        {"q4_k", 256, 144, {0, 2}, [](const uint8_t* p, double* out) { k_parts(p, p + 16, nullptr, out); }},
        {"q5_k", 256, 176, {0, 2}, [](const uint8_t* p, double* out) { k_parts(p, p + 48, p + 16, out); }},
        {"q6_k", 256, 210, {208}, six},
        {"mxfp4", 32, 17, {}, e2m1},
        {"fp8", 1, 1, {}, e4m3},
    };
    return list;
}

// A layer of random bytes whose scales are ordinary numbers.
struct Layer {
    const Format& format;
    int64_t n, k, row_bytes;
    std::vector<uint8_t> bytes, panels;
    std::vector<float> scales;
    std::vector<double> weights;  // [n, k]

    Layer(const Format& f, Random& random, int64_t columns, int64_t depth)
        : format(f), n(columns), k(depth), row_bytes(depth / f.size * f.bytes) {
        bytes.resize((size_t)(n * row_bytes));
        for (auto& byte : bytes) byte = (uint8_t)random.next();
        const bool f32 = !std::strcmp(f.name, "f32"), bf16 = !std::strcmp(f.name, "bf16");
        const bool fp8 = !std::strcmp(f.name, "fp8");
        for (auto& byte : bytes) byte = fp8 && (byte & 0x7f) == 0x7f ? 0x31 : byte;  // no NaN
        for (int64_t i = 0; i < n * k && (f32 || bf16); ++i) {
            const float x = random.signed_unit();
            const uint16_t b = to_bf16(x);
            f32 ? std::memcpy(&bytes[4 * i], &x, 4) : std::memcpy(&bytes[2 * i], &b, 2);
        }
        weights.resize((size_t)(n * k));
        const int64_t groups = fp8 ? (k + 127) / 128 : 1;
        scales = floats(random, n * groups);
        for (int64_t block = 0; block < n * k / f.size; ++block) {
            uint8_t* at = &bytes[block * f.bytes];
            if (!std::strcmp(f.name, "mxfp4")) at[0] = (uint8_t)(110 + random.below(20));
            for (int half : f.halves) at[half + 1] = (uint8_t)((at[half + 1] & 0x83) | (8 + random.below(4)) << 2);
            f.decode(at, &weights[block * f.size]);
        }
        if (!std::strcmp(f.name, "i8"))
            for (int64_t i = 0; i < n * k; ++i) weights[i] *= scales[i / k];
        for (int64_t i = 0; fp8 && i < n * k; ++i) weights[i] *= scales[i / k * groups + i % k / 128];
        panels.resize((size_t)((n + 15) / 16 * (16 * row_bytes * 2 + 4096)));
    }

    bool pack(Suite& suite, const std::string& op) {
        Words words;
        words.add(n).add(bytes).add(row_bytes).add(panels).add(k).add(scales);
        return suite.run(op.c_str(), words, [&] { std::fill(panels.begin(), panels.end(), 0xa5); },
                         [&] { return bytes_of(panels); });
    }
};

// What the int8 numbers of x stand for: 32 neighbors share a scale.
std::vector<float> quantized(std::vector<float> x, int64_t stride, int64_t k) {
    for (size_t at = 0; at < x.size(); at += stride)
        for (int64_t b = 0; b < k; b += 32) {
            float largest = 1e-10f;
            for (int64_t i = b; i < b + 32; ++i) largest = std::max(largest, std::fabs(x[at + i]));
            for (int64_t i = b; i < b + 32; ++i)
                x[at + i] = std::nearbyintf(x[at + i] * (127.0f / largest)) * (largest / 127.0f);
        }
    return x;
}

// Activations become int8 first, by an operation of their own or (`few`) within the product.
bool multiply_int8(Suite& suite, const char* op, const Layer& layer, Random& random, int64_t rows, bool few) {
    const int64_t n = layer.n, k = layer.k, stride = k + 16;
    const auto x = floats(random, rows * stride, 3), exact = quantized(x, stride, k), bias = floats(random, n);
    std::vector<uint8_t> int8((size_t)(rows * k / 32 * 48));
    Words first, second;
    first.add(rows).add(x).add(stride).add(int8).add(k);
    if (!few && !suite.run("quantize_rows", first, [&] { std::fill(int8.begin(), int8.end(), 0); },
                           [&] { return bytes_of(int8); })) return false;
    std::vector<float> out;
    const auto reset = [&] { out.assign((size_t)(rows * n), 0); };
    reset();
    second.add(rows).add(x).add(stride).add(layer.panels).add(bias).add(out).add(n).add(n).add(k);
    second.add(few ? nullptr : (const void*)int8.data());
    if (!suite.run(op, second, reset, [&] { return bytes_of(out); })) return false;
    std::vector<double> wanted(out.size()), scale(out.size());
    for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < n; ++c) {
            double sum = bias[c], size = std::fabs(sum);
            for (int64_t i = 0; i < k; ++i) {
                const double product = exact[r * stride + i] * layer.weights[c * k + i];
                sum += product, size += std::fabs(product);
            }
            wanted[r * n + c] = sum, scale[r * n + c] = size;
        }
    return suite.close(op, out, wanted, scale, 3e-6);
}

// act(gate) * up in int8 has the bytes of the operations it stands for.
bool multiply_gated(Suite& suite, const std::string& format, const Layer& layer, Random& random, int64_t rows) {
    static const char* const activations[] = {"silu_mul", "gelu_mul", "gelu_tanh_mul"};
    const int64_t inner = layer.n / 2, k = layer.k, activation = rows % 3;
    const auto x = floats(random, rows * k, 0.3f), bias = floats(random, layer.n);
    std::vector<float> both((size_t)(rows * layer.n)), gated((size_t)(rows * inner));
    std::vector<uint8_t> wanted((size_t)(rows * inner / 32 * 48)), found(wanted.size());
    void* context = suite.contexts[0];
    const auto run = [&](const std::string& op, Words words) {
        run_one(context, vv_find(context, op.c_str()), words.list.data());
    };
    run("linear_" + format + "_a8", Words().add(rows).add(x).add(k).add(layer.panels).add(bias).add(both).add(layer.n)
                                        .add(layer.n).add(k).add(nullptr));
    run(activations[activation], Words().add(rows).add(both).add(layer.n).add(gated).add(inner));
    run("quantize_rows", Words().add(rows).add(gated).add(inner).add(wanted).add(inner));
    Words words;
    words.add(rows).add(x).add(k).add(layer.panels).add(bias).add(found).add(inner).add(k).add(nullptr).add(activation);
    const std::string op = "gated_" + format + "_a8";
    if (!suite.run(
            op.c_str(), words, [&] { std::fill(found.begin(), found.end(), 0); }, [&] { return bytes_of(found); }))
        return false;
    return found == wanted || suite.fail(op.c_str(), "differs from the operations it stands for");
}

bool multiply(Suite& suite, const char* op, const Layer& layer, Random& random, int64_t rows, bool biased) {
    const int64_t n = layer.n, k = layer.k, stride = k + 16, out_stride = n + 3;
    const auto x = floats(random, rows * stride), bias = floats(random, n);
    std::vector<float> out;
    const auto reset = [&] { out.assign((size_t)(rows * out_stride), 0); };
    reset();
    const auto call = [&](int64_t count, int64_t row) {
        Words words;
        words.add(count).add(x.data() + row * stride).add(stride).add(layer.panels).add(biased ? bias.data() : nullptr);
        return words.add(out.data() + row * out_stride).add(out_stride).add(n).add(k);
    };
    if (!suite.run(op, call(rows, 0), reset, [&] { return bytes_of(out); })) return false;
    const std::vector<float> together = out;
    reset();
    for (int64_t row = 0; row < rows; ++row)
        run_one(suite.contexts[0], vv_find(suite.contexts[0], op), call(1, row).list.data());
    if (out != together) return suite.fail(op, "gives a row other bits beside other rows");
    std::vector<double> wanted(out.size()), scale(out.size());
    for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < n; ++c) {
            double sum = biased ? bias[c] : 0, size = std::fabs(sum);
            for (int64_t i = 0; i < k; ++i) {
                const double product = x[r * stride + i] * layer.weights[c * k + i];
                sum += product, size += std::fabs(product);
            }
            wanted[r * out_stride + c] = sum, scale[r * out_stride + c] = size;
        }
    // vdpbf16ps takes activations that were rounded to bf16
    const char* isa = vv_isa(suite.contexts[0]);
    const bool rounded = !std::strcmp(layer.format.name, "bf16") && (std::strstr(isa, "bf16") || std::strstr(isa, "emulated"));
    return suite.close(op, together, wanted, scale, rounded ? 3e-3 : 3e-6);
}

// Rows of a packed layer; an id that it has not gives NaN.
bool embed(Suite& suite, const char* op, const Layer& layer, Random& random) {
    const int64_t first = 7, whole = first + layer.n + 2;
    std::vector<int64_t> ids = {0, first - 1, first, first + layer.n - 1, first + layer.n, whole - 1, -1, whole, 16, 15};
    for (int i = 0; i < 5; ++i) ids.push_back(first + random.below(layer.n));
    const int64_t rows = (int64_t)ids.size(), k = layer.k;
    std::vector<float> out;
    const auto reset = [&] { out.assign((size_t)(rows * k), 0); };
    reset();
    Words words;
    words.add(rows).add(ids).add(layer.panels).add(out).add(layer.n).add(k).add(first).add(whole);
    if (!suite.run(op, words, reset, [&] { return bytes_of(out); })) return false;
    double largest = 0;
    for (double w : layer.weights) largest = std::max(largest, std::fabs(w));
    std::vector<double> wanted(out.size(), 0), scale(out.size(), largest);
    for (int64_t i = 0; i < rows * k; ++i) {
        const int64_t id = ids[i / k];
        const bool there = id >= first && id < first + layer.n, others = id >= 0 && id < whole;
        if (there) wanted[i] = layer.weights[(id - first) * k + i % k];
        else if (others) scale[i] = 0;
        else if (out[i] == out[i]) return suite.fail(op, "has a row for every id");
        else out[i] = 0;
    }
    return suite.close(op, out, wanted, scale, 1e-6);
}

}  // namespace

void linear(Suite& suite) {
    for (const Format& format : formats()) {
        const std::string pack = std::string("pack_") + format.name, multiplied = std::string("linear_") + format.name;
        suite.op(pack.c_str(), [&](Random& random) {
            return Layer(format, random, 37, 512).pack(suite, pack);
        });
        suite.op(multiplied.c_str(), [&](Random& random) {
            for (int64_t k : {256, 1280})
                for (int64_t n : {16, 75}) {
                    Layer layer(format, random, n, k);
                    if (!layer.pack(suite, pack)) return false;
                    for (int64_t rows : {1, 3, 4, 7, 29})
                        if (!multiply(suite, multiplied.c_str(), layer, random, rows, rows % 2)) return false;
                }
            return true;
        });
        const std::string embedding = std::string("embed_") + format.name;
        suite.op(embedding.c_str(), [&](Random& random) {
            Layer layer(format, random, 37, 512);
            return layer.pack(suite, pack) && embed(suite, embedding.c_str(), layer, random);
        });
        const std::string pack_int8 = pack + "_a8", multiply = multiplied + "_a8";
        if (suite.words(multiply.c_str()) <= 0) continue;
        suite.op(multiply.c_str(), [&](Random& random) {
            for (int64_t k : {256, 1280})
                for (int64_t n : {16, 75}) {
                    Layer layer(format, random, n, k);
                    if (!layer.pack(suite, pack_int8)) return false;
                    for (int64_t rows : {1, 2, 4, 5, 13, 24, 25})
                        for (bool few : {false, true})
                            if (!multiply_int8(suite, multiply.c_str(), layer, random, rows, few)) return false;
                }
            return true;
        });
        suite.op(("gated_" + std::string(format.name) + "_a8").c_str(), [&](Random& random) {
            for (int64_t inner : {32, 96}) {
                Layer layer(format, random, 2 * inner, 256);
                if (!layer.pack(suite, pack_int8)) return false;
                for (int64_t rows : {1, 2, 3, 5, 13, 24, 25})
                    if (!multiply_gated(suite, format.name, layer, random, rows)) return false;
            }
            return true;
        });
    }
}

}  // namespace check
