// Runs one call of the CPU kernels that another program has laid out in a file: Args, then what they point to. A pointer
// is 1 + the offset in the file, or 0.
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "abi.h"

int main(int, char** argv) {
  struct stat size;
  const int file = open(argv[1], O_RDWR);
  if (file < 0 || fstat(file, &size)) return perror(argv[1]), 100;
  char* base = (char*)mmap(nullptr, size.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (base == MAP_FAILED) return perror(argv[1]), 100;
  rocattn::Args a = *(const rocattn::Args*)base;
  auto locate = [&](auto*& p) { p = p ? (decltype(+p))(base + ((uint64_t)p - 1)) : nullptr; };
  locate(a.q), locate(a.k), locate(a.v), locate(a.o), locate(a.lse), locate(a.mask), locate(a.slopes), locate(a.sinks);
  locate(a.dout), locate(a.dq), locate(a.dk), locate(a.dv);
  printf("%d\n", rocattn_cpu_isa());
  return argv[2][0] == 'b' ? rocattn_cpu_backward(&a) : rocattn_cpu_forward(&a);
}
