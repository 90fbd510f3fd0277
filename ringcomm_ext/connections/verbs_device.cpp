#include "connections/verbs_device.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "core/log.h"

namespace ringcomm {
namespace {

// Larger ones are split: soft RoCE takes no more, and nothing is won by more.
constexpr size_t kMostBytes = size_t{8} << 20;

bool is_mapped_ipv4(const ibv::Gid& gid) {
  static const uint8_t prefix[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  return std::memcmp(gid.raw, prefix, sizeof prefix) == 0;
}
bool is_link_local(const ibv::Gid& gid) { return gid.raw[0] == 0xfe && (gid.raw[1] & 0xc0) == 0x80; }
bool is_empty(const ibv::Gid& gid) { return gid.aligned[0] == 0 && gid.aligned[1] == 0; }

// Best first.
int worth(const ibv::GidEntry& e) {
  if (e.gid_type != ibv::kGidRoceV2) return 3;
  return is_mapped_ipv4(e.gid) ? 0 : is_link_local(e.gid) ? 2 : 1;
}

std::vector<ibv::GidEntry> gid_table(const VerbsLibrary& library, ibv::Context* context, int port, int length) {
  std::vector<ibv::GidEntry> found;
  for (int i = 0; i < length; ++i) {
    ibv::GidEntry e{};
    if (library.query_gid_ex(context, static_cast<uint32_t>(port), static_cast<uint32_t>(i), &e, 0, sizeof e) != 0)
      continue;  // an empty one
    if (!is_empty(e.gid)) found.push_back(e);
  }
  return found;
}

int bytes_of_mtu(int number) { return 128 << number; }

std::string errno_text(int number) { return std::strerror(number); }

}  // namespace

int choose_gid(const std::vector<ibv::GidEntry>& table, bool ethernet) {
  if (table.empty()) return -1;
  if (!ethernet) return static_cast<int>(table.front().gid_index);
  const auto best =
      std::min_element(table.begin(), table.end(), [](const auto& a, const auto& b) { return worth(a) < worth(b); });
  return static_cast<int>(best->gid_index);
}

std::string gid_text(const ibv::Gid& gid) {
  char text[INET6_ADDRSTRLEN] = "";
  const bool v4 = is_mapped_ipv4(gid);
  inet_ntop(v4 ? AF_INET : AF_INET6, v4 ? gid.raw + 12 : gid.raw, text, sizeof text);
  return text;
}

std::string gid_kind(uint32_t type) {
  return type == ibv::kGidRoceV2 ? "RoCE v2" : type == ibv::kGidRoceV1 ? "RoCE v1" : "InfiniBand";
}

std::vector<VerbsPortFacts> list_verbs_ports(const VerbsLibrary& library, std::string& why_not) {
  int count = 0;
  ibv::Device** const list = library.get_device_list(&count);
  if (list == nullptr || count == 0) {
    why_not =
        list ? "verbs show no RDMA device"
             : "verbs give no list of devices (" + errno_text(errno) + "): no RDMA driver in the kernel, or no access";
    if (list) library.free_device_list(list);
    return {};
  }
  std::vector<VerbsPortFacts> found;
  for (int i = 0; i < count; ++i) {
    const std::string name = list[i]->name;
    ibv::Context* const context = library.open_device(list[i]);
    if (context == nullptr) {
      why_not += (why_not.empty() ? "" : "; ") + name + " cannot be opened (" + errno_text(errno) + ")";
      continue;
    }
    ibv::DeviceAttr limits{};
    if (list[i]->transport_type == ibv::kTransportIb && library.query_device(context, &limits) == 0) {
      for (int port = 1; port <= limits.phys_port_cnt; ++port) {
        ibv::PortAttr attr{};
        if (library.query_port(context, static_cast<uint8_t>(port), &attr) != 0) continue;
        found.push_back({name, port, attr.state == ibv::kPortActive, attr.link_layer == ibv::kLinkEthernet, attr.lid,
                         bytes_of_mtu(attr.active_mtu)});
      }
    } else {
      why_not += (why_not.empty() ? "" : "; ") + name + " is neither InfiniBand nor RoCE";
    }
    library.close_device(context);
  }
  library.free_device_list(list);
  if (!found.empty()) why_not.clear();
  return found;
}

// ---------------------------------------------------------------------------------------------------------------- a device

VerbsDevice::VerbsDevice(const VerbsLibrary& library, EventLoop& loop, VerbsRail rail)
    : library_(library), loop_(loop), rail_(std::move(rail)) {
  name_ = rail_.device + " port " + std::to_string(rail_.port);
}

std::unique_ptr<VerbsDevice> VerbsDevice::open(const VerbsLibrary& library, EventLoop& loop, const VerbsRail& rail,
                                               Error& error) {
  std::unique_ptr<VerbsDevice> device(new VerbsDevice(library, loop, rail));
  if (!device->start(error)) return nullptr;
  return device;
}

VerbsDevice::~VerbsDevice() {
  loop_.remove(watch_);
  if (pd_) library_.dealloc_pd(pd_);
  if (context_ == nullptr) return;
  loop_.keep_in_child(context_->cmd_fd);
  library_.close_device(context_);
}

bool VerbsDevice::refuse(Error& error, const std::string& why) const {
  error.cause = Cause::connection;
  std::snprintf(error.text, sizeof error.text, "ringcomm: the RDMA device %s cannot be used: %s", name_.c_str(),
                why.c_str());
  return false;
}

bool VerbsDevice::start(Error& error) {
  int count = 0;
  ibv::Device** const list = library_.get_device_list(&count);
  if (list == nullptr) return refuse(error, "verbs give no list of devices: " + errno_text(errno));
  bool known = false;
  int open_errno = 0;
  for (int i = 0; i < count; ++i) {
    if (rail_.device != list[i]->name) continue;
    known = true;
    context_ = library_.open_device(list[i]);
    open_errno = errno;
  }
  library_.free_device_list(list);
  if (!known) return refuse(error, "there is no such device");
  if (context_ == nullptr) return refuse(error, "it cannot be opened: " + errno_text(open_errno));
  // A child that kept the device open would keep this process's queue pairs alive after its death.
  loop_.close_in_child_too(context_->cmd_fd);
  fcntl(context_->async_fd, F_SETFL, fcntl(context_->async_fd, F_GETFL) | O_NONBLOCK);
  watch_ = loop_.add(context_->async_fd, EPOLLIN, [this](uint32_t) { on_event(); });
  if (!watch_) return refuse(error, "its events cannot be watched");
  int failed = library_.query_device(context_, &limits_);
  if (failed) return refuse(error, "its limits cannot be read: " + errno_text(failed));
  failed = library_.query_port(context_, static_cast<uint8_t>(rail_.port), &attr_);
  if (failed) return refuse(error, "it has no such port: " + errno_text(failed));
  if (attr_.state != ibv::kPortActive)
    return refuse(error, "the port is not active (state " + std::to_string(attr_.state) + ")");
  most_bytes_ = attr_.max_msg_sz == 0 ? kMostBytes : std::min<size_t>(kMostBytes, attr_.max_msg_sz);
  if (!find_gid(error)) return false;
  pd_ = library_.alloc_pd(context_);
  if (pd_ == nullptr) return refuse(error, "no protection domain: " + errno_text(errno));
  // What most often forbids the use of a device that is there shows here, not in the midst of a job.
  VerbsMemory probe;
  return probe.take(*this, 4096, ibv::kAccessLocalWrite | ibv::kAccessRemoteWrite, nullptr, "a first page", error);
}

bool VerbsDevice::find_gid(Error& error) {
  const auto table = gid_table(library_, context_, rail_.port, attr_.gid_tbl_len);
  const bool chosen = rail_.gid_index < 0;
  if (chosen) rail_.gid_index = choose_gid(table, ethernet());
  for (const ibv::GidEntry& e : table)
    if (static_cast<int>(e.gid_index) == rail_.gid_index) return gid_ = e, true;
  if (chosen && !ethernet()) return rail_.gid_index = 0, true;  // a LID is enough within a subnet
  std::string there;
  for (const ibv::GidEntry& e : table) {
    if (there.size() > 300) break;
    there += (there.empty() ? "" : ", ") + std::to_string(e.gid_index) + " (" + gid_text(e.gid) + ", " +
             gid_kind(e.gid_type) + ")";
  }
  return refuse(error, (chosen ? "it has no GID, that is, no address"
                               : "it has no GID index " + std::to_string(rail_.gid_index)) +
                           "; there are " + (there.empty() ? "none" : there));
}

void VerbsDevice::on_event() {
  ibv::AsyncEvent event;
  while (library_.get_async_event(context_, &event) == 0) {
    const int type = event.event_type;
    library_.ack_async_event(&event);
    last_event_.store(type);
    last_event_at_.store(now_ns());
    const bool bad = type == ibv::kEventPortErr || type == ibv::kEventDeviceFatal || type == ibv::kEventCqErr;
    log(bad ? LogLevel::warn : LogLevel::debug, "the RDMA device " + name_ + " reports " + event_text(type));
  }
}

std::string VerbsDevice::news() const {
  const int event = last_event_.load();
  if (event < 0) return "";
  char ago[32];
  std::snprintf(ago, sizeof ago, " %.1f s ago", static_cast<double>(now_ns() - last_event_at_.load()) / 1e9);
  return "; " + name_ + " reported " + event_text(event) + ago;
}

}  // namespace ringcomm
