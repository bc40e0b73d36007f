// Threads that work together: tiles and groups of a warp, the library's barriers and pipelines.

#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>
#include <cuda/barrier>
#include <cuda/pipeline>

namespace cg = cooperative_groups;

// Tiles of several sizes share one instruction, each lane with its own mask.
extern "C" __global__ void tiles(const int *x, int *y) {
    auto block = cg::this_thread_block();
    auto whole = cg::tiled_partition<32>(block);
    auto sixteen = cg::tiled_partition<16>(block);
    auto four = cg::tiled_partition<4>(block);
    int i = blockIdx.x * blockDim.x + threadIdx.x, value = x[i];
    int total = value, least = value;
    for (int step = 8; step > 0; step /= 2)
        total += sixteen.shfl_xor(total, step);
    for (int step = 2; step > 0; step /= 2)
        least = min(least, four.shfl_down(least, step));
    y[4 * i] = total;
    y[4 * i + 1] = four.shfl(least, 0);
    y[4 * i + 2] = cg::inclusive_scan(whole, value);
    y[4 * i + 3] = cg::reduce(cg::tiled_partition<8>(block), value, cg::greater<int>());
}

// Lanes with one key are a group.
extern "C" __global__ void groups(const int *key, const int *x, int *y, int *sums) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x % 32;
    unsigned mates = __match_any_sync(0xffffffffu, key[i]);
    int total = __reduce_add_sync(mates, x[i]);
    if (lane == __ffs(mates) - 1)
        atomicAdd(&sums[key[i]], total);
    auto group = cg::labeled_partition(cg::tiled_partition<32>(cg::this_thread_block()), key[i]);
    y[i] = 1000 * total + 10 * group.size() + (__any_sync(mates, x[i] > 90) ? 1 : 0);
    if (x[i] % 3 == 0) {
        auto active = cg::coalesced_threads();
        y[i] += 100000000 * (active.size() % 2);
    }
}

extern "C" __global__ void barriers(const float *x, float *y, int n) {
    __shared__ cuda::barrier<cuda::thread_scope_block> bar;
    __shared__ alignas(16) float part[256];
    if (threadIdx.x == 0)
        init(&bar, blockDim.x);
    __syncthreads();
    float sum = 0;
    for (int at = 0; at < n; at++) {
        float *to = &part[2 * threadIdx.x];
        cuda::memcpy_async(to, &x[256 * at + 2 * threadIdx.x], cuda::aligned_size_t<8>(8), bar);
        bar.arrive_and_wait();
        sum += part[255 - threadIdx.x];
        bar.arrive_and_wait();
    }
    y[threadIdx.x] = sum;
}

extern "C" __global__ void stages(const int *x, int *y, int n) {
    constexpr int STAGES = 3;
    __shared__ alignas(16) int part[STAGES][128];
    __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, STAGES> state;
    auto block = cg::this_thread_block();
    auto pipe = cuda::make_pipeline(block, &state);
    int sum = 0;
    for (int at = 0, ahead = 0; at < n; at++) {
        for (; ahead < n && ahead < at + STAGES; ahead++) {
            pipe.producer_acquire();
            cuda::memcpy_async(block, part[ahead % STAGES], x + 128 * ahead, cuda::aligned_size_t<16>(512), pipe);
            pipe.producer_commit();
        }
        pipe.consumer_wait();
        sum += part[at % STAGES][127 - threadIdx.x] * (at + 1);
        pipe.consumer_release();
    }
    y[threadIdx.x] = sum;
}

struct Record {
    char a;
    int b;
    short c;
    double d;
    char e;
};

__device__ __noinline__ Record record(int i) {
    Record made = {(char)i, 2 * i, 3, 0.5 * i, 7};
    return made;
}

// Structures with padding, through local and shared memory.
extern "C" __global__ void records(Record *all, int *sums) {
    __shared__ Record shared[32];
    Record own[4];
    int i = threadIdx.x;
    for (int k = 0; k < 4; k++)
        own[k] = record(k + i);
    shared[i] = own[i & 3];
    __syncthreads();
    Record other = shared[31 - i];
    all[i] = other;
    sums[i] = other.a + other.b + other.c + (int)other.d + other.e;
}
