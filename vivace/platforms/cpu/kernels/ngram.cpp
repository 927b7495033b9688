// The index of n-gram drafts, as ctypes calls it: platforms/cpu/native_ngrams.py, whose reference is
// platforms/ops/ngrams.py. Functions that allocate return -1 where there is no memory, and otherwise 0.
#include "ngram.h"

#include <new>
#include <unordered_map>

namespace vivace {
namespace ngram {
namespace {

constexpr int64_t SPACE = 4;            // tokens in front of each path
constexpr int64_t PROMPT_PATHS = 4096;  // that a row that joins or leaves brings to all others
constexpr int64_t STEP_PATHS = 64;      // beside those of a step's own tokens, of what a prompt has left

struct Settings {
    int64_t width, shortest, longest, depth, capacity, by_frequency, budget;
};

struct Row {
    Row(const Settings& settings, const int32_t* space)
        : text(settings.shortest, settings.longest), space{space[0], space[1], space[2], space[3]} {}
    OwnText text;
    std::array<int32_t, SPACE> space;  // whose texts it shares
    int64_t shared = 0;            // of its tokens, those at which a path of the trie begins
};

class Index {
   public:
    explicit Index(const Settings& settings)
        : settings(settings),
          trie(settings.capacity, SPACE + settings.depth),
          corpora(std::max(settings.depth, settings.longest + 1)) {}

    void join(int64_t number, const int32_t* space, const int32_t* tokens, int64_t count, int64_t known) {
        leave(number);
        Row& row = rows.try_emplace(number, settings, space).first->second;
        row.text.reserve(count);
        for (int64_t i = 0; i < count; ++i) row.text.push(tokens[i]);
        row.shared = std::max<int64_t>(0, std::min(known, count) - settings.depth + 1);
        share(row, PROMPT_PATHS);
    }

    void leave(int64_t number) {
        const auto found = rows.find(number);
        if (found == rows.end()) return;
        Row& row = found->second;
        share(row, PROMPT_PATHS);
        const Tokens& tokens = row.text.tokens;
        const auto size = (int64_t)tokens.size();
        if (row.shared + settings.depth > size)
            for (int64_t at = row.shared; at < size; ++at) insert(row, at, size - at);
        rows.erase(found);
    }

    void learn(int64_t number, const int32_t* tokens, int64_t count) {
        const auto found = rows.find(number);
        if (found == rows.end()) return;
        for (int64_t i = 0; i < count; ++i) found->second.text.push(tokens[i]);
        share(found->second, count + STEP_PATHS);
    }

    // Up to `width` drafts; `length`: of the suffix that they followed.
    int64_t propose(int64_t number, int32_t* drafts, int64_t* length) const {
        *length = 0;
        const auto found = rows.find(number);
        if (found == rows.end()) return 0;
        const Row& row = found->second;
        const Match own = row.text.match;
        Place space, place;
        const bool known = trie.find(space, row.space.data(), SPACE);
        const int64_t least = own.length + (settings.by_frequency ? 0 : 1);
        const int64_t shared = known ? match_trie(row.text.tokens, space, least, place) : 0;
        const int64_t best = std::max(own.length, shared);
        const Match given = match_corpora(row.text.tokens, best + 1);
        *length = std::max(best, given.length);
        if (given.length) return copy(corpora.tokens, given.end, std::min(settings.width, settings.budget), drafts);
        if (shared) return descend(row.text.tokens, space, place, shared, drafts);
        return own.length ? repeat(row.text.tokens, own.end, drafts) : 0;
    }

    // Further ways beside `count` drafts, which become a tree of up to `width`; returns how many there are.
    int64_t branch(int64_t number, int32_t* drafts, int32_t* parents, int64_t count, int64_t most, int64_t least) const {
        const auto found = rows.find(number);
        Place space;
        if (found == rows.end() || !trie.find(space, found->second.space.data(), SPACE)) return count;
        const Tokens& tokens = found->second.text.tokens;
        const int64_t window = std::min({settings.longest, settings.depth - 1, (int64_t)tokens.size()});
        for (int64_t at = -1; at < count && count < settings.width; ++at) {
            Tokens way;
            for (int64_t i = at; i >= 0; i = parents[i]) way.push_back(drafts[i]);
            const int64_t breadth = std::max(most - (int64_t)way.size(), least);
            Tokens context(tokens.end() - window, tokens.end());
            context.insert(context.end(), way.rbegin(), way.rend());
            Place place;
            if (!match_trie(context, space, 1, place)) continue;
            int64_t children = std::count(parents, parents + count, (int32_t)at);
            for (const int32_t token : trie.children(place, settings.by_frequency != 0)) {
                if (children >= breadth || count >= settings.width) break;
                bool there = false;
                for (int64_t i = 0; i < count; ++i) there |= parents[i] == at && drafts[i] == token;
                if (there) continue;
                drafts[count] = token, parents[count] = (int32_t)at;
                ++count, ++children;
            }
        }
        return count;
    }

    void add_corpus(const int32_t* tokens, int64_t count) { corpora.add(tokens, count); }
    void remove_corpus(int64_t place) { corpora.remove(place); }

    int64_t size() const { return trie.size(); }
    int64_t nbytes() const {
        int64_t sum = trie.nbytes();
        for (const auto& row : rows) sum += row.second.text.nbytes() + (int64_t)sizeof(Row);
        return sum + corpora.nbytes();
    }

    const Settings settings;

   private:
    // Up to so many whole paths of what the row knows, for all who share its space.
    void share(Row& row, int64_t most) {
        const Tokens& tokens = row.text.tokens;
        for (; most > 0 && row.shared + settings.depth <= (int64_t)tokens.size(); --most, ++row.shared)
            insert(row, row.shared, settings.depth);
    }

