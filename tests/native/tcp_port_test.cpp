// A port lets through who holds the key, tells dialers why not, and is not disturbed by anybody else.
#include "connections/tcp_port.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <atomic>
#include <cstring>
#include <fstream>
#include <future>
#include <mutex>
#include <vector>

#include "connections/tcp_address.h"
#include "connections/tcp_handshake.h"
#include "core/log.h"
#include "poller.h"

using namespace ringcomm;
using namespace ringcomm::test;

namespace {

constexpr int64_t kMs = 1'000'000, kSecond = 1'000'000'000;

TcpOptions options(const std::string& key = "secret", std::vector<std::string> bind = {"127.0.0.1"}) {
  TcpOptions o;
  o.bind = std::move(bind);
  o.key = key;
  return o;
}

std::unique_ptr<TcpPort> open(Poller& poller, const TcpOptions& o) {
  Error error;
  auto port = TcpPort::open(poller.loop(), o, error);
  if (!port) fail("a port", 0, error.text);
  return port;
}

std::string address(const TcpPort& port) { return "127.0.0.1:" + std::to_string(port.port()); }

Greeting greeting(uint8_t topic, int from = 3) {
  Greeting g;
  g.topic[0] = topic;
  g.from = from;
  g.channel = 5;
  return g;
}

// What dial() gave.
struct Reached {
  int fd;
  Error error;
};
std::future<Reached> start_dial(TcpPort& port, std::vector<std::string> to, const Greeting& g,
                                int64_t limit = 10 * kSecond) {
  auto result = std::make_shared<std::promise<Reached>>();
  port.dial(std::move(to), g, now_ns() + limit, [result](int fd, const Error& e) { result->set_value({fd, e}); });
  return result->get_future();
}
Reached dial(TcpPort& port, std::vector<std::string> to, const Greeting& g, int64_t limit = 10 * kSecond) {
  return start_dial(port, std::move(to), g, limit).get();
}

// The sockets that came for a topic.
class Inbox {
 public:
  Inbox(TcpPort& port, uint8_t topic) {
    port.expect(greeting(topic).topic, [this](const Greeting& g, int fd) {
      const std::lock_guard<std::mutex> hold(mutex_);
      from_.push_back(g.from), fds_.push_back(fd);
    });
  }
  ~Inbox() {
    for (int fd : fds_) close(fd);
  }
  size_t size() {
    const std::lock_guard<std::mutex> hold(mutex_);
    return fds_.size();
  }
  int fd(size_t i) {
    await("an accepted socket", [&] { return size() > i; });
    const std::lock_guard<std::mutex> hold(mutex_);
    return fds_[i];
  }
  int from(size_t i) {
    fd(i);
    const std::lock_guard<std::mutex> hold(mutex_);
    return from_[i];
  }

 private:
  std::mutex mutex_;
  std::vector<int> from_, fds_;
};

std::string receive(int fd, size_t bytes) {
  std::string data(bytes, '\0');
  size_t have = 0;
  await("bytes", [&] {
    const ssize_t n = recv(fd, data.data() + have, bytes - have, MSG_DONTWAIT);
    if (n > 0) have += static_cast<size_t>(n);
    return have == bytes;
  });
  return data;
}

void passes(int from, int to) {
  CHECK_EQ(send(from, "hello", 5, MSG_NOSIGNAL), 5);
  CHECK_EQ(receive(to, 5), "hello");
}

// A blocking socket of somebody who is no port.
int stranger(int port) {
  TcpAddress a;
  CHECK(parse_address("127.0.0.1:" + std::to_string(port), a));
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  CHECK_EQ(connect(fd, a.get(), a.length), 0);
  return fd;
}

// That the other side hangs up within the time no working code needs.
void is_hung_up(int fd) {
  await("a hang-up", [&] {
    char waste[256];
    const ssize_t n = recv(fd, waste, sizeof waste, MSG_DONTWAIT);
    return n == 0 || (n < 0 && errno != EAGAIN);
  });
  close(fd);
}

struct PlainListener {
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), port = 0;
  PlainListener() {
    TcpAddress a;
    CHECK(parse_address("127.0.0.1:0", a));
    CHECK_EQ(bind(fd, a.get(), a.length), 0);
    CHECK_EQ(listen(fd, 16), 0);
    CHECK_EQ(getsockname(fd, a.get(), &a.length), 0);
    port = a.port();
  }
  ~PlainListener() { close(fd); }
  std::string address() const { return "127.0.0.1:" + std::to_string(port); }
};

