// Attention for sequences of different lengths. Forward: the items of all of them as one list (see varlen.h).
// Backward: a sequence with enough work for all threads is a separate job; each of the others is one item of one job.
#include "varlen.h"

namespace rocattn {
namespace {

// A sequence, its plan, and its place in the lists of items and of joins.
struct Part {
  Args args;
  void* plan;
  Steps steps;
  bool decodes;
  int64_t item, join;  // its first ones among all items and all joins
};

struct Job {
  Part* parts;
  int32_t* order;  // of parts by item size, largest first: late starters should be short
  int64_t count;

  const Part& part(int64_t place) const { return parts[order[place]]; }
};

template <bool JOINS>
void run_part(void* context, int64_t number, int worker) {
  const Job& job = *(const Job*)context;
  int64_t low = 0, high = job.count;  // the last part that begins at `number` or before
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    const Part& part = job.part(middle);
    ((JOINS ? part.join : part.item) <= number ? low : high) = middle;
  }
  const Part& part = job.part(low);
  if (JOINS) part.steps.join(part.plan, number - part.join, worker);
  else part.steps.item(part.plan, number - part.item, worker);
}

// The arguments of sequence b alone.
Args alone(const Args& all, const Sequences& s, int64_t b) {
  Args a = all;
  const int64_t bytes = a.dtype == kFloat32 ? 4 : 2, first = s.cu_seqlens_q[b];
  a.B = 1;
  a.Sq = s.cu_seqlens_q[b + 1] - first;
  a.q = (const char*)a.q + first * a.qs[2] * bytes;
  a.o = (char*)a.o + first * a.os[2] * bytes;
  if (a.lse) a.lse += first;
  if (a.dlse) a.dlse += first;
  if (a.dout) {
    a.dout = (const char*)a.dout + first * a.dos[2] * bytes;
    a.dq = (char*)a.dq + first * a.dqs[2] * bytes;
    a.dk = (char*)a.dk + s.cu_seqlens_k[b] * a.dks[2] * bytes;
    a.dv = (char*)a.dv + s.cu_seqlens_k[b] * a.dvs[2] * bytes;
  }
  if (a.slopes) a.slopes += b * a.H;
  if (s.table) {
    a.table = s.table + b * s.table_width;
    a.Sk = s.seqlens_k[b];
  } else {
    a.k = (const char*)a.k + s.cu_seqlens_k[b] * a.ks[2] * bytes;
    a.v = (const char*)a.v + s.cu_seqlens_k[b] * a.vs[2] * bytes;
    a.Sk = s.seqlens_k ? s.seqlens_k[b] : s.cu_seqlens_k[b + 1] - s.cu_seqlens_k[b];
  }
  return a;
}

// Number of (query, key) pairs that a sequence's items process, plus the cost of its rows without any.
int64_t work_of(const Args& a) { return a.H * a.Sq * (a.Sk + 16); }

// Sorts by descending size: a heap whose smallest is first.
void sort(int32_t* order, int64_t count, const int64_t* size) {
  const auto sink = [&](int64_t i, int64_t end) {
    for (int64_t child; (child = 2 * i + 1) < end; i = child) {
      if (child + 1 < end && size[order[child + 1]] < size[order[child]]) child++;
      if (size[order[i]] <= size[order[child]]) return;
      const int32_t moved = order[i];
      order[i] = order[child], order[child] = moved;
    }
  };
  for (int64_t i = count / 2; i-- > 0;) sink(i, count);
  for (int64_t end = count; end-- > 1;) {
    const int32_t smallest = order[0];
    order[0] = order[end], order[end] = smallest;
    sink(0, end);
  }
}

// Memory of the plans, and the job's other needs.
struct Planned {
  char* memory;
  Job job;
  int64_t bytes, items, joins, scratch_bytes, shared_bytes;
};

bool make_plans(const Args& a, const Sequences& s, Planned& planned) {
  const int64_t room = round_up(max2(kForwardPlanBytes, kDecodePlanBytes), 64), count = a.B;
  const int64_t part_bytes = round_up(sizeof(Part), 64);
  const int64_t bytes = count * (part_bytes + room + 16) + 64;
  planned = {(char*)allocate(bytes), {}, bytes, 0, 0, 0, 0};
  if (!planned.memory) return false;
  char* at = planned.memory;
  Job& job = planned.job;
  job.parts = (Part*)at, at += round_up(count * (int64_t)sizeof(Part), 64);
  char* plans = at;
  at += count * room;
  int64_t* sizes = (int64_t*)at;
  job.order = (int32_t*)(sizes + count);
  double total = 0;
  for (int64_t b = 0; b < count; b++) total += (double)work_of(alone(a, s, b));
  for (int64_t b = 0; b < count; b++) {
    Part& part = job.parts[job.count];
    part.args = alone(a, s, b);
    if (part.args.Sq == 0) continue;
    part.plan = plans + job.count * room;
    part.decodes = part.args.Sq * (a.H / a.Hkv) <= kDecodeRows;
    // The threads that it would get if all were assigned in proportion to work.
    const double share = (double)work_of(part.args) / total * a.threads;
    const int threads = (int)min2<int64_t>((int64_t)share + 1, a.threads);
    part.steps = (part.decodes ? plan_decode : plan_forward)(part.plan, &part.args, threads);
    sizes[job.count] = work_of(part.args) / max2<int64_t>(part.steps.items, 1);
    job.order[job.count] = (int32_t)job.count;
    job.count++;
    planned.scratch_bytes = max2(planned.scratch_bytes, round_up(part.steps.scratch_bytes, 64));
    planned.shared_bytes += round_up(part.steps.shared_bytes, 64);
  }
  sort(job.order, job.count, sizes);
  for (int64_t i = 0; i < job.count; i++) {
    Part& part = job.parts[job.order[i]];
    part.item = planned.items, part.join = planned.joins;
    planned.items += part.steps.items, planned.joins += part.steps.joins;
  }
  return true;
}

int32_t forward_varlen(const Args& a, const Sequences& s) {
  Planned planned;
  if (!make_plans(a, s, planned)) return kOutOfMemory;
  Job& job = planned.job;
  const int used = usable_threads(planned.items, a.threads);
  char* memory = (char*)allocate(used * planned.scratch_bytes + planned.shared_bytes);
  if (!memory) {
    release(planned.memory);
    return kOutOfMemory;
  }
  char* shared = memory + used * planned.scratch_bytes;
  for (int64_t i = 0; i < job.count; i++) {
    Part& part = job.parts[i];
    (part.decodes ? place_decode : place_forward)(part.plan, memory, planned.scratch_bytes, shared);
    shared += round_up(part.steps.shared_bytes, 64);
  }
  run(planned.items, used, run_part<false>, &job);
  if (planned.joins) run(planned.joins, used, run_part<true>, &job);
  release(memory);
  release(planned.memory);
  return kOk;
}

struct Gradients {
  const Args* all;
  const Sequences* sequences;
  char* list;       // memory of order and sizes
  int32_t* order;   // of the sequences that are an item each, the largest first
  int64_t* sizes;   // of each sequence: the work of an item; 0 for one that is no item
  int64_t items, list_bytes, item_bytes, job_bytes;  // the last two: the most that an item, and a job of its own, takes
  int used;
  char* scratch;

