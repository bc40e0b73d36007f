// Kernels in CUDA C++: shared memory, shuffles, atomics, calls, local arrays, doubles.

extern "C" __global__ void sum(const float *x, float *partial, int n) {
    __shared__ float of_warp[8];
    float total = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        total += x[i];
    for (int step = 16; step > 0; step /= 2)
        total += __shfl_down_sync(0xffffffffu, total, step);
    if (threadIdx.x % 32 == 0)
        of_warp[threadIdx.x / 32] = total;
    __syncthreads();
    if (threadIdx.x < 8) {
        total = of_warp[threadIdx.x];
        for (int step = 4; step > 0; step /= 2)
            total += __shfl_xor_sync(0xffu, total, step);
        if (threadIdx.x == 0)
            partial[blockIdx.x] = total;
    }
}

extern "C" __global__ void histogram(const unsigned char *x, int *counts, int n) {
    extern __shared__ int own[];
    for (int bin = threadIdx.x; bin < 64; bin += blockDim.x)
        own[bin] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        atomicAdd(&own[x[i] % 64], 1);
    __syncthreads();
    for (int bin = threadIdx.x; bin < 64; bin += blockDim.x)
        atomicAdd(&counts[bin], own[bin]);
}

struct Fit {
    double slope, offset;
    int points;
};

__device__ __noinline__ double mean(const float *values, int n) {
    double total = 0;
    for (int i = 0; i < n; i++)
        total += values[i];
    return total / n;
}

// Calls another function, takes an array of the caller's, returns a structure.
__device__ __noinline__ Fit fit(const float *y, int n) {
    double middle = (n - 1) / 2.0, height = mean(y, n), products = 0, squares = 0;
    for (int i = 0; i < n; i++) {
        products += (i - middle) * (y[i] - height);
        squares += (i - middle) * (i - middle);
    }
    Fit found = {products / squares, 0, n};
    found.offset = height - found.slope * middle;
    return found;
}

// Threads call with different counts, some from another place, some not at all.
extern "C" __global__ void lines(const float *y, double *out, int rows) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows)
        return;
    float local[16];
    for (int i = 0; i < 16; i++)
        local[(i * 5 + row) % 16] = y[row * 16 + (i * 5 + row) % 16];
    int n = 2 + row % 15;
    Fit found = {0, 0, 0};
    if (row % 3 == 0)
        found = fit(local, n);
    else if (row % 3 == 1)
        found.slope = mean(local + 1, n - 1);
    out[3 * row] = found.slope;
    out[3 * row + 1] = found.offset;
    out[3 * row + 2] = found.points;
}

__device__ __noinline__ int twice(int x) { return 2 * x; }
__device__ __noinline__ int square(int x) { return x * x; }
__device__ __noinline__ int minus(int x) { return -x; }
__constant__ int weights[4] = {3, -1, 4, 1};

// Calls through pointers, and a jump table.
extern "C" __global__ void chosen(const int *x, int *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    int (*functions[3])(int) = {twice, square, minus};
    int value = functions[i % 3](x[i]);
    switch (x[i] % 7) {
    case 0: value += __popc(x[i]); break;
    case 1: value ^= __brev(x[i]); break;
    case 2: value = __clz(x[i]) * weights[i % 4]; break;
    case 3: value /= 3; break;
    case 4: value = __ffs(x[i]) + twice(i); break;
    case 5: value = (int)__fsqrt_rn((float)x[i]); break;
    default: value = (int)((long long)x[i] * x[i] % 1000003); break;
    }
    y[i] = value;
}

extern "C" __global__ void functions(const float *x, float *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    y[4 * i] = sinf(x[i]);
    y[4 * i + 1] = expf(x[i]);
    y[4 * i + 2] = powf(fabsf(x[i]), 1.7f);
    y[4 * i + 3] = erff(x[i]);
}
