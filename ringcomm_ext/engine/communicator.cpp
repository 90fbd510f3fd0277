#include "engine/communicator.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "connections/mixed.h"
#include "connections/tcp.h"
#include "connections/verbs.h"
#include "core/log.h"
#include "engine/cutting.h"

namespace ringcomm {
namespace {

constexpr size_t kStreamFrom = size_t{8} << 20;  // measured: below, a streaming copy costs more than it saves
constexpr uint64_t kChannelBytes = 64 << 10;     // a channel with less is not worth its slots
constexpr uint64_t kInlineWork = 256 << 10;      // an async call drives this much itself before it wakes the driver

bool is_move(Collective c) {
  return c == Collective::broadcast || c == Collective::all_gather || c == Collective::all_to_all ||
         c == Collective::gather || c == Collective::scatter;
}

// FNV-1a: the same in every build, because ranks compare it.
uint32_t hash_of(const Rule& rule, int channels) {
  uint32_t h = 2166136261u;
  const auto eat = [&h](uint8_t b) { h = (h ^ b) * 16777619u; };
  for (char c : rule.schedule) eat(static_cast<uint8_t>(c));
  for (uint64_t word : {uint64_t{rule.slot}, static_cast<uint64_t>(channels)})
    for (int i = 0; i < 8; ++i) eat(static_cast<uint8_t>(word >> 8 * i));
  return h;
}

}  // namespace

Communicator::Communicator(Engine& engine, GroupSpec spec)
    : engine_(engine),
      spec_(std::move(spec)),
      board_(spec_.board),
      roll_(board_.roll_call()),
      control_(spec_.control),
      gone_since_(static_cast<size_t>(spec_.ranks)) {
  connections_ = make_connections();
  for (int c = 0; c < spec_.layout.channels; ++c) lanes_.push_back(std::make_unique<Lane>());
  mailbox_ = std::make_unique<Mailbox>(*connections_, spec_.rank, spec_.ranks, spec_.layout.message_capacity);
  board_.set_state(RankState::present);
}

Communicator::~Communicator() {
  leave_record();
  if (control_) engine_.control()->leave(*control_);
}

std::unique_ptr<Connections> Communicator::make_connections() const {
  std::vector<ShmPeer> peers;
  WireGroup across;
  for (const PeerInfo& p : spec_.peers) {
    peers.push_back({p.segment, p.remote() ? nullptr : &p.process->doorbell(), p.remote() ? nullptr : p.process->heap});
    across.peers.push_back(p.addresses);
    across.rails.push_back(p.rails);
    across.numbers.push_back(p.global_rank);
  }
  if (!control_ || engine_.port() == nullptr)
    return make_shm_connections(spec_.layout, spec_.rank, std::move(peers), engine_.budget());
  across.rank = spec_.rank;
  across.topic = control_->topic();
  across.layout = spec_.layout;
  Doorbell& own = *peers[spec_.rank].doorbell;
  auto wire = spec_.over_verbs ? make_verbs_connections(std::move(across), *engine_.verbs(), own, engine_.budget())
                               : make_tcp_connections(std::move(across), *engine_.port(), own, engine_.budget());
  return make_mixed_connections(spec_.layout, spec_.rank, std::move(peers), engine_.budget(), std::move(wire));
}

// ---------------------------------------------------------------------------------------------------------------- choosing

const Rule& Communicator::rule(const Call& call) const {
  const auto& rules = spec_.rules[static_cast<int>(call.collective)];
  const uint64_t bytes = call.uniform ? call.bytes : UINT64_MAX;
  for (const Rule& r : rules)
    if (bytes <= r.max_bytes) return r;
  return rules.back();
}

bool Communicator::travels_wide(const Call& call) const {
  return call.op != ReduceOp::none && half_conversion(call.dtype) != nullptr &&
         !spec_.rules[static_cast<int>(call.collective)].empty() && rule(call).wide;
}

// Looked up under the issue lock, built outside it: building may take Python's lock, which another caller may hold while it wants this one.
std::shared_ptr<const Program> Communicator::program(const Call& call, const Rule& rule, std::string& error) {
  const Collective collective = call.collective == Collective::barrier ? Collective::all_reduce : call.collective;
  const auto key = std::make_tuple(collective, rule.schedule, call.root);
  {
    const std::lock_guard<std::mutex> hold(issue_);
    const auto it = programs_.find(key);
    if (it != programs_.end()) return it->second;
  }
  const std::vector<int32_t> table = spec_.build(collective, rule.schedule, call.root, error);
  if (!error.empty()) return nullptr;
  auto fresh = std::make_shared<Program>();
  error = Program::load(table.data(), table.size(), *fresh);
  if (error.empty() && (fresh->nranks != spec_.ranks || fresh->rank != spec_.rank))
    error = "it is for another rank or group size";
  if (error.empty() && fresh->slots > static_cast<int>(spec_.layout.slots))
    error =
        "it needs " + std::to_string(fresh->slots) + " slots, memory.slots is " + std::to_string(spec_.layout.slots);
  if (error.empty()) error = too_small(*fresh, rule.slot);
  if (!error.empty()) {
    error = "the program of schedule '" + rule.schedule + "' for " + name(collective) + " is refused: " + error;
    return nullptr;
  }
  const std::lock_guard<std::mutex> hold(issue_);
  return programs_.emplace(key, std::move(fresh)).first->second;
}

// Every rank must fill slots alike, so a rule's slot is never cut down here: a connection that cannot hold it is an error.
std::string Communicator::too_small(const Program& program, size_t slot) const {
  for (const auto* table : {&program.senders, &program.receivers})
    for (const ConnectionRef& c : *table) {
      const bool fan = c.kind == ConnectionKind::fan_out;
      const size_t capacity = fan ? spec_.layout.fan_out_capacity : spec_.layout.pair_capacity;
      if (slot > capacity)
        return "its rule fills slots to " + std::to_string(slot) + " bytes, a slot of a " + (fan ? "fan-out" : "pair") +
               " connection holds " + std::to_string(capacity);
    }
  return "";
}

const Communicator::Bound* Communicator::bound(const std::shared_ptr<const Program>& program, int channel) {
  auto& slot = bounds_[{program.get(), channel}];
  if (!slot) {
    slot = std::make_unique<Bound>();
    slot->program = program;
    for (const ConnectionRef& c : program->senders)
      slot->senders.push_back(connections_->sender(c.kind, channel, c.peer));
    for (const ConnectionRef& c : program->receivers)
      slot->receivers.push_back(connections_->receiver(c.kind, channel, c.peer));
  }
  return slot.get();
}

Run Communicator::make_run(const Call& call, const Rule& rule, const Bound& bound, int channel, int channels,
                           uint32_t tag) const {
  const Program& p = *bound.program;
  const DType dtype = call.widened ? DType::float32 : call.dtype;
  const size_t element = call.widened ? sizeof(float) : call.element;
  Run run;
  run.program = &p;
  run.senders = bound.senders.data();
  run.receivers = bound.receivers.data();
  if (is_cut(call.collective)) {
    run.in = cut(call.in, p.nchunks_in, element);
    run.out = cut(call.out, p.nchunks_out, element);
  } else {
    run.in = call.in;
    run.out = call.out;
  }
  if (channels > 1)
    for (auto* chunks : {&run.in, &run.out})
      for (Chunk& c : *chunks) c = part(c, channels, channel, element);
  run.dtype = dtype;
  run.element = element;
  run.piece = std::max<size_t>(1, rule.slot / element);
  if (call.op != ReduceOp::none) {
    run.reduce = reduce_function(dtype, call.op == ReduceOp::avg ? ReduceOp::sum : call.op);
    run.finish = reduce_function(dtype, call.op);
  }
  run.tag = tag;
  run.sized_tags = !call.uniform;
  run.stream_out = is_move(call.collective) && call.bytes >= kStreamFrom;
  return run;
}

void Communicator::log_choice(const Call& call, const Rule& rule) {
  if (!logs(LogLevel::info) || spec_.rank != 0) return;
  int size_class = 0;
  while (size_class < 63 && (uint64_t{1} << size_class) < call.bytes) ++size_class;
  uint64_t& seen = logged_[static_cast<int>(call.collective)];
  if (seen >> size_class & 1) return;
  seen |= uint64_t{1} << size_class;
  char line[320];
  std::snprintf(line, sizeof line,
                "policy: %s %llu B x %d ranks -> %s (slot %zu B, %d channel%s%s) over %s [%s] group %s",
                name(call.collective), static_cast<unsigned long long>(call.bytes), spec_.ranks, rule.schedule.c_str(),
                rule.slot, rule.channels, rule.channels == 1 ? "" : "s", call.widened ? ", as float32" : "",
                connections_->kind(), rule.source.c_str(), spec_.name.c_str());
  log(LogLevel::info, line);
}

// ---------------------------------------------------------------------------------------------------------------- issuing

RequestPtr Communicator::start(const Call& call, std::string& error) {
  if (spec_.rules[static_cast<int>(call.collective)].empty()) {
    error = std::string("no rule of the policy covers ") + name(call.collective);
    return nullptr;
  }
  const Rule& chosen = rule(call);
  const auto program = this->program(call, chosen, error);
  if (!program) return nullptr;
  const bool fits = is_cut(call.collective) || (static_cast<int>(call.in.size()) == program->nchunks_in &&
                                                static_cast<int>(call.out.size()) == program->nchunks_out);
  if (!fits) {
    error = std::string("internal error: the buffers of ") + name(call.collective) + " do not fit its program";
    return nullptr;
  }
  const int channels = call.uniform && call.bytes >= kChannelBytes * chosen.channels
                           ? std::min<int>(chosen.channels, static_cast<int>(lanes_.size()))
                           : 1;
  RequestPtr request;
  {
    const std::lock_guard<std::mutex> hold(issue_);
    Fingerprint f{call.collective,
                  call.dtype,
                  call.op,
                  call.root,
                  sequence_.load() + 1,
                  call.uniform ? call.bytes : 0,
                  call.uniform,
                  hash_of(chosen, channels)};
    request = std::make_shared<Request>(f, call.deadline_ns, call.keep);
    request->set_parts(channels);
    sequence_.store(f.sequence);
    board_.announce(f);
    log_choice(call, chosen);
    record(call, *request);
    if (logs(LogLevel::debug)) log_issue(*request, &chosen);
    queue(*request, call.bytes);
    for (int c = 0; c < channels; ++c)
      lanes_[c]->push(request,
                      std::make_unique<Interpreter>(make_run(call, chosen, *bound(program, c), c, channels, f.hash())));
  }
  issued(*request, call.caller_waits);
  return request;
}

// A caller that waits drives it itself. An async call does what can be done at once (cheap for small messages: the last of several often
// finishes the others), then leaves the rest to the poller's look a little later. Not so for large ones, which go to the driver at once: the caller has its own work to do.
void Communicator::issued(const Request& request, bool caller_waits) {
  if (caller_waits) return;
  const bool failed =
      failed_.load(std::memory_order_seq_cst);  // then advance() ends it; a group that has left has no driver any more
  if (failed || large_.load(std::memory_order_relaxed) == 0) advance();
  if (pending() == 0) return;
  last_left_ns_.store(request.started_ns, std::memory_order_relaxed);
  if (waiters_.load(std::memory_order_seq_cst) > 0)
    engine_.doorbell().ring();  // who waits here may be asleep, and drives for all
  else if (request.large)
    engine_.wake_drivers();
  else
    engine_.drive_soon();
}

// Before the request stands in a queue.
void Communicator::queue(Request& request, uint64_t bytes) {
  request.large = bytes > kInlineWork;
  if (request.large) large_.fetch_add(1, std::memory_order_relaxed);
  pending_.fetch_add(1, std::memory_order_seq_cst);
}

RequestPtr Communicator::post(Message message, Collective kind, int64_t deadline_ns, std::shared_ptr<void> keep,
                              const FlightShapes* shapes) {
  const Fingerprint f{kind, DType::other, ReduceOp::none, message.peer, 0, message.bytes, true, 0};
  auto request = std::make_shared<Request>(f, deadline_ns, std::move(keep));
  const uint64_t bytes = message.bytes;
  message.request = request;
  record(message, shapes, *request);
  if (logs(LogLevel::debug)) log_issue(*request, nullptr);
  queue(*request, bytes);
  mailbox_->post(std::move(message));
  issued(*request, false);
  return request;
}

RequestPtr Communicator::send(const void* data, size_t bytes, int peer, int tag, int64_t deadline_ns,
                              std::shared_ptr<void> keep, const FlightShapes* shapes) {
  return post({nullptr, true, const_cast<char*>(static_cast<const char*>(data)), bytes, peer, tag}, Collective::send,
              deadline_ns, std::move(keep), shapes);
}

RequestPtr Communicator::recv(void* data, size_t bytes, int peer, int tag, int64_t deadline_ns,
                              std::shared_ptr<void> keep, const FlightShapes* shapes) {
  return post({nullptr, false, static_cast<char*>(data), bytes, peer, tag}, Collective::recv, deadline_ns,
              std::move(keep), shapes);
}

}  // namespace ringcomm
