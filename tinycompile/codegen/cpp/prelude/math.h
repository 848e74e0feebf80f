namespace tc {
#define TC_LIBM1(name) \
    static inline float name(float x) { return __builtin_##name##f(x); } \
    static inline double name(double x) { return __builtin_##name(x); }
#define TC_LIBM2(name) \
    static inline float name(float x, float y) { return __builtin_##name##f(x, y); } \
    static inline double name(double x, double y) { return __builtin_##name(x, y); }
TC_LIBM1(fabs) TC_LIBM1(sqrt) TC_LIBM1(floor) TC_LIBM1(ceil) TC_LIBM1(trunc)
TC_LIBM1(exp) TC_LIBM1(exp2) TC_LIBM1(expm1) TC_LIBM1(log) TC_LIBM1(log2) TC_LIBM1(log10) TC_LIBM1(log1p)
TC_LIBM1(sin) TC_LIBM1(cos) TC_LIBM1(tan) TC_LIBM1(asin) TC_LIBM1(acos) TC_LIBM1(atan) TC_LIBM1(sinh) TC_LIBM1(cosh)
TC_LIBM1(tanh) TC_LIBM1(asinh) TC_LIBM1(acosh) TC_LIBM1(atanh) TC_LIBM1(erf) TC_LIBM1(erfc) TC_LIBM1(lgamma)
TC_LIBM2(atan2) TC_LIBM2(pow) TC_LIBM2(fmod)
static inline float round(float x) { return __builtin_rintf(x); }
static inline double round(double x) { return __builtin_rint(x); }
static inline float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
static inline double fma(double a, double b, double c) { return __builtin_fma(a, b, c); }
static inline float sigmoid(float x) { return 1 / (1 + exp(-x)); }
static inline double sigmoid(double x) { return 1 / (1 + exp(-x)); }
}
