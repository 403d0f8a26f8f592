/* Operations between two products, in one pass over cached data: cross-entropy, LSTM gates, attention, tanh. */

#include "api.h"

static inline vfloat sigmoid(vfloat x) { return 1 / (1 + vexp(-x)); }

/* tanh x, accurate near 0, too. */
static inline vfloat vtanh(vfloat x) {
  vfloat e = vexpm1(2 * x);
  return e / (e + 2);
}

/* Derivatives by the outputs: x (1 − x) of a sigmoid, 1 − x² of tanh. */
static inline vfloat sigmoid_slope(vfloat x) { return x - x * x; }
static inline vfloat tanh_slope(vfloat x) { return 1 - x * x; }

void elementwise_cross_entropy(float *logits, long stride, long rows, long words, const int64_t *targets,
                               float smoothing, float *losses) {
#pragma omp parallel for schedule(static)
  for (long row = 0; row < rows; row++) {
    float *x = logits + row * stride;
    vfloat most = splat(-INFINITY), sums = splat(0), sums_exp = splat(0);
    for (long at = 0; at < words; at += LANES) {
      most = vmax(most, load_n(x + at, words - at, -INFINITY));
      sums += load_n(x + at, words - at, 0);
    }
    float top = reduce_max(most), target_term = (1 - smoothing) * (x[targets[row]] - top);
    if (smoothing) target_term += smoothing * (sum(sums) / words - top); /* a logit may be −∞ */
    for (long at = 0; at < words; at += LANES) {
      vfloat e = vexp(load_n(x + at, words - at, -INFINITY) - top);
      sums_exp += e;
      store_n(x + at, e, words - at);
    }
    float total = sum(sums_exp), inverse = 1 / total, smoothing_per_word = smoothing / words;
    for (long at = 0; at < words; at += LANES)
      store_n(x + at, load_n(x + at, words - at, 0) * inverse - smoothing_per_word, words - at);
    x[targets[row]] += smoothing - 1;
    losses[row] = logf(total) - target_term;
  }
}

void elementwise_lstm(float *gates, long gates_stride, const float *c, long c_stride, float *after, long after_stride,
                      float *h, long h_stride, long rows, long size) {
#pragma omp parallel for schedule(static) if (rows * size > 2048)
  for (long row = 0; row < rows; row++)
    for (long at = 0; at < size; at += LANES) {
      float *gate = gates + row * gates_stride + at;
      long many = size - at;
      vfloat i = sigmoid(load_n(gate, many, 0)), f = sigmoid(load_n(gate + size, many, 0));
      vfloat g = vtanh(load_n(gate + 2 * size, many, 0)), o = sigmoid(load_n(gate + 3 * size, many, 0));
      vfloat now = i * g + f * load_n(c + row * c_stride + at, many, 0);
      store_n(gate, i, many);
      store_n(gate + size, f, many);
      store_n(gate + 2 * size, g, many);
      store_n(gate + 3 * size, o, many);
      store_n(after + row * after_stride + at, now, many);
      store_n(h + row * h_stride + at, o * vtanh(now), many);
    }
}

void elementwise_lstm_backward(const float *gates, long gates_stride, const float *c, long c_stride, const float *after,
                               long after_stride, const float *d_above, long above_stride, const float *d_h,
                               long h_stride, float *d_c, long d_c_stride, float *slopes, long slopes_stride, long rows,
                               long size) {
#pragma omp parallel for schedule(static) if (rows * size > 2048)
  for (long row = 0; row < rows; row++)
    for (long at = 0; at < size; at += LANES) {
      const float *gate = gates + row * gates_stride + at;
      float *slope = slopes + row * slopes_stride + at, *cell = d_c + row * d_c_stride + at;
      long many = size - at;
      vfloat i = load_n(gate, many, 0), f = load_n(gate + size, many, 0);
      vfloat g = load_n(gate + 2 * size, many, 0), o = load_n(gate + 3 * size, many, 0);
      vfloat seen = vtanh(load_n(after + row * after_stride + at, many, 0));
      vfloat came = load_n(d_above + row * above_stride + at, many, 0) + load_n(d_h + row * h_stride + at, many, 0);
      vfloat down = load_n(cell, many, 0) + came * o * tanh_slope(seen);
      store_n(slope, down * g * sigmoid_slope(i), many);
      store_n(slope + size, down * load_n(c + row * c_stride + at, many, 0) * sigmoid_slope(f), many);
      store_n(slope + 2 * size, down * i * tanh_slope(g), many);
      store_n(slope + 3 * size, came * seen * sigmoid_slope(o), many);
      store_n(cell, down * f, many);
    }
}

void elementwise_tanh(const float *z, long z_stride, float *out, long out_stride, long rows, long size) {
#pragma omp parallel for schedule(static) if (rows * size > 2048)
  for (long row = 0; row < rows; row++)
    for (long at = 0; at < size; at += LANES)
      store_n(out + row * out_stride + at, vtanh(load_n(z + row * z_stride + at, size - at, 0)), size - at);
}

