#include "connections/verbs_net.h"

#include <algorithm>
#include <utility>

namespace ringcomm {
namespace {

constexpr int64_t kLookNs = 1'000'000;  // guessed: an acknowledgement takes microseconds

}  // namespace

std::unique_ptr<VerbsNet> VerbsNet::open(const VerbsLibrary& library, TcpPort& port, const VerbsOptions& options,
                                         Error& error) {
  std::unique_ptr<VerbsNet> net(new VerbsNet(port, options.traits));
  for (const VerbsRail& rail : options.rails) {
    net->devices_.push_back(VerbsDevice::open(library, port.loop(), rail, error));
    if (!net->devices_.back()) return nullptr;
  }
  VerbsNet* const self = net.get();
  net->registered_ = port.add_sender([self] { return self->all_over(); });
  return net;
}

VerbsNet::~VerbsNet() {
  if (registered_ != 0) port_.forget_sender(registered_);
  EventLoop::TimerId timer;
  {
    const std::lock_guard<std::mutex> hold(mutex_);
    stopped_ = true;
    timer = timer_;
  }
  port_.loop().cancel(timer);
  lingering_.clear();
}

void VerbsNet::linger(std::shared_ptr<VerbsEnd> end) {
  const std::lock_guard<std::mutex> hold(mutex_);
  lingering_.push_back({std::move(end), now_ns() + port_.options().linger_ns});
  if (!looking_) schedule();
}

// Under the lock.
void VerbsNet::schedule() {
  looking_ = !lingering_.empty() && !stopped_;
  if (looking_) timer_ = port_.loop().at(now_ns() + kLookNs, [this] { look(); });
}

// The poller. What is over is let go without the lock, for its end waits for handlers; and before the next look is due, so that who cancels that one has not missed
// this.
void VerbsNet::look() {
  std::vector<Lingering> gone;
  {
    const std::lock_guard<std::mutex> hold(mutex_);
    const int64_t now = now_ns();
    const auto rest = std::partition(lingering_.begin(), lingering_.end(),
                                     [&](const Lingering& l) { return now < l.until_ns && !l.end->over(); });
    gone.assign(std::make_move_iterator(rest), std::make_move_iterator(lingering_.end()));
    lingering_.erase(rest, lingering_.end());
  }
  gone.clear();
  const std::lock_guard<std::mutex> hold(mutex_);
  schedule();
}

bool VerbsNet::all_over() {
  const std::lock_guard<std::mutex> hold(mutex_);
  return std::all_of(lingering_.begin(), lingering_.end(), [](const Lingering& l) { return l.end->over(); });
}

}  // namespace ringcomm
