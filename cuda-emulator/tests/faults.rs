//! Each fault that a GPU leaves undefined shows: the same kernel is run right, and with the fault compiled in.

mod common;

use common::{Device, device, in_child, numbers, shape};
use cudarc::driver::{DriverError, LaunchConfig, PushKernelArg};

/// Runs `k(const float* x, float* y)`.
fn run(
    device: &Device,
    source: &str,
    options: &[&str],
    config: LaunchConfig,
    x: &[f32],
    results: usize,
) -> Result<Vec<f32>, DriverError> {
    let k = device.kernel_with(source, "k", options);
    let x = device.stream.clone_htod(x)?;
    // SAFETY: not read before it is written; that a kernel does so is what some tests are about.
    let mut y = unsafe { device.stream.alloc::<f32>(results) }?;
    // SAFETY: the kernels of this file take these two arguments.
    unsafe { device.stream.launch_builder(&k).arg(&x).arg(&mut y).launch(config) }?;
    device.stream.clone_dtoh(&y)
}

struct Case<'a> {
    test: &'a str,
    /// With the fault between `#ifdef FAULT` and `#else` or `#endif`.
    source: &'a str,
    config: LaunchConfig,
    x: &'a [f32],
    results: usize,
}

impl Case<'_> {
    fn run(&self, device: &Device, options: &[&str]) -> Result<Vec<f32>, DriverError> {
        run(device, self.source, options, self.config, self.x, self.results)
    }

    /// Right, it gives `want`; with the fault, something else.
    #[track_caller]
    fn is_wrong(&self, want: &[f32]) {
        let Some(device) = device() else { return };
        assert_eq!(self.run(&device, &[]).unwrap(), want);
        assert_ne!(self.run(&device, &["-DFAULT"]).unwrap(), want, "the fault goes unseen");
    }

    /// Right, it runs; with the fault, the driver gives `error` and stderr has each of `words`.
    #[track_caller]
    fn is_reported(&self, error: &str, words: &[&str]) {
        let Some(device) = device() else { return };
        let body = || {
            let right = self.run(&device, &[]).unwrap();
            assert!(right.iter().all(|y| !y.is_nan()), "{right:?}");
            let faulty = self.run(&device, &["-DFAULT"]).unwrap_err();
            assert_eq!(format!("{:?}", faulty.0), error);
            let later = device.stream.synchronize().unwrap_err();
            assert_eq!(later.0, faulty.0, "an error stays");
        };
        let Some(stderr) = in_child(self.test, &[("NN_EMU_ORDER", "fwd")], body) else { return };
        let report = stderr.lines().find(|line| line.starts_with("CUDA emulator: ")).unwrap_or_default();
        for word in words {
            assert!(report.contains(word), "no {word:?} in {report:?}");
        }
    }
}

#[test]
fn a_missing_barrier_gives_a_wrong_result() {
    let x = numbers(64, 1);
    Case {
        test: "a_missing_barrier_gives_a_wrong_result",
        source: r#"
            extern "C" __global__ void k(const float* x, float* y) {
                __shared__ float tile[64];
                tile[threadIdx.x] = x[threadIdx.x];
            #ifndef FAULT
                __syncthreads();
            #endif
                y[threadIdx.x] = tile[63 - threadIdx.x];
            }"#,
        config: shape(1, 64),
        x: &x,
        results: 64,
    }
    .is_wrong(&x.iter().rev().copied().collect::<Vec<_>>());
}

#[test]
fn a_missing_barrier_before_shared_memory_is_written_again_gives_a_wrong_result() {
    let x = numbers(128, 2);
    Case {
        test: "a_missing_barrier_before_shared_memory_is_written_again_gives_a_wrong_result",
        source: r#"
            extern "C" __global__ void k(const float* x, float* y) {
                __shared__ float tile[64];
                for (int i = 0; i < 128; i += 64) {
                    tile[threadIdx.x] = x[i + threadIdx.x];
                    __syncthreads();
                    y[i + threadIdx.x] = tile[threadIdx.x ^ 1];
            #ifndef FAULT
                    __syncthreads();
            #endif
                }
            }"#,
        config: shape(1, 64),
        x: &x,
        results: 128,
    }
    .is_wrong(&(0..128).map(|i: usize| x[i ^ 1]).collect::<Vec<_>>());
}

