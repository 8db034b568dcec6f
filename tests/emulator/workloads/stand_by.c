// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Does nothing until its standard input ends. In the root folder of another release it lets a
// tracer attach to that root's libraries before any program maps them.
#include <unistd.h>

int main(void) {
  char byte;
  while (read(STDIN_FILENO, &byte, 1) > 0) {
  }
  return 0;
}
