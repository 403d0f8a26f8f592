/* Int8 GEMM with int32 sums, four products per lane and instruction.

   Each number of W and x is an int8 times the scale of its row. Sums of products are exact in int32, and are then
   multiplied by both scales. Both matrices are packed in panels, of as many rows of W as a tile of y has columns and as
   many rows of x as it has rows, in which groups of four numbers of each row are adjacent: a tile stays in registers.
 */

#include "int8.h"

static inline long groups_of(long in_features) { return (in_features + GROUP - 1) / GROUP; }

/* Scale int32 sums of the columns from j on, add the bias, and apply ReLU if asked for. */
static inline void dequantize(vint sums, float x_scale, const LinearLayer *by, long j, float *y, int relu) {
  vfloat found = load(by->bias + j) + __builtin_convertvector(sums, vfloat) * (load(by->scales + j) * x_scale);
  store(y, relu ? vmax(found, splat(0)) : found);
}

#if defined(__aarch64__) && !defined(PLAIN)
#include "tile_neon.h"
#else
#include "tile_x86.h"
#endif

long int8_panel_width(void) { return TILE_COLUMNS; }

long int8_panel_bytes(long rows, long in_features) {
  return (rows + TILE_ROWS - 1) / TILE_ROWS * TILE_ROWS * groups_of(in_features) * GROUP;
}

/* Return the largest absolute value, NaN if there is one. */
static float absmax(const float *x, long many) {
  vfloat most = splat(0), more = most;
  long at = 0;
  for (; at + 2 * LANES <= many; at += 2 * LANES) {
    most = vmax(most, vabs(load(x + at)));
    more = vmax(more, vabs(load(x + at + LANES)));
  }
  for (; at < many; at += LANES) most = vmax(most, vabs(load_n(x + at, many - at, 0)));
  return reduce_max(vmax(most, more));
}

#define BLOCK 16 /* numbers that are rounded at a time */

/* Round numbers to int8; missing ones are zero. */
static inline void round_to_int8(const float *x, long many, float by, uint8_t *to) {
  int32_t near[BLOCK];
  for (long at = 0; at < BLOCK; at += LANES) {
    vint here = vround((at < many ? load_n(x + at, many - at, 0) : splat(0)) * by);
    memcpy(near + at, &here, sizeof(here));
  }
  for (int i = 0; i < BLOCK; i++) to[i] = near[i] + ZERO_POINT;
}

void int8_quantize(const float *x, long rows, long in_features, QuantizedRows to) {
  long groups = groups_of(in_features);
  for (long row = 0; row < rows; row++) {
    const float *here = x + row * in_features;
    float row_max = absmax(here, in_features), by = row_max > MIN_SCALE ? 127 / row_max : 0;
    to.scales[row] = row_max < INFINITY ? row_max / 127 : NAN;
    uint8_t *out = to.panels + (row / TILE_ROWS * TILE_ROWS * groups + row % TILE_ROWS) * GROUP;
    for (long at = 0, group = 0; at < in_features; at += BLOCK) {
      uint8_t near[BLOCK];
      round_to_int8(here + at, in_features - at, by, near);
      for (int i = 0; i < BLOCK / GROUP && group < groups; i++, group++)
        memcpy(out + group * TILE_ROWS * GROUP, near + i * GROUP, GROUP);
    }
  }
}

/* Compute a tile at the edge, and store the rows and columns that exist. */
static void edge_tile(const uint8_t *a, const float *x_scales, const LinearLayer *by, long j, float *y, int relu,
                      long rows) {
  float tile_values[TILE_ROWS * TILE_COLUMNS], tile_scales[TILE_ROWS] = {0};
  memcpy(tile_scales, x_scales, sizeof(float) * rows);
  if (rows > TILE_ROWS / 2)
    tile(1, a, tile_scales, by, j, tile_values, TILE_COLUMNS, relu);
  else
    tile(0, a, tile_scales, by, j, tile_values, TILE_COLUMNS, relu);
  long columns = min_long(TILE_COLUMNS, by->out_features - j);
  for (long row = 0; row < rows; row++)
    memcpy(y + row * by->out_features, tile_values + row * TILE_COLUMNS, sizeof(float) * columns);
}

void int8_gemm(QuantizedRows x, const LinearLayer *by, long rows, float *y, int relu) {
  long groups = groups_of(by->in_features), out_features = by->out_features;
  for (long j = 0; j < out_features; j += TILE_COLUMNS)
    for (long i = 0; i < rows; i += TILE_ROWS) {
      const uint8_t *a = x.panels + i * groups * GROUP;
      if (i + TILE_ROWS <= rows && j + TILE_COLUMNS <= out_features)
        tile(1, a, x.scales + i, by, j, y + i * out_features + j, out_features, relu);
      else
        edge_tile(a, x.scales + i, by, j, y + i * out_features + j, relu, min_long(TILE_ROWS, rows - i));
    }
}
