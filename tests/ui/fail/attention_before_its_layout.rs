use nn::*;

sequential! {
    Net: [16, 192] -> [16, 64] = ScaledDotProductAttention<16, 4, 16>
}

fn main() {}
