//! Where neither cuBLASLt nor cuDNN is installed. Where they are, see `cuda_libraries`.

use nn_kernels::ops::{Conv, Conv2dSpec, Linear, LinearSpec, Unary};
use nn_kernels::{Cuda, DeviceError, Memory};

use crate::{Trial, cuda};

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
    // Without a route the kernels compute what a library would have.
    let y = |d: &Cuda<f32>| {
        let t = Trial::new(d.clone());
        let (x, w, mut y) = (t.random(1, 101 * 101), t.random(2, 101 * 103), t.room(101 * 103));
        t.d.linear(&LARGE, Cuda::<f32>::view(&x), Cuda::<f32>::view(&w), None, Cuda::<f32>::view_mut(&mut y));
        t.downloaded(&y)
    };
    assert!(y(&d.forcing("").unwrap()) == y(&d));
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
        act: Unary::Identity,
    };
    assert_eq!(Cuda::<f32>::conv2d_route(&s), "implicit gemm");
}
