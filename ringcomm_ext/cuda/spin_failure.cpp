#include "cuda/spin_failure.h"

#include <string>

#include "cuda/device_runtime.h"

namespace ringcomm::cuda {
namespace {

FailureCause cause_of(uint64_t word) { return static_cast<FailureCause>(word & ((1u << kFailureToSend) - 1)); }

Cause cause_of(FailureCause cause) {
  if (cause == FailureCause::timeout) return Cause::timeout;
  return cause == FailureCause::aborted ? Cause::aborted : Cause::mismatch;
}

}  // namespace

bool failure_of(const Failure* failures, int blocks, int rank, Error& error) {
  uint64_t word = 0, tag = 0;
  for (int b = 0; b < blocks; ++b) {
    const uint64_t here = __atomic_load_n(&failures[b].word, __ATOMIC_ACQUIRE);
    if (cause_of(here) <= cause_of(word)) continue;
    word = here, tag = __atomic_load_n(&failures[b].tag, __ATOMIC_RELAXED);
  }
  const FailureCause cause = cause_of(word);
  if (cause == FailureCause::none) return false;
  const int peer = static_cast<int>(word >> kFailurePeer & kFailurePeerMask);
  const int step = static_cast<int>(word >> kFailureStep);
  const bool to_send = word >> kFailureToSend & 1;
  std::string text = "the kernel of rank " + std::to_string(rank);
  if (cause == FailureCause::foreign_tag)
    text += " found a slot of another call (tag " + std::to_string(tag) + ") from rank " + std::to_string(peer);
  else
    text += std::string(" was waiting for ") + (to_send ? "room at" : "data from") + " rank " + std::to_string(peer);
  text += " in step " + std::to_string(step);
  if (cause == FailureCause::aborted) text += " when it was told to end";
  if (cause == FailureCause::timeout) text += " when its time was over";
  refuse(cause_of(cause), text, error);
  error.reporter = rank, error.peer = peer, error.step = step;
  if (cause != FailureCause::aborted) error.rank = peer;
  return true;
}

}  // namespace ringcomm::cuda