    void insert(const Row& row, int64_t at, int64_t count) {
        path.assign(row.space.begin(), row.space.end());
        path.insert(path.end(), &row.text.tokens[(size_t)at], &row.text.tokens[(size_t)at] + count);
        trie.insert(path.data(), (int64_t)path.size());
    }

    // The longest suffix with something behind it, of at least `least` tokens, and its place.
    int64_t match_trie(const Tokens& tokens, Place space, int64_t least, Place& place) const {
        const auto size = (int64_t)tokens.size();
        for (int64_t length = std::min({settings.longest, settings.depth - 1, size});
             length >= std::max(least, settings.shortest); --length) {
            place = space;
            if (trie.find(place, &tokens[(size_t)(size - length)], length) && trie.goes_on(place)) return length;
        }
        return 0;
    }

    Match match_corpora(const Tokens& tokens, int64_t least) const {
        if (corpora.empty() || !settings.budget) return Match();
        return corpora.find(tokens.data() + tokens.size(), std::max(least, settings.shortest),
                            std::min(settings.longest, (int64_t)tokens.size()));
    }

    // What stands behind `end`, and behind the last token the drafts themselves.
    int64_t repeat(const Tokens& tokens, int64_t end, int32_t* drafts) const {
        const auto size = (int64_t)tokens.size();
        for (int64_t i = 0; i < settings.width; ++i)
            drafts[i] = end + i < size ? tokens[(size_t)(end + i)] : drafts[end + i - size];
        return settings.width;
    }

    static int64_t copy(const Tokens& tokens, int64_t from, int64_t most, int32_t* drafts) {
        int64_t count = 0;
        for (; count < most && from + count < (int64_t)tokens.size(); ++count)
            if ((drafts[count] = tokens[(size_t)(from + count)]) < 0) break;  // a document ends
        return count;
    }

    // Along the path; where it is as long as paths get, along that of its longest suffix.
    int64_t descend(const Tokens& tokens, Place space, Place place, int64_t length, int32_t* drafts) const {
        const int64_t window = std::min(settings.longest, settings.depth - 1);
        const bool by_frequency = settings.by_frequency != 0;
        Tokens context(tokens.end() - std::min((int64_t)tokens.size(), window), tokens.end());
        int64_t count = 0;
        while (count < settings.width) {
            int32_t next = trie.follow(place, by_frequency);
            if (next < 0) {
                if (length < settings.depth || (int64_t)context.size() < window) break;
                place = space;
                if (!trie.find(place, &context[context.size() - (size_t)window], window)) break;
                if ((next = trie.follow(place, by_frequency)) < 0) break;
                length = window;
            }
            ++length;
            context.push_back(drafts[count++] = next);
        }
        return count;
    }

    std::unordered_map<int64_t, Row> rows;
    Trie trie;
    Tokens path;
    Corpora corpora;
};

template <class Action>
int64_t attempt(Action action) {
    try {
        action();
        return 0;
    } catch (const std::bad_alloc&) {
        return -1;
    }
}

Index* index_at(void* index) { return static_cast<Index*>(index); }

}  // namespace
}  // namespace ngram
}  // namespace vivace

using namespace vivace::ngram;

#pragma GCC visibility push(default)
extern "C" {

// `settings`: the seven numbers of Settings; null where there is no memory.
void* vv_ngram_open(const int64_t* settings) {
    Settings given;
    std::memcpy(&given, settings, sizeof given);
    void* made = nullptr;
    attempt([&] { made = new Index(given); });
    return made;
}

void vv_ngram_close(void* index) { delete index_at(index); }

int64_t vv_ngram_join(void* index, int64_t row, const int32_t* space, const int32_t* tokens, int64_t count, int64_t known) {
    return attempt([&] { index_at(index)->join(row, space, tokens, count, known); });
}

int64_t vv_ngram_leave(void* index, int64_t row) {
    return attempt([&] { index_at(index)->leave(row); });
}

// The tokens of all rows one behind the other, counts[i] of the i-th.
int64_t vv_ngram_learn(void* index, int64_t count, const int64_t* rows, const int64_t* counts, const int32_t* tokens) {
    return attempt([&] {
        for (int64_t i = 0; i < count; tokens += counts[i++]) index_at(index)->learn(rows[i], tokens, counts[i]);
    });
}

// To drafts[count, width], counts[count] and lengths[count].
int64_t vv_ngram_propose(void* index, int64_t count, const int64_t* rows, int32_t* drafts, int64_t* counts,
                         int64_t* lengths) {
    return attempt([&] {
        const Index& self = *index_at(index);
        for (int64_t i = 0; i < count; ++i)
            counts[i] = self.propose(rows[i], drafts + i * self.settings.width, lengths + i);
    });
}

// The first `count` of drafts[width] and parents[width] become `*count`.
int64_t vv_ngram_branch(void* index, int64_t row, int32_t* drafts, int32_t* parents, int64_t* count, int64_t most,
                        int64_t least) {
    return attempt([&] { *count = index_at(index)->branch(row, drafts, parents, *count, most, least); });
}

int64_t vv_ngram_add_corpus(void* index, const int32_t* tokens, int64_t count) {
    return attempt([&] { index_at(index)->add_corpus(tokens, count); });
}

// Of those that were added and are still there the `place`-th.
int64_t vv_ngram_remove_corpus(void* index, int64_t place) {
    return attempt([&] { index_at(index)->remove_corpus(place); });
}

int64_t vv_ngram_nodes(void* index) { return index_at(index)->size(); }

int64_t vv_ngram_bytes(void* index) { return index_at(index)->nbytes(); }

}  // extern "C"
#pragma GCC visibility pop
