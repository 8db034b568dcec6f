// mpi_ring COUNT BYTES: rank 0 sends COUNT messages to rank 1, which answers each.
// Prints a checksum of what arrived, so that a run can be compared with another.
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  const int count = argc > 1 ? atoi(argv[1]) : 100;
  const int bytes = argc > 2 ? atoi(argv[2]) : 64;
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  unsigned char* buffer = calloc(1, (size_t)bytes);
  unsigned long sum = 0;
  for (int i = 0; i < count; ++i) {
    if (rank == 0) {
      for (int b = 0; b < bytes; ++b) buffer[b] = (unsigned char)(i + b);
      MPI_Send(buffer, bytes, MPI_BYTE, 1, 0, MPI_COMM_WORLD);
      MPI_Recv(buffer, bytes, MPI_BYTE, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else {
      MPI_Recv(buffer, bytes, MPI_BYTE, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
      MPI_Send(buffer, bytes, MPI_BYTE, 0, 0, MPI_COMM_WORLD);
    }
    for (int b = 0; b < bytes; ++b) sum = sum * 31 + buffer[b];
  }
  printf("rank %d checksum %016lx\n", rank, sum);
  free(buffer);
  MPI_Finalize();
  return 0;
}
