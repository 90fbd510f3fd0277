// The FIFO between threads: everything written is read once, whole and in order, by every reader.
//
// Built a second time with RINGCOMM_PLANTED_RELAXED_PUBLISH, where ThreadSanitizer has to object.
#include "core/fifo.h"

#include <cstring>
#include <memory>
#include <new>
#include <vector>

#include "check.h"

using namespace ringcomm;
using namespace ringcomm::test;

namespace {

// FIFO memory that stands at `position`, as after that many messages.
class Memory {
 public:
  Memory(FifoShape shape, uint32_t position)
      : shape_(shape),
        position_(position),
        header_(allocate(shape.header_bytes())),
        payload_(allocate(shape.payload_bytes())) {
    auto* tails = reinterpret_cast<Tail*>(header_.get());
    auto* lines = reinterpret_cast<Line*>(header_.get() + shape.readers * kCacheLine);
    for (uint32_t r = 0; r < shape.readers; ++r) tails[r].position = position;
    for (uint32_t i = 0; i < shape.slots && position != 0; ++i) lines[i].position = position - shape.slots + i + 1;
  }
  FifoWriter writer() { return {header_.get(), payload_.get(), shape_, position_}; }
  FifoReader reader(uint32_t r, const char* heap = nullptr) {
    return {header_.get(), payload_.get(), shape_, r, position_, heap};
  }

 private:
  struct Free {
    void operator()(char* p) const { ::operator delete(p, std::align_val_t{kCacheLine}); }
  };
  using Block = std::unique_ptr<char, Free>;
  static Block allocate(size_t bytes) {
    Block block(static_cast<char*>(::operator new(bytes, std::align_val_t{kCacheLine})));
    std::memset(block.get(), 0, bytes);
    return block;
  }

  const FifoShape shape_;
  const uint32_t position_;
  Block header_, payload_;
};

struct Case {
  FifoShape shape;
  uint32_t position;
  uint64_t messages;
  bool slow;  // the last reader dawdles
};

// Both ends know the size of message k: mostly around the border between line and slot.
size_t size_of(const Case& c, uint64_t k) {
  Random r(k);
  if (r.one_in(4)) return r.below(c.shape.capacity + 1);
  return std::min(c.shape.capacity, kInlineBytes - 4 + r.below(9));
}

void write_all(const Case& c, FifoWriter writer) {
  for (uint64_t k = 0; k < c.messages; ++k) {
    const size_t bytes = size_of(c, k);
    char* place = await("room", [&] { return writer.reserve(bytes); });
    CHECK(writer.reserve(bytes) == place);
    fill(place, bytes, 1, k);
    writer.publish(static_cast<uint32_t>(k * 3));
  }
}

void read_all(const Case& c, FifoReader reader, uint32_t index) {
  Random r(100 + index);
  for (uint64_t k = 0; k < c.messages; ++k) {
    const size_t bytes = size_of(c, k);
    uint32_t tag = 0;
    const char* data = reader.peek(bytes, &tag);
    while (!data) {  // a reader that gives up for now must flush, or the writer waits for ever
      reader.flush();
      data = await("a message", [&] { return reader.peek(bytes, &tag); });
    }
    CHECK_EQ(tag, static_cast<uint32_t>(k * 3));
    CHECK(holds(data, bytes, 1, k));
    reader.release();
    CHECK(reader.unflushed());
    if (c.slow && index + 1 == c.shape.readers && r.one_in(50)) usleep(200);
    if (r.one_in(3)) reader.flush();
  }
  reader.flush();
  CHECK(!reader.unflushed());
}

void stream(const Case& c) {
  Memory memory(c.shape, c.position);
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < c.shape.readers; ++i) threads.emplace_back([&, i] { read_all(c, memory.reader(i), i); });
  write_all(c, memory.writer());
  for (std::thread& t : threads) t.join();
}

