// Declarations of the types of Gloo that the headers of c10d name. libtorch contains Gloo, but its
// wheel has no headers of it. c10d.cpp holds these types by pointer only: their members and sizes are
// never used here. The test `a_group_of_processes_sums_along_the_tree` runs what is built on them.

#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace gloo {

class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
};

namespace transport {
class Device;
class UnboundBuffer;
} // namespace transport

namespace rendezvous {

// The base of a class of c10d's header; c10d.cpp makes no object of it.
class Store {
 public:
  virtual ~Store() = default;
  virtual void set(const std::string& key, const std::vector<char>& value) = 0;
  virtual std::vector<char> get(const std::string& key) = 0;
  virtual void wait(const std::vector<std::string>& keys) = 0;
  virtual void wait(
      const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) = 0;
};

} // namespace rendezvous
} // namespace gloo
