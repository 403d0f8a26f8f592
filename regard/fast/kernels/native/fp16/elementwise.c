/* What lies between two products, in one pass over numbers that are in the cache: the loss of logits, an LSTM's gates. */

#include "require_fp16.h"

#include "../simd.h"

static inline lanes sigmoid(lanes x) { return 1 / (1 + power(-x)); }

/* tanh x, to some units in the last place near 0, too. */
static inline lanes tangent(lanes x) {
  lanes e = exp_minus_one(2 * x);
  return e / (e + 2);
}

/* x (1 − x), the slope of a sigmoid that gave x; and 1 − x², that of a tangent. */
static inline lanes bend(lanes x) { return x - x * x; }
static inline lanes bow(lanes x) { return 1 - x * x; }

/* Of rows of logits the losses −log p(y), smoothed, one each; in the place of logits it leaves their gradients. */
void between_entropy(float *logits, long apart, long rows, long words, const int64_t *targets, float smoothing,
                     float *losses) {
#pragma omp parallel for schedule(static)
  for (long row = 0; row < rows; row++) {
    float *x = logits + row * apart;
    lanes most = all(-INFINITY), sums = all(0), whole = all(0);
    for (long at = 0; at < words; at += LANES) {
      most = larger(most, get(x + at, words - at, -INFINITY));
      sums += get(x + at, words - at, 0);
    }
    float top = largest(most), wanted = (1 - smoothing) * (x[targets[row]] - top);
    if (smoothing) wanted += smoothing * (sum(sums) / words - top); /* a word may be forbidden by −∞ */
    for (long at = 0; at < words; at += LANES) {
      lanes e = power(get(x + at, words - at, -INFINITY) - top);
      whole += e;
      put(x + at, e, words - at);
    }
    float all_of_it = sum(whole), share = 1 / all_of_it, spread = smoothing / words;
    for (long at = 0; at < words; at += LANES) put(x + at, get(x + at, words - at, 0) * share - spread, words - at);
    x[targets[row]] += smoothing - 1;
    losses[row] = logf(all_of_it) - wanted;
  }
}

/* Gates i, f, g, o before their squashing, `size` each, and c_{t-1}: c_t and h_t. Gates are left squashed. */
void between_lstm(float *gates, long gates_apart, const float *c, long c_apart, float *after, long after_apart, float *h,
                  long h_apart, long rows, long size) {
#pragma omp parallel for schedule(static) if (rows * size > 2048)
  for (long row = 0; row < rows; row++)
    for (long at = 0; at < size; at += LANES) {
      float *gate = gates + row * gates_apart + at;
      long many = size - at;
      lanes i = sigmoid(get(gate, many, 0)), f = sigmoid(get(gate + size, many, 0));
      lanes g = tangent(get(gate + 2 * size, many, 0)), o = sigmoid(get(gate + 3 * size, many, 0));
      lanes now = i * g + f * get(c + row * c_apart + at, many, 0);
      put(gate, i, many);
      put(gate + size, f, many);
      put(gate + 2 * size, g, many);
      put(gate + 3 * size, o, many);
      put(after + row * after_apart + at, now, many);
      put(h + row * h_apart + at, o * tangent(now), many);
    }
}

/* From what came to h, from above and from step t+1, and to c_t: that of the gates' sums, and c_{t-1}'s in place of
   c_t's. Gates are squashed. */
void between_lstm_back(const float *gates, long gates_apart, const float *c, long c_apart, const float *after,
                       long after_apart, const float *above, long above_apart, const float *d_h, long h_apart, float *d_c,
                       long d_c_apart, float *slopes, long slopes_apart, long rows, long size) {
#pragma omp parallel for schedule(static) if (rows * size > 2048)
  for (long row = 0; row < rows; row++)
    for (long at = 0; at < size; at += LANES) {
      const float *gate = gates + row * gates_apart + at;
      float *slope = slopes + row * slopes_apart + at, *cell = d_c + row * d_c_apart + at;
      long many = size - at;
      lanes i = get(gate, many, 0), f = get(gate + size, many, 0);
      lanes g = get(gate + 2 * size, many, 0), o = get(gate + 3 * size, many, 0);
      lanes seen = tangent(get(after + row * after_apart + at, many, 0));
      lanes came = get(above + row * above_apart + at, many, 0) + get(d_h + row * h_apart + at, many, 0);
      lanes down = get(cell, many, 0) + came * o * bow(seen);
      put(slope, down * g * bend(i), many);
      put(slope + size, down * get(c + row * c_apart + at, many, 0) * bend(f), many);
      put(slope + 2 * size, down * i * bow(g), many);
      put(slope + 3 * size, came * seen * bend(o), many);
      put(cell, down * f, many);
    }
}

/* h̃ = tanh z. */
void between_squash(const float *z, long z_apart, float *out, long out_apart, long rows, long size) {
#pragma omp parallel for schedule(static) if (rows * size > 2048)
  for (long row = 0; row < rows; row++)
    for (long at = 0; at < size; at += LANES)
      put(out + row * out_apart + at, tangent(get(z + row * z_apart + at, size - at, 0)), size - at);
}