void elementwise_tanh_backward(const float *d_above, long above_stride, const float *fed, long fed_stride,
                               const float *out, long out_stride, float *slopes, long slopes_stride, long rows,
                               long size) {
#pragma omp parallel for schedule(static) if (rows * size > 2048)
  for (long row = 0; row < rows; row++)
    for (long at = 0; at < size; at += LANES) {
      long many = size - at;
      vfloat came = load_n(d_above + row * above_stride + at, many, 0) + load_n(fed + row * fed_stride + at, many, 0);
      store_n(slopes + row * slopes_stride + at, came * tanh_slope(load_n(out + row * out_stride + at, many, 0)), many);
    }
}

static inline float dot(const float *x, const float *y, long size) {
  vfloat some = splat(0), more = splat(0);
  long at = 0;
  for (; at + 2 * LANES <= size; at += 2 * LANES) {
    some += load(x + at) * load(y + at);
    more += load(x + at + LANES) * load(y + at + LANES);
  }
  for (; at < size; at += LANES) some += load_n(x + at, size - at, 0) * load_n(y + at, size - at, 0);
  return sum(some + more);
}

/* y = Σ_s w_s x_s, plus `other` if given, of contiguous vectors. */
static inline void weighted_sum(const float *w, const float *x, long many, long size, const float *other, float *y) {
  for (long at = 0; at < size; at += LANES) {
    vfloat sums = other ? load_n(other + at, size - at, 0) : splat(0);
    for (long s = 0; s < many; s++) sums += load_n(x + s * size + at, size - at, 0) * w[s];
    store_n(y + at, sums, size - at);
  }
}

void elementwise_attention(const float *query, long query_stride, const float *keys, const float *values,
                           const uint8_t *mask, float *weights, long weights_stride, float *context,
                           long context_stride, long rows, long places, long size, long width) {
#pragma omp parallel for schedule(static) if (rows * places * size > 16384)
  for (long row = 0; row < rows; row++) {
    float *w = weights + row * weights_stride, top = -INFINITY, sum = 0;
    for (long s = 0; s < places; s++) {
      int there = mask[row * places + s];
      w[s] = there ? dot(query + row * query_stride, keys + (row * places + s) * size, size) : -INFINITY;
      if (there && !(w[s] <= top)) top = w[s];
    }
    for (long s = 0; s < places; s++) sum += w[s] = mask[row * places + s] ? expf(w[s] - top) : 0;
    for (long s = 0; s < places; s++) w[s] = sum == 0 ? 0 : w[s] / sum;
    weighted_sum(w, values + row * places * width, places, width, NULL, context + row * context_stride);
  }
}

void elementwise_attention_backward(const float *d_context, long context_stride, const float *d_weights,
                                    long d_weights_stride, const float *weights, long weights_stride, const float *keys,
                                    const float *values, const float *d_query, long query_stride, float *d_scores,
                                    long scores_stride, float *d_all, long all_stride, long rows, long places,
                                    long size, long width) {
#pragma omp parallel for schedule(static) if (rows * places * size > 16384)
  for (long row = 0; row < rows; row++) {
    const float *w = weights + row * weights_stride, *came = d_weights + row * d_weights_stride;
    float *slope = d_scores + row * scores_stride, sum = 0;
    for (long s = 0; s < places; s++) {
      slope[s] = w[s] * (came[s] + dot(d_context + row * context_stride, values + (row * places + s) * width, width));
      sum += slope[s];
    }
    for (long s = 0; s < places; s++) slope[s] -= w[s] * sum;
    weighted_sum(slope, keys + row * places * size, places, size, d_query + row * query_stride,
                 d_all + row * all_stride);
  }
}

void elementwise_weighted_sum(const float *weights, const float *x, long stride, float *y, long rows, long steps,
                              long places, long size) {
#pragma omp parallel for schedule(static) if (rows * steps * places * size > 16384)
  for (long row = 0; row < rows; row++)
    for (long s = 0; s < places; s++)
      for (long at = 0; at < size; at += 4 * LANES) {
        const float *w = weights + row * steps * places + s, *from = x + row * steps * stride + at;
        vfloat sums[4] = {0};
        if (at + 4 * LANES <= size)
          for (long t = 0; t < steps; t++)
            for (int i = 0; i < 4; i++) sums[i] += load(from + t * stride + LANES * i) * w[t * places];
        else
          for (long t = 0; t < steps; t++)
            for (int i = 0; at + LANES * i < size; i++)
              sums[i] += load_n(from + t * stride + LANES * i, size - at - LANES * i, 0) * w[t * places];
        for (int i = 0; i < 4 && at + LANES * i < size; i++)
          store_n(y + (row * places + s) * size + at + LANES * i, sums[i], size - at - LANES * i);
      }
}
