//! Where neither cuBLASLt nor cuDNN is installed. Where they are, see `cuda_libraries`.

use nn_kernels::ops::{Conv, Conv2dSpec, Linear, LinearSpec, Unary};
use nn_kernels::{Cuda, DeviceError};

use crate::{cases, cuda};

const LARGE: LinearSpec =
    LinearSpec { rows: 101, inputs: 101, outputs: 103, act: Unary::Gelu, transposed: false };

#[test]
fn a_library_that_is_not_there_can_not_be_forced() {
    if std::env::var("NN_CUDA").as_deref() == Ok("gpu") {
        return;
    }
    let Some(d) = cuda::<f32>() else { return };
    for (route, library) in [("linear=library", "cuBLASLt"), ("conv2d=library", "cuDNN")] {
        let error = d.forcing(route).expect_err("it is not there");
        assert_eq!(error, DeviceError::NoLibrary { route: route.to_owned(), library });
        assert!(
            error.to_string().starts_with(&format!("route `{route}`: {library} was not found")),
            "{error}"
        );
    }
    assert_eq!(Cuda::<f32>::linear_route(&LARGE), "tiles");
    let one = [1, 1];
    let s = Conv2dSpec {
        batch: 1,
        in_channels: 64,
        out_channels: 64,
        input: [16, 16],
        output: [16, 16],
        kernel: one,
        stride: one,
        padding: [0, 0],
        dilation: one,
        groups: 1,
    };
    assert_eq!(Cuda::<f32>::conv2d_route(&s), "implicit gemm");
}

cases! {
    large_products within 1e-6 |t| {
        let s = LARGE;
        let (x, w, b) = (t.random(1, 101 * 101), t.random(2, 101 * 103), t.random(3, 103));
        let mut y = t.room(101 * 103);
        t.d.linear(&s, D::view(&x), D::view(&w), Some(D::view(&b)), D::view_mut(&mut y));
        t.keep_elements("y", &y);
    }
}
