//! Sizes whose products wrap to those of empty views are refused, with overflow checks and without.

use std::panic::{AssertUnwindSafe, catch_unwind};

use nn_kernels::ops::*;
use nn_kernels::{Cpu, Isa};

/// 2⁶³ where there are 64 bits: twice this is 0.
const HALF: usize = 1 << (usize::BITS - 1);

/// Calls `f` on a device of each instruction set. It must panic and say that a size overflows.
#[track_caller]
fn refused(f: impl Fn(Cpu<f32>)) {
    for isa in Isa::available() {
        let device = Cpu::with_isa(isa).unwrap();
        let panic = catch_unwind(AssertUnwindSafe(|| f(device))).expect_err("sizes that overflow were taken");
        let message =
            panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
        let message = message.expect("a message");
        // Not the compiler's own "attempt to multiply with overflow", which a release build does not have.
        assert!(message.ends_with(" overflow") || message.ends_with(" overflows"), "{message}");
        assert!(!message.starts_with("attempt"), "{message}");
    }
}

fn linear(rows: usize, inputs: usize, outputs: usize) -> LinearSpec {
    LinearSpec { rows, inputs, outputs, act: Unary::Identity, transposed: false }
}

#[test]
fn linear_refuses_sizes_that_wrap() {
    for transposed in [false, true] {
        let spec = |rows, inputs, outputs| LinearSpec { transposed, ..linear(rows, inputs, outputs) };
        refused(|d| d.linear(&spec(HALF, 2, 2), &[], &[1.0; 4], None, &mut []));
        refused(|d| d.linear(&spec(2, HALF, 2), &[], &[], None, &mut [0.0; 4]));
        refused(|d| d.linear(&spec(2, 2, HALF), &[1.0; 4], &[], None, &mut []));
        refused(|d| {
            let (mut dx, mut dw, mut db) = ([], [0.0; 4], [0.0; 2]);
            let (gx, gw, gb) = (Some(&mut dx[..]), Some(&mut dw[..]), Some(&mut db[..]));
            d.linear_vjp(&spec(HALF, 2, 2), &[], &[1.0; 4], None, &[], &[], gx, gw, gb, &mut []);
        });
    }
    refused(|_| {
        LinearSpec { act: Unary::Tanh, ..linear(HALF, 2, 2) }.vjp_scratch();
    });
}

fn conv() -> Conv2dSpec {
    Conv2dSpec {
        batch: 1,
        in_channels: 1,
        out_channels: 1,
        input: [1, 1],
        output: [1, 1],
        kernel: [1, 1],
        stride: [1, 1],
        padding: [0, 0],
        dilation: [1, 1],
        groups: 1,
        act: Unary::Identity,
    }
}

#[test]
fn conv_refuses_sizes_that_wrap() {
    let two = |s: Conv2dSpec| Conv2dSpec { in_channels: 2, out_channels: 2, ..s };
    for s in [
        Conv2dSpec { batch: HALF, ..two(conv()) },
        Conv2dSpec { batch: HALF, groups: 2, ..two(conv()) },
        Conv2dSpec { input: [HALF, 2], output: [HALF, 2], ..conv() },
        Conv2dSpec { input: [HALF, 2], output: [HALF, 2], kernel: [1, 1], ..two(conv()) },
    ] {
        let weights = [1.0; 4];
        let w = &weights[..s.out_channels * s.in_channels / s.groups];
        refused(|d| d.conv2d(&s, &[], w, None, &mut [], &mut []));
        refused(|d| d.conv2d_vjp(&s, &[], w, None, &[], &[], Some(&mut []), None, None, &mut []));
    }
    for s in [
        Conv2dSpec { padding: [HALF, 0], ..conv() },
        Conv2dSpec { output: [3, 1], stride: [HALF, 1], ..conv() },
        Conv2dSpec { kernel: [3, 1], dilation: [HALF, 1], ..conv() },
        Conv2dSpec { kernel: [usize::MAX, 1], dilation: [2, 1], ..conv() },
    ] {
        refused(|d| d.conv2d(&s, &[1.0], &[1.0], None, &mut [0.0], &mut []));
    }
    refused(|_| {
        Conv2dSpec { batch: HALF, act: Unary::Tanh, ..two(conv()) }.vjp_scratch();
    });
}

