// A Sender over verbs: to one reader, or a fan-out with a queue pair per reader. docs/rdma.md.
#pragma once

#include <memory>
#include <vector>

#include "connections/late_counts.h"
#include "connections/verbs_link.h"
#include "core/connection.h"

namespace ringcomm {

class VerbsSender final : public Sender, public OwesCounts, public VerbsEnd {
 public:
  struct Reader {
    int rank;
    Greeting greeting;
  };
  // It may outlive the Connections that made it (VerbsNet::linger), so it holds what they share.
  VerbsSender(std::shared_ptr<VerbsShared> shared, LateCounts& late, size_t capacity,
              const std::vector<Reader>& readers);

  char* reserve(size_t bytes) override;
  void publish(uint32_t tag) override;
  bool settled() override;
  bool returned() override { return true; }  // nothing is lent
  size_t capacity() const override { return outbox_.capacity; }
  int waits_for() const override { return waits_for_; }
  const Error* error() const override { return error_ ? &error_ : nullptr; }
  bool over() override;
  // Whether the last messages came through: their readers would wait for ever for what a device could not deliver.
  bool count_late() override;
  bool told() override { return over(); }

 private:
  bool start();
  bool commit();
  bool connected(bool small);
  bool has_room(bool small);
  bool look_for_room(bool small);
  bool failed();
  uint64_t payloads_below(uint64_t message) const;

  const std::shared_ptr<VerbsShared> shared_;
  LateCounts& late_;
  uint64_t seen_late_ = 0;  // the poller's
  VerbsDevice& device_;
  VerbsOutbox outbox_;
  std::vector<std::unique_ptr<VerbsLink>> links_;  // gone before the memory that the device reads
  bool started_ = false, all_ready_ = false, all_have_slots_ = false;
  uint64_t next_ = 0, next_payload_ = 0;    // messages published, and those over 56 bytes among them
  uint64_t until_ = 0, until_payload_ = 0;  // there is room below these, as far as was looked
  size_t reserved_ = 0;
  int asked_ = 0;  // how many more messages ask for their count
  int waits_for_;
  Error error_;
};

}  // namespace ringcomm
