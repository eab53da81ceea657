//! What kernels compute is what plain arithmetic says.

mod common;

use common::{Device, device, numbers, shape};
use cudarc::driver::{CudaFunction, DeviceRepr, LaunchConfig, PushKernelArg, ValidAsZeroBits};

/// Runs a kernel of `(const T* x, U* y)`.
fn map<T: DeviceRepr, U: DeviceRepr + ValidAsZeroBits>(
    device: &Device,
    kernel: &CudaFunction,
    config: LaunchConfig,
    x: &[T],
    results: usize,
) -> Vec<U> {
    let x = device.stream.clone_htod(x).unwrap();
    let mut y = device.stream.alloc_zeros::<U>(results).unwrap();
    // SAFETY: the kernels of this file take these two arguments.
    unsafe { device.stream.launch_builder(kernel).arg(&x).arg(&mut y).launch(config) }.unwrap();
    device.stream.clone_dtoh(&y).unwrap()
}

#[test]
fn every_lane_gets_the_sum_and_the_maximum_of_its_warp() {
    let Some(device) = device() else { return };
    let source = r#"
        extern "C" __global__ void k(const float* x, float* y) {
            y[threadIdx.x] = warp_sum(x[threadIdx.x]);
            y[64 + threadIdx.x] = warp_max(x[threadIdx.x]);
        }"#;
    let x = numbers(64, 1);
    let y: Vec<f32> = map(&device, &device.kernel(source, "k"), shape(1, 64), &x, 128);
    for warp in 0..2 {
        let lanes = warp * 32..warp * 32 + 32;
        let sum: f32 = x[lanes.clone()].iter().sum();
        let max = x[lanes.clone()].iter().copied().fold(f32::NEG_INFINITY, f32::max);
        assert!((y[warp * 32] - sum).abs() < 1e-5);
        for lane in lanes {
            assert_eq!(y[lane].to_bits(), y[warp * 32].to_bits());
            assert_eq!(y[64 + lane], max);
        }
    }
}

#[test]
fn every_thread_gets_the_sum_and_the_maximum_of_its_block() {
    let Some(device) = device() else { return };
    let source = r#"
        extern "C" __global__ void k(const double* x, double* y) {
            unsigned t = thread_in_block(), n = 32 * warps_in_block();
            y[t] = block_sum(x[t]);
            y[n + t] = block_max(x[t]);
            y[2 * n + t] = block_sum(static_cast<float>(x[t]));
        }"#;
    let k = device.kernel(source, "k");
    for block_dim in [(32, 1, 1), (16, 4, 5), (1024, 1, 1)] {
        let n = (block_dim.0 * block_dim.1 * block_dim.2) as usize;
        let x: Vec<f64> = numbers(n, 2).into_iter().map(f64::from).collect();
        let config = LaunchConfig { grid_dim: (1, 1, 1), block_dim, shared_mem_bytes: 0 };
        let y: Vec<f64> = map(&device, &k, config, &x, 3 * n);
        let sum: f64 = x.iter().sum();
        assert!((y[0] - sum).abs() < 1e-12 && (y[2 * n] - sum).abs() < 1e-4, "{} {} {sum}", y[0], y[2 * n]);
        assert_eq!(y[n], x.iter().copied().fold(f64::NEG_INFINITY, f64::max));
        for part in y.chunks(n) {
            assert!(part.iter().all(|value| value.to_bits() == part[0].to_bits()));
        }
    }
}

/// `a` is 16 by `k` and `b` is `k` by 8, both row by row.
fn product(a: &[f32], b: &[f32], k: usize) -> Vec<f32> {
    let cell = |i: usize| (0..k).map(|l| a[i / 8 * k + l] * b[l * 8 + i % 8]).sum();
    (0..128).map(cell).collect()
}

fn largest_difference(x: &[f32], y: &[f32]) -> f32 {
    assert_eq!(x.len(), y.len());
    x.iter().zip(y).map(|(x, y)| (x - y).abs()).fold(0.0, f32::max)
}

// As in `device.cuh`; `SECOND` and `THIRD` let a test swap two registers.
const STORE: &str = r#"
    float* row = y + g * 8 + 2 * t;
    row[0] = d[0], row[1] = d[1], row[64] = d[2], row[65] = d[3];
"#;

