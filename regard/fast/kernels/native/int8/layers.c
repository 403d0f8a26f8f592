/* Sub-layers of encoder and decoder (Vaswani 2017, section 3).

   Products with weights are int8; attention, norms and softmax are fp32. */

#include "int8.h"

static float *part(char **memory, long numbers) {
  float *here = (float *)*memory;
  *memory += (sizeof(float) * numbers + 63) / 64 * 64;
  return here;
}

static long max_width(const Stack *stack) {
  return stack->feedforward > 3 * stack->size ? stack->feedforward : 3 * stack->size;
}

/* Return the bytes of workspace for some rows and scores. */
long workspace_bytes(const Stack *stack, long rows, long scores) {
  long wide = max_width(stack);
  return sizeof(float) * (rows * (wide + 3 * stack->size + 1) + scores) + sizeof(long) * scores +
         int8_panel_bytes(rows, wide) + 64 * 7;
}

Scratch layout_workspace(const Stack *stack, long rows, long scores, char *memory) {
  Scratch out;
  out.wide = part(&memory, rows * max_width(stack));
  out.found = part(&memory, rows * stack->size);
  out.given = part(&memory, rows * stack->size);
  out.stream = part(&memory, rows * stack->size);
  out.scores = part(&memory, scores);
  out.listed = (long *)part(&memory, 2 * scores);
  out.bytes.scales = part(&memory, rows);
  out.bytes.panels = (uint8_t *)memory;
  return out;
}

/* Embed tokens at their positions, or at consecutive ones; returns whether all ids are valid. */
int embed(const Embedding *by, const int64_t *tokens, const int64_t *places, long rows, long size, float *x) {
  for (long row = 0; row < rows; row++, x += size) {
    if (tokens[row] < 0 || tokens[row] >= by->count) return 0;
    const float *word = by->words + tokens[row] * size;
    const float *place = by->positions + (places ? places[row] : row) * size;
    for (long at = 0; at < size; at++) x[at] = word[at] * by->scale + place[at];
  }
  return 1;
}

/* LayerNorm(x + y), or LayerNorm(x), of rows of `size`; may be in place. */
void norm(const LayerNorm *by, const float *x, const float *y, long rows, long size, float *out) {
  for (long row = 0; row < rows; row++, x += size, out += size, y += y ? size : 0) {
    vfloat sums = splat(0), squares = splat(0);
    for (long at = 0; at < size; at += LANES) {
      vfloat here = load_n(x + at, size - at, 0);
      if (y) here += load_n(y + at, size - at, 0);
      store_n(out + at, here, size - at);
      sums += here;
    }
    float mean = sum(sums) / size;
    for (long at = 0; at < size; at += LANES) {
      vfloat off = load_n(out + at, size - at, mean) - mean;
      squares += off * off;
    }
    float variance = sum(squares) / size;
    float one =
        variance < INFINITY ? 1 / sqrtf(variance + by->epsilon) : NAN; /* not 0, which would hide the overflow */
    for (long at = 0; at < size; at += LANES) {
      vfloat off = (load_n(out + at, size - at, 0) - mean) * one;
      store_n(out + at, load_n(by->bias + at, size - at, 0) + off * load_n(by->weight + at, size - at, 0), size - at);
    }
  }
}

static void add(float *x, const float *y, long many) {
  for (long at = 0; at < many; at++) x[at] += y[at];
}

/* Quantize the input of a sub-layer. */
void pre_sublayer(const Stack *stack, const LayerNorm *around, const float *x, long rows, Scratch *scratch) {
  if (!stack->post) norm(around, x, NULL, rows, stack->size, scratch->given);
  int8_quantize(stack->post ? x : scratch->given, rows, stack->size, scratch->bytes);
}

/* Add the output of a sub-layer to the residual stream x. */
void post_sublayer(const Stack *stack, const LayerNorm *around, float *x, long rows, Scratch *scratch) {
  if (stack->post)
    norm(around, x, scratch->given, rows, stack->size, x);
  else
    add(x, scratch->given, rows * stack->size);
}

static void swish(float *x, long many) {
  for (long at = 0; at < many; at += LANES) {
    vfloat here = load_n(x + at, many - at, 0);
    store_n(x + at, here / (1 + vexp(-here)), many - at);
  }
}

