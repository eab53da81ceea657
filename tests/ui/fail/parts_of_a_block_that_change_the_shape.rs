use nn::*;

sequential! {
    Net: [16, 32] -> [16, 32] = PreNormBlock<LayerNorm<32>, CausalSelfAttention<16, 32, 4>, LayerNorm<32>, Linear<32, 64>>
}

fn main() {}
