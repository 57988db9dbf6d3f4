// A process group of c10d, PyTorch's library of collectives: its store, its Gloo backend, and the
// completion of its transfers. Errors are those of guarded.h.

#include <ATen/Version.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "guarded.h"

namespace {

using Milliseconds = std::chrono::milliseconds;

using StorePointer = c10::intrusive_ptr<c10d::Store>;
using GroupPointer = c10::intrusive_ptr<c10d::ProcessGroupGloo>;
using WorkPointer = c10::intrusive_ptr<c10d::Work>;

std::vector<at::Tensor> one(const void* tensor) {
  return {*static_cast<const at::Tensor*>(tensor)};
}

} // namespace

extern "C" {

// The store of a rendezvous; `prefix` begins every key. The server of it runs in this process on the
// socket `listener`, which it closes, unless that is negative.
char* florin_c10d_store(
    const char* host,
    uint16_t port,
    int listener,
    int64_t processes,
    int64_t timeout_ms,
    const char* prefix,
    StorePointer** out) {
  return guarded([&] {
    c10d::TCPStoreOptions options;
    options.port = port;
    options.isServer = listener >= 0;
    if (listener >= 0) options.masterListenFd = listener;
    options.numWorkers = static_cast<size_t>(processes);
    options.waitWorkers = false;
    options.timeout = Milliseconds(timeout_ms);
    auto store = c10::make_intrusive<c10d::TCPStore>(std::string(host), options);
    *out = new StorePointer(c10::make_intrusive<c10d::PrefixStore>(std::string(prefix), store));
  });
}

char* florin_c10d_store_set(
    const StorePointer* store, const char* key, const uint8_t* bytes, size_t length) {
  return guarded([&] { (*store)->set(key, std::vector<uint8_t>(bytes, bytes + length)); });
}

// The value of a key, when it is there. The caller frees it by `florin_c10d_free_bytes`.
char* florin_c10d_store_get(
    const StorePointer* store, const char* key, int64_t timeout_ms, uint8_t** bytes, size_t* length) {
  return guarded([&] {
    (*store)->wait({std::string(key)}, Milliseconds(timeout_ms));
    const std::vector<uint8_t> value = (*store)->get(key);
    *bytes = static_cast<uint8_t*>(std::malloc(value.size() + 1));
    if (*bytes == nullptr) throw std::bad_alloc();
    std::memcpy(*bytes, value.data(), value.size());
    *length = value.size();
  });
}

// Whether a process has set a key.
char* florin_c10d_store_check(const StorePointer* store, const char* key, bool* is_there) {
  return guarded([&] { *is_there = (*store)->check({std::string(key)}); });
}

// Adds 1 to the number of a key, and returns the sum.
char* florin_c10d_store_count(const StorePointer* store, const char* key, int64_t* sum) {
  return guarded([&] { *sum = (*store)->add(std::string(key), 1); });
}

void florin_c10d_free_bytes(uint8_t* bytes) {
  std::free(bytes);
}

void florin_c10d_store_free(StorePointer* store) {
  delete store;
}

// The group of the processes of a store, on the network interface of that name, or on the one of this
// machine's host name if it is empty.
char* florin_c10d_group(
    const StorePointer* store,
    int rank,
    int size,
    int64_t timeout_ms,
    const char* interface,
    GroupPointer** out) {
  return guarded([&] {
    auto options = c10d::ProcessGroupGloo::Options::create(Milliseconds(timeout_ms));
    const std::string name(interface);
    options->devices.push_back(
        name.empty() ? c10d::ProcessGroupGloo::createDefaultDevice()
                     : c10d::ProcessGroupGloo::createDeviceForInterface(name));
    *out = new GroupPointer(
        c10::make_intrusive<c10d::ProcessGroupGloo>(*store, rank, size, std::move(options)));
  });
}

void florin_c10d_group_free(GroupPointer* group) {
  delete group;
}

char* florin_c10d_send(
    const GroupPointer* group, const void* tensor, int to, int tag, WorkPointer** out) {
  return guarded([&] {
    auto tensors = one(tensor);
    *out = new WorkPointer((*group)->send(tensors, to, tag));
  });
}

char* florin_c10d_receive(
    const GroupPointer* group, const void* tensor, int from, int tag, WorkPointer** out) {
  return guarded([&] {
    auto tensors = one(tensor);
    *out = new WorkPointer((*group)->recv(tensors, from, tag));
  });
}

char* florin_c10d_broadcast(
    const GroupPointer* group, const void* tensor, int root, int64_t timeout_ms, WorkPointer** out) {
  return guarded([&] {
    auto tensors = one(tensor);
    c10d::BroadcastOptions options;
    options.rootRank = root;
    options.timeout = Milliseconds(timeout_ms);
    *out = new WorkPointer((*group)->broadcast(tensors, options));
  });
}

// Waits until a transfer has ended.
char* florin_c10d_wait(const WorkPointer* work, int64_t timeout_ms) {
  return guarded([&] {
    if (!(*work)->wait(Milliseconds(timeout_ms))) {
      throw std::runtime_error("the transfer was aborted");
    }
  });
}

// The vector instructions that libtorch's kernels use on this processor.
char* florin_cpu_capability() {
  return copy_text(at::get_cpu_capability());
}

void florin_c10d_work_free(WorkPointer* work) {
  delete work;
}
}
