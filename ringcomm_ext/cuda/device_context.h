// What the kernels are written against: one SPMD context and the shims for memory that others read or write. One header for nvcc, where
// a block is a block, and for g++, where it is a set of threads (emulated_context.h).
//
// A context has tid, nthr, blk, nblk; shared(), a BlockShared of the block; sync_any(x), the block's barrier, which gives every thread
// whether x was true in any; pause() inside a spin; now_ns(). Kernels are right for any nthr >= 1: strided loops, no warp intrinsics, no wait for a thread of
// the own block except by the barrier.
//
// Order. Everything a block wrote before its barrier is visible to whoever reads, by ld_acquire_sys, what a thread of it then stored by
// st_release_sys: the barrier orders the block's threads, the release is cumulative. A reader's block passes a barrier after the acquire, so it holds for all its
// threads. The relaxed shims order nothing; the flag and the data that it stands for are one 64-bit word there.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define RINGCOMM_DEVICE __device__ __forceinline__
#define RINGCOMM_DEVICE_CALL __device__ __noinline__
#define RINGCOMM_UNROLL _Pragma("unroll")
#define RINGCOMM_NO_UNROLL _Pragma("unroll 1")
#else
#define RINGCOMM_DEVICE inline
#define RINGCOMM_DEVICE_CALL inline
#define RINGCOMM_UNROLL
#define RINGCOMM_NO_UNROLL
#endif

namespace ringcomm::cuda {

#ifdef RINGCOMM_PLANTED_RELAXED_SIGNAL  // cuda_relaxed_planted.cpp: ThreadSanitizer must see the wrong order
inline constexpr int kSignalOrder = __ATOMIC_RELAXED;
#else
inline constexpr int kSignalOrder = __ATOMIC_RELEASE;
#endif

RINGCOMM_DEVICE void st_release_sys(uint32_t* at, uint32_t value) {
#if defined(__CUDA_ARCH__)
  asm volatile("st.release.sys.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
#else
  __atomic_store_n(at, value, kSignalOrder);
#endif
}

RINGCOMM_DEVICE uint32_t ld_acquire_sys(const uint32_t* at) {
#if defined(__CUDA_ARCH__)
  uint32_t value;
  asm volatile("ld.acquire.sys.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
  return value;
#else
  return __atomic_load_n(at, __ATOMIC_ACQUIRE);
#endif
}

RINGCOMM_DEVICE void st_relaxed_sys(uint64_t* at, uint64_t value) {
#if defined(__CUDA_ARCH__)
  asm volatile("st.relaxed.sys.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
#else
  __atomic_store_n(at, value, __ATOMIC_RELAXED);
#endif
}

RINGCOMM_DEVICE uint64_t ld_relaxed_sys(const uint64_t* at) {
#if defined(__CUDA_ARCH__)
  uint64_t value;
  asm volatile("ld.relaxed.sys.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
  return value;
#else
  return __atomic_load_n(at, __ATOMIC_RELAXED);
#endif
}

#if defined(__CUDACC__)
template <class Shared>
struct DeviceContext {
  uint32_t tid, nthr, blk, nblk;
  Shared* block;

  __device__ __forceinline__ explicit DeviceContext(Shared* shared)
      : tid(threadIdx.x), nthr(blockDim.x), blk(blockIdx.x), nblk(gridDim.x), block(shared) {}
  __device__ __forceinline__ Shared& shared() { return *block; }
  __device__ __forceinline__ bool sync_any(bool x) { return __syncthreads_or(x) != 0; }
  __device__ __forceinline__ void pause() {}
  __device__ __forceinline__ uint64_t now_ns() {
    uint64_t ns;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
    return ns;
  }
};
#endif

}  // namespace ringcomm::cuda
