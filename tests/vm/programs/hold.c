// hold [DIR] -- PROGRAM ARGS...: stop before PROGRAM's first instruction, under its later pid.
//
// A tracer can then be attached before any queue pair exists, without a race: the process
// stops itself, whoever holds it sends SIGCONT. With DIR it also leaves an empty file DIR/PID,
// for programs that a launcher such as mpirun starts.
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char** argv) {
  int command = 1;
  if (command < argc && strcmp(argv[command], "--") != 0) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%d", argv[command], getpid());
    const int file = open(path, O_CREAT | O_WRONLY, 0600);
    if (file < 0) {
      perror(path);
      return 127;
    }
    close(file);
    ++command;
  }
  ++command;  // the --
  if (command >= argc) {
    fprintf(stderr, "usage: hold [DIR] -- PROGRAM ARGS...\n");
    return 127;
  }
  raise(SIGSTOP);
  execvp(argv[command], &argv[command]);
  perror(argv[command]);
  return 127;
}
