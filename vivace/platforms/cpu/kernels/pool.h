// The threads that run operations: the caller and pinned or floating workers beside it.
//
// A job is a list of operations, run one after the other; the chunks of one are dealt out by a
// counter, so that a thread that lost its core holds up one chunk, not its share. Workers spin for
// a moment after a job and then sleep.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "op.h"

namespace vivace {

struct Call {
    const Op* op;
    const void* args;
};

class Pool {
   public:
    // threads >= 1 counts the caller; spin_us: how long an idle worker looks before it sleeps.
    Pool(int threads, int64_t spin_us, bool pin);
    ~Pool();
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    void run(const Call* calls, int64_t count);
    int threads() const { return threads_; }

   private:
    struct alignas(64) Progress {
        std::atomic<int64_t> next{0};
        std::atomic<int64_t> done{0};
        int64_t chunks = 0;
    };
    void work(int index, bool pin);
    bool await_job(uint64_t seen);
    void take_part(Scratch& scratch);
    void wake();

    const int threads_;
    const int64_t spin_us_;
    std::vector<std::thread> workers_;
    std::vector<std::unique_ptr<Scratch>> scratch_;
    std::vector<Progress> progress_;
    const Call* calls_ = nullptr;
    int64_t count_ = 0;
    alignas(64) std::atomic<uint32_t> generation_{0};  // odd while a job is open
    alignas(64) std::atomic<int32_t> inside_{0};       // workers that may touch the open job
    alignas(64) std::atomic<int32_t> asleep_{0};
    std::atomic<bool> closing_{false};
};

}  // namespace vivace
