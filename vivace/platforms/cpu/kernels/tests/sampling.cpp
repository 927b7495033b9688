// From logits to tokens: choices exactly, sums closely, against plain loops.
#include <limits>
#include <map>
#include <numeric>

#include "check.h"

namespace check {
namespace {

constexpr float ENDLESS = std::numeric_limits<float>::infinity();
constexpr float NOTHING = std::numeric_limits<float>::quiet_NaN();
constexpr int64_t WIDTHS[] = {1, 2, 15, 16, 17, 100, 511, 512, 513, 1025, 1600};

// Rows of multiples of 1/8: equal numbers are frequent, others clearly apart. Between rows is NaN.
struct Table {
    int64_t rows, n, stride;
    std::vector<float> numbers;

    Table(Random& random, int64_t height, int64_t width, double spread, double masked = 0)
        : rows(height), n(width), stride(width + 7), numbers((size_t)(height * stride), NOTHING) {
        for (int64_t r = 0; r < rows; ++r) {
            for (int64_t i = 0; i < n; ++i) {
                const double bell = random.uniform() + random.uniform() + random.uniform() - 1.5;
                row(r)[i] = random.uniform() < masked ? -ENDLESS : (float)std::floor(8 * spread * bell) / 8;
            }
            row(r)[random.below(n)] = 1;
        }
    }
    float* row(int64_t r) { return &numbers[r * stride]; }
    void fill(int64_t r, float x) { std::fill_n(row(r), n, x); }
    // The last five rows become those that have no token.
    void spoil(int64_t place) {
        row(rows - 5)[place] = NOTHING;
        row(rows - 4)[place] = ENDLESS;
        fill(rows - 3, -ENDLESS), fill(rows - 2, NOTHING);
        row(rows - 1)[0] = ENDLESS, row(rows - 1)[n - 1] = NOTHING;
    }
};

bool same(float a, float b) { return a == b || (a != a && b != b); }

// The first NaN, or else the first of the largest.
int64_t first_best(const float* x, int64_t n) {
    int64_t best = 0;
    for (int64_t i = 0; i < n; ++i) {
        if (x[i] != x[i]) return i;
        if (x[i] > x[best]) best = i;
    }
    return best;
}

bool argmax(Suite& suite, Table table) {
    std::vector<int64_t> tokens, wanted;
    std::vector<uint8_t> bad, spoilt;
    const auto reset = [&] { tokens.assign((size_t)table.rows, -1), bad.assign((size_t)table.rows, 7); };
    reset();
    Words words;
    words.add(table.rows).add(table.numbers).add(table.stride).add(table.n).add((int64_t)0).add(tokens).add(bad);
    if (!suite.run("argmax", words, reset, [&] { return bytes_of(tokens); })) return false;
    for (int64_t r = 0; r < table.rows; ++r) {
        wanted.push_back(first_best(table.row(r), table.n));
        spoilt.push_back(!std::isfinite(table.row(r)[wanted.back()]));
    }
    return tokens == wanted && bad == spoilt;
}

struct Asked {
    double temperature = 1, top_k = 0, top_p = 1, min_p = 0;
};

// What tokens weigh by the definition: relative to the largest, 0 below e^-87.
std::vector<double> weights_of(const float* x, int64_t n, double temperature) {
    const double top = *std::max_element(x, x + n);
    std::vector<double> weights;
    for (int64_t i = 0; i < n; ++i) {
        const double power = (x[i] - top) / (double)(float)temperature;
        weights.push_back(power > -87 ? std::exp(power) : 0);
    }
    return weights;
}

// Tokens of one weight together, the heaviest first: what weighs more, and they themselves.
struct Tied {
    double weight, above, mass;
    int64_t count_above, count;
};

std::vector<Tied> ties_of(const std::vector<double>& weights) {
    std::map<double, int64_t, std::greater<double>> counts;
    for (double w : weights) ++counts[w];
    std::vector<Tied> ties;
    double above = 0;
    int64_t count = 0;
    for (const auto& [weight, many] : counts) {
        ties.push_back({weight, above, weight * (double)many, count, many});
        above += ties.back().mass, count += many;
    }
    return ties;
}

// The weights of the tokens that stay.
std::vector<double> kept_weights(std::vector<double> weights, const Asked& asked) {
    const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
    double least = 0;
    for (const Tied& tied : ties_of(weights)) {
        const bool few = asked.top_k == 0 || (double)tied.count_above < asked.top_k;
        const bool light = asked.top_p >= 1 || tied.above <= asked.top_p * total;
        if (few && light && tied.weight >= asked.min_p) least = tied.weight;
    }
    for (double& w : weights) w = w >= least ? w : 0;
    return weights;
}

// Settings whose borders lie between tokens that are clearly apart.
std::vector<Asked> settings_of(Random& random, const float* x, int64_t n) {
    std::vector<Asked> list = {{1, 0, 1, 0},    {0.1, 0, 1, 0}, {5, 0, 1, 0},  {1e-5, 0, 1, 0},
                               {1, 1, 1, 0},    {0.7, 3, 1, 0}, {1, 40, 1, 0}, {5, 1e5, 1, 0},
                               {1, 0, 1e-6, 0}, {0.7, 0, 1, 1}};
    for (double temperature : {0.7, 3.0}) {
        const auto weights = weights_of(x, n, temperature);
        const auto ties = ties_of(weights);
        const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
        for (int tries = 0; tries < 2; ++tries) {
            const Tied& last = ties[random.below((int64_t)ties.size())];
            if (last.mass < 1e-4 * total || last.weight < 1e-30) continue;
            const double p = (last.above + last.mass / 2) / total, near = std::exp(-0.0625 / temperature);
            list.push_back({temperature, 0, p, 0});
            list.push_back({temperature, 0, 1, last.weight * near});
            list.push_back({temperature, (double)(last.count_above + 1 + random.below(last.count)), 1, 0});
            const double middle = ties[ties.size() / 2].weight;
            list.push_back(
                {temperature, (double)(1 + random.below(n)), p, middle < 1e-30 ? 0 : middle * near});
        }
    }
    return list;
}

// Rows to be drawn, and their tokens; -1: any of the vocabulary.
struct Drawn {
    std::vector<double> settings;
    std::vector<int64_t> wanted;

