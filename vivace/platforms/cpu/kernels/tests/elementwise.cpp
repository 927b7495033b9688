// Norms, activations and maps against plain loops in double precision.
#include "check.h"

namespace check {
namespace {

using Number = double (*)(double);

double silu(double x) { return x / (1 + std::exp(-x)); }
double gelu(double x) { return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0))); }
double gelu_tanh(double x) { return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }

// x is [rows, heads, n] with gaps between the rows and the heads; with a residual there is one head.
bool rms_norm(Suite& suite, Random& random, int64_t rows, int64_t heads, int64_t n, bool added) {
    const int64_t head_stride = n + 2, stride = heads * head_stride + 3, size = heads * n;
    const double eps = 1e-5, offset = added ? 1.0 : 0.0;
    const auto x = floats(random, rows * stride, 3), weight = floats(random, n), before = floats(random, rows * n);
    std::vector<float> residual, out;
    const auto reset = [&] { residual = before, out.assign((size_t)(rows * size), 0); };
    reset();
    Words words;
    words.add(rows).add(x).add(stride).add(heads).add(head_stride).add(added ? residual.data() : nullptr);
    words.add(weight).add(out).add(n).add(eps).add(offset);
    if (!suite.run("rms_norm", words, reset, [&] {
            auto bytes = bytes_of(out), more = bytes_of(residual);
            bytes.insert(bytes.end(), more.begin(), more.end());
            return bytes;
        }))
        return false;
    std::vector<double> wanted, kept(added ? (size_t)(rows * n) : 0), line((size_t)n);
    for (int64_t r = 0; r < rows; ++r)
        for (int64_t h = 0; h < heads; ++h) {
            double squares = 0;
            for (int64_t i = 0; i < n; ++i) {
                line[i] = x[r * stride + h * head_stride + i];
                if (added) kept[r * n + i] = line[i] += before[r * n + i];
                squares += line[i] * line[i];
            }
            for (int64_t i = 0; i < n; ++i)
                wanted.push_back(line[i] / std::sqrt(squares / (double)n + eps) * (weight[i] + offset));
        }
    if (!added) residual.clear();
    return suite.close("rms_norm", residual, kept, std::vector<double>(kept.size(), 1), 1e-6) &&
           suite.close("rms_norm", out, wanted, std::vector<double>(wanted.size(), 1), 1e-5);
}

// gate is [rows, groups, heads / groups * n] with gaps between the rows and the groups.
bool gated_rms_norm(Suite& suite, Random& random, int64_t rows, int64_t groups, int64_t shared, int64_t n) {
    const int64_t heads = groups * shared, group_stride = shared * n + 2, stride = groups * group_stride + 3;
    const double eps = 1e-5;
    const auto x = floats(random, rows * heads * n, 3), weight = floats(random, n);
    const auto gate = floats(random, (rows - 1) * stride + (groups - 1) * group_stride + shared * n, 8);
    std::vector<float> out;
    const auto reset = [&] { out.assign(x.size(), 0); };
    reset();
    Words words;
    words.add(rows).add(x).add(weight).add(gate).add(stride).add(group_stride).add(heads).add(groups);
    words.add(out).add(n).add(eps);
    if (!suite.run("gated_rms_norm", words, reset, [&] { return bytes_of(out); })) return false;
    std::vector<double> wanted, scale;
    for (int64_t r = 0; r < rows; ++r)
        for (int64_t h = 0; h < heads; ++h) {
            const float* line = &x[(r * heads + h) * n];
            double squares = 0;
            for (int64_t i = 0; i < n; ++i) squares += (double)line[i] * line[i];
            for (int64_t i = 0; i < n; ++i) {
                const double open = gate[r * stride + h / shared * group_stride + h % shared * n + i];
                wanted.push_back(line[i] / std::sqrt(squares / (double)n + eps) * weight[i] * silu(open));
                scale.push_back(1 + std::fabs(open));
            }
        }
    return suite.close("gated_rms_norm", out, wanted, scale, 1e-5);
}

