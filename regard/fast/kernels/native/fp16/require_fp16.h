/* Included first, so that this is the first error on other CPUs. */

#if !defined(__aarch64__) || !defined(__ARM_FEATURE_FP16_VECTOR_ARITHMETIC)
#error this CPU has no fp16 arithmetic
#endif
