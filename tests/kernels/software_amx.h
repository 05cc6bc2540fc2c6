// The matrix unit of `kernels/amx.h` in plain C++, as Intel's manual defines it: for processors that have none.

#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace lmnb::amx {

struct Tiles {
    uint8_t rows[8];
    uint8_t bytes[8][16][64];
};
inline thread_local Tiles tiles;

inline bool permitted() { return true; }
inline void configure(const uint8_t (&rows)[8]) {
    std::memset(&tiles, 0, sizeof tiles);
    std::memcpy(tiles.rows, rows, 8);
}
inline void release() { std::memset(&tiles, 0xFF, sizeof tiles); }  // NaN, for whoever forgets to configure

template <int Tile>
inline void zero() {
    std::memset(tiles.bytes[Tile], 0, sizeof tiles.bytes[Tile]);
}
template <int Tile>
inline void load(const void* at, int64_t row_bytes) {
    zero<Tile>();
    for (int row = 0; row < tiles.rows[Tile]; row++)
        std::memcpy(tiles.bytes[Tile][row], static_cast<const uint8_t*>(at) + row * row_bytes, 64);
}
template <int Tile>
inline void store(void* at, int64_t row_bytes) {
    for (int row = 0; row < tiles.rows[Tile]; row++)
        std::memcpy(static_cast<uint8_t*>(at) + row * row_bytes, tiles.bytes[Tile][row], 64);
}

inline float flushed(float value) {
    return std::fpclassify(value) == FP_SUBNORMAL ? std::copysign(0.0f, value) : value;
}
inline float number(const uint8_t* row, int index) {
    uint16_t half;
    std::memcpy(&half, row + 2 * index, 2);
    const uint32_t bits = static_cast<uint32_t>(half) << 16;
    float value;
    std::memcpy(&value, &bits, 4);
    return flushed(value);
}

template <int Sum, int A, int B>
inline void multiply() {
    for (int m = 0; m < tiles.rows[Sum]; m++)
        for (int n = 0; n < 16; n++) {
            float even = 0.0f, odd = 0.0f, sum;
            for (int k = 0; k < tiles.rows[B]; k++) {
                const uint8_t *const a = tiles.bytes[A][m], *const b = tiles.bytes[B][k];
                even = flushed(std::fma(number(a, 2 * k), number(b, 2 * n), even));
                odd = flushed(std::fma(number(a, 2 * k + 1), number(b, 2 * n + 1), odd));
            }
            std::memcpy(&sum, tiles.bytes[Sum][m] + 4 * n, 4);
            sum = flushed(flushed(sum) + flushed(even + odd));
            std::memcpy(tiles.bytes[Sum][m] + 4 * n, &sum, 4);
        }
}

}  // namespace lmnb::amx
