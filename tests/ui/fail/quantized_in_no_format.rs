use nn::*;

sequential! {
    Net: [64] -> [10] = out: QuantizedLinear<f32, 64, 10>
}

fn main() {}
