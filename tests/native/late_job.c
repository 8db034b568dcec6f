/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * late_job LIBIBVERBS PROVIDER PROGRESS: a job for the tracer's tests. Does what it is told, line by
 * line, and says what it did; each answer ends with the line "ok". Ends with its input.
 *
 *   load          maps the libraries, fills a context's table as libibverbs does
 *   map FILE      maps one more library
 *   send N        N posts of one request each        sent FIRST N SUM
 *   recv N                                           received FIRST N SUM
 *   poll N        one poll, at most N completions    polled N FIRST LAST
 *   spin, stop    posts and polls on a thread as fast as it can, in between     sent FIRST N SUM
 *   threads T N   T threads post N each, side by side, none polled for     sent FIRST T*N SUM
 *   fork N        a child that posts N               child PID, sent FIRST N SUM
 *   stay PID      a child of this pid, which must be free, that stays until it is killed      child PID
 *   leave         its first thread ends and another one stays: of a process that ends there is as much to be seen
 *                 after it has given up its memory and its root folder, and before its end is told
 *   exec [FILE]   runs this program, or a copy of it, anew in the same process
 *
 * Requests are numbered from 1 on by wr_id, receives from 1 << 32 on. SUM is the provider's own account
 * of what reached it. In the file PROGRESS stands the number of the post that is about to be made.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <linux/sched.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BYTES = 64, LKEY = 0x1234, QP_NUM = 17, CQ_ENTRIES = 64, BATCH = 16 };

static char** arguments;
static _Atomic uint64_t* progress;
static struct verbs_context* verbs; /* null: not loaded */
static volatile unsigned long* account; /* the provider's; by what reaches it */
static struct ibv_qp qp;
static struct ibv_cq cq;
static uint64_t next_send = 1, next_recv = (uint64_t)1 << 32;
static _Atomic int spinning;
static pthread_t spinner;

static void fail(const char* what) {
  fprintf(stderr, "late_job: %s\n", what);
  exit(3);
}

static void* symbol(void* library, const char* name) {
  void* found = dlsym(library, name);
  if (!found) fail(name);
  return found;
}

static void load(void) {
  if (!dlopen(arguments[1], RTLD_NOW | RTLD_GLOBAL)) fail(dlerror());
  void* provider = dlopen(arguments[2], RTLD_NOW | RTLD_LOCAL);
  if (!provider) fail(dlerror());
  account = symbol(provider, "account");
  verbs = calloc(1, sizeof *verbs);
  verbs->priv = calloc(1, 4096);
  if (!verbs->priv) fail("no memory");
  int (*open_context)(struct verbs_context*);
  *(void**)&open_context = symbol(provider, "late_open");
  if (open_context(verbs)) fail("cannot open");

  qp.context = cq.context = &verbs->context;
  cq.cq_context = &qp.qp_num; /* whose completions it gives */
  qp.qp_num = QP_NUM;
  qp.qp_type = IBV_QPT_RC;
  qp.state = IBV_QPS_RTS;
  qp.send_cq = qp.recv_cq = &cq;
}

#define NEED(member) \
  if (!verbs || !verbs->context.ops.member) fail("nothing is loaded")

static void post_one(uint64_t wr_id) {
  struct ibv_sge sge = {.addr = 0x10000, .length = BYTES, .lkey = LKEY};
  struct ibv_send_wr* bad = NULL;
  struct ibv_send_wr wr = {.wr_id = wr_id, .sg_list = &sge, .num_sge = 1,
                           .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED};
  if (verbs->context.ops.post_send(&qp, &wr, &bad) || bad) fail("a send was refused");
}

static void post_send(uint64_t count) {
  NEED(post_send);
  for (uint64_t i = 0; i < count; i++) {
    atomic_store(progress, next_send);
    post_one(next_send);
    next_send++;
  }
}

struct share {
  uint64_t first, count;
  pthread_t thread;
};

static void* post_share(void* data) {
  const struct share* share = data;
  for (uint64_t i = 0; i < share->count; i++) post_one(share->first + i);
  return NULL;
}

static void post_by_threads(uint64_t threads, uint64_t count) {
  NEED(post_send);
  struct share* shares = calloc(threads, sizeof *shares);
  if (!shares) fail("no memory");
  for (uint64_t i = 0; i < threads; i++) {
    shares[i] = (struct share){.first = next_send + i * count, .count = count};
    if (pthread_create(&shares[i].thread, NULL, post_share, &shares[i])) fail("no thread");
  }
  for (uint64_t i = 0; i < threads; i++) pthread_join(shares[i].thread, NULL);
  free(shares);
  next_send += threads * count;
}

static void post_recv(uint64_t count) {
  NEED(post_recv);
  for (uint64_t i = 0; i < count; i++) {
    struct ibv_sge sge = {.addr = 0x20000, .length = BYTES, .lkey = LKEY};
    struct ibv_recv_wr* bad = NULL;
    struct ibv_recv_wr wr = {.wr_id = next_recv, .sg_list = &sge, .num_sge = 1};
    if (verbs->context.ops.post_recv(&qp, &wr, &bad) || bad) fail("a receive was refused");
    next_recv++;
  }
}

