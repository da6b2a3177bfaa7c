// What the CPU kernels use of an OpenMP runtime: a team of `size` threads, started for each call, which are counted.
#include <stdint.h>

extern "C" {
int pthread_create(unsigned long*, const void*, void* (*)(void*), void*);
int pthread_join(unsigned long, void**);

#define PUBLIC __attribute__((visibility("default")))
PUBLIC int32_t size = 3, calls, entered;

struct Task {
  void (*function)(void*);
  void* data;
};
static void* enter(void* argument) {
  const Task* task = (const Task*)argument;
  __atomic_fetch_add(&entered, 1, __ATOMIC_SEQ_CST);
  task->function(task->data);
  return nullptr;
}

PUBLIC int omp_get_max_threads(void) { return size; }
PUBLIC void GOMP_parallel(void (*function)(void*), void* data, unsigned threads, unsigned) {
  Task task = {function, data};
  const int others = (threads ? (int)threads : size) - 1;
  unsigned long ids[16];
  for (int i = 0; i < others; i++) pthread_create(&ids[i], nullptr, enter, &task);
  enter(&task);
  for (int i = 0; i < others; i++) pthread_join(ids[i], nullptr);
  __atomic_fetch_add(&calls, 1, __ATOMIC_SEQ_CST);
}
}