#[test]
fn the_tf32_matrix_product_is_the_product_of_the_rounded_factors() {
    let Some(device) = device() else { return };
    let source = format!(
        r#"extern "C" __global__ void k(const float* x, float* y) {{
            const float *a = x, *b = x + 128;
            unsigned g = lane() / 4, t = lane() % 4;
            float d[4] = {{}};
            unsigned fa[4], fb[2] = {{to_tf32(b[t * 8 + g]), to_tf32(b[(t + 4) * 8 + g])}};
            fa[0] = to_tf32(a[g * 8 + t]);
            fa[SECOND] = to_tf32(a[(g + 8) * 8 + t]);
            fa[THIRD] = to_tf32(a[g * 8 + t + 4]);
            fa[3] = to_tf32(a[(g + 8) * 8 + t + 4]);
            mma_m16n8k8_tf32(d, fa, fb);
            {STORE}
        }}"#
    );
    let x = numbers(128 + 64, 3);
    let rounded: Vec<f32> = x.iter().map(|x| f32::from_bits((x.to_bits() + 0x1000) & 0xffff_e000)).collect();
    let want = product(&rounded[..128], &rounded[128..], 8);
    let run = |options: &[&str]| -> Vec<f32> {
        map(&device, &device.kernel_with(&source, "k", options), shape(1, 32), &x, 128)
    };
    assert!(largest_difference(&run(&["-DSECOND=1", "-DTHIRD=2"]), &want) < 1e-6);
    assert!(
        largest_difference(&run(&["-DSECOND=2", "-DTHIRD=1"]), &want) > 0.1,
        "swapped registers go unseen"
    );
    let exact = product(&x[..128], &x[128..], 8);
    assert!(largest_difference(&want, &exact) > 1e-5, "the rounding of tf32 goes unseen");
}

#[test]
fn the_bf16_matrix_product_is_the_product_of_the_rounded_factors() {
    let Some(device) = device() else { return };
    let source = format!(
        r#"extern "C" __global__ void k(const float* x, float* y) {{
            const float *a = x, *b = x + 256;
            unsigned g = lane() / 4, t = lane() % 4;
            float d[4] = {{}};
            auto pair_a = [&](unsigned row, unsigned k) {{
                return pack_bf16(to_bf16(a[row * 16 + k]), to_bf16(a[row * 16 + k + 1]));
            }};
            auto pair_b = [&](unsigned k) {{ return pack_bf16(to_bf16(b[k * 8 + g]), to_bf16(b[(k + 1) * 8 + g])); }};
            unsigned fa[4], fb[2] = {{pair_b(2 * t), pair_b(2 * t + 8)}};
            fa[0] = pair_a(g, 2 * t);
            fa[SECOND] = pair_a(g + 8, 2 * t);
            fa[THIRD] = pair_a(g, 2 * t + 8);
            fa[3] = pair_a(g + 8, 2 * t + 8);
            mma_m16n8k16_bf16(d, fa, fb);
            {STORE}
        }}"#
    );
    let x = numbers(256 + 128, 4);
    let rounded: Vec<f32> = x.iter().map(|&x| f32::from_bits(u32::from(bf16(x)) << 16)).collect();
    let want = product(&rounded[..256], &rounded[256..], 16);
    let run = |options: &[&str]| -> Vec<f32> {
        map(&device, &device.kernel_with(&source, "k", options), shape(1, 32), &x, 128)
    };
    assert!(largest_difference(&run(&["-DSECOND=1", "-DTHIRD=2"]), &want) < 1e-6);
    assert!(
        largest_difference(&run(&["-DSECOND=2", "-DTHIRD=1"]), &want) > 0.1,
        "swapped registers go unseen"
    );
}

/// The nearest bfloat16, found by comparing distances; of two equally near the one whose last bit is 0.
fn bf16(x: f32) -> u16 {
    let below = (x.to_bits() >> 16) as u16;
    if x.is_nan() {
        return below | 0x40;
    }
    let above = below + 1;
    // One past the largest finite value stands for infinity, at the distance that the next value would have.
    let value = |bits: u16| match f64::from(f32::from_bits(u32::from(bits) << 16)) {
        infinite if infinite.is_infinite() && x.is_finite() => 2f64.powi(128).copysign(infinite),
        finite => finite,
    };
    let (down, up) = ((f64::from(x) - value(below)).abs(), (f64::from(x) - value(above)).abs());
    match down.total_cmp(&up) {
        std::cmp::Ordering::Less => below,
        std::cmp::Ordering::Greater => above,
        std::cmp::Ordering::Equal => below + (below & 1),
    }
}

