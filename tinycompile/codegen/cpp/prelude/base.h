// What every generated kernel may use: conversions, wrapping and safe integer arithmetic, NaN-aware comparisons, threads.
// Plain scalar functions without branches: the compiler vectorises the loops that call them ("#pragma omp simd").
#include <stdint.h>
#ifdef _OPENMP
#include <omp.h>
#else
static inline int omp_get_thread_num() { return 0; }
static inline int omp_get_num_threads() { return 1; }
#endif

namespace tc {

// What a kernel returns when torch itself must answer (usually with an error): the call is redone eagerly.
enum { INDEX_OUT_OF_RANGE = 1, DIVISION_BY_ZERO = 2, ARGUMENT_TOO_LARGE = 4 };

constexpr float INF = __builtin_inff();

// The work (elements times their cost) that pays for waking one thread: about 10 microseconds.
constexpr int64_t WORK_PER_THREAD = 16384;

static inline int useful_threads(int64_t work, int threads) {
    const int64_t most = work / WORK_PER_THREAD;
    return most < 2 || threads < 2 ? 1 : most < threads ? (int)most : threads;
}

template <class T> static inline T least(T a, T b) { return a < b ? a : b; }
template <class T> static inline T most(T a, T b) { return a > b ? a : b; }

// The part of range(0, n) that thread `t` of `count` works on, in multiples of `unit`.
struct Share { int64_t begin, end; };
static inline Share share(int64_t n, int64_t unit, int t, int count) {
    const int64_t units = (n + unit - 1) / unit, each = units / count, more = units % count;
    const int64_t first = t * each + (t < more ? t : more), last = first + each + (t < more);
    return {least(first * unit, n), least(last * unit, n)};
}

// Ask for N elements `step` apart that are read soon. They may lie beyond the tensor: nothing is read, and nothing faults.
template <int N, class T> static inline void fetch(const T* from, int64_t step) {
    for (int n = 0; n < N; ++n) __builtin_prefetch(from + n * step);
}

// The same for later, as far as the second cache.
template <int N, class T> static inline void fetch_near(const T* from, int64_t step) {
    for (int n = 0; n < N; ++n) __builtin_prefetch(from + n * step, 0, 2);
}

// The same for the beginning of the next page, if the N elements `at` are in the beginning of theirs: what the CPU reads ahead
// itself ends with a page, and begins again after a few lines.
template <int N, class T> static inline void next_page(const T* at) {
    const uintptr_t place = (uintptr_t)at;
    if ((place & 4095) < N * sizeof(T)) fetch<4>((const char*)((place & ~(uintptr_t)4095) + 4096), 64);
}

// The same for what lies two pages after the N elements `at`, line by line.
template <int N, class T> static inline void two_pages_on(const T* at) {
    fetch_near<N * (int)sizeof(T) / 64>((const char*)at + 8192, 64);
}

// The same for N elements in a row that are written soon; _near: as far as the second cache.
template <int N, class T> static inline void claim(const T* to) {
    for (int n = 0; n < N; n += 64 / (int)sizeof(T)) __builtin_prefetch(to + n, 1);
}
template <int N, class T> static inline void claim_near(const T* to) {
    for (int n = 0; n < N; n += 64 / (int)sizeof(T)) __builtin_prefetch(to + n, 1, 2);
}

// The N elements of an array joined pairwise. It overwrites the array.
template <int N, class T, class Join> static inline T fold(T* array, Join join) {
    if constexpr (N > 1) {
        #pragma omp simd
        for (int i = 0; i < N / 2; ++i) array[i] = join(array[i], array[i + N / 2]);
        return fold<N / 2>(array, join);
    }
    return array[0];
}

// Into each of N/4 totals go four of N values, added up before.
template <int N> static inline void add_fours(double* totals, const float* values) {
    constexpr int M = N / 4;
    #pragma omp simd
    for (int i = 0; i < M; ++i) totals[i] += (values[i] + values[i + M]) + (values[i + 2 * M] + values[i + 3 * M]);
}

// The sum of doubles and, apart from it, what rounding has lost (Knuth's two-sum). Beyond float64 the latter is NaN.
struct Sum {
    double sum, lost;
    Sum() = default;
    Sum(double x) : sum(x), lost(0) {}
    Sum& operator+=(Sum x) {
        const double next = sum + x.sum, kept = next - sum;
        lost += ((sum - (next - kept)) + (x.sum - kept)) + x.lost;
        sum = next;
        return *this;
    }
    friend Sum operator+(Sum a, Sum b) { return a += b; }
    explicit operator double() const { return lost == lost ? sum + lost : sum; }
};

// N values become the sums of all before them and themselves, beginning with `before`. Returns the last one.
#if (defined(__clang__) || __GNUC__ >= 12) && defined(__AVX2__)
#ifdef __AVX512F__
typedef double Doubles __attribute__((vector_size(64), aligned(8), may_alias));
static inline Doubles prefix_sums(Doubles v) {
    const Doubles none = {};
    v += __builtin_shufflevector(none, v, 0, 8, 9, 10, 11, 12, 13, 14);
    v += __builtin_shufflevector(none, v, 0, 1, 8, 9, 10, 11, 12, 13);
    return v + __builtin_shufflevector(none, v, 0, 1, 2, 3, 8, 9, 10, 11);
}
#else
typedef double Doubles __attribute__((vector_size(32), aligned(8), may_alias));
static inline Doubles prefix_sums(Doubles v) {
    const Doubles none = {};
    v += __builtin_shufflevector(none, v, 0, 4, 5, 6);
    return v + __builtin_shufflevector(none, v, 0, 1, 4, 5);
}
#endif
template <int N> static inline double running_sums(double* values, double before) {
    constexpr int SIZE = sizeof(Doubles) / sizeof(double);
    for (int i = 0; i < N; i += SIZE) {
        const Doubles part = prefix_sums(*(const Doubles*)(values + i));
        *(Doubles*)(values + i) = part + before;
        before += part[SIZE - 1];
    }
    return before;
}
#else
template <int N> static inline double running_sums(double* values, double before) {
    for (int i = 0; i < N; ++i) before = values[i] += before;
    return before;
}
#endif

// ---- bits ----
static inline uint32_t bits(float x) { return __builtin_bit_cast(uint32_t, x); }
static inline uint64_t bits(double x) { return __builtin_bit_cast(uint64_t, x); }
static inline float as_float(uint32_t u) { return __builtin_bit_cast(float, u); }
static inline double as_double(uint64_t u) { return __builtin_bit_cast(double, u); }

// ---- half types: held as their bits, widened to float32 before any arithmetic, rounded to nearest even when stored ----
static inline float from_bfloat16(uint16_t h) { return as_float((uint32_t)h << 16); }

static inline uint16_t to_bfloat16(float x) {
    const uint32_t u = bits(x), rounded = u + 0x7fffu + ((u >> 16) & 1u), kept = x != x ? 0x7fc00000u : rounded;
    return (uint16_t)(kept >> 16);
}

static inline float from_float16(uint16_t h) {
    const uint32_t magnitude = (uint32_t)(h & 0x7fff) << 13, sign = (uint32_t)(h & 0x8000) << 16;
    const uint32_t scaled = bits(as_float(magnitude) * 0x1p112f);  // exact, subnormals too
    const uint32_t finite = magnitude >= (0x7c00u << 13) ? magnitude | 0x7f800000u : scaled;
    return as_float(sign | finite);
}

static inline uint16_t to_float16(float x) {
    const uint32_t u = bits(x), sign = (u >> 16) & 0x8000u, magnitude = u & 0x7fffffffu;
    const uint32_t subnormal = bits(as_float(magnitude) + 0.5f) - 0x3f000000u;  // the addition rounds to 2^-24
    const uint32_t normal = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
    const uint32_t small = magnitude < 0x38800000u ? subnormal : normal;
    const uint32_t finite = magnitude >= 0x47800000u ? 0x7c00u : small;
    return (uint16_t)(sign | (magnitude > 0x7f800000u ? 0x7e00u : finite));
}

// ---- floats to integers ----
// Without traps GCC takes (float)(int32_t)x for trunc(x), which is another number for -0.5, NaN and what int32_t can't hold.
#if defined(__clang__)
template <class I, class F> static inline I to_int(F x) { return (I)x; }
#elif __GNUC__ >= 12
template <class I, class F> static inline I to_int(F x) { return __builtin_assoc_barrier((I)x); }
#else
template <class I, class F> static inline I to_int(F x) { I i = (I)x; __asm__("" : "+r"(i)); return i; }
#endif

// ---- integers: arithmetic wraps, division by zero sets `fault` and goes on with a divisor that is safe ----
template <class T> struct Unsigned { using type = uint64_t; };
template <> struct Unsigned<int32_t> { using type = uint32_t; };
template <> struct Unsigned<uint32_t> { using type = uint32_t; };
template <> struct Unsigned<int16_t> { using type = uint16_t; };
template <> struct Unsigned<uint16_t> { using type = uint16_t; };
template <> struct Unsigned<int8_t> { using type = uint8_t; };
template <> struct Unsigned<uint8_t> { using type = uint8_t; };

template <class T> static inline T add(T a, T b) { using U = typename Unsigned<T>::type; return (T)(U)((U)a + (U)b); }
template <class T> static inline T sub(T a, T b) { using U = typename Unsigned<T>::type; return (T)(U)((U)a - (U)b); }
template <class T> static inline T mul(T a, T b) { using U = typename Unsigned<T>::type; return (T)(U)(1u * (U)a * (U)b); }
template <class T> static inline T neg(T a) { return sub((T)0, a); }
template <class T> static inline T abs(T a) { return a < (T)0 ? neg(a) : a; }
template <class T> static inline T shl(T a, T b) { using U = typename Unsigned<T>::type; return (T)(U)((uint64_t)(U)a << b); }
template <class T> static inline T shr(T a, T b) { return (T)(a >> b); }

template <class T> static inline bool minus_one(T b) { return (T)-1 < (T)0 && b == (T)-1; }  // the lowest value / -1 would trap
template <class T> static inline T safe_divisor(T b) { return (b == 0) | minus_one(b) ? (T)1 : b; }

template <class T> static inline T truncdiv(T a, T b, int& fault) {
    fault |= b == 0 ? DIVISION_BY_ZERO : 0;
    const T q = (T)(a / safe_divisor(b));
    return minus_one(b) ? neg(q) : q;
}
template <class T> static inline T fmod(T a, T b, int& fault) {  // the sign of the dividend
    fault |= b == 0 ? DIVISION_BY_ZERO : 0;
    return (T)(a % safe_divisor(b));
}
template <class T> static inline T mod(T a, T b, int& fault) {  // the sign of the divisor, as Python
    const T r = fmod(a, b, fault);
    return (r != 0) & ((r < 0) != (b < 0)) ? add(r, b) : r;
}
template <class T> static inline T floordiv(T a, T b, int& fault) {  // towards minus infinity, as Python
    const T q = truncdiv(a, b, fault), r = (T)(a % safe_divisor(b));
    return (r != 0) & ((r < 0) != (b < 0)) ? (T)(q - 1) : q;
}

// Random bits: word 0 of Philox4x32-10's block number `counter` under the key `seed` (Salmon et al., 2011).
static inline int64_t philox(int64_t seed, int64_t counter) {
    const uint64_t low = 0xffffffffu;
    uint64_t k0 = (uint64_t)seed & low, k1 = (uint64_t)seed >> 32;
    uint64_t c0 = (uint64_t)counter & low, c1 = (uint64_t)counter >> 32, c2 = 0, c3 = 0;
    for (int round = 0; round < 10; ++round) {
        const uint64_t a = c0 * 0xd2511f53u, b = c2 * 0xcd9e8d57u;
        c0 = (b >> 32) ^ c1 ^ k0, c1 = b & low, c2 = (a >> 32) ^ c3 ^ k1, c3 = a & low;
        k0 = (k0 + 0x9e3779b9u) & low, k1 = (k1 + 0xbb67ae85u) & low;
    }
    return (int64_t)c0;
}

// Index arithmetic: the divisor is known positive, the dividend is not known to be.
static inline int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b < 0); }
static inline int64_t floor_mod(int64_t a, int64_t b) { const int64_t r = a % b; return r < 0 ? r + b : r; }