void addresses() {
  TcpAddress a;
  for (const char* text : {"10.0.0.1:4711", "[::1]:80", "[fe80::1%lo]:65535"}) {
    CHECK(parse_address(text, a));
    CHECK_EQ(to_text(a), text);
  }
  for (const char* text : {"", "10.0.0.1", "10.0.0.1:", "10.0.0.1:65536", "10.0.0.1:-1", "::1:80", "[10.0.0.1]:80",
                           "host:80", "[fe80::1%no_such_interface]:80"})
    CHECK(!parse_address(text, a));
}

void meets(Poller& poller) {
  auto a = open(poller, options()), b = open(poller, options());
  Inbox inbox(*a, 1);
  const Reached r = dial(*b, {address(*a)}, greeting(1, 7));
  CHECK(r.fd >= 0);
  CHECK_EQ(inbox.from(0), 7);
  passes(r.fd, inbox.fd(0)), passes(inbox.fd(0), r.fd);
  for (int fd : {r.fd, inbox.fd(0)}) {
    int on = 0;
    socklen_t length = sizeof on;
    CHECK_EQ(getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, &length), 0);
    CHECK(on != 0);
    CHECK(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    CHECK(fcntl(fd, F_GETFL) & O_NONBLOCK);
  }
  close(r.fd);
  a->forget(greeting(1).topic);
}

// Refused, not an address, none: each by its name; a working one behind them is found.
void unreachable(Poller& poller) {
  auto a = open(poller, options()), b = open(poller, options());
  const std::string closed = address(*open(poller, options()));
  Reached r = dial(*b, {closed}, greeting(1));
  CHECK_EQ(r.fd, -1);
  CHECK(r.error.cause == Cause::connection);
  CHECK_CONTAINS(r.error.text, closed);
  CHECK_CONTAINS(r.error.text, "Connection refused");
  CHECK_CONTAINS(dial(*b, {"nonsense"}, greeting(1)).error.text, "nonsense");
  CHECK_CONTAINS(dial(*b, {}, greeting(1)).error.text, "no address");
  Inbox inbox(*a, 1);
  r = dial(*b, {closed, "nonsense", address(*a)}, greeting(1));
  CHECK(r.fd >= 0);
  passes(r.fd, inbox.fd(0));
  close(r.fd);
  a->forget(greeting(1).topic);
}

void silent_or_foreign(Poller& poller) {
  auto port = open(poller, options());
  PlainListener plain;
  Reached r = dial(*port, {plain.address()}, greeting(1), 300 * kMs);
  CHECK(r.error.cause == Cause::timeout);
  CHECK_CONTAINS(r.error.text, plain.address());
  auto foreign = start_dial(*port, {plain.address()}, greeting(1));
  for (int i = 0; i < 2; ++i) {  // the first is the silent dial's
    const int fd = accept(plain.fd, nullptr, nullptr);
    const std::string garbage(100, 'x');
    if (send(fd, garbage.data(), garbage.size(), MSG_NOSIGNAL) > 0) usleep(1000);
    close(fd);
  }
  CHECK_CONTAINS(foreign.get().error.text, "no port of ringcomm");
}

void wrong_key(Poller& poller) {
  auto a = open(poller, options("one")), b = open(poller, options("other"));
  Inbox inbox(*a, 1);
  const Reached r = dial(*b, {address(*a)}, greeting(1));
  CHECK_EQ(r.fd, -1);
  CHECK_CONTAINS(r.error.text, "key");
  CHECK_EQ(inbox.size(), size_t{0});
  a->forget(greeting(1).topic);
}

// An acceptor without the key that sends back what it got, or makes something up.
void false_acceptor(Poller& poller) {
  auto port = open(poller, options());
  PlainListener plain;
  auto result = start_dial(*port, {plain.address()}, greeting(1));
  const int fd = accept(plain.fd, nullptr, nullptr);
  const Hello hello = make_hello(fresh_challenge());
  CHECK_EQ(send(fd, hello.data(), hello.size(), 0), static_cast<ssize_t>(hello.size()));
  const std::string answer = receive(fd, sizeof(Answer));
  CHECK_EQ(send(fd, answer.data() + answer.size() - 32, 32, 0), 32);
  CHECK_CONTAINS(result.get().error.text, "does not hold the key");
  close(fd);
}

