/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * Loads and unloads libraries as its input says, one command a line, and answers each:
 *   load PATH      "loaded"
 *   cycle N PATH   loads and unloads it N times: "cycled"
 *   data PATH      maps the file without execute permission: "mapped"
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static void answer(const char* text) {
  printf("%s\n", text);
  fflush(stdout);
}

int main(void) {
  char line[4096], path[4000];
  int count;
  answer("ready");
  while (fgets(line, sizeof line, stdin)) {
    line[strcspn(line, "\n")] = 0;
    if (sscanf(line, "load %3999s", path) == 1) {
      answer(dlopen(path, RTLD_NOW) ? "loaded" : dlerror());
    } else if (sscanf(line, "cycle %d %3999s", &count, path) == 2) {
      while (count-- > 0) dlclose(dlopen(path, RTLD_NOW));
      answer("cycled");
    } else if (sscanf(line, "data %3999s", path) == 1) {
      int fd = open(path, O_RDONLY);
      void* at = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, fd, 0);
      close(fd);
      answer(at != MAP_FAILED ? "mapped" : "not mapped");
    }
  }
  return 0;
}
