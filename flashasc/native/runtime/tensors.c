/* Copies between strided memrefs, matrix products, and conversions that LLVM may call. */

#include "runtime.h"

#include <math.h>
#include <string.h>
#ifdef __F16C__
#include <immintrin.h>
#endif

typedef struct {
  int64_t rank;
  char *descriptor; /* allocated pointer, aligned pointer, offset, sizes[rank], strides[rank] */
} UnrankedMemRef;

static void copy_row(char *to, int64_t to_step, const char *from, int64_t from_step, int64_t count,
                     int64_t bytes) {
  if (to_step == bytes && from_step == bytes) {
    memcpy(to, from, (size_t)(count * bytes));
    return;
  }
#define COPY_AS(type)                                                                           \
  case sizeof(type):                                                                            \
    for (int64_t i = 0; i < count; i++) memcpy(to + i * to_step, from + i * from_step, sizeof(type)); \
    return;
  switch (bytes) {
    COPY_AS(uint8_t)
    COPY_AS(uint16_t)
    COPY_AS(uint32_t)
    COPY_AS(uint64_t)
  }
  for (int64_t i = 0; i < count; i++) memcpy(to + i * to_step, from + i * from_step, (size_t)bytes);
}

static void copy_dim(int64_t rank, const int64_t *sizes, char *to, const int64_t *to_strides,
                     const char *from, const int64_t *from_strides, int64_t bytes) {
  if (rank == 0) {
    memcpy(to, from, (size_t)bytes);
  } else if (rank == 1) {
    copy_row(to, to_strides[0] * bytes, from, from_strides[0] * bytes, sizes[0], bytes);
  } else {
    for (int64_t i = 0; i < sizes[0]; i++)
      copy_dim(rank - 1, sizes + 1, to + i * to_strides[0] * bytes, to_strides + 1,
               from + i * from_strides[0] * bytes, from_strides + 1, bytes);
  }
}

API void flashasc_memref_copy(int64_t bytes, UnrankedMemRef *from, UnrankedMemRef *to) {
  int64_t rank = from->rank;
  int64_t *source = (int64_t *)from->descriptor, *target = (int64_t *)to->descriptor;
  const int64_t *sizes = source + 3;
  for (int64_t i = 0; i < rank; i++)
    if (sizes[i] <= 0) return;
  copy_dim(rank, sizes, (char *)target[1] + target[2] * bytes, target + 3 + rank,
           (const char *)source[1] + source[2] * bytes, source + 3 + rank, bytes);
}

/* out += left @ right in fp32: every product is rounded, every sum is rounded, and each element
 * takes its products in the order of the inner index. Tiles of 4 x 16 elements stay in registers. */

typedef float Vector __attribute__((vector_size(32), aligned(4), may_alias));
enum { LANES = 8, TILE_M = 4, TILE_N = 2 * LANES };

static void matmul_tile(int64_t K, const float *left, int64_t stride_left, const float *right,
                        int64_t stride_right, float *out, int64_t stride_out) {
  Vector sum[TILE_M][2];
  for (int row = 0; row < TILE_M; row++)
    for (int half = 0; half < 2; half++)
      sum[row][half] = *(const Vector *)(out + row * stride_out + half * LANES);
  for (int64_t k = 0; k < K; k++) {
    Vector right0 = *(const Vector *)(right + k * stride_right);
    Vector right1 = *(const Vector *)(right + k * stride_right + LANES);
    for (int row = 0; row < TILE_M; row++) {
      float value = left[row * stride_left + k];
      sum[row][0] += value * right0;
      sum[row][1] += value * right1;
    }
  }
  for (int row = 0; row < TILE_M; row++)
    for (int half = 0; half < 2; half++)
      *(Vector *)(out + row * stride_out + half * LANES) = sum[row][half];
}

static void matmul_edge(int64_t M, int64_t N, int64_t K, const float *left, int64_t stride_left,
                        const float *right, int64_t stride_right, float *out, int64_t stride_out) {
  for (int64_t m = 0; m < M; m++)
    for (int64_t k = 0; k < K; k++) {
      float value = left[m * stride_left + k];
      for (int64_t n = 0; n < N; n++)
        out[m * stride_out + n] += value * right[k * stride_right + n];
    }
}

static void matmul(int64_t M, int64_t N, int64_t K, const float *left, int64_t stride_left,
                   const float *right, int64_t stride_right, float *out, int64_t stride_out) {
  int64_t whole_m = M - M % TILE_M, whole_n = N - N % TILE_N;
  for (int64_t n = 0; n < whole_n; n += TILE_N)
    for (int64_t m = 0; m < whole_m; m += TILE_M)
      matmul_tile(K, left + m * stride_left, stride_left, right + n, stride_right,
                  out + m * stride_out + n, stride_out);
  if (whole_n < N)
    matmul_edge(whole_m, N - whole_n, K, left, stride_left, right + whole_n, stride_right,
                out + whole_n, stride_out);
  if (whole_m < M)
    matmul_edge(M - whole_m, N, K, left + whole_m * stride_left, stride_left, right, stride_right,
                out + whole_m * stride_out, stride_out);
}

static inline float from_f32(float value) { return value; }

