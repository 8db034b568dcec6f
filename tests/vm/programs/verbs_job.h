// verbs_job's parts: options, the connection over TCP, the verbs objects.
#ifndef VERBS_JOB_H
#define VERBS_JOB_H

#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct options {
  const char* device;
  const char* host;     // NULL: this side is the server
  int port;             // of the TCP exchange
  int gid_index;
  enum ibv_wr_opcode opcode;
  bool new_api;         // ibv_wr_* instead of ibv_post_send
  bool use_inline;
  bool use_srq;
  bool refuse;          // first post one request with too many entries, which is refused
  bool abort_batch;     // first stage one request and abort it (new API)
  int count;            // work requests in all
  int bytes;            // of each
  int entries;          // scatter/gather entries that share the bytes
  int list;             // work requests a call
  int signal_every;     // 1 = all
  int unsignaled_tail;  // the last ones ask for no completion
  int resets;           // RESET and reconnect this often, each time with `count` requests
  int bad_rkey_at;      // index of the request with a wrong key, -1: none
  int after_error;      // work requests posted after the first error, to be flushed
  int queue_pairs;
  int timeout, retries; // of the QP, as in ibv_qp_attr
  int receives;         // receives posted; -1: as many as arrive
  int pause_us;         // between calls: a job that takes its time
  const char* stages;   // comma-separated: at each, print "stage NAME" and wait for a line
};

// What each side tells the other.
struct peer {
  uint32_t qp_num, psn, rkey;
  uint64_t addr;
  union ibv_gid gid;
};

struct link {  // one queue pair
  struct ibv_qp* qp;
  struct ibv_qp_ex* ex;
  struct peer mine, theirs;
  int posted, completed, receives;  // completed: all before this index
};

struct job {
  struct options options;
  struct ibv_context* context;
  struct ibv_pd* pd;
  struct ibv_cq *send_cq, *recv_cq;
  struct ibv_srq* srq;
  struct ibv_mr* mr;
  unsigned char* buffer;
  size_t buffer_bytes;
  struct link* links;
  int tcp;
  int succeeded, flushed, arrived;
  int first_error;  // status, 0: none
};

void die(const char* what);
struct options parse_options(int argc, char** argv);
void stage(const struct job* job, const char* name);

void connect_tcp(struct job* job);
void exchange(struct job* job, const void* mine, void* theirs, size_t bytes);
void barrier(struct job* job);
void farewell(struct job* job);

void open_objects(struct job* job);
void connect_links(struct job* job);
void reset_links(struct job* job);
void close_objects(struct job* job);

bool arrives_at_receive(enum ibv_wr_opcode opcode);
void post_receives(struct job* job, struct link* link, int count);
void post_sends(struct job* job, struct link* link, int count);
void post_refused(struct job* job, struct link* link);
void poll_sends(struct job* job);
void poll_receives(struct job* job);

#endif
