// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// workload SCENARIO: drives the provider library in a process of its own, and says what it did.
//
// Protocol over stdin and stdout: it prints "ready", waits for a line, acts, prints one line of
// truth.h for each record that a tracer should have seen, prints "end", waits for a line or the end
// of input, exits.
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "workload.h"

unsigned common_flags() {
  const char* text = getenv("WORKLOAD_POST_FLAGS");
  return text ? static_cast<unsigned>(strtoul(text, nullptr, 16)) : 0;
}

bool checked() {
  return (common_flags() & SIGMA_POST_UNVERIFIED) == 0;
}

unsigned walked_limit() {
  const char* text = getenv("WORKLOAD_WALKED");
  return text ? static_cast<unsigned>(atoi(text)) : 256;
}

void plain_post(World& world) {
  ibv_send_wr wr = {};
  ibv_send_wr* bad = nullptr;
  provider_post_send(world.plain(), &wr, &bad);
  PostText text = world.post(SIGMA_QUEUE_SEND);
  text.flags = common_flags();
  say(text.text());
}

namespace {

// Many threads, each on a QP of its own, posting and polling at once. Says totals only.
void threads(unsigned n_threads, unsigned rounds) {
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < n_threads; t++)
    threads.emplace_back([t, rounds] {
      World world("sigma_t", IBV_QPT_RC, 100 + t);
      ibv_wc wc = {};
      for (unsigned i = 0; i < rounds; i++) {
        ibv_send_wr wr = {};
        wr.wr_id = i;
        ibv_send_wr* bad = nullptr;
        provider_post_send(world.plain(), &wr, &bad);
        wc.wr_id = i;
        wc.qp_num = 100 + t;
        const ibv_wc ready = wc;
        world.completions = {&ready, 1};
        provider_poll_cq(&world.send_cq, 1, &wc);
      }
    });
  for (std::thread& thread : threads) thread.join();
}

void one_post() {
  World world;
  ibv_send_wr wr = {};
  ibv_send_wr* bad = nullptr;
  provider_post_send(world.plain(), &wr, &bad);
  world.say_first_sight();
  PostText text = world.post(SIGMA_QUEUE_SEND);
  text.flags = common_flags();
  say(text.text());
}

// A child that posts and exits with 7 while threads of its parent come and go; then an exec.
void processes(const char* self) {
  const pid_t parent = getpid();
  std::thread([] {}).join();  // a thread is no process
  fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    World world("sigma_child");
    ibv_send_wr wr = {};
    ibv_send_wr* bad = nullptr;
    provider_post_send(world.plain(), &wr, &bad);
    std::thread([] {}).join();
    _exit(7);
  }
  int status;
  waitpid(child, &status, 0);
  const char* comm = "workload";
  say(process_text(SIGMA_PROCESS_FORK, static_cast<uint32_t>(parent), static_cast<uint32_t>(child),
                   0, comm));
  say(process_text(SIGMA_PROCESS_EXIT, static_cast<uint32_t>(child), 0, 7 << 8, comm));
  say(process_text(SIGMA_PROCESS_EXEC, static_cast<uint32_t>(parent), 0, 0, comm));
  fflush(stdout);
  execl(self, self, "after_exec", nullptr);
  _exit(1);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  const std::string scenario = argv[1];
  auto wait_for_line = [] {
    char byte;
    while (read(STDIN_FILENO, &byte, 1) == 1)
      if (byte == '\n') return true;
    return false;
  };
  if (scenario != "after_exec") {
    printf("ready\n");
    fflush(stdout);
    if (!wait_for_line()) return 0;
  }
  do {
    if (scenario == "opcodes") opcodes();
    if (scenario == "chain") chain();
    if (scenario == "datagrams") datagrams();
    if (scenario == "refusals") refusals();
    if (scenario == "long_lists") long_lists();
    if (scenario == "unreadable") unreadable();
    if (scenario == "builders") builders();
    if (scenario == "polls") polls();
    if (scenario == "extended_polls") extended_polls();
    if (scenario == "reopen") reopen();
    if (scenario == "replaced") replaced();
    if (scenario == "replaced_unseen") replaced_unseen();
    if (scenario == "many_posts") many_posts();
    if (scenario == "commands") commands();
    if (scenario == "one_post") one_post();
    if (scenario == "threads") threads(4, 2000);
    if (scenario == "flood") threads(8, 20000);
    if (scenario == "processes") processes(argv[0]);
    printf("end\n");
    fflush(stdout);
  } while (wait_for_line());  // once more for each further line
  return 0;
}