// A gate that is no number must not look like a closed one.
bool sigmoid_mul(Suite& suite, Random& random, int64_t rows, int64_t heads, int64_t n) {
    const int64_t head_stride = n + 2, stride = heads * head_stride + 3;
    const auto before = floats(random, rows * heads * n, 8);
    auto gate = floats(random, (rows - 1) * stride + (heads - 1) * head_stride + n, 20);
    gate[0] = 300, gate.back() = -300;
    std::vector<float> x;
    const auto reset = [&] { x = before; };
    reset();
    Words words;
    words.add(rows).add(x).add(gate).add(stride).add(head_stride).add(heads).add(n);
    if (!suite.run("sigmoid_mul", words, reset, [&] { return bytes_of(x); })) return false;
    std::vector<double> wanted;
    for (int64_t i = 0; i < rows * heads * n; ++i) {
        const double open = gate[i / (heads * n) * stride + i / n % heads * head_stride + i % n];
        wanted.push_back(before[i] / (1 + std::exp(-open)));
    }
    if (!suite.close("sigmoid_mul", x, wanted, std::vector<double>(before.begin(), before.end()), 1e-6)) return false;
    gate[0] = NAN;
    reset();
    run_one(suite.contexts[0], vv_find(suite.contexts[0], "sigmoid_mul"), words.list.data());
    return std::isnan(x[0]) || suite.fail("sigmoid_mul", "loses a NaN");
}

bool gated(Suite& suite, Random& random, const char* op, Number activation, int64_t rows, int64_t n) {
    const int64_t stride = 2 * n + 5;
    const auto x = floats(random, rows * stride, 8);
    std::vector<float> out;
    const auto reset = [&] { out.assign((size_t)(rows * n), 0); };
    reset();
    Words words;
    words.add(rows).add(x).add(stride).add(out).add(n);
    if (!suite.run(op, words, reset, [&] { return bytes_of(out); })) return false;
    std::vector<double> wanted, scale;
    for (int64_t r = 0; r < rows; ++r)
        for (int64_t i = 0; i < n; ++i) {
            const double gate = x[r * stride + i], up = x[r * stride + n + i];
            wanted.push_back(activation(gate) * up);
            scale.push_back((1 + std::fabs(gate)) * std::fabs(up));
        }
    return suite.close(op, out, wanted, scale, 1e-6);
}

bool swigluoai(Suite& suite, Random& random, int64_t rows, int64_t n) {
    const int64_t stride = 2 * n + 3;
    const double alpha = 1.702, limit = 7;
    const auto x = floats(random, rows * stride, 12);
    std::vector<float> out;
    const auto reset = [&] { out.assign((size_t)(rows * n), 0); };
    reset();
    Words words;
    words.add(rows).add(x).add(stride).add(out).add(n).add(alpha).add(limit);
    if (!suite.run("swigluoai_mul", words, reset, [&] { return bytes_of(out); })) return false;
    std::vector<double> wanted, scale;
    for (int64_t r = 0; r < rows; ++r)
        for (int64_t i = 0; i < n; ++i) {
            const double gate = std::fmin(limit, x[r * stride + i]);
            const double up = std::fmax(-limit, std::fmin(limit, x[r * stride + n + i]));
            wanted.push_back((up + 1) * gate / (1 + std::exp(-alpha * gate)));
            scale.push_back((1 + std::fabs(gate)) * (1 + std::fabs(up)));
        }
    return suite.close("swigluoai_mul", out, wanted, scale, 1e-6);
}

bool scale_positions(Suite& suite, Random& random, int64_t rows, int64_t n) {
    const int64_t stride = n + 3, longest = 40;
    const auto before = floats(random, rows * stride, 8), factors = floats(random, longest);
    std::vector<int64_t> positions;
    for (int64_t i = 0; i < rows; ++i) positions.push_back(random.below(longest));
    std::vector<float> x;
    const auto reset = [&] { x = before; };
    reset();
    Words words;
    words.add(rows).add(x).add(stride).add(n).add(positions).add(factors);
    if (!suite.run("scale_positions", words, reset, [&] { return bytes_of(x); })) return false;
    std::vector<double> wanted(before.begin(), before.end());
    for (int64_t i = 0; i < rows * n; ++i) wanted[i / n * stride + i % n] *= factors[positions[i / n]];
    return suite.close("scale_positions", x, wanted, wanted, 1e-7);
}

bool map(Suite& suite, Random& random, const char* op, double value, double (*wanted_of)(double, double)) {
    const int64_t rows = 5, n = 37;
    const auto before = floats(random, rows * n, 40);
    std::vector<float> x;
    const auto reset = [&] { x = before; };
    reset();
    Words words;
    words.add(rows).add(x).add(n).add(value);
    if (!suite.run(op, words, reset, [&] { return bytes_of(x); })) return false;
    std::vector<double> wanted;
    for (float number : before) wanted.push_back(wanted_of(number, value));
    return suite.close(op, x, wanted, wanted, 2e-6);
}

