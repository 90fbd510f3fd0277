#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/native/CPUFallback.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include "test_device.h"

namespace at::native {  // of libtorch; their headers are one for each operation
Tensor as_strided_tensorimpl(const Tensor&, IntArrayRef, IntArrayRef, std::optional<int64_t>);
const Tensor& resize_(const Tensor&, IntArrayRef, std::optional<MemoryFormat>);
Tensor _reshape_alias(const Tensor&, IntArrayRef, IntArrayRef);
Tensor view(const Tensor&, IntArrayRef);
Tensor& set_tensor_(Tensor&, const Tensor&);
Tensor& set_storage_cpu_(Tensor&, Storage, int64_t, IntArrayRef, IntArrayRef);
Tensor unfold(const Tensor&, int64_t, int64_t, int64_t);
Tensor view_as_real(const Tensor&);
Tensor view_as_complex(const Tensor&);
}  // namespace at::native

namespace test_device {
namespace {

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

c10::DeviceIndex index_of(std::optional<c10::Device> device) {
  return device && device->has_index() ? device->index() : current_device();
}

at::Tensor empty(c10::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<c10::Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(c10::Device(kType, index_of(device)));
  return at::detail::empty_generic(size, &allocator(), kKeys, dtype.value_or(at::kFloat), format);
}

at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<c10::Device> device, std::optional<bool>) {
  const c10::DeviceGuard guard(c10::Device(kType, index_of(device)));
  return at::detail::empty_strided_generic(size, stride, &allocator(), kKeys, dtype.value_or(at::kFloat));
}

// The same memory as a tensor of the CPU, when the device is done with it.
at::Tensor on_host(const at::Tensor& tensor) {
  if (tensor.is_cpu()) return tensor;
  synchronize(current_stream(tensor.device().index()));
  at::Tensor alias = at::from_blob(
      tensor.data_ptr(), tensor.sizes(), tensor.strides(), [](void*) {}, at::TensorOptions(tensor.scalar_type()));
  alias._set_conj(tensor.is_conj());
  alias._set_neg(tensor.is_neg());
  return alias;
}

bool plain(const at::Tensor& a, const at::Tensor& b) {
  return a.device() == b.device() && a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() &&
         a.is_contiguous() && b.is_contiguous() && a.is_conj() == b.is_conj() && a.is_neg() == b.is_neg();
}

// On the device, in its stream, where it is one piece of memory there; else by the host.
at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool) {
  if (from.numel() == 0 || to.numel() == 0) return to;
  if (!plain(from, to)) {
    on_host(to).copy_(on_host(from));
    return to;
  }
  const c10::DeviceGuard guard(to.device());
  allocator().copy_data(to.data_ptr(), from.data_ptr(), from.nbytes());
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  if (to.sizes() != from.sizes()) at::native::resize_(to, from.sizes(), std::nullopt);
  return copy_from(from, to, false);
}

at::Scalar local_scalar_dense(const at::Tensor& self) { return on_host(self).item(); }

const at::Tensor& resize(const at::Tensor& self, c10::IntArrayRef size, std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(self.device());
  return at::native::resize_(self, size, format);
}

at::Tensor& set_storage(at::Tensor& self, at::Storage source, int64_t offset, c10::IntArrayRef size,
                        c10::IntArrayRef stride) {
  return at::native::set_storage_cpu_(self, std::move(source), offset, size, stride);
}

void on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) { at::native::cpu_fallback(op, stack); }

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("as_strided", at::native::as_strided_tensorimpl);
  m.impl("resize_", resize);
  m.impl("_reshape_alias", at::native::_reshape_alias);
  m.impl("view", at::native::view);
  m.impl("unfold", at::native::unfold);
  m.impl("view_as_real", at::native::view_as_real);
  m.impl("view_as_complex", at::native::view_as_complex);
  m.impl("set_.source_Tensor", at::native::set_tensor_);
  m.impl("set_.source_Storage_storage_offset", set_storage);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("_local_scalar_dense", local_scalar_dense);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&on_cpu>()); }

}  // namespace test_device