/* From what came to h̃, from above and from step t+1: z's. */
void between_squash_back(const float *above, long above_apart, const float *fed, long fed_apart, const float *out,
                         long out_apart, float *slopes, long slopes_apart, long rows, long size) {
#pragma omp parallel for schedule(static) if (rows * size > 2048)
  for (long row = 0; row < rows; row++)
    for (long at = 0; at < size; at += LANES) {
      long many = size - at;
      lanes came = get(above + row * above_apart + at, many, 0) + get(fed + row * fed_apart + at, many, 0);
      put(slopes + row * slopes_apart + at, came * bow(get(out + row * out_apart + at, many, 0)), many);
    }
}

static inline float dot(const float *x, const float *y, long size) {
  lanes some = all(0), more = all(0);
  long at = 0;
  for (; at + 2 * LANES <= size; at += 2 * LANES) {
    some += load(x + at) * load(y + at);
    more += load(x + at + LANES) * load(y + at + LANES);
  }
  for (; at < size; at += LANES) some += get(x + at, size - at, 0) * get(y + at, size - at, 0);
  return sum(some + more);
}

/* y = Σ_s w_s x_s, and with `other` that as well, of vectors that lie one behind the other. */
static inline void mixed(const float *w, const float *x, long many, long size, const float *other, float *y) {
  for (long at = 0; at < size; at += LANES) {
    lanes sums = other ? get(other + at, size - at, 0) : all(0);
    for (long s = 0; s < many; s++) sums += get(x + s * size + at, size - at, 0) * w[s];
    put(y + at, sums, size - at);
  }
}

/* Queries, one a row, over keys and values of their own: weights, zero where the mask is, and the values' mean. */
void between_look(const float *query, long query_apart, const float *keys, const float *values, const uint8_t *mask,
                  float *weights, long weights_apart, float *context, long context_apart, long rows, long places,
                  long size, long width) {
#pragma omp parallel for schedule(static) if (rows * places * size > 16384)
  for (long row = 0; row < rows; row++) {
    float *w = weights + row * weights_apart, top = -INFINITY, sum = 0;
    for (long s = 0; s < places; s++) {
      int there = mask[row * places + s];
      w[s] = there ? dot(query + row * query_apart, keys + (row * places + s) * size, size) : -INFINITY;
      if (there && !(w[s] <= top)) top = w[s];
    }
    for (long s = 0; s < places; s++) sum += w[s] = mask[row * places + s] ? expf(w[s] - top) : 0;
    for (long s = 0; s < places; s++) w[s] = sum == 0 ? 0 : w[s] / sum;
    mixed(w, values + row * places * width, places, width, NULL, context + row * context_apart);
  }
}

/* From what came to context and weights: the scores', and the query's, to which `d_query` is added. */
void between_look_back(const float *d_context, long context_apart, const float *d_weights, long d_weights_apart,
                       const float *weights, long weights_apart, const float *keys, const float *values,
                       const float *d_query, long query_apart, float *d_scores, long scores_apart, float *d_all,
                       long all_apart, long rows, long places, long size, long width) {
#pragma omp parallel for schedule(static) if (rows * places * size > 16384)
  for (long row = 0; row < rows; row++) {
    const float *w = weights + row * weights_apart, *came = d_weights + row * d_weights_apart;
    float *slope = d_scores + row * scores_apart, sum = 0;
    for (long s = 0; s < places; s++) {
      slope[s] = w[s] * (came[s] + dot(d_context + row * context_apart, values + (row * places + s) * width, width));
      sum += slope[s];
    }
    for (long s = 0; s < places; s++) slope[s] -= w[s] * sum;
    mixed(slope, keys + row * places * size, places, size, d_query + row * query_apart, d_all + row * all_apart);
  }
}

/* y_s = Σ_t w_ts x_t of each sentence: weights rows,steps,places, x and y rows,·,size, the vectors of x `apart`. */
void between_gather(const float *weights, const float *x, long apart, float *y, long rows, long steps, long places,
                    long size) {
#pragma omp parallel for schedule(static) if (rows * steps * places * size > 16384)
  for (long row = 0; row < rows; row++)
    for (long s = 0; s < places; s++)
      for (long at = 0; at < size; at += 4 * LANES) {
        const float *w = weights + row * steps * places + s, *from = x + row * steps * apart + at;
        lanes sums[4] = {0};
        if (at + 4 * LANES <= size)
          for (long t = 0; t < steps; t++)
            for (int i = 0; i < 4; i++) sums[i] += load(from + t * apart + LANES * i) * w[t * places];
        else
          for (long t = 0; t < steps; t++)
            for (int i = 0; at + LANES * i < size; i++)
              sums[i] += get(from + t * apart + LANES * i, size - at - LANES * i, 0) * w[t * places];
        for (int i = 0; i < 4 && at + LANES * i < size; i++)
          put(y + (row * places + s) * size + at + LANES * i, sums[i], size - at - LANES * i);
      }
}
