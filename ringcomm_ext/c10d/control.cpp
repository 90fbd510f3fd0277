// What c10d asks of a backend beside moving data: the monitored barrier, blocks of calls, hooks, time-outs.
#include <utility>

#include "c10d/backend.h"
#include "c10d/signals.h"
#include "engine/process.h"

namespace ringcomm {

using c10::intrusive_ptr;
using c10d::Work;

void Backend::monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks) {
  // Unset is negative; 0 means one look, as with gloo.
  const int64_t ms = opts.timeout.count() < 0 ? timeout_ms_.load() : opts.timeout.count();
  const int64_t ns = ms > kNoDeadline / 1'000'000 ? kNoDeadline : ms * 1'000'000;
  std::exception_ptr raised;
  const std::string error = group().monitored_barrier(ns, wait_all_ranks, [&raised] { return signals_raise(raised); });
  if (raised) std::rethrow_exception(raised);
  TORCH_CHECK_WITH(DistBackendError, error.empty(), error);
}

// ---------------------------------------------------------------------------------------------------------------- coalescing

void Backend::startCoalescing() {
  group();  // the same errors as a call
  blocks_.open();
}

intrusive_ptr<Work> Backend::endCoalescing() {
  Block block;
  TORCH_CHECK(blocks_.close(block), "ringcomm: end_coalescing of group '", group_->spec().name,
              "' without start_coalescing on this thread");
  return c10::make_intrusive<CoalescedWork>(getRank(), std::move(block));
}

// ---------------------------------------------------------------------------------------------------------------- hooks

void Backend::registerOnCompletionHook(CompletionHook::Function&& hook) {
  group();
  TORCH_CHECK(!hooked_.load(), "ringcomm: group '", group_->spec().name,
              "' has a completion hook already; a group can have one");
  hook_ = std::make_shared<CompletionHook>(process_engine()->callbacks(), std::move(hook));
  onCompletionHook_ = [hook = hook_](const std::shared_ptr<c10d::WorkInfo>& info) { hook->call(info); };
  hooked_.store(true, std::memory_order_release);
}

void Backend::waitForPendingWorks() {
  if (!hooked_.load() || forked()) return;
  std::exception_ptr raised;
  // At exit the callback threads are gone, and with them whoever would run the hook.
  hook_->wait([&raised] {
    Engine* engine = process_engine();
    return !engine || engine->exiting() || signals_raise(raised);
  });
  if (raised) std::rethrow_exception(raised);
}

void Backend::setTimeout(std::chrono::milliseconds timeout) {
  TORCH_CHECK_VALUE(timeout.count() > 0, "ringcomm: set_timeout: ", timeout.count(), " ms; it must be positive");
  timeout_ms_ = timeout.count();
  options_->timeout = timeout;  // torch hands a copy to the groups made from this one
}

}  // namespace ringcomm