static inline float from_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static inline float from_bf16(uint16_t half) { return from_bits((uint32_t)half << 16); }

/* In whole-register integer steps, which vectorise; exact, subnormals and NaN included. */
static inline float from_f16(uint16_t half) {
  uint32_t word = (uint32_t)half << 16, sign = word & 0x80000000u, twice = word + word;
  float normal = from_bits((twice >> 4) + (0xE0u << 23)) * 0x1.0p-112f;
  float subnormal = from_bits((twice >> 17) | (126u << 23)) - 0.5f;
  uint32_t normal_bits, subnormal_bits;
  memcpy(&normal_bits, &normal, 4);
  memcpy(&subnormal_bits, &subnormal, 4);
  return from_bits(sign | (twice < (1u << 27) ? subnormal_bits : normal_bits));
}

#define MATRIX(type, name) \
  type *name##_allocated, type *name, int64_t name##_offset, int64_t name##_rows, \
      int64_t name##_columns, int64_t name##_row_stride, int64_t name##_stride

static void row_from_f32(float *to, const float *from, int64_t count) {
  memcpy(to, from, (size_t)count * sizeof(float));
}

static void row_from_bf16(float *restrict to, const uint16_t *restrict from, int64_t count) {
  for (int64_t i = 0; i < count; i++) to[i] = from_bf16(from[i]);
}

static void row_from_f16(float *restrict to, const uint16_t *restrict from, int64_t count) {
  int64_t i = 0;
#ifdef __F16C__
  for (; i + LANES <= count; i += LANES)
    _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(from + i))));
#endif
  for (; i < count; i++) to[i] = from_f16(from[i]);
}

/* A dense fp32 copy of a matrix. */
#define WIDEN(suffix, type)                                                                     \
  static float *widen_##suffix(const type *from, int64_t rows, int64_t columns,                 \
                               int64_t row_stride, int64_t stride) {                            \
    float *to = flashasc_alloc((uint64_t)rows * (uint64_t)columns * sizeof(float));             \
    for (int64_t row = 0; row < rows; row++) {                                                  \
      const type *source = from + row * row_stride;                                             \
      float *target = to + row * columns;                                                       \
      if (stride == 1)                                                                          \
        row_from_##suffix(target, source, columns);                                             \
      else                                                                                      \
        for (int64_t i = 0; i < columns; i++) target[i] = from_##suffix(source[i * stride]);    \
    }                                                                                           \
    return to;                                                                                  \
  }
WIDEN(f32, float)
WIDEN(f16, uint16_t)
WIDEN(bf16, uint16_t)

#define MATMUL(suffix, type, is_fp32)                                                           \
  API void flashasc_matmul_##suffix(MATRIX(type, left), MATRIX(type, right), MATRIX(float, out)) { \
    (void)left_allocated, (void)right_allocated, (void)out_allocated;                           \
    int64_t M = out_rows, N = out_columns, K = left_columns;                                    \
    left += left_offset, right += right_offset, out += out_offset;                              \
    float *a = (float *)left, *b = (float *)right, *c = out;                                    \
    int64_t stride_a = left_row_stride, stride_b = right_row_stride, stride_c = out_row_stride; \
    int own_a = !is_fp32 || left_stride != 1, own_b = !is_fp32 || right_stride != 1;            \
    int own_c = out_stride != 1;                                                                \
    if (own_a) a = widen_##suffix(left, M, K, stride_a, left_stride), stride_a = K;             \
    if (own_b) b = widen_##suffix(right, K, N, stride_b, right_stride), stride_b = N;           \
    if (own_c) c = widen_f32(out, M, N, stride_c, out_stride), stride_c = N;                    \
    matmul(M, N, K, a, stride_a, b, stride_b, c, stride_c);                                     \
    if (own_c) {                                                                                \
      for (int64_t m = 0; m < M; m++)                                                           \
        for (int64_t n = 0; n < N; n++) out[m * out_row_stride + n * out_stride] = c[m * N + n]; \
      flashasc_free(c);                                                                         \
    }                                                                                           \
    if (own_b) flashasc_free(b);                                                                \
    if (own_a) flashasc_free(a);                                                                \
    (void)left_rows, (void)right_rows, (void)right_columns;                                     \
  }
MATMUL(f32, float, 1)
MATMUL(f16, uint16_t, 0)
MATMUL(bf16, uint16_t, 0)

/* fp32 and fp64 to bf16, for compilers' libraries that lack them. The result travels in the low
 * half of a floating-point register, which a float return value does too. */
API float __truncsfbf2(float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  uint32_t rounded = (bits & 0x7fffffffu) > 0x7f800000u
                         ? (bits >> 16) | 0x40u
                         : (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  return from_bits(rounded & 0xffffu);
}

API float __truncdfbf2(double value) {
  /* to fp32 with the last bit sticky (rounding to odd), so that the second rounding is right */
  float near = (float)value;
  uint32_t bits;
  memcpy(&bits, &near, 4);
  if ((double)near != value && value == value && !isinf(near)) {
    if (fabs((double)near) > fabs(value)) bits--;
    bits |= 1u;
  }
  return __truncsfbf2(from_bits(bits));
}