static int poll_cq(int count, struct ibv_wc* wc) {
  NEED(poll_cq);
  return verbs->context.ops.poll_cq(&cq, count < CQ_ENTRIES ? count : CQ_ENTRIES, wc);
}

static void say_sent(uint64_t first, unsigned long before) {
  printf("sent %lu %lu %lu\n", first, next_send - first, *account - before);
}

static void* spin(void* unused) {
  struct ibv_wc wc[CQ_ENTRIES];
  while (atomic_load(&spinning)) {
    post_send(BATCH);
    if (poll_cq(BATCH, wc) != BATCH) fail("sends do not complete");
  }
  return unused;
}

static void* stay(void* unused) {
  for (;;) pause();
  return unused;
}

static void fork_child(uint64_t count) {
  fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    const uint64_t first = next_send;
    const unsigned long before = *account;
    post_send(count);
    printf("child %d\n", getpid());
    say_sent(first, before);
    fflush(stdout);
    _exit(0);
  }
  int status = -1;
  if (child < 0 || waitpid(child, &status, 0) != child || status != 0) fail("the child failed");
}

/* A pid comes back when all others have been used, or at once when it is asked for (clone3 of Linux 5.5). */
static void stay_as(pid_t wanted) {
  fflush(stdout);
  struct clone_args how = {.exit_signal = SIGCHLD, .set_tid = (uint64_t)(uintptr_t)&wanted, .set_tid_size = 1};
  const long child = syscall(SYS_clone3, &how, sizeof how);
  if (child == 0) {
    alarm(200); /* whatever becomes of the test */
    stay(NULL);
  }
  if (child != wanted) fail("no child of this pid");
  printf("child %ld\n", child);
}

int main(int argc, char** argv) {
  if (argc != 4) fail("usage: late_job LIBIBVERBS PROVIDER PROGRESS");
  arguments = argv;
  const int fd = open(argv[3], O_RDWR | O_CLOEXEC);
  progress = mmap(NULL, sizeof *progress, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (progress == MAP_FAILED) fail("no file for the progress");
  setvbuf(stdin, NULL, _IONBF, 0); /* what is not read yet is there after an exec */
  if (getenv("LATE_JOB_NEXT")) next_send = strtoul(getenv("LATE_JOB_NEXT"), NULL, 10);
  printf("ready\nok\n");
  fflush(stdout);

  uint64_t first = 0;
  unsigned long before = 0;
  for (char line[256]; fgets(line, sizeof line, stdin);) {
    char word[16] = "";
    unsigned long count = 0, each = 0;
    sscanf(line, "%15s %lu %lu", word, &count, &each);
    if (strcmp(word, "load") == 0) {
      load();
    } else if (strcmp(word, "map") == 0) {
      char file[200] = "";
      sscanf(line, "map %199s", file);
      if (!dlopen(file, RTLD_NOW | RTLD_LOCAL)) fail(dlerror());
    } else if (strcmp(word, "send") == 0) {
      first = next_send, before = account ? *account : 0;
      post_send(count);
      say_sent(first, before);
    } else if (strcmp(word, "threads") == 0) {
      first = next_send, before = account ? *account : 0;
      post_by_threads(count, each);
      say_sent(first, before);
    } else if (strcmp(word, "recv") == 0) {
      first = next_recv, before = account ? *account : 0;
      post_recv(count);
      printf("received %lu %lu %lu\n", first, next_recv - first, *account - before);
    } else if (strcmp(word, "poll") == 0) {
      struct ibv_wc wc[CQ_ENTRIES];
      const int n = poll_cq((int)count, wc);
      printf("polled %d %lu %lu\n", n, n > 0 ? wc[0].wr_id : 0, n > 0 ? wc[n - 1].wr_id : 0);
    } else if (strcmp(word, "spin") == 0) {
      NEED(post_send);
      first = next_send, before = *account;
      atomic_store(&spinning, 1);
      if (pthread_create(&spinner, NULL, spin, NULL)) fail("no thread");
    } else if (strcmp(word, "stop") == 0) {
      atomic_store(&spinning, 0);
      pthread_join(spinner, NULL);
      say_sent(first, before);
    } else if (strcmp(word, "fork") == 0) {
      fork_child(count);
    } else if (strcmp(word, "stay") == 0) {
      stay_as((pid_t)count);
    } else if (strcmp(word, "leave") == 0) {
      if (pthread_create(&spinner, NULL, stay, NULL)) fail("no thread");
      printf("ok\n");
      fflush(stdout);
      pthread_exit(NULL);
    } else if (strcmp(word, "exec") == 0) {
      char file[200] = "/proc/self/exe";
      sscanf(line, "exec %199s", file);
      /* The numbering goes on: what is seen before and after is told apart by it. */
      char next[24];
      snprintf(next, sizeof next, "%lu", next_send);
      setenv("LATE_JOB_NEXT", next, 1);
      execv(file, argv);
      fail("exec");
    } else {
      fail("what?");
    }
    printf("ok\n");
    fflush(stdout);
  }
  return 0;
}