    void add(int64_t row, const Asked& a, double uniform, int64_t token) {
        settings.insert(settings.end(), {(double)row, a.temperature, a.top_k, a.top_p, a.min_p, uniform});
        wanted.push_back(token);
    }
    // Uniform numbers in the middle of what some tokens weigh, and the ends.
    void add_tokens(Random& random, int64_t row, const Asked& a, const std::vector<double>& weights) {
        const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
        const int64_t n = (int64_t)weights.size();
        int64_t last = n - 1, first = 0;
        while (!(weights[first] > 0)) ++first;
        while (!(weights[last] > 0)) --last;
        add(row, a, 0, first);
        if (weights[last] > 1e-9 * total) add(row, a, 1 - 0x1p-53, last);
        for (int tries = 0; tries < 3; ++tries) {
            const double target = random.uniform() * total;
            double before = 0;
            int64_t token = 0;
            while (token < last && before + weights[token] <= target) before += weights[token++];
            if (weights[token] > 1e-5 * total) add(row, a, (before + weights[token] / 2) / total, token);
        }
    }
};

bool sample(Suite& suite, Random& random, int64_t n, double spread, double masked) {
    const int64_t good = 1;
    Table table(random, good + 5, n, spread, masked);
    table.spoil(random.below(n));
    Drawn drawn;
    for (int64_t r = 0; r < good; ++r)
        for (const Asked& asked : settings_of(random, table.row(r), n))
            drawn.add_tokens(random, r, asked,
                             kept_weights(weights_of(table.row(r), n, asked.temperature), asked));
    for (int64_t r = good; r < table.rows; ++r)
        for (const Asked& asked : {Asked{}, Asked{1, 3, 0.5, 0.1}, Asked{0.5, 0, 0.9, 0}})
            for (double uniform : {0.0, 1 - 0x1p-53}) drawn.add(r, asked, uniform, -1);
    const int64_t rows = (int64_t)drawn.wanted.size();
    std::vector<int64_t> tokens;
    const auto reset = [&] { tokens.assign((size_t)rows, -2); };
    reset();
    Words words;
    words.add(rows).add(table.numbers).add(table.stride).add(n).add(drawn.settings).add(tokens);
    if (!suite.run("sample", words, reset, [&] { return bytes_of(tokens); })) return false;
    for (int64_t i = 0; i < rows; ++i) {
        const int64_t wanted = drawn.wanted[i], token = tokens[i];
        if (wanted < 0 ? token >= 0 && token < n : token == wanted) continue;
        const double* s = &drawn.settings[6 * i];
        std::printf("    row %g of %lld, temperature %g, top-k %g, top-p %.17g, min-p %g, uniform %.17g: ",
                    s[0], (long long)n, s[1], s[2], s[3], s[4], s[5]);
        std::printf("%lld, wanted %lld\n", (long long)token, (long long)wanted);
        return suite.fail("sample", "draws another token");
    }
    return true;
}

bool logsumexp(Suite& suite, Table table) {
    std::vector<float> temperature, totals, got;
    const auto reset = [&] { totals.assign((size_t)table.rows, 0); };
    reset();
    for (int64_t r = 0; r < table.rows; ++r)
        temperature.push_back(r % 3 == 0 ? 0.2f : r % 3 == 1 ? 1.0f : 3.1f);
    Words words;
    words.add(table.rows).add(table.numbers).add(table.stride).add(table.n).add(temperature).add(totals);
    if (!suite.run("logsumexp", words, reset, [&] { return bytes_of(totals); })) return false;
    std::vector<double> wanted, scale;
    for (int64_t r = 0; r < table.rows; ++r) {
        const float* x = table.row(r);
        const float top = x[first_best(x, table.n)];
        if (!std::isfinite(top)) {
            if (!same(totals[r], top)) return suite.fail("logsumexp", "hides a row without numbers");
            continue;
        }
        double sum = 0;
        for (int64_t i = 0; i < table.n; ++i) sum += std::exp(((double)x[i] - top) / temperature[r]);
        got.push_back(totals[r]), wanted.push_back((double)top / temperature[r] + std::log(sum));
        scale.push_back(1 + std::fabs(wanted.back()));
    }
    return suite.close("logsumexp", got, wanted, scale, 5e-7);
}

bool topk(Suite& suite, Table table, int64_t k) {
    std::vector<float> values;
    std::vector<int64_t> ids, order;
    const auto reset = [&] { values.assign((size_t)(table.rows * k), 0), ids.assign(values.size(), -1); };
    reset();
    Words words;
    words.add(table.rows).add(table.numbers).add(table.stride).add(table.n).add(k).add(values).add(ids);
    if (!suite.run("topk", words, reset, [&] { return bytes_of(ids); })) return false;
    for (int64_t r = 0; r < table.rows; ++r) {
        const float* x = table.row(r);
        order.clear();
        for (int64_t i = 0; i < table.n; ++i)
            if (x[i] == x[i]) order.push_back(i);
        std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return x[a] > x[b]; });
        for (int64_t j = 0; j < k; ++j) {  // behind the last number: NaN, and no token
            const bool there = j < (int64_t)order.size();
            if (ids[r * k + j] != (there ? order[j] : 0) ||
                !same(values[r * k + j], there ? x[order[j]] : NOTHING))
                return suite.fail("topk", "gives other tokens or logits");
        }
    }
    return true;
}

