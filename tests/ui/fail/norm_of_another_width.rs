use nn::*;

sequential! {
    Net: [16, 64] -> [16, 64] = Linear<64, 64>, LayerNorm<16>
}

fn main() {}
