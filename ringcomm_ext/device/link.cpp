#include "device/link.h"

#include <time.h>
#include <unistd.h>

#include <cstring>
#include <utility>

#include "connections/fd_exchange.h"
#include "core/log.h"
#include "cuda/device_mode.h"
#include "cuda/memop_group.h"
#include "cuda/spin_group.h"
#include "device/meeting.h"
#include "device/runtimes.h"
#include "engine/process.h"

namespace ringcomm {
namespace {

const char* const kFlags = "the flags of a group of devices";

std::string said(const cuda::RankDevice& d) {
  std::string text = d.process + "\n" + d.uuid + "\n" + (d.one_process ? "1" : "0");
  for (const std::string& uuid : d.unreachable) text += "\n" + uuid;
  return text;
}

cuda::RankDevice heard(const std::string& text) {
  std::vector<std::string> parts(1);
  for (char c : text)
    if (c == '\n')
      parts.emplace_back();
    else
      parts.back() += c;
  parts.resize(std::max<size_t>(parts.size(), 3));
  cuda::RankDevice d;
  d.process = parts[0], d.uuid = parts[1], d.one_process = parts[2] == "1";
  d.unreachable.assign(parts.begin() + 3, parts.end());
  return d;
}

// What a rank says when it has its memory.
struct Card {
  cuda::DeviceCard device;
  uint64_t page_bytes;
  Nonce nonce;       // under which its server has the pages,
  char socket[128];  // and where that is
};

uint32_t power_of_two(uint32_t n) {
  uint32_t p = 1;
  while (p < n) p *= 2;
  return p;
}

}  // namespace

// Own pages, for whoever knows the nonce.
struct DeviceLink::Offer {
  Nonce nonce = fresh_nonce();
  explicit Offer(int fd) { process_engine()->server().offer(nonce, {fd}); }
  ~Offer() {
    if (Engine* engine = process_engine()) engine->server().withdraw(nonce);
  }
};

DeviceLink::DeviceLink(Communicator& group, cuda::DeviceRuntime& runtime) : group_(group), runtime_(runtime) {}

DeviceLink::~DeviceLink() {
  if (devices_) (void)devices_.release();
  for (auto& pages : pages_) (void)new std::shared_ptr<Segment>(std::move(pages));
}

std::unique_ptr<DeviceLink> DeviceLink::make(Communicator& group, int ordinal, int64_t deadline_ns,
                                             const std::function<bool()>& interrupted, Error& error) {
  std::vector<std::string> all;
  Error mine;
  cuda::RankDevice facts;
  cuda::DeviceRuntime* runtime = nullptr;
  if (group.spec().control)
    cuda::refuse(Cause::internal, "the group spans several machines; tensors on devices stay inside one so far", mine);
  else
    runtime = device_runtime(ordinal, mine);
  if (runtime != nullptr) (void)cuda::rank_device(*runtime, "", facts, mine);
  if (!meet_or_fail(group, mine, said(facts), deadline_ns, interrupted, all, error)) return nullptr;

  std::vector<cuda::RankDevice> ranks;
  for (const std::string& text : all) ranks.push_back(heard(text));
  const cuda::ModeChoice choice = cuda::choose_mode(ranks, std::nullopt);
  if (!choice.mode) {
    cuda::refuse(Cause::connection, choice.reason, error);
    return nullptr;
  }
  std::unique_ptr<DeviceLink> link(new DeviceLink(group, *runtime));
  link->reason_ = choice.reason;
  (void)link->prepare(*choice.mode, mine);
  if (!meet_or_fail(group, mine, mine ? "" : link->card(), deadline_ns, interrupted, all, error)) return nullptr;
  (void)link->connect(all, deadline_ns, interrupted, mine);
  if (!meet_or_fail(group, mine, "", deadline_ns, interrupted, all, error)) return nullptr;
  link->offer_.reset();
  if (group.spec().rank == 0)
    log(LogLevel::info, std::string("devices: ") + cuda::name(*choice.mode) + " mode, since " + choice.reason +
                            "; group " + group.spec().name);
  const std::string warning = device_source().warning;
  if (group.spec().rank == 0 && !warning.empty()) log(LogLevel::warn, "devices: " + warning);
  return link;
}

// Slots as the host's: a rule that fits there fits here.
bool DeviceLink::prepare(cuda::DeviceMode mode, Error& error) {
  const GroupSpec& spec = group_.spec();
  const ShmLayout& host = spec.layout;
  if (mode == cuda::DeviceMode::spin) {
    const DeviceSource source = device_source();
    cuda::SpinShape shape;
    shape.fifos = {spec.ranks, source.blocks, power_of_two(host.slots),
                   std::max(host.pair_capacity, host.fan_out_capacity), 0};
    shape.threads = source.threads;
    if (shape.fifos.slots > cuda::kMaxSlots)
      return cuda::refuse(Cause::internal,
                          "memory.slots is " + std::to_string(host.slots) + "; on devices " +
                              std::to_string(cuda::kMaxSlots) + " are the most",
                          error);
    devices_ = cuda::SpinGroup::make(runtime_, shape, spec.rank, error);
  } else {
    cuda::EnqueuerShape shape;
    shape.ranks = spec.ranks, shape.slots = static_cast<int>(host.slots);
    shape.pair = host.pair_capacity, shape.fan_out = host.fan_out_capacity;
    devices_ = cuda::MemopGroup::make(runtime_, shape, spec.rank, error);
  }
  if (!devices_) return false;
  const size_t bytes = devices_->flag_bytes() + DeviceBoard::kBytes;
  auto own = Segment::create(bytes, error);
  if (!own || !own->commit(0, bytes, process_engine()->budget(), kFlags, error)) return false;
  offer_ = std::make_unique<Offer>(own->fd());
  pages_.resize(static_cast<size_t>(spec.ranks));
  pages_[static_cast<size_t>(spec.rank)] = std::move(own);
  return true;
}

std::string DeviceLink::card() const {
  Card card{};
  card.device = devices_->card();
  card.page_bytes = devices_->flag_bytes() + DeviceBoard::kBytes;
  card.nonce = offer_->nonce;
  std::snprintf(card.socket, sizeof card.socket, "%s", process_engine()->server().address().c_str());
  return {reinterpret_cast<const char*>(&card), sizeof card};
}

bool DeviceLink::connect(const std::vector<std::string>& cards, int64_t deadline_ns,
                         const std::function<bool()>& interrupted, Error& error) {
  static_assert(sizeof(Card) <= kMostSaid - 1 && std::is_trivially_copyable_v<Card>);
  const auto rank = static_cast<size_t>(group_.spec().rank);
  std::vector<cuda::DeviceCard> devices;
  std::vector<char*> flags, boards;
  for (size_t r = 0; r < cards.size(); ++r) {
    Card card;
    if (cards[r].size() != sizeof card)
      return cuda::refuse(Cause::mismatch, "the card of " + group_.rank_name(static_cast<int>(r)) + " has another size",
                          error);
    std::memcpy(&card, cards[r].data(), sizeof card);
    devices.push_back(card.device);
    if (r != rank) {
      std::vector<int> fds;
      const auto stop = [&] {
        Error known;
        return interrupted() || group_.failed(known);
      };
      if (!fetch_fds(card.socket, card.nonce, deadline_ns, stop, fds, error))  // all are told
        return error || cuda::refuse(Cause::aborted, "it was interrupted in the set-up", error);
      for (size_t extra = 1; extra < fds.size(); ++extra) ::close(fds[extra]);
      pages_[r] = Segment::open(fds.at(0), error);
      if (!pages_[r]) return false;
    }
    if (pages_[r]->size() < devices_->flag_bytes() + DeviceBoard::kBytes)
      return cuda::refuse(Cause::mismatch, "the flags of " + group_.rank_name(static_cast<int>(r)) + " are too few",
                          error);
    flags.push_back(pages_[r]->data());
    boards.push_back(pages_[r]->data() + devices_->flag_bytes());
  }
  board_ = DeviceBoard(boards, static_cast<int>(rank));
  return devices_->connect(devices, flags, error);
}

bool DeviceLink::close(int64_t deadline_ns, const std::function<bool()>& interrupted) {
  devices_->disconnect();
  board_.close();
  const timespec nap{0, 500'000};
  for (int r = 0; r < board_.ranks(); ++r) {
    // Of a process that has ended nothing is open.
    while (!board_.closed(r) && !group_.spec().peers[static_cast<size_t>(r)].process->dead.load()) {
      const bool left = group_.spec().board.state(r) == RankState::left;  // without this: it does not come any more
      if ((left && !board_.closed(r)) || now_ns() > deadline_ns || interrupted()) return false;
      nanosleep(&nap, nullptr);
    }
  }
  devices_.reset();
  pages_.clear();
  return true;
}

}  // namespace ringcomm
