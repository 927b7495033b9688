// The index of n-gram drafts against loops over whole texts, and its tree at the end of its capacity.
#include "../ngram.h"

#include "check.h"

namespace check {
namespace {

using namespace vivace::ngram;

// Where the longest suffix of at most `longest` tokens ended the last time before the end.
Match match_by_loops(const Tokens& tokens, int64_t longest) {
    const auto size = (int64_t)tokens.size();
    for (int64_t length = std::min(longest, size - 1); length > 0; --length)
        for (int64_t end = size - 1; end >= length; --end)
            if (std::equal(tokens.end() - length, tokens.end(), tokens.begin() + (end - length))) return {length, end};
    return Match();
}

bool own_text(Random& random) {
    for (const int64_t ids : {1, 2, 5, 300}) {
        OwnText text(1, 6);
        for (int i = 0; i < 300; ++i) {
            text.push((int32_t)random.below(ids));
            const Match wanted = match_by_loops(text.tokens, 6);
            if (text.match.length != wanted.length || text.match.end != wanted.end) return false;
        }
    }
    return true;
}

// The children of a place on a path that was just visited: the latest one first, each once, all of them there.
bool children_follow(const Trie& trie, const int32_t* path, int64_t count) {
    Place place;
    if (!trie.find(place, path, count)) return false;
    Place next = place;
    const Tokens latest = trie.children(place, false), frequent = trie.children(place, true);
    if (latest.empty() || latest[0] != path[count] || trie.follow(next, true) != frequent[0]) return false;
    for (const int32_t token : latest) {
        Place behind = place;
        if (!trie.find(behind, &token, 1) || std::count(frequent.begin(), frequent.end(), token) != 1) return false;
    }
    return latest.size() == frequent.size();
}

// A path that was just visited is there, whatever had to leave for it.
bool tree(Random& random) {
    for (const int64_t capacity : {1, 6, 7, 50, 5000}) {
        Trie trie(capacity, 6);
        for (int i = 0; i < 5000; ++i) {
            int32_t path[6];
            for (int32_t& token : path) token = (int32_t)random.below(4);
            const auto count = 1 + random.below(6);
            trie.insert(path, count);
            Place place;
            if (trie.size() > capacity || (capacity >= 7 && !trie.find(place, path, count))) return false;
            if (capacity >= 7 && !children_follow(trie, path, random.below(count))) return false;
        }
    }
    return true;
}

// The longest suffix that stands in a text with something behind it, of at least `least` tokens; 0: none.
int64_t longest_by_loops(const std::vector<Tokens>& texts, const Tokens& context, int64_t least) {
    for (auto length = (int64_t)context.size(); length >= least; --length)
        for (const Tokens& text : texts)
            for (auto at = text.begin();; ++at) {
                at = std::search(at, text.end(), context.end() - length, context.end());
                if (at == text.end()) break;
                if (at + length < text.end() && at[length] >= 0) return length;
            }
    return 0;
}

// Texts come and go, as documents with an end or without.
bool corpora(Random& random) {
    Corpora corpora(8);
    std::vector<Tokens> texts;
    for (int i = 0; i < 300; ++i) {
        if (texts.size() > 3 || (!texts.empty() && random.below(4) == 0)) {
            const auto place = random.below((int64_t)texts.size());
            corpora.remove(place);
            texts.erase(texts.begin() + place);
        } else {
            Tokens text;
            for (auto left = random.below(60); left >= 0; --left) text.push_back((int32_t)random.below(4) - 1);
            corpora.add(text.data(), (int64_t)text.size());
            texts.push_back(text);
        }
        for (int j = 0; j < 20; ++j) {
            Tokens context;
            for (int k = 0; k < 6; ++k) context.push_back((int32_t)random.below(3));
            const int64_t least = 1 + random.below(3);
            const Match found = corpora.find(context.data() + context.size(), least, 6);
            if (found.length != longest_by_loops(texts, context, least)) return false;
            const auto end = corpora.tokens.begin() + found.end;
            if (found.length && (*end < 0 || !std::equal(context.end() - found.length, context.end(), end - found.length)))
                return false;
        }
    }
    return true;
}

}  // namespace

int ngrams() {
    Random random(7);
    int failures = 0;
    const struct {
        const char* name;
        bool (*test)(Random&);
    } tests[] = {{"own text", own_text}, {"tree", tree}, {"corpora", corpora}};
    for (const auto& one : tests) {
        const bool right = one.test(random);
        std::printf("%s %s\n", right ? "pass" : "FAIL", one.name);
        failures += !right;
    }
    return failures ? 1 : 0;
}

}  // namespace check