// An index read from memory: out of range it sets `fault` and becomes 0.
static inline int64_t checked(int64_t i, int64_t size, int& fault) {
    const bool bad = (uint64_t)i >= (uint64_t)size;
    fault |= bad ? INDEX_OUT_OF_RANGE : 0;
    return bad ? 0 : i;
}
static inline bool checked(bool inside, int& fault) {
    fault |= inside ? 0 : INDEX_OUT_OF_RANGE;
    return inside;
}
static inline int64_t clamped(int64_t i, int64_t size) { return (uint64_t)i >= (uint64_t)size ? 0 : i; }

// ---- choice: NaN if either is NaN (torch's maximum), or the other if one is NaN (fmax) ----
template <class T> static inline T maximum(T a, T b) { return (a > b) | (a != a) ? a : b; }
template <class T> static inline T minimum(T a, T b) { return (a < b) | (a != a) ? a : b; }
template <class T> static inline T fmax(T a, T b) { return (a > b) | (b != b) ? a : b; }
template <class T> static inline T fmin(T a, T b) { return (a < b) | (b != b) ? a : b; }
static inline bool signbit(float x) { return bits(x) >> 31; }
static inline bool signbit(double x) { return bits(x) >> 63; }

// ---- transposing a block: tile[c*N + r] = from[r*step + c] for r < rows, c < columns; as many at `ahead` are asked for ----
template <int BYTES> struct Bits;  // as what elements of so many bytes move
template <> struct Bits<1> { using type = uint8_t; };
template <> struct Bits<2> { using type = uint16_t; };
template <> struct Bits<4> { using type = uint32_t; };
template <> struct Bits<8> { using type = uint64_t; };