#[test]
fn bf16_rounds_to_nearest_and_ties_to_even() {
    let Some(device) = device() else { return };
    let source = r#"
        extern "C" __global__ void k(const float* x, unsigned short* y) {
            unsigned i = blockIdx.x * 256 + threadIdx.x;
            y[i] = to_bf16(x[i]);
            if (from_bf16(y[i]) == 12345.0f) y[i] = 0;
        }"#;
    let upper = [0u32, 1, 0x007f, 0x0080, 0x3f80, 0x3f81, 0x7f7f, 0x7f80, 0x7fc0];
    let lower = [0u32, 1, 0x7fff, 0x8000, 0x8001, 0xffff];
    let mut x = Vec::new();
    for sign in [0, 0x8000_0000] {
        for upper in upper {
            x.extend(lower.map(|lower| f32::from_bits(sign | upper << 16 | lower)));
        }
    }
    x.resize(256, 1.0);
    let y: Vec<u16> = map(&device, &device.kernel(source, "k"), shape(1, 256), &x, 256);
    for (&x, &y) in x.iter().zip(&y) {
        if x.is_nan() {
            assert!(f32::from_bits(u32::from(y) << 16).is_nan(), "{:#x} became {y:#x}", x.to_bits());
        } else if x.is_infinite() {
            assert_eq!(f32::from_bits(u32::from(y) << 16), x);
        } else {
            assert_eq!(y, bf16(x), "{:#x}", x.to_bits());
        }
    }
}

#[test]
fn tf32_rounds_to_nearest_and_ties_away_from_zero() {
    let Some(device) = device() else { return };
    let source = r#"
        extern "C" __global__ void k(const float* x, unsigned* y) { y[threadIdx.x] = to_tf32(x[threadIdx.x]); }"#;
    let cases = [
        (0x3f80_0000, 0x3f80_0000),
        (0x3f80_0fff, 0x3f80_0000),
        (0x3f80_1000, 0x3f80_2000),
        (0xbf80_1000, 0xbf80_2000),
        (0x3f80_3000, 0x3f80_4000),
        (0x7f80_0000, 0x7f80_0000),
    ];
    let x = cases.map(|(x, _)| f32::from_bits(x));
    let y: Vec<u32> = map(&device, &device.kernel(source, "k"), shape(1, 6), &x, 6);
    assert_eq!(y, cases.map(|(_, y)| y));
}

#[test]
fn an_asynchronous_copy_copies_and_fills_with_zeros() {
    let Some(device) = device() else { return };
    let source = r#"
        extern "C" __global__ void k(const float* x, float* y) {
            __shared__ __align__(16) float four[32];
            __shared__ __align__(16) float sixteen[128];
            unsigned t = threadIdx.x;
            cp_async4(&four[t], t < 20 ? x + t : nullptr, t < 20 ? 4 : 0);
            cp_async_commit();
            cp_async16(&sixteen[4 * t], x + 4 * t, t == 31 ? 8 : 16);
            cp_async_commit();
            cp_async_wait<1>();
            __syncthreads();
            y[t] = four[t];
            cp_async_wait<0>();
            __syncthreads();
            for (unsigned i = t; i < 128; i += 32) y[32 + i] = sixteen[127 - i];
        }"#;
    let x = numbers(128, 5);
    let y: Vec<f32> = map(&device, &device.kernel(source, "k"), shape(1, 32), &x, 160);
    let mut four = x[..32].to_vec();
    four[20..].fill(0.0);
    let mut sixteen = x.clone();
    sixteen[126..].fill(0.0);
    sixteen.reverse();
    assert_eq!(y, [four, sixteen].concat());
}

#[test]
fn shuffles_and_votes_follow_the_programming_guide() {
    let Some(device) = device() else { return };
    let source = r#"
        extern "C" __global__ void k(const int* x, int* y) {
            int t = threadIdx.x, v = x[t], i = 0;
            y[32 * i++ + t] = __shfl_sync(FULL_WARP, v, 5);
            y[32 * i++ + t] = __shfl_up_sync(FULL_WARP, v, 3);
            y[32 * i++ + t] = __shfl_down_sync(FULL_WARP, v, 3, 8);
            y[32 * i++ + t] = static_cast<int>(__shfl_xor_sync(FULL_WARP, 1e10 + v, 6) - 1e10);
            y[32 * i++ + t] = t < 16 ? __shfl_sync(0xffffu, v, 1) : __shfl_sync(0xffff0000u, v, 17);
            y[32 * i++ + t] = __ballot_sync(FULL_WARP, t % 3 == 0);
            y[32 * i++ + t] = __any_sync(FULL_WARP, t == 7) + 2 * __any_sync(FULL_WARP, t == 32);
            y[32 * i++ + t] = __all_sync(FULL_WARP, t < 32) + 2 * __all_sync(FULL_WARP, t < 31);
            __syncwarp();
        }"#;
    let x: Vec<i32> = (0..32).map(|i| 100 + i).collect();
    let y: Vec<i32> = map(&device, &device.kernel(source, "k"), shape(1, 32), &x, 8 * 32);
    let expect = |row: usize, lane: &dyn Fn(i32) -> i32| {
        let want: Vec<i32> = (0..32).map(lane).collect();
        assert_eq!(&y[row * 32..][..32], want, "row {row}");
    };
    expect(0, &|_| 105);
    expect(1, &|t| 100 + if t < 3 { t } else { t - 3 });
    expect(2, &|t| 100 + if t % 8 < 5 { t + 3 } else { t });
    expect(3, &|t| 100 + (t ^ 6));
    expect(4, &|t| if t < 16 { 101 } else { 117 });
    expect(5, &|_| (0..32).filter(|t| t % 3 == 0).map(|t| 1i32.wrapping_shl(t)).sum());
    expect(6, &|_| 1);
    expect(7, &|_| 1);
}

