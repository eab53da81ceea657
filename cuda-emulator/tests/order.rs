//! A kernel without races gives the same bits in whatever order its threads run.

mod common;

use common::{device, in_child, numbers};
use cudarc::driver::{LaunchConfig, PushKernelArg};

/// A small product with every means of waiting: a pipeline of asynchronous copies, barriers, the matrix unit, shuffles
/// and a reduction over the block.
const PRODUCT: &str = r#"
    extern "C" __global__ void __launch_bounds__(128) k(const float* a, const float* b, float* c, int k) {
        // 64 by 64 outputs, 16 of k at a time; the padding keeps rows 16 bytes aligned.
        constexpr int DEPTH = 16, A_ROW = DEPTH + 4, B_ROW = 64 + 8;
        NN_DYNAMIC_SHARED(float, shared);
        float *as = shared, *bs = shared + 2 * 64 * A_ROW;
        unsigned g = lane() / 4, t = lane() % 4, row = warp() / 2 * 32, column = warp() % 2 * 32;
        auto load = [&](int stage, int from) {
            for (int i = threadIdx.x; i < 64 * DEPTH / 4; i += 128) {
                int r = i / 4, l = i % 4 * 4;
                cp_async16(&as[(stage * 64 + r) * A_ROW + l], &a[r * k + from + l]);
                r = i / 16, l = i % 16 * 4;
                cp_async16(&bs[(stage * DEPTH + r) * B_ROW + l], &b[(from + r) * 64 + l]);
            }
            cp_async_commit();
        };
        float d[2][4][4] = {};
        load(0, 0);
        for (int step = 0; step < k / DEPTH; step++) {
            if ((step + 1) * DEPTH < k) load((step + 1) % 2, (step + 1) * DEPTH);
            else cp_async_commit();
            cp_async_wait<1>();
            __syncthreads();
            for (int l = 0; l < DEPTH; l += 8) {
                unsigned fa[2][4], fb[4][2];
                for (int i = 0; i < 2; i++) {
                    const float* p = &as[(step % 2 * 64 + row + 16 * i + g) * A_ROW + l + t];
                    fa[i][0] = to_tf32(p[0]), fa[i][1] = to_tf32(p[8 * A_ROW]);
                    fa[i][2] = to_tf32(p[4]), fa[i][3] = to_tf32(p[8 * A_ROW + 4]);
                }
                for (int j = 0; j < 4; j++) {
                    const float* p = &bs[(step % 2 * DEPTH + l + t) * B_ROW + column + 8 * j + g];
                    fb[j][0] = to_tf32(p[0]), fb[j][1] = to_tf32(p[4 * B_ROW]);
                }
                for (int i = 0; i < 2; i++)
                    for (int j = 0; j < 4; j++) mma_m16n8k8_tf32(d[i][j], fa[i], fb[j]);
            }
            __syncthreads();
        }
        float sum = 0;
        for (int i = 0; i < 2; i++)
            for (int j = 0; j < 4; j++) {
                float* out = &c[(row + 16 * i + g) * 64 + column + 8 * j + 2 * t];
                out[0] = d[i][j][0], out[1] = d[i][j][1], out[8 * 64] = d[i][j][2], out[8 * 64 + 1] = d[i][j][3];
                for (int e = 0; e < 4; e++) sum += d[i][j][e];
            }
        sum = block_sum(sum);
        if (threadIdx.x == 0) c[64 * 64] = sum;
    }"#;

#[test]
fn the_order_of_threads_does_not_change_a_bit() {
    let Some(device) = device() else { return };
    let depth = 64;
    let (a, b) = (numbers(64 * depth, 1), numbers(depth * 64, 2));
    let body = || {
        let product = device.kernel(PRODUCT, "k");
        let (a, b) = (device.stream.clone_htod(&a).unwrap(), device.stream.clone_htod(&b).unwrap());
        let mut c = device.stream.alloc_zeros::<f32>(64 * 64 + 1).unwrap();
        let shared_mem_bytes = (2 * 64 * 20 + 2 * 16 * 72) * 4;
        let config = LaunchConfig { grid_dim: (1, 1, 1), block_dim: (128, 1, 1), shared_mem_bytes };
        let depth = depth as i32;
        let mut launch = device.stream.launch_builder(&product);
        // SAFETY: the arguments are those of the kernel.
        unsafe { launch.arg(&a).arg(&b).arg(&mut c).arg(&depth).launch(config) }.unwrap();
        let bits: Vec<String> =
            device.stream.clone_dtoh(&c).unwrap().iter().map(|c| c.to_bits().to_string()).collect();
        eprintln!("bits {}", bits.join(" "));
    };
    let mut seen: Vec<Vec<f32>> = Vec::new();
    for order in ["fwd", "rev", "rand:1", "rand:2"] {
        let test = "the_order_of_threads_does_not_change_a_bit";
        let Some(stderr) = in_child(test, &[("NN_EMU_ORDER", order)], body) else { return };
        let bits = stderr.lines().find_map(|line| line.strip_prefix("bits ")).unwrap();
        seen.push(bits.split(' ').map(|bits| f32::from_bits(bits.parse().unwrap())).collect());
    }
    assert!(seen.iter().all(|c| c == &seen[0]));
    for (i, &c) in seen[0][..64 * 64].iter().enumerate() {
        let exact: f32 = (0..depth).map(|l| a[i / 64 * depth + l] * b[l * 64 + i % 64]).sum();
        assert!((c - exact).abs() < 0.02, "{i}: {c} {exact}");
    }
    let sum: f32 = seen[0][..64 * 64].iter().sum();
    assert!((seen[0][64 * 64] - sum).abs() < 1e-2);
}