bool not_finite(Suite& suite, Random& random, int64_t rows, int64_t n) {
    Table table(random, rows, n, 1);
    for (float& x : table.numbers) x *= 1.7e38f;  // large, and a row's sum may be infinite
    std::vector<uint8_t> bad, wanted((size_t)rows, 0);
    for (float x : {NOTHING, ENDLESS, -ENDLESS}) {
        const int64_t row = random.below(rows), places[] = {0, n - 1, random.below(n)};
        if (rows > 1 || x == ENDLESS) table.row(row)[places[random.below(3)]] = x, wanted[row] = 1;
    }
    const auto reset = [&] { bad.assign((size_t)rows, 7); };
    reset();
    Words words;
    words.add(rows).add(table.numbers).add(table.stride).add(n).add(bad);
    return suite.run("not_finite", words, reset, [&] { return bytes_of(bad); }) && bad == wanted;
}

struct Penalty {
    double entry, row, prompt, known, frequency, presence, repetition;
};

// The rounding of every step is given, so bits are.
void penalize(float* x, int64_t n, const int32_t* tokens, const Penalty& p) {
    std::vector<int> seen((size_t)n, 0), written((size_t)n, 0);
    for (int64_t i = 0; i < (int64_t)p.known; ++i) {
        const int64_t id = std::min<int64_t>(std::max(tokens[i], 0), n - 1);
        ++seen[id], written[id] += i >= (int64_t)p.prompt;
    }
    for (int64_t id = 0; id < n; ++id) {
        const float much = (float)written[id] * (float)p.frequency;
        if (written[id]) x[id] -= much + (float)p.presence;
        if (seen[id]) x[id] = x[id] > 0 ? x[id] / (float)p.repetition : x[id] * (float)p.repetition;
    }
}

