// Binds the functions of libtorch's C interface at their first call. See mod.rs.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

// Of the generated assembly: the library, the names and the addresses of its functions, the functions
// of Rust that it calls, and the libraries that it needs. Lists end with a null pointer.
extern const unsigned char florin_lazy_library[];
extern const unsigned long florin_lazy_library_bytes;
extern const char *const florin_lazy_needed[];
extern void *const florin_lazy_called[];
extern const char *const florin_lazy_names[];
extern void *florin_lazy_addresses[];

// The reason for which nothing is bound; empty after success.
static char error[512];

static void *fail(const char *why) {
  snprintf(error, sizeof error, "%s", why ? why : "unknown error");
  return NULL;
}

static int write_all(int file) {
  unsigned long done = 0;
  while (done < florin_lazy_library_bytes) {
    ssize_t written = write(file, florin_lazy_library + done, florin_lazy_library_bytes - done);
    if (written < 0 && errno == EINTR) {
      continue;
    }
    if (written <= 0) {
      return 0;
    }
    done += (unsigned long)written;
  }
  return 1;
}

// The library is loaded from memory; where there is no /proc, from a temporary file.
static void *load(void) {
  char path[64];
  int file = memfd_create("florin_torch", MFD_CLOEXEC);
  if (file >= 0) {
    void *library = NULL;
    if (write_all(file)) {
      snprintf(path, sizeof path, "/proc/self/fd/%d", file);
      library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    }
    close(file);
    if (library) {
      return library;
    }
  }
  const char *folder = getenv("TMPDIR");
  char named[4096];
  snprintf(named, sizeof named, "%s/florin-torch-XXXXXX", folder && *folder ? folder : "/tmp");
  file = mkostemp(named, O_CLOEXEC);
  if (file < 0) {
    return fail("its bindings cannot be written to the temporary folder (TMPDIR)");
  }
  int whole = write_all(file);
  close(file);
  void *library = whole ? dlopen(named, RTLD_NOW | RTLD_LOCAL) : fail("the temporary folder (TMPDIR) is full");
  if (!library && whole) {
    fail(dlerror());
  }
  unlink(named);
  return library;
}

static void bind_all(void) {
  // They are found as the program finds the libraries that it is linked with.
  for (const char *const *needed = florin_lazy_needed; *needed; needed++) {
    if (!dlopen(*needed, RTLD_NOW | RTLD_GLOBAL)) {
      fail(dlerror());
      return;
    }
  }
  void *library = load();
  if (!library) {
    return;
  }
  void **callbacks = dlsym(library, "florin_lazy_callbacks");
  if (!callbacks) {
    fail("its bindings have no table of callbacks");
    return;
  }
  for (unsigned long at = 0; florin_lazy_called[at]; at++) {
    callbacks[at] = florin_lazy_called[at];
  }
  for (unsigned long at = 0; florin_lazy_names[at]; at++) {
    void *found = dlsym(library, florin_lazy_names[at]);
    if (!found) {
      fail(florin_lazy_names[at]);
      return;
    }
    __atomic_store_n(&florin_lazy_addresses[at], found, __ATOMIC_RELEASE);
  }
}

// Binds all functions, and returns null, or the reason for which there is no libtorch.
const char *florin_lazy_error(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, bind_all);
  return *error ? error : NULL;
}

// Called by the entry of a function that is not bound yet. A caller that did not ask before ends here, as a
// program that is linked with a missing library ends at its start.
void florin_lazy_bind(void) {
  const char *why = florin_lazy_error();
  if (why) {
    fprintf(stderr,
            "error [TORCH_NOT_LOADED]: libtorch cannot be loaded: %s\n"
            "  what to do: set LD_LIBRARY_PATH to the folder lib of libtorch, or use the engine reference\n",
            why);
    _exit(3);
  }
}