#[test]
fn a_barrier_that_one_order_hides_shows_in_another() {
    const TEST: &str = "a_barrier_that_one_order_hides_shows_in_another";
    let source = r#"
        extern "C" __global__ void k(const float* x, float* y) {
            __shared__ float tile[64];
            tile[threadIdx.x] = x[threadIdx.x];
            y[threadIdx.x] = tile[threadIdx.x / 2];
        }"#;
    let Some(device) = device() else { return };
    let body = || {
        let y = run(&device, source, &[], shape(1, 64), &[1.0; 64], 64).unwrap();
        eprintln!("{} are NaN", y.iter().filter(|y| y.is_nan()).count());
    };
    for (order, nan) in [("fwd", "0 are NaN"), ("rev", "63 are NaN")] {
        let Some(stderr) = in_child(TEST, &[("NN_EMU_ORDER", order)], body) else { return };
        assert!(stderr.contains(nan), "{order}: {stderr}");
    }
}

#[test]
fn a_missing_wait_for_a_copy_gives_a_wrong_result() {
    let x = numbers(256, 3);
    Case {
        test: "a_missing_wait_for_a_copy_gives_a_wrong_result",
        source: r#"
            extern "C" __global__ void k(const float* x, float* y) {
                NN_DYNAMIC_SHARED(float, tile);
                auto load = [&](int stage) {
                    cp_async16(&tile[stage % 2 * 128 + 4 * threadIdx.x], &x[stage * 128 + 4 * threadIdx.x]);
                    cp_async_commit();
                };
                load(0);
                load(1);
                cp_async_wait<1>();
                __syncthreads();
                for (int i = threadIdx.x; i < 128; i += 32) y[i] = tile[127 - i];
            #ifndef FAULT
                cp_async_wait<0>();
            #endif
                __syncthreads();
                for (int i = threadIdx.x; i < 128; i += 32) y[128 + i] = tile[128 + 127 - i];
            }"#,
        config: LaunchConfig { shared_mem_bytes: 1024, ..shape(1, 32) },
        x: &x,
        results: 256,
    }
    .is_wrong(&x.chunks(128).flat_map(|half| half.iter().rev().copied()).collect::<Vec<_>>());
}

#[test]
fn shared_memory_that_nobody_wrote_is_nan() {
    Case {
        test: "shared_memory_that_nobody_wrote_is_nan",
        source: r#"
            extern "C" __global__ void k(const float* x, float* y) {
                __shared__ float tile[32];
                NN_DYNAMIC_SHARED(float, more);
            #ifdef FAULT
                if (threadIdx.x != 3)
            #endif
                tile[threadIdx.x] = x[threadIdx.x], more[threadIdx.x] = x[threadIdx.x];
                __syncthreads();
                y[threadIdx.x] = tile[threadIdx.x] + more[threadIdx.x];
            }"#,
        config: LaunchConfig { shared_mem_bytes: 128, ..shape(2, 32) },
        x: &[1.0; 32],
        results: 32,
    }
    .is_wrong(&[2.0; 32]);
}

#[test]
fn device_memory_that_nobody_wrote_is_nan() {
    let Some(device) = device() else { return };
    // SAFETY: what is read is what the emulator put there.
    let fresh = unsafe { device.stream.alloc::<f32>(5) }.unwrap();
    assert!(device.stream.clone_dtoh(&fresh).unwrap().iter().all(|x| x.is_nan()));
    Case {
        test: "device_memory_that_nobody_wrote_is_nan",
        source: r#"
            extern "C" __global__ void k(const float* x, float* y) {
            #ifdef FAULT
                y[threadIdx.x] += x[threadIdx.x];
            #else
                y[threadIdx.x] = x[threadIdx.x];
            #endif
            }"#,
        config: shape(1, 32),
        x: &[1.0; 32],
        results: 32,
    }
    .is_wrong(&[1.0; 32]);
}

#[test]
fn a_local_variable_that_nobody_wrote_gives_a_wrong_result() {
    Case {
        test: "a_local_variable_that_nobody_wrote_gives_a_wrong_result",
        source: r#"
            extern "C" __global__ void k(const float* x, float* y) {
            #ifdef FAULT
                float sum[4];
            #else
                float sum[4] = {};
            #endif
                for (int i = 0; i < 32; i++) sum[i % 4] += x[i];
                y[threadIdx.x] = sum[0] + sum[1] + sum[2] + sum[3];
            }"#,
        config: shape(1, 32),
        x: &[1.0; 32],
        results: 32,
    }
    .is_wrong(&[32.0; 32]);
}

