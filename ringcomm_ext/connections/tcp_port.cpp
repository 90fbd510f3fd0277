#include "connections/tcp_port.h"

#include <utility>

#include "connections/tcp_dial.h"
#include "connections/tcp_linger.h"
#include "connections/tcp_reception.h"

namespace ringcomm {
namespace {

class Port final : public TcpPort {
 public:
  Port(EventLoop& loop, const TcpOptions& options) : loop_(loop), options_(options) {}
  bool listen(Error& error) { return reception_.listen(error); }

  int port() const override { return reception_.port(); }
  EventLoop& loop() override { return loop_; }
  const TcpOptions& options() const override { return options_; }
  void expect(const Nonce& topic, Accept accept) override { reception_.expect(topic, std::move(accept)); }
  void forget(const Nonce& topic) override { reception_.forget(topic); }
  DialId dial(std::vector<std::string> addresses, const Greeting& greeting, int64_t deadline_ns,
              Dialled done) override {
    return diallers_.dial(std::move(addresses), greeting, deadline_ns, std::move(done));
  }
  void cancel(DialId& dial) override { diallers_.cancel(dial); }
  void linger(int fd, std::string rest) override { lingerers_.linger(fd, std::move(rest)); }
  bool settle(int64_t until_ns) override { return lingerers_.settle(until_ns); }
  uint64_t add_sender(std::function<bool()> delivered) override { return lingerers_.add_sender(std::move(delivered)); }
  void forget_sender(uint64_t id) override { lingerers_.forget_sender(id); }

 private:
  EventLoop& loop_;
  const TcpOptions options_;
  Lingerers lingerers_{loop_, options_};  // outlives the dials, which may end in it
  Diallers diallers_{loop_, options_};
  Reception reception_{loop_, options_};
};

}  // namespace

std::unique_ptr<TcpPort> TcpPort::open(EventLoop& loop, const TcpOptions& options, Error& error) {
  auto port = std::make_unique<Port>(loop, options);
  if (!port->listen(error)) return nullptr;
  return port;
}

}  // namespace ringcomm
