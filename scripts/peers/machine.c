/* What this machine can do at most, for scripts/bench-peers: fused multiply-adds in single precision from registers, and
 * reads from memory, each on as many threads as the first argument says.
 * gcc -O3 -march=native -fopenmp machine.c */
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>

#if defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX__)
#define LANES 8
#else
#define LANES 4
#endif

typedef float vec __attribute__((vector_size(LANES * sizeof(float))));
enum { CHAINS = 12, ROUNDS = 2000000 };
static const size_t BYTES = (size_t)256 << 20;

/* Chains enough to hide the latency of an addition. */
static float multiply_adds(void) {
    vec sum[CHAINS], a, b;
    for (int l = 0; l < LANES; l++) a[l] = 1.0f - 1e-6f * l, b[l] = 1e-6f * l;
    for (int c = 0; c < CHAINS; c++) sum[c] = a * (float)c;
    for (int r = 0; r < ROUNDS; r++)
#pragma GCC unroll 16
        for (int c = 0; c < CHAINS; c++) sum[c] = sum[c] * a + b;
    float all = 0;
    for (int c = 0; c < CHAINS; c++)
        for (int l = 0; l < LANES; l++) all += sum[c][l];
    return all;
}

/* From several places at once, which is faster than from one. */
static float reads(const vec *from, size_t n) {
    enum { PLACES = 8 };
    vec sum[PLACES] = {{0}};
    size_t part = n / PLACES;
    for (size_t i = 0; i < part; i++)
#pragma GCC unroll 8
        for (int c = 0; c < PLACES; c++) sum[c] += from[c * part + i];
    float all = 0;
    for (int c = 0; c < PLACES; c++)
        for (int l = 0; l < LANES; l++) all += sum[c][l];
    return all;
}

int main(int argc, char **argv) {
    int threads = argc > 1 ? atoi(argv[1]) : 1;
    omp_set_num_threads(threads);
    size_t n = BYTES / sizeof(vec);
    vec *memory = aligned_alloc(64, BYTES);
    if (!memory) return 1;
    for (size_t i = 0; i < n; i++)
        for (int l = 0; l < LANES; l++) memory[i][l] = (float)(i % 17);
    volatile float sink = 0;
    double flops = 0, bytes = 0;
    for (int turn = 0; turn < 7; turn++) {
        double start = omp_get_wtime();
#pragma omp parallel
        sink = multiply_adds();
        double rate = 2.0 * LANES * CHAINS * ROUNDS * threads / (omp_get_wtime() - start);
        if (rate > flops) flops = rate;
        start = omp_get_wtime();
#pragma omp parallel
        {
            size_t part = n / threads, first = part * omp_get_thread_num();
            sink = reads(memory + first, part);
        }
        rate = BYTES / (omp_get_wtime() - start);
        if (rate > bytes) bytes = rate;
    }
    (void)sink;
    printf("%.1f %.1f\n", flops / 1e9, bytes / 1e9);
    return 0;
}
