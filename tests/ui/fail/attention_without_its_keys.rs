use nn::*;

sequential! {
    Net: [16, 64] -> [16, 64] = qkv: Linear<64, 128>, attend: CausalAttention<16, 4, 16>
}

fn main() {}
