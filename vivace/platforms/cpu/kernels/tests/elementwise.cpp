// rms_norm against sums in double precision.
#include "check.h"

namespace check {
namespace {

bool rms_norm(Suite& suite, Random& random, int64_t rows, int64_t n, bool added) {
    const int64_t stride = n + 3, out_stride = n + 5;
    const double eps = 1e-5, offset = added ? 1.0 : 0.0;
    const auto x = floats(random, rows * stride, 3), weight = floats(random, n), before = floats(random, rows * n);
    std::vector<float> residual, out;
    const auto reset = [&] { residual = before, out.assign((size_t)(rows * out_stride), 0); };
    reset();
    Words words;
    words.add(rows).add(x).add(stride).add(added ? residual.data() : nullptr).add(weight);
    words.add(out).add(out_stride).add(n).add(eps).add(offset);
    if (!suite.run("rms_norm", words, reset, [&] {
            auto bytes = bytes_of(out), more = bytes_of(residual);
            bytes.insert(bytes.end(), more.begin(), more.end());
            return bytes;
        }))
        return false;
    std::vector<double> wanted((size_t)(rows * out_stride)), kept((size_t)(rows * n));
    for (int64_t r = 0; r < rows; ++r) {
        double squares = 0;
        for (int64_t i = 0; i < n; ++i) {
            kept[r * n + i] = added ? x[r * stride + i] + before[r * n + i] : x[r * stride + i];
            squares += kept[r * n + i] * kept[r * n + i];
        }
        for (int64_t i = 0; i < n; ++i)
            wanted[r * out_stride + i] = kept[r * n + i] / std::sqrt(squares / (double)n + eps) * (weight[i] + offset);
    }
    const bool right = !added || suite.close("rms_norm", residual, kept, std::vector<double>(kept.size(), 1), 1e-6);
    return suite.close("rms_norm", out, wanted, std::vector<double>(wanted.size(), 1), 1e-5) && right;
}

}  // namespace

void elementwise(Suite& suite) {
    suite.op("rms_norm", [&](Random& random) {
        for (int64_t rows : {1, 3, 17})
            for (int64_t n : {1, 16, 37, 576})
                for (bool added : {false, true})
                    if (!rms_norm(suite, random, rows, n, added)) return false;
        return true;
    });
}

}  // namespace check
