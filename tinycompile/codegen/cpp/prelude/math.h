// Elementary functions as branch-free scalar code that vectorises. Error bounds are in units in the last place of the exact value,
// over all finite arguments, as the tests measure them (with FMA; subnormal results may lose one more). NaN, infinities and signed
// zeros are as in C. Coefficients: near-minimax fits of the remainder that the comment names, made in 40-digit arithmetic.
namespace tc {

// a*b + c for polynomials and corrections: one rounding, or nearly so where the instruction is missing and the library's would be
// a slow call. `fused` has exactly one rounding everywhere.
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
static inline float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
static inline double fma(double a, double b, double c) { return __builtin_fma(a, b, c); }
static inline double minus_product(double z, double n, double p) { return __builtin_fma(-n, p, z); }
#else
static inline float fma(float a, float b, float c) { return (float)((double)a * b + c); }
static inline double fma(double a, double b, double c) { return a * b + c; }
// z - n*p for n*p near z: the product's rounding error by Dekker's (1971) splitting.
static inline double minus_product(double z, double n, double p) {
    const double cn = 134217729.0 * n, cp = 134217729.0 * p, nh = cn - (cn - n), ph = cp - (cp - p), nl = n - nh, pl = p - ph;
    const double product = n * p, error = ((nh * ph - product) + nh * pl + nl * ph) + nl * pl;
    return (z - product) - error;
}
#endif
static inline float fused(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
static inline double fused(double a, double b, double c) { return __builtin_fma(a, b, c); }

// c0 + c1*x + c2*x^2 + ...
template <class T> static inline T horner(T, T c) { return c; }
template <class T, class... C> static inline T horner(T x, T c, C... rest) { return fma(horner(x, rest...), x, c); }

#define TC_BUILTIN(name) \
    static inline float name(float x) { return __builtin_##name##f(x); } \
    static inline double name(double x) { return __builtin_##name(x); }
TC_BUILTIN(fabs) TC_BUILTIN(sqrt) TC_BUILTIN(floor) TC_BUILTIN(ceil) TC_BUILTIN(trunc)  // exact
TC_BUILTIN(lgamma) TC_BUILTIN(erfc)  // the C library's: one call an element
#define TC_DOUBLE(name) static inline double name(double x) { return __builtin_##name(x); }
TC_DOUBLE(exp2) TC_DOUBLE(log2) TC_DOUBLE(log10) TC_DOUBLE(log1p) TC_DOUBLE(tan) TC_DOUBLE(asin) TC_DOUBLE(acos)
TC_DOUBLE(atan) TC_DOUBLE(sinh) TC_DOUBLE(cosh) TC_DOUBLE(asinh) TC_DOUBLE(acosh) TC_DOUBLE(atanh) TC_DOUBLE(erf)
TC_DOUBLE(sin) TC_DOUBLE(cos)
static inline double pow(double x, double y) { return __builtin_pow(x, y); }
static inline double atan2(double y, double x) { return __builtin_atan2(y, x); }
static inline float fmod(float x, float y) { return __builtin_fmodf(x, y); }
static inline double fmod(double x, double y) { return __builtin_fmod(x, y); }
static inline float round(float x) { return __builtin_rintf(x); }  // half to even
static inline double round(double x) { return __builtin_rint(x); }
static inline float copysign(float x, float y) { return __builtin_copysignf(x, y); }
static inline double copysign(double x, double y) { return __builtin_copysign(x, y); }

// ---- exponentials ----

// 2^n as a value: for n in [-126, 127] (float) and [-1022, 1023] (double).
static inline float two_to(int32_t n) { return as_float((uint32_t)(n + 127) << 23); }
static inline double two_to_double(int32_t n) { return as_double((uint64_t)(int64_t)(n + 1023) << 52); }

// x*2^n for x near 1, n in [-250, 250] (float) or [-1100, 1100] (double): in two steps, so that subnormal and infinite results
// come out right.
static inline float scale(float x, int32_t n) {
    const int32_t half = n >> 1;
    return x * two_to(half) * two_to(n - half);
}
static inline double scale(double x, int32_t n) {
    const double second = n < 0 ? 0x1p-128 : 0x1p128;
    return x * two_to_double(n < 0 ? n + 128 : n - 128) * second;
}

// e^r - 1 for |r| <= ln(2)/2: r + r^2*p(r).
static inline float expm1_near(float r) {
    const float p = horner(r, 0.5f, 0.166665167f, 0.0416662022f, 0.00836908817f, 0.00139508303f);
    return fma(r * r, p, r);
}
static inline double expm1_near(double r) {
    const double p = horner(r, 0.5, 0.1666666666666667, 0.04166666666666667, 0.008333333333326058, 0.0013888888888883692,
        0.00019841269875091932, 2.4801587325741483e-05, 2.7557255056538237e-06, 2.7557273397693973e-07,
        2.5105359846830094e-08, 2.091478897260216e-09);
    return fma(r * r, p, r);
}

// The integer next to a*b, where it is below 2^21: adding 1.5*2^23 rounds, and leaves it in the low bits.
struct Rounded { float value; int32_t n; };
static inline Rounded rounded_product(float a, float b) {
    constexpr float SHIFT = 12582912.0f;
    const float t = fma(a, b, SHIFT);
    return {t - SHIFT, (int32_t)(bits(t) - bits(SHIFT))};
}

// x = n*ln(2) + r. ln(2) is split so that n times its high part is exact.
struct Reduced { int32_t n; float r; };
struct ReducedDouble { double n, r; };
static inline Reduced by_ln2(float x) {
    const Rounded d = rounded_product(x, 1.44269502f);
    return {d.n, fma(d.value, -1.42860682e-06f, fma(d.value, -0.693145752f, x))};
}
static inline ReducedDouble by_ln2(double x) {
    const double n = round(x * 1.4426950408889634);
    return {n, fma(n, -5.497923018708371e-14, fma(n, -0.6931471805598903, x))};
}

// Large results are chosen last: of two clamps GCC makes compares and masks, a dozen instructions.
static inline float exp(float x) {  // 1 ulp
    const Reduced d = by_ln2(x < -104.0f ? -104.0f : x);
    const float y = scale(1 + expm1_near(d.r), d.n);
    return x > 89.0f ? INF : y;
}
static inline double exp(double x) {  // 1 ulp
    const double low = x < -746.0 ? -746.0 : x, z = low > 710.0 ? 710.0 : low;
    const ReducedDouble d = by_ln2(z);
    return scale(1 + expm1_near(d.r), (int32_t)d.n);
}

static inline float exp2(float x) {  // 1 ulp; (2^r - 1)/r
    const float z = x < -150.0f ? -150.0f : x;
    const Rounded d = rounded_product(z, 1.0f);
    const float r = z - d.value, p = horner(r, 0.693147182f, 0.240226507f, 0.0555041097f, 0.00961803645f, 0.00133334298f,
        0.00015467366f, 1.53151941e-05f);
    const float y = scale(fma(r, p, 1.0f), d.n);
    return x > 129.0f ? INF : y;
}

// e^x - 1 for x in [-87, 88]: 2^n*(e^r - 1) + (2^n - 1).
static inline float expm1_bounded(float x) {
    const Reduced d = by_ln2(x);
    const float s = two_to(d.n);
    return fma(s, expm1_near(d.r), s - 1);
}
static inline double expm1_bounded(double x) {
    const ReducedDouble d = by_ln2(x);
    const double s = two_to_double((int32_t)d.n);
    return fma(s, expm1_near(d.r), s - 1);
}

static inline float expm1(float x) {  // 2 ulp; half of it at first, for 2^128 is none
    const Reduced d = by_ln2(x < -40.0f ? -40.0f : x);
    const float s = two_to(d.n - 1), y = 2 * fma(s, expm1_near(d.r), s - 0.5f);
    return x > 89.0f ? INF : fabs(x) < 0x1p-30f ? x : y;
}
static inline double expm1(double x) {  // 2 ulp
    const double low = x < -50.0 ? -50.0 : x, z = low > 50.0 ? 50.0 : low;
    const double small = expm1_bounded(z);
    return x > 50.0 ? exp(x) : x == 0 ? x : small;
}

static inline float sigmoid(float x) { return 1 / (1 + exp(-x)); }  // 3 ulp where e^-x is finite; 0 below
static inline double sigmoid(double x) { return 1 / (1 + exp(-x)); }  // 3 ulp

// ---- hyperbolic functions ----

// (e^2a - 1)/(e^2a + 1) where that is small, else 1 - 2/(e^2a + 1), which rounds once: at 9 the former is 1.
static inline float tanh(float x) {  // 3 ulp
    const float a = fabs(x), z = a > 10.0f ? 10.0f : a, t = expm1_bounded(z + z);
    const bool large = a > 0.6f;
    const float share = (large ? 2.0f : t) / (t + 2);
    return copysign(large ? 1 - share : share, x);
}
static inline double tanh(double x) {  // 3 ulp
    const double a = fabs(x), z = a > 20.0 ? 20.0 : a, t = expm1_bounded(z + z);
    const bool large = a > 0.6;
    const double share = (large ? 2.0 : t) / (t + 2);
    return copysign(large ? 1 - share : share, x);
}

static inline float sinh(float x) {  // 3 ulp; for large arguments e^a is the square of e^(a/2)
    const float a = fabs(x), z = a > 40.0f ? 40.0f : a, t = expm1_bounded(z), h = exp(0.5f * a);
    const float small = 0.5f * (t + t / (t + 1));
    return copysign(a > 40.0f ? h * 0.5f * h : small, x);
}
static inline float cosh(float x) {  // 3 ulp
    const float a = fabs(x), z = a > 40.0f ? 40.0f : a, e = exp(z), h = exp(0.5f * a);
    return a > 40.0f ? h * 0.5f * h : fma(0.5f, e, 0.5f / e);
}

// ---- logarithms ----

// x = m*2^e with m in [sqrt(1/2), sqrt(2)), for x positive, finite and normal.
static inline int32_t exponent(float x) { return (int32_t)(bits(x) - 0x3f3504f3u) >> 23; }
static inline float mantissa(float x, int32_t e) { return as_float(bits(x) - ((uint32_t)e << 23)); }

// log(1 + f) - f for f in [sqrt(1/2) - 1, sqrt(2) - 1]: -f^2/2 + f^3*p(f).
static inline float log1p_rest(float f) {
    const float p = horner(f, 0.333333105f, -0.249999851f, 0.200022757f, -0.166693315f, 0.142176569f, -0.123821981f,
        0.118787073f, -0.118058771f, 0.0692178905f);
    return f * f * fma(f, p, -0.5f);
}

// What every logarithm gives outside the positive finite numbers.
static inline float log_special(float x, float y) {
    return x > 0 ? (x == INF ? INF : y) : x == 0 ? -INF : __builtin_nanf("");
}

struct Split { float e, f; };  // x = 2^e * (1 + f)
static inline Split split(float x) {
    const bool tiny = x < 1.17549435e-38f;  // subnormals are scaled up first
    const float z = tiny ? x * 8388608.0f : x;
    const int32_t e = exponent(z);
    return {(float)(tiny ? e - 23 : e), mantissa(z, e) - 1};
}

static inline float log(float x) {  // 1 ulp
    const Split s = split(x);
    const float rest = fma(s.e, 1.42860682e-06f, log1p_rest(s.f));
    return log_special(x, fma(s.e, 0.693145752f, s.f + rest));
}
static inline float log2(float x) {  // 2 ulp; log2(e) is split, for its rounding would count
    const Split s = split(x);
    const float rest = log1p_rest(s.f), y = fma(rest, 1.44269502f, s.f * 1.92596303e-08f);
    return log_special(x, fma(s.f, 1.44269502f, y) + s.e);
}
static inline float log10(float x) {  // 2 ulp
    const Split s = split(x);
    const float rest = log1p_rest(s.f), y = fma(s.e, 4.60503898e-06f, fma(rest, 0.434294492f, s.f * -1.01021178e-08f));
    return log_special(x, fma(s.e, 0.301025391f, fma(s.f, 0.434294492f, y)));
}
static inline float log1p(float x) {  // 2 ulp; the rounding error of 1 + x goes into f
    const float u = 1 + x, lost = x >= 1 ? 1 - (u - x) : x - (u - 1);
    const int32_t e = exponent(u);
    const float f = fma(lost, two_to(e > 126 ? -126 : -e), mantissa(u, e) - 1), n = (float)e;
    const float rest = fma(n, 1.42860682e-06f, log1p_rest(f));
    return x == 0 ? x : log_special(u, fma(n, 0.693145752f, f + rest));
}

// 2*atanh(s) for s = (m - 1)/(m + 1), m in [sqrt(1/2), sqrt(2)]: 2s + s^3*p(s^2).
static inline double log_near(double s) {
    const double z = s * s;
    const double p = horner(z, 0.6666666666666666, 0.40000000000000885, 0.28571428570799784, 0.22222222392581045,
        0.18181795547521137, 0.15386244737621665, 0.13268638369266825, 0.13088034850927555);
    return s * z * p;
}
struct SplitDouble { double e, f; };
static inline SplitDouble split(double x) {
    const bool tiny = x < 2.2250738585072014e-308;
    const uint64_t u = bits(tiny ? x * 18014398509481984.0 : x) - 0x3fe6a09e667f3bcdull;
    const int32_t e = (int32_t)(u >> 32) >> 20;
    const double m = as_double((u & 0xfffffffffffffull) + 0x3fe6a09e667f3bcdull);
    return {(double)(tiny ? e - 54 : e), m - 1};
}
static inline double log(double x) {  // 1 ulp: f - f^2/2 + s*(f^2/2 + R)
    const SplitDouble d = split(x);
    const double s = d.f / (2 + d.f), half = 0.5 * d.f * d.f;
    const double tail = fma(s, half, fma(d.e, 5.497923018708371e-14, log_near(s)));
    const double y = fma(d.e, 0.6931471805598903, d.f - (half - tail));
    return x > 0 ? (x == (double)INF ? (double)INF : y) : x == 0 ? -(double)INF : __builtin_nan("");
}

static inline float asinh(float x) {  // 3 ulp
    const float a = fabs(x), z = a > 1e18f ? 1e18f : a, s = z * z;
    const float small = log1p(z + s / (1 + sqrt(1 + s))), large = log(a) + 0.693147182f;
    return copysign(a > 1e18f ? large : small, x);
}
static inline float acosh(float x) {  // 3 ulp
    const float z = x > 1e18f ? 1e18f : x, t = z - 1;
    const float small = log1p(t + sqrt(t * t + (t + t)));
    const float large = log(x) + 0.693147182f;
    return x < 1 ? __builtin_nanf("") : x > 1e18f ? large : small;
}
static inline float atanh(float x) {  // 3 ulp
    const float a = fabs(x);
    return copysign(0.5f * log1p((a + a) / (1 - a)), x);
}

// ---- trigonometric functions ----

// x = n*pi/2 + r, |r| <= pi/4, in float64: exact enough for every float32 up to 2^48. `quadrant` is n mod 4. Beyond, `fault` asks for
// eager: no such angle means anything, but torch's answer is the right one to give.
struct Angle { float r; uint32_t quadrant; };
static inline Angle by_half_pi(float x, int& fault) {
    constexpr double SHIFT = 6755399441055744.0;  // 1.5*2^52: adding it rounds to an integer, held in the low bits
    const double z = x, t = z * 0.6366197723675814 + SHIFT, n = t - SHIFT;
    fault |= (fabs(x) > 2.8e14f) & (fabs(x) < INF) ? ARGUMENT_TOO_LARGE : 0;
    const double r = fma(n, -6.123233995736766e-17, minus_product(z, n, 1.5707963267948966));
    return {(float)r, (uint32_t)bits(t) & 3u};
}
static inline float sin_near(float r) {  // sin(r) = r + r^3*p(r^2)
    const float z = r * r;
    return fma(r * z, horner(z, -0.166666672f, 0.00833332911f, -0.000198392721f, 2.71770887e-06f), r);
}
static inline float cos_near(float r) {  // cos(r) = 1 - r^2/2 + r^4*p(r^2)
    const float z = r * r;
    return fma(z * z, horner(z, 0.0416666679f, -0.00138888834f, 2.47994521e-05f, -2.72046435e-07f), fma(z, -0.5f, 1.0f));
}
static inline float sin_of(Angle a, uint32_t quarter) {  // quarter 1 makes it the cosine
    const uint32_t q = a.quadrant + quarter;
    const float y = q & 1 ? cos_near(a.r) : sin_near(a.r);
    return as_float(bits(y) ^ ((q & 2u) << 30));
}
static inline float sin(float x, int& fault) { return x == 0 ? x : sin_of(by_half_pi(x, fault), 0); }  // 2 ulp
static inline float cos(float x, int& fault) { return sin_of(by_half_pi(x, fault), 1); }  // 2 ulp
static inline float tan(float x, int& fault) {  // 4 ulp
    const Angle a = by_half_pi(x, fault);
    const float s = sin_near(a.r), c = cos_near(a.r);
    const float y = a.quadrant & 1 ? -c / s : s / c;
    return x == 0 ? x : y;
}

static inline float atan_near(float x) {  // |x| <= 1: x + x^3*p(x^2)
    const float z = x * x;
    const float p = horner(z, -0.333332986f, 0.199985474f, -0.142642394f, 0.109521754f, -0.0840341896f, 0.0579570569f,
        -0.0311773121f, 0.0109143201f, -0.00179355801f);
    return fma(x * z, p, x);
}
static inline float atan(float x) {  // 2 ulp
    const float a = fabs(x), near = atan_near(a > 1 ? 1 / a : a);
    return copysign(a > 1 ? 1.57079637f - near - 4.37113883e-08f : near, x);
}
static inline float atan2(float y, float x) {  // 3 ulp
    const float a = fabs(x), b = fabs(y), low = a < b ? a : b, high = a < b ? b : a;
    const float q = high == 0 ? 0 : low == INF ? 1 : low / high, near = atan_near(q);
    const float first = b > a ? 1.57079637f - near - 4.37113883e-08f : near;
    const float half = signbit(x) ? 3.14159274f - first - 8.74227766e-08f : first;
    return x != x ? x : y != y ? y : copysign(half, y);
}
static inline float asin_near(float x) {  // |x| <= 1/2: x + x^3*p(x^2)
    const float z = x * x;
    return fma(x * z, horner(z, 0.166666597f, 0.0750051215f, 0.0445154719f, 0.031819813f, 0.0143938288f, 0.0375781246f), x);
}
static inline float asin(float x) {  // 3 ulp; beyond 1/2 through the half angle
    const float a = fabs(x), h = sqrt((1 - a) * 0.5f), near = asin_near(a > 0.5f ? h : a);
    return copysign(a > 0.5f ? fma(-2.0f, near, 1.57079637f) - 4.37113883e-08f : near, x);
}
static inline float acos(float x) {  // 2 ulp
    const float a = fabs(x), h = sqrt((1 - a) * 0.5f), near = asin_near(a > 0.5f ? h : x);
    const float middle = 1.57079637f - (near - -4.37113883e-08f), outer = near + near;
    return a > 0.5f ? (x < 0 ? 3.14159274f - (outer + 8.74227766e-08f) : outer) : middle;
}

// ---- error function ----

static inline float erf(float x) {  // 4 ulp near 0, 2 beyond 0.1: 1 - e^(a*q(a)), where a*q(a) = log(erfc(a))
    const float a = fabs(x), z = a > 3.95f ? 3.95f : a;
    const float q = horner(z, -1.12837923f, -0.636619389f, -0.102777831f, 0.0191530623f, 0.000160399708f, -0.00166703144f,
        0.000632839161f, -0.000117641954f, 9.25634595e-06f);
    return copysign(-expm1_bounded(z * q), x);
}

// ---- power, in float64 ----

static inline float pow(float x, float y) {  // 1 ulp
    const double a = fabs((double)x), b = y;
    const SplitDouble d = split(a);
    const double s = d.f / (2 + d.f), log2_m = fma(log_near(s), 1.4426950408889634, s * 2.8853900817779268) + d.e;
    const double log2_a = a == 0 ? -(double)INF : a < (double)INF ? log2_m : a;
    const double e = b * log2_a, low = e < -300 ? -300 : e, z = low > 300 ? 300 : low, n = round(z), r = z - n;
    const double p = horner(r, 0.6931471805599453, 0.24022650695811423, 0.05550410866475944, 0.009618129160027376,
        0.001333355817943667, 0.0001540345525379509, 1.5252686469189063e-05, 1.3255384208086413e-06, 1.0203221420017349e-07);
    const double size = fma(r, p, 1.0) * two_to_double((int32_t)n);
    const bool whole = trunc(b) == b, odd = whole & (trunc(b * 0.5) != b * 0.5);
    const double result = signbit(x) & odd ? -size : size;
    const bool invalid = (x < 0) & !whole & (a < (double)INF) & (a > 0);
    const bool one = (y == 0) | (x == 1) | ((a == 1) & (fabs(b) == (double)INF));
    return one ? 1.0f : invalid ? __builtin_nanf("") : (float)result;
}

}  // namespace tc
