// A tape of a training step: the tensors that libtorch saves for the backward pass, and the memory of all
// tensors. Saved tensors can be released after the forward pass and restored when they are needed. Errors
// are those of guarded.h.
//
// libtorch asks its autograd engine for the hooks of saved tensors, and reports its allocations to the
// profiler of the thread; both are interfaces of PyTorch's own.

#include <ATen/ATen.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <chrono>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "guarded.h"

extern "C" {

enum EventKind : int32_t {
  kAllocate = 0,
  kFree = 1,
  kMark = 2,
  kSave = 3,
  kUse = 4,
};

// `number` is that of an allocation, a mark or a saved tensor. `bytes` is the size of an allocation; for a
// saved tensor it is the number of its memory's allocation, or -1 if that is older than the tape.
struct FlorinEvent {
  int32_t kind;
  int64_t number;
  int64_t bytes;
  int64_t nanoseconds;
};

// Returns the memory of a saved tensor as a flat tensor of bytes, which the caller frees; null if that
// fails.
using Restore = at::Tensor* (*)(void* context, int64_t number);
}

namespace {

struct Tape;

struct Saved {
  int64_t number;
  at::Tensor tensor;
  // Of the view, so that it can be made again.
  at::TensorOptions options;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
  int64_t offset;
};

struct Tape {
  std::mutex mutex;
  bool logs;
  Restore restore;
  void* context;
  std::vector<FlorinEvent> events;
  // The events of allocations, by number.
  std::vector<size_t> event_of;
  // Allocations that live: their number and size by address.
  std::unordered_map<const void*, std::pair<int64_t, int64_t>> memory;
  int64_t allocations = 0;
  int64_t live = 0;
  int64_t peak = 0;
  // The autograd graph owns them: they end with its nodes.
  std::vector<std::weak_ptr<Saved>> saved;

  void log(EventKind kind, int64_t number, int64_t bytes) {
    if (!logs) return;
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    const auto nanoseconds = std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
    events.push_back({kind, number, bytes, nanoseconds});
  }

  void allocated(const void* at, int64_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex);
    memory[at] = {allocations, bytes};
    if (logs) event_of.push_back(events.size());
    log(kAllocate, allocations++, bytes);
    live += bytes;
    peak = std::max(peak, live);
  }

  void freed(const void* at) {
    const std::lock_guard<std::mutex> lock(mutex);
    const auto found = memory.find(at);
    if (found == memory.end()) return;
    const auto [number, bytes] = found->second;
    memory.erase(found);
    log(kFree, number, bytes);
    live -= bytes;
  }

  std::shared_ptr<Saved> save(const at::Tensor& tensor) {
    const std::lock_guard<std::mutex> lock(mutex);
    auto saved_tensor = std::make_shared<Saved>();
    saved_tensor->number = static_cast<int64_t>(saved.size());
    // Without its node, which may own this object.
    saved_tensor->tensor = tensor.detach();
    saved.push_back(saved_tensor);
    log(kSave, saved_tensor->number, allocation_of(tensor));
    return saved_tensor;
  }

  // The number of the allocation of a tensor's memory, or -1 for memory that is older than the tape. A GPU's
  // allocator gives larger blocks than it was asked for; from now on the event has the tensor's own bytes.
  int64_t allocation_of(const at::Tensor& tensor) {
    if (!tensor.has_storage()) return -1;
    const auto found = memory.find(tensor.storage().data());
    if (found == memory.end()) return -1;
    const auto number = found->second.first;
    if (logs) events.at(event_of.at(number)).bytes = static_cast<int64_t>(tensor.storage().nbytes());
    return number;
  }
};

// The memory of a tensor as bytes.
at::Tensor bytes_of(const at::Tensor& tensor) {
  const auto& storage = tensor.storage();
  const auto bytes = static_cast<int64_t>(storage.nbytes());
  return at::empty({0}, tensor.options().dtype(at::kByte)).set_(storage, 0, {bytes}, {1});
}

struct TapeHooks : torch::autograd::SavedVariableHooks {
  explicit TapeHooks(std::shared_ptr<Tape> tape) : tape(std::move(tape)) {}

  void call_pack_hook(const at::Tensor& tensor) override {
    saved = tape->save(tensor);
  }

  at::Tensor call_unpack_hook() override {
    {
      const std::lock_guard<std::mutex> lock(tape->mutex);
      tape->log(kUse, saved->number, 0);
      if (saved->tensor.defined()) return saved->tensor;
    }
    std::unique_ptr<at::Tensor> bytes(
        tape->restore == nullptr ? nullptr : tape->restore(tape->context, saved->number));
    if (bytes == nullptr) throw std::runtime_error("a saved tensor cannot be restored");
    return at::empty({0}, saved->options)
        .set_(bytes->storage(), saved->offset, saved->sizes, saved->strides);
  }

  std::shared_ptr<Tape> tape;
  std::shared_ptr<Saved> saved;
};

// Of the forward pass that runs in this thread.
thread_local std::shared_ptr<Tape> tape_of_thread;

struct TapeEngine : torch::autograd::Engine {
  std::unique_ptr<torch::autograd::SavedVariableHooks> get_default_saved_variable_hooks() override {
    if (tape_of_thread == nullptr) return nullptr;
    return std::make_unique<TapeHooks>(tape_of_thread);
  }
};

