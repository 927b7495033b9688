// The threads that run operations: the caller and pinned or floating workers beside it.
//
// A job is a list of operations, run one after the other; the chunks of one are handed out by a
// counter, so that a thread that lost its core holds up one chunk, not its share. Workers spin for
// a moment after a job and then sleep.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "op.h"

#if !defined(__linux__) || defined(VV_NO_FUTEX)
#define VV_CONDITION 1
#include <condition_variable>
#endif

namespace vivace {

struct Call {
    const Op* op;
    const void* args;
};

// Threads asleep until a word changes. The word is changed before wake_all() is called.
class Sleepers {
   public:
    void wait_while(std::atomic<uint32_t>& word, uint32_t value);
    void wake_all(std::atomic<uint32_t>& word);

#ifdef VV_CONDITION
   private:
    std::mutex lock_;
    std::condition_variable changed_;
#endif
};

class Pool {
   public:
    // threads >= 1 counts the caller; spin_us: how long an idle worker looks before it sleeps.
    // Where the system refuses a thread, the pool has as many as it got.
    Pool(int threads, int64_t spin_us, bool pin);
    ~Pool();
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    // Run the calls in order; the lists stay as they are until it returns. Callers take turns.
    // A call's chunks() may be asked before the calls in front of it have run: it depends on
    // nothing that they write. In a forked child, where no worker lives, the caller runs alone.
    void run(const Call* calls, int64_t count);
    int threads() const { return threads_; }

   private:
    struct alignas(64) Progress {
        std::atomic<int64_t> next{0};
        std::atomic<int64_t> done{0};
        int64_t chunks = 0;
    };
    bool forked() const;
    void start(int index, bool pin);
    void work(int index, bool pin);
    bool await_job(uint32_t seen);
    void run_alone(const Call* calls, int64_t count);
    void prepare(const Call* calls, int64_t count);
    bool worth_sharing() const;
    void share();
    void take_part(Scratch& scratch);

    int threads_;
    const int64_t spin_us_;
    const uint32_t forks_;  // of the process when the pool was made
    std::mutex turn_;
    std::vector<std::thread> workers_;
    std::vector<std::unique_ptr<Scratch>> scratch_;
    std::vector<Progress> progress_;
    // Written by the caller while no job is open and no worker inside, read by workers inside one.
    const Call* calls_ = nullptr;
    int64_t count_ = 0;
    alignas(64) std::atomic<uint32_t> generation_{0};  // odd while a job is open
    alignas(64) std::atomic<int32_t> inside_{0};       // workers that may touch the open job
    alignas(64) std::atomic<int32_t> asleep_{0};
    std::atomic<bool> closing_{false};
    Sleepers sleepers_;
};

}  // namespace vivace
