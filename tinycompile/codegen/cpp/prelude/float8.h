// float8 as torch has it: held as its bits, widened to float32 before any arithmetic, rounded to nearest even when stored.
// float8_e4m3fn has no infinities: what passes 464 is `over`, NaN or the largest number. float8_e5m2 is half a float16.
namespace tc {

static inline float from_float8_e5m2(uint8_t h) { return from_float16((uint16_t)(h << 8)); }

static inline uint8_t to_float8_e5m2(float x) {
    const uint32_t u = bits(x), sign = (u >> 24) & 0x80u, magnitude = u & 0x7fffffffu;
    const uint32_t subnormal = bits(as_float(magnitude) + 128.0f) - 0x43000000u;  // the addition rounds to 2^-16
    const uint32_t normal = (magnitude - (112u << 23) + 0xfffffu + ((magnitude >> 21) & 1u)) >> 21;
    const uint32_t small = magnitude < 0x38800000u ? subnormal : normal;
    const uint32_t finite = magnitude >= 0x47800000u ? 0x7cu : small;
    return (uint8_t)(sign | (magnitude > 0x7f800000u ? 0x7fu : finite));
}

static inline float from_float8_e4m3fn(uint8_t h) {
    const uint32_t magnitude = (uint32_t)(h & 0x7f) << 20, sign = (uint32_t)(h & 0x80) << 24;
    const uint32_t scaled = bits(as_float(magnitude) * 0x1p120f);  // exact, subnormals too
    return as_float(sign | (magnitude == (0x7fu << 20) ? 0x7fc00000u : scaled));
}

static inline uint8_t to_float8_e4m3fn(float x, uint32_t over) {
    const uint32_t u = bits(x), sign = (u >> 24) & 0x80u, magnitude = u & 0x7fffffffu;
    const uint32_t subnormal = bits(as_float(magnitude) + 16384.0f) - 0x46800000u;  // the addition rounds to 2^-9
    const uint32_t normal = (magnitude - (120u << 23) + 0x7ffffu + ((magnitude >> 20) & 1u)) >> 20;
    const uint32_t small = magnitude < 0x3c800000u ? subnormal : normal;
    const uint32_t large = magnitude > 0x7f800000u ? 0x7fu : over;
    return (uint8_t)(sign | (magnitude > 0x43e80000u ? large : small));
}

}  // namespace tc
