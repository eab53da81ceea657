//! What kernels compute is what plain arithmetic says.

mod common;

use common::{device, shape};
use cudarc::driver::PushKernelArg;

#[test]
fn a_block_sum_is_the_sum() {
    let Some(device) = device() else { return };
    let source = r#"
        extern "C" __global__ void sums(const float* x, float* y) {
            y[threadIdx.x] = block_sum(x[threadIdx.x]);
        }"#;
    let sums = device.kernel(source, "sums");
    let values: Vec<f32> = (0..256).map(|i| i as f32).collect();
    let x = device.stream.clone_htod(&values).unwrap();
    let mut y = device.stream.alloc_zeros::<f32>(256).unwrap();
    // SAFETY: the arguments are those of the kernel.
    unsafe { device.stream.launch_builder(&sums).arg(&x).arg(&mut y).launch(shape(1, 256)) }.unwrap();
    assert_eq!(device.stream.clone_dtoh(&y).unwrap(), [255.0 * 128.0; 256]);
}
