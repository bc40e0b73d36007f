// Instructions of sm_90a by hand, and matrix products through the language's own fragments.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <mma.h>
#include <stdint.h>

static __device__ uint32_t address(const void *shared) { return (uint32_t)__cvta_generic_to_shared(shared); }

static __device__ void first_thread_makes(uint64_t *bar) {
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(address(bar)));
        asm volatile("fence.mbarrier_init.release.cluster;");
        asm volatile("fence.proxy.async.shared::cta;");
    }
}

static __device__ void expect(uint64_t *bar, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address(bar)), "r"(bytes) : "memory");
}

static __device__ void wait(uint64_t *bar, int parity) {
    uint32_t done = 0;
    while (!done)
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                     : "=r"(done)
                     : "r"(address(bar)), "r"(parity)
                     : "memory");
}

static __device__ void meet() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// A ring of two bulk loads; the sum is stored in bulk, and added in bulk to what is there.
extern "C" __global__ void bulk(const float *x, float *y, int n) {
    __shared__ alignas(128) float part[2][256];
    __shared__ alignas(8) uint64_t bars[2];
    first_thread_makes(&bars[0]);
    first_thread_makes(&bars[1]);
    __syncthreads();
    auto load = [&](int at) {
        expect(&bars[at & 1], 1024);
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 1024, [%2];" ::"r"(
                         address(part[at & 1])),
                     "l"(x + 256 * at), "r"(address(&bars[at & 1]))
                     : "memory");
    };
    if (threadIdx.x == 0)
        for (int at = 0; at < 2 && at < n; at++)
            load(at);
    float sum = 0;
    for (int at = 0; at < n; at++) {
        wait(&bars[at & 1], at >> 1 & 1);
        sum += part[at & 1][threadIdx.x];
        __syncthreads();
        if (threadIdx.x == 0 && at + 2 < n)
            load(at + 2);
    }
    part[0][threadIdx.x] = sum;
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    if (threadIdx.x == 0) {
        asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 1024;" ::"l"(y), "r"(address(part[0])) : "memory");
        asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], 1024;" ::"l"(y + 256), "r"(address(part[0])) : "memory");
        asm volatile("cp.async.bulk.commit_group;");
        asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    }
}

// One block loads for four.
extern "C" __global__ void __cluster_dims__(4, 1, 1) multicast(const int *x, int *y) {
    __shared__ alignas(128) int part[128];
    __shared__ alignas(8) uint64_t bar;
    uint32_t rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    first_thread_makes(&bar);
    if (threadIdx.x == 0)
        expect(&bar, 512);
    meet();
    if (rank == 0 && threadIdx.x == 0)
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], 512, [%2], %3;" ::"r"(
                         address(part)),
                     "l"(x + blockIdx.x / 4 * 128), "r"(address(&bar)), "h"((short)15)
                     : "memory");
    wait(&bar, 0);
    y[blockIdx.x * 128 + threadIdx.x] = part[threadIdx.x] * (rank + 1);
    meet();
}

// Each block writes into the other's memory, which counts the bytes.
extern "C" __global__ void __cluster_dims__(2, 1, 1) across(const int *x, int *y) {
    __shared__ alignas(16) int part[64];
    __shared__ alignas(8) uint64_t bar;
    uint32_t rank, to, counter;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    first_thread_makes(&bar);
    if (threadIdx.x == 0)
        expect(&bar, 256);
    meet();
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(to) : "r"(address(&part[threadIdx.x])), "r"(rank ^ 1));
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(counter) : "r"(address(&bar)), "r"(rank ^ 1));
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %1, [%2];" ::"r"(to), "r"(x[blockIdx.x * 64 + threadIdx.x] + 1000),
                 "r"(counter)
                 : "memory");
    wait(&bar, 0);
    y[blockIdx.x * 64 + threadIdx.x] = part[63 - threadIdx.x];
}

// A tile of 64 x 64 for four warps, through padded shared memory.
extern "C" __global__ void fragments(const half *a, const half *b, half *c, int m, int n, int k) {
    using namespace nvcuda;
    __shared__ half left[64 * 24], right[16 * 72];
    int warp = threadIdx.x / 32, row = blockIdx.x * 64;
    wmma::fragment<wmma::accumulator, 16, 16, 16, half> sums[4];
    for (auto &sum : sums)
        wmma::fill_fragment(sum, __float2half(0));
    for (int at = 0; at < k; at += 16) {
        for (int i = threadIdx.x; i < 64 * 16; i += blockDim.x) {
            left[i / 16 * 24 + i % 16] = a[(row + i / 16) * k + at + i % 16];
            right[i / 64 * 72 + i % 64] = b[(at + i / 64) * n + i % 64];
        }
        __syncthreads();
        wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> x;
        wmma::load_matrix_sync(x, left + warp * 16 * 24, 24);
        for (int part = 0; part < 4; part++) {
            wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::row_major> y;
            wmma::load_matrix_sync(y, right + 16 * part, 72);
            wmma::mma_sync(sums[part], x, y, sums[part]);
        }
        __syncthreads();
    }
    for (int part = 0; part < 4; part++) {
        for (int i = 0; i < sums[part].num_elements; i++)
            sums[part].x[i] = sums[part].x[i] + __float2half(1);
        wmma::store_matrix_sync(c + (row + 16 * warp) * n + 16 * part, sums[part], n, wmma::mem_row_major);
    }
}

// Loads, exchanges and compares 128 bits at once.
extern "C" __global__ void wide(const ulonglong2 *x, ulonglong2 *y) {
    unsigned long long a, b, c, d;
    const ulonglong2 *from = x + threadIdx.x;
    ulonglong2 *to = y + threadIdx.x;
    asm volatile("{ .reg .b128 q; ld.global.b128 q, [%2]; mov.b128 {%0, %1}, q; }" : "=l"(a), "=l"(b) : "l"(from));
    asm volatile("{ .reg .b128 q, r; mov.b128 q, {%3, %4}; atom.global.exch.b128 r, [%2], q; mov.b128 {%0, %1}, r; }"
                 : "=l"(c), "=l"(d)
                 : "l"(to), "l"(a + 1), "l"(b + 2)
                 : "memory");
    // The second thread of each pair expects what is not there.
    unsigned long long expected = a + 1 + threadIdx.x % 2;
    asm volatile("{ .reg .b128 e, n, r; mov.b128 e, {%1, %2}; mov.b128 n, {%3, %4}; atom.global.cas.b128 r, [%0], e, n; }" ::"l"(to), "l"(expected),
                 "l"(b + 2), "l"(c), "l"(d ^ b)
                 : "memory");
}
