/* What an encoder's layers and a decoder's are made of (Vaswani 2017, section 3).

   Products with weights are those of bytes; attention, norms and the softmax are in single precision. */

#include "int8.h"

static float *part(char **memory, long numbers) {
  float *here = (float *)*memory;
  *memory += (sizeof(float) * numbers + 63) / 64 * 64;
  return here;
}

static long widest(const Stack *stack) {
  return stack->feedforward > 3 * stack->size ? stack->feedforward : 3 * stack->size;
}

/* How many bytes `rows` rows need, and so many scores. */
long needed(const Stack *stack, long rows, long scores) {
  long wide = widest(stack);
  return sizeof(float) * (rows * (wide + 3 * stack->size + 1) + scores) + sizeof(long) * scores +
         octets_room(rows, wide) + 64 * 7;
}

Scratch laid_out(const Stack *stack, long rows, long scores, char *memory) {
  Scratch out;
  out.wide = part(&memory, rows * widest(stack));
  out.found = part(&memory, rows * stack->size);
  out.given = part(&memory, rows * stack->size);
  out.stream = part(&memory, rows * stack->size);
  out.scores = part(&memory, scores);
  out.listed = (long *)part(&memory, 2 * scores);
  out.bytes.scales = part(&memory, rows);
  out.bytes.panels = (uint8_t *)memory;
  return out;
}

/* The embeddings of tokens, in the places that they have, or one behind the other; whether all are words. */
int embed(const Embedding *by, const int64_t *tokens, const int64_t *places, long rows, long size, float *x) {
  for (long row = 0; row < rows; row++, x += size) {
    if (tokens[row] < 0 || tokens[row] >= by->count) return 0;
    const float *word = by->words + tokens[row] * size;
    const float *place = by->positions + (places ? places[row] : row) * size;
    for (long at = 0; at < size; at++) x[at] = word[at] * by->scale + place[at];
  }
  return 1;
}

/* LayerNorm(x + y), or of x alone, rows of `size`; it may be put where x is. */
void norm(const Norm *by, const float *x, const float *y, long rows, long size, float *out) {
  for (long row = 0; row < rows; row++, x += size, out += size, y += y ? size : 0) {
    lanes sums = all(0), squares = all(0);
    for (long at = 0; at < size; at += LANES) {
      lanes here = get(x + at, size - at, 0);
      if (y) here += get(y + at, size - at, 0);
      put(out + at, here, size - at);
      sums += here;
    }
    float mean = sum(sums) / size;
    for (long at = 0; at < size; at += LANES) {
      lanes off = get(out + at, size - at, mean) - mean;
      squares += off * off;
    }
    float variance = sum(squares) / size;
    float one = variance < INFINITY ? 1 / sqrtf(variance + by->epsilon) : NAN; /* not 0, which would hide it */
    for (long at = 0; at < size; at += LANES) {
      lanes off = (get(out + at, size - at, 0) - mean) * one;
      put(out + at, get(by->bias + at, size - at, 0) + off * get(by->weight + at, size - at, 0), size - at);
    }
  }
}

static void add(float *x, const float *y, long many) {
  for (long at = 0; at < many; at++) x[at] += y[at];
}

/* What a sub-layer reads of the stream x, in bytes. */
void enter(const Stack *stack, const Norm *around, const float *x, long rows, Scratch *scratch) {
  if (!stack->post) norm(around, x, NULL, rows, stack->size, scratch->given);
  octets_quantise(stack->post ? x : scratch->given, rows, stack->size, scratch->bytes);
}

/* The stream x after a sub-layer gave what is in the scratch. */
void leave(const Stack *stack, const Norm *around, float *x, long rows, Scratch *scratch) {
  if (stack->post)
    norm(around, x, scratch->given, rows, stack->size, x);
  else
    add(x, scratch->given, rows * stack->size);
}

void feedforward(const Stack *stack, const Layer *layer, float *x, long rows, Scratch *scratch) {
  enter(stack, &layer->around_feedforward, x, rows, scratch);
  octets_multiply(scratch->bytes, &layer->inner, rows, scratch->wide, 1);
  octets_quantise(scratch->wide, rows, layer->inner.outside, scratch->bytes);
  octets_multiply(scratch->bytes, &layer->outer, rows, scratch->given, 0);
  leave(stack, &layer->around_feedforward, x, rows, scratch);
}

