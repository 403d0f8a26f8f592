/* What lies between two products, in one pass over numbers that are in the cache: the loss of logits, an LSTM's gates. */

#include "../neon.h"

static inline four sigmoid(four x) { return vdivq_f32(all(1), vaddq_f32(all(1), power(vnegq_f32(x)))); }

static inline four tangent(four x) {
  return vsubq_f32(vdivq_f32(all(2), vaddq_f32(all(1), power(vmulq_f32(x, all(-2))))), all(1));
}

/* x (1 − x), the slope of a sigmoid that gave x; and 1 − x², that of a tangent. */
static inline four bend(four x) { return vfmsq_f32(x, x, x); }
static inline four bow(four x) { return vfmsq_f32(all(1), x, x); }

/* Of rows of logits the losses −log p(y), smoothed, one each; in the place of logits it leaves their gradients. */
void between_entropy(float *logits, long apart, long rows, long words, const int64_t *targets, float smoothing,
                     float *losses) {
#pragma omp parallel for schedule(static)
  for (long row = 0; row < rows; row++) {
    float *x = logits + row * apart;
    four most = all(-INFINITY), sums = all(0), whole = all(0);
    for (long at = 0; at < words; at += 4) {
      most = vmaxq_f32(most, get(x + at, words - at, -INFINITY));
      sums = vaddq_f32(sums, get(x + at, words - at, 0));
    }
    float top = vmaxvq_f32(most), wanted = (1 - smoothing) * (x[targets[row]] - top);
    if (smoothing) wanted += smoothing * (vaddvq_f32(sums) / words - top);  /* a word may be forbidden by −∞ */
    for (long at = 0; at < words; at += 4) {
      four e = power(vsubq_f32(get(x + at, words - at, -INFINITY), all(top)));
      whole = vaddq_f32(whole, e);
      put(x + at, e, words - at);
    }
    float sum = vaddvq_f32(whole);
    four share = all(1 / sum), spread = all(smoothing / words);
    for (long at = 0; at < words; at += 4)
      put(x + at, vsubq_f32(vmulq_f32(get(x + at, words - at, 0), share), spread), words - at);
    x[targets[row]] += smoothing - 1;
    losses[row] = logf(sum) - wanted;
  }
}

/* Gates i, f, g, o before their squashing, `size` each, and c_{t-1}: c_t and h_t. Gates are left squashed. */
void between_lstm(float *gates, long gates_apart, const float *c, long c_apart, float *after, long after_apart, float *h,
                  long h_apart, long rows, long size) {
#pragma omp parallel for schedule(static) if (rows * size > 2048)
  for (long row = 0; row < rows; row++)
    for (long at = 0; at < size; at += 4) {
      float *gate = gates + row * gates_apart + at;
      long many = size - at;
      four i = sigmoid(get(gate, many, 0)), f = sigmoid(get(gate + size, many, 0));
      four g = tangent(get(gate + 2 * size, many, 0)), o = sigmoid(get(gate + 3 * size, many, 0));
      four now = vfmaq_f32(vmulq_f32(i, g), f, get(c + row * c_apart + at, many, 0));
      put(gate, i, many);
      put(gate + size, f, many);
      put(gate + 2 * size, g, many);
      put(gate + 3 * size, o, many);
      put(after + row * after_apart + at, now, many);
      put(h + row * h_apart + at, vmulq_f32(o, tangent(now)), many);
    }
}

/* From what came to h, from above and from step t+1, and to c_t: that of the gates' sums, and c_{t-1}'s in place of
   c_t's. Gates are squashed. */