#if defined(__clang__) || __GNUC__ >= 12
#ifdef __AVX512F__
constexpr int WIDE = 64;  // bytes of a row of a square of elements of four bytes or eight
#else
constexpr int WIDE = 16;
#endif
template <class U> constexpr int64_t side_of_square = (sizeof(U) < 4 ? 16 : WIDE) / sizeof(U);
template <int N, class U> struct Row { typedef U type __attribute__((vector_size(N * sizeof(U)), aligned(sizeof(U)), may_alias)); };
template <int... I> struct Places {};
template <int N, int... I> struct PlacesUpTo : PlacesUpTo<N - 1, N - 1, I...> {};
template <int... I> struct PlacesUpTo<0, I...> : Places<I...> {};

// The elements of a and b in turns, from a place on.
template <int N, int FIRST, class V, int... I> static inline V interleaved(V a, V b, const Places<I...>&) {
    return __builtin_shufflevector(a, b, (I % 2 * N + I / 2 + FIRST)...);
}

// A square in registers: in each of log2(N) rounds row r and row r + N/2 are interleaved.
template <int N, class U> __attribute__((always_inline)) static inline void transpose_square(U* tile, int64_t tile_step, const U* from, int64_t step) {
    using V = typename Row<N, U>::type;
    V row[N], next[N];
    for (int r = 0; r < N; ++r) row[r] = *(const V*)(from + r * step);
    #pragma GCC unroll 4
    for (int round = 1; round < N; round *= 2) {
        #pragma GCC unroll 8
        for (int r = 0; r < N / 2; ++r) {
            next[2 * r] = interleaved<N, 0>(row[r], row[r + N / 2], PlacesUpTo<N>());
            next[2 * r + 1] = interleaved<N, N / 2>(row[r], row[r + N / 2], PlacesUpTo<N>());
        }
        #pragma GCC unroll 16
        for (int r = 0; r < N; ++r) row[r] = next[r];
    }
    for (int r = 0; r < N; ++r) *(V*)(tile + r * tile_step) = row[r];
}
#else
template <class U> constexpr int64_t side_of_square = 16 / sizeof(U);
template <int N, class U> static inline void transpose_square(U* tile, int64_t tile_step, const U* from, int64_t step) {
    for (int r = 0; r < N; ++r)
        for (int c = 0; c < N; ++c) tile[c * tile_step + r] = from[r * step + c];
}
#endif

