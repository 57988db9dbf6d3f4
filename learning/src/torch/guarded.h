// Errors of the C functions beside tch: no exception leaves them. Each returns null, or an error text that
// `florin_aten_free_text` frees.

#pragma once

#include <c10/util/Exception.h>

#include <cstdlib>
#include <cstring>
#include <exception>
#include <string>

namespace {

char* copy_text(const std::string& text) {
  char* copy = static_cast<char*>(std::malloc(text.size() + 1));
  // Null would mean success.
  if (copy == nullptr) std::abort();
  std::memcpy(copy, text.c_str(), text.size() + 1);
  return copy;
}

template <typename Body>
char* guarded(Body body) {
  try {
    body();
    return nullptr;
  } catch (const c10::Error& error) {
    return copy_text(error.what_without_backtrace());
  } catch (const std::exception& error) {
    return copy_text(error.what());
  } catch (...) {
    return copy_text("an unknown exception of libtorch");
  }
}

} // namespace