#[test]
fn a_sum_that_depends_on_the_order_of_blocks_shows_in_the_reverse_order() {
    const TEST: &str = "a_sum_that_depends_on_the_order_of_blocks_shows_in_the_reverse_order";
    let Some(device) = device() else { return };
    let source = r#"
        extern "C" __global__ void k(const float* x, float* y) {
            if (blockIdx.x == 0) *y = 0;
            *y += x[blockIdx.x];
        }"#;
    let body = || {
        let y = run(&device, source, &[], shape(3, 1), &[1.0, 1e8, -1e8], 1).unwrap();
        eprintln!("sum {}", y[0]);
    };
    for (order, sum) in [("fwd", "sum 0\n"), ("rev", "sum 1\n")] {
        let Some(stderr) = in_child(TEST, &[("NN_EMU_ORDER", order)], body) else { return };
        assert!(stderr.contains(sum), "{order}: {stderr}");
    }
}

#[test]
fn an_index_outside_a_shared_array_is_reported() {
    Case {
        test: "an_index_outside_a_shared_array_is_reported",
        source: r#"
            extern "C" __global__ void k(const float* x, float* y) {
                __shared__ float tile[32];
                int i = threadIdx.x;
            #ifdef FAULT
                i++;
            #endif
                tile[i] = x[threadIdx.x];
                __syncthreads();
                y[threadIdx.x] = tile[threadIdx.x];
            }"#,
        config: shape(1, 32),
        x: &[1.0; 32],
        results: 32,
    }
    .is_reported("CUDA_ERROR_LAUNCH_FAILED", &["kernel k", "thread (31,0,0)", "kernel.cu:8", "index 32"]);
}

#[test]
fn a_pointer_past_a_shared_array_is_reported() {
    Case {
        test: "a_pointer_past_a_shared_array_is_reported",
        source: r#"
            __device__ __forceinline__ void load(float* to, const float* x, int n) {
                for (int i = threadIdx.x; i < n; i += 32) to[i] = x[i];
            }
            extern "C" __global__ void k(const float* x, float* y) {
                __shared__ float tile[64];
                __shared__ float other[64];
            #ifdef FAULT
                load(tile, x, 96);
            #else
                load(tile, x, 64);
            #endif
                load(other, x, 64);
                __syncthreads();
                y[threadIdx.x] = tile[threadIdx.x] + other[threadIdx.x];
            }"#,
        config: shape(1, 32),
        x: &[1.0; 96],
        results: 32,
    }
    .is_reported("CUDA_ERROR_LAUNCH_FAILED", &["kernel.cu:3", "outside of the array"]);
}

#[test]
fn an_index_past_dynamic_shared_memory_is_reported() {
    Case {
        test: "an_index_past_dynamic_shared_memory_is_reported",
        source: r#"
            extern "C" __global__ void k(const float* x, float* y) {
                NN_DYNAMIC_SHARED(float, tile);
            #ifdef FAULT
                tile[threadIdx.x + 1] = x[threadIdx.x];
            #endif
                y[threadIdx.x] = 1;
            }"#,
        config: LaunchConfig { shared_mem_bytes: 128, ..shape(1, 32) },
        x: &[1.0; 32],
        results: 32,
    }
    .is_reported("CUDA_ERROR_LAUNCH_FAILED", &["thread (31,0,0)", "past the end of dynamic shared memory"]);
}

#[test]
fn a_read_past_a_buffer_is_reported() {
    Case {
        test: "a_read_past_a_buffer_is_reported",
        source: r#"
            extern "C" __global__ void k(const float* x, float* y) {
            #ifdef FAULT
                y[threadIdx.x] = x[threadIdx.x + 1];
            #else
                y[threadIdx.x] = x[threadIdx.x];
            #endif
            }"#,
        config: shape(1, 32),
        x: &[1.0; 32],
        results: 32,
    }
    .is_reported("CUDA_ERROR_ILLEGAL_ADDRESS", &["thread (31,0,0)", "byte 128 of a buffer of 128"]);
}

#[test]
fn a_write_past_a_buffer_is_reported() {
    Case {
        test: "a_write_past_a_buffer_is_reported",
        source: r#"
            extern "C" __global__ void k(const float* x, float* y) {
                y[blockIdx.x * 32 + threadIdx.x] = 1;
            #ifdef FAULT
                y[(blockIdx.x + 1) * 32 + threadIdx.x] = 1;
            #endif
            }"#,
        config: shape(4, 32),
        x: &[1.0],
        results: 128,
    }
    .is_reported("CUDA_ERROR_ILLEGAL_ADDRESS", &["block (3,0,0)", "byte 512 of a buffer of 512"]);
}