// All squares of a side in the rows [r0, r1) and columns [c0, c1).
template <int N, int SIDE, class U>
__attribute__((always_inline)) static inline void transpose_squares(U* tile, const U* from, int64_t step, int64_t r0, int64_t r1, int64_t c0, int64_t c1) {
    for (int64_t r = r0; r < r1; r += SIDE)
        for (int64_t c = c0; c < c1; c += SIDE) transpose_square<SIDE>(tile + c * N + r, (int64_t)N, from + r * step + c, step);
}

template <int N, class T>
__attribute__((always_inline)) static inline void transpose_part(T* tile, const T* from, const T* ahead, int64_t step, int64_t rows, int64_t columns) {
    using U = typename Bits<sizeof(T)>::type;
    constexpr int64_t wide = side_of_square<U>, narrow = 16 / sizeof(U);
    const int64_t r0 = rows & -wide, c0 = columns & -wide, r1 = rows & -narrow, c1 = columns & -narrow;
    for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < columns; c += 64 / sizeof(T)) __builtin_prefetch(ahead + r * step + c, 0, 2);
    transpose_squares<N, wide>((U*)tile, (const U*)from, step, 0, r0, 0, c0);
    if (narrow < wide) {
        transpose_squares<N, narrow>((U*)tile, (const U*)from, step, 0, r0, c0, c1);
        transpose_squares<N, narrow>((U*)tile, (const U*)from, step, r0, r1, 0, c1);
    }
    for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = r < r1 ? c1 : 0; c < columns; ++c) tile[c * N + r] = from[r * step + c];
}

// The loops over a whole block have numbers for bounds, which unrolls them: a quarter of the time of a kernel bound by memory.
template <int N, int M, class T>
static inline void transpose(T* tile, const T* from, const T* ahead, int64_t step, int64_t rows, int64_t columns) {
    if (rows == N && columns == M) transpose_part<N>(tile, from, ahead, step, N, M);
    else transpose_part<N>(tile, from, ahead, step, rows, columns);
}

}  // namespace tc

#pragma omp declare reduction(maximum : float, double : omp_out = tc::maximum(omp_out, omp_in)) initializer(omp_priv = omp_orig)
#pragma omp declare reduction(minimum : float, double : omp_out = tc::minimum(omp_out, omp_in)) initializer(omp_priv = omp_orig)