/* W^O of what heads found. */
void combine(const Stack *stack, const Product *out, long rows, Scratch *scratch) {
  octets_quantise(scratch->found, rows, stack->size, scratch->bytes);
  octets_multiply(scratch->bytes, out, rows, scratch->given, 0);
}

/* softmax(x · by) in the place of x, of a row. */
static void softmax(float *x, long many, float by) {
  float most = top(x, many);
  lanes sums = all(0);
  for (long at = 0; at < many; at += LANES) {
    lanes e = power((get(x + at, many - at, -INFINITY) - most) * by);
    put(x + at, e, many - at);
    sums += many - at < LANES ? get(x + at, many - at, 0) : e;
  }
  float share = 1 / sum(sums);
  for (long at = 0; at < many; at += LANES) put(x + at, get(x + at, many - at, 0) * share, many - at);
}

/* Scores q k of a query and `many` keys, which are `apart` from each other, or those of them that are listed. */
static void score(const float *query, const float *keys, long apart, const long *listed, long many, long head,
                  float *scores) {
  for (long first = 0; first < many; first += 8) {
    const float *k[8];
    for (int i = 0; i < 8; i++) {
      long one = least(first + i, many - 1);
      k[i] = keys + (listed ? listed[one] : one) * apart;
    }
    lanes s[8] = {0};
    long at = 0;
    for (; at + LANES <= head; at += LANES) {
      lanes q = load(query + at);
      UNROLLED for (int i = 0; i < 8; i++) s[i] += q * load(k[i] + at);
    }
    if (at < head)
      for (int i = 0; i < 8; i++) s[i] += get(query + at, head - at, 0) * get(k[i] + at, head - at, 0);
    float found[8];
    sum_each(s, found);
    memcpy(scores + first, found, sizeof(float) * least(8, many - first));
  }
}

/* Σ_s w_s v_s, of so many vectors of each value. */
static inline __attribute__((always_inline)) void blend(const int vectors, const float *weights, const float *values,
                                                        long apart, const long *listed, long many, float *found) {
  lanes sums[8];
  for (int i = 0; i < vectors; i++) sums[i] = all(0);
  for (long one = 0; one < many; one++) {
    const float *value = values + (listed ? listed[one] : one) * apart;
    for (int i = 0; i < vectors; i++) sums[i] += load(value + LANES * i) * weights[one];
  }
  for (int i = 0; i < vectors; i++) store(found + LANES * i, sums[i]);
}

/* What weights find of values of `head` numbers, which are `apart` from each other, or of those that are listed. */
static void mix(const float *weights, const float *values, long apart, const long *listed, long many, long head,
                float *found) {
  long at = 0;
  for (; at + 32 <= head; at += 32) blend(32 / LANES, weights, values + at, apart, listed, many, found + at);
  for (; at + LANES <= head; at += LANES) blend(1, weights, values + at, apart, listed, many, found + at);
  for (; at < head; at++) {
    found[at] = 0;
    for (long one = 0; one < many; one++) found[at] += weights[one] * values[(listed ? listed[one] : one) * apart + at];
  }
}

/* What a query finds among keys and values, each `apart` from the next, or among those that are listed; weights are
   left in `scores`. */
void find(const float *query, const float *keys, const float *values, long apart, const long *listed, long many,
          long head, float *scores, float *found) {
  score(query, keys, apart, listed, many, head, scores);
  softmax(scores, many, 1 / sqrtf(head));
  mix(scores, values, apart, listed, many, head, found);
}

/* log Σ exp x of a row. */
float log_sum(const float *x, long many) {
  float most = top(x, many);
  lanes sums = all(0);
  for (long at = 0; at < many; at += LANES) {
    lanes e = power(get(x + at, many - at, -INFINITY) - most);
    sums += many - at < LANES ? get((float *)&e, many - at, 0) : e;
  }
  return most + logf(sum(sums));
}
