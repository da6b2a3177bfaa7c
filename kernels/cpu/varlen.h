// Sequences of different lengths as one job: what varlen.cpp needs from forward.cpp, decode.cpp and backward.cpp.
//
// Each sequence is a separate problem, with the same plan as in a call of its own: the results are bitwise the same.
// Sequences share only the pool: the items of all of them form one list.
#pragma once
#include "decode.h"
#include "pool.h"

namespace rocattn {

// The work of a plan of forward.cpp or decode.cpp; the context of both functions is the plan.
struct Steps {
  Work item, join;
  int64_t items, joins;    // joins start when all items are done
  int64_t scratch_bytes;   // of a worker, during an item
  int64_t shared_bytes;    // from the first item to the last join
};

// Makes a plan in `room`; the arguments must live as long as it does.
Steps plan_forward(void* room, const Args* args, int threads);
Steps plan_decode(void* room, const Args* args, int threads);
// Gives it memory: worker w has scratch + w * step.
void place_forward(void* plan, char* scratch, int64_t step, char* shared);
void place_decode(void* plan, char* scratch, int64_t step, char* shared);
extern const int64_t kForwardPlanBytes, kDecodePlanBytes;

int32_t backward(const Args& a);
int64_t backward_workspace(const Args& a);
int64_t backward_items(const Args& a);  // what threads can share
// In memory of that many bytes; of one thread also from within an item.
void backward_in(const Args& a, char* memory);

}  // namespace rocattn
