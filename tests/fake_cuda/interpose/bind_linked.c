// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// By the procedure linkage table: a program, or (with PLUGIN) a plug-in that another one loads.
#include "queue_job.h"

#ifdef PLUGIN
__attribute__((visibility("default"))) int plugin_main(void)
#else
int main(void)
#endif
{
  CUcontext context;
  if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context)) return 2;
  const struct functions functions = {
#define MEMBER(name) .name = name,
      QUEUE_JOB_FUNCTIONS(MEMBER)
#undef MEMBER
  };
  return queue_job(&functions);
}
