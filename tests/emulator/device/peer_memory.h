/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Between the emulated ConnectX and the memory of other (emulated) devices: what nvidia-peermem and
 * dma-buf are between drivers. Whoever owns such memory registers a client; both functions are weak
 * in its library, and absent in programs without the emulated device. */
#ifndef CONNECTX_PEER_MEMORY_H
#define CONNECTX_PEER_MEMORY_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { SIGMA_PEER_OK = 0, SIGMA_PEER_NOT_MINE = 1, SIGMA_PEER_REFUSED = 2 };

typedef struct SigmaPeerMemory {
  /* Where the NIC reaches [address, address + bytes) of this process, or of a dma-buf. */
  int (*by_address)(uint64_t address, uint64_t bytes, uint8_t** out);
  int (*by_descriptor)(int fd, uint64_t offset, uint64_t bytes, uint8_t** out);
} SigmaPeerMemory;

__attribute__((weak)) void connectx_register_peer_memory(const SigmaPeerMemory* client);

/* A GPU's store to a UAR page that was registered with it: the store itself has been made. The
 * emulated NIC reads doorbell records, which cannot tell it of queues that have none, nor of a
 * doorbell that came before its record. `where` is the host's address of the register. */
__attribute__((weak)) void connectx_doorbell(const volatile void* where, uint64_t value);

#ifdef __cplusplus
}
#endif

#endif
