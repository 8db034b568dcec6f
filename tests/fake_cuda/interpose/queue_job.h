/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* A GPU-resident queue pair made as the stacks make theirs, by functions that the program came to
 * in one way or another; and what the preloaded library then knows of it. */
#ifndef QUEUE_JOB_H
#define QUEUE_JOB_H

#include <infiniband/mlx5dv.h>

#include "cuda_driver.h"

/* All of libcuda and libmlx5, so that the programs need not be linked with them. */
#define QUEUE_JOB_FUNCTIONS(X)                                                                    \
  X(cuMemAlloc_v2)                                                                                \
  X(cuMemFree_v2) X(cuMemcpyHtoD_v2) X(cuMemHostRegister_v2) X(cuMemHostUnregister) X(cuMemGetHandleForAddressRange) \
      X(mlx5dv_devx_umem_reg) X(mlx5dv_devx_umem_reg_ex) X(mlx5dv_devx_umem_dereg)                \
          X(mlx5dv_devx_alloc_uar) X(mlx5dv_devx_free_uar) X(mlx5dv_devx_obj_create)              \
              X(mlx5dv_devx_obj_modify) X(mlx5dv_devx_obj_destroy) X(mlx5dv_open_device)          \
                  X(mlx5dv_init_obj) X(mlx5dv_devx_query_eqn)

struct functions {
#define MEMBER(name) __typeof__(&name) name;
  QUEUE_JOB_FUNCTIONS(MEMBER)
#undef MEMBER
};

/* Prints "truth NAME VALUE" for what it does and "known NAME VALUE" for what the registry says, the
 * queue living; "freed NAME VALUE" when the structure with its index is gone, and "ended NAME VALUE" after its end. 0, or a message on standard error and 1. */
int queue_job(const struct functions* f);

#endif
