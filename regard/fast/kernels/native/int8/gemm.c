/* Products of bytes, four at a time.

   Of weights and of rows each number is a byte times a scale, of a row of W or of x. Sums of their products are whole
   numbers, exactly; then they are multiplied by both scales. Both are laid out in panels, of W so many rows each as a
   tile of y is wide, of x as many as it is tall, in which four numbers of each row stand side by side: a tile stays in
   registers. */

#include "int8.h"

static inline long groups_of(long inside) { return (inside + DEEP - 1) / DEEP; }

/* Sums, of columns from j on, as numbers. */
static inline void settle(wholes sums, float x_scale, const Product *by, long j, float *y, int relu) {
  lanes found = load(by->bias + j) + __builtin_convertvector(sums, lanes) * (load(by->scales + j) * x_scale);
  store(y, relu ? larger(found, all(0)) : found);
}

#if defined(__aarch64__) && !defined(PLAIN)
#include "tile_neon.h"
#else
#include "tile_vnni.h"
#endif

long octets_wide(void) { return WIDE; }

long octets_room(long rows, long inside) { return (rows + TALL - 1) / TALL * TALL * groups_of(inside) * DEEP; }

/* What is no number counts as the largest. */
static float farthest(const float *x, long many) {
  lanes most = all(0), more = most;
  long at = 0;
  for (; at + 2 * LANES <= many; at += 2 * LANES) {
    most = larger(most, without_sign(load(x + at)));
    more = larger(more, without_sign(load(x + at + LANES)));
  }
  for (; at < many; at += LANES) most = larger(most, without_sign(get(x + at, many - at, 0)));
  return largest(larger(most, more));
}

#define TOGETHER 16 /* numbers of a row that become bytes at a time */

/* The nearest bytes to some numbers; what is missing is zero. */
static inline void round_off(const float *x, long many, float by, uint8_t *to) {
  int32_t near[TOGETHER];
  for (long at = 0; at < TOGETHER; at += LANES) {
    wholes here = nearest((at < many ? get(x + at, many - at, 0) : all(0)) * by);
    memcpy(near + at, &here, sizeof(here));
  }
  for (int i = 0; i < TOGETHER; i++) to[i] = near[i] + RAISED;
}

void octets_quantise(const float *x, long rows, long inside, Rows to) {
  long groups = groups_of(inside);
  for (long row = 0; row < rows; row++) {
    const float *here = x + row * inside;
    float top = farthest(here, inside), by = top > LEAST ? 127 / top : 0;
    to.scales[row] = top < INFINITY ? top / 127 : NAN;
    uint8_t *out = to.panels + (row / TALL * TALL * groups + row % TALL) * DEEP;
    for (long at = 0, group = 0; at < inside; at += TOGETHER) {
      uint8_t near[TOGETHER];
      round_off(here + at, inside - at, by, near);
      for (int i = 0; i < TOGETHER / DEEP && group < groups; i++, group++)
        memcpy(out + group * TALL * DEEP, near + i * DEEP, DEEP);
    }
  }
}

/* A tile at the edge, of which some rows and columns are wanted. */
static void edge(const uint8_t *a, const float *x_scales, const Product *by, long j, float *y, int relu, long rows) {
  float all_of_it[TALL * WIDE], x_all[TALL] = {0};
  memcpy(x_all, x_scales, sizeof(float) * rows);
  if (rows > TALL / 2)
    tile(1, a, x_all, by, j, all_of_it, WIDE, relu);
  else
    tile(0, a, x_all, by, j, all_of_it, WIDE, relu);
  long columns = least(WIDE, by->outside - j);
  for (long row = 0; row < rows; row++) memcpy(y + row * by->outside, all_of_it + row * WIDE, sizeof(float) * columns);
}

void octets_multiply(Rows x, const Product *by, long rows, float *y, int relu) {
  long groups = groups_of(by->inside), outside = by->outside;
  for (long j = 0; j < outside; j += WIDE)
    for (long i = 0; i < rows; i += TALL) {
      const uint8_t *a = x.panels + i * groups * DEEP;
      if (i + TALL <= rows && j + WIDE <= outside)
        tile(1, a, x.scales + i, by, j, y + i * outside + j, outside, relu);
      else
        edge(a, x.scales + i, by, j, y + i * outside + j, relu, least(TALL, rows - i));
    }
}
