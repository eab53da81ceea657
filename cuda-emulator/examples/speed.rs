//! What launches cost on the emulator: `cargo run --release -p nn-cuda-emulator --example speed`.

#[path = "../tests/common/mod.rs"]
mod common;

use std::hint::black_box;
use std::time::{Duration, Instant};

use common::{Device, device, shape};
use cudarc::driver::{LaunchConfig, PushKernelArg};

/// The shortest of many runs.
fn shortest(mut run: impl FnMut()) -> Duration {
    let time = |run: &mut dyn FnMut()| {
        let start = Instant::now();
        run();
        start.elapsed()
    };
    (0..200).map(|_| time(&mut run)).min().unwrap_or_default()
}

fn report(device: &Device, what: &str, body: &str, config: LaunchConfig) {
    let source = format!("extern \"C\" __global__ void k(float* y) {{ unsigned t = threadIdx.x; {body} }}");
    let start = Instant::now();
    let kernel = device.kernel(&source, "k");
    let compiled = start.elapsed();
    let mut y = device.stream.alloc_zeros::<f32>(1 << 16).unwrap();
    let launch = shortest(|| {
        // SAFETY: the argument is that of the kernel, which writes less than the buffer holds.
        unsafe { device.stream.launch_builder(&kernel).arg(&mut y).launch(config) }.map(black_box).unwrap();
    });
    println!("{launch:>12.1?}  {what} (compiled or found in {compiled:.1?})");
}

fn main() {
    let start = Instant::now();
    let Some(device) = device() else { return };
    println!("{:>12.1?}  install", start.elapsed());
    let one = shape(1, 256);
    report(&device, "256 threads, one store each", "y[t] = t;", one);
    report(
        &device,
        "256 threads, 256 blocks, one store each",
        "y[blockIdx.x * 256 + t] = t;",
        shape(256, 256),
    );
    report(&device, "256 threads, one barrier", "__syncthreads(); y[t] = t;", one);
    report(
        &device,
        "256 threads, ten barriers",
        "for (int i = 0; i < 10; i++) __syncthreads(); y[t] = t;",
        one,
    );
    report(&device, "256 threads, one warp sum", "y[t] = warp_sum(1.0f);", one);
    report(&device, "256 threads, one block sum", "y[t] = block_sum(1.0f);", one);
    let products = "float d[4] = {}; unsigned a[4] = {}, b[2] = {};
        for (int i = 0; i < 100; i++) mma_m16n8k8_tf32(d, a, b);
        y[t] = d[0];";
    report(&device, "256 threads, 100 matrix products in each warp", products, one);
    report(&device, "1024 threads, one block sum", "y[t] = block_sum(1.0f);", shape(1, 1024));
    let alloc = shortest(|| drop(device.stream.alloc_zeros::<f32>(1000).unwrap()));
    println!("{alloc:>12.1?}  4 kB allocated, filled and freed");
    let values = vec![1f32; 1000];
    let mut x = device.stream.alloc_zeros::<f32>(1000).unwrap();
    let copy = shortest(|| device.stream.memcpy_htod(&values, &mut x).unwrap());
    println!("{copy:>12.1?}  4 kB copied to the device");
}
