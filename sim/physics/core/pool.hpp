// SPDX-License-Identifier: Apache-2.0
// Threads that wait between steps. Which thread takes which item does not matter: items share nothing.
#pragma once
#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace r2s {

class Pool {
 public:
  explicit Pool(int nthread) {
    for (int i = 1; i < nthread; ++i) threads_.emplace_back([this, i] { loop(i); });
  }
  ~Pool() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    for (auto& t : threads_) t.join();
  }
  int size() const { return int(threads_.size()) + 1; }

  // Calls f(item, thread) for every item.
  void run(int items, const std::function<void(int, int)>& f) {
    if (threads_.empty() || items <= 1) {
      for (int i = 0; i < items; ++i) f(i, 0);
      return;
    }
    {
      std::lock_guard<std::mutex> lock(mutex_);
      job_ = &f;
      items_ = items;
      next_ = 0;
      busy_ = int(threads_.size());
      ++generation_;
    }
    wake_.notify_all();
    work(0);
    std::unique_lock<std::mutex> lock(mutex_);
    done_.wait(lock, [this] { return busy_ == 0; });
  }

 private:
  void work(int thread) {
    for (int i = next_++; i < items_; i = next_++) (*job_)(i, thread);
  }
  void loop(int thread) {
    std::uint64_t seen = 0;
    for (;;) {
      {
        std::unique_lock<std::mutex> lock(mutex_);
        wake_.wait(lock, [&] { return stop_ || generation_ != seen; });
        if (stop_) return;
        seen = generation_;
      }
      work(thread);
      std::lock_guard<std::mutex> lock(mutex_);
      if (--busy_ == 0) done_.notify_one();
    }
  }
  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::condition_variable wake_, done_;
  const std::function<void(int, int)>* job_ = nullptr;
  std::atomic<int> next_{0};
  int items_ = 0, busy_ = 0;
  std::uint64_t generation_ = 0;
  bool stop_ = false;
};

}  // namespace r2s
