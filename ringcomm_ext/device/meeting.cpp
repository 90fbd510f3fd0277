#include "device/meeting.h"

#include <cstring>
#include <memory>

#include "cuda/device_runtime.h"

namespace ringcomm {
namespace {

constexpr size_t kRecord = 4096;
static_assert(kMostSaid + sizeof(uint32_t) <= kRecord);

using Records = std::vector<char>;

std::string text_at(const char* record) {
  uint32_t bytes;
  std::memcpy(&bytes, record, sizeof bytes);
  return {record + sizeof bytes, std::min<size_t>(bytes, kMostSaid)};
}

}  // namespace

bool meet(Communicator& group, const std::string& mine, int64_t deadline_ns, const std::function<bool()>& interrupted,
          std::vector<std::string>& all, Error& error) {
  const auto ranks = static_cast<size_t>(group.spec().ranks);
  if (mine.size() > kMostSaid)
    return cuda::refuse(Cause::internal, std::to_string(mine.size()) + " bytes are too many for a meeting", error);
  const auto records = std::make_shared<Records>(kRecord * (ranks + 1));
  const auto bytes = static_cast<uint32_t>(mine.size());
  std::memcpy(records->data(), &bytes, sizeof bytes);
  std::memcpy(records->data() + sizeof bytes, mine.data(), mine.size());
  Call call;
  call.collective = Collective::all_gather;
  call.dtype = DType::uint8;
  call.in = {{records->data(), kRecord}};
  for (size_t r = 0; r < ranks; ++r) call.out.push_back({records->data() + kRecord * (r + 1), kRecord});
  call.bytes = kRecord * ranks;
  call.deadline_ns = deadline_ns;
  call.caller_waits = true;
  call.keep = records;
  std::string mistake;
  const RequestPtr request = group.start(call, mistake);
  if (!request) return cuda::refuse(Cause::internal, mistake, error);
  if (!group.wait(*request, kNoDeadline, interrupted)) return error = {}, false;
  if (request->error()) return error = *request->error(), false;
  all.clear();
  for (size_t r = 0; r < ranks; ++r) all.push_back(text_at(records->data() + kRecord * (r + 1)));
  return true;
}

// First byte: whether what follows is an error's text.
bool meet_or_fail(Communicator& group, const Error& failed, const std::string& mine, int64_t deadline_ns,
                  const std::function<bool()>& interrupted, std::vector<std::string>& all, Error& error) {
  const std::string said = failed ? std::string("!") + failed.text : "." + mine;
  if (!meet(group, said, deadline_ns, interrupted, all, error)) return false;
  for (size_t r = 0; r < all.size(); ++r)
    if (all[r].empty() || all[r][0] != '.') {
      cuda::refuse(Cause::connection,
                   group.rank_name(static_cast<int>(r)) + ": " + all[r].substr(all[r].empty() ? 0 : 1), error);
      error.rank = static_cast<int>(r);
      return false;
    }
  for (std::string& text : all) text.erase(0, 1);
  return true;
}

}  // namespace ringcomm