torch::autograd::Engine& tape_engine() {
  // It lives as long as the process, as libtorch's own.
  static auto* engine = new TapeEngine();
  return *engine;
}

// Counts the memory of one kind of device.
struct Meter : c10::MemoryReportingInfoBase {
  Meter(std::shared_ptr<Tape> tape, c10::DeviceType device) : tape(std::move(tape)), device(device) {}

  void reportMemoryUsage(
      void* at, int64_t bytes, size_t, size_t, c10::Device reported) override {
    if (reported.type() != device) return;
    if (bytes >= 0) {
      tape->allocated(at, bytes);
    } else {
      tape->freed(at);
    }
  }

  bool memoryProfilingEnabled() const override {
    return true;
  }

  std::shared_ptr<Tape> tape;
  c10::DeviceType device;
};

struct Recording {
  Recording(std::shared_ptr<Tape> tape, bool saves, c10::DeviceType device)
      : saves(saves),
        guard(c10::DebugInfoKind::PROFILER_STATE, std::make_shared<Meter>(tape, device)) {
    if (saves) tape_of_thread = std::move(tape);
  }

  ~Recording() {
    if (saves) tape_of_thread = nullptr;
  }

  bool saves;
  c10::DebugInfoGuard guard;
};

using TapePointer = std::shared_ptr<Tape>;

} // namespace

extern "C" {

char* florin_tape_new(bool logs, Restore restore, void* context, TapePointer** out) {
  return guarded([&] {
    static std::once_flag once;
    std::call_once(once, [] { torch::autograd::set_default_engine_stub(tape_engine); });
    auto tape = std::make_shared<Tape>();
    tape->logs = logs;
    tape->restore = restore;
    tape->context = context;
    *out = new TapePointer(std::move(tape));
  });
}

// A graph that outlives the tape cannot restore tensors any more.
void florin_tape_free(TapePointer* tape) {
  (*tape)->restore = nullptr;
  delete tape;
}

// Records this thread until `florin_tape_leave`, which this thread calls: its allocations on a device of
// the kind `gpu`, and with `saves` the saved tensors of its forward passes.
char* florin_tape_enter(const TapePointer* tape, bool saves, bool gpu, Recording** out) {
  return guarded([&] {
    const auto device = gpu ? c10::DeviceType::CUDA : c10::DeviceType::CPU;
    *out = new Recording(*tape, saves, device);
  });
}

void florin_tape_leave(Recording* recording) {
  delete recording;
}

void florin_tape_mark(const TapePointer* tape, int64_t number) {
  const std::lock_guard<std::mutex> lock((*tape)->mutex);
  (*tape)->log(kMark, number, 0);
}

// The number of saved tensors so far.
int64_t florin_tape_saved(const TapePointer* tape) {
  const std::lock_guard<std::mutex> lock((*tape)->mutex);
  return static_cast<int64_t>((*tape)->saved.size());
}

// Forgets all saved tensors, allocations and events.
void florin_tape_restart(const TapePointer* tape) {
  const std::lock_guard<std::mutex> lock((*tape)->mutex);
  (*tape)->saved.clear();
  (*tape)->events.clear();
  (*tape)->event_of.clear();
  (*tape)->memory.clear();
  (*tape)->allocations = 0;
  (*tape)->live = 0;
  (*tape)->peak = 0;
}

void florin_tape_bytes(const TapePointer* tape, int64_t* live, int64_t* peak) {
  const std::lock_guard<std::mutex> lock((*tape)->mutex);
  *live = (*tape)->live;
  *peak = (*tape)->peak;
}

const FlorinEvent* florin_tape_events(const TapePointer* tape, size_t* length) {
  *length = (*tape)->events.size();
  return (*tape)->events.data();
}

// The memory of a saved tensor as bytes; no tensor if it was released, or if its graph has ended.
char* florin_tape_memory(const TapePointer* tape, int64_t number, at::Tensor** out) {
  return guarded([&] {
    const auto saved = (*tape)->saved.at(number).lock();
    *out = saved == nullptr || !saved->tensor.defined()
        ? nullptr
        : new at::Tensor(bytes_of(saved->tensor));
  });
}

// The number of the allocation of a tensor's memory, or -1 for memory that is older than the tape.
int64_t florin_tape_allocation(const TapePointer* tape, const at::Tensor* tensor) {
  const std::lock_guard<std::mutex> lock((*tape)->mutex);
  return (*tape)->allocation_of(*tensor);
}

// The place of a tensor's first element in its memory, in elements.
int64_t florin_tape_offset(const at::Tensor* tensor) {
  return tensor->storage_offset();
}

// Releases a saved tensor: it is restored when it is used.
char* florin_tape_release(const TapePointer* tape, int64_t number) {
  return guarded([&] {
    const auto saved = (*tape)->saved.at(number).lock();
    if (saved == nullptr || !saved->tensor.defined()) return;
    saved->options = saved->tensor.options();
    saved->sizes = saved->tensor.sizes().vec();
    saved->strides = saved->tensor.strides().vec();
    saved->offset = saved->tensor.storage_offset();
    saved->tensor.reset();
  });
}
}
