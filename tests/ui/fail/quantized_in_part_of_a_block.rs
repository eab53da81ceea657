use nn::*;

sequential! {
    Net: [8, 64] -> [8, 10] =
        LlamaBlock<8, 64, 4, 2, 170, 1e4, 1e-5, Q8_0>,
        out: QuantizedLinear<Q8_0, 64, 10>
}

sequential! {
    Other: [100] -> [10] = out: QuantizedLinear<Q8_0, 100, 10>
}

fn main() {}