bool penalize(Suite& suite, Random& random, int64_t n) {
    const int64_t rows = 6, history = 41;
    Table before(random, 2 * rows, n, 5, 0.1), table = before;
    std::vector<int32_t> tokens;
    const int64_t ids = std::min<int64_t>(n + 4, 30);  // from -2 on, some of them beyond n
    for (int64_t i = 0; i < 8 * history; ++i) tokens.push_back((int32_t)(random.below(ids) - 2));
    std::vector<Penalty> list;
    for (int64_t i = 0; i < rows; ++i) {
        const double prompt = (double)(i ? random.below(20) : 0),
                     known = prompt + (double)(i ? random.below(22) : 0);
        const double frequency[] = {0, 0.3, -1.1}, presence[] = {0, 0.7}, repetition[] = {1, 1.3, 0.6};
        list.push_back({(double)(2 * i + 1), (double)((5 * i + 3) % 8), prompt, known,
                        frequency[random.below(3)], presence[random.below(2)], repetition[random.below(3)]});
    }
    Words words;
    words.add(rows).add(table.numbers).add(table.stride).add(n).add(tokens).add(history).add(list);
    const auto reset = [&] {
        std::copy(before.numbers.begin(), before.numbers.end(), table.numbers.begin());
    };
    if (!suite.run("apply_penalties", words, reset, [&] { return bytes_of(table.numbers); })) return false;
    for (const Penalty& p : list)
        penalize(before.row((int64_t)p.entry), n, &tokens[(int64_t)p.row * history], p);
    return bytes_of(table.numbers) == bytes_of(before.numbers);
}

// One bit for each token; those behind the last one are of nobody.
std::vector<uint32_t> masks(Random& random, int64_t rows, int64_t n) {
    const int64_t words = (n + 31) / 32;
    std::vector<uint32_t> list((size_t)(rows * words));
    for (int64_t r = 0; r < rows; ++r)
        for (int64_t w = 0; w < words; ++w) {
            const uint32_t any = (uint32_t)random.next(), kinds[] = {0, ~0u, any, any & any << 5 & any << 9};
            list[r * words + w] = r == 0 ? 0 : r == 1 ? ~0u : kinds[random.below(4)];
        }
    return list;
}