  Args item(int64_t index) const {
    Args a = alone(*all, *sequences, order[index]);
    a.threads = 1;
    return a;
  }
};

bool plan_gradients(const Args& a, const Sequences& s, Gradients& f) {
  f = {&a, &s, nullptr, nullptr, nullptr, 0, 12 * a.B + 64, 0, 0, 0, nullptr};
  f.list = (char*)allocate(f.list_bytes);
  if (!f.list) return false;
  f.sizes = (int64_t*)f.list, f.order = (int32_t*)(f.sizes + a.B);
  double total = 0;
  for (int64_t b = 0; b < a.B; b++) total += (double)work_of(alone(a, s, b));
  for (int64_t b = 0; b < a.B; b++) {
    Args one = alone(a, s, b);
    f.sizes[b] = 0;
    if (one.Sq == 0) continue;
    const bool large = (double)work_of(one) * a.threads * 4 >= total && backward_items(one) >= a.threads;
    if (large && a.threads > 1) {
      f.job_bytes = max2(f.job_bytes, backward_workspace(one));
      continue;
    }
    f.sizes[b] = work_of(one), f.order[f.items++] = (int32_t)b;
    one.threads = 1;
    f.item_bytes = max2(f.item_bytes, round_up(backward_workspace(one), 64));
  }
  sort(f.order, f.items, f.sizes);
  f.used = usable_threads(f.items, a.threads);
  return true;
}

void run_gradients(void* context, int64_t index, int worker) {
  const Gradients& f = *(const Gradients*)context;
  backward_in(f.item(index), f.scratch + worker * f.item_bytes);
}

int32_t backward_varlen(const Args& a, const Sequences& s) {
  Gradients f;
  if (!plan_gradients(a, s, f)) return kOutOfMemory;
  int32_t status = kOk;
  if (f.items) {
    f.scratch = (char*)allocate(f.used * f.item_bytes);
    if (f.scratch) run(f.items, f.used, run_gradients, &f), release(f.scratch);
    else status = kOutOfMemory;
  }
  for (int64_t b = 0; b < a.B && status == kOk; b++)
    if (f.sizes[b] == 0 && s.cu_seqlens_q[b + 1] > s.cu_seqlens_q[b]) status = backward(alone(a, s, b));
  release(f.list);
  return status;
}

bool sane(const Args* a, const Sequences* s) {
  return a && a->size == (int64_t)sizeof(Args) && s && s->size == (int64_t)sizeof(Sequences) && a->B >= 0 &&
         a->B < (1LL << 31) && a->Hkv > 0 && a->H % a->Hkv == 0 && a->D >= 0 && a->Dv >= 0 && a->dtype >= 0 &&
         a->dtype <= 2 && a->mask_dtype == kNone && s->cu_seqlens_q && (s->table ? s->seqlens_k && a->page_size > 0
                                                                            : s->cu_seqlens_k && a->page_size == 0);
}

}  // namespace
}  // namespace rocattn