bool quantize_static(Suite& suite, Random& random, int64_t rows, int64_t n) {
    const int64_t stride = n + 3;
    const float scale = 0.05f, offset = -7;
    auto x = floats(random, rows * stride, 8);
    x[0] = 1e30f;
    std::vector<float> out;
    const auto reset = [&] { out.assign((size_t)(rows * n), 0); };
    reset();
    Words words;
    words.add(rows).add(x).add(stride).add(out).add(n).add((double)scale).add((double)offset);
    if (!suite.run("quantize_static", words, reset, [&] { return bytes_of(out); })) return false;
    std::vector<double> wanted;
    for (int64_t r = 0; r < rows; ++r)
        for (int64_t i = 0; i < n; ++i) {
            const float number = x[r * stride + i] / scale + offset;
            wanted.push_back(std::nearbyint(std::fmin(127.0f, std::fmax(-128.0f, number))));
        }
    return suite.close("quantize_static", out, wanted, std::vector<double>(wanted.size(), 1), 0);
}

bool add_bias(Suite& suite, Random& random, int64_t rows, int64_t n) {
    const auto before = floats(random, rows * n, 8), bias = floats(random, n, 8);
    std::vector<float> x;
    const auto reset = [&] { x = before; };
    reset();
    Words words;
    words.add(rows).add(x).add(bias).add(n);
    if (!suite.run("add_bias", words, reset, [&] { return bytes_of(x); })) return false;
    std::vector<double> wanted;
    for (int64_t i = 0; i < rows * n; ++i) wanted.push_back(before[i] + bias[i % n]);
    return suite.close("add_bias", x, wanted, std::vector<double>(wanted.size(), 1), 0);
}

}  // namespace

void elementwise(Suite& suite) {
    suite.op("rms_norm", [&](Random& random) {
        for (int64_t rows : {1, 3, 17})
            for (int64_t n : {1, 16, 37, 576})
                if (!rms_norm(suite, random, rows, 1, n, true) || !rms_norm(suite, random, rows, 3, n, false))
                    return false;
        return true;
    });
    suite.op("gated_rms_norm", [&](Random& random) {
        for (int64_t rows : {1, 3, 17})
            for (int64_t n : {1, 16, 37, 576})
                if (!gated_rms_norm(suite, random, rows, 1, 1, n) || !gated_rms_norm(suite, random, rows, 3, 2, n))
                    return false;
        return true;
    });
    suite.op("sigmoid_mul", [&](Random& random) {
        return sigmoid_mul(suite, random, 1, 1, 40) && sigmoid_mul(suite, random, 9, 3, 37) &&
               sigmoid_mul(suite, random, 3, 2, 576);
    });
    const std::pair<const char*, Number> activations[] = {
        {"silu_mul", silu}, {"gelu_mul", gelu}, {"gelu_tanh_mul", gelu_tanh}};
    for (const auto& [op, activation] : activations)
        suite.op(op, [&, name = op, of = activation](Random& random) {
            return gated(suite, random, name, of, 1, 40) && gated(suite, random, name, of, 9, 37) &&
                   gated(suite, random, name, of, 3, 2100);
        });
    suite.op("swigluoai_mul", [&](Random& random) {
        return swigluoai(suite, random, 1, 40) && swigluoai(suite, random, 9, 37) && swigluoai(suite, random, 3, 2100);
    });
    suite.op("scale_positions", [&](Random& random) {
        return scale_positions(suite, random, 1, 37) && scale_positions(suite, random, 5, 576);
    });
    suite.op("scale", [&](Random& random) {
        return map(suite, random, "scale", 0.37, [](double x, double by) { return x * by; });
    });
    suite.op("soft_cap", [&](Random& random) {
        return map(suite, random, "soft_cap", 30.0, [](double x, double cap) { return cap * std::tanh(x / cap); });
    });
    suite.op("quantize_static", [&](Random& random) {
        return quantize_static(suite, random, 1, 37) && quantize_static(suite, random, 5, 576);
    });
    suite.op("add_bias", [&](Random& random) {
        return add_bias(suite, random, 1, 37) && add_bias(suite, random, 5, 576);
    });
}

}  // namespace check
