// Copies between the memory of a GPU and that of the host, in a stream beside the computing one. Errors are
// those of guarded.h.
//
// The streams and events are libtorch's own for any device: a program that is linked against the CPU library
// reaches those of a CUDA library that it has loaded.

#include <ATen/ATen.h>
#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/GradMode.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "guarded.h"

namespace {

constexpr auto kGpu = c10::DeviceType::CUDA;

struct SideStream {
  explicit SideStream(c10::Device device)
      : device(device), stream(c10::impl::VirtualGuardImpl(kGpu).getNewStream(device)) {}

  // The stream that computes in this thread.
  c10::Stream computing() const {
    return c10::impl::VirtualGuardImpl(kGpu).getStream(device);
  }

  c10::Device device;
  c10::Stream stream;
};

} // namespace

extern "C" {

char* florin_side_stream_new(int64_t gpu, SideStream** out) {
  return guarded([&] {
    *out = new SideStream(c10::Device(kGpu, static_cast<c10::DeviceIndex>(gpu)));
  });
}

void florin_side_stream_free(SideStream* side) {
  delete side;
}

// Begins a copy, behind all that this thread has computed so far. Both tensors live until the computing
// stream has joined the event, which the caller frees.
char* florin_side_stream_copy(
    const SideStream* side, const at::Tensor* source, const at::Tensor* target, c10::Event** out) {
  return guarded([&] {
    c10::Event computed(kGpu);
    computed.record(side->computing());
    computed.block(side->stream);
    auto done = std::make_unique<c10::Event>(kGpu);
    {
      const c10::NoGradGuard no_gradients;
      const c10::StreamGuard guard(side->stream);
      target->copy_(*source, /*non_blocking=*/true);
    }
    done->record(side->stream);
    *out = done.release();
  });
}

char* florin_side_stream_is_done(const c10::Event* event, bool* out) {
  return guarded([&] { *out = event->query(); });
}

// All that this thread computes from now on is behind the event. The host does not wait.
char* florin_side_stream_join(const SideStream* side, const c10::Event* event) {
  return guarded([&] { event->block(side->computing()); });
}

void florin_side_stream_event_free(c10::Event* event) {
  delete event;
}

// Flat memory of the host that a GPU copies without a detour.
char* florin_side_stream_host_memory(int64_t bytes, at::Tensor** out) {
  return guarded([&] {
    const auto options = at::TensorOptions().dtype(at::kByte).pinned_memory(true);
    *out = new at::Tensor(at::empty({bytes}, options));
  });
}

// Returns the host's memory that no tensor has to the system, once the GPU has copied all.
char* florin_side_stream_release_host_memory(int64_t gpu) {
  return guarded([&] {
    c10::impl::VirtualGuardImpl(kGpu).synchronizeDevice(static_cast<c10::DeviceIndex>(gpu));
    at::getHostAllocator(kGpu)->empty_cache();
  });
}

// Whether cuDNN chooses kernels that add in the same order each time; returns the choice before it.
bool florin_side_stream_repeatable(bool repeatable) {
  const bool before = at::globalContext().deterministicCuDNN();
  at::globalContext().setDeterministicCuDNN(repeatable);
  return before;
}

// Bytes of a GPU that libtorch can allocate: those of the device, and its own unused blocks.
char* florin_side_stream_free_bytes(int64_t gpu, int64_t* out) {
  return guarded([&] {
    const auto index = static_cast<c10::DeviceIndex>(gpu);
    auto* allocator = c10::getDeviceAllocator(kGpu);
    const auto free = static_cast<int64_t>(allocator->getMemoryInfo(index).first);
    const auto stats = allocator->getDeviceStats(index);
    *out = free + stats.reserved_bytes[0].current - stats.allocated_bytes[0].current;
  });
}

// Waits until a GPU has computed all that was asked of it.
char* florin_side_stream_synchronize(int64_t gpu) {
  return guarded([&] {
    c10::impl::VirtualGuardImpl(kGpu).synchronizeDevice(static_cast<c10::DeviceIndex>(gpu));
  });
}
}
