#ifndef TURNS
#define TURNS 1
#endif
template <typename T> struct Element {
    const T* at;
    __device__ operator T() const { return T(0); }
    __device__ const T* operator&() const { return at; }
    template <typename V> __device__ void operator=(V) const {}
};
template <typename T, bool READ> struct Ahead {
    const T* at;
    unsigned* bits;
    __device__ operator const T*() const { return at; }
    template <typename I> __device__ Ahead operator+(I n) const { return {at + n, bits}; }
    template <typename I> __device__ Element<T> operator[](I n) const {
        unsigned read = 0;
        if (READ && sizeof(T) == 4) asm volatile("ld.global.b32 %0, [%1];" : "=r"(read) : "l"(at + n));
        *bits ^= read;
        return {at + n};
    }
};
// -- a kernel, whose names stand in capitals
#if TURNS > 1
TEMPLATE __device__ __forceinline__ void NAME_ahead(AHEAD, unsigned block_of_x, unsigned blocks_of_x) WORK
#endif
TEMPLATE __device__ __forceinline__ void NAME_turn(TAKEN, unsigned block_of_x, unsigned blocks_of_x) WORK
TEMPLATE FIRST(TAKEN, unsigned blocks_of_x) {
#if TURNS > 1
    unsigned read[TURNS][COUNT] = {};  // a number is waited for where it is used, so not before the end
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) if (blockIdx.x * TURNS + turn < blocks_of_x)
        NAME_aheadTYPES(BARE, blockIdx.x * TURNS + turn, blocks_of_x);
#endif
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) if (blockIdx.x * TURNS + turn < blocks_of_x)
        NAME_turnTYPES(GIVEN, blockIdx.x * TURNS + turn, blocks_of_x);
#if TURNS > 1
    unsigned all = 0;
#pragma unroll
    for (int i = 0; i < TURNS * COUNT; i++) all ^= read[i / COUNT][i % COUNT];
    if (all == 1 && blocks_of_x == ~0u) __trap();  // never
#endif
}
