/* Included first: a processor that lacks it is told at once. */

#if !defined(__aarch64__) || !defined(__ARM_FEATURE_FP16_VECTOR_ARITHMETIC)
#error this CPU has no fp16 arithmetic
#endif