#[test]
fn pool_refuses_sizes_that_wrap() {
    let one = Pool2dSpec {
        planes: 1,
        input: [1, 2],
        output: [1, 2],
        kernel: [1, 1],
        stride: [1, 1],
        padding: [0, 0],
    };
    for s in [
        Pool2dSpec { planes: HALF, ..one },
        Pool2dSpec { input: [HALF, 2], ..one },
        Pool2dSpec { output: [HALF, 2], ..one },
        Pool2dSpec { kernel: [HALF, 2], ..one },
        Pool2dSpec { padding: [HALF, 0], ..one },
        Pool2dSpec { stride: [1, usize::MAX], ..one },
    ] {
        let n = if s.planes == 1 { 2 } else { 0 };
        let (x, y) = (vec![0.0; n], vec![0.0; n]);
        refused(|d| d.avg_pool2d(&s, &x, &mut y.clone()));
        refused(|d| d.max_pool2d(&s, &x, &mut y.clone(), None));
        refused(|d| d.max_pool2d_vjp(&s, &vec![0; n], &x, &mut y.clone()));
    }
}

#[test]
fn batch_norm_refuses_sizes_that_wrap() {
    let s = BatchNormSpec { batch: HALF, channels: 2, area: 1, eps: 1e-5, momentum: 0.1 };
    refused(|d| d.batch_norm_train(&s, &[], &[1.0; 2], &[0.0; 2], &mut [], &mut [0.0; 4], None));
    refused(|d| d.batch_norm_infer(&s, &[], &[1.0; 2], &[0.0; 2], [&[0.0; 2], &[1.0; 2]], &mut []));
    refused(|d| d.batch_norm_vjp(&s, false, &[], &[1.0; 2], &[0.0; 4], &[], None, None, None));
}

#[test]
fn layouts_refuse_sizes_that_wrap() {
    let one = Block { offset: 0, stride: 1 };
    let (far, wide) = (Block { offset: usize::MAX, stride: 1 }, Block { offset: 0, stride: HALF });
    refused(|d| d.copy_block(1, 1, &[1.0], far, &mut [0.0], one));
    refused(|d| d.copy_block(1, 1, &[1.0], one, &mut [0.0], far));
    refused(|d| d.copy_block(3, 1, &[1.0], wide, &mut [0.0], one));
    refused(|d| d.broadcast_rows(HALF, &[1.0; 2], &mut []));
    refused(|d| d.sum_rows(HALF, &[], &mut [0.0; 2]));
    let permute = PermuteSpec { rank: 2, dims: [HALF, 2, 1, 1, 1, 1], axes: [1, 0, 2, 3, 4, 5] };
    refused(|d| d.permute(1, &permute, &[], &mut []));
    refused(|d| d.permute(HALF, &PermuteSpec { dims: [2, 1, 1, 1, 1, 1], ..permute }, &[], &mut []));
    let rope = RopeSpec {
        rows: HALF,
        seq: 1,
        offset: 0,
        heads: 1,
        dim: 2,
        rotary: 2,
        theta: 1e4,
        interleaved: false,
    };
    refused(|d| d.rope(&rope, false, &[], &mut []));
    refused(|d| d.rope(&RopeSpec { rows: 1, heads: HALF, ..rope }, false, &[], &mut []));
    let last = RopeSpec { rows: 1, offset: usize::MAX, ..rope };
    refused(|d| d.rope(&last, false, &[1.0; 2], &mut [0.0; 2]));
}

#[test]
fn tables_refuse_sizes_that_wrap() {
    refused(|d| {
        d.gather(0, HALF, &[], &[0, 0], &mut []);
    });
    refused(|d| d.scatter_add(HALF, &[0, 0], &[], &mut []));
}

#[test]
fn attention_refuses_sizes_that_wrap() {
    let at = Strides { batch: 1, token: 1, head: 1 };
    let one = AttentionSpec { q: at, k: at, v: at, y: at, ..AttentionSpec::new(1, 1, 1, 1, 1, 1) };
    let far = Strides { token: HALF, ..at };
    for s in [
        AttentionSpec { batch: HALF, heads: 2, kv_heads: 2, ..one },
        AttentionSpec { q_len: HALF, head_dim: 2, ..one },
        AttentionSpec { k_len: HALF, head_dim: 2, ..one },
        AttentionSpec { q_len: HALF, ..one },
        AttentionSpec { q_len: 3, q: far, ..one },
        AttentionSpec { k_len: 3, k: far, ..one },
    ] {
        refused(|d| d.attention(&s, &[1.0], &[1.0], &[1.0], None, &mut [], None));
        refused(|d| {
            let to = AttentionGradients::Packed { qkv: &mut [][..], at: [0; 3] };
            d.attention_vjp(&s, &[1.0], &[1.0], &[1.0], None, &[], &[], &[], to, &mut []);
        });
    }
    refused(|_| {
        AttentionSpec::new(1, HALF, 1, 2, 1, 1);
    });
    refused(|_| {
        AttentionSpec { k_len: HALF, ..one }.vjp_scratch();
    });
}
