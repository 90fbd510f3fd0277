// A DeviceRuntime over the CUDA driver.
#pragma once

#include <map>
#include <memory>

#include "cuda/device_runtime.h"
#include "cuda/driver.h"

namespace ringcomm::cuda {

class DriverRuntime final : public DeviceRuntime {
 public:
  // Of a device by its number in this process. Keeps its primary context, the one torch uses, until the end. Null: `error` says why. The driver must outlive it.
  static std::unique_ptr<DriverRuntime> open(const Driver& driver, int ordinal, Error& error);
  ~DriverRuntime() override;
  DriverRuntime(const DriverRuntime&) = delete;
  DriverRuntime& operator=(const DriverRuntime&) = delete;

  const DeviceFacts& facts() const override { return facts_; }

  bool allocate(size_t bytes, char*& out, Error& error) override;
  void free(char* memory) override;
  bool unreachable(std::vector<std::string>& out, Error& error) override;
  bool share(const char* data, size_t bytes, SharedMemory& out, Error& error) override;
  bool import(const SharedMemory& from, ImportedMemory& out, Error& error) override;
  void close(const ImportedMemory& memory) override;
  bool allocate_host(size_t bytes, HostMemory& out, Error& error) override;
  void free_host(const HostMemory& memory) override;
  bool register_host(char* host, size_t bytes, HostMemory& out, Error& error) override;
  void unregister_host(const HostMemory& memory) override;

  bool make_stream(StreamHandle& out, Error& error) override;
  void destroy(StreamHandle stream) override;
  bool make_event(EventHandle& out, Error& error) override;
  void destroy(EventHandle event) override;
  bool record(EventHandle event, StreamHandle stream, Error& error) override;
  bool wait_event(StreamHandle stream, EventHandle event, Error& error) override;
  bool done(EventHandle event, bool& out, Error& error) override;
  bool done(StreamHandle stream, bool& out, Error& error) override;
  bool drain(StreamHandle stream, int64_t deadline_ns, Error& error) override;
  bool capturing(StreamHandle stream, bool& out, Error& error) override;
  bool look_beside_captures(Error& error) override;
  bool exchange_capture_mode(cu::CaptureMode& mode, Error& error) override;

  bool copy(char* to, const char* from, size_t bytes, StreamHandle stream, Error& error) override;
  bool zero(char* to, size_t bytes, StreamHandle stream, Error& error) override;
  bool write_flag(uint32_t* flag, uint32_t value, StreamHandle stream, Error& error) override;
  bool wait_flag(const uint32_t* flag, uint32_t value, StreamHandle stream, Error& error) override;

  bool load_kernels(const void* image, const std::vector<std::string>& names, Error& error) override;
  bool launch(const std::string& kernel, unsigned blocks, unsigned threads, const void* parameter, StreamHandle stream,
              Error& error) override;

 private:
  class Current;
  DriverRuntime(const Driver& driver, cu::Device device, cu::Context* context)
      : driver_(driver), t_(driver.table), device_(device), context_(context) {}
  bool read_facts(int ordinal, Error& error);
  bool look_up(int ordinal, cu::Device& device, cu::Uuid& uuid, Error& error);
  bool can_access(cu::Device other, bool& out, Error& error);
  bool reaches(const cu::Uuid& device, Error& error);
  bool good(cu::Result result, const char* call, Error& error, const std::string& what = "") const {
    return succeeded(t_, result, call, what, error);
  }
  bool answered(cu::Result result, const char* call, bool& out, Error& error) const;
  void released(cu::Result result, const char* call) const;

  const Driver& driver_;
  const cu::Table& t_;
  const cu::Device device_;
  cu::Context* const context_;
  DeviceFacts facts_;
  cu::Uuid uuid_{};
  StreamHandle service_ = nullptr;  // for zeroes; no one else's
  cu::Module* module_ = nullptr;
  std::map<std::string, cu::Function*> kernels_;  // written by load_kernels only
};

}  // namespace ringcomm::cuda