bool mask(Suite& suite, Random& random, int64_t n) {
    const int64_t rows = 6, words = (n + 31) / 32;
    Table before(random, 2 * rows, n, 5, 0.3), table = before;
    before.row(7)[random.below(n)] = NOTHING, before.fill(9, -ENDLESS);
    const std::vector<int64_t> entries = {11, 1, 7, 9, 2, 3};
    const std::vector<uint32_t> bits = masks(random, rows, n);
    std::vector<int64_t> lines((size_t)(2 * rows)), tokens(lines.size()), wanted;
    std::vector<uint8_t> bad(lines.size()), spoilt;
    for (int64_t r = 0; r < rows; ++r) lines[entries[r]] = (int64_t)(bits.data() + r * words);
    Words list;
    list.add(2 * rows).add(table.numbers).add(table.stride).add(n).add(lines).add(tokens).add(bad);
    const auto reset = [&] {
        std::copy(before.numbers.begin(), before.numbers.end(), table.numbers.begin());
    };
    if (!suite.run("argmax", list, reset, [&] { return bytes_of(table.numbers); })) return false;
    for (int64_t r = 0; r < rows; ++r) {
        float* x = before.row(entries[r]);
        const auto allows = [&](int64_t i) { return bits[r * words + i / 32] >> (i % 32) & 1; };
        bool some = false;
        for (int64_t i = 0; i < n; ++i) {
            if (!allows(i)) x[i] = -ENDLESS;
            some = some || x[i] != -ENDLESS;
        }
        for (int64_t i = 0; i < n && !some; ++i)
            if (allows(i)) x[i] = 0;
    }
    for (int64_t r = 0; r < 2 * rows; ++r) {
        wanted.push_back(first_best(before.row(r), n));
        spoilt.push_back(!std::isfinite(before.row(r)[wanted.back()]));
    }
    return bytes_of(table.numbers) == bytes_of(before.numbers) && tokens == wanted && bad == spoilt;
}

}  // namespace

void sampling(Suite& suite) {
    // `test` of tables with and without rows that have no token
    const auto tables = [](Random& random, const std::function<bool(Table)>& test) {
        for (int64_t n : WIDTHS) {
            Table table(random, 9, n, 6, 0.2);
            if (!test(table)) return false;
            table.spoil(random.below(n));
            if (!test(table)) return false;
        }
        for (int64_t place : {0, 16, 1023, 1024, 1300, 1302}) {
            Table table(random, 6, 1303, 3);
            table.spoil(place);
            if (!test(table)) return false;
        }
        return true;
    };
    suite.op("argmax", [&](Random& random) {
        for (int64_t n : WIDTHS)
            for (int times = 0; times < 4; ++times)
                if (!mask(suite, random, n)) return false;
        return tables(random, [&](Table table) { return argmax(suite, table); });
    });
    suite.op("sample", [&](Random& random) {
        for (int64_t n : WIDTHS)
            if (!sample(suite, random, n, 0, 0) || !sample(suite, random, n, 6, 0.3) ||
                !sample(suite, random, n, 80, 0) || !sample(suite, random, n, 2, 1))
                return false;
        return true;
    });
    suite.op("logsumexp", [&](Random& random) {
        return tables(random, [&](Table table) { return logsumexp(suite, table); });
    });
    suite.op("topk", [&](Random& random) {
        return tables(random, [&](Table table) {
            for (int64_t k : {1, 5, 20, 600, 5000})
                if (!topk(suite, table, std::min(k, table.n))) return false;
            return true;
        });
    });
    suite.op("not_finite", [&](Random& random) {
        for (int64_t rows : {1, 2, 31, 32, 33, 70})
            for (int64_t n : {1, 16, 31, 576})
                if (!not_finite(suite, random, rows, n)) return false;
        return true;
    });
    suite.op("apply_penalties", [&](Random& random) {
        for (int64_t n : WIDTHS)
            for (int times = 0; times < 4; ++times)
                if (!penalize(suite, random, n)) return false;
        return true;
    });
}

}  // namespace check