// Everybody who is no rank of the job is shown out, and one who is gets through in the midst of them.
void strangers(Poller& poller) {
  TcpOptions o = options();
  o.most_guests = 8;
  o.handshake_ns = 400 * kMs;
  auto a = open(poller, o), b = open(poller, options());
  Inbox inbox(*a, 1);
  close(stranger(a->port()));  // a port scan
  int fd = stranger(a->port());
  CHECK(send(fd, "GET / HTTP/1.1\r\n\r\n", 18, 0) == 18);
  is_hung_up(fd);
  fd = stranger(a->port());  // right at first, then noise
  receive(fd, sizeof(Hello));
  std::string noise(sizeof(Answer), 'z');
  const Hello hello = make_hello(fresh_challenge());
  std::memcpy(noise.data(), hello.data(), kMagicBytes);
  CHECK(send(fd, noise.data(), noise.size(), 0) > 0);
  is_hung_up(fd);
  fd = stranger(a->port());  // half an answer
  CHECK(send(fd, noise.data(), 20, 0) == 20);
  is_hung_up(fd);
  std::vector<int> crowd;
  for (int i = 0; i < 40; ++i) crowd.push_back(stranger(a->port()));
  const Reached r = dial(*b, {address(*a)}, greeting(1));
  CHECK(r.fd >= 0);
  passes(r.fd, inbox.fd(0));
  for (int c : crowd) is_hung_up(c);
  passes(r.fd, inbox.fd(0));
  CHECK_EQ(inbox.size(), size_t{1});
  close(r.fd);
  a->forget(greeting(1).topic);
}

// What was recorded opens nothing, at the same port or at another.
void replay(Poller& poller) {
  auto a = open(poller, options());
  Inbox inbox(*a, 1);
  const int fd = stranger(a->port());
  Hello hello;
  std::memcpy(hello.data(), receive(fd, sizeof hello).data(), sizeof hello);
  Challenge theirs, own = fresh_challenge();
  CHECK(read_hello(hello, theirs));
  const Answer answer = make_answer("secret", theirs, own, greeting(1));
  CHECK_EQ(send(fd, answer.data(), answer.size(), 0), static_cast<ssize_t>(answer.size()));
  const Digest proof = make_proof("secret", theirs, own, greeting(1));
  CHECK(receive(fd, sizeof proof) == std::string(proof.begin(), proof.end()));
  inbox.fd(0);
  const int again = stranger(a->port());
  receive(again, sizeof hello);
  CHECK_EQ(send(again, answer.data(), answer.size(), 0), static_cast<ssize_t>(answer.size()));
  is_hung_up(again);
  CHECK_EQ(inbox.size(), size_t{1});
  close(fd);
  a->forget(greeting(1).topic);
}

// Who comes before the group is made waits, with what it sends; not for ever, and not in any number.
void parked(Poller& poller) {
  TcpOptions o = options();
  o.most_parked = 2;
  o.parked_ns = 300 * kMs;
  auto a = open(poller, o), b = open(poller, options());
  std::vector<int> fds;
  for (int from = 0; from < 3; ++from) {
    const Reached r = dial(*b, {address(*a)}, greeting(1, from));
    CHECK(r.fd >= 0);
    fds.push_back(r.fd);
  }
  is_hung_up(fds[0]);  // the oldest made room
  CHECK_EQ(send(fds[1], "early", 5, MSG_NOSIGNAL), 5);
  Inbox inbox(*a, 1);
  CHECK_EQ(inbox.from(0), 1);
  CHECK_EQ(inbox.from(1), 2);
  CHECK_EQ(receive(inbox.fd(0), 5), "early");
  close(fds[1]), close(fds[2]);
  const Reached unexpected = dial(*b, {address(*a)}, greeting(2));
  is_hung_up(unexpected.fd);
  a->forget(greeting(1).topic);
}

