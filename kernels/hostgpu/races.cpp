// Stamps: who accessed a byte last, when, and where in the source.
#include "runtime.h"

namespace rocattn::hostgpu {
namespace {
constexpr unsigned kSites = 4096;
Where sites[kSites];  // an open hash table; 0 stays empty
unsigned used;
}  // namespace

Running running;

Stamp stamp_at(Where where) {
  uint64_t at = ((uint64_t)where.file * 31 + where.line) * 0x9e3779b97f4a7c15 >> 52;
  for (unsigned tries = 0; tries < kSites; tries++, at = (at + 1) % kSites) {
    if (at == 0) continue;
    if (sites[at].line == where.line && sites[at].file == where.file) return running.stamp | at << kSiteShift;
    if (!sites[at].file && used < kSites / 2) {
      used++;
      sites[at] = where;
      return running.stamp | at << kSiteShift;
    }
    if (!sites[at].file) break;
  }
  return running.stamp;  // a place without a name
}

Where site_of(Stamp s) {
  const Where where = sites[s >> kSiteShift & (kSites - 1)];
  return where.file ? where : Where{"?", 0};
}

bool unordered(Stamp old, Stamp now) {
  if (epoch_of(old) != epoch_of(now)) return epoch_of(old) == kInFlight;
  if (old & kSeveralWaves) return true;
  const unsigned was = thread_of(old), is = thread_of(now);
  if (was >> running.wave_shift != is >> running.wave_shift) return true;
  if (wave_epoch_of(old) < wave_epoch_of(now)) return false;
  return was != is || (old & kSeveral);
}

void forget_sites() {
  if (used) memset(sites, 0, sizeof sites);
  used = 0;
}

}  // namespace rocattn::hostgpu
