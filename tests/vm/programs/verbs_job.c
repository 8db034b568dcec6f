// verbs_job: one RDMA job whose every work request is known: for what perftest cannot do (the
// ibv_wr_* API on soft-RoCE, immediate data, SRQs, RESET, errors, hold points).
//
//   verbs_job [OPTIONS]            server
//   verbs_job [OPTIONS] HOST       client: posts `--count` requests a queue pair
// Prints "local|remote QPN ..." per queue pair, a result line and a checksum of the
// buffer; exit status 0, or 3 when a completion had an error.
#include "verbs_job.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void die(const char* what) {
  perror(what);
  exit(1);
}

void stage(const struct job* job, const char* name) {
  const char* stages = job->options.stages;
  const char* found = stages ? strstr(stages, name) : NULL;
  const size_t length = strlen(name);
  if (!found || (found[length] != '\0' && found[length] != ',')) return;
  char line[64];
  printf("stage %s\n", name);
  fflush(stdout);
  if (!fgets(line, sizeof line, stdin)) exit(4);
}

static void print_links(const struct job* job) {
  for (int i = 0; i < job->options.queue_pairs; ++i) {
    const struct peer* sides[2] = {&job->links[i].mine, &job->links[i].theirs};
    for (int side = 0; side < 2; ++side)
      printf("%s QPN %u RKey 0x%x VAddr 0x%llx\n", side ? "remote" : "local", sides[side]->qp_num,
             sides[side]->rkey, (unsigned long long)sides[side]->addr);
  }
  fflush(stdout);
}

// As many requests as fit, call by call, polling as it goes; `from` and `to` count per queue pair.
static void send_range(struct job* job, int from, int to) {
  const struct options* o = &job->options;
  for (int at = from; at < to && !job->first_error; at += o->list) {
    for (int i = 0; i < o->queue_pairs; ++i)
      post_sends(job, &job->links[i], to - at < o->list ? to - at : o->list);
    poll_sends(job);
    if (o->pause_us) usleep((useconds_t)o->pause_us);
  }
}

static int outstanding_signals(const struct job* job) {
  const struct options* o = &job->options;
  const int asked = (o->count - o->unsignaled_tail) / o->signal_every;
  return asked * o->queue_pairs - job->succeeded;
}

static void run_client(struct job* job) {
  const struct options* o = &job->options;
  if (o->refuse) post_refused(job, &job->links[0]);
  send_range(job, 0, o->count / 2);
  stage(job, "mid");
  send_range(job, o->count / 2, o->count);
  while (!job->first_error && outstanding_signals(job) > 0) poll_sends(job);
  if (job->first_error && o->after_error) {
    for (int i = 0; i < o->after_error; ++i) post_sends(job, &job->links[0], 1);
    // all that was posted on this queue pair completes: successes, one error, flushes
    while (job->succeeded + 1 + job->flushed < job->links[0].posted) poll_sends(job);
  }
}

static void run_server(struct job* job) {
  const struct options* o = &job->options;
  const int expected = o->count * o->queue_pairs;
  if (!arrives_at_receive(o->opcode)) return;
  while (job->arrived < expected) poll_receives(job);
}

static void run_life(struct job* job) {
  const struct options* o = &job->options;
  job->succeeded = job->arrived = 0;
  for (int i = 0; i < o->queue_pairs; ++i) {
    job->links[i].posted = job->links[i].completed = job->links[i].receives = 0;
    if (!o->host && arrives_at_receive(o->opcode))
      post_receives(job, &job->links[i], o->receives < 0 ? o->count : o->receives);
  }
  barrier(job);
  if (o->host)
    run_client(job);
  else
    run_server(job);
}

static unsigned checksum(const struct job* job) {
  unsigned sum = 0;
  for (size_t i = 0; i < job->buffer_bytes; ++i) sum = sum * 31 + job->buffer[i];
  return sum;
}

int main(int argc, char** argv) {
  struct job job = {.options = parse_options(argc, argv)};
  setvbuf(stdout, NULL, _IOLBF, 0);
  signal(SIGPIPE, SIG_IGN);
  stage(&job, "start");
  open_objects(&job);
  connect_tcp(&job);
  connect_links(&job);
  print_links(&job);
  stage(&job, "qp");
  for (int life = 0; life <= job.options.resets; ++life) {
    if (life) reset_links(&job);
    run_life(&job);
  }
  stage(&job, "end");
  farewell(&job);
  printf("result success %d first_error %s flushed %d arrived %d\n", job.succeeded,
         job.first_error ? ibv_wc_status_str((enum ibv_wc_status)job.first_error) : "none",
         job.flushed, job.arrived);
  printf("checksum %08x\n", checksum(&job));
  close_objects(&job);
  return job.first_error ? 3 : 0;
}