void between_lstm_back(const float *gates, long gates_apart, const float *c, long c_apart, const float *after,
                       long after_apart, const float *above, long above_apart, const float *d_h, long h_apart, float *d_c,
                       long d_c_apart, float *slopes, long slopes_apart, long rows, long size) {
#pragma omp parallel for schedule(static) if (rows * size > 2048)
  for (long row = 0; row < rows; row++)
    for (long at = 0; at < size; at += 4) {
      const float *gate = gates + row * gates_apart + at;
      float *slope = slopes + row * slopes_apart + at, *cell = d_c + row * d_c_apart + at;
      long many = size - at;
      four i = get(gate, many, 0), f = get(gate + size, many, 0);
      four g = get(gate + 2 * size, many, 0), o = get(gate + 3 * size, many, 0);
      four seen = tangent(get(after + row * after_apart + at, many, 0));
      four came = vaddq_f32(get(above + row * above_apart + at, many, 0), get(d_h + row * h_apart + at, many, 0));
      four down = vfmaq_f32(get(cell, many, 0), vmulq_f32(came, o), bow(seen));
      put(slope, vmulq_f32(vmulq_f32(down, g), bend(i)), many);
      put(slope + size, vmulq_f32(vmulq_f32(down, get(c + row * c_apart + at, many, 0)), bend(f)), many);
      put(slope + 2 * size, vmulq_f32(vmulq_f32(down, i), bow(g)), many);
      put(slope + 3 * size, vmulq_f32(vmulq_f32(came, seen), bend(o)), many);
      put(cell, vmulq_f32(down, f), many);
    }
}

/* h̃ = tanh z. */
void between_squash(const float *z, long z_apart, float *out, long out_apart, long rows, long size) {
#pragma omp parallel for schedule(static) if (rows * size > 2048)
  for (long row = 0; row < rows; row++)
    for (long at = 0; at < size; at += 4)
      put(out + row * out_apart + at, tangent(get(z + row * z_apart + at, size - at, 0)), size - at);
}

/* From what came to h̃, from above and from step t+1: z's. */
void between_squash_back(const float *above, long above_apart, const float *fed, long fed_apart, const float *out,
                         long out_apart, float *slopes, long slopes_apart, long rows, long size) {
#pragma omp parallel for schedule(static) if (rows * size > 2048)
  for (long row = 0; row < rows; row++)
    for (long at = 0; at < size; at += 4) {
      long many = size - at;
      four came = vaddq_f32(get(above + row * above_apart + at, many, 0), get(fed + row * fed_apart + at, many, 0));
      put(slopes + row * slopes_apart + at, vmulq_f32(came, bow(get(out + row * out_apart + at, many, 0))), many);
    }
}

static inline float dot(const float *x, const float *y, long size) {
  four sum = all(0), more = all(0);
  long at = 0;
  for (; at + 8 <= size; at += 8) {
    sum = vfmaq_f32(sum, vld1q_f32(x + at), vld1q_f32(y + at));
    more = vfmaq_f32(more, vld1q_f32(x + at + 4), vld1q_f32(y + at + 4));
  }
  for (; at < size; at += 4) sum = vfmaq_f32(sum, get(x + at, size - at, 0), get(y + at, size - at, 0));
  return vaddvq_f32(vaddq_f32(sum, more));
}

/* y = Σ_s w_s x_s, and with `other` that as well, of vectors that lie one behind the other. */
static inline void mixed(const float *w, const float *x, long many, long size, const float *other, float *y) {
  for (long at = 0; at < size; at += 4) {
    four sum = other ? get(other + at, size - at, 0) : all(0);
    for (long s = 0; s < many; s++) sum = vfmaq_f32(sum, get(x + s * size + at, size - at, 0), all(w[s]));
    put(y + at, sum, size - at);
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
      for (long at = 0; at < size; at += 16) {
        const float *w = weights + row * steps * places + s, *from = x + row * steps * apart + at;
        four sums[4] = {all(0), all(0), all(0), all(0)};
        if (at + 16 <= size)
          for (long t = 0; t < steps; t++)
            for (int i = 0; i < 4; i++)
              sums[i] = vfmaq_n_f32(sums[i], vld1q_f32(from + t * apart + 4 * i), w[t * places]);
        else
          for (long t = 0; t < steps; t++)
            for (int i = 0; at + 4 * i < size; i++)
              sums[i] = vfmaq_n_f32(sums[i], get(from + t * apart + 4 * i, size - at - 4 * i, 0), w[t * places]);
        for (int i = 0; i < 4 && at + 4 * i < size; i++)
          put(y + (row * places + s) * size + at + 4 * i, sums[i], size - at - 4 * i);
      }
}
