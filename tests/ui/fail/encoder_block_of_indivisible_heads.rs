use nn::*;

sequential! {
    Net: [64, 30] -> [64, 30] = LayerNorm<30>, EncoderBlock<64, 30, 4, 120>
}

fn main() {}