#[test]
fn mathematical_functions_are_those_of_their_type() {
    let Some(device) = device() else { return };
    let source = r#"
        extern "C" __global__ void k(const double* x, double* y) {
            double d = x[threadIdx.x];
            float f = static_cast<float>(d);
            double* row = y + threadIdx.x * 16;
            int i = 0;
            row[i++] = exp(d), row[i++] = expf(f), row[i++] = exp(f);
            row[i++] = log(d), row[i++] = logf(f), row[i++] = tanhf(f);
            row[i++] = erf(d) + erff(f), row[i++] = rsqrtf(f), row[i++] = sqrt(f);
            row[i++] = pow(d, 1.5), row[i++] = powf(f, 1.5f), row[i++] = fma(f, f, -f * f);
            row[i++] = sin(d) + cosf(f), row[i++] = fmax(d, 1.0) + fminf(f, 1.0f);
            row[i++] = isnan(f - f) + 2 * isinf(1 / (f - f)) + 4 * isfinite(d);
            row[i++] = max(1u, 2u) + min(3, 4) + fabs(-d) + floor(f);
        }"#;
    let x: Vec<f64> = vec![0.3, 0.7, 1.9, 4.2];
    let y: Vec<f64> = map(&device, &device.kernel(source, "k"), shape(1, 4), &x, 64);
    for (&d, row) in x.iter().zip(y.chunks(16)) {
        let f = d as f32;
        let near = |i: usize, want: f64, tolerance: f64| {
            assert!(
                (row[i] - want).abs() <= tolerance * want.abs().max(1.0),
                "{i} of {d}: {} {want}",
                row[i]
            );
        };
        near(0, d.exp(), 1e-15);
        near(1, f64::from(f).exp(), 1e-6);
        assert_eq!(row[1], row[2], "an overload for float");
        near(3, d.ln(), 1e-15);
        near(4, f64::from(f).ln(), 1e-6);
        near(5, f64::from(f).tanh(), 1e-6);
        near(7, 1.0 / f64::from(f).sqrt(), 1e-6);
        assert_eq!(row[8], f64::from(f.sqrt()));
        near(9, d.powf(1.5), 1e-15);
        near(10, f64::from(f).powf(1.5), 1e-6);
        assert_eq!(row[11], f64::from(f.mul_add(f, -f * f)), "one rounding");
        near(12, d.sin() + f64::from(f).cos(), 1e-6);
        near(13, d.max(1.0) + f64::from(f.min(1.0)), 0.0);
        assert_eq!(row[14], 6.0);
        near(15, 2.0 + 3.0 + d + f64::from(f.floor()), 1e-15);
    }
    let erf_of_0_3 = 0.328_626_759_459_127_4;
    assert!((y[6] - 2.0 * erf_of_0_3).abs() < 1e-6);
}

#[test]
fn integer_products_keep_their_upper_half() {
    let Some(device) = device() else { return };
    let source = r#"
        extern "C" __global__ void k(const unsigned long long* x, unsigned long long* y) {
            y[0] = __umulhi(static_cast<unsigned>(x[0]), static_cast<unsigned>(x[1]));
            y[1] = __umul64hi(x[0], x[1]);
            y[2] = __popc(0xf0f0u) + __clz(1) + __ffs(8);
        }"#;
    let x = [0xdead_beef_d251_1f53_u64, 0x0123_4567_cd9e_8d57];
    let y: Vec<u64> = map(&device, &device.kernel(source, "k"), shape(1, 1), &x, 3);
    assert_eq!(y[0], ((x[0] & 0xffff_ffff) * (x[1] & 0xffff_ffff)) >> 32);
    assert_eq!(y[1], ((u128::from(x[0]) * u128::from(x[1])) >> 64) as u64);
    assert_eq!(y[2], 8 + 31 + 4);
}