// Afterwards nothing is called, whatever is under way: all of it, many times, from another thread than the poller.
void taken_back(Poller& poller) {
  auto a = open(poller, options()), b = open(poller, options());
  Random random(1);
  for (int i = 0; i < 200; ++i) {
    auto alive = std::make_shared<std::atomic<bool>>(true);
    a->expect(greeting(1).topic, [alive](const Greeting&, int fd) {
      CHECK(alive->load());
      close(fd);
    });
    auto dialled = std::make_shared<std::atomic<bool>>(true);
    TcpPort::DialId id = b->dial({address(*a)}, greeting(1), now_ns() + kSecond, [dialled](int fd, const Error&) {
      CHECK(dialled->load());
      if (fd >= 0) close(fd);
    });
    const int64_t until = now_ns() + static_cast<int64_t>(random.below(400'000));
    while (now_ns() < until) continue;
    b->cancel(id);
    dialled->store(false);
    a->forget(greeting(1).topic);
    alive->store(false);
  }
}

// From inside its own `accept` and `done`, too.
void taken_back_inside(Poller& poller) {
  auto a = open(poller, options()), b = open(poller, options());
  std::atomic<int> calls{0};
  a->expect(greeting(1).topic, [&](const Greeting& g, int fd) {
    close(fd);
    a->forget(g.topic);
    ++calls;
  });
  std::atomic<TcpPort::DialId> id{0};
  id = b->dial({address(*a)}, greeting(1), now_ns() + 10 * kSecond, [&](int fd, const Error&) {
    close(fd);
    TcpPort::DialId own = await("the number", [&] { return id.load(); });
    b->cancel(own);
    ++calls;
  });
  await("both", [&] { return calls.load() == 2; });
}

void ranges(Poller& poller) {
  auto free = open(poller, options());
  const int low = free->port();
  free.reset();
  TcpOptions o = options();
  o.port_low = low, o.port_high = low + 1;
  std::vector<std::unique_ptr<TcpPort>> ports;
  Error error;
  while (auto port = TcpPort::open(poller.loop(), o, error)) {
    CHECK(port->port() == low || port->port() == low + 1);
    ports.push_back(std::move(port));
    CHECK(ports.size() <= 2);
  }
  CHECK(error.cause == Cause::connection);
  CHECK_CONTAINS(error.text, "ports " + std::to_string(low) + " to " + std::to_string(low + 1));
  CHECK_CONTAINS(error.text, "in use");
  CHECK(TcpPort::open(poller.loop(), options("", {"203.0.113.7"}), error) == nullptr);  // of documentation, not ours
  CHECK_CONTAINS(error.text, "203.0.113.7");
}

bool has_ipv6() {
  TcpAddress a;
  CHECK(parse_address("[::1]:0", a));
  const int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const bool has = fd >= 0 && bind(fd, a.get(), a.length) == 0;
  if (fd >= 0) close(fd);
  return has;
}

// One number for both families.
void ipv6(Poller& poller) {
  if (!has_ipv6()) return section("IPv6: skipped, this machine has no ::1");
  for (const std::vector<std::string>& bind : {std::vector<std::string>{"127.0.0.1", "::1"}, {}}) {
    auto a = open(poller, options("secret", bind)), b = open(poller, options());
    Inbox inbox(*a, 1);
    const std::string port = std::to_string(a->port());
    for (size_t i = 0; i < 2; ++i) {
      const Reached r = dial(*b, {(i == 0 ? "[::1]:" : "127.0.0.1:") + port}, greeting(1));
      CHECK(r.fd >= 0);
      passes(r.fd, inbox.fd(i));
      close(r.fd);
    }
    a->forget(greeting(1).topic);
  }
}

// What was written arrives whole though its owner is gone and has not read what came the other way.
void lingering(Poller& poller) {
  auto a = open(poller, options()), b = open(poller, options());
  Inbox inbox(*a, 1);
  const Reached r = dial(*b, {address(*a)}, greeting(1));
  CHECK_EQ(send(inbox.fd(0), "unread", 6, MSG_NOSIGNAL), 6);
  std::string data(16 << 20, '\0');
  test::fill(data.data(), data.size(), 1, 1);
  size_t sent = 0;
  for (ssize_t n = 1; n > 0; sent += n > 0 ? static_cast<size_t>(n) : 0)
    n = send(r.fd, data.data() + sent, data.size() - sent, MSG_NOSIGNAL);
  CHECK(sent < data.size());
  b->linger(r.fd, data.substr(sent));
  CHECK(!b->settle(now_ns() + 20 * kMs));
  CHECK(receive(inbox.fd(0), data.size()) == data);
  CHECK(b->settle(now_ns() + 10 * kSecond));
  is_hung_up(dup(inbox.fd(0)));
  a->forget(greeting(1).topic);
}

// The first stranger is named; the others fill no log.
void logged_once(Poller& poller) {
  const std::string file = "/tmp/ringcomm_tcp_port_test." + std::to_string(getpid());
  CHECK(set_log(LogLevel::info, file, "test"));
  auto a = open(poller, options());
  for (int i = 0; i < 5; ++i) {
    const int fd = stranger(a->port());
    CHECK(send(fd, "what?", 5, 0) == 5);
    is_hung_up(fd);
  }
  set_log(LogLevel::warn, "", "test");
  std::ifstream in(file);
  std::string line, all;
  int lines = 0;
  while (std::getline(in, line)) all += line, ++lines;
  unlink(file.c_str());
  CHECK_EQ(lines, 1);
  CHECK_CONTAINS(all, "a connection from 127.0.0.1:");
}

}  // namespace

int main() {
  start("tcp_port_test", 120);
  section("addresses");
  addresses();
  const std::pair<const char*, void (*)(Poller&)> promises[] = {
      {"meets", meets},
      {"unreachable", unreachable},
      {"silent, foreign", silent_or_foreign},
      {"wrong key", wrong_key},
      {"false acceptor", false_acceptor},
      {"strangers", strangers},
      {"replay", replay},
      {"parked", parked},
      {"taken back", taken_back},
      {"taken back from inside", taken_back_inside},
      {"port range", ranges},
      {"IPv6", ipv6},
      {"lingering", lingering},
      {"logged once", logged_once},
  };
  for (const auto& [name, promise] : promises) {
    section(name);
    Poller poller;
    promise(poller);
  }
  return 0;
}