#[test]
fn a_write_just_past_a_buffer_of_odd_size_is_reported() {
    Case {
        test: "a_write_just_past_a_buffer_of_odd_size_is_reported",
        source: r#"
            extern "C" __global__ void k(const float* x, float* y) {
                y[threadIdx.x] = 1;
            #ifdef FAULT
                y[threadIdx.x + 1] = 1;
            #endif
            }"#,
        config: shape(1, 33),
        x: &[1.0],
        results: 33,
    }
    .is_reported("CUDA_ERROR_ILLEGAL_ADDRESS", &["past the end of a buffer of 132 bytes"]);
}

#[test]
fn an_address_that_is_not_aligned_is_reported() {
    Case {
        test: "an_address_that_is_not_aligned_is_reported",
        source: r#"
            extern "C" __global__ void k(const float* x, float* y) {
            #ifdef FAULT
                x += 1;
            #endif
                float4 four = *reinterpret_cast<const float4*>(x);
                y[threadIdx.x] = four.x + four.w;
            }"#,
        config: shape(1, 32),
        x: &[1.0; 32],
        results: 32,
    }
    .is_reported("CUDA_ERROR_MISALIGNED_ADDRESS", &["kernel.cu:6", "not aligned"]);
}

#[test]
fn barriers_in_different_places_are_reported() {
    Case {
        test: "barriers_in_different_places_are_reported",
        source: r#"
            extern "C" __global__ void k(const float* x, float* y) {
            #ifdef FAULT
                if (threadIdx.x < 32) __syncthreads();
                else
            #endif
                    __syncthreads();
                y[threadIdx.x] = 1;
            }"#,
        config: shape(1, 64),
        x: &[1.0],
        results: 64,
    }
    .is_reported("CUDA_ERROR_LAUNCH_FAILED", &["kernel.cu:7 while 32 threads wait at kernel.cu:4"]);
}

#[test]
fn a_barrier_that_some_threads_leave_out_is_reported() {
    Case {
        test: "a_barrier_that_some_threads_leave_out_is_reported",
        source: r#"
            extern "C" __global__ void k(const float* x, float* y) {
                y[threadIdx.x] = 1;
            #ifdef FAULT
                if (threadIdx.x >= 40) return;
            #endif
                __syncthreads();
            }"#,
        config: shape(1, 64),
        x: &[1.0],
        results: 64,
    }
    .is_reported("CUDA_ERROR_LAUNCH_FAILED", &["thread (40,0,0)", "left the kernel while 40 threads wait"]);
}

#[test]
fn a_deadlock_is_reported() {
    Case {
        test: "a_deadlock_is_reported",
        source: r#"
            extern "C" __global__ void k(const float* x, float* y) {
                y[threadIdx.x] = 1;
            #ifdef FAULT
                if (threadIdx.x % 2) __syncwarp();
            #endif
                __syncthreads();
            }"#,
        config: shape(1, 64),
        x: &[1.0],
        results: 64,
    }
    .is_reported(
        "CUDA_ERROR_LAUNCH_FAILED",
        &["deadlock", "32 wait at a __syncthreads", "32 at a warp operation"],
    );
}

#[test]
fn a_shuffle_without_all_its_lanes_is_reported() {
    Case {
        test: "a_shuffle_without_all_its_lanes_is_reported",
        source: r#"
            extern "C" __global__ void k(const float* x, float* y) {
                float v = 1;
            #ifdef FAULT
                if (threadIdx.x < 20)
            #endif
                v = __shfl_xor_sync(FULL_WARP, v, 1);
                y[threadIdx.x] = v;
            }"#,
        config: shape(1, 32),
        x: &[1.0],
        results: 32,
    }
    .is_reported(
        "CUDA_ERROR_LAUNCH_FAILED",
        &["deadlock", "20 at a warp operation kernel.cu:7", "12 have left"],
    );
}

#[test]
fn a_shuffle_after_lanes_have_left_is_reported() {
    Case {
        test: "a_shuffle_after_lanes_have_left_is_reported",
        source: r#"
            extern "C" __global__ void k(const float* x, float* y) {
                y[threadIdx.x] = 1;
            #ifdef FAULT
                if (threadIdx.x < 2) return;
            #endif
                y[threadIdx.x] = warp_sum(1.0f);
            }"#,
        config: shape(1, 32),
        x: &[1.0],
        results: 32,
    }
    .is_reported("CUDA_ERROR_LAUNCH_FAILED", &["device.cuh:", "waits for lanes 0x3"]);
}