#[test]
fn atomics_update_and_give_the_old_value() {
    let Some(device) = device() else { return };
    let source = r#"
        extern "C" __global__ void k(const unsigned* x, unsigned* y) {
            atomicAdd(&y[0], 1);
            atomicMin(&y[1], x[threadIdx.x]);
            atomicMax(&y[2], x[threadIdx.x]);
            unsigned old = y[3], seen;
            do {
                seen = old;
                old = atomicCAS(&y[3], seen, seen + 2);
            } while (old != seen);
            atomicExch(&y[4], 7);
            atomicAdd(reinterpret_cast<float*>(&y[5]), 0.5f);
        }"#;
    let x: Vec<u32> = (0..64).map(|i| 1000 - i * i % 77).collect();
    let y: Vec<u32> = map(&device, &device.kernel(source, "k"), shape(1, 64), &x, 6);
    assert_eq!(y, [64, 0, 1000, 128, 7, 32f32.to_bits()]);
}

#[test]
fn threads_and_blocks_have_their_places() {
    let Some(device) = device() else { return };
    let source = r#"
        extern "C" __global__ void k(const unsigned*, unsigned* y) {
            unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
            unsigned threads = blockDim.x * blockDim.y * blockDim.z;
            unsigned place = 10 * threadIdx.x + 100 * threadIdx.y + 1000 * threadIdx.z;
            atomicAdd(&y[block * threads + thread_in_block()], 1 + place);
        }"#;
    let config = LaunchConfig { grid_dim: (5, 3, 2), block_dim: (4, 3, 2), shared_mem_bytes: 0 };
    let y: Vec<u32> = map(&device, &device.kernel(source, "k"), config, &[0u32], 30 * 24);
    for (i, &y) in y.iter().enumerate() {
        let t = i as u32 % 24;
        assert_eq!(y, 1 + 10 * (t % 4) + 100 * (t / 4 % 3) + 1000 * (t / 12));
    }
}

#[test]
fn shared_memory_is_read_again_after_a_barrier() {
    let Some(device) = device() else { return };
    let source = r#"
        extern "C" __global__ void k(const float*, float* y) {
            __shared__ float shared;
            if (threadIdx.x == 0) shared = 1;
            __syncthreads();
            float first = shared;
            __syncthreads();
            if (threadIdx.x == 31) shared = 2;
            __syncthreads();
            y[threadIdx.x] = first * 10 + shared;
        }"#;
    let y: Vec<f32> = map(&device, &device.kernel(source, "k"), shape(1, 32), &[0f32], 32);
    assert_eq!(y, [12.0; 32]);
}

#[test]
fn shared_arrays_of_every_kind_of_function_are_apart() {
    let Some(device) = device() else { return };
    let source = r#"
        __constant__ float table[2] = {10, 20}, zeros[2] = {0, 0};
        template <int Size> __device__ float in_template(float v) {
            __shared__ float s[Size];
            s[threadIdx.x] = v * Size;
            __syncthreads();
            return s[31 - threadIdx.x];
        }
        __device__ __forceinline__ float in_inline(float v) {
            __shared__ float s[32];
            s[threadIdx.x] = v;
            __syncthreads();
            return s[31 - threadIdx.x];
        }
        __device__ float in_function(float v) {
            __shared__ float s[32];
            s[threadIdx.x] = v;
            __syncthreads();
            return s[31 - threadIdx.x];
        }
        extern "C" __global__ void k(const float* x, float* y) {
            __shared__ float s[32];
            s[threadIdx.x] = x[threadIdx.x];
            float sum = in_template<32>(1) + in_template<64>(1) + in_inline(3) + in_function(4) + block_sum(1.0f);
            __syncthreads();
            y[threadIdx.x] = s[threadIdx.x] * 1000 + sum + table[1] + zeros[threadIdx.x % 2];
        }"#;
    let x: Vec<f32> = (0..32).map(|i| i as f32).collect();
    let y: Vec<f32> = map(&device, &device.kernel(source, "k"), shape(2, 32), &x, 32);
    let want: Vec<f32> = x.iter().map(|x| x * 1000.0 + (32 + 64 + 3 + 4 + 32 + 20) as f32).collect();
    assert_eq!(y, want);
}
