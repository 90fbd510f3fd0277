// The one definition of the numbers shared by schedules, programs and the data plane (docs/program.md is the text).
// No torch, no CUDA, no verbs here or below.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ringcomm {

inline constexpr int32_t kProgramMagic = 0x52434f4d;  // "RCOM"
inline constexpr int32_t kProgramVersion = 2;

enum class Collective : int32_t {
  all_reduce = 0,
  broadcast = 1,
  reduce = 2,
  all_gather = 3,
  reduce_scatter = 4,
  all_to_all = 5,
  gather = 6,
  scatter = 7,
  barrier = 8,
  send = 9,
  recv = 10,
};
inline constexpr int kCollectives = 11;

// Element types. A reduction knows those before `other`; the rest only move, and have names so that ranks that disagree
// are told apart. `other` is any further type: it moves as bytes, its size travels in the call.
enum class DType : uint8_t {
  uint8 = 0,
  int8 = 1,
  int16 = 2,
  int32 = 3,
  int64 = 4,
  uint16 = 5,
  uint32 = 6,
  uint64 = 7,
  float16 = 8,
  bfloat16 = 9,
  float32 = 10,
  float64 = 11,
  boolean = 12,
  other = 13,
  complex32 = 14,
  complex64 = 15,
  complex128 = 16,
  float8_e4m3fn = 17,
  float8_e5m2 = 18,
  float8_e4m3fnuz = 19,
  float8_e5m2fnuz = 20,
  float8_e8m0fnu = 21,
  float4_e2m1fn_x2 = 22,
  quint8 = 23,
  qint8 = 24,
  qint32 = 25,
};
inline constexpr int kReducibleDTypes = 13;

enum class ReduceOp : uint8_t {
  sum = 0,
  avg = 1,
  product = 2,
  min = 3,
  max = 4,
  band = 5,
  bor = 6,
  bxor = 7,
  none = 8,
};
inline constexpr int kReduceOps = 8;

enum class Opcode : int32_t {
  copy = 0,
  send = 1,
  receive = 2,
  forward = 3,
  reduce = 4,
  reduce_send = 5,
  skip = 6,
};
inline constexpr int kOpcodes = 7;

enum class RefKind : int32_t { in = 0, out = 1, receiver = 2, sender = 3 };
inline constexpr int kRefKindShift = 28;
inline constexpr int32_t kNoRef = -1;

// Flags of a step: finish, and when it may lend (Lend << kLendShift).
inline constexpr int32_t kFlagFinish = 1;
inline constexpr int kLendShift = 1;

// When the readers may read a step's memory in place, in registered memory, instead of a slot: never, in calls whose inputs and outputs lie apart,
// or in all calls. The verifier proves that nothing is written there before they have read it.
enum class Lend : int32_t { never = 0, apart = 1, always = 2 };

// Flag of a program, in its header: at its end it waits until its readers have taken everything.
inline constexpr int32_t kFlagDrain = 1;

enum class ConnectionKind : int32_t { pair = 0, fan_out = 1 };

// The packed table, part by part.
struct ProgramHeader {
  int32_t magic, version, collective, nranks, rank, root, nchunks_in, nchunks_out;
  int32_t nsteps, nrefs, nsenders, nreceivers, max_lag, slots, flags, reserved;
};
static_assert(sizeof(ProgramHeader) == 16 * sizeof(int32_t));

struct PackedStep {
  int32_t opcode, flags, lag, chunk, dst, first_ref, nsources, nsenders;
};
static_assert(sizeof(PackedStep) == 8 * sizeof(int32_t));

struct PackedConnection {
  int32_t kind, peer, reader_set;
};
static_assert(sizeof(PackedConnection) == 3 * sizeof(int32_t));

// A message up to this size travels in the control line of its slot (core/fifo.h), larger ones in the slot itself.
inline constexpr size_t kInlineBytes = 56;

size_t element_size(DType dtype);  // bytes; 1 for `other`
const char* name(Collective c);
const char* name(DType t);
const char* name(ReduceOp op);

}  // namespace ringcomm