#[test]
fn shuffles_in_different_places_are_reported() {
    Case {
        test: "shuffles_in_different_places_are_reported",
        source: r#"
            extern "C" __global__ void k(const float* x, float* y) {
                float v = 1;
            #ifdef FAULT
                if (threadIdx.x < 16) v = __shfl_xor_sync(FULL_WARP, v, 1);
                else
            #endif
                    v = __shfl_xor_sync(FULL_WARP, v, 1);
                y[threadIdx.x] = v;
            }"#,
        config: shape(1, 32),
        x: &[1.0],
        results: 32,
    }
    .is_reported("CUDA_ERROR_LAUNCH_FAILED", &["kernel.cu:8 while other lanes wait at kernel.cu:5"]);
}

#[test]
fn a_matrix_product_without_all_its_lanes_is_reported() {
    Case {
        test: "a_matrix_product_without_all_its_lanes_is_reported",
        source: r#"
            extern "C" __global__ void k(const float* x, float* y) {
                float d[4] = {};
                unsigned a[4] = {}, b[2] = {};
            #ifdef FAULT
                if (threadIdx.x != 9)
            #endif
                mma_m16n8k16_bf16(d, a, b);
                y[threadIdx.x] = d[0];
            }"#,
        config: shape(1, 32),
        x: &[1.0],
        results: 32,
    }
    .is_reported("CUDA_ERROR_LAUNCH_FAILED", &["mma.m16n8k16", "lanes 0x200"]);
}

#[test]
fn an_asynchronous_copy_to_global_memory_is_reported() {
    Case {
        test: "an_asynchronous_copy_to_global_memory_is_reported",
        source: r#"
            extern "C" __global__ void k(const float* x, float* y) {
                __shared__ float tile[32];
                float* to = tile;
            #ifdef FAULT
                to = y;
            #endif
                cp_async4(&to[threadIdx.x], &x[threadIdx.x]);
                cp_async_commit();
                cp_async_wait<0>();
                y[threadIdx.x] = tile[threadIdx.x];
            }"#,
        config: shape(1, 32),
        x: &[1.0; 32],
        results: 32,
    }
    .is_reported("CUDA_ERROR_LAUNCH_FAILED", &["which is not shared memory"]);
}

#[test]
fn a_buffer_that_was_freed_is_out_of_reach() {
    let Some(device) = device() else { return };
    let source = r#"extern "C" __global__ void k(const float* const* x, float* y) { *y = **x; }"#;
    let body = || {
        let k = device.kernel(source, "k");
        let freed = device.stream.clone_htod(&[1f32]).unwrap();
        let address = {
            use cudarc::driver::DevicePtr;
            freed.device_ptr(&device.stream).0
        };
        let pointer = device.stream.clone_htod(&[address]).unwrap();
        let mut y = device.stream.alloc_zeros::<f32>(1).unwrap();
        let mut launch = || {
            // SAFETY: the arguments are those of the kernel; that one is freed is what the test is about.
            unsafe { device.stream.launch_builder(&k).arg(&pointer).arg(&mut y).launch(shape(1, 1)) }
        };
        launch().unwrap();
        drop(freed);
        let error = launch().unwrap_err();
        assert_eq!(format!("{:?}", error.0), "CUDA_ERROR_ILLEGAL_ADDRESS");
    };
    in_child("a_buffer_that_was_freed_is_out_of_reach", &[], body);
}

#[test]
fn endless_recursion_is_reported() {
    Case {
        test: "endless_recursion_is_reported",
        source: r#"
            __device__ __noinline__ float deep(const float* x, int n) {
                volatile float local[64];
                local[n % 64] = *x;
                return n == 0 ? 1 : deep(x, n - 1) + local[n % 64] * 0;
            }
            extern "C" __global__ void k(const float* x, float* y) {
            #ifdef FAULT
                y[threadIdx.x] = deep(x, 1 << 20);
            #else
                y[threadIdx.x] = deep(x, 10);
            #endif
            }"#,
        config: shape(1, 32),
        x: &[1.0],
        results: 32,
    }
    .is_reported("CUDA_ERROR_LAUNCH_FAILED", &["thread (0,0,0)", "stack overflow"]);
}