extern "C" {
int32_t rocattn_cpu_forward_varlen(const rocattn::Args* a, const rocattn::Sequences* s) {
  if (!rocattn::sane(a, s)) return rocattn::kBadArguments;
  return a->B * a->H * a->Sq == 0 ? rocattn::kOk : rocattn::forward_varlen(*a, *s);
}
int32_t rocattn_cpu_backward_varlen(const rocattn::Args* a, const rocattn::Sequences* s) {
  if (!rocattn::sane(a, s) || s->table) return rocattn::kBadArguments;
  return a->B * a->H * a->Sq == 0 ? rocattn::kOk : rocattn::backward_varlen(*a, *s);
}
int64_t rocattn_cpu_workspace_varlen(const rocattn::Args* a, const rocattn::Sequences* s, int32_t backward) {
  if (!rocattn::sane(a, s) || a->B * a->H * a->Sq == 0) return 0;
  if (backward) {
    rocattn::Gradients f;
    if (!rocattn::plan_gradients(*a, *s, f)) return 0;
    rocattn::release(f.list);
    return f.list_bytes + rocattn::max2(f.job_bytes, f.used * f.item_bytes);
  }
  rocattn::Planned planned;
  if (!rocattn::make_plans(*a, *s, planned)) return 0;
  rocattn::release(planned.memory);
  return planned.bytes + rocattn::usable_threads(planned.items, a->threads) * planned.scratch_bytes + planned.shared_bytes;
}
}
