/* Functions that Python calls; `build.py: read_api` reads them here. Matrices have contiguous rows. */

#include "require_fp16.h"

#include "../simd.h"

/* Pack the columns of a right matrix, and return their scale. */
float fp16_pack(const float *x, long stride, int dense, long count, long k, float16_t *out);

/* C = A B, or with `add` C + A B, of A with contiguous rows or columns, and of B in panels with scale `right_scale`.
   Rows of C are contiguous, `stride` apart. `buffer` holds the panels of A; `sums` receives the sums of its rows if its
   columns are contiguous. `max_abs` is an upper bound of |A|, or 0 if unknown. */
void fp16_gemm(const float *x, long x_stride, int dense, float max_abs, const float16_t *b, float right_scale, long m,
               long n, long k, float *c, long stride, int add, float16_t *buffer, float *sums);

/* Label-smoothed −log p(y) of each row of logits; the logits are replaced by their gradients. */
void elementwise_cross_entropy(float *logits, long stride, long rows, long words, const int64_t *targets,
                               float smoothing, float *losses);

/* Compute c_t and h_t from the pre-activations of gates i, f, g, o (`size` each) and c_{t-1}. Gates are activated in
 * place. */
void elementwise_lstm(float *gates, long gates_stride, const float *c, long c_stride, float *after, long after_stride,
                      float *h, long h_stride, long rows, long size);

/* Gradients of the pre-activations, and of c_{t-1} in place of that of c_t, from those of h (from above and from step
   t+1) and c_t. Gates are activated. */
void elementwise_lstm_backward(const float *gates, long gates_stride, const float *c, long c_stride, const float *after,
                               long after_stride, const float *d_above, long above_stride, const float *d_h,
                               long h_stride, float *d_c, long d_c_stride, float *slopes, long slopes_stride, long rows,
                               long size);

/* h̃ = tanh z. */
void elementwise_tanh(const float *z, long z_stride, float *out, long out_stride, long rows, long size);

/* Gradient of z from those of h̃, from above and from step t+1. */
void elementwise_tanh_backward(const float *d_above, long above_stride, const float *fed, long fed_stride,
                               const float *out, long out_stride, float *slopes, long slopes_stride, long rows,
                               long size);

/* Attention of one query per row over its own keys and values: weights, 0 where masked, and context. */
void elementwise_attention(const float *query, long query_stride, const float *keys, const float *values,
                           const uint8_t *mask, float *weights, long weights_stride, float *context,
                           long context_stride, long rows, long places, long size, long width);

/* Gradients of scores and query (plus `d_query`) from those of context and weights. */
void elementwise_attention_backward(const float *d_context, long context_stride, const float *d_weights,
                                    long d_weights_stride, const float *weights, long weights_stride, const float *keys,
                                    const float *values, const float *d_query, long query_stride, float *d_scores,
                                    long scores_stride, float *d_all, long all_stride, long rows, long places,
                                    long size, long width);

/* y_s = Σ_t w_ts x_t of each sentence: weights (rows, steps, places), x and y (rows, ·, size), `stride` between vectors
 * of x. */
void elementwise_weighted_sum(const float *weights, const float *x, long stride, float *y, long rows, long steps,
                              long places, long size);