// One thread: what reserve() says and when.
void full_and_free() {
  Memory memory({3, 128, 2}, 0);
  FifoWriter writer = memory.writer();
  FifoReader first = memory.reader(0), second = memory.reader(1);
  uint32_t tag = 0;
  CHECK(first.peek(8, &tag) == nullptr);
  for (int i = 0; i < 3; ++i) {
    CHECK(writer.reserve(8) != nullptr);
    writer.publish(7 + i);
  }
  CHECK(writer.reserve(8) == nullptr);
  for (int i = 0; i < 3; ++i) first.release();
  first.flush();
  CHECK(writer.reserve(8) == nullptr);
  CHECK_EQ(writer.slowest_reader(), 1u);
  CHECK(second.peek(8, &tag) != nullptr);
  CHECK_EQ(tag, 7u);
  second.release();
  CHECK(writer.reserve(8) == nullptr);  // released, not yet flushed
  second.flush();
  CHECK(writer.reserve(8) != nullptr);
}

// Lent messages between those in slots and lines: the line says where they are, and the memory is the writer's again when it is settled.
void lent(uint32_t readers, uint64_t messages) {
  constexpr size_t kBytes = 400, kPlaces = 3;
  Memory memory({4, kBytes, readers}, UINT32_MAX - 100);
  std::vector<char> heap(kPlaces * kBytes);
  const auto is_lent = [](uint64_t k) { return Random(k).one_in(2); };
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < readers; ++i)
    threads.emplace_back([&, i] {
      FifoReader reader = memory.reader(i, heap.data());
      for (uint64_t k = 0; k < messages; ++k) {
        uint32_t tag;
        const char* data = await("a message", [&] { return reader.peek(kBytes, &tag); });
        CHECK_EQ(reader.lent(), is_lent(k));
        CHECK(holds(data, kBytes, 1, k));
        reader.release();
        reader.flush();
      }
    });
  FifoWriter writer = memory.writer();
  CHECK(writer.settled());
  for (uint64_t k = 0; k < messages; ++k) {
    if (!is_lent(k)) {
      fill(await("room", [&] { return writer.reserve(kBytes); }), kBytes, 1, k);
    } else {
      await("room", [&] { return writer.reserve(0); });
      const size_t at = Random(k).below(kPlaces) * kBytes;
      await("the readers", [&] { return writer.settled(); });
      fill(heap.data() + at, kBytes, 1, k);
      writer.refer(at);
    }
    writer.publish(0);
  }
  await("the end", [&] { return writer.settled(); });
  for (std::thread& t : threads) t.join();
}

// One thread: settled() waits for the flush of the last reader and says who it is.
void settles() {
  Memory memory({4, 128, 2}, 0);
  FifoWriter writer = memory.writer();
  FifoReader first = memory.reader(0), second = memory.reader(1);
  for (int i = 0; i < 2; ++i) {
    CHECK(writer.reserve(8) != nullptr);
    writer.publish(0);
  }
  for (int i = 0; i < 2; ++i) first.release(), second.release();
  first.flush();
  CHECK(!writer.settled());
  CHECK_EQ(writer.slowest_reader(), 1u);
  second.flush();
  CHECK(writer.settled());
}

}  // namespace

int main() {
  start("fifo_test", 120);
  section("full, slowest reader, free again");
  full_and_free();
  section("pair");
  stream({{4, 4096, 1}, 0, 4000, false});
  stream({{2, 512, 1}, 0, 4000, false});
  stream({{1, 64, 1}, 0, 2000, true});
  section("fan-out");
  stream({{4, 512, 3}, 0, 3000, false});
  stream({{8, 512, 3}, 0, 2000, true});
  section("lent memory");
  settles();
  lent(1, 2000);
  lent(3, 2000);
  section("positions pass 2^32");
  for (uint32_t slots : {1, 3, 4, 7}) stream({{slots, 256, 2}, UINT32_MAX - 100, 400, false});
  return 0;
}
