// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Loads the plug-in that is linked with libcuda and libmlx5: bind_plugin_host PLUGIN local|deepbind
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const int deep = strcmp(argv[2], "deepbind") == 0 ? RTLD_DEEPBIND : 0;
  void* plugin = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL | deep);
  int (*run)(void) = plugin ? (int (*)(void))dlsym(plugin, "plugin_main") : NULL;
  if (!run) {
    fprintf(stderr, "%s\n", dlerror());
    return 2;
  }
  return run();
}