void feedforward(const Stack *stack, const Layer *layer, float *x, long rows, Scratch *scratch) {
  pre_sublayer(stack, &layer->around_feedforward, x, rows, scratch);
  int8_gemm(scratch->bytes, &layer->inner, rows, scratch->wide, !stack->swish);
  if (stack->swish) swish(scratch->wide, rows * layer->inner.out_features);
  int8_quantize(scratch->wide, rows, layer->inner.out_features, scratch->bytes);
  int8_gemm(scratch->bytes, &layer->outer, rows, scratch->given, 0);
  post_sublayer(stack, &layer->around_feedforward, x, rows, scratch);
}

/* Output projection of attention. */
void out_proj(const Stack *stack, const LinearLayer *out, long rows, Scratch *scratch) {
  int8_quantize(scratch->found, rows, stack->size, scratch->bytes);
  int8_gemm(scratch->bytes, out, rows, scratch->given, 0);
}

/* Replace a row by softmax(x · by). */
static void softmax(float *x, long many, float by) {
  float most = row_max(x, many);
  vfloat sums = splat(0);
  for (long at = 0; at < many; at += LANES) {
    vfloat e = vexp((load_n(x + at, many - at, -INFINITY) - most) * by);
    store_n(x + at, e, many - at);
    sums += many - at < LANES ? load_n(x + at, many - at, 0) : e;
  }
  float share = 1 / sum(sums);
  for (long at = 0; at < many; at += LANES) store_n(x + at, load_n(x + at, many - at, 0) * share, many - at);
}

/* Scores q k of a query and `many` keys, `apart` from each other, or of the listed ones. */
static void attention_scores(const float *query, const float *keys, long apart, const long *listed, long many,
                             long head, float *scores) {
  for (long first = 0; first < many; first += 8) {
    const float *k[8];
    for (int i = 0; i < 8; i++) {
      long one = min_long(first + i, many - 1);
      k[i] = keys + (listed ? listed[one] : one) * apart;
    }
    vfloat s[8] = {0};
    long at = 0;
    for (; at + LANES <= head; at += LANES) {
      vfloat q = load(query + at);
      UNROLLED for (int i = 0; i < 8; i++) s[i] += q * load(k[i] + at);
    }
    if (at < head)
      for (int i = 0; i < 8; i++) s[i] += load_n(query + at, head - at, 0) * load_n(k[i] + at, head - at, 0);
    float found[8];
    sum_each(s, found);
    memcpy(scores + first, found, sizeof(float) * min_long(8, many - first));
  }
}

/* Σ_s w_s v_s of some vectors of each value. */
static inline __attribute__((always_inline)) void weighted_sum(const int vectors, const float *weights,
                                                               const float *values, long apart, const long *listed,
                                                               long many, float *found) {
  vfloat sums[8];
  for (int i = 0; i < vectors; i++) sums[i] = splat(0);
  for (long one = 0; one < many; one++) {
    const float *value = values + (listed ? listed[one] : one) * apart;
    for (int i = 0; i < vectors; i++) sums[i] += load(value + LANES * i) * weights[one];
  }
  for (int i = 0; i < vectors; i++) store(found + LANES * i, sums[i]);
}

/* Weighted sum of values of `head` numbers, `apart` from each other, or of the listed ones. */
static void weighted_values(const float *weights, const float *values, long apart, const long *listed, long many,
                            long head, float *found) {
  long at = 0;
  for (; at + 32 <= head; at += 32) weighted_sum(32 / LANES, weights, values + at, apart, listed, many, found + at);
  for (; at + LANES <= head; at += LANES) weighted_sum(1, weights, values + at, apart, listed, many, found + at);
  for (; at < head; at++) {
    found[at] = 0;
    for (long one = 0; one < many; one++) found[at] += weights[one] * values[(listed ? listed[one] : one) * apart + at];
  }
}

/* Attention of a query over keys and values, `apart` from each other, or over the listed ones; leaves the weights in
   `scores`. */
void attend(const float *query, const float *keys, const float *values, long apart, const long *listed, long many,
            long head, float *scores, float *found) {
  attention_scores(query, keys, apart, listed, many, head, scores);
  softmax(scores, many, 1 / sqrtf(head));
  weighted_values(scores, values, apart, listed, many, head, found);
}

/* log Σ exp x of a row. */
float logsumexp(const float *x, long many) {
  float most = row_max(x, many);
  vfloat sums = splat(0);
  for (long at = 0; at < many; at += LANES) {
    vfloat e = vexp(load_n(x + at, many - at, -INFINITY) - most);
    sums += many - at < LANES ? load_n((float *)&e, many - at, 0) : e;
  }
  return most + logf(sum(sums));
}
