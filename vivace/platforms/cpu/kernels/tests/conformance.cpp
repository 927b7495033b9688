// conformance ISA: every operation of one instruction set ("avx512vnni", "avx512", "avx2", "portable", "neondot",
// "neon")
//                  against a plain loop in double precision. 77: this machine does not have it.
// conformance pool [jobs]: the thread pool under stress.
// conformance ngrams: the index of n-gram drafts.
#include <cstdlib>

#include "check.h"

namespace {

int conform(const char* isa) {
    check::Suite suite(isa);
    if (!suite.usable()) {
        std::printf("%s is not of this CPU or this build\n", isa);
        return 77;
    }
    check::elementwise(suite);
    check::linear(suite);
    check::linear_vnni(suite);
    check::kvcache(suite);
    check::attention(suite);
    check::latent_attention(suite);
    check::recurrent(suite);
    check::heads(suite);
    check::sampling(suite);
    check::moe(suite);
    check::segments(suite);
    check::collectives(suite);
    std::printf("%s: %d operations, %d failures\n", vv_isa(suite.contexts[0]), suite.ops, suite.failures);
    return suite.failures || !suite.ops ? 1 : 0;
}

}  // namespace

int main(int count, char** words) {
    if (count < 2) {
        std::fprintf(stderr, "usage: conformance ISA | pool [jobs] | ngrams\n");
        return 2;
    }
    if (!std::strcmp(words[1], "pool")) return check::pool_stress(count > 2 ? std::atoll(words[2]) : 20000);
    if (!std::strcmp(words[1], "ngrams")) return check::ngrams();
    return conform(words[1]);
}
