//! Single layers, forward and backward, and matrix products.

use candle_core::{D, Device, Error, Result, Tensor, Var};
use candle_nn::{Conv2d, Conv2dConfig, Embedding, LayerNorm, Linear, Module, RmsNorm, ops, rotary_emb};

use crate::models::{causal_attention, causal_mask};
use crate::{Found, below, forward, normal, weights, workload};

pub fn layer(name: &str) -> Found {
    let (name, backward) = match name.strip_suffix("-vjp") {
        Some(name) => (name, true),
        None => (name, false),
    };
    match name {
        "linear-64x256x256" => linear(64, 256, 256, backward),
        "linear-1024x768x3072" => linear(1024, 768, 3072, backward),
        "layer-norm" => layer_norm(backward),
        "rms-norm" => rms_norm(backward),
        "softmax" => softmax(backward),
        "gelu" => gelu(backward),
        "attention" => attention(backward),
        "conv" => conv(backward),
        "rope" => rope(backward),
        "embedding" => embedding(backward),
        _ => Ok(None),
    }
}

/// Forward, and backward to all of `vars`, of which all but the first `inputs` are parameters.
fn vjp(vars: Vec<Var>, inputs: usize, call: impl Fn(&[Var]) -> Result<Tensor> + 'static) -> Found {
    let params = vars[inputs..].iter().map(|var| var.elem_count()).sum();
    let dy = normal(9, call(&vars)?.shape())?;
    workload(params, move || {
        let grads = (call(&vars)? * &dy)?.backward()?;
        for var in &vars {
            std::hint::black_box(grads.get(var).ok_or_else(|| Error::msg("no gradient"))?);
        }
        Ok(0.0)
    })
}

fn var(tensor: &Tensor) -> Result<Var> {
    Var::from_tensor(tensor)
}

fn linear(rows: usize, inputs: usize, outputs: usize, backward: bool) -> Found {
    let x = normal(1, (rows, inputs))?;
    let (w, b) = (weights(2, (outputs, inputs), inputs)?, weights(3, outputs, inputs)?);
    if backward {
        return vjp(vec![var(&x)?, var(&w)?, var(&b)?], 1, |vars| {
            Linear::new(vars[1].as_tensor().clone(), Some(vars[2].as_tensor().clone())).forward(&vars[0])
        });
    }
    let layer = Linear::new(w, Some(b));
    forward(inputs * outputs + outputs, move || layer.forward(&x))
}

/// candle's fused norms and softmax have no gradient: what trains is made of smaller operations.
fn layer_norm(backward: bool) -> Found {
    let (x, w, b) = (normal(1, (1024, 768))?, normal(2, 768)?, normal(3, 768)?);
    if backward {
        let vars = vec![var(&x)?, var(&w)?, var(&b)?];
        return vjp(vars, 1, |vars| ops::layer_norm_slow(&vars[0], &vars[1], &vars[2], 1e-5));
    }
    let layer = LayerNorm::new(w, b, 1e-5);
    forward(2 * 768, move || layer.forward(&x))
}

fn rms_norm(backward: bool) -> Found {
    let (x, w) = (normal(1, (1024, 768))?, normal(2, 768)?);
    if backward {
        return vjp(vec![var(&x)?, var(&w)?], 1, |vars| ops::rms_norm_slow(&vars[0], &vars[1], 1e-5));
    }
    let layer = RmsNorm::new(w, 1e-5);
    forward(768, move || layer.forward(&x))
}

fn softmax(backward: bool) -> Found {
    let x = normal(1, (1024, 768))?;
    if backward {
        return vjp(vec![var(&x)?], 1, |vars| ops::softmax(&vars[0], D::Minus1));
    }
    forward(0, move || ops::softmax_last_dim(&x))
}

fn gelu(backward: bool) -> Found {
    let x = normal(1, 1 << 20)?;
    if backward {
        return vjp(vec![var(&x)?], 1, |vars| vars[0].gelu_erf());
    }
    forward(0, move || x.gelu_erf())
}

fn attention(backward: bool) -> Found {
    let shape = (2, 6, 256, 64);
    let (q, k, v) = (normal(1, shape)?, normal(2, shape)?, normal(3, shape)?);
    let mask = causal_mask(256)?;
    if backward {
        let vars = vec![var(&q)?, var(&k)?, var(&v)?];
        return vjp(vars, 3, move |vars| causal_attention(&vars[0], &vars[1], &vars[2], &mask));
    }
    // `flash_attn` takes six times as long on one thread of this many positions.
    forward(0, move || {
        let scores = (q.matmul(&k.t()?)? * 0.125)?.broadcast_add(&mask)?;
        ops::softmax_last_dim(&scores)?.matmul(&v)
    })
}

fn conv(backward: bool) -> Found {
    let x = normal(1, (32, 64, 32, 32))?;
    let (w, b) = (weights(2, (64, 64, 3, 3), 64 * 9)?, weights(3, 64, 64 * 9)?);
    let config = Conv2dConfig { padding: 1, ..Default::default() };
    if backward {
        return vjp(vec![var(&x)?, var(&w)?, var(&b)?], 1, move |vars| {
            let (w, b) = (vars[1].as_tensor().clone(), vars[2].as_tensor().clone());
            Conv2d::new(w, Some(b), config).forward(&vars[0])
        });
    }
    let layer = Conv2d::new(w, Some(b), config);
    forward(64 * 64 * 9 + 64, move || layer.forward(&x))
}

/// The cosines and sines of rotary embedding, `[positions, dim / 2]` each.
pub fn rotary_tables(positions: usize, dim: usize) -> Result<(Tensor, Tensor)> {
    let frequencies: Vec<f32> = (0..dim / 2).map(|i| 1e4_f32.powf(-2.0 * i as f32 / dim as f32)).collect();
    let frequencies = Tensor::from_vec(frequencies, (1, dim / 2), &Device::Cpu)?;
    let positions = Tensor::arange(0.0, positions as f32, &Device::Cpu)?.unsqueeze(1)?;
    let angles = positions.broadcast_mul(&frequencies)?;
    Ok((angles.cos()?, angles.sin()?))
}

fn rope(backward: bool) -> Found {
    let q = normal(1, (2, 256, 6, 64))?;
    let (cos, sin) = rotary_tables(256, 64)?;
    if backward {
        return vjp(vec![var(&q)?], 1, move |vars| {
            rotary_emb::rope_slow(&vars[0].transpose(1, 2)?, &cos, &sin)?.transpose(1, 2)
        });
    }
    forward(0, move || rotary_emb::rope_thd(&q, &cos, &sin))
}

fn embedding(backward: bool) -> Found {
    let (rows, dim) = (65_536, 256);
    let (table, ids) = (normal(1, (rows, dim))?, below(2, rows as u32, 4096)?);
    if backward {
        return vjp(vec![var(&table)?], 0, move |vars| {
            Embedding::new(vars[0].as_tensor().clone(), dim).forward(&ids)
        });
    }
    let layer = Embedding::new(table, dim);
    forward(rows * dim, move || layer.forward(&ids))
}

/// `matmul-N` and `matmul-MxKxN`.
pub fn product(name: &str) -> Found {
    let Some(sizes) = name.strip_prefix("matmul-") else { return Ok(None) };
    let sizes: Vec<usize> = sizes.split('x').filter_map(|size| size.parse().ok()).collect();
    let (m, k, n) = match sizes[..] {
        [n] => (n, n, n),
        [m, k, n] => (m, k, n),
        _ => return Ok(None),
    };
    let (a, b) = (normal(1, (m, k))?, normal(2, (k, n))?);
    forward(0, move || a.matmul(&b))
}
